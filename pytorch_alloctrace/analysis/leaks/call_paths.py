"""Call paths: the calls that many stacks have in common."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from ...reading.sites import Frame, Site, StackIndex

MIN_COMMON_SHARE = 0.99
"""Minimum share of the bytes under a common frame: one small tensor from elsewhere must not hide the common path."""

_Numbers = npt.NDArray[np.int64]


def find_common_path(tree: CallTree) -> tuple[tuple[Frame, ...], float]:
    """Return the frames of user code under which nearly all bytes are allocated, innermost first, and their share."""
    path, share, _ = tree.common_path
    return tuple(reversed(path)), share


def find_line_to_inspect(tree: CallTree) -> Site | None:
    """Return the line of the innermost common function with at least half of the bytes, else the line that calls it."""
    path, _, innermost = tree.common_path
    if not path:
        return None
    by_line = tree.sum_by_line(innermost)
    largest_line = max(by_line, key=by_line.__getitem__)
    is_spread = 2 * by_line[largest_line] < tree.bytes
    frame = next((frame for frame in reversed(path) if frame.line), largest_line) if is_spread else largest_line
    return Site(frame.filename, frame.line, frame.function, frame.source, user=True)


class CallTree:
    """Frames of some stacks, level by level, outermost first, with the bytes allocated under each frame."""

    def __init__(self, stacks: StackIndex, bytes_by_stack: Mapping[int, int]) -> None:
        self.stacks = stacks
        ids = np.fromiter(bytes_by_stack.keys(), np.int64, len(bytes_by_stack))
        stack_bytes = np.fromiter(bytes_by_stack.values(), np.int64, len(bytes_by_stack))
        self.bytes = int(stack_bytes.sum())
        depth = np.zeros(len(ids), np.int64)
        ancestors = ids
        while (ancestors > 0).any():
            depth += ancestors > 0
            ancestors = stacks.parent[ancestors].astype(np.int64)
        self.levels: list[tuple[_Numbers, _Numbers]] = []
        nodes, node_bytes = np.zeros(0, np.int64), np.zeros(0, np.int64)
        for level in range(int(depth.max(initial=0)), 0, -1):
            is_at_level = depth == level
            nodes, node_bytes = _sum_by_key(
                np.append(ids[is_at_level], nodes), np.append(stack_bytes[is_at_level], node_bytes)
            )
            self.levels.insert(0, (nodes, node_bytes))
            nodes = stacks.parent[nodes].astype(np.int64)

    @functools.cached_property
    def common_path(self) -> tuple[list[Frame], float, int]:
        return _find_common_path(self)

    def sum_by_line(self, function: int) -> dict[Frame, int]:
        """Return the bytes under each line of a frame's function; of a recursive function, under its outermost call."""
        by_line: dict[Frame, int] = {}
        function_key = self.stacks.functions(np.array([function]))
        subtree_nodes = np.zeros(0, np.int64)
        for nodes, node_bytes in self.levels:
            is_below = np.isin(self.stacks.parent[nodes], subtree_nodes)
            is_match = (self.stacks.functions(nodes) == function_key).all(axis=0)
            is_outermost = is_match & ~is_below
            for node, count in zip(nodes[is_outermost].tolist(), node_bytes[is_outermost].tolist(), strict=True):
                frame = self.stacks.frame(node)
                by_line[frame] = by_line.get(frame, 0) + count
            subtree_nodes = nodes[is_match | is_below]
        return by_line


def _find_common_path(tree: CallTree) -> tuple[list[Frame], float, int]:
    """Return the path of `find_common_path`, outermost first, its share, and the stack of its innermost frame."""
    stacks, total = tree.stacks, max(tree.bytes, 1)
    path: list[Frame] = []
    share, innermost = 0.0, 0
    parents: _Numbers | None = None
    for level_nodes, level_bytes in tree.levels:
        nodes, node_bytes = level_nodes, level_bytes
        if parents is not None:
            node_parents = stacks.parent[nodes]
            # Usually there is a single parent, and `isin` takes a tenth of a millisecond.
            is_below = node_parents == parents[0] if len(parents) == 1 else np.isin(node_parents, parents)
            nodes, node_bytes = nodes[is_below], node_bytes[is_below]
        if not len(nodes):
            break
        is_same_line = _select_largest(stacks, nodes, node_bytes, by_line=True)
        # Calls from several lines of one function are different calls: no deeper frame is common to them.
        is_last = int(node_bytes[is_same_line].sum()) < MIN_COMMON_SHARE * total
        is_common = _select_largest(stacks, nodes, node_bytes, by_line=False) if is_last else is_same_line
        common_bytes = int(node_bytes[is_common].sum())
        if common_bytes < MIN_COMMON_SHARE * total:
            break
        parents = nodes[is_common]
        if stacks.is_user[parents[0]]:
            frame = stacks.frame(int(parents[0]))
            # Line 0: the bytes are allocated under several lines of the innermost function.
            path.append(dataclasses.replace(frame, line=0, source=None) if is_last else frame)
            share, innermost = common_bytes / total, int(parents[0])
        if is_last:
            break
    return path, share, innermost


def _select_largest(
    stacks: StackIndex, nodes: _Numbers, node_bytes: _Numbers, *, by_line: bool
) -> npt.NDArray[np.bool_]:
    if len(nodes) == 1:  # the usual case: grouping takes seconds for hundreds of leaks
        return np.ones(1, np.bool_)
    keys = stacks.functions(nodes)
    if by_line:
        keys = np.concatenate([keys, stacks.lines[nodes][None]])
    _, group_of_node = np.unique(keys, axis=1, return_inverse=True)
    group_of_node = group_of_node.reshape(-1)
    # In integers: a double cannot represent every sum of bytes.
    totals = np.zeros(int(group_of_node.max()) + 1, np.int64)
    np.add.at(totals, group_of_node, node_bytes)
    is_largest: npt.NDArray[np.bool_] = group_of_node == totals.argmax()
    return is_largest


def _sum_by_key(keys: _Numbers, values: _Numbers) -> tuple[_Numbers, _Numbers]:
    distinct, key_of_row = np.unique(keys, return_inverse=True)
    sums = np.zeros(len(distinct), np.int64)
    np.add.at(sums, key_of_row, values)
    return distinct, sums
