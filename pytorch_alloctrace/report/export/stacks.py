"""Export to flame graph tools: the bytes that each stack holds at a position, or allocated in a range.

The position is the peak of each device unless one is given: at the end, most programs have freed their memory. What
backward allocated for a line that forward executed is an innermost frame of its own, `(backward)`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from ...reading.names import NO_STACK
from ...reading.positions import Position
from ...reading.recorded import RecordedTrace
from ...reading.sites import Frame
from ..site_names import printable

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"
_DEFAULT_POSITION = "peak"
_BACKWARD = Frame("(backward)", "", 0)
_LAUNCHER = re.compile(r"[/\\]pytorch_alloctrace[/\\]recording[/\\]run\.py$")
_MAX_FRAMES = 4_000_000  # of all exported stacks
_MIN_STACK_FRAMES = 64  # of a truncated stack


def speedscope(
    trace: RecordedTrace, at: Position | None, since: Position | None, until: Position | None, device: str | None
) -> bytes:
    """Return one profile per device. Samples are stacks, outermost frame first; weights are requested bytes."""
    frames: dict[Frame, int] = {}
    profiles = []
    for name in _select_devices(trace, device):
        samples, weights = [], []
        for stack, size in _iter_stack_bytes(trace, name, at, since, until):
            samples.append([frames.setdefault(frame, len(frames)) for frame in stack])
            weights.append(size)
        profiles.append(
            {
                "type": "sampled",
                "name": f"{name}: {_describe_part(at, since, until)}",
                "unit": "bytes",
                "startValue": 0,
                "endValue": sum(weights),
                "samples": samples,
                "weights": weights,
            }
        )
    document = {
        "$schema": _SCHEMA,
        "exporter": "pytorch_alloctrace",
        "name": trace.path,
        "activeProfileIndex": 0,
        "shared": {"frames": [_speedscope_frame(frame) for frame in frames]},
        "profiles": profiles,
    }
    return json.dumps(document).encode()


def _speedscope_frame(frame: Frame) -> dict[str, Any]:
    where = {"file": frame.filename, "line": frame.line} if frame.filename else {}
    return {"name": frame.function or NO_STACK, **where}


def collapsed(
    trace: RecordedTrace, at: Position | None, since: Position | None, until: Position | None, device: str | None
) -> bytes:
    """Return one line per stack: device and frames, outermost first, joined by ";", a blank, and requested bytes."""
    lines = []
    for name in _select_devices(trace, device):
        for stack, size in _iter_stack_bytes(trace, name, at, since, until):
            parts = [name, *(_collapsed_frame(frame) for frame in stack)]
            lines.append(f"{printable(';'.join(parts))} {size}\n")
    return "".join(lines).encode("utf-8", "backslashreplace")


def _collapsed_frame(frame: Frame) -> str:
    where = f" ({frame.filename}:{frame.line})" if frame.filename else ""
    # A semicolon or a line break would end the frame.
    return " ".join(f"{frame.function or NO_STACK}{where}".replace(";", ",").split())


def _select_devices(trace: RecordedTrace, device: str | None) -> list[str]:
    selected = trace.named_device(device)
    return trace.devices if selected is None else [selected]


def _describe_part(at: Position | None, since: Position | None, until: Position | None) -> str:
    if since is None and until is None:
        return f"live at {_DEFAULT_POSITION if at is None else at}"
    begin, end = "the beginning" if since is None else since, "the end" if until is None else until
    return f"allocated between {begin} and {end}"


def _iter_stack_bytes(
    trace: RecordedTrace, device: str, at: Position | None, since: Position | None, until: Position | None
) -> Iterator[tuple[list[Frame], int]]:
    """Yield each stack, outermost frame first, with its live requested bytes, or those allocated in the range."""
    backward_bytes: dict[int, int] = {}
    if since is None and until is None:
        table = trace.stack_totals(_DEFAULT_POSITION if at is None else at, device=device)
        totals = dict(zip(table["stack_id"].tolist(), table["live_bytes"].tolist(), strict=True))
        backward_bytes = dict(zip(table["stack_id"].tolist(), table["live_backward_bytes"].tolist(), strict=True))
    else:
        event_range = trace.range(since, until, device=device)
        before, after = (
            dict(zip(table["stack_id"].tolist(), table["total_bytes"].tolist(), strict=True))
            for table in (trace.stack_totals(at, device=device) for at in (event_range.since, event_range.until))
        )
        totals = {stack: size - before.get(stack, 0) for stack, size in after.items()}
    sizes = {stack: size for stack, size in totals.items() if size > 0}
    for stack, size in sizes.items():
        frames = truncate_stack(_without_launcher(trace.frames(stack)), len(sizes))
        callers_first = [*reversed(frames)] or [trace.stacks.frame(stack)]
        in_backward = backward_bytes.get(stack, 0)
        if size > in_backward:
            yield callers_first, size - in_backward
        if in_backward:
            yield [*callers_first, _BACKWARD], in_backward


def _without_launcher(frames: list[Frame]) -> list[Frame]:
    """Return frames, innermost first, without those of `alloctrace run`, which are the outermost."""
    launcher = next((index for index, frame in enumerate(frames) if _LAUNCHER.search(frame.filename)), len(frames))
    return frames[:launcher] or frames


def truncate_stack(frames: list[Frame], stack_count: int) -> list[Frame]:
    """Return the innermost frames of one of `stack_count` stacks; all stacks together have about _MAX_FRAMES frames.

    In a trace, stacks share their callers. In an export, many deep stacks would need far more bytes than the trace.
    """
    limit = max(_MAX_FRAMES // stack_count, _MIN_STACK_FRAMES)
    return frames if len(frames) <= limit else [*frames[:limit], Frame(f"({len(frames) - limit} more)", "", 0)]
