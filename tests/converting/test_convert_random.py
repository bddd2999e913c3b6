"""Random programs on the simulated device, with a complete or truncated history of torch: the converted trace ends with
torch's own segments and blocks and verifies."""

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
RECORDED_POOLS = ("plain",)
UNRECORDED = ("untraced", "checkpoint_pool", "settings", "begin", "stop", "snapshot", "step")
"""Operations that affect blocks but are missing in torch's history: later changes of settings, and pools that do not
split, have their own allocator or are restored."""


def drop_unrecorded(operations: list[Any], first_settings: int = 2) -> list[Any]:
    """Return the operations that torch's history records. Settings count only among the first `first_settings`."""
    recorded = []
    for number, (name, *arguments) in enumerate(operations):
        if name == "capture":
            recorded.append([name, *arguments[:-1], drop_unrecorded(arguments[-1], 0)])
            continue
        is_recorded = number < first_settings if name == "settings" else name not in UNRECORDED
        if is_recorded and (name != "make_pool" or arguments[0] in RECORDED_POOLS):
            recorded.append([name, *arguments])
    return recorded


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    build_simulated_device()
    simulated = [str(ROOT / "tools/simcuda/run"), "--memory", "6GiB", "--devices", "2"]
    folder = tmp_path_factory.mktemp("runner")
    runner = Runner(simulated, folder, program_environment(), program="snapshot_programs.py")
    yield runner
    runner.stop()


def test_converted_random_programs_match_torch_snapshot(runner: Runner, tmp_path: Path) -> None:
    compared = {"snapshots": 0, "truncated histories": 0, "events": 0, "programs that fail in torch": 0}

    @settings(max_examples=EXAMPLES, phases=(Phase.generate, Phase.shrink))
    @given(programs(), st.sampled_from((10**6, 10**6, 5, 20, 60)), st.integers(0, 30))
    def compare(operations: list[Any], entries: int, begin: int) -> None:
        program = drop_unrecorded(operations)
        # In a third of the programs the history starts with the program.
        program.insert(min(begin, len(program)) if begin > 10 else 0, ["history"])
        folder = tmp_path / "program"
        if runner.run(folder, [["ring", entries], *program]):
            compared["programs that fail in torch"] += 1
            return
        for path in sorted(folder.glob("t.*")):
            conversion = alloctrace.convert(path, folder / "converted", overwrite=True)
            trace = alloctrace.load(conversion.trace)
            compared["snapshots"] += 1
            compared["truncated histories"] += bool(conversion.mid_run)
            compared["events"] += conversion.events
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
            rows = rows_of(trace.blocks(), BLOCK_COLUMNS)
            assert without_stale_sizes(rows) == without_stale_sizes(block_rows)
            verified = trace.verify()
            assert verified.ok and not conversion.faults, (conversion, verified)

    compare()
    print(f"\ncompared: {compared}")
    assert compared["truncated histories"] > EXAMPLES // 4
    assert compared["snapshots"] > EXAMPLES
    assert compared["programs that fail in torch"] < EXAMPLES // 10
