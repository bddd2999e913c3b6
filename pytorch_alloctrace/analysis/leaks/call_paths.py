"""What many stacks have in common: the calls that lead to all of them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from ...reading.sites import Frame, Site, StackIndex

NEARLY_ALL = 0.99
"""A frame is common if at least this share of the bytes is allocated under it. One small tensor that is allocated
elsewhere and kept by the same reference must not hide where all the rest comes from."""

_Numbers = npt.NDArray[np.int64]


def common_path(tree: CallTree) -> tuple[tuple[Frame, ...], float]:
    """The frames of user code under which nearly all bytes are allocated, innermost first, and their share.

    The innermost frame has line 0 and no source if the bytes are allocated under several lines of its function.
    """
    path, share, _ = tree.common
    return tuple(reversed(path)), share


def line_to_look_at(tree: CallTree) -> Site | None:
    """The line of user code that stands for bytes allocated at many lines; None if they have no function in common.

    It is the line of the innermost function in common under which at least half of the bytes are allocated. If there is
    none, since a model's activations are spread over many lines, it is the line that calls this function.
    """
    path, _, innermost = tree.common
    if not path:
        return None
    by_line = tree.by_line_of(innermost)
    fullest = max(by_line, key=by_line.__getitem__)
    spread = 2 * by_line[fullest] < tree.bytes
    frame = next((frame for frame in reversed(path) if frame.line), fullest) if spread else fullest
    return Site(frame.filename, frame.line, frame.function, frame.source, user=True)


class CallTree:
    """The frames under which some stacks are, level by level, outermost first, with the bytes allocated under each."""

    def __init__(self, stacks: StackIndex, bytes_by_stack: Mapping[int, int]) -> None:
        self.stacks = stacks
        ids = np.fromiter(bytes_by_stack.keys(), np.int64, len(bytes_by_stack))
        held = np.fromiter(bytes_by_stack.values(), np.int64, len(bytes_by_stack))
        self.bytes = int(held.sum())
        depth = np.zeros(len(ids), np.int64)
        caller = ids
        while (caller > 0).any():
            depth += caller > 0
            caller = stacks.parent[caller].astype(np.int64)
        self.levels: list[tuple[_Numbers, _Numbers]] = []
        """Frames, and the bytes allocated under each."""
        below, under = np.zeros(0, np.int64), np.zeros(0, np.int64)
        for level in range(int(depth.max(initial=0)), 0, -1):
            here = depth == level
            below, under = _summed(np.append(ids[here], below), np.append(held[here], under))
            self.levels.insert(0, (below, under))
            below = stacks.parent[below].astype(np.int64)

    @functools.cached_property
    def common(self) -> tuple[list[Frame], float, int]:
        """See `_common_path`."""
        return _common_path(self)

    def by_line_of(self, function: int) -> dict[Frame, int]:
        """The bytes under each line of a frame's function: under the outermost, where it calls itself."""
        found: dict[Frame, int] = {}
        wanted = self.stacks.functions(np.array([function]))
        inside = np.zeros(0, np.int64)
        for nodes, held in self.levels:
            is_below = np.isin(self.stacks.parent[nodes], inside)
            is_wanted = (self.stacks.functions(nodes) == wanted).all(axis=0)
            first = is_wanted & ~is_below
            for node, count in zip(nodes[first].tolist(), held[first].tolist(), strict=True):
                frame = self.stacks.frame(node)
                found[frame] = found.get(frame, 0) + count
            inside = nodes[is_wanted | is_below]
        return found


def _common_path(tree: CallTree) -> tuple[list[Frame], float, int]:
    """See `common_path`; outermost first. Also the frame that the innermost is made of."""
    stacks, total = tree.stacks, max(tree.bytes, 1)
    path: list[Frame] = []
    share, innermost = 0.0, 0
    kept: _Numbers | None = None
    for nodes, held in tree.levels:
        if kept is not None:
            parents = stacks.parent[nodes]
            # One is by far the most frequent, and `isin` takes a tenth of a millisecond.
            below = parents == kept[0] if len(kept) == 1 else np.isin(parents, kept)
            nodes, held = nodes[below], held[below]
        if not len(nodes):
            break
        same_line = _largest(stacks, nodes, held, by_line=True)
        # Calls from several lines of one function are different calls: nothing deeper is common to them.
        last = int(held[same_line].sum()) < NEARLY_ALL * total
        chosen = _largest(stacks, nodes, held, by_line=False) if last else same_line
        part = int(held[chosen].sum())
        if part < NEARLY_ALL * total:
            break
        kept = nodes[chosen]
        if stacks.is_user[kept[0]]:
            frame = stacks.frame(int(kept[0]))
            path.append(dataclasses.replace(frame, line=0, source=None) if last else frame)
            share, innermost = part / total, int(kept[0])
        if last:
            break
    return path, share, innermost


def _largest(stacks: StackIndex, nodes: _Numbers, held: _Numbers, *, by_line: bool) -> npt.NDArray[np.bool_]:
    """Which of these frames agree and together have the most bytes."""
    if len(nodes) == 1:  # as most are, and of hundreds of leaks the rest takes seconds
        return np.ones(1, np.bool_)
    keys = stacks.functions(nodes)
    if by_line:
        keys = np.concatenate([keys, stacks.lines[nodes][None]])
    _, of_node = np.unique(keys, axis=1, return_inverse=True)
    of_node = of_node.reshape(-1)
    # Exactly: sums of bytes may not fit a double.
    totals = np.zeros(int(of_node.max()) + 1, np.int64)
    np.add.at(totals, of_node, held)
    chosen: npt.NDArray[np.bool_] = of_node == totals.argmax()
    return chosen


def _summed(keys: _Numbers, values: _Numbers) -> tuple[_Numbers, _Numbers]:
    """Each key once, ascending, with the sum of its values."""
    found, of_row = np.unique(keys, return_inverse=True)
    sums = np.zeros(len(found), np.int64)
    np.add.at(sums, of_row, values)
    return found, sums
