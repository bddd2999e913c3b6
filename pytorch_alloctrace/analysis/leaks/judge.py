"""Where it is decided that something is a leak: what is allocated again and again and stays, judged at the end of the
run and not by a trend.

A trend alone flags what is not a leak: a cache that fills up, a curriculum of longer inputs, garbage that is collected
late. There are two kinds of leaks, both judged by the windows of the run after its warm-up (see `windows`; with too few
of them nothing is judged).

survivors (see `survivors`)
    A site whose blocks, born in nearly every window except the youngest, are still live.

growing (see `replacements`)
    A site with a block that is replaced again and again by a larger one, and still grows at the end.

Sites whose blocks were born in the same steps are one leak: a tensor kept with its graph keeps many others. Each kind
has its own rule for the confidence, which is multiplied by 0.8 if there are no steps, and again if events are missing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pandas as pd

from ...reading.positions import Range
from ...reading.recorded import RecordedTrace
from ...reading.sites import SiteNumbers
from .leak import Leak, LeakingSite, LeakVerdict, leaks_as_table, room
from .replacements import growing_leaks
from .survivors import surviving_leaks
from .windows import Windows

__all__ = ["Leak", "LeakVerdict", "LeakingSite", "find_leaks", "leak_table"]


def find_leaks(trace: RecordedTrace, device: str, within: Range | None = None) -> LeakVerdict:
    """Judges one device of a trace, over the whole run or a range; the most certain and largest leaks first.

    Memory is in proportion to live blocks and stacks. Besides the one pass over the trace, this looks at the blocks of
    some 10 positions, or of some 60 if a buffer grows.
    """
    windows = Windows.of(trace, device, within)
    if windows.too_short:
        return LeakVerdict(False, windows.unit, windows.units, windows.warmup, ())
    sites, blocks = SiteNumbers(trace.stacks), trace.replay.live(windows.judged_at + 1, device)
    free = room(trace, device, windows, int(blocks["nbytes"].sum()))
    surviving = surviving_leaks(trace, device, windows, sites, blocks, free)
    known = {(site.site.filename, site.site.line) for leak in surviving for site in leak.sites}
    growing = [
        leak
        for leak in growing_leaks(trace, device, windows, sites, free)
        if not any((site.site.filename, site.site.line) in known for site in leak.sites)
    ]
    peak = trace.replay.peak("allocated", device)
    held = 0 if peak is None else peak.bytes
    weighed = [dataclasses.replace(leak, minor=leak.is_minor(held)) for leak in [*surviving, *growing]]
    leaks = tuple(sorted(weighed, key=lambda leak: leak.weight, reverse=True))
    return LeakVerdict(True, windows.unit, windows.units, windows.warmup, leaks)


def leak_table(trace: RecordedTrace, devices: Sequence[str], within: Range | None = None) -> pd.DataFrame:
    """The leaks on some devices as a table: see `Trace.leaks`."""
    return leaks_as_table(trace, [leak for device in devices for leak in find_leaks(trace, device, within).leaks])
