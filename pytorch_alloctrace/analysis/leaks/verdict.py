"""Leaks: what is made again and again and stays, judged at the end of the run and not by a trend.

A trend alone flags what is no leak: a cache that fills up, a curriculum of longer inputs, garbage that is collected
late. Two kinds are told, on windows of the run after its warm-up (see `windows`; too few of them: no judgement).

survivors (see `survivors`)
    A site of which blocks, born in nearly every window except the youngest, are still live.

growing (see `replacements`)
    A site of which one block is replaced again and again by a larger one, still growing at the end.

Sites whose blocks were born in the same steps are one finding: a tensor kept with its graph keeps many others.
The confidence is told where each kind is judged; x 0.8 each where there are no steps and where events are missing.
"""

from __future__ import annotations

from ...reading.positions import Range
from ...reading.recorded import RecordedTrace
from ...reading.site_tables import SiteNumbers
from .capacity import room
from .leak import Leak, LeakingSite, LeakVerdict
from .replacements import growing_leaks
from .survivors import surviving_leaks
from .windows import Windows

__all__ = ["Leak", "LeakVerdict", "LeakingSite", "find_leaks"]


def find_leaks(trace: RecordedTrace, device: str, within: Range | None = None) -> LeakVerdict:
    """Judges one device of a trace, the whole run or a stretch of it; most certain and largest leaks first.

    Memory is in proportion to live blocks and stacks. Beside what a trace is replayed for once, the blocks of some 10
    moments are looked at, or of some 60 where a buffer grows.
    """
    windows = Windows.of(trace, device, within)
    if windows.too_short:
        return LeakVerdict(False, windows.unit, windows.units, windows.warmup, ())
    sites, blocks = SiteNumbers(trace.stacks), trace.live(windows.judged_at, device=device)
    free = room(trace, device, windows, int(blocks["nbytes"].sum()))
    surviving = surviving_leaks(trace, device, windows, sites, blocks, free)
    known = {(site.site.filename, site.site.line) for leak in surviving for site in leak.sites}
    growing = [
        leak
        for leak in growing_leaks(trace, device, windows, sites, free)
        if not any((site.site.filename, site.site.line) in known for site in leak.sites)
    ]
    leaks = tuple(sorted([*surviving, *growing], key=lambda leak: leak.weight, reverse=True))
    return LeakVerdict(True, windows.unit, windows.units, windows.warmup, leaks)
