"""What many stacks have in common: the calls that lead to all of them."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping

from ...reading.recorded import RecordedTrace
from ...reading.sites import Frame, Site, StackIndex

NEARLY_ALL = 0.99
"""A frame is common if at least this share of the bytes is allocated under it. One small tensor that is allocated
elsewhere and kept by the same reference must not hide where all the rest comes from."""


@dataclasses.dataclass
class _Chain:
    """The frames of one stack, by their ids, outermost first."""

    nodes: list[int]
    bytes: int


def common_path(trace: RecordedTrace, bytes_by_stack: Mapping[int, int]) -> tuple[tuple[Frame, ...], float]:
    """The frames of user code under which nearly all bytes are allocated, innermost first, and their share.

    The innermost frame has line 0 and no source if the bytes are allocated under several lines of its function.
    """
    stacks = trace.stacks
    parents = stacks.parent.tolist()
    chains = [_chain(parents, stack, count) for stack, count in bytes_by_stack.items()]
    total = max(sum(chain.bytes for chain in chains), 1)
    path: list[Frame] = []
    share = 0.0
    for level in range(max((len(chain.nodes) for chain in chains), default=0)):
        chains = [chain for chain in chains if len(chain.nodes) > level]
        same_line = _largest(stacks, chains, level, by_line=True)
        # Calls from several lines of one function are different calls: nothing deeper is common to them.
        last = sum(chain.bytes for chain in same_line) < NEARLY_ALL * total
        chains = _largest(stacks, chains, level, by_line=False) if last else same_line
        part = sum(chain.bytes for chain in chains)
        if part < NEARLY_ALL * total:
            break
        node = chains[0].nodes[level]
        if stacks.is_user[node]:
            frame = stacks.frame(node)
            path.append(dataclasses.replace(frame, line=0, source=None) if last else frame)
            share = part / total
        if last:
            break
    return tuple(reversed(path)), share


def line_to_look_at(trace: RecordedTrace, bytes_by_stack: Mapping[int, int]) -> Site | None:
    """The line of user code that stands for bytes allocated at many lines; None if they have no function in common.

    It is the line of the innermost function in common under which at least half of the bytes are allocated. If there is
    none, since a model's activations are spread over many lines, it is the line that calls this function.
    """
    path, _ = common_path(trace, bytes_by_stack)
    if not path:
        return None
    stacks = trace.stacks
    parents = stacks.parent.tolist()
    is_in: dict[int, bool] = {}
    by_node: dict[int, int] = collections.defaultdict(int)
    for stack, count in bytes_by_stack.items():
        # The outermost: if a function calls itself, the call that contains the others.
        for node in _chain(parents, stack, count).nodes:
            found = is_in.get(node)
            if found is None:
                found = is_in[node] = _is_in(stacks.frame(node), path[0])
            if found:
                by_node[node] += count
                break
    by_line: dict[Frame, int] = collections.defaultdict(int)
    for node, count in by_node.items():
        by_line[stacks.frame(node)] += count
    fullest = max(by_line, key=by_line.__getitem__)
    spread = 2 * by_line[fullest] < sum(bytes_by_stack.values())
    frame = next((frame for frame in path if frame.line), fullest) if spread else fullest
    return Site(frame.filename, frame.line, frame.function, frame.source, user=True)


def _is_in(frame: Frame, function: Frame) -> bool:
    return (frame.filename, frame.function) == (function.filename, function.function)


def _chain(parents: list[int], stack: int, count: int) -> _Chain:
    nodes = []
    while stack:
        nodes.append(stack)
        stack = parents[stack]
    nodes.reverse()
    return _Chain(nodes, count)


def _largest(stacks: StackIndex, chains: list[_Chain], level: int, *, by_line: bool) -> list[_Chain]:
    """The chains that agree at a level and together have the most bytes."""
    groups: dict[tuple[str, str, int], list[_Chain]] = collections.defaultdict(list)
    for chain in chains:
        frame = stacks.frame(chain.nodes[level])
        groups[frame.filename, frame.function, frame.line if by_line else 0].append(chain)
    return max(groups.values(), key=lambda group: sum(chain.bytes for chain in group), default=[])
