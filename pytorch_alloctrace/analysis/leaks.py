"""Leaks, judged by survivors and not by a trend.

A site leaks when blocks of it, born in nearly every window of the run except the youngest, are still live. A trend
alone flags what is no leak: a cache that fills up, a curriculum of longer inputs, garbage that is collected late.

    too few windows   no judgement (see `windows`)
    coverage          share of the judged windows that have survivors of the site; at least 80 %
    still growing     old blocks of the site do not die as fast as new ones are kept. A cache with a bound that holds
                      most of the run has survivors everywhere, too, but for each one kept an old one dies. (One that
                      fills up only in the last eighth of the run cannot be told from a leak yet)
    one finding       sites whose survivors were born in the same steps: a tensor kept with its graph keeps many others
    confidence        coverage x regularity x (1 - old bytes that died / new bytes kept) x windows / (windows + 1), and
                      x 0.8 each where there are no steps and where events are missing; regularity is
                      1 / (1 + coefficient of variation of survivors per window)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..sites import Frame
from ..trace import Trace
from .paths import common_path
from .places import Site
from .windows import Windows

LEAST_COVERAGE = 0.8
SAME_BIRTHS = 0.9
"""Share of steps that two sites must have in common (of those of either) to be one finding."""
MOST = 0.8
"""Share of a leak's bytes from which on the one line that makes them is the line to look at."""
BALANCED = 0.5
"""Old blocks that died, as a share of new ones kept, from which on a site is a cache and no leak."""
_DOUBT = 0.8
"""Factor on the confidence for each thing that makes births or deaths less certain."""


@dataclass(frozen=True)
class LeakingSite:
    """One line's part in a leak; counts are of blocks born in judged windows."""

    site: Site
    stack: int
    """Of its stacks the one that keeps the most bytes."""
    rate: float
    """Bytes per step, or per second."""
    bytes: int
    blocks: int


@dataclass(frozen=True)
class Leak:
    """Blocks that are made again and again and never freed. Bytes are requested bytes."""

    device: str
    unit: str
    """"step", or "second" in a trace without steps."""
    rate: float
    """Bytes per unit: those alive that were born in judged windows, by the length of these windows."""
    bytes: int
    """Alive at the end of the last step (without steps: of the trace), born in judged windows."""
    blocks: int
    bytes_at_end: int
    """Of these, still alive at the end of the trace."""
    units_with_survivors: int
    """Steps of judged windows that have blocks alive (of a trace without steps: windows)."""
    units_judged: int
    windows_with_survivors: int
    windows_judged: int
    confidence: float
    """From 0 to 1; see the module."""
    oldest_age: float
    """Of the oldest surviving block of the run after warm-up: steps or seconds."""
    seconds_per_unit: float
    sites: tuple[LeakingSite, ...]
    """The line that keeps the most bytes first."""
    path: tuple[Frame, ...]
    """The frames of user code under which nearly all its bytes are made (see `common_path`), but the first site."""
    path_share: float
    """Of the bytes: how many are made under that path."""

    @property
    def line(self) -> Site:
        """The line to look at: the site that makes most of it; where none does, the innermost line that calls all.

        A loss kept with its graph keeps tensors that are made at many lines of the model. None of these is wrong; the
        call that they share is where the reference is kept, or one step away from it.
        """
        shared = next((frame for frame in self.path if frame.line), None)
        if shared is None or self.sites[0].bytes >= MOST * self.bytes:
            return self.sites[0].site
        return Site(shared.filename, shared.line, shared.function, shared.source, user=True)

    @property
    def callers(self) -> tuple[Frame, ...]:
        """The frames of the path outside of `line`, innermost first."""
        named = [(frame.filename, frame.line) for frame in self.path]
        here = (self.line.filename, self.line.line)
        return self.path[named.index(here) + 1 :] if here in named else self.path


