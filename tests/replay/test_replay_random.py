"""Replay of random programs and training loops, compared with torch's snapshot at many positions.

    ALLOCTRACE_TEST_SCALE=full tools/test tests/replay/test_replay_random.py -s

compares at more than 2,000 checkpoints; without the variable at a tenth of them.
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
    pytest.mark.skipif(has_nvidia_gpu(), reason="the programs need a device that no other process uses"),
]
FULL = os.environ.get("ALLOCTRACE_TEST_SCALE") == "full"


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    process = Runner(with_cuda([], "6GiB", 2), tmp_path_factory.mktemp("runner"), program_environment())
    yield process
    process.stop()


def assert_replay_agrees(folder: Path, expected: str = "expected") -> int:
    """Compare the traces of a program with all its checkpoints; return the number of checkpoints."""
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
def test_replay_of_random_programs_matches_torch(
    runner: Runner, tmp_path_factory: pytest.TempPathFactory, operations: list[Any]
) -> None:
    folder = tmp_path_factory.getbasetemp() / "random"
    error = runner.run(folder, operations)
    traces = [path for path in folder.glob("t.*") if path.suffix[1:].isdigit()]
    sets_limit = "max_split_size_mb" in repr(operations)  # without the setting, a free that is too early is our error
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
    "Devices are listed in their order, not in order of first use": [
        ["allocate", 5000, 1, 0],
        ["allocate", 5000, 0, 0],
    ],
    "A pool restored to a checkpoint ignores the current rounding of sizes": [
        ["checkpoint_pool", 0, [5000, 300, 3 * MIB, -1, 300], [1000], "roundup_power2_divisions:2"],
    ],
    "A pool restored to a checkpoint ignores the current split limit": [
        ["allocate", 1, 0, 0],
        ["checkpoint_pool", 0, [100 * MIB, 0, 30 * MIB, 40 * MIB, -1], [1000], "max_split_size_mb:25"],
    ],
    "A pool restored to a checkpoint ignores that expandable segments are on now": [
        ["checkpoint_pool", 0, [12 * MIB, 300, 3 * MIB, 0, 5 * MIB, 1000], [11 * MIB], "expandable_segments:True"],
    ],
    "A pool restored to a checkpoint ignores that expandable segments are off now": [
        ["settings", "expandable_segments:True"],
        ["checkpoint_pool", 0, [12 * MIB, 300, 3 * MIB, 0, 5 * MIB, 1000], [11 * MIB], "expandable_segments:False"],
    ],
    "A pool used on out of memory is split as without expandable segments": [
        ["make_pool", "use_on_oom", 0],
        ["allocate_in_pool", 30 * MIB, 0, 0],
        ["free", 0],
        ["settings", "expandable_segments:True"],
        *FULL_DEVICE,
        ["check"],
        ALMOST_30_MIB,
        ["check"],
    ],
    "A pool used on out of memory is split as an expandable one when the program uses it": [
        ["make_pool", "use_on_oom", 0],
        ["allocate_in_pool", 30 * MIB, 0, 0],
        ["free", 0],
        ["settings", "expandable_segments:True"],
        ["allocate_in_pool", 30 * MIB - MIB // 2, 0, 0],
    ],
    "A pool with its own allocator has no expandable segments, even if it is older than the setting": [
        ["make_pool", "own", 0],
        ["allocate_in_pool", 30 * MIB, 0, 0],
        ["free", 0],
        ["settings", "expandable_segments:True"],
        ["allocate_in_pool", 30 * MIB - MIB // 2, 0, 0],
    ],
    "A segment older than expandable segments is split as an expandable one": [
        ["allocate", 30 * MIB, 0, 0],
        ["free", 0],
        ["settings", "expandable_segments:True"],
        ALMOST_30_MIB,
    ],
    "An expandable segment is not used when they are off": [
        ["settings", "expandable_segments:True"],
        ["allocate", 30 * MIB, 0, 0],
        ["free", 0],
        ["settings", "expandable_segments:False"],
        ALMOST_30_MIB,
    ],
    "A pool without splitting does not split expandable segments": [
        ["settings", "expandable_segments:True"],
        ["make_pool", "no_split", 0],
        ["allocate_in_pool", 30 * MIB, 0, 0],
        ["allocate_in_pool", 3000, 0, 0],
        ["free_every", 0],
        ["allocate_in_pool", 20 * MIB, 0, 0],
        ["allocate_in_pool", 100, 0, 0],
    ],
    "Attributes of a free block survive unmapping": [
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
def test_replay_of_rare_rule_matches_torch(runner: Runner, tmp_path: Path, rule: str) -> None:
    folder = tmp_path / "rule"
    assert runner.run(folder, RULES[rule]) is None
    assert_replay_agrees(folder)


def test_state_is_same_by_event_number_time_and_peak(runner: Runner, tmp_path: Path) -> None:
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
def test_replay_of_training_loops_matches_torch(run_cuda_program, tmp_path: Path, name: str) -> None:
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
