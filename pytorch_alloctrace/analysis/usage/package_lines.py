"""Lines of an installed package under a line of user code with much of the memory.

A program that trains a library's model has one line, `model(batch)`, under which nearly everything is allocated. The
lines of that package show where. torch is under every line, so its lines are not shown.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...reading.sites import Frame, StackIndex
from ...reading.table import Table, sums

WORTH_OPENING = 0.3
"""Minimum share of a line in all memory, and of a package in the line."""
_MAX_LINES = 3


@dataclass(frozen=True)
class PackageLine:
    """Innermost line of a package on the stacks of live blocks. Requested bytes."""

    frame: Frame
    bytes: int
    blocks: int
    stack_id: int
    """The stack through the line with the most bytes."""


@dataclass(frozen=True)
class PackageLines:
    """The package with the most bytes under a line of user code."""

    package: str
    """Name of the package, as in `user_paths`."""
    bytes: int
    lines: tuple[PackageLine, ...]


def find_package_lines(stacks: StackIndex, stack_rows: Table, stack_id: int, total: int) -> PackageLines | None:
    """Return the package lines under the line of `stack_id`; None if a share is below WORTH_OPENING."""
    sites = stacks.site[stack_rows["stack_id"]]
    is_on_line = (
        (stack_rows["live_bytes"] > 0) & (sites > 0) & (stacks.lines[sites] == stacks.lines[stacks.site[stack_id]])
    )
    stack_rows = stack_rows.take(is_on_line).select("stack_id", "live_bytes", "live_blocks")
    size = int(stack_rows["live_bytes"].sum())
    if size < WORTH_OPENING * total or not stacks.is_user[stacks.representative(stack_id)]:
        return None
    stack_rows = stack_rows.take(np.argsort(-stack_rows["live_bytes"], kind="stable"))
    frames = stacks.opened[stack_rows["stack_id"]]
    stack_rows, frames = stack_rows.take(frames > 0), frames[frames > 0]
    packages, package_of_row = np.unique(
        np.array([stacks.package(frame) for frame in frames.tolist()], "U"), return_inverse=True
    )
    package_bytes = sums(package_of_row, stack_rows["live_bytes"], len(packages))
    if int(package_bytes.max(initial=0)) < WORTH_OPENING * size or not len(packages):
        return None
    top_package = int(package_bytes.argmax())
    stack_rows, frames = stack_rows.take(package_of_row == top_package), frames[package_of_row == top_package]
    _, first_rows, line_of_row = np.unique(stacks.lines[frames], return_index=True, return_inverse=True)
    bytes_of_line = sums(line_of_row, stack_rows["live_bytes"], len(first_rows))
    blocks_of_line = sums(line_of_row, stack_rows["live_blocks"], len(first_rows))
    top_lines = np.lexsort([first_rows, -bytes_of_line])[:_MAX_LINES].tolist()
    lines = tuple(
        PackageLine(
            stacks.frame(int(frames[first_rows[line]])),
            int(bytes_of_line[line]),
            int(blocks_of_line[line]),
            int(stack_rows["stack_id"][first_rows[line]]),
        )
        for line in top_lines
    )
    return PackageLines(str(packages[top_package]), int(package_bytes[top_package]), lines)
