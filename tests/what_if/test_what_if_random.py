"""The model compared with torch's allocator: random programs run under one setting, then under another on a smaller
device. From the first trace the model predicts all segment events and the failed allocation of the second run."""

from __future__ import annotations

import importlib.metadata
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cuda_virtual_methods import parse_release
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from replay_strategies import NUMBERS, STREAMS, Runner, one_of, operation
from running import ROOT, build_simulated_device, has_nvidia_gpu, needs_cuda_build, program_environment
from what_if_oracle import compare

pytestmark = [
    needs_cuda_build,
    pytest.mark.skipif(has_nvidia_gpu(), reason="a GPU's addresses and the timing of its streams are not predictable"),
]
MIB = 2**20
EXAMPLES = 300 if os.environ.get("ALLOCTRACE_TEST_SCALE") == "full" else 10
SETTINGS = (
    "expandable_segments:False",
    "expandable_segments:True",
    "max_split_size_mb:64",
    "max_split_size_mb:25,max_non_split_rounding_mb:30",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:[1:2,64:8,256:1,512:4,>:1]",
    "expandable_segments:True,roundup_power2_divisions:8",
    "expandable_segments:True,max_split_size_mb:200",
)
SIZES = st.one_of(
    st.integers(1, 4096),
    st.integers(1, MIB),
    st.integers(MIB, 12 * MIB),
    st.integers(10 * MIB, 150 * MIB),
    st.integers(20 * MIB, 90 * MIB),
)
COMMON = {
    operation("allocate", SIZES, st.just(0), STREAMS): 14,
    operation("free", NUMBERS): 4,
    operation("free_every", st.integers(0, 3)): 1,
    operation("free_while_used", NUMBERS, STREAMS): 2,
    operation("release", st.just(0), STREAMS): 2,
}
OPERATIONS = one_of(
    {
        **COMMON,
        operation("empty_cache"): 1,
        operation("make_pool", st.sampled_from(("plain", "no_split")), st.just(0)): 1,
        operation("allocate_in_pool", SIZES, NUMBERS, STREAMS): 2,
    }
)


def programs(body: st.SearchStrategy[list[Any]], *lengths: int) -> st.SearchStrategy[list[list[Any]]]:
    return st.sampled_from(lengths).flatmap(lambda length: st.lists(body, min_size=length, max_size=length + 15))


# torch 2.9 makes no MemPool with expandable segments: the two runs would be different programs.
POOL_SETTINGS = tuple(
    text
    for text in SETTINGS
    if "expandable_segments:True" not in text or parse_release(importlib.metadata.version("torch")) > (2, 9)
)
POOLS = ("plain", "plain", "no_split", "own", "own", "use_on_oom")
IN_CAPTURE = st.lists(one_of(COMMON), max_size=12)
WITH_POOLS = one_of(
    {
        **COMMON,
        operation("empty_cache"): 1,
        operation("make_pool", st.sampled_from(POOLS), st.just(0)): 2,
        operation("drop_pool", NUMBERS): 1,
        operation("allocate_in_pool", SIZES, NUMBERS, STREAMS): 4,
        operation("capture", st.just(0), st.integers(0, 3), IN_CAPTURE): 2,
        operation("drop_graph", NUMBERS): 1,
    }
)
WITH_FRACTIONS = one_of(
    {
        **COMMON,
        operation("empty_cache"): 1,
        operation("fraction", st.sampled_from((100, 50, 10, 3)), st.just(0)): 1,
        operation("make_pool", st.just("plain"), st.just(0)): 1,
        operation("allocate_in_pool", SIZES, NUMBERS, STREAMS): 2,
        operation("drop_pool", NUMBERS): 1,
    }
)
COLLECTING = ("garbage_collection_threshold:0.6", "garbage_collection_threshold:0.2,max_split_size_mb:64")
# No shrinking: it takes minutes.
RANDOM = settings(max_examples=EXAMPLES, phases=(Phase.explicit, Phase.generate))


@dataclass
class Runs:
    """Runners of a large and a small device, and counters of the comparisons."""

    folder: Path
    large: Runner
    small: Runner
    compared: Counter[str] = field(default_factory=Counter)

    def check_prediction(self, operations: list[Any], setting: str, other: str) -> None:
        """Compare the run with `other` on the small device with its prediction, unless torch itself fails."""
        # Settings come before the first MemPool: torch cannot distinguish MemPools when settings change. The fraction
        # is set in both runs: in torch 2.9 a fraction of 1 differs from none, and none cannot be restored.
        for runner, name, text in ((self.large, "recorded", setting), (self.small, "again", other)):
            program = [["settings", text], ["fraction", 100, 0], *operations]
            error = runner.run(self.folder / name, program)
            if error and runner.fails_without_recording(self.folder / name, program):
                runner.stop()
                self.compared["failures of torch"] += 1
                return
            assert error is None, error
        comparison = compare(self.folder / "recorded" / "t.0", self.folder / "again" / "t.0", other)
        assert not comparison.differences, "\n".join(comparison.differences)
        self.compared.update({"programs": 1, "segment events": comparison.events, "failed": int(comparison.failed)})


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    build_simulated_device()
    simulated, environment = str(ROOT / "tools/simcuda/run"), program_environment()
    large, small = (
        Runner([simulated, "--memory", memory], tmp_path_factory.mktemp("runner"), environment)
        for memory in ("80GiB", "1GiB")
    )
    counted_runs = Runs(tmp_path_factory.mktemp("programs"), large, small)
    yield counted_runs
    print(f"\nin all: {dict(counted_runs.compared)}")
    large.stop()
    small.stop()


@RANDOM
@given(operations=programs(OPERATIONS, 20, 70, 120), setting=st.sampled_from(SETTINGS), other=st.sampled_from(SETTINGS))
def test_random_programs_are_predicted(runs: Runs, operations: list[Any], setting: str, other: str) -> None:
    runs.check_prediction(operations, setting, other)


@RANDOM
@given(
    operations=programs(WITH_POOLS, 40, 90),
    setting=st.sampled_from(POOL_SETTINGS),
    other=st.sampled_from(POOL_SETTINGS),
)
def test_pools_and_graphs_are_predicted(runs: Runs, operations: list[Any], setting: str, other: str) -> None:
    runs.check_prediction(operations, setting, other)


@RANDOM
@given(
    operations=programs(WITH_FRACTIONS, 40, 90),
    setting=st.sampled_from(SETTINGS[:3] + COLLECTING),
    other=st.sampled_from(SETTINGS[:3] + COLLECTING),
)
def test_memory_fractions_are_predicted(runs: Runs, operations: list[Any], setting: str, other: str) -> None:
    runs.check_prediction(operations, setting, other)


def test_enough_programs_and_events_were_compared(runs: Runs) -> None:
    compared = runs.compared
    assert compared["programs"] >= EXAMPLES and compared["segment events"] > 10 * EXAMPLES, compared
    assert compared["failed"], compared
