"""Several ranges of a trace that are looked at together, such as all regions of one name."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from ...errors import PositionError
from ...reading.positions import Position, Range
from ...reading.recorded import RecordedTrace


def ranges_between(
    trace: RecordedTrace, pairs: Sequence[tuple[Position | None, Position | None]], *, device: str | None = None
) -> list[Range]:
    """`RecordedTrace.range` of each pair of since and until. Of several, those in which nothing happened are left out;
    raises PositionError if that is all of them."""
    if len(pairs) == 1:
        return [trace.range(*pairs[0], device=device)]
    found = []
    for since, until in pairs:
        with contextlib.suppress(PositionError):
            found.append(trace.range(since, until, device=device))
    if not found:
        raise PositionError(f"nothing happened in any of these {len(pairs):,} ranges")
    return found
