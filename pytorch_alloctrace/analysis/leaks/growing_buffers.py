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

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ...reading.positions import Range
from ...reading.recorded import FREES, RecordedTrace
from ...reading.sites import Site, bytes_by_stack
from ...reading.table import Table, maxima, sums
from .call_paths import CallTree, common_path
from .largest_blocks import LargestOverRun, largest_of, positions_in, stacks_that_may_grow
from .leak import (
    GROWING,
    LEAST_COVERAGE,
    Leak,
    LeakingSite,
    certainty,
    grouped_by_births,
)
from .windows import Windows

if TYPE_CHECKING:
    from ..evidence import PartEvidence


_EXAMINED = 20
"""Most sites that are examined, those that grow the most: longer inputs may make hundreds grow."""
_ORIGIN = 0.1
"""A site may be the origin of another's growth if it grows by at least this share of it."""
_BIRTHS = 6
"""Births of each site that are examined."""
_FOLLOWED = 200_000
"""Events, those of a step or two, within which the replaced block must be freed."""
_CHUNK = 5_000
_NOTHING = 0.15
"""A buffer may have begun with at most this share of its last size."""
_PARTS = 4
"""Most equal parts of a block, one of which may have been appended."""
_ALONE = 0.25
"""A buffer grows alone if everything else grows by less than this share of its own growth."""
_ALIKE = 0.5
"""What grows by at least this share of a buffer's relative growth grows with it."""


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


def growing_leaks(part: PartEvidence, free: int | None) -> list[Leak]:
    """Return the leaks of this kind in a part of the run of a device, unordered. free: see `leak.room`."""
    windows, numbers = part.windows, part.device.numbers
    if windows is None or not part.first_looks:
        return []
    first = [look.result for look in part.first_looks]
    few = [look.until - 1 for look in part.first_looks]
    if not len(LargestOverRun.of(few, np.zeros(len(few), np.int64), first).only_larger):
        return []
    positions, units = positions_in(windows)
    largest = [largest_of(part.blocks_at(position, part.growing_stacks), numbers) for position in positions]
    looks = LargestOverRun.of(positions, units, largest)
    candidates = [growing for site in looks.only_larger.tolist() if (growing := _growing(site, looks, windows))]
    candidates = sorted(candidates, key=lambda growing: -int(growing.growth.sum()))[:_EXAMINED]
    replacements = {growing.site: _replacements(growing, looks) for growing in candidates}
    buffers = _buffers(part, windows, replacements)
    groups = grouped_by_births([growing for growing in candidates if growing.site in buffers], lambda one: one.looks)
    return [_leak(part, windows, group, free) for group in groups]


def undecided_buffers(part: PartEvidence) -> list[tuple[int, int]]:
    """Return, of a run most of which is compacted: lines, by a stack of each and the bytes of their largest block, that
    got a larger one than ever before all along, and still have it. They may be buffers; that is not to be seen any
    more."""
    trace, device, numbers = part.device.trace, part.device.device, part.device.numbers
    windows = Windows.of(trace, part.clock)
    stacks = stacks_that_may_grow(trace, device, windows)
    if not stacks:
        return []
    blocks = part.blocks_at(windows.judged_at, stacks)
    totals = part.stacks.result
    lines = numbers.of(totals["stack_id"])
    largest = maxima(lines, totals["largest_bytes"], int(lines.max(initial=-1)) + 1)
    sites = numbers.of(blocks["stack_id"])
    buffers = []
    for site in np.unique(sites).tolist():
        sizes = blocks["requested_bytes"][sites == site]
        if int(sizes.max()) == (int(largest[site]) if site < len(largest) else 0):
            buffers.append((int(blocks["stack_id"][sites == site][sizes.argmax()]), int(sizes.max())))
    return buffers


def _growing(site: int, looks: LargestOverRun, windows: Windows) -> _Growing | None:
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


def _replacements(found: _Growing, looks: LargestOverRun) -> list[_Replacement]:
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


