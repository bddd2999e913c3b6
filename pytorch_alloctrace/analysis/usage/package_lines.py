"""What a line of the user's code that holds much of the memory calls inside an installed package.

A program that trains a model of a library has one line, `model(batch)`, under which nearly everything is allocated. The
lines of that package are then what the user wants to see. torch is below every line and is not looked into.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...reading.sites import Frame, StackIndex
from ...reading.table import Table, sums

WORTH_OPENING = 0.3
"""Least share of all memory that a line holds, and of the line that a package does."""
_LINES = 3


@dataclass(frozen=True)
class PackageLine:
    """The innermost line of a package, and what it holds. Bytes are requested bytes."""

    frame: Frame
    bytes: int
    blocks: int
    stack_id: int
    """The stack through it that holds the most."""


@dataclass(frozen=True)
class Inside:
    """The package under a line of the user's code that holds the most of its bytes."""

    package: str
    """As `user_paths` takes it."""
    bytes: int
    """All that is allocated inside it for the line."""
    lines: tuple[PackageLine, ...]
    """The lines that hold the most, most bytes first."""


def look_inside(stacks: StackIndex, held: Table, stack_id: int, total: int) -> Inside | None:
    """Return what is inside the line of a stack; None if it holds little of `total` bytes, or does not call a package
    that does.

    held: what each stack holds, with stack_id, live_bytes, live_blocks.
    """
    sites = stacks.site[held["stack_id"]]
    is_line = (held["live_bytes"] > 0) & (sites > 0) & (stacks.lines[sites] == stacks.lines[stacks.site[stack_id]])
    held = held.take(is_line).select("stack_id", "live_bytes", "live_blocks")
    size = int(held["live_bytes"].sum())
    if size < WORTH_OPENING * total or not stacks.is_user[stacks.representative(stack_id)]:
        return None
    held = held.take(np.argsort(-held["live_bytes"], kind="stable"))
    frames = stacks.opened[held["stack_id"]]
    held, frames = held.take(frames > 0), frames[frames > 0]
    packages, of_row = np.unique(
        np.array([stacks.package(frame) for frame in frames.tolist()], "U"), return_inverse=True
    )
    in_package = sums(of_row, held["live_bytes"], len(packages))
    if int(in_package.max(initial=0)) < WORTH_OPENING * size or not len(packages):
        return None
    most = int(in_package.argmax())
    held, frames = held.take(of_row == most), frames[of_row == most]
    _, first, of_row = np.unique(stacks.lines[frames], return_index=True, return_inverse=True)
    held_by_line = sums(of_row, held["live_bytes"], len(first))
    blocks_of_line = sums(of_row, held["live_blocks"], len(first))
    in_order = np.lexsort([first, -held_by_line])[:_LINES].tolist()
    lines = tuple(
        PackageLine(
            stacks.frame(int(frames[first[line]])),
            int(held_by_line[line]),
            int(blocks_of_line[line]),
            int(held["stack_id"][first[line]]),
        )
        for line in in_order
    )
    return Inside(str(packages[most]), int(in_package[most]), lines)