@dataclass(frozen=True)
class LeakVerdict:
    """What can be said of leaks on one device."""

    judged: bool
    """False: the run is too short to tell."""
    unit: str
    units: int
    """Steps, or windows of time, after the warm-up."""
    warmup: float
    """Steps or seconds."""
    leaks: tuple[Leak, ...]
    """Highest rate first."""


@dataclass(frozen=True)
class _Survivors:
    """The blocks that are live at the judged moment."""

    trace: Trace
    device: str
    windows: Windows
    blocks: pd.DataFrame
    sizes: npt.NDArray[np.int64]
    units: npt.NDArray[np.int64]
    """Of birth; negative in the warm-up."""
    sites: npt.NDArray[np.int64]
    """By block: its site, a number."""
    numbers: dict[tuple[int, ...], int]
    """The number of each site, by its key."""


@dataclass(frozen=True)
class _Candidate:
    """A site with survivors in nearly every window."""

    site: int
    rows: npt.NDArray[np.int64]
    """Its blocks that were born in judged windows."""
    units: frozenset[int]
    bytes: int
    windows: int
    """Into how many windows the run was divided to find it."""


def find_leaks(trace: Trace, device: str) -> LeakVerdict:
    """Judges one device of a trace."""
    windows = Windows.of(trace, device)
    if windows.too_short:
        return LeakVerdict(False, windows.unit, windows.units, windows.warmup, ())
    blocks = trace.live(windows.judged_at, device=device)
    numbers: dict[tuple[int, ...], int] = {}
    survivors = _Survivors(
        trace=trace,
        device=device,
        windows=windows,
        blocks=blocks,
        sizes=blocks["size"].to_numpy(np.int64),
        units=windows.units_of(blocks),
        sites=_site_numbers(trace, blocks, numbers),
        numbers=numbers,
    )
    candidates = _candidates(survivors)
    given_up = _given_up(survivors, [candidate.site for candidate in candidates])
    groups = _grouped([candidate for candidate in candidates if given_up[candidate.site] <= BALANCED])
    alive_at_end = trace.live("end", device=device)["birth_seq"].to_numpy(np.int64)
    leaks = [_leak(survivors, group, given_up, alive_at_end) for group in groups]
    ordered = tuple(sorted(leaks, key=lambda leak: -leak.rate))
    return LeakVerdict(True, windows.unit, windows.units, windows.warmup, ordered)


def _site_numbers(trace: Trace, blocks: pd.DataFrame, numbers: dict[tuple[int, ...], int]) -> npt.NDArray[np.int64]:
    """By block the number of its line of user code; sites that `numbers` does not have yet are added."""
    stacks, of_block = np.unique(blocks["stack"].to_numpy(np.int64), return_inverse=True)
    keys = [trace.stacks.key(int(stack), "line") if stack else () for stack in stacks]
    of_stack = np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)
    return of_stack[of_block]


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
                total = int(survivors.sizes[rows].sum())
                found[site] = _Candidate(site, rows, frozenset(units[rows].tolist()), total, count)
    return sorted(found.values(), key=lambda candidate: -candidate.bytes)