def _leak(part: PartEvidence, windows: Windows, group: list[_Growing], free: int | None) -> Leak:
    trace, device = part.device.trace, part.device.device
    sites = [candidate.site for candidate in group]
    before, blocks = (_sited(part.blocks_at(event), part) for event in (windows.begin, windows.judged_at))
    blocks = blocks.take(np.isin(blocks["site"], sites))
    total = int(blocks["block_bytes"].sum())
    length = max(windows.units * windows.length_of_unit, 1e-9)  # the times of a damaged trace may all be the same
    rate = (total - int(before["block_bytes"][np.isin(before["site"], sites)].sum())) / length
    parts = {
        site: _leaking_site(trace, blocks.take(blocks["site"] == site), before.take(before["site"] == site), length)
        for site in sites
    }
    path, path_share = common_path(
        CallTree(trace.stacks, bytes_by_stack(blocks["stack_id"], blocks["requested_bytes"]))
    )
    line = parts[_origin(group)].site
    if path and (path[0].filename, path[0].line) == (line.filename, line.line):
        path = path[1:]
    hits, judged, confidence = _confidence(trace, group[0], windows)
    return Leak(
        kind=GROWING,
        device=device,
        unit=windows.unit,
        judged_at=windows.judged_at,
        bytes_per_unit=rate,
        allocated_bytes=total,
        blocks=len(blocks),
        allocated_bytes_at_end=int(
            blocks["block_bytes"][np.isin(blocks["alloc_seq"], part.device.born_at_end.result)].sum()
        ),
        blocks_at_onset=len(blocks),
        age=0.0,
        reached=0,
        died=0,
        never_died=False,
        onset=float(windows.before + windows.warmup),
        units_with_survivors=hits,
        units_judged=judged,
        confidence=confidence,
        oldest_age=(windows.units - int(windows.units_of(blocks["alloc_seq"]).min())) * windows.length_of_unit,
        seconds_per_unit=windows.seconds_per_unit,
        forecast_seconds=None if free is None or rate <= 0 else free / rate * windows.seconds_per_unit,
        sites=tuple(sorted(parts.values(), key=lambda part: -part.allocated_bytes)),
        line=line,
        path=path,
        path_share=path_share,
        allocated_bytes_over_run=Leak.buffers_live(
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


def _leaking_site(trace: RecordedTrace, blocks: Table, before: Table, length: float) -> LeakingSite:
    by_stack = bytes_by_stack(blocks["stack_id"], blocks["requested_bytes"])
    stack = max(by_stack, key=by_stack.__getitem__)
    held = int(blocks["block_bytes"].sum())
    rate = (held - int(before["block_bytes"].sum())) / length
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


def _buffers(part: PartEvidence, windows: Windows, replacements: Mapping[int, Sequence[_Replacement]]) -> set[int]:
    """The sites, by number, that are buffers. replacements: those of each site, in order."""
    appended: dict[int, list[_Appended]] = {}
    for site, born in replacements.items():
        picked = np.unique(np.linspace(0, len(born) - 1, min(_BIRTHS, len(born))).round().astype(int))
        found = [_appended(part, born[number]) for number in picked]
        if _nearly_all(birth is not None for birth in found):
            appended[site] = [birth for birth in found if birth is not None]
    if not appended:
        return set()
    of_new = {site for site, births in appended.items() if _nearly_all(birth.new > 0 for birth in births)}
    grew = {site: replacements[site][-1].size - replacements[site][0].size for site in appended}
    totals = _QuarterTotals.of(part, windows)

    def is_buffer(site: int) -> bool:
        births, born = appended[site], replacements[site]
        others = of_new - {site}
        if grew[site] + sum(grew[other] for other in others) > grew[site] * median(b.new / b.by for b in births):
            others = set()
        if not totals.everything_grows(born, median(birth.by for birth in births), others):
            return True
        return site in of_new and _began_empty(born, windows)

    return {site for site in appended if is_buffer(site)}


def _sited(blocks: Table, part: PartEvidence) -> Table:
    """The same blocks with the column site, its number."""
    return blocks.assign(site=part.device.numbers.of(blocks["stack_id"]))


def _appended(part: PartEvidence, replacement: _Replacement) -> _Appended | None:
    """How a block came to be, if it was copied from the smaller one that it replaced; else None."""
    there = _sited(part.blocks_at(replacement.birth), part)
    there = there.take(there["alloc_seq"] < replacement.birth)
    last = _replaced(part, replacement, there.take(there["site"] == replacement.site))
    if last is None:
        return None
    grew = replacement.size - last.size
    new = there["requested_bytes"][there["alloc_seq"] > last.birth]
    return _Appended(grew, int(new[(new % grew == 0) & (new <= _PARTS * grew)].sum()))


def _replaced(part: PartEvidence, replacement: _Replacement, of_site: Table) -> _Smaller | None:
    """The block that a block replaced. of_site: those of its site that were live when it was born."""
    # The largest: what is appended may be allocated at the same line, and freed earlier.
    trace, last = part.device.trace, None
    there = of_site.take(of_site["requested_bytes"] <= replacement.size)
    addresses = there["address"].tolist()
    sizes = dict(zip(addresses, there["requested_bytes"].tolist(), strict=True))
    births = dict(zip(addresses, there["alloc_seq"].tolist(), strict=True))
    span = Range(replacement.birth + 1, min(replacement.until, replacement.birth + _FOLLOWED) + 1)
    for frees in trace.iter_events(span, FREES, chunk=_CHUNK):
        for address in frees["address"][trace.devices_of(frees) == part.device.device].tolist():
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

    before: npt.NDArray[np.float64]
    """Mean size of a block of each stack that allocated in both quarters."""
    after: npt.NDArray[np.float64]
    blocks: npt.NDArray[np.int64]
    """Allocated in the last quarter."""
    sites: npt.NDArray[np.int64]
    """The site of each stack."""
    largest: tuple[dict[int, int], ...]
    """The largest block of each site at the beginning and end of the first quarter, and of the last one."""

    @classmethod
    def of(cls, part: PartEvidence, windows: Windows) -> _QuarterTotals:
        quarter = max(windows.units // 4, 1)
        first_quarter = windows.begin, int(windows.ends[quarter - 1])
        last_quarter = int(windows.ends[-1 - quarter]), windows.judged_at
        stacks, first, last = _allocated_in_both(part, first_quarter, last_quarter)
        largest = []
        for position in (*first_quarter, *last_quarter):
            blocks = largest_of(part.blocks_at(position), part.device.numbers)
            largest.append(dict(zip(blocks.sites.tolist(), blocks.sizes.tolist(), strict=True)))
        return cls(
            before=first["total_bytes"] / first["allocations"],
            after=last["total_bytes"] / last["allocations"],
            blocks=last["allocations"],
            sites=part.device.numbers.of(stacks),
            largest=tuple(largest),
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


def _allocated_in_both(
    part: PartEvidence, *quarters: tuple[int, int]
) -> tuple[npt.NDArray[np.int64], dict[str, npt.NDArray[np.int64]], dict[str, npt.NDArray[np.int64]]]:
    """Return the stacks that allocated in both of two ranges of events, and what each allocated in the one and in the
    other: allocations, total_bytes."""
    totals = [[part.stacks_at(event) for event in quarter] for quarter in quarters]
    stacks = np.unique(np.concatenate([table["stack_id"] for pair in totals for table in pair]))
    names = ("allocations", "total_bytes")
    first, last = (
        {
            name: _by_stack(stacks, end["stack_id"], end[name]) - _by_stack(stacks, begin["stack_id"], begin[name])
            for name in names
        }
        for begin, end in totals
    )
    in_both = (first["allocations"] > 0) & (last["allocations"] > 0)
    chosen = ({name: quarter[name][in_both] for name in names} for quarter in (first, last))
    return stacks[in_both], next(chosen), next(chosen)


def _by_stack(
    stacks: npt.NDArray[np.int64], stack_ids: npt.NDArray[np.int64], values: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return the value of each of some stacks, in order; 0 for one that has none."""
    return sums(np.searchsorted(stacks, stack_ids), values, len(stacks))
