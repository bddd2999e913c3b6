"""Random programs on the simulated device, with torch's history whole or cut: the converted trace ends with torch's own
segments and blocks, and nothing in it contradicts itself."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from replay_oracle import BLOCK_COLUMNS, SEGMENT_COLUMNS, rows_of, without_stale_sizes
from replay_strategies import Runner, programs
from running import ROOT, build_simulated_device, has_nvidia_gpu, needs_cuda_build, program_environment

import pytorch_alloctrace as alloctrace

pytestmark = [
    needs_cuda_build,
    pytest.mark.skipif(has_nvidia_gpu(), reason="the programs take memory as if they were alone on the device"),
]
EXAMPLES = 400 if os.environ.get("ALLOCTRACE_TEST_SCALE") == "full" else 20

TORCH_SEGMENT_COLUMNS = [name.replace("_bytes", "_size") for name in SEGMENT_COLUMNS]
TORCH_BLOCK_COLUMNS = ("address", "size", "requested_size", "state")
TOLD_POOLS = ("plain",)
UNTOLD = ("untraced", "checkpoint_pool", "settings", "begin", "stop", "snapshot", "step")
"""What decides about blocks and is in no entry of torch's history: settings that change while the program runs, pools
that do not split, that have an allocator of their own, that are restored."""


def told(operations: list[Any], first_settings: int = 2) -> list[Any]:
    """The operations without those that torch's history cannot tell of; settings among the first so many stay."""
    kept = []
    for number, (name, *arguments) in enumerate(operations):
        if name == "capture":
            kept.append([name, *arguments[:-1], told(arguments[-1], 0)])
            continue
        is_told = number < first_settings if name == "settings" else name not in UNTOLD
        if is_told and (name != "make_pool" or arguments[0] in TOLD_POOLS):
            kept.append([name, *arguments])
    return kept


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    build_simulated_device()
    simulated = [str(ROOT / "tools/simcuda/run"), "--memory", "6GiB", "--devices", "2"]
    folder = tmp_path_factory.mktemp("runner")
    started = Runner(simulated, folder, program_environment(), program="snapshot_programs.py")
    yield started
    started.stop()


def test_random_programs(runner: Runner, tmp_path: Path) -> None:
    compared = {"snapshots": 0, "begun in mid-run": 0, "events": 0, "programs at which torch fails": 0}

    @settings(max_examples=EXAMPLES, phases=(Phase.generate, Phase.shrink))
    @given(programs(), st.sampled_from((10**6, 10**6, 5, 20, 60)), st.integers(0, 30))
    def compare(operations: list[Any], entries: int, begin: int) -> None:
        program = told(operations)
        # In a third of the programs the history begins with them.
        program.insert(min(begin, len(program)) if begin > 10 else 0, ["history"])
        folder = tmp_path / "program"
        if runner.run(folder, [["ring", entries], *program]):
            compared["programs at which torch fails"] += 1
            return
        for path in sorted(folder.glob("t.*")):
            done = alloctrace.convert(path, folder / "converted", overwrite=True)
            trace = alloctrace.load(done.trace)
            compared["snapshots"] += 1
            compared["begun in mid-run"] += bool(done.mid_run)
            compared["events"] += done.events
            segments = pickle.loads(path.read_bytes())["segments"]
            for segment in segments:
                segment["device"] = f"cuda:{segment['device']}"
            segment_rows = sorted(tuple(segment[name] for name in TORCH_SEGMENT_COLUMNS) for segment in segments)
            block_rows = sorted(
                (segment["device"], segment["address"], *(block[name] for name in TORCH_BLOCK_COLUMNS))
                for segment in segments
                for block in segment["blocks"]
            )
            assert rows_of(trace.segments(), SEGMENT_COLUMNS) == segment_rows
            ours = rows_of(trace.blocks(), BLOCK_COLUMNS)
            assert without_stale_sizes(ours) == without_stale_sizes(block_rows)
            verified = trace.verify()
            assert verified.ok and not done.faults, (done, verified)

    compare()
    print(f"\ncompared: {compared}")
    assert compared["begun in mid-run"] > EXAMPLES // 4
    assert compared["snapshots"] > EXAMPLES
    assert compared["programs at which torch fails"] < EXAMPLES // 10
