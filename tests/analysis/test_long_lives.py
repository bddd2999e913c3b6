"""Long lifetimes: the number of live blocks at each cell border matches the events."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pytorch_alloctrace as alloctrace

FREES = ("free_requested", "free_completed")


def first_line() -> torch.Tensor:
    return torch.empty(1000, dtype=torch.uint8)


def second_line() -> torch.Tensor:
    return torch.empty(3000, dtype=torch.uint8)


def run(operations: Sequence[tuple[int, int, int]]) -> list[torch.Tensor]:
    """For each operation, allocate blocks at two lines, then free some from an index on; return the live ones."""
    tensors: list[torch.Tensor] = []
    for blocks, freed, place in operations:
        tensors += [(first_line if (number + place) % 3 else second_line)() for number in range(blocks)]
        first = place % (len(tensors) + 1)
        del tensors[first : first + freed]
    return tensors


def alive_by_events(trace: alloctrace.Trace, borders: Sequence[int]) -> dict[int, list[int]]:
    """Return the number of live blocks before each border, by stack."""
    events = trace.events(kinds=("alloc", *FREES))
    live_blocks: dict[int, tuple[int, int]] = {}
    lifetimes: list[tuple[int, int, int]] = []
    for seq, kind, address, stack in events[["seq", "kind", "address", "stack_id"]].itertuples(index=False):
        if kind == "alloc":
            live_blocks[address] = (seq, stack)
        elif address in live_blocks:
            lifetimes.append((*live_blocks.pop(address), seq))
    lifetimes += [(*begin, 1 << 62) for begin in live_blocks.values()]
    return {
        stack: [
            sum(1 for begin, stack_of_block, end in lifetimes if stack_of_block == stack and begin < border <= end)
            for border in borders
        ]
        for stack in {stack for _, stack, _ in lifetimes}
    }


def alive_by_evidence(trace: alloctrace.Trace, stack: int) -> list[int]:
    replay = trace._recorded.replay
    lives = replay.long_lifetimes("cpu")
    freed, begins = lives.freed_blocks, lives.begins
    live = replay.live(lives.last_allocation + 1, "cpu")
    begins_of_live = live["alloc_seq"][live["stack_id"] == stack]
    of_stack = freed["stack_id"] == stack
    return [
        int((begins_of_live < begins[cell]).sum())
        + int(freed["blocks"][of_stack & (freed["allocated_in"] < cell) & (freed["freed_in"] >= cell)].sum())
        for cell in range(len(begins))
    ]


OPERATIONS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 70), st.integers(0, 200)), min_size=0, max_size=60)


@settings(max_examples=10)
@given(operations=OPERATIONS)
def test_live_blocks_at_each_border_match_events(tmp_path: Path, operations: list[tuple[int, int, int]]) -> None:
    with alloctrace.enable(tmp_path / "program.alloctrace", devices=("cpu",), overwrite=True) as session:
        tensors = run(operations)
    del tensors
    trace = session.load()
    if "cpu" not in trace.devices:
        assert not any(blocks for blocks, _, _ in operations)
        return
    lives = trace._recorded.replay.long_lifetimes("cpu")
    allocations = trace.events(kinds=("alloc",))["seq"].to_numpy(np.int64)
    assert lives.allocations == len(allocations)
    assert lives.last_allocation == (allocations[-1] if len(allocations) else 0)
    assert len(lives.begins) <= 256
    assert lives.begins.tolist() == allocations[:: lives.cell_length].tolist()
    for stack, expected in alive_by_events(trace, lives.begins.tolist()).items():
        assert alive_by_evidence(trace, stack) == expected
    # Blocks freed in the cell of their allocation are not recorded; no row is recorded twice.
    freed = lives.freed_blocks
    assert (freed["allocated_in"] < freed["freed_in"]).all()
    keys = list(
        zip(freed["stack_id"].tolist(), freed["allocated_in"].tolist(), freed["freed_in"].tolist(), strict=True)
    )
    assert keys == sorted(set(keys))


@pytest.mark.parametrize("allocations", [1, 256, 257, 512, 513, 5000])
def test_cell_length_doubles_when_allocations_exceed_256_cells(tmp_path: Path, allocations: int) -> None:
    with alloctrace.enable(tmp_path / "program.alloctrace", devices=("cpu",)) as session:
        tensors = run([(allocations, 0, 0)])
    del tensors
    lives = session.load()._recorded.replay.long_lifetimes("cpu")
    assert lives.allocations == allocations
    length = 1
    while allocations > 256 * length:
        length *= 2
    assert (lives.cell_length, len(lives.begins)) == (length, -(-allocations // length))
    assert not len(lives.freed_blocks["stack_id"])  # frees after the last allocation are not recorded


def growths_by_events(trace: alloctrace.Trace, begins: Sequence[int]) -> set[tuple[int, int]]:
    """Return line number and cell of each allocation that is larger than all earlier ones of its line."""
    largest: dict[int, int] = {}
    growths = set()
    allocs = trace.events(kinds=("alloc",))
    for seq, size, stack in allocs[["seq", "requested_bytes", "stack_id"]].itertuples(index=False):
        line = int(trace._recorded.stacks.line_numbers[stack])
        if line in largest and size > largest[line]:
            growths.add((line, int(np.searchsorted(begins, seq, side="right")) - 1))
        largest[line] = max(size, largest.get(line, 0))
    return growths


@settings(max_examples=8)
@given(sizes=st.lists(st.tuples(st.booleans(), st.integers(1, 5000)), min_size=1, max_size=600))
def test_growth_cells_match_allocations_larger_than_all_before(tmp_path: Path, sizes: list[tuple[bool, int]]) -> None:
    with alloctrace.enable(tmp_path / "program.alloctrace", devices=("cpu",), overwrite=True) as session:
        for is_first_line, size in sizes:
            if is_first_line:
                torch.empty(size, dtype=torch.uint8)
            else:
                torch.empty(size, dtype=torch.uint8)
    trace = session.load()
    lives = trace._recorded.replay.long_lifetimes("cpu")
    growths = lives.growths
    rows = [*zip(growths["line"].tolist(), growths["cell"].tolist(), strict=True)]

    assert len(rows) == len({*rows})
    assert {*rows} == growths_by_events(trace, lives.begins.tolist())
