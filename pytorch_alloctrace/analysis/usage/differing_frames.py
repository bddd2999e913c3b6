"""In which frames the stacks of one site differ: what a table of stacks has to show of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...reading.sites import Frame, StackIndex


def differing_frames(stacks: StackIndex, stack_ids: Iterable[int]) -> dict[int, list[Frame]]:
    """For each of these stacks whose site another one has too: its frames that not all stacks of the site have,
    innermost first. None for a stack that is part of the others, or that differs from them only within a line."""
    by_site: dict[tuple[Any, ...], list[int]] = {}
    for stack in stack_ids:
        by_site.setdefault(stacks.key(stack, "line"), []).append(stack)
    found: dict[int, list[Frame]] = {}
    for alike in by_site.values():
        if len(alike) == 1:
            continue
        frames = {stack: stacks.frames(stack) for stack in alike}
        common = set.intersection(*(set(of_stack) for of_stack in frames.values()))
        found |= {stack: [frame for frame in of_stack if frame not in common] for stack, of_stack in frames.items()}
    return found
