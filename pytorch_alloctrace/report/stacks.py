"""Whole stacks, if --all-frames asks for them: every frame, including those of libraries, innermost first.

In JSON, whatever has a `stack_id` then also has `frames`: a list of function, filename, line, source.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from ..reading.recorded import RecordedTrace
from ..reading.sites import Frame

Frames = Callable[[int], Sequence[Frame]]
"""The frames of a stack, by its number."""


def frames_of(trace: RecordedTrace) -> Frames:
    """Those of a trace; none for a stack that a damaged trace lacks."""
    return lambda stack: trace.frames(stack) if 0 <= stack < len(trace.stacks) else []


def with_frames(data: Any, frames: Frames | None) -> Any:
    """Plain values, where each object that has a stack gets its frames; unchanged without `frames`."""
    if frames is None:
        return data
    if isinstance(data, list | tuple):
        return [with_frames(item, frames) for item in data]
    if not isinstance(data, dict):
        return data
    made = {name: with_frames(value, frames) for name, value in data.items()}
    if isinstance(data.get("stack_id"), int):
        made["frames"] = frames_data(frames(data["stack_id"]))
    return made


def frames_data(frames: Sequence[Frame]) -> list[dict[str, Any]]:
    """Frames as plain values."""
    return [dataclasses.asdict(frame) for frame in frames]
