"""Several ranges of a trace that are analysed together, such as all regions of one name."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from ...errors import PositionError
from ...reading.positions import Position, Range
from ...reading.recorded import RecordedTrace


def ranges_between(
    trace: RecordedTrace, pairs: Sequence[tuple[Position | None, Position | None]], *, device: str | None = None
) -> list[Range]:
    """Return `RecordedTrace.range` of each pair (since, until); of several pairs, those without events are left out."""
    if len(pairs) == 1:
        return [trace.range(*pairs[0], device=device)]
    ranges = []
    for since, until in pairs:
        with contextlib.suppress(PositionError):
            ranges.append(trace.range(since, until, device=device))
    if not ranges:
        raise PositionError(f"nothing happened in any of these {len(pairs):,} ranges")
    return ranges
