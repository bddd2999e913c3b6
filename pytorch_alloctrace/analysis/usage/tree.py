"""What the live memory consists of, top-down: each call with what it and everything that it called allocated.

What backward allocated is under the line of the forward that caused it, as in `composition.py`. A function that
calls itself from one line, over and over, is one call there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...reading.positions import Position
from ...reading.recorded import RecordedTrace
from ...reading.sites import Site, StackIndex
from ...reading.table import Table, sums, texts
from .composition import live_blocks

if TYPE_CHECKING:
    import pandas as pd

TREE_COLUMNS = (
    *("depth", "function", "filename", "line", "source", "user"),
    *("live_bytes", "share", "own_bytes", "live_blocks", "live_backward_bytes", "stack_id"),
)

DEEPEST = 200
"""Calls of a stack that are shown; the last of them stands for all below it. Python's own limits, of recursion and of
nested JSON, are not far above."""


@dataclass(frozen=True)
class Call:
    """A call on the stacks of live blocks, with all that was allocated in it. Requested bytes."""

    site: Site
    """The function, and the line that it was at. `user` is False for library code, and where no line is known."""
    bytes: int
    """What it and everything that it called allocated."""
    share: float
    """Of all that is live, 0 to 1."""
    own_bytes: int
    """The part that no call below it allocated."""
    blocks: int
    """How many blocks these bytes are."""
    backward_bytes: int
    """The part of `bytes` that backward allocated for lines of forward."""
    stack_id: int
    """The stack through it that holds the most."""
    calls: tuple[Call, ...]
    """What it called, the most bytes first."""

    @property
    def chain(self) -> tuple[Call, ...]:
        """This call and, as long as there is only one that allocated everything, the call below it."""
        chain = [self]
        while len(chain[-1].calls) == 1 and not chain[-1].own_bytes:
            chain.append(chain[-1].calls[0])
        return tuple(chain)


@dataclass(frozen=True)
class Tree:
    """What is live, by call. Requested bytes."""

    bytes: int
    """All that is live."""
    blocks: int
    """How many blocks that is."""
    calls: tuple[Call, ...]
    """The outermost ones, the most bytes first."""

    def head(self, top: int) -> Tree:
        """The same with at most `top` callees of each call."""
        return dataclasses.replace(self, calls=_head(self.calls, top))

    @property
    def table(self) -> Table:
        """A row a call, each followed by what it called: TREE_COLUMNS. depth: from 0; the others: see `Call`."""
        rows = [
            (
                *(depth, call.site.function, call.site.filename, call.site.line, call.site.source, call.site.user),
                *(call.bytes, call.share, call.own_bytes, call.blocks, call.backward_bytes, call.stack_id),
            )
            for depth, call in _walk(self.calls, 0)
        ]
        columns = zip(TREE_COLUMNS, zip(*rows, strict=True) if rows else [()] * len(TREE_COLUMNS), strict=True)
        return Table({name: _column(name, values) for name, values in columns})

    def to_frame(self) -> pd.DataFrame:
        """Return `table` as a DataFrame."""
        return self.table.to_frame()


def _column(name: str, values: Sequence[Any]) -> npt.NDArray[Any]:
    if name in ("function", "filename", "source"):
        return texts(values)
    return np.array(values, {"user": np.bool_, "share": np.float64}.get(name, np.int64))


def _head(calls: tuple[Call, ...], top: int) -> tuple[Call, ...]:
    return tuple(dataclasses.replace(call, calls=_head(call.calls, top)) for call in calls[:top])


def _walk(calls: tuple[Call, ...], depth: int) -> Iterator[tuple[int, Call]]:
    for call in calls:
        yield depth, call
        yield from _walk(call.calls, depth + 1)


def tree_at(trace: RecordedTrace, at: Position = "end", *, device: str | None = None, all_frames: bool = False) -> Tree:
    """Return the calls that lead to what is live at a position, from the outermost down."""
    return tree_of(trace, live_blocks(trace, trace.first_event_after(at, device), device), all_frames=all_frames)


def tree_of(trace: RecordedTrace, blocks: Table, *, all_frames: bool = False) -> Tree:
    """Return the same from live blocks (`live_blocks`)."""
    stacks, of_row = np.unique(blocks["stack_id"], return_inverse=True)
    sizes, count = blocks["requested_bytes"], len(stacks)
    held, number = sums(of_row, sizes, count), np.bincount(of_row, minlength=count)
    backward = sums(of_row, np.where(blocks["backward"], sizes, 0), count)
    made = _Made(trace.stacks, all_frames)
    # The stack that holds the most is the first to reach the calls that are on it.
    for row in np.argsort(-held, kind="stable").tolist():
        made.add(int(stacks[row]), int(held[row]), int(number[row]), int(backward[row]))
    return Tree(int(held.sum()), len(blocks), made.calls())


@dataclass
class _Node:
    """A call in the making."""

    site: Site
    parent: int
    depth: int
    stack_id: int
    bytes: int = 0
    blocks: int = 0
    backward_bytes: int = 0
    own_bytes: int = 0
    callees: dict[Site, int] = field(default_factory=dict)


class _Made:
    """The nodes of a tree; number 0 is above the outermost calls."""

    def __init__(self, stacks: StackIndex, all_frames: bool) -> None:
        self._stacks = stacks
        self._all_frames = all_frames
        self._nodes = [_Node(Site("", 0, "", None, False), -1, 0, 0)]
        self._of_stack = {0: 0}

    def add(self, stack: int, size: int, blocks: int, backward_bytes: int) -> None:
        """What one stack holds."""
        number = self._node(stack)
        if number == 0:
            # No frame is shown: its site stands in.
            number = self._callee(0, Site.of_stack(self._stacks, stack), stack)
        self._nodes[number].own_bytes += size
        while number >= 0:
            node = self._nodes[number]
            node.bytes += size
            node.blocks += blocks
            node.backward_bytes += backward_bytes
            number = node.parent

    def _node(self, stack: int) -> int:
        """The node of the innermost frame of a stack that is shown."""
        pending = []
        while stack not in self._of_stack:
            pending.append(stack)
            stack = int(self._stacks.parent[stack])
        number = self._of_stack[stack]
        for frame in reversed(pending):
            if self._all_frames or self._stacks.is_user[frame]:
                number = self._callee(number, self._site(frame), pending[0])
            self._of_stack[frame] = number
        return number

    def _site(self, stack: int) -> Site:
        frame = self._stacks.frame(stack)
        return Site(frame.filename, frame.line, frame.function, frame.source, bool(self._stacks.is_user[stack]))

    def _callee(self, caller: int, site: Site, stack: int) -> int:
        """The node of a call; that of its caller where it is the same line, or where the tree is as deep as it gets."""
        node = self._nodes[caller]
        if caller and (node.site == site or node.depth == DEEPEST):
            return caller
        found = node.callees.get(site)
        if found is None:
            found = node.callees[site] = len(self._nodes)
            self._nodes.append(_Node(site, caller, node.depth + 1, stack))
        return found

    def calls(self) -> tuple[Call, ...]:
        """The outermost calls."""
        total = max(self._nodes[0].bytes, 1)
        made: dict[int, Call] = {}
        # Callees have higher numbers than their callers.
        for number in range(len(self._nodes) - 1, 0, -1):
            node = self._nodes[number]
            made[number] = Call(
                site=node.site,
                bytes=node.bytes,
                share=node.bytes / total,
                own_bytes=node.own_bytes,
                blocks=node.blocks,
                backward_bytes=node.backward_bytes,
                stack_id=node.stack_id,
                calls=_ordered(made, node.callees),
            )
        return _ordered(made, self._nodes[0].callees)


def _ordered(made: dict[int, Call], callees: dict[Site, int]) -> tuple[Call, ...]:
    return tuple(sorted((made[number] for number in callees.values()), key=lambda call: -call.bytes))
