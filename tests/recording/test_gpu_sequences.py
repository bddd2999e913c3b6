"""That the simulated device makes torch allocate as a real GPU does: event by event, kind, size and stream.

The real GPU's side is what tools/gpu_check has recorded: the files benchmarks/results/gpu-*.json. NO SUCH FILE IS THERE
YET: no GPU was at hand so far. As long as that is so, nothing in this file says that the simulated device is right; it
says that two runs of it are the same, and that the comparison finds what differs. The test of the files then has
nothing to compare, and is skipped with that reason. Files made by `gpu_check --simulated` are refused: they would
compare the simulated device with itself.
"""

from __future__ import annotations

import difflib
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from gpu_programs import PROGRAMS, Event, as_text, from_text, recorded
from running import ROOT, build_simulated_device, needs_cuda_build

RESULTS = sorted((ROOT / "benchmarks" / "results").glob("gpu-*.json"))
SIMULATED = [ROOT / "tools" / "simcuda" / "run", "--memory", "80GiB"]

EXPLAINED: dict[tuple[str, str], str] = {}
"""Differences that have been looked into. By the device's name as its file gives it and the program: why the two
sequences differ. A pair that is here must differ still, or this entry has to go."""


def differences(ours: Sequence[Event], theirs: Sequence[Event]) -> list[str]:
    """What would have to change in ours to get theirs, a line for each part that differs; empty if they are equal."""
    mine, other = as_text(ours), as_text(theirs)
    reported = []
    for what, start, end, other_start, other_end in difflib.SequenceMatcher(None, mine, other, False).get_opcodes():
        if what == "equal":
            continue
        here, there = (
            ", ".join(lines[:3]) + f" and {len(lines) - 3} more" * (len(lines) > 3) if lines else "nothing"
            for lines in (mine[start:end], other[other_start:other_end])
        )
        reported.append(f"event {other_start}: {there}; on the simulated device, event {start}: {here}")
    return reported


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What gpu_check finds on the simulated device."""
    build_simulated_device()
    out = tmp_path_factory.mktemp("simulated") / "gpu-simulated.json"
    command = [sys.executable, "tools/gpu_check.py", "--simulated", "--only", "device", "sequences", "--out", out]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(out.read_text())
    return result


@pytest.fixture(scope="module")
def simulated(checked: dict[str, Any]) -> dict[str, list[Event]]:
    """What the simulated device does now, by program."""
    return {name: from_text(lines) for name, lines in checked["sequences"].items()}


def unexplained(result: dict[str, Any], simulated: dict[str, list[Event]]) -> list[str]:
    """What a file of gpu_check says that the simulated device does not, and that EXPLAINED does not cover."""
    if result["simulated"]:
        return ["this file was made on the simulated device"]
    wrong = [f"{name}: not in the file" for name in PROGRAMS if name not in result["sequences"]]
    device = result["device"]["name"]
    for name, lines in result["sequences"].items():
        different = differences(simulated[name], from_text(lines))
        explained = EXPLAINED.get((device, name))
        if different and not explained:
            wrong += [f"{name}: {len(different)} differences", *different[:10]]
        if explained and not different:
            wrong.append(f"{name}: is the same now, so EXPLAINED says too much")
    return wrong


@needs_cuda_build
@pytest.mark.skipif(not RESULTS, reason="no benchmarks/results/gpu-*.json yet: gpu_check has not been run on a GPU")
@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_a_real_gpu_allocates_as_the_simulated_one(path: Path, simulated: dict[str, list[Event]]) -> None:
    import torch

    result = json.loads(path.read_text())
    if result["device"]["torch"].split(".")[:2] != torch.__version__.split(".")[:2]:
        pytest.skip(f"recorded with torch {result['device']['torch']}, this is {torch.__version__}")
    wrong = unexplained(result, simulated)
    assert not wrong, "\n".join(wrong)


@needs_cuda_build
def test_gpu_check_records_all_programs(checked: dict[str, Any], simulated: dict[str, list[Event]]) -> None:
    assert not checked["failed"] and checked["simulated"] and set(checked["seconds"]) == {"device", "sequences"}
    assert checked["device"]["name"] and checked["device"]["torch"] and checked["device"]["driver"] == "simulated"
    assert unexplained(checked, simulated) == ["this file was made on the simulated device"]
    assert unexplained({**checked, "simulated": False}, simulated) == []


@needs_cuda_build
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow("simcuda")] if name != "mlp" else []) for name in PROGRAMS]
)
def test_second_recording_has_the_same_sequence(tmp_path: Path, simulated: dict[str, list[Event]], name: str) -> None:
    assert recorded(name, tmp_path, SIMULATED) == simulated[name]


@needs_cuda_build
def test_the_programs_do_what_they_are_there_for(simulated: dict[str, list[Event]]) -> None:
    kinds = {name: {kind for kind, _, _ in events} for name, events in simulated.items()}
    assert all(len(events) > 400 for events in simulated.values()), {name: len(simulated[name]) for name in simulated}
    common = {"alloc", "free_requested", "free_completed", "segment_alloc", "segment_free"}
    assert all(common <= found for found in kinds.values()), kinds
    assert "oom" in kinds["out_of_memory"] and (1 << 45) in {size for _, size, _ in simulated["out_of_memory"]}
    assert max(stream for _, _, stream in simulated["graphs"]) >= 2, "captures have a stream of their own"


SMALL: list[Event] = [("segment_alloc", 2097152, 0), ("alloc", 512, 0), ("alloc", 100, 1), ("free_requested", 100, 1)]


@pytest.mark.parametrize(
    ("theirs", "reported"),
    [
        (SMALL, []),
        (
            [SMALL[0], ("alloc", 516, 0), *SMALL[2:]],
            ["event 1: alloc 516 0; on the simulated device, event 1: alloc 512 0"],
        ),
        ([*SMALL[:2], SMALL[3]], ["event 2: nothing; on the simulated device, event 2: alloc 100 1"]),
        (SMALL[:-1], ["event 3: nothing; on the simulated device, event 3: free_requested 100 1"]),
        ([SMALL[1], *SMALL], ["event 0: alloc 512 0; on the simulated device, event 0: nothing"]),
        (
            [*SMALL[:2], ("alloc", 100, 0), SMALL[3]],
            ["event 2: alloc 100 0; on the simulated device, event 2: alloc 100 1"],
        ),
        (
            [SMALL[0], *(("alloc", 7, 0),) * 5],
            [
                "event 1: alloc 7 0, alloc 7 0, alloc 7 0 and 2 more; "
                "on the simulated device, event 1: alloc 512 0, alloc 100 1, free_requested 100 1"
            ],
        ),
    ],
)
def test_the_comparison_says_what_differs(theirs: list[Event], reported: list[str]) -> None:
    assert differences(SMALL, theirs) == reported


@needs_cuda_build
def test_a_difference_from_a_file_is_found_until_it_is_explained(
    simulated: dict[str, list[Event]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def file_with(**changed: list[Event]) -> dict[str, Any]:
        sequences = {name: as_text(events) for name, events in {**simulated, **changed}.items()}
        return {"simulated": False, "device": {"name": "GPU X"}, "sequences": sequences}

    mlp = simulated["mlp"]
    middle = len(mlp) // 2
    kind, size, stream = mlp[middle]
    assert not unexplained(file_with(), simulated)
    another_size = file_with(mlp=[*mlp[:middle], (kind, size + 512, stream), *mlp[middle + 1 :]])
    assert unexplained(another_size, simulated)[0] == "mlp: 1 differences"
    assert f"{kind} {size + 512} {stream}" in unexplained(another_size, simulated)[1]
    missing = unexplained(file_with(mlp=[*mlp[:middle], *mlp[middle + 1 :]]), simulated)
    assert missing[0] == "mlp: 1 differences" and "nothing" in missing[1]
    without = file_with()
    del without["sequences"]["convnet"]
    assert unexplained(without, simulated) == ["convnet: not in the file"]
    monkeypatch.setitem(EXPLAINED, ("GPU X", "mlp"), "its cuBLAS takes another workspace")
    assert not unexplained(another_size, simulated)
    assert unexplained(file_with(), simulated) == ["mlp: is the same now, so EXPLAINED says too much"]
