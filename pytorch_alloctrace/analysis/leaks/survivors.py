"""Survivors: blocks of one site, born in nearly every window of the run except the youngest, and still live.

coverage          the share of the judged windows that have survivors of the site; at least 80 %
enough of them    by time: at least as many survivors as there are windows. A step is a unit of the program's work, but
                  a window of time is not: ten results of ten inputs also fall into most windows
still growing     old blocks of the site do not die as fast as new ones are kept. A bounded cache that holds most of the
                  run also has survivors everywhere, but for each one kept an old one dies. (One that fills up only in
                  the last eighth of the run cannot be distinguished from a leak yet)
not slowing       by steps: in the second half of the judged steps at least half as many have survivors of the site as
                  in the first. What a step leaks, every step leaks; what is allocated at the first use of each of many
                  things (experts, shapes, words) gets rarer and rarer. (By time, the work itself may slow down)
not over          its survivors are born up to the youngest window (see `Windows.is_over`): what filled up and no
                  longer changes is not a leak
one finding       sites whose survivors were born in the same steps: a tensor kept with its graph keeps many others
confidence        coverage x regularity x (1 - old bytes that died / new bytes kept) x windows / (windows + 1);
                  regularity is 1 / (1 + coefficient of variation of survivors per window)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from ...reading.recorded import RecordedTrace
from ...reading.sites import Site, SiteNumbers, bytes_by_stack
from .leak import LEAST_COVERAGE, SURVIVORS, Leak, LeakingSite, certainty, grouped_by_births, seconds_until_full
from .paths import common_path, line_to_look_at
from .windows import WINDOWS, Windows

MOST = 0.8
"""A line that allocates at least this share of a leak's bytes is the line to look at."""
BALANCED = 0.5
"""A site is a cache, not a leak, if more than this share of the bytes it newly keeps died as old ones."""
SLOWING = 0.5
"""A cache fills up if the second half has fewer than this share of the first half's steps with survivors."""


@dataclass(frozen=True)
class _Survivors:
    """The blocks that are live at the judged position."""

    trace: RecordedTrace
    device: str
    windows: Windows
    blocks: pd.DataFrame
    sizes: npt.NDArray[np.int64]
    units: npt.NDArray[np.int64]
    """The unit of each block's birth; negative in the warm-up."""
    sites: npt.NDArray[np.int64]
    """The site of each block, a number."""
    numbers: SiteNumbers
    free: int | None
    """Bytes that the device could still take then."""


@dataclass(frozen=True)
class _Candidate:
    """A site with survivors in nearly every window."""

    site: int
    rows: npt.NDArray[np.int64]
    """Its blocks that were born in judged windows."""
    units: npt.NDArray[np.int64]
    """The units in which these were born, each once."""
    bytes: int
    windows: int
    """Into how many windows the run was divided to find it."""


def surviving_leaks(
    trace: RecordedTrace, device: str, windows: Windows, numbers: SiteNumbers, blocks: pd.DataFrame, free: int | None
) -> list[Leak]:
    """The leaks of this kind on a device, unordered. blocks: those live at the judged position; free: see
    `leak.room`."""
    survivors = _Survivors(
        trace=trace,
        device=device,
        windows=windows,
        blocks=blocks,
        sizes=blocks["nbytes"].to_numpy(np.int64),
        units=windows.units_of(blocks),
        sites=numbers.of(blocks["stack_id"]),
        numbers=numbers,
        free=free,
    )
    # Being over is judged before the youngest window: what was born there may be in use.
    end = windows.first_unit_of_youngest(windows.counts[0])
    candidates = [found for found in _candidates(survivors) if not windows.is_over(found.units, end)]
    if windows.unit == "step":
        candidates = [found for found in candidates if not _is_slowing(found.units, end)]
    given_up = _given_up(survivors, [candidate.site for candidate in candidates])
    kept = [candidate for candidate in candidates if given_up[candidate.site] <= BALANCED]
    groups = grouped_by_births(kept, lambda candidate: candidate.units)
    live_at_end = trace.replay.live(trace.end_seq, device)["birth_seq"].to_numpy(np.int64)
    return [_leak(survivors, group, given_up, live_at_end) for group in groups]


def _candidates(survivors: _Survivors) -> list[_Candidate]:
    """Sites with survivors in nearly every active window but the youngest; most bytes first."""
    windows, units, sites = survivors.windows, survivors.units, survivors.sites
    found: dict[int, _Candidate] = {}
    for count in windows.counts:
        judged = windows.active_in(count)
        judged[-1] = False
        born = units >= 0
        hit = np.unique(np.stack([sites[born], windows.window_of(units[born], count)]), axis=1)
        numbers, hits = np.unique(hit[0, judged[hit[1]]], return_counts=True)
        for site in numbers[hits >= LEAST_COVERAGE * judged.sum()].tolist():
            if site not in found:
                inside = (units >= 0) & (units < windows.first_unit_of_youngest(count))
                rows = np.flatnonzero((sites == site) & inside)
                if windows.unit == "second" and len(rows) < WINDOWS:
                    continue
                total = int(survivors.sizes[rows].sum())
                found[site] = _Candidate(site, rows, np.unique(units[rows]), total, count)
    return sorted(found.values(), key=lambda candidate: -candidate.bytes)


