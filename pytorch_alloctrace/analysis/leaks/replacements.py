"""Leaks of the second kind: one buffer, replaced again and again by a larger one (`buf = torch.cat([buf, x])`).

Looked at is the largest live block of each site at moments over the run after its warm-up: at the end of each window,
and once within it, at a place that differs from window to window. (A cache that is reset every 19 steps would seem to
grow slowly if it were looked at every 20.)

    never smaller     at none of these moments than at the one before: a cache that is reset is no leak
    coverage          share of the windows in which the site got a larger block, and had no more blocks than before; at
                      least 80 %
    not over          as for survivors (see `Windows.is_over`): a buffer that has reached its bound is no leak
    made of the last  and of something new: see `replacement_evidence`, which tells longer inputs from a buffer
    one finding       sites that grew at the same moments; it names the one that is made first each time
    confidence        coverage x windows / (windows + 1)

A buffer that doubles each time is replaced too seldom to be judged.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from ...reading.positions import Position
from ...reading.recorded import RecordedTrace
from ...reading.site_tables import Site, SiteNumbers, bytes_by_stack
from .leak import GROWING, LEAST_COVERAGE, Leak, LeakingSite, certainty, grouped_by_births, seconds_until_full
from .paths import common_path
from .replacement_evidence import Replacement, are_buffers, live_blocks
from .windows import Windows

_IRREGULAR = (math.sqrt(5) - 1) / 2
"""The multiples of the golden ratio have a period in common with nothing that a program does."""
_FEW = 6
_EXAMINED = 20
"""Most sites that are looked at more closely, those that grow most: of longer inputs hundreds may grow."""
_MATTERS = 0.1
"""Share of the growth of the site that grows most with which another one may be the origin of it."""


@dataclass(frozen=True)
class _Looks:
    """The largest block of each site at each moment: moments x sites, 0 where there is none."""

    moments: tuple[Position, ...]
    units: npt.NDArray[np.int64]
    """The unit that each moment is in; -1: the end of the warm-up."""
    sizes: npt.NDArray[np.int64]
    births: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]
    """How many blocks the site has."""

    @property
    def grown(self) -> npt.NDArray[np.bool_]:
        """At each moment but the first: whether the site has a larger block than before, and not more blocks."""
        return (np.diff(self.sizes, axis=0) > 0) & (np.diff(self.counts, axis=0) <= 0)


@dataclass(frozen=True)
class _Growing:
    """A site whose largest block is replaced by ever larger ones."""

    site: int
    looks: npt.NDArray[np.int64]
    """The moments at which a larger block was in the place of the one before."""
    growth: npt.NDArray[np.int64]
    """By how much, at each of them."""
    units: npt.NDArray[np.int64]
    """In which these moments are."""
    birth: int
    """Number of the event that made the last of its blocks."""
    windows: int
    """Into how many windows the run was divided to find it."""


def growing_leaks(
    trace: RecordedTrace, device: str, windows: Windows, numbers: SiteNumbers, free: int | None
) -> list[Leak]:
    """The leaks of this kind on a device, in no order. free: see `leak.room`."""
    moments, units = _moments(trace, windows)
    # Of most programs no block grows all the time: a few looks tell.
    few = slice(None, None, max(len(moments) // _FEW, 1))
    if not len(_only_larger(_look(trace, device, moments[few], units[few], numbers))):
        return []
    looks = _look(trace, device, moments, units, numbers)
    candidates = [found for site in _only_larger(looks).tolist() if (found := _growing(site, looks, windows))]
    candidates = sorted(candidates, key=lambda found: -int(found.growth.sum()))[:_EXAMINED]
    replacements = {found.site: _replacements(found, looks) for found in candidates}
    buffers = are_buffers(trace, device, windows, numbers, replacements)
    kept = [found for found in candidates if found.site in buffers]
    groups = grouped_by_births(kept, lambda found: found.looks)
    return [_leak(trace, device, windows, numbers, group, free) for group in groups]


def _look(
    trace: RecordedTrace,
    device: str,
    moments: tuple[Position, ...],
    units: npt.NDArray[np.int64],
    numbers: SiteNumbers,
) -> _Looks:
    tables: list[tuple[npt.NDArray[np.int64], ...]] = []
    for moment in moments:
        blocks = live_blocks(trace, device, moment, numbers)
        sites, sizes, births = (blocks[name].to_numpy() for name in ("site", "nbytes", "birth_seq"))
        order = np.lexsort((births, sizes, sites))
        of_site, first, counts = np.unique(sites[order], return_index=True, return_counts=True)
        largest = order[first + counts - 1]
        tables.append((of_site, sizes[largest], births[largest], counts))
    shape = len(moments), 1 + max((int(table[0].max()) for table in tables if len(table[0])), default=-1)
    looks = _Looks(moments, units, *(np.zeros(shape, np.int64) for _ in range(3)))
    for row, (of_site, *columns) in enumerate(tables):
        looks.sizes[row, of_site], looks.births[row, of_site], looks.counts[row, of_site] = columns
    return looks


def _moments(trace: RecordedTrace, windows: Windows) -> tuple[tuple[Position, ...], npt.NDArray[np.int64]]:
    """Where to look, and the unit that each moment is in: the end of the warm-up; in each window a moment, and its
    end."""
    begin = windows.beginning(trace.begin_ns)
    count = windows.counts[0]
    lengths = windows.units_in(count)
    within = np.arange(count) * _IRREGULAR % 1
    if windows.unit == "step":
        ends = np.cumsum(lengths) - 1
        units = np.unique(np.concatenate([ends - (within * lengths).astype(np.int64), ends]))
        return (begin, *windows.moments[units].tolist()), np.append(-1, units)
    # From the beginning on: the nanoseconds since 1970 are more than a float can tell apart.
    begins = (windows.births - trace.begin_ns) / 1e9
    seconds = (begins[:, np.newaxis] + windows.length_of_unit * np.stack([within, np.ones(count)], axis=1)).ravel()[:-1]
    units = np.repeat(np.arange(count), 2)
    return (begin, *(f"{moment:.9f}s" for moment in seconds), windows.judged_at), np.append(-1, units)


def _only_larger(looks: _Looks) -> npt.NDArray[np.int64]:
    """The sites whose largest block was replaced by a larger one, and never by a smaller one."""
    return np.flatnonzero((np.diff(looks.sizes, axis=0) >= 0).all(axis=0) & looks.grown.any(axis=0))


def _growing(site: int, looks: _Looks, windows: Windows) -> _Growing | None:
    """The site if it grew in nearly all windows, up to the last."""
    grown = np.flatnonzero(looks.grown[:, site]) + 1
    if not len(grown):
        return None
    units = looks.units[grown]
    if windows.is_over(units, windows.units):
        return None
    for count in windows.counts:
        active = windows.active_in(count)
        hit = np.isin(np.arange(count), windows.window_of(units, count))
        if hit[active].sum() >= LEAST_COVERAGE * active.sum():
            return _Growing(
                site, grown, np.diff(looks.sizes[:, site])[grown - 1], units, int(looks.births[-1, site]), count
            )
    return None


def _replacements(found: _Growing, looks: _Looks) -> list[Replacement]:
    site = found.site
    following = [*found.looks.tolist()[1:], len(looks.moments) - 1]
    return [
        Replacement(
            site=site,
            unit=int(looks.units[look]),
            birth=int(looks.births[look, site]),
            size=int(looks.sizes[look, site]),
            until=looks.moments[next_look],
        )
        for look, next_look in zip(found.looks.tolist(), following, strict=True)
    ]


def _leak(
    trace: RecordedTrace, device: str, windows: Windows, numbers: SiteNumbers, group: list[_Growing], free: int | None
) -> Leak:
    sites = [candidate.site for candidate in group]
    before = live_blocks(trace, device, windows.beginning(trace.begin_ns), numbers)
    blocks = live_blocks(trace, device, windows.judged_at, numbers)
    at_end = live_blocks(trace, device, "end", numbers)
    blocks = blocks[blocks["site"].isin(sites)]
    total = int(blocks["nbytes"].sum())
    length = windows.units * windows.length_of_unit
    rate = (total - int(before["nbytes"][before["site"].isin(sites)].sum())) / length
    parts = {
        site: _leaking_site(trace, blocks[blocks["site"] == site], before[before["site"] == site], length)
        for site in sites
    }
    path, path_share = common_path(trace, bytes_by_stack(blocks))
    line = parts[_origin(group)].site
    if path and (path[0].filename, path[0].line) == (line.filename, line.line):
        path = path[1:]
    hits, judged, confidence = _confidence(trace, group[0], windows)
    return Leak(
        kind=GROWING,
        device=device,
        unit=windows.unit,
        rate=rate,
        bytes=total,
        blocks=len(blocks),
        bytes_at_end=int(blocks["nbytes"][blocks["birth_seq"].isin(at_end["birth_seq"])].sum()),
        units_with_survivors=hits,
        units_judged=judged,
        windows_with_survivors=hits,
        windows_judged=judged,
        confidence=confidence,
        oldest_age=(windows.units - int(windows.units_of(blocks).min())) * windows.length_of_unit,
        seconds_per_unit=windows.seconds_per_unit,
        forecast=seconds_until_full(free, rate, windows),
        sites=tuple(sorted(parts.values(), key=lambda part: -part.bytes)),
        line=line,
        path=path,
        path_share=path_share,
        live=Leak.buffers_live(
            total,
            np.concatenate([candidate.units for candidate in group]),
            np.concatenate([candidate.growth for candidate in group]),
        ),
    )


def _origin(group: list[_Growing]) -> int:
    """The site that the others of its group may be made of: the first that is made each time, among those that do not
    grow by much less than the others. Of a cache of keys, the keys repeated for each head are made, not they of these.
    """
    most = max(candidate.growth.sum() for candidate in group)
    return min((found for found in group if found.growth.sum() >= _MATTERS * most), key=lambda found: found.birth).site


def _leaking_site(trace: RecordedTrace, blocks: pd.DataFrame, before: pd.DataFrame, length: float) -> LeakingSite:
    by_stack = bytes_by_stack(blocks)
    stack = max(by_stack, key=by_stack.__getitem__)
    held = int(blocks["nbytes"].sum())
    rate = (held - int(before["nbytes"].sum())) / length
    return LeakingSite(Site.of_stack(trace.stacks, stack), stack, rate, held, len(blocks))


def _confidence(trace: RecordedTrace, candidate: _Growing, windows: Windows) -> tuple[int, int, float]:
    """In how many windows the site grew, of how many, and how sure one can be that it leaks."""
    active = windows.active_in(candidate.windows)
    grew = np.isin(np.arange(candidate.windows), windows.window_of(candidate.units, candidate.windows))
    hits, judged = int((grew & active).sum()), int(active.sum())
    return hits, judged, hits / (judged + 1) * certainty(trace, windows)
