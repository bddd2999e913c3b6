"""The evidence on long lives: the number alive at each border, from deaths and survivors, is that of the events."""

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


def one_line() -> torch.Tensor:
    return torch.empty(1000, dtype=torch.uint8)


def another_line() -> torch.Tensor:
    return torch.empty(3000, dtype=torch.uint8)


def run(operations: Sequence[tuple[int, int, int]]) -> list[torch.Tensor]:
    """Each operation allocates so many blocks, at the one or the other line, and then frees some from a place on."""
    held: list[torch.Tensor] = []
    for blocks, freed, place in operations:
        held += [(one_line if (number + place) % 3 else another_line)() for number in range(blocks)]
        at = place % (len(held) + 1)
        del held[at : at + freed]
    return held


def alive_by_events(trace: alloctrace.Trace, borders: Sequence[int]) -> dict[int, list[int]]:
    """By stack: how many blocks were alive before each of some events."""
    events = trace.events(kinds=("alloc", *FREES))
    born: dict[int, tuple[int, int]] = {}
    lives: list[tuple[int, int, int]] = []
    for seq, kind, address, stack in events[["seq", "kind", "address", "stack_id"]].itertuples(index=False):
        if kind == "alloc":
            born[address] = (seq, stack)
        elif address in born:
            lives.append((*born.pop(address), seq))
    lives += [(*birth, 1 << 62) for birth in born.values()]
    return {
        stack: [sum(1 for birth, of, death in lives if of == stack and birth < border <= death) for border in borders]
        for stack in {stack for _, stack, _ in lives}
    }


def alive_by_evidence(trace: alloctrace.Trace, stack: int) -> list[int]:
    replay = trace._recorded.replay
    lives = replay.long_lives("cpu")
    deaths, begins = lives.deaths, lives.begins
    live = replay.live(lives.last_allocation + 1, "cpu")
    births = live["alloc_seq"][live["stack_id"] == stack]
    of_stack = deaths["stack_id"] == stack
    return [
        int((births < begins[cell]).sum())
        + int(deaths["blocks"][of_stack & (deaths["born"] < cell) & (deaths["died"] >= cell)].sum())
        for cell in range(len(begins))
    ]


OPERATIONS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 70), st.integers(0, 200)), min_size=0, max_size=60)


@settings(max_examples=10)
@given(operations=OPERATIONS)
def test_the_number_alive_at_each_border(tmp_path: Path, operations: list[tuple[int, int, int]]) -> None:
    with alloctrace.enable(tmp_path / "program.alloctrace", devices=("cpu",), overwrite=True) as session:
        held = run(operations)
    del held
    trace = session.load()
    if "cpu" not in trace.devices:
        assert not any(blocks for blocks, _, _ in operations)
        return
    lives = trace._recorded.replay.long_lives("cpu")
    allocations = trace.events(kinds=("alloc",))["seq"].to_numpy(np.int64)
    assert lives.allocations == len(allocations)
    assert lives.last_allocation == (allocations[-1] if len(allocations) else 0)
    # Cells are equally long, and there are never too many.
    assert len(lives.begins) <= 256
    assert lives.begins.tolist() == allocations[:: lives.cell_length].tolist()
    for stack, expected in alive_by_events(trace, lives.begins.tolist()).items():
        assert alive_by_evidence(trace, stack) == expected
    # Blocks that die in the cell they were born in are not noted; nothing is noted twice.
    deaths = lives.deaths
    assert (deaths["born"] < deaths["died"]).all()
    keys = list(zip(deaths["stack_id"].tolist(), deaths["born"].tolist(), deaths["died"].tolist(), strict=True))
    assert keys == sorted(set(keys))


@pytest.mark.parametrize("allocations", [1, 256, 257, 512, 513, 5000])
def test_cells_of_runs_of_any_length(tmp_path: Path, allocations: int) -> None:
    with alloctrace.enable(tmp_path / "program.alloctrace", devices=("cpu",)) as session:
        held = run([(allocations, 0, 0)])
    del held
    lives = session.load()._recorded.replay.long_lives("cpu")
    assert lives.allocations == allocations
    length = 1
    while allocations > 256 * length:
        length *= 2
    assert (lives.cell_length, len(lives.begins)) == (length, -(-allocations // length))
    assert not len(lives.deaths["stack_id"])  # what died after the last allocation died because the program ended


def growths_by_events(trace: alloctrace.Trace, begins: Sequence[int]) -> set[tuple[int, int]]:
    """Line number and cell of every allocation that was larger than all before it of its line, and not the first."""
    largest: dict[int, int] = {}
    found = set()
    allocs = trace.events(kinds=("alloc",))
    for seq, size, stack in allocs[["seq", "requested_bytes", "stack_id"]].itertuples(index=False):
        line = int(trace._recorded.stacks.line_numbers[stack])
        if line in largest and size > largest[line]:
            found.add((line, int(np.searchsorted(begins, seq, side="right")) - 1))
        largest[line] = max(size, largest.get(line, 0))
    return found


@settings(max_examples=8)
@given(sizes=st.lists(st.tuples(st.booleans(), st.integers(1, 5000)), min_size=1, max_size=600))
def test_the_cells_in_which_a_line_grew(tmp_path: Path, sizes: list[tuple[bool, int]]) -> None:
    with alloctrace.enable(tmp_path / "program.alloctrace", devices=("cpu",), overwrite=True) as session:
        for is_one, size in sizes:
            if is_one:
                torch.empty(size, dtype=torch.uint8)
            else:
                torch.empty(size, dtype=torch.uint8)
    trace = session.load()
    lives = trace._recorded.replay.long_lives("cpu")
    growths = lives.growths
    noted = [*zip(growths["line"].tolist(), growths["cell"].tolist(), strict=True)]
    assert len(noted) == len({*noted})
    assert {*noted} == growths_by_events(trace, lives.begins.tolist())
