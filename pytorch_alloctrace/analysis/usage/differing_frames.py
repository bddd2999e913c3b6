"""Frames in which the stacks of one site differ."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...reading.sites import Frame, StackIndex


def differing_frames(stacks: StackIndex, stack_ids: Iterable[int]) -> dict[int, list[Frame]]:
    """Return the frames of each stack that not all stacks of its site have, innermost first.

    Stacks that are alone at their site are left out. The list is empty for a stack that is part of the others, or that
    differs from them only within a line.
    """
    by_site: dict[tuple[Any, ...], list[int]] = {}
    for stack in stack_ids:
        by_site.setdefault(stacks.key(stack, "line"), []).append(stack)
    result: dict[int, list[Frame]] = {}
    for stacks_of_site in by_site.values():
        if len(stacks_of_site) == 1:
            continue
        frames = {stack: stacks.frames(stack) for stack in stacks_of_site}
        common = set.intersection(*(set(stack_frames) for stack_frames in frames.values()))
        result |= {
            stack: [frame for frame in stack_frames if frame not in common] for stack, stack_frames in frames.items()
        }
    return result
