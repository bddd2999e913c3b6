"""Growing buffers: one block, replaced again and again by a larger one (`buf = torch.cat([buf, x])`).

First the largest live block of each site is looked at over the run after its warm-up: at the end of each window and
once within it, at a position that differs from window to window. (A cache that is reset every 19 steps would seem to
grow slowly if it were looked at every 20.)

never smaller     at none of these positions smaller than at the one before: a cache that is reset is not a leak
coverage          the share of the windows in which the site got a larger block and had no more blocks than before; at
                  least 80 %
not over          as for survivors (see `Windows.is_over`): a buffer that has reached its bound is not a leak
a buffer          and not a value that is allocated afresh each time and happens to get larger: see below
one finding       sites that grew at the same positions; it names the one that is allocated first each time
confidence        coverage x windows / (windows + 1)

A buffer that doubles each time is replaced too seldom to be judged.

Then buffers, which something is appended to, are distinguished from values that get larger because the inputs of a
curriculum do:

made of the last
    When a block was born, the one that it replaced was still live, to be copied, and was smaller; one of the same size
    goes later, if at all. Inputs that get longer in stages mostly replace a block by one of the same size; inputs that
    are local to a function are gone before the next are allocated. Judged at some births of each site; nearly all must
    agree.
grows alone
    Longer inputs make everything larger that is computed from them. Everything else that the program allocates grows,
    in total, by less than a quarter of what the site's largest block does. Other buffers (values next to keys) do not
    count, nor do those that are made of the last and of something new, if enough was new to be appended to all of them.
made of something new
    Each time it grew by a block, or by an equal part of a block (`chunk`), that was allocated since the last time.
from nothing
    A buffer that is read as a whole (keys that are repeated for each head) does not grow alone. Then it must be made of
    something new, and at the rate at which it grew it was empty, or nearly so, when the recording began.

Two cases are mistaken: inputs that get longer in every step to the very end of the run, are held past the end of the
step, and from which nothing else is computed, look like a buffer; a buffer that was large at the beginning, and from
which as much is allocated each time, looks like such inputs and is not found.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import numpy.typing as npt
import pandas as pd

from ...reading.recorded import RecordedTrace
from ...reading.sites import Site, SiteNumbers, bytes_by_stack
from .leak import GROWING, LEAST_COVERAGE, Leak, LeakingSite, certainty, grouped_by_births
from .paths import CallTree, common_path
from .windows import Windows

_IRREGULAR = (math.sqrt(5) - 1) / 2
"""The multiples of the golden ratio share no period with anything that a program does."""
_FEW = 6
"""Positions that suffice to see that no block grows."""
_EXAMINED = 20
"""Most sites that are examined, those that grow the most: longer inputs may make hundreds grow."""
_ORIGIN = 0.1
"""A site may be the origin of another's growth if it grows by at least this share of it."""
_BIRTHS = 6
"""Births of each site that are examined."""
_FOLLOWED = 200_000
"""Events, those of a step or two, within which the replaced block must be freed."""
_CHUNK = 5_000
_FREES = ("free_requested", "free_completed")
_NOTHING = 0.15
"""A buffer may have begun with at most this share of its last size."""
_BLOCK_COLUMNS = ("address", "nbytes", "allocated", "stack_id", "birth_seq", "birth_ns")
_PARTS = 4
"""Most equal parts of a block, one of which may have been appended."""
_ALONE = 0.25
"""A buffer grows alone if everything else grows by less than this share of its own growth."""
_ALIKE = 0.5
"""What grows by at least this share of a buffer's relative growth grows with it."""


@dataclass(frozen=True)
class _Looks:
    """The largest block of each site at each position: positions x sites, 0 if there is none."""

    positions: tuple[int, ...]
    """Events: each position is the state after one."""
    units: npt.NDArray[np.int64]
    """The unit that each position is in; -1: the end of the warm-up."""
    sizes: npt.NDArray[np.int64]
    births: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]
    """How many blocks the site has."""

    @property
    def grown(self) -> npt.NDArray[np.bool_]:
        """At each position but the first: whether the site has a larger block than before, and not more blocks."""
        return (np.diff(self.sizes, axis=0) > 0) & (np.diff(self.counts, axis=0) <= 0)


@dataclass(frozen=True)
class _Growing:
    """A site whose largest block is replaced by ever larger ones."""

    site: int
    looks: npt.NDArray[np.int64]
    """The positions at which a larger block had replaced the one before."""
    growth: npt.NDArray[np.int64]
    """By how much, at each of them."""
    units: npt.NDArray[np.int64]
    """The units that these positions are in."""
    birth: int
    """The event that allocated the last of its blocks."""
    windows: int
    """Into how many windows the run was divided to find it."""


