"""That replay rebuilds torch's allocator exactly: random programs and training loops, with torch's own snapshot beside
the trace at many moments of each.

    ALLOCTRACE_TEST_SCALE=full tools/test tests/test_replay_random.py -s

compares at more than 2,000 checkpoints; without the variable it is a tenth. Both print what they compared.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, build_simulated_device, has_nvidia_gpu, needs_cuda_build, program_environment
from hypothesis import HealthCheck, Phase, given, settings
from replay_oracle import (
    Checkpoint,
    Comparison,
    compare_states,
    contradictions,
    event_differences,
    peak_differences,
    read_expected,
)
from replay_strategies import Runner, programs

import pytorch_alloctrace as alloctrace

pytestmark = [
    needs_cuda_build,
    pytest.mark.skipif(has_nvidia_gpu(), reason="the programs take memory as if they were alone on the device"),
]
FULL = os.environ.get("ALLOCTRACE_TEST_SCALE") == "full"
EXAMPLES = 600 if FULL else 60
HAS_REPLAY = hasattr(alloctrace.Trace, "segments")
RANDOM = settings(
    max_examples=EXAMPLES,
    derandomize=True,  # the same programs on every machine
    deadline=None,
    database=None,
    print_blob=False,
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def total() -> Iterator[Comparison]:
    """What was compared in this file; printed at its end."""
    compared = Comparison()
    yield compared
    print(f"\nin all: {compared}, {'replayed' if HAS_REPLAY else 'not replayed'}")


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    build_simulated_device()
    folder = tmp_path_factory.mktemp("runner")
    simulated = [str(ROOT / "tools/simcuda/run"), "--memory", "6GiB", "--devices", "2"]
    started = Runner(simulated, folder, program_environment())
    yield started
    started.stop()


def compare_program(folder: Path, checkpoints: list[Checkpoint]) -> Comparison:
    """All checkpoints of all traces that a program has left in the folder."""
    comparison = Comparison()
    for name, group in itertools.groupby(checkpoints, key=lambda checkpoint: checkpoint.trace):
        of_trace = list(group)
        trace = alloctrace.load(folder / name)
        assert trace.integrity.state == "complete" and trace.integrity.lost == 0
        for checkpoint in of_trace:
            comparison.count(checkpoint)
            comparison.differences += contradictions(checkpoint)
        comparison.differences += event_differences(trace, of_trace)
        if HAS_REPLAY:
            comparison += compare_states(trace, of_trace)
            comparison.differences += peak_differences(trace, of_trace[-1].peaks)
    return comparison


@RANDOM
@given(operations=programs())
def test_random_programs(
    runner: Runner, tmp_path_factory: pytest.TempPathFactory, total: Comparison, operations: list[Any]
) -> None:
    folder = tmp_path_factory.mktemp("random")
    error = runner.run(str(folder / "t"), str(folder / "expected"), operations)
    assert error is None, error
    comparison = compare_program(folder, read_expected(folder / "expected"))
    assert not comparison.differences, "\n".join(comparison.differences[:10])
    total += comparison
    shutil.rmtree(folder)


@dataclasses.dataclass(frozen=True)
class Loops:
    programs: tuple[str, ...]
    devices: int = 1
    memory: str = "80GiB"
    allocator: str = ""


MODELS = ("mlp", "transformer", "convnet", "gpt2")
ALLOCATOR = ("streams", "memory_pools", "graphs", "empty_cache", "expandable_segments", "layout_settings")
LOOPS = {
    "models": Loops((*MODELS, "two_devices"), devices=2),
    "allocator": Loops(
        ALLOCATOR, devices=2, allocator="max_split_size_mb:64,roundup_power2_divisions:[256:1,512:2,>:8]"
    ),
    "little memory": Loops(("out_of_memory", "collected_segments", "mlp"), memory="3GiB"),
}
EXPANDABLE = {
    f"{name}, expandable": dataclasses.replace(loops, allocator="expandable_segments:True")
    for name, loops in LOOPS.items()
}
CHOSEN = {**LOOPS, **EXPANDABLE} if FULL else {"models": LOOPS["models"], **dict([*EXPANDABLE.items()][1:])}


@pytest.mark.parametrize("loops", CHOSEN.values(), ids=CHOSEN)
def test_training_loops(run_cuda_program, tmp_path: Path, loops: Loops, total: Comparison) -> None:
    """Checkpoints lie between any two operators, of forward, backward and optimizer."""
    run_cuda_program(
        "import sys, replay_training\nreplay_training.main(sys.argv[1:])",
        *(".", "1" if FULL else "0.2", "1.02" if FULL else "1.15", *loops.programs),
        memory=loops.memory,
        devices=loops.devices,
        timeout=900 if FULL else 120,
        PYTHONPATH=os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
        PYTORCH_ALLOC_CONF=loops.allocator,
    )
    for name in loops.programs:
        comparison = compare_program(tmp_path, read_expected(tmp_path / f"{name}.expected"))
        assert comparison.checkpoints >= (40 if FULL else 8)
        assert not comparison.differences, "\n".join(comparison.differences[:10])
        total += comparison
