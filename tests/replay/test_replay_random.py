"""That replay rebuilds torch's allocator exactly: random programs and training loops, with torch's own snapshot next to
the trace at many positions of each.

    ALLOCTRACE_TEST_SCALE=full tools/test tests/replay/test_replay_random.py -s

compares at more than 2,000 checkpoints; without the variable it is a tenth.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import Phase, given, settings
from replay_oracle import (
    event_differences,
    frees_memory_in_use,
    peak_differences,
    pool_differences,
    read_expected,
    state_differences,
    verification_differences,
)
from replay_strategies import Runner, programs
from running import WITH_SUPPORT, has_nvidia_gpu, needs_cuda_build, program_environment, with_cuda

import pytorch_alloctrace as alloctrace

pytestmark = [
    needs_cuda_build,
    pytest.mark.skipif(has_nvidia_gpu(), reason="the programs take memory as if they were alone on the device"),
]
FULL = os.environ.get("ALLOCTRACE_TEST_SCALE") == "full"


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    started = Runner(with_cuda([], "6GiB", 2), tmp_path_factory.mktemp("runner"), program_environment())
    yield started
    started.stop()


def assert_replay_agrees(folder: Path, expected: str = "expected") -> int:
    """Compare all traces that a program has left in the folder with all its checkpoints; return the number of these."""
    checkpoints = read_expected(folder / expected)
    for name, group in itertools.groupby(checkpoints, key=lambda checkpoint: checkpoint.trace):
        of_trace = list(group)
        trace = alloctrace.load(folder / name)
        assert trace.integrity.state == "complete" and trace.integrity.lost == 0
        differences = [*event_differences(trace, of_trace), *pool_differences(trace, of_trace)]
        for checkpoint in of_trace:
            differences += state_differences(trace, checkpoint)
        differences += [*verification_differences(trace), *peak_differences(trace, of_trace[-1].peaks)]
        assert not differences, "\n".join([name, *differences[:10]])
    return len(checkpoints)


@settings(max_examples=600 if FULL else 30, phases=(Phase.explicit, Phase.generate, Phase.shrink))
@given(operations=programs())
def test_random_programs(runner: Runner, tmp_path_factory: pytest.TempPathFactory, operations: list[Any]) -> None:
    folder = tmp_path_factory.getbasetemp() / "random"
    error = runner.run(folder, operations)
    traces = [path for path in folder.glob("t.*") if path.suffix[1:].isdigit()]
    sets_limit = "max_split_size_mb" in repr(operations)  # without, a segment that goes too early is ours
    if (sets_limit and any(frees_memory_in_use(alloctrace.load(path)) for path in traces)) or (
        error and runner.fails_without_recording(folder, operations)
    ):
        runner.stop()
        return
    assert error is None, error
    assert_replay_agrees(folder)


MIB, GIB = 2**20, 2**30
FULL_DEVICE = [["allocate", size, 0, 0] for size in (2 * GIB, 2 * GIB, GIB, GIB // 2, *[31 * MIB] * 40)]
ALMOST_30_MIB = ["allocate", 30 * MIB - MIB // 2, 0, 0]
RULES: dict[str, list[Any]] = {
    "Devices are listed in their order, not in that of their first use": [
        ["allocate", 5000, 1, 0],
        ["allocate", 5000, 0, 0],
    ],
    "A pool set back to a checkpoint takes no notice of how sizes are rounded now": [
        ["checkpoint_pool", 0, [5000, 300, 3 * MIB, -1, 300], [1000], "roundup_power2_divisions:2"],
    ],
    "nor of what is split now": [
        ["allocate", 1, 0, 0],
        ["checkpoint_pool", 0, [100 * MIB, 0, 30 * MIB, 40 * MIB, -1], [1000], "max_split_size_mb:25"],
    ],
    "nor whether expandable segments are on now": [
        ["checkpoint_pool", 0, [12 * MIB, 300, 3 * MIB, 0, 5 * MIB, 1000], [11 * MIB], "expandable_segments:True"],
    ],
    "and the other way round": [
        ["settings", "expandable_segments:True"],
        ["checkpoint_pool", 0, [12 * MIB, 300, 3 * MIB, 0, 5 * MIB, 1000], [11 * MIB], "expandable_segments:False"],
    ],
    "A pool for the last resort is split as if there were no expandable segments": [
        ["make_pool", "use_on_oom", 0],
        ["allocate_in_pool", 30 * MIB, 0, 0],
        ["free", 0],
        ["settings", "expandable_segments:True"],
        *FULL_DEVICE,
        ["check"],
        ALMOST_30_MIB,
        ["check"],
    ],
    "but not where the program asks for that pool": [
        ["make_pool", "use_on_oom", 0],
        ["allocate_in_pool", 30 * MIB, 0, 0],
        ["free", 0],
        ["settings", "expandable_segments:True"],
        ["allocate_in_pool", 30 * MIB - MIB // 2, 0, 0],
    ],
    "A pool with an allocator of its own has no expandable segments, also when it is older than the setting": [
        ["make_pool", "own", 0],
        ["allocate_in_pool", 30 * MIB, 0, 0],
        ["free", 0],
        ["settings", "expandable_segments:True"],
        ["allocate_in_pool", 30 * MIB - MIB // 2, 0, 0],
    ],
    "A segment from before expandable segments is split as an expandable one": [
        ["allocate", 30 * MIB, 0, 0],
        ["free", 0],
        ["settings", "expandable_segments:True"],
        ALMOST_30_MIB,
    ],
    "An expandable one is not when they are off: it is not used": [
        ["settings", "expandable_segments:True"],
        ["allocate", 30 * MIB, 0, 0],
        ["free", 0],
        ["settings", "expandable_segments:False"],
        ALMOST_30_MIB,
    ],
    "A pool that does not split keeps to it in expandable segments": [
        ["settings", "expandable_segments:True"],
        ["make_pool", "no_split", 0],
        ["allocate_in_pool", 30 * MIB, 0, 0],
        ["allocate_in_pool", 3000, 0, 0],
        ["free_every", 0],
        ["allocate_in_pool", 20 * MIB, 0, 0],
        ["allocate_in_pool", 100, 0, 0],
    ],
    "What a free block remembers goes its way through unmapped memory": [
        ["settings", "expandable_segments:True"],
        *[["allocate", size, 0, 0] for size in (50 * MIB, 7 * MIB, 30 * MIB, 9 * MIB, 45 * MIB)],
        ["free", 0],
        ["free", 1],
        ["check"],
        ["empty_cache"],
        ["check"],
        ["allocate", 11 * MIB, 0, 0],
        ["check"],
        ["allocate", 33 * MIB, 0, 0],
        ["free", 0],
        ["empty_cache"],
        ["check"],
        ["allocate", 90 * MIB, 0, 0],
    ],
}


@pytest.mark.parametrize("rule", RULES)
def test_rules_that_are_seldom_met(runner: Runner, tmp_path: Path, rule: str) -> None:
    folder = tmp_path / "rule"
    assert runner.run(folder, RULES[rule]) is None
    assert_replay_agrees(folder)


def test_moments_have_several_names(runner: Runner, tmp_path: Path) -> None:
    """A checkpoint by its event number and its time, the peaks by torch's own counters."""
    sizes = (3 * MIB, 700, 40 * MIB, 90 * MIB, 5000, MIB, 30 * MIB)
    operations: list[Any] = [[["allocate", size, 0, 0], ["check"]] for size in sizes]
    operations += [[["free", number], ["check"], ["empty_cache"], ["check"]] for number in (2, 0, 1, 3)]
    operations += [[["allocate", size // 3, 0, 0], ["check"]] for size in sizes]
    folder = tmp_path / "positions"
    assert runner.run(folder, [*itertools.chain.from_iterable(operations)]) is None
    checkpoints = read_expected(folder / "expected")
    trace = alloctrace.load(folder / "t.0")
    marks = trace.marks().set_index("name")
    for checkpoint in checkpoints[:-1]:
        mark = marks.loc[checkpoint.at.removeprefix("mark:")]
        time_ns = int(mark["begin_ns"])
        since_begin = f"{(time_ns - trace.begin_ns) / 1e9:.9f}s"
        for at in (int(mark["begin_seq"]), pd.Timestamp(time_ns, tz="UTC"), since_begin):
            assert state_differences(trace, checkpoint, at) == []
    peaks = checkpoints[-1].peaks["cuda:0"]
    assert trace.segments(at="peak")["allocated_bytes"].sum() == peaks["allocated"] == trace.peak(device="cuda:0").bytes
    assert trace.segments(at="peak:reserved")["total_bytes"].sum() == peaks["reserved"]
    assert peaks["reserved"] > checkpoints[-1].segments[0][2] > 0


@dataclasses.dataclass(frozen=True)
class Loops:
    programs: tuple[str, ...]
    devices: int = 1
    memory: str = "80GiB"
    allocator: str = ""


MODELS = ("mlp", "transformer", "convnet") if FULL else ("mlp", "transformer")
ALLOCATOR = ("streams", "memory_pools", "graphs", "empty_cache", "expandable_segments", "layout_settings")
LOOPS = {
    "models": Loops((*MODELS, "two_devices"), devices=2),
    "allocator": Loops(
        ALLOCATOR, devices=2, allocator="max_split_size_mb:64,roundup_power2_divisions:[256:1,512:2,>:8]"
    ),
    "little memory": Loops(("out_of_memory", "collected_segments", "mlp"), memory="3GiB"),
}
LOOPS |= {
    f"{name}, expandable": dataclasses.replace(loops, allocator="expandable_segments:True")
    for name, loops in LOOPS.items()
}


@pytest.mark.parametrize("name", LOOPS if FULL else ("models", "allocator, expandable"))
def test_training_loops(run_cuda_program, tmp_path: Path, name: str) -> None:
    """Checkpoints lie between any two operators, of forward, backward and optimizer."""
    loops = LOOPS[name]
    run_cuda_program(
        "import sys, replay_training\nreplay_training.main(sys.argv[1:])",
        *(".", "1" if FULL else "0.2", "1.02" if FULL else "1.25", *loops.programs),
        memory=loops.memory,
        devices=loops.devices,
        timeout=1800 if FULL else 600,
        PYTHONPATH=WITH_SUPPORT,
        PYTORCH_ALLOC_CONF=loops.allocator,
    )
    for program in loops.programs:
        assert assert_replay_agrees(tmp_path, f"{program}.expected") >= (20 if FULL else 6)