def _given_up(survivors: _Survivors, sites: list[int]) -> dict[int, float]:
    """By site the old bytes that died in the last quarter of the run, as a share of the new ones kept in it."""
    if not sites:
        return {}
    windows = survivors.windows
    quarter = windows.units * 3 // 4
    before = survivors.trace.live(int(windows.moments[max(quarter - 1, 0)]), device=survivors.device)
    # What is young at that moment may be in use, and dies soon in any program.
    old = windows.units_of(before) < quarter - max(windows.units // windows.counts[0], 1)
    died = old & ~np.isin(before["birth_seq"].to_numpy(np.int64), survivors.blocks["birth_seq"].to_numpy(np.int64))
    sites_before = _site_numbers(survivors.trace, before, survivors.numbers)
    sizes_before = before["size"].to_numpy(np.int64)
    recent = (survivors.units >= quarter) & (survivors.units < windows.first_unit_of_youngest(windows.counts[0]))
    shares = {}
    for site in sites:
        kept = int(survivors.sizes[(survivors.sites == site) & recent].sum())
        shares[site] = float(sizes_before[(sites_before == site) & died].sum()) / max(kept, 1)
    return shares


def _grouped(candidates: list[_Candidate]) -> list[list[_Candidate]]:
    """Sites whose blocks were born in the same steps, together; the order is kept."""
    groups: list[list[_Candidate]] = []
    for candidate in candidates:
        for group in groups:
            common = len(group[0].units & candidate.units)
            if common >= SAME_BIRTHS * len(group[0].units | candidate.units):
                group.append(candidate)
                break
        else:
            groups.append([candidate])
    return groups


def _leak(
    survivors: _Survivors, group: list[_Candidate], given_up: dict[int, float], alive_at_end: npt.NDArray[np.int64]
) -> Leak:
    trace, windows, first = survivors.trace, survivors.windows, group[0]
    judged_units = windows.first_unit_of_youngest(first.windows)
    length = judged_units * windows.length_of_unit
    rows = np.concatenate([candidate.rows for candidate in group])
    births = survivors.blocks["birth_seq"].to_numpy(np.int64)[rows]
    total = int(survivors.sizes[rows].sum())
    hits, confidence = _confidence(survivors, first)
    sites = tuple(_leaking_site(survivors, candidate, length) for candidate in group)
    path, path_share = common_path(trace, _bytes_by_stack(survivors, rows))
    if path and (path[0].filename, path[0].line) == (sites[0].site.filename, sites[0].site.line):
        path = path[1:]
    return Leak(
        device=survivors.device,
        unit=windows.unit,
        rate=total / length if length else 0.0,
        bytes=total,
        blocks=len(rows),
        bytes_at_end=int(survivors.sizes[rows][np.isin(births, alive_at_end)].sum()),
        units_with_survivors=len(first.units),
        units_judged=judged_units,
        windows_with_survivors=hits,
        windows_judged=int(windows.active_in(first.windows)[:-1].sum()),
        confidence=confidence * (1 - given_up[first.site]),
        oldest_age=(windows.units - int(survivors.units[rows].min())) * windows.length_of_unit,
        seconds_per_unit=windows.seconds_per_unit,
        sites=sites,
        path=path,
        path_share=path_share,
    )


def _confidence(survivors: _Survivors, candidate: _Candidate) -> tuple[int, float]:
    """In how many windows the site has survivors, and how sure one can be that it leaks."""
    windows, count = survivors.windows, candidate.windows
    active = windows.active_in(count)[:-1]
    window = windows.window_of(survivors.units[candidate.rows], count)
    per_unit = (np.bincount(window, minlength=count)[:-1] / windows.units_in(count)[:-1])[active]
    hits, judged, mean = int((per_unit > 0).sum()), len(per_unit), float(per_unit.mean())
    regularity = 1 / (1 + float(per_unit.std()) / mean) if mean else 0.0
    confidence = hits / judged * regularity * judged / (judged + 1)
    if windows.unit != "step":
        confidence *= _DOUBT
    integrity = survivors.trace.integrity
    if integrity.lost or integrity.missing_events or integrity.corrupt_blocks:
        confidence *= _DOUBT
    return hits, confidence


def _leaking_site(survivors: _Survivors, candidate: _Candidate, length: float) -> LeakingSite:
    by_stack = _bytes_by_stack(survivors, candidate.rows)
    stack = max(by_stack, key=by_stack.__getitem__)
    site = Site.of_stack(survivors.trace.stacks, stack)
    return LeakingSite(site, stack, candidate.bytes / length if length else 0.0, candidate.bytes, len(candidate.rows))


def _bytes_by_stack(survivors: _Survivors, rows: npt.NDArray[np.int64]) -> dict[int, int]:
    stacks, of_row = np.unique(survivors.blocks["stack"].to_numpy(np.int64)[rows], return_inverse=True)
    totals = np.zeros(len(stacks), dtype=np.int64)
    np.add.at(totals, of_row, survivors.sizes[rows])
    return dict(zip(stacks.tolist(), totals.tolist(), strict=True))
