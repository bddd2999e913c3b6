"""Frames in which the stacks of one site differ."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...reading.sites import Frame, StackIndex


def differing_frames(stacks: StackIndex, stack_ids: Iterable[int]) -> dict[int, list[Frame]]:
    """Return, by stack, the frames that some other stack of its site lacks, innermost first.

    Sites with one stack are left out. A stack gets an empty list if it differs from the others by no frame of its own.
    """
    by_site: dict[tuple[Any, ...], list[int]] = {}
    for stack in stack_ids:
        by_site.setdefault(stacks.key(stack, "line"), []).append(stack)
    frames_by_stack: dict[int, list[Frame]] = {}
    for stacks_of_site in by_site.values():
        if len(stacks_of_site) == 1:
            continue
        frames = {stack: stacks.frames(stack) for stack in stacks_of_site}
        common = set.intersection(*(set(stack_frames) for stack_frames in frames.values()))
        frames_by_stack |= {
            stack: [frame for frame in stack_frames if frame not in common] for stack, stack_frames in frames.items()
        }
    return frames_by_stack
