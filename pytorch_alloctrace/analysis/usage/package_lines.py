"""Lines of an installed package under a line of user code with much of the memory.

A program that trains a library's model has one line, `model(batch)`, under which nearly everything is allocated. The
lines of that package, and the torch.nn.Module that they are called for, show where. torch is under every line, so its
lines are not shown.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...reading.modules import OUTSIDE
from ...reading.sites import Frame, StackIndex, bytes_by_stack
from ...reading.table import Table, sums

WORTH_OPENING = 0.3
"""Minimum share of a line in all memory, and of a package in the line."""
_MAX_LINES = 3
_MIN_CALL_SHARE = 0.9
"""Minimum share of a line of user code and its packages in memory that a library call is named for; and of one module
among those that differ in their numbers, to be named alone."""


@dataclass(frozen=True)
class LibraryCall:
    """Package line that allocated the most of the memory of a role or of a finding."""

    frame: Frame
    """Line of the package."""
    module: str
    """The torch.nn.Module being called: "GPT.h.3.mlp", or "GPT.h.*.mlp" for several; "" for none or unrecorded ones."""
    share: float
    """Share of the memory below the line of user code that it allocated, from 0 to 1."""


@dataclass(frozen=True)
class PackageLine:
    """Innermost line of a package on the stacks of live blocks. Requested bytes."""

    frame: Frame
    module: str
    """As in `LibraryCall`."""
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
            _name_module(stacks, stack_rows.take(line_of_row == line)),
            int(bytes_of_line[line]),
            int(blocks_of_line[line]),
            int(stack_rows["stack_id"][first_rows[line]]),
        )
        for line in top_lines
    )
    return PackageLines(str(packages[top_package]), int(package_bytes[top_package]), lines)


def live_by_stack(blocks: Table) -> Table:
    """Return bytes and number of live blocks by stack. Equal frames of several modules are several stacks."""
    stack_ids, of_row = np.unique(blocks["stack_id"].astype(np.int64), return_inverse=True)
    sizes = sums(of_row, blocks["requested_bytes"].astype(np.int64), len(stack_ids))
    return Table(
        {"stack_id": stack_ids, "live_bytes": sizes, "live_blocks": np.bincount(of_row, minlength=len(stack_ids))}
    )


def find_library_call(stacks: StackIndex, stack_rows: Table) -> LibraryCall | None:
    """Return the package line with the most bytes, or None if several lines of user code allocated, or no package.

    stack_rows: stack_id and live_bytes, of which one line of user code and its packages need `_MIN_CALL_SHARE`.
    """
    total = int(stack_rows["live_bytes"].sum())
    stack_rows = stack_rows.take(stacks.opened[stack_rows["stack_id"]] > 0)
    if not len(stack_rows):
        return None
    user_lines = stacks.lines[stacks.site[stack_rows["stack_id"]]]
    stack_rows = stack_rows.take(user_lines == _find_largest(user_lines, stack_rows))
    if int(stack_rows["live_bytes"].sum()) < _MIN_CALL_SHARE * max(total, 1):
        return None
    lines = stacks.lines[stacks.opened[stack_rows["stack_id"]]]
    stack_rows = stack_rows.take(lines == _find_largest(lines, stack_rows))
    frame = stacks.frame(int(stacks.opened[stack_rows["stack_id"][0]]))
    return LibraryCall(frame, _name_module(stacks, stack_rows), int(stack_rows["live_bytes"].sum()) / max(total, 1))


def _find_largest(groups: npt.NDArray[np.int64], stack_rows: Table) -> int:
    """Return the group with the most bytes; `groups` has the group of each row."""
    by_group = bytes_by_stack(groups, stack_rows["live_bytes"].astype(np.int64))
    return max(by_group, key=by_group.__getitem__)


def _name_module(stacks: StackIndex, stack_rows: Table) -> str:
    """Return the module with the most bytes. Modules that differ only in their numbers, as layers do, are one.

    The numbers in which they differ become "*": "GPT.h.*.mlp", but "GPT.h.2.mlp.*" for parts of one layer.
    """
    if not stacks.has_modules:
        return ""
    patterns: dict[str, dict[str, int]] = {}
    for stack, size in bytes_by_stack(stack_rows["stack_id"], stack_rows["live_bytes"]).items():
        name = stacks.modules.name(stack)
        pattern = ".".join("*" if part.isdecimal() else part for part in name.split("."))
        sizes = patterns.setdefault(pattern, {})
        sizes[name] = sizes.get(name, 0) + size
    pattern, sizes = max(patterns.items(), key=lambda entry: sum(entry[1].values()))
    if pattern == OUTSIDE:
        return ""
    name = max(sizes, key=sizes.__getitem__)
    if sizes[name] >= _MIN_CALL_SHARE * sum(sizes.values()):
        return name
    parts = zip(*(other.split(".") for other in sizes), strict=True)
    return ".".join(values[0] if len(set(values)) == 1 else "*" for values in parts)
