"""What each stack holds at a moment, or allocated in a stretch, for tools that draw flame graphs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ...reading.names import NO_STACK
from ...reading.positions import Position
from ...reading.recorded import RecordedTrace
from ...reading.sites import Frame
from ..site_names import printable

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"
_MOST_FRAMES = 4_000_000
"""Of all stacks together."""
_ALWAYS_SHOWN = 64
"""Innermost frames of each."""


def speedscope(
    trace: RecordedTrace, at: Position | None, since: Position | None, until: Position | None, device: str | None
) -> bytes:
    """A profile for each device: its samples are stacks, outermost frame first, their weights bytes."""
    frames: dict[Frame, int] = {}
    profiles = []
    for name in _devices(trace, device):
        samples, weights = [], []
        for stack, size in _sizes(trace, name, at, since, until):
            samples.append([frames.setdefault(frame, len(frames)) for frame in stack])
            weights.append(size)
        profiles.append(
            {
                "type": "sampled",
                "name": f"{name}: {_what(at, since, until)}",
                "unit": "bytes",
                "startValue": 0,
                "endValue": sum(weights),
                "samples": samples,
                "weights": weights,
            }
        )
    data = {
        "$schema": _SCHEMA,
        "exporter": "pytorch_alloctrace",
        "name": trace.path,
        "activeProfileIndex": 0,
        "shared": {"frames": [_speedscope_frame(frame) for frame in frames]},
        "profiles": profiles,
    }
    return json.dumps(data).encode()


def _speedscope_frame(frame: Frame) -> dict[str, Any]:
    where = {"file": frame.filename, "line": frame.line} if frame.filename else {}
    return {"name": frame.function or NO_STACK, **where}


def collapsed(
    trace: RecordedTrace, at: Position | None, since: Position | None, until: Position | None, device: str | None
) -> bytes:
    """A line a stack: its frames, outermost first, separated by semicolons, a blank, its bytes. The outermost is the
    device."""
    lines = []
    for name in _devices(trace, device):
        for stack, size in _sizes(trace, name, at, since, until):
            parts = [name, *(_collapsed_frame(frame) for frame in stack)]
            lines.append(f"{printable(';'.join(parts))} {size}\n")
    return "".join(lines).encode("utf-8", "backslashreplace")


def _collapsed_frame(frame: Frame) -> str:
    where = f" ({frame.filename}:{frame.line})" if frame.filename else ""
    # A semicolon or a new line would end the frame.
    return " ".join(f"{frame.function or NO_STACK}{where}".replace(";", ",").split())


def _devices(trace: RecordedTrace, device: str | None) -> list[str]:
    named = trace.named_device(device)
    return trace.devices if named is None else [named]


def _what(at: Position | None, since: Position | None, until: Position | None) -> str:
    if since is None and until is None:
        return f"live at {'end' if at is None else at}"
    begin, end = "the beginning" if since is None else since, "the end" if until is None else until
    return f"allocated between {begin} and {end}"


def _sizes(
    trace: RecordedTrace, device: str, at: Position | None, since: Position | None, until: Position | None
) -> Iterator[tuple[list[Frame], int]]:
    """The stacks, outermost frame first, and the bytes that each holds, or allocated in the range; requested bytes."""
    if since is None and until is None:
        table = trace.stack_totals("end" if at is None else at, device=device)
        totals = dict(zip(table["stack_id"].tolist(), table["live_bytes"].tolist(), strict=True))
    else:
        within = trace.range(since, until, device=device)
        before, after = (
            dict(zip(table["stack_id"].tolist(), table["total_bytes"].tolist(), strict=True))
            for table in (trace.stack_totals(at, device=device) for at in (within.since, within.until))
        )
        totals = {stack: size - before.get(stack, 0) for stack, size in after.items()}
    sizes = {stack: size for stack, size in totals.items() if size > 0}
    for stack, size in sizes.items():
        frames = whole_or_cut(trace.frames(stack), len(sizes))
        yield ([*reversed(frames)] or [trace.stacks.frame(stack)]), size


def whole_or_cut(frames: list[Frame], stacks: int) -> list[Frame]:
    """The frames of one of so many stacks, innermost first. Where all of them are so deep that together they would be
    far larger than their trace, where they share their callers: the innermost ones, and how many are left out."""
    most = max(_MOST_FRAMES // stacks, _ALWAYS_SHOWN)
    return frames if len(frames) <= most else [*frames[:most], Frame(f"({len(frames) - most} more)", "", 0)]
