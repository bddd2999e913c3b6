"""Live memory as a call tree: each call with the bytes allocated in it and in everything it called.

Memory that backward allocated is under the line of the forward that caused it, as in `composition.py`. A function that
calls itself repeatedly from one line is one call.
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
"""Maximum depth: the last call stands for all below. Limits of Python's recursion and nested JSON are not far above."""


@dataclass(frozen=True)
class Call:
    """A call on the stacks of live blocks. Requested bytes."""

    site: Site
    """The function and its current line. `user` is False for library code, and if no line is recorded."""
    bytes: int
    """Bytes allocated in this call, including its callees."""
    share: float
    """Share of all live bytes, 0 to 1."""
    own_bytes: int
    """Bytes that were not allocated in one of `calls`."""
    blocks: int
    backward_bytes: int
    """Part of `bytes` that backward allocated for lines of forward."""
    stack_id: int
    """The stack through this call with the most bytes."""
    calls: tuple[Call, ...]
    """Its callees, the most bytes first."""

    @property
    def chain(self) -> tuple[Call, ...]:
        """This call and its callees, as long as each call has a single callee that allocated everything."""
        chain = [self]
        while len(chain[-1].calls) == 1 and not chain[-1].own_bytes:
            chain.append(chain[-1].calls[0])
        return tuple(chain)


@dataclass(frozen=True)
class Tree:
    """Live memory by call. Requested bytes."""

    bytes: int
    blocks: int
    calls: tuple[Call, ...]
    """The outermost calls, the most bytes first."""

    def head(self, top: int) -> Tree:
        return dataclasses.replace(self, calls=_head(self.calls, top))

    @property
    def table(self) -> Table:
        """TREE_COLUMNS of each call, followed by its callees. depth counts from 0; see `Call` for the other columns."""
        rows = [
            (
                *(depth, call.site.function, call.site.filename, call.site.line, call.site.source, call.site.user),
                *(call.bytes, call.share, call.own_bytes, call.blocks, call.backward_bytes, call.stack_id),
            )
            for depth, call in _walk(self.calls, 0)
        ]
        columns = zip(TREE_COLUMNS, zip(*rows, strict=True) if rows else [()] * len(TREE_COLUMNS), strict=True)
        return Table({name: _make_column(name, values) for name, values in columns})

    def to_frame(self) -> pd.DataFrame:
        return self.table.to_frame()


def _make_column(name: str, values: Sequence[Any]) -> npt.NDArray[Any]:
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
    return tree_of(trace, live_blocks(trace, trace.first_event_after(at, device), device), all_frames=all_frames)


def tree_of(trace: RecordedTrace, blocks: Table, *, all_frames: bool = False) -> Tree:
    """Return the calls that allocated these live blocks (`live_blocks`)."""
    stacks, stack_of_row = np.unique(blocks["stack_id"], return_inverse=True)
    sizes, count = blocks["requested_bytes"], len(stacks)
    bytes_of_stack, blocks_of_stack = sums(stack_of_row, sizes, count), np.bincount(stack_of_row, minlength=count)
    backward_of_stack = sums(stack_of_row, np.where(blocks["backward"], sizes, 0), count)
    builder = _TreeBuilder(trace.stacks, all_frames)
    # In descending order, the first stack to reach a call is the one with the most bytes.
    for row in np.argsort(-bytes_of_stack, kind="stable").tolist():
        builder.add(int(stacks[row]), int(bytes_of_stack[row]), int(blocks_of_stack[row]), int(backward_of_stack[row]))
    return Tree(int(bytes_of_stack.sum()), len(blocks), builder.calls())


@dataclass
class _Node:
    site: Site
    parent: int
    depth: int
    stack_id: int
    bytes: int = 0
    blocks: int = 0
    backward_bytes: int = 0
    own_bytes: int = 0
    callees: dict[Site, int] = field(default_factory=dict)


class _TreeBuilder:
    """Builder of a tree. Node 0 is the caller of the outermost calls."""

    def __init__(self, stacks: StackIndex, all_frames: bool) -> None:
        self._stacks = stacks
        self._all_frames = all_frames
        self._nodes = [_Node(Site("", 0, "", None, False), -1, 0, 0)]
        self._node_by_stack = {0: 0}

    def add(self, stack: int, size: int, blocks: int, backward_bytes: int) -> None:
        node_id = self._find_node(stack)
        if node_id == 0:
            # The stack has no displayed frame: its site stands for it.
            node_id = self._add_callee(0, Site.of_stack(self._stacks, stack), stack)
        self._nodes[node_id].own_bytes += size
        while node_id >= 0:
            node = self._nodes[node_id]
            node.bytes += size
            node.blocks += blocks
            node.backward_bytes += backward_bytes
            node_id = node.parent

    def _find_node(self, stack: int) -> int:
        """Return the node of the innermost displayed frame of a stack."""
        pending = []
        while stack not in self._node_by_stack:
            pending.append(stack)
            stack = int(self._stacks.parent[stack])
        node_id = self._node_by_stack[stack]
        for frame in reversed(pending):
            if self._all_frames or self._stacks.is_user[frame]:
                node_id = self._add_callee(node_id, self._site_of_frame(frame), pending[0])
            self._node_by_stack[frame] = node_id
        return node_id

    def _site_of_frame(self, stack: int) -> Site:
        frame = self._stacks.frame(stack)
        return Site(frame.filename, frame.line, frame.function, frame.source, bool(self._stacks.is_user[stack]))

    def _add_callee(self, caller: int, site: Site, stack: int) -> int:
        """Return the node of a call: the caller's, if the line is the same or the tree has its maximum depth."""
        node = self._nodes[caller]
        if caller and (node.site == site or node.depth == DEEPEST):
            return caller
        node_id = node.callees.get(site)
        if node_id is None:
            node_id = node.callees[site] = len(self._nodes)
            self._nodes.append(_Node(site, caller, node.depth + 1, stack))
        return node_id

    def calls(self) -> tuple[Call, ...]:
        total = max(self._nodes[0].bytes, 1)
        calls: dict[int, Call] = {}
        # Callees have higher numbers than their callers, so they are complete first.
        for node_id in range(len(self._nodes) - 1, 0, -1):
            node = self._nodes[node_id]
            calls[node_id] = Call(
                site=node.site,
                bytes=node.bytes,
                share=node.bytes / total,
                own_bytes=node.own_bytes,
                blocks=node.blocks,
                backward_bytes=node.backward_bytes,
                stack_id=node.stack_id,
                calls=_sort_calls(calls, node.callees),
            )
        return _sort_calls(calls, self._nodes[0].callees)


def _sort_calls(calls: dict[int, Call], callees: dict[Site, int]) -> tuple[Call, ...]:
    return tuple(sorted((calls[node_id] for node_id in callees.values()), key=lambda call: -call.bytes))
