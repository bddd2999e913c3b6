"""How large the page may become: everything in it is bounded, whatever the trace holds."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Bounds:
    """The most of each that the page has. What is beyond is left out, or put together, and the page says so."""

    moments: int
    """At which the cursor can stop."""
    maps: int
    """Moments at which the page has the segments, blocks and free memory of each device."""
    block_rows: int
    """Blocks that are read for maps of segments, over all moments."""
    block_runs: int
    """Rows of the table of blocks, of each device."""
    holding_runs: int
    """Rows of the table of what each stack holds, of each device."""
    devices: int = 16
    """As many as the largest machines have in one process: the work is in proportion to them."""
    stacks: int = 6000
    sites: int = 1500
    marks: int = 1000
    refusals: int = 20
    segment_events: int = 4000


_SMALL = Bounds(moments=120, maps=72, block_rows=400_000, block_runs=60_000, holding_runs=60_000)
_MEDIUM = Bounds(moments=120, maps=72, block_rows=1_500_000, block_runs=90_000, holding_runs=90_000)
_LARGE = Bounds(moments=120, maps=72, block_rows=1_500_000, block_runs=250_000, holding_runs=200_000)

MOMENT = Bounds(
    moments=1, maps=1, block_rows=1, block_runs=500_000, holding_runs=1 << 40, stacks=1 << 40, sites=1 << 40
)
"""Of one moment that a page which is live asks for: all of it, but for blocks that no screen could show."""


_DEVICE_MAPS, _LEAST_MAPS = 8 * 72, 8
"""Maps of all devices together, since each takes time to make; and of one device at least."""


def bounds_for(events: int, devices: int) -> Bounds:
    """The bounds for a trace of so many events, on so many devices."""
    found = _SMALL if events <= 100_000 else _MEDIUM if events <= 5_000_000 else _LARGE
    return replace(found, maps=min(found.maps, max(_DEVICE_MAPS // max(devices, 1), _LEAST_MAPS)))
