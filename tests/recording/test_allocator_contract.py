"""The contract that recording must fulfil for every allocator."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from format_reader import TraceFile
from native_library import contract_library
from running import ROOT, run_python, with_cuda

import pytorch_alloctrace as alloctrace

ALLOC, FREE_REQUESTED, FREE_COMPLETED, OOM = 1, 2, 3, 9
CPU_TYPE, CUDA_TYPE, PINNED_TYPE = 0, 1, 1000
SUBJECTS = ("pairs", "zero", "error", "threads", "across", "again", "resize", "properties", "clone")
ALLOCATORS: dict[str, tuple[str, dict[str, str]]] = {
    "cpu": ("cpu", {}),
    "cuda native": ("cuda", {}),
    "cuda cudaMallocAsync": ("cuda", {"PYTORCH_ALLOC_CONF": "backend:cudaMallocAsync"}),
    "cuda pluggable": ("pluggable", {}),
    "pinned": ("pinned", {}),
}
"""For each allocator, its name in allocator_contract_program.py and the environment that selects it."""


class Recorded:
    """Traces of one program, and the values that the program expects in them."""

    def __init__(self, allocator: str, folder: Path) -> None:
        self.allocator = allocator
        self.folder = folder
        self.expected: dict[str, Any] = json.loads((folder / "expected.json").read_text())

    def trace_path(self, subject: str) -> Path:
        return self.folder / f"{subject}.alloctrace"

    def events(self, subject: str, *kinds: int) -> list[Any]:
        """Return the events of this allocator's memory, in order."""
        trace = TraceFile(self.trace_path(subject))
        memory_type = {"cpu": CPU_TYPE, "pinned": PINNED_TYPE}.get(self.allocator, CUDA_TYPE)
        events = [event for _, event in trace.events() if event.kind in kinds]
        return [event for event in events if trace.names.locations[event.location][0] == memory_type]

    def blocks(self, subject: str) -> list[list[int]]:
        """Return the address and bytes of each block, in order."""
        return [[event.address, event.size] for event in self.events(subject, ALLOC)]

    def freed(self, subject: str) -> list[int]:
        """Return the addresses of completed frees, in order."""
        return [event.address for event in self.events(subject, FREE_COMPLETED)]


@pytest.fixture(scope="module", params=ALLOCATORS)
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Record the program of one allocator."""
    folder = tmp_path_factory.mktemp("contract")
    name, environment = ALLOCATORS[request.param]
    program = [sys.executable, str(ROOT / "tests/support/allocator_contract_program.py"), name, str(contract_library())]
    run_python(folder, program if name == "cpu" else with_cuda(program, "8GiB"), True, 600, environment)
    return Recorded(request.param, folder)


def test_trace_is_complete_for_every_subject(recorded: Recorded) -> None:
    for subject in SUBJECTS:
        trace = alloctrace.load(recorded.trace_path(subject))
        assert trace.integrity.state == "complete" and trace.integrity.lost == 0, subject
        assert trace.verify().missed_frees == 0, subject


def test_block_is_recorded_and_freed_once_with_its_size(recorded: Recorded) -> None:
    assert recorded.blocks("pairs") == recorded.expected["pairs"]
    addresses = [address for address, _ in recorded.expected["pairs"]]
    assert recorded.freed("pairs") == addresses
    assert [event.address for event in recorded.events("pairs", FREE_REQUESTED)] in ([], addresses)


def test_empty_allocation_is_not_an_event(recorded: Recorded) -> None:
    assert recorded.blocks("zero") == [] and recorded.freed("zero") == []
    if recorded.allocator == "cpu":
        assert alloctrace.load(recorded.trace_path("zero")).integrity.empty_allocations == 1


def test_failed_allocation_raises_the_same_error_and_records_no_block(recorded: Recorded) -> None:
    untraced, traced = recorded.expected["error"]
    assert untraced == traced
    assert bool(traced) == (recorded.allocator != "cuda pluggable")  # torch accepts a null pointer from these
    assert recorded.blocks("error") == recorded.expected["around error"]
    assert recorded.freed("error") == [address for address, _ in recorded.expected["around error"]]
    ooms = [event.size for event in recorded.events("error", OOM)]
    assert ooms == ([1 << 59] if recorded.allocator.startswith("cuda") else [])


def test_events_are_complete_when_native_threads_allocate_concurrently(recorded: Recorded) -> None:
    live: dict[int, int] = {}
    sizes: Counter[int] = Counter()
    threads = set()

    for event in recorded.events("threads", ALLOC, FREE_COMPLETED):
        if event.kind == ALLOC:
            assert event.address not in live, "allocated at the address of a live block"
            live[event.address] = event.size
            sizes[event.size] += 1
            threads.add(event.thread)
            assert event.stack == 0
        else:
            del live[event.address]

    assert not live and sizes == dict.fromkeys(range(1, 4 * 300 + 1), 1)
    assert len(threads) == 4


def test_free_of_older_block_is_recorded_when_allocator_reports_it(recorded: Recorded) -> None:
    assert recorded.blocks("across") == recorded.expected["across"]
    # torch's tracker and the pluggable functions report frees of older blocks; the others only of recorded blocks.
    reports_older = recorded.allocator in ("cuda native", "cuda pluggable")
    assert recorded.freed("across") == ([recorded.expected["older"][0]] if reports_older else [])
    (_, (surviving_address, _)) = recorded.expected["across"]
    assert recorded.blocks("again") == [] and recorded.freed("again") == [surviving_address]
    if recorded.allocator == "cpu":
        traces = [alloctrace.load(recorded.trace_path(subject)) for subject in ("across", "again")]
        assert [trace.verify().unmatched_frees for trace in traces] == [0, 1]


def test_resized_storage_is_recorded_as_new_blocks(recorded: Recorded) -> None:
    small, large, last = recorded.expected["resize"]
    assert recorded.blocks("resize") == [small, large, last]
    assert recorded.freed("resize") == [small[0], large[0], last[0]]


def test_blocks_have_the_same_properties_when_traced(recorded: Recorded) -> None:
    """Compare address, context and deleter: a block's deleter is the allocator's raw_deleter()."""
    untraced, traced = recorded.expected["properties"]
    assert untraced == traced
    assert len(recorded.blocks("properties")) == len(recorded.freed("properties")) == 1


def test_raw_allocations_are_recorded(recorded: Recorded) -> None:
    if "raw" not in recorded.expected:
        assert recorded.allocator == "pinned"  # pinned blocks exist only as DataPtr: their context is not their address
        return
    assert recorded.blocks("raw") == recorded.expected["raw"]
    assert recorded.freed("raw") == [recorded.expected["raw"][0][0]]


def test_clone_has_the_same_bytes_and_is_recorded(recorded: Recorded) -> None:
    untraced, traced = recorded.expected["clone"]
    assert untraced == traced == (-1 if recorded.allocator == "pinned" else 1)
    assert [size for _, size in recorded.blocks("clone")] == [1000, 1000]
    assert sorted(recorded.freed("clone")) == sorted(address for address, _ in recorded.blocks("clone"))