def _is_slowing(units: npt.NDArray[np.int64], end: int) -> bool:
    """Whether the units before `end` that have survivors get rarer and rarer."""
    early = int((units < end // 2).sum())
    return len(units) - early < SLOWING * early


def _given_up(survivors: _Survivors, sites: list[int]) -> dict[int, float]:
    """For each site the old bytes that died in the last quarter of the run, as a share of the new ones kept in it."""
    if not sites:
        return {}
    windows = survivors.windows
    quarter = windows.units * 3 // 4
    before = survivors.trace.replay.live(int(windows.ends[max(quarter - 1, 0)]) + 1, survivors.device)
    # What is young at that position may be in use, and dies soon in any program.
    old = windows.units_of(before) < quarter - max(windows.units // windows.counts[0], 1)
    died = old & ~np.isin(before["birth_seq"].to_numpy(np.int64), survivors.blocks["birth_seq"].to_numpy(np.int64))
    sites_before = survivors.numbers.of(before["stack_id"])
    sizes_before = before["nbytes"].to_numpy(np.int64)
    recent = (survivors.units >= quarter) & (survivors.units < windows.first_unit_of_youngest(windows.counts[0]))
    shares = {}
    for site in sites:
        kept = int(survivors.sizes[(survivors.sites == site) & recent].sum())
        shares[site] = float(sizes_before[(sites_before == site) & died].sum()) / max(kept, 1)
    return shares


def _leak(
    survivors: _Survivors, group: list[_Candidate], given_up: dict[int, float], live_at_end: npt.NDArray[np.int64]
) -> Leak:
    trace, windows, first = survivors.trace, survivors.windows, group[0]
    judged_units = windows.first_unit_of_youngest(first.windows)
    length = judged_units * windows.length_of_unit
    rows = np.concatenate([candidate.rows for candidate in group])
    births = survivors.blocks["birth_seq"].to_numpy(np.int64)[rows]
    total = int(survivors.sizes[rows].sum())
    hits, confidence = _confidence(survivors, first)
    sites = tuple(_leaking_site(survivors, candidate, length) for candidate in group)
    by_stack = bytes_by_stack(survivors.blocks.iloc[rows])
    path, path_share = common_path(trace, by_stack)
    line = sites[0].site if sites[0].bytes >= MOST * total else line_to_look_at(trace, by_stack) or sites[0].site
    if path and (path[0].filename, path[0].line) == (sites[0].site.filename, sites[0].site.line):
        path = path[1:]
    rate = total / length if length else 0.0
    return Leak(
        kind=SURVIVORS,
        device=survivors.device,
        unit=windows.unit,
        rate=rate,
        bytes=total,
        blocks=len(rows),
        bytes_at_end=int(survivors.sizes[rows][np.isin(births, live_at_end)].sum()),
        units_with_survivors=len(first.units),
        units_judged=judged_units,
        windows_with_survivors=hits,
        windows_judged=int(windows.active_in(first.windows)[:-1].sum()),
        confidence=confidence * (1 - given_up[first.site]),
        oldest_age=(windows.units - int(survivors.units[rows].min())) * windows.length_of_unit,
        seconds_per_unit=windows.seconds_per_unit,
        forecast=seconds_until_full(survivors.free, rate, windows),
        sites=sites,
        line=line,
        path=path,
        path_share=path_share,
        live=Leak.survivors_live(
            windows,
            survivors.blocks[np.isin(survivors.sites, [candidate.site for candidate in group])],
            trace.begin_ns,
        ),
    )


def _confidence(survivors: _Survivors, candidate: _Candidate) -> tuple[int, float]:
    """In how many windows the site has survivors, and how certain it is that it leaks."""
    windows, count = survivors.windows, candidate.windows
    active = windows.active_in(count)[:-1]
    window = windows.window_of(survivors.units[candidate.rows], count)
    per_unit = (np.bincount(window, minlength=count)[:-1] / windows.units_in(count)[:-1])[active]
    hits, judged, mean = int((per_unit > 0).sum()), len(per_unit), float(per_unit.mean())
    regularity = 1 / (1 + float(per_unit.std()) / mean) if mean else 0.0
    confidence = hits / judged * regularity * judged / (judged + 1)
    confidence *= certainty(survivors.trace, windows)
    return hits, confidence


def _leaking_site(survivors: _Survivors, candidate: _Candidate, length: float) -> LeakingSite:
    by_stack = bytes_by_stack(survivors.blocks.iloc[candidate.rows])
    stack = max(by_stack, key=by_stack.__getitem__)
    site = Site.of_stack(survivors.trace.stacks, stack)
    return LeakingSite(site, stack, candidate.bytes / length if length else 0.0, candidate.bytes, len(candidate.rows))