def growing_leaks(
    trace: RecordedTrace, device: str, windows: Windows, numbers: SiteNumbers, free: int | None
) -> list[Leak]:
    """The leaks of this kind on a device, unordered. free: see `leak.room`."""
    stacks = _stacks_that_may_grow(trace, device, windows)
    if not stacks:
        return []
    positions, units = _positions(windows)
    # In most programs no block grows all the time, which a few positions show.
    few = slice(None, None, max(len(positions) // _FEW, 1))
    if not len(_only_larger(_look(trace, device, positions[few], units[few], numbers, stacks))):
        return []
    looks = _look(trace, device, positions, units, numbers, stacks)
    candidates = [found for site in _only_larger(looks).tolist() if (found := _growing(site, looks, windows))]
    candidates = sorted(candidates, key=lambda found: -int(found.growth.sum()))[:_EXAMINED]
    replacements = {found.site: _replacements(found, looks) for found in candidates}
    buffers = _buffers(trace, device, windows, numbers, replacements)
    kept = [found for found in candidates if found.site in buffers]
    groups = grouped_by_births(kept, lambda found: found.looks)
    return [_leak(trace, device, windows, numbers, group, free) for group in groups]


def _stacks_that_may_grow(trace: RecordedTrace, device: str, windows: Windows) -> list[int]:
    """All stacks of the lines that got a block larger than all before in nearly all windows. A line of which a larger
    one was seen only in some cannot have grown, and most of the time that saves looking at what was live."""
    lives = trace.replay.long_lives(device)
    grown = lives.growths
    if not len(grown["cell"]) or not windows.units:
        return []
    begins = lives.begins.astype(np.int64)
    ends = np.append(begins[1:] - 1, lives.last_allocation)
    # A cell may reach over several windows: it counts for all of them.
    first, last = (np.searchsorted(windows.ends, events[grown["cell"]], side="left") for events in (begins, ends))
    in_time = (ends[grown["cell"]] > windows.begin) & (begins[grown["cell"]] <= windows.judged_at)
    lines = grown["line"][in_time]
    first, last = (np.minimum(units[in_time], windows.units - 1) for units in (first, last))
    growing: set[int] = set()
    for count in windows.counts:
        changes = np.zeros((int(lines.max(initial=-1)) + 1, count + 1), np.int64)
        np.add.at(changes, (lines, windows.window_of(first, count)), 1)
        np.add.at(changes, (lines, windows.window_of(last, count) + 1), -1)
        covered = (np.cumsum(changes[:, :-1], axis=1) > 0).sum(axis=1)
        growing.update(np.flatnonzero(covered >= LEAST_COVERAGE * count).tolist())
    if not growing:
        return []
    stacks: list[int] = np.flatnonzero(np.isin(trace.stacks.line_numbers, list(growing))).tolist()
    return stacks


def undecided_buffers(
    trace: RecordedTrace, device: str, windows: Windows, numbers: SiteNumbers
) -> list[tuple[int, int]]:
    """Of a run most of which is folded: lines, by a stack of each and the bytes of their largest block, that got a
    larger one than ever before all along, and still have it. They may be buffers; that is not to be seen any more."""
    stacks = _stacks_that_may_grow(trace, device, windows)
    if not stacks:
        return []
    blocks = _live_blocks(trace, device, windows.judged_at, numbers, stacks)
    totals = trace.stack_totals(windows.judged_at, device=device)
    largest = totals["largest"].astype(np.int64).groupby(numbers.of(totals["stack_id"].to_numpy(np.int64))).max()
    found = []
    for site, of_site in blocks.groupby("site"):
        sizes = of_site["nbytes"].to_numpy(np.int64)
        if int(sizes.max()) == int(largest.get(site, 0)):
            found.append((int(of_site["stack_id"].to_numpy(np.int64)[sizes.argmax()]), int(sizes.max())))
    return found


def _look(
    trace: RecordedTrace,
    device: str,
    positions: tuple[int, ...],
    units: npt.NDArray[np.int64],
    numbers: SiteNumbers,
    stacks: Sequence[int],
) -> _Looks:
    """The largest blocks of these stacks' lines at these positions."""
    tables: list[tuple[npt.NDArray[np.int64], ...]] = []
    for position in positions:
        blocks = _live_blocks(trace, device, position, numbers, stacks)
        sites, sizes, births = (blocks[name].to_numpy() for name in ("site", "nbytes", "birth_seq"))
        order = np.lexsort((births, sizes, sites))
        of_site, first, counts = np.unique(sites[order], return_index=True, return_counts=True)
        largest = order[first + counts - 1]
        tables.append((of_site, sizes[largest], births[largest], counts))
    shape = len(positions), 1 + max((int(table[0].max()) for table in tables if len(table[0])), default=-1)
    looks = _Looks(positions, units, *(np.zeros(shape, np.int64) for _ in range(3)))
    for row, (of_site, *columns) in enumerate(tables):
        looks.sizes[row, of_site], looks.births[row, of_site], looks.counts[row, of_site] = columns
    return looks


def _positions(windows: Windows) -> tuple[tuple[int, ...], npt.NDArray[np.int64]]:
    """Where to look, and the unit of each position: the end of the warm-up, and in each window one position and its
    end."""
    count = windows.counts[0]
    lengths = windows.units_in(count)
    within = np.arange(count) * _IRREGULAR % 1
    ends = np.cumsum(lengths) - 1
    units = np.unique(np.concatenate([ends - (within * lengths).astype(np.int64), ends]))
    return (windows.begin, *windows.ends[units].tolist()), np.append(-1, units)


def _only_larger(looks: _Looks) -> npt.NDArray[np.int64]:
    """The sites whose largest block was replaced by a larger one and never by a smaller one."""
    return np.flatnonzero((np.diff(looks.sizes, axis=0) >= 0).all(axis=0) & looks.grown.any(axis=0))


def _growing(site: int, looks: _Looks, windows: Windows) -> _Growing | None:
    """The site, if it grew in nearly all windows, up to the last."""
    grown = np.flatnonzero(looks.grown[:, site]) + 1
    if not len(grown):
        return None
    units = looks.units[grown]
    if windows.is_over(units):
        return None
    for count in windows.counts:
        if len(np.unique(windows.window_of(units, count))) >= LEAST_COVERAGE * count:
            return _Growing(
                site, grown, np.diff(looks.sizes[:, site])[grown - 1], units, int(looks.births[-1, site]), count
            )
    return None


def _replacements(found: _Growing, looks: _Looks) -> list[_Replacement]:
    site = found.site
    following = [*found.looks.tolist()[1:], len(looks.positions) - 1]
    return [
        _Replacement(
            site=site,
            unit=int(looks.units[look]),
            birth=int(looks.births[look, site]),
            size=int(looks.sizes[look, site]),
            until=looks.positions[next_look],
        )
        for look, next_look in zip(found.looks.tolist(), following, strict=True)
    ]


def _leak(
    trace: RecordedTrace, device: str, windows: Windows, numbers: SiteNumbers, group: list[_Growing], free: int | None
) -> Leak:
    sites = [candidate.site for candidate in group]
    before = _live_blocks(trace, device, windows.begin, numbers)
    blocks = _live_blocks(trace, device, windows.judged_at, numbers)
    at_end = _live_blocks(trace, device, trace.end_seq - 1, numbers)
    blocks = blocks[blocks["site"].isin(sites)]
    total = int(blocks["allocated"].sum())
    length = max(windows.units * windows.length_of_unit, 1e-9)  # the times of a damaged trace may all be the same
    rate = (total - int(before["allocated"][before["site"].isin(sites)].sum())) / length
    parts = {
        site: _leaking_site(trace, blocks[blocks["site"] == site], before[before["site"] == site], length)
        for site in sites
    }
    path, path_share = common_path(CallTree(trace.stacks, bytes_by_stack(blocks)))
    line = parts[_origin(group)].site
    if path and (path[0].filename, path[0].line) == (line.filename, line.line):
        path = path[1:]
    hits, judged, confidence = _confidence(trace, group[0], windows)
    return Leak(
        kind=GROWING,
        device=device,
        unit=windows.unit,
        judged_at=windows.judged_at,
        rate=rate,
        bytes=total,
        blocks=len(blocks),
        bytes_at_end=int(blocks["allocated"][blocks["birth_seq"].isin(at_end["birth_seq"])].sum()),
        blocks_at_onset=len(blocks),
        age=0.0,
        reached=0,
        died=0,
        never_died=False,
        onset=float(windows.before + windows.warmup),
        units_with_survivors=hits,
        units_judged=judged,
        confidence=confidence,
        oldest_age=(windows.units - int(windows.units_of(blocks).min())) * windows.length_of_unit,
        seconds_per_unit=windows.seconds_per_unit,
        forecast=None if free is None or rate <= 0 else free / rate * windows.seconds_per_unit,
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
    """The site that the others of its group may be computed from: the one that allocates first each time, among those
    that do not grow by much less than the others. In a cache of keys, the keys repeated for each head are computed from
    it, not the other way round.
    """
    most = max(candidate.growth.sum() for candidate in group)
    return min((found for found in group if found.growth.sum() >= _ORIGIN * most), key=lambda found: found.birth).site


def _leaking_site(trace: RecordedTrace, blocks: pd.DataFrame, before: pd.DataFrame, length: float) -> LeakingSite:
    by_stack = bytes_by_stack(blocks)
    stack = max(by_stack, key=by_stack.__getitem__)
    held = int(blocks["allocated"].sum())
    rate = (held - int(before["allocated"].sum())) / length
    return LeakingSite(Site.of_stack(trace.stacks, stack), stack, rate, held, len(blocks))


def _confidence(trace: RecordedTrace, candidate: _Growing, windows: Windows) -> tuple[int, int, float]:
    """In how many windows the site grew, out of how many, and how certain it is that it leaks."""
    hits, judged = len(np.unique(windows.window_of(candidate.units, candidate.windows))), candidate.windows
    return hits, judged, hits / (judged + 1) * certainty(trace, windows.unit != "second")


@dataclass(frozen=True)
class _Replacement:
    """A block that replaced a smaller one of its site."""

    site: int
    unit: int
    """The unit in which it was seen."""
    birth: int
    """Number of the event."""
    size: int
    until: int
    """Here it was replaced itself, or the run was over, so that the one it replaced should be gone. (A variable of the
    code that replaces it may hold that one for a while.)"""


@dataclass(frozen=True)
class _Smaller:
    """The block that was there before."""

    size: int
    birth: int


@dataclass(frozen=True)
class _Appended:
    """What was found at one birth."""

    by: int
    """By how much the block is larger than the one it was copied from."""
    new: int
    """Bytes of the blocks allocated in between that can be, or can contain, what was appended."""


def _buffers(
    trace: RecordedTrace,
    device: str,
    windows: Windows,
    numbers: SiteNumbers,
    replacements: Mapping[int, Sequence[_Replacement]],
) -> set[int]:
    """The sites, by number, that are buffers. replacements: those of each site, in order."""
    appended: dict[int, list[_Appended]] = {}
    for site, born in replacements.items():
        picked = np.unique(np.linspace(0, len(born) - 1, min(_BIRTHS, len(born))).round().astype(int))
        found = [_appended(trace, device, born[number], numbers) for number in picked]
        if _nearly_all(birth is not None for birth in found):
            appended[site] = [birth for birth in found if birth is not None]
    if not appended:
        return set()
    of_new = {site for site, births in appended.items() if _nearly_all(birth.new > 0 for birth in births)}
    grew = {site: replacements[site][-1].size - replacements[site][0].size for site in appended}
    totals = _QuarterTotals.of(trace, device, windows, numbers)

    def is_buffer(site: int) -> bool:
        births, born = appended[site], replacements[site]
        others = of_new - {site}
        if grew[site] + sum(grew[other] for other in others) > grew[site] * median(b.new / b.by for b in births):
            others = set()
        if not totals.everything_grows(born, median(birth.by for birth in births), others):
            return True
        return site in of_new and _began_empty(born, windows)

    return {site for site in appended if is_buffer(site)}


def _live_blocks(
    trace: RecordedTrace, device: str, at: int, numbers: SiteNumbers, stacks: Sequence[int] | None = None
) -> pd.DataFrame:
    """The blocks that are live at a position: address, nbytes (requested), allocated, stack_id, site (its number),
    birth_seq, birth_ns. stacks: only what these have made."""
    blocks = trace.replay.live(at + 1, device, stacks)
    columns = {name: blocks[name].to_numpy(np.int64) for name in _BLOCK_COLUMNS}
    return pd.DataFrame({**columns, "site": numbers.of(columns["stack_id"])})


def _appended(trace: RecordedTrace, device: str, replacement: _Replacement, numbers: SiteNumbers) -> _Appended | None:
    """How a block came to be, if it was copied from the smaller one that it replaced; else None."""
    there = _live_blocks(trace, device, replacement.birth, numbers)
    there = there[there["birth_seq"] < replacement.birth]
    last = _replaced(trace, device, replacement, there[there["site"] == replacement.site])
    if last is None:
        return None
    grew = replacement.size - last.size
    new = there["nbytes"][there["birth_seq"] > last.birth]
    return _Appended(grew, int(new[(new % grew == 0) & (new <= _PARTS * grew)].sum()))


def _replaced(trace: RecordedTrace, device: str, replacement: _Replacement, of_site: pd.DataFrame) -> _Smaller | None:
    """The block that a block replaced. of_site: those of its site that were live when it was born."""
    # The largest: what is appended may be allocated at the same line, and freed earlier.
    last: _Smaller | None = None
    there = of_site[of_site["nbytes"] <= replacement.size].set_index("address")[["nbytes", "birth_seq"]]
    sizes, births = (there[name].to_dict() for name in ("nbytes", "birth_seq"))
    span = {"since": replacement.birth, "until": min(replacement.until, replacement.birth + _FOLLOWED)}
    for frees in trace.iter_events(_CHUNK, columns=("device", "address"), kinds=_FREES, **span):
        for address in frees.loc[frees["device"] == device, "address"].tolist():
            size = sizes.pop(address, 0)
            if size == replacement.size:
                return last
            if size and (last is None or size > last.size):
                last = _Smaller(size, births[address])
        if last is not None and max(sizes.values(), default=0) <= last.size:
            return last
    return last


def _nearly_all(witnesses: Iterable[bool]) -> bool:
    answers = list(witnesses)
    return sum(answers) >= LEAST_COVERAGE * len(answers)


def _began_empty(born: Sequence[_Replacement], windows: Windows) -> bool:
    """Whether a buffer, extrapolated at its rate, had next to nothing when the recording began."""
    rate = (born[-1].size - born[0].size) / max(born[-1].unit - born[0].unit, 1)
    units = born[-1].unit + 1 + windows.warmup + windows.before
    return born[-1].size - rate * units <= _NOTHING * born[-1].size


@dataclass(frozen=True)
class _QuarterTotals:
    """What each stack allocated in the first and in the last quarter of the run after its warm-up.

    It compares mean sizes, so that what is only allocated more often, as in an evaluation, does not count as larger.
    """

    before: pd.Series[float]
    """Mean size of a block of each stack that allocated in both quarters."""
    after: pd.Series[float]
    blocks: pd.Series[int]
    """Allocated in the last quarter."""
    sites: npt.NDArray[np.int64]
    """The site of each stack."""
    largest: tuple[pd.Series[int], ...]
    """The largest block of each site at the beginning and end of the first quarter, and of the last one."""

    @classmethod
    def of(cls, trace: RecordedTrace, device: str, windows: Windows, numbers: SiteNumbers) -> _QuarterTotals:
        quarter = max(windows.units // 4, 1)
        first_quarter = windows.begin, int(windows.ends[quarter - 1])
        last_quarter = int(windows.ends[-1 - quarter]), windows.judged_at
        first, last = _allocated(trace, device, *first_quarter), _allocated(trace, device, *last_quarter)
        both = last.join(first.add_suffix("_before"), how="inner")
        both = both[(both["allocations_before"] > 0) & (both["allocations"] > 0)]
        return cls(
            before=both["bytes_before"] / both["allocations_before"],
            after=both["bytes"] / both["allocations"],
            blocks=both["allocations"],
            sites=numbers.of(both.index.to_series()),
            largest=tuple(
                _live_blocks(trace, device, position, numbers).groupby("site")["nbytes"].max()
                for position in (*first_quarter, *last_quarter)
            ),
        )

    def everything_grows(self, born: Sequence[_Replacement], by: float, buffers: set[int]) -> bool:
        """Whether everything else that is allocated got larger between the two quarters, in bytes, by at least `_ALONE`
        of what a buffer did.

        by: by how much most of its replacements are larger than the last; buffers: the sites of other buffers.
        """
        site = born[0].site
        # By its growth, not by time: the work may be slower in one quarter than in the other.
        first, second, third, last = (int(largest.get(site, 0)) for largest in self.largest)
        early, late = (first + second) / 2, (third + last) / 2
        larger = late - early
        # How often it was replaced in the last quarter; at most as often as its line allocated.
        times = min((last - third) / by, float(self.blocks[self.sites == site].sum()))
        alike = (self.after >= self.before * (1 + _ALIKE * larger / max(early, 1))) & ~np.isin(
            self.sites, list(buffers)
        )
        # The buffer is included, since its stack may also be that of other blocks of the same line.
        everything = float(((self.after - self.before) * self.blocks)[alike].sum())
        return everything >= (1 + _ALONE) * larger * times


def _allocated(trace: RecordedTrace, device: str, begin: int, end: int) -> pd.DataFrame:
    """What each stack (the index) allocated between two positions: allocations, bytes."""
    first, last = (
        trace.stack_totals(at, device=device).set_index("stack_id")[["allocations", "bytes"]].astype(np.int64)
        for at in (begin, end)
    )
    return last.sub(first, fill_value=0)
