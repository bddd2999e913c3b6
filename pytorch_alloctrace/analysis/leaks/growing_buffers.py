"""Growing buffers: blocks that are replaced again and again by larger ones (`buf = torch.cat([buf, x])`).

First, the largest live block of each site is compared over the run after its warm-up. It is read at the end of each
window and at one position within it, which differs from window to window: a cache that is reset every 19 steps would
seem to grow slowly if it were read every 20. A site is a candidate if all of these hold:

never smaller     the largest block never shrinks: a cache that is reset is not a leak, nor are tokens
                  that are generated anew (see `block_sizes.restarts`)
coverage          in at least 80 % of the windows the site got a larger block and no additional blocks
still growing     the growth has not stopped (see `Windows.has_stopped`): the buffer has not reached a bound

Sites that grew at the same positions are one finding, named after the site that allocates first each time. The
confidence is coverage x windows / (windows + 1). A buffer that doubles each time is replaced too seldom to be judged.

Second, buffers are distinguished from inputs that get larger, as in a curriculum. A buffer is copied, and either grows
alone or is both appended from new blocks and began empty:

copied from the previous block
    When a block was allocated, the smaller block that it replaced was still live, to be copied, and was freed before
    any block of the same size. Inputs that get longer in stages mostly replace a block of the same size. Inputs that
    are local to a function are freed before the next are allocated. Nearly all examined replacements must agree.
grows alone
    Longer inputs enlarge everything that is computed from them. Everything else that the program allocates grows, in
    total, by less than a quarter of the growth of the site's largest block. Other buffers (values next to keys) do not
    count, if enough was allocated to be appended to all of them.
appended from new blocks
    Each time, the buffer grew by the size of a block, or of an equal part of a block (`torch.chunk`), that was
    allocated since the last time.
began empty
    A buffer that is read in full (keys that are repeated for each head) does not grow alone. Extrapolated back at its
    rate, it must have been nearly empty when the recording began.

Two cases are misjudged. Inputs look like a buffer if they get longer in every step to the end of the run, outlive the
step, and nothing else is computed from them. A buffer looks like such inputs, and is missed, if it was large at the
beginning and as much is allocated from it each time.
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
from .block_sizes import restarts
from .call_paths import CallTree, find_common_path
from .forecast import FreeBytes
from .largest_blocks import LargestOverRun, choose_positions, find_growing_stacks, find_largest_blocks
from .leak import GROWING, MIN_COVERAGE, Leak, LeakingSite, compute_certainty, group_by_times
from .windows import Windows

if TYPE_CHECKING:
    from ..evidence import PartEvidence

_COPIES = 2
"""Copies of a buffer that are live while it grows: `torch.cat` makes the new one from the old one."""
_MAX_SITES = 20
"""Maximum number of sites examined, those that grow the most: longer inputs may make hundreds grow."""
_MIN_ORIGIN_SHARE = 0.1
_MAX_REPLACEMENTS = 6
_MAX_EVENTS = 200_000
"""Maximum number of events until the replaced block must be freed: a step or two."""
_CHUNK_EVENTS = 5_000
_MAX_INITIAL_SHARE = 0.15
"""Maximum size of a buffer at the beginning of the recording, as a share of its last size."""
_MAX_CHUNK_PARTS = 4
"""Maximum number of equal parts of a block of which one is appended."""
_MAX_OTHER_GROWTH = 0.25
"""Growth of everything else, as a share of the growth of a buffer, below which the buffer grows alone."""
_MIN_RELATIVE_GROWTH = 0.5
"""Minimum relative growth of a stack, as a share of the buffer's, for the stack to grow along with the buffer."""


@dataclass(frozen=True)
class _Candidate:
    site: int
    rows: npt.NDArray[np.int64]
    """Positions, as indices, at which a larger block had replaced the previous block."""
    growth: npt.NDArray[np.int64]
    """Growth at each of these positions, in bytes."""
    units: npt.NDArray[np.int64]
    alloc_seq: int
    windows: int


def find_growing_leaks(part: PartEvidence, free_bytes: FreeBytes | None) -> list[Leak]:
    """Return the growing buffers in a part of the run of a device. free_bytes: see `estimate_free_bytes`."""
    windows, numbers = part.windows, part.device.numbers
    if windows is None or not part.first_largest_blocks:
        return []
    first_blocks = [visit.result for visit in part.first_largest_blocks]
    first_positions = [visit.until - 1 for visit in part.first_largest_blocks]
    if not len(
        LargestOverRun.join(first_positions, np.zeros(len(first_positions), np.int64), first_blocks).monotonic_sites
    ):
        return []
    positions, units = choose_positions(windows)
    blocks = [find_largest_blocks(part.blocks_at(position, part.growing_stacks), numbers) for position in positions]
    largest = LargestOverRun.join(positions, units, blocks)
    candidates = [
        candidate
        for site in largest.monotonic_sites.tolist()
        if (candidate := _select_candidate(site, largest, windows))
    ]
    candidates = sorted(candidates, key=lambda candidate: -int(candidate.growth.sum()))[:_MAX_SITES]
    replacements = {candidate.site: _list_replacements(candidate, largest) for candidate in candidates}
    buffers = _select_buffers(part, windows, replacements)
    groups = group_by_times(
        [candidate for candidate in candidates if candidate.site in buffers and not restarts(part, candidate.site)],
        lambda candidate: candidate.rows,
    )
    return [_build_leak(part, windows, group, free_bytes) for group in groups]


def find_possible_buffers(part: PartEvidence) -> list[tuple[int, int]]:
    """Return a stack and the bytes of each line that may hold a growing buffer; only compacted events would tell."""
    trace, device, numbers = part.device.trace, part.device.device, part.device.numbers
    windows = Windows.divide(trace, part.clock)
    stacks = find_growing_stacks(trace, device, windows)
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


def _select_candidate(site: int, largest: LargestOverRun, windows: Windows) -> _Candidate | None:
    rows = np.flatnonzero(largest.has_grown[:, site]) + 1
    if not len(rows):
        return None
    units = largest.units[rows]
    if windows.has_stopped(units):
        return None
    for count in windows.window_counts:
        if len(np.unique(windows.window_of(units, count))) >= MIN_COVERAGE * count:
            return _Candidate(
                site, rows, np.diff(largest.sizes[:, site])[rows - 1], units, int(largest.alloc_seqs[-1, site]), count
            )
    return None


def _list_replacements(candidate: _Candidate, largest: LargestOverRun) -> list[_Replacement]:
    site = candidate.site
    next_rows = [*candidate.rows.tolist()[1:], len(largest.positions) - 1]
    return [
        _Replacement(
            site=site,
            unit=int(largest.units[row]),
            alloc_seq=int(largest.alloc_seqs[row, site]),
            size=int(largest.sizes[row, site]),
            until=largest.positions[next_row],
        )
        for row, next_row in zip(candidate.rows.tolist(), next_rows, strict=True)
    ]


def _count_by_site(blocks: Table, sites: Sequence[int]) -> npt.NDArray[np.int64]:
    return np.array([int((blocks["site"] == site).sum()) for site in sites], np.int64)


def _take_largest(blocks: Table, sites: Sequence[int], counts: npt.NDArray[np.int64]) -> Table:
    """Return the largest blocks of each site: while a buffer is replaced, the smaller one is live, too."""
    rows = []
    for site, count in zip(sites, counts.tolist(), strict=True):
        of_site = np.flatnonzero(blocks["site"] == site)
        rows.append(of_site[np.argsort(-blocks["block_bytes"][of_site], kind="stable")[:count]])
    return blocks.take(np.sort(np.concatenate(rows)))


def _build_leak(part: PartEvidence, windows: Windows, group: list[_Candidate], free_bytes: FreeBytes | None) -> Leak:
    trace, device = part.device.trace, part.device.device
    site_numbers = [candidate.site for candidate in group]
    before, blocks = (_add_sites(part.blocks_at(event), part) for event in (windows.begin, windows.judged_at))
    counts = [_count_by_site(table, site_numbers) for table in (before, blocks)]
    before, blocks = (
        _take_largest(table, site_numbers, np.maximum(np.minimum(*counts), 1)) for table in (before, blocks)
    )
    total = int(blocks["block_bytes"].sum())
    length = max(windows.units * windows.unit_length, 1e-9)  # the times of a corrupt trace may all be equal
    rate = (total - int(before["block_bytes"].sum())) / length
    lines, package_lines = trace.stacks.line_numbers, trace.stacks.package_line_numbers
    line_of, line_before = lines[blocks["stack_id"]], lines[before["stack_id"]]
    sites = {
        line: _build_site(trace, blocks.take(line_of == line), before.take(line_before == line), length)
        for line in np.unique(line_of).tolist()
    }
    path, path_share = find_common_path(
        CallTree(trace.stacks, bytes_by_stack(blocks["stack_id"], blocks["requested_bytes"]))
    )
    line = sites[int(line_of[blocks["site"] == _find_origin(group)][0])].site
    if path and (path[0].filename, path[0].line) == (line.filename, line.line):
        path = path[1:]
    growing_windows, judged_windows, confidence = _compute_confidence(trace, group[0], windows)
    return Leak(
        kind=GROWING,
        device=device,
        unit=windows.unit,
        judged_at=windows.judged_at,
        bytes_per_unit=rate,
        allocated_bytes=total,
        blocks=len(blocks),
        allocated_bytes_at_end=int(
            blocks["block_bytes"][np.isin(blocks["alloc_seq"], part.device.live_at_end.result)].sum()
        ),
        blocks_at_onset=len(blocks),
        age=0.0,
        reached=0,
        died=0,
        never_died=False,
        onset=windows.units_before + windows.warmup * windows.stride,
        units_with_survivors=growing_windows,
        units_judged=judged_windows,
        confidence=confidence,
        oldest_age=(windows.units - int(windows.units_of(blocks["alloc_seq"]).min())) * windows.unit_length,
        seconds_per_unit=windows.seconds_per_unit,
        forecast_seconds=(
            free_bytes.until_full(_COPIES) / rate * windows.seconds_per_unit
            if free_bytes is not None and rate > 0
            else None
        ),
        sites=tuple(sorted(sites.values(), key=lambda site: -site.allocated_bytes)),
        line=line,
        path=path,
        path_share=path_share,
        allocated_bytes_over_run=Leak.buffers_live(
            total,
            np.concatenate([candidate.units for candidate in group]),
            np.concatenate([candidate.growth for candidate in group]),
        ),
        block_stacks=tuple(np.flatnonzero(np.isin(package_lines, package_lines[blocks["stack_id"]])).tolist()),
    )


def _find_origin(group: list[_Candidate]) -> int:
    """Return the first site to allocate of those that grow enough: keys repeated per head are computed from a cache."""
    max_growth = max(candidate.growth.sum() for candidate in group)
    return min(
        (candidate for candidate in group if candidate.growth.sum() >= _MIN_ORIGIN_SHARE * max_growth),
        key=lambda candidate: candidate.alloc_seq,
    ).site


def _build_site(trace: RecordedTrace, blocks: Table, before: Table, length: float) -> LeakingSite:
    by_stack = bytes_by_stack(blocks["stack_id"], blocks["requested_bytes"])
    stack = max(by_stack, key=by_stack.__getitem__)
    total = int(blocks["block_bytes"].sum())
    rate = (total - int(before["block_bytes"].sum())) / length
    return LeakingSite(Site.of_stack(trace.stacks, stack), stack, rate, total, len(blocks))


def _compute_confidence(trace: RecordedTrace, candidate: _Candidate, windows: Windows) -> tuple[int, int, float]:
    """Return the number of windows in which the site grew, the number of all windows, and the confidence."""
    growing_windows, count = len(np.unique(windows.window_of(candidate.units, candidate.windows))), candidate.windows
    return growing_windows, count, growing_windows / (count + 1) * compute_certainty(trace, windows.unit != "second")


@dataclass(frozen=True)
class _Replacement:
    """A block that replaced a smaller block of its site."""

    site: int
    unit: int
    alloc_seq: int
    size: int
    """Requested bytes."""
    until: int
    """Event by which the replaced block should be freed, after the replacing code may have held it for a while: the
    next replacement, or the end of the run."""


@dataclass(frozen=True)
class _Predecessor:
    size: int
    alloc_seq: int


@dataclass(frozen=True)
class _Append:
    added_bytes: int
    new_bytes: int
    """Bytes of the blocks allocated since the predecessor that can be, or can contain, the appended data."""


def _select_buffers(
    part: PartEvidence, windows: Windows, replacements: Mapping[int, Sequence[_Replacement]]
) -> set[int]:
    appends: dict[int, list[_Append]] = {}
    for site, series in replacements.items():
        indices = np.unique(np.linspace(0, len(series) - 1, min(_MAX_REPLACEMENTS, len(series))).round().astype(int))
        examined = [_measure_append(part, series[index]) for index in indices]
        if _are_nearly_all(append is not None for append in examined):
            appends[site] = [append for append in examined if append is not None]
    if not appends:
        return set()
    from_new_blocks = {
        site for site, series in appends.items() if _are_nearly_all(append.new_bytes > 0 for append in series)
    }
    growth = {site: replacements[site][-1].size - replacements[site][0].size for site in appends}
    totals = _QuarterTotals.collect(part, windows)

    def is_buffer(site: int) -> bool:
        site_appends, site_replacements = appends[site], replacements[site]
        other_buffers = from_new_blocks - {site}
        if growth[site] + sum(growth[other] for other in other_buffers) > growth[site] * median(
            append.new_bytes / append.added_bytes for append in site_appends
        ):
            other_buffers = set()
        added_bytes = median(append.added_bytes for append in site_appends)
        if not totals.everything_grows(site_replacements, added_bytes, other_buffers):
            return True
        return site in from_new_blocks and _began_empty(site_replacements, windows)

    return {site for site in appends if is_buffer(site)}


def _add_sites(blocks: Table, part: PartEvidence) -> Table:
    return blocks.assign(site=part.device.numbers.of(blocks["stack_id"]))


def _measure_append(part: PartEvidence, replacement: _Replacement) -> _Append | None:
    """Return the growth of a block that was copied from the smaller block that it replaced; else None."""
    live = _add_sites(part.blocks_at(replacement.alloc_seq), part)
    live = live.take(live["alloc_seq"] < replacement.alloc_seq)
    predecessor = _find_predecessor(part, replacement, live.take(live["site"] == replacement.site))
    if predecessor is None:
        return None
    added_bytes = replacement.size - predecessor.size
    new_sizes = live["requested_bytes"][live["alloc_seq"] > predecessor.alloc_seq]
    return _Append(
        added_bytes,
        int(new_sizes[(new_sizes % added_bytes == 0) & (new_sizes <= _MAX_CHUNK_PARTS * added_bytes)].sum()),
    )


def _find_predecessor(part: PartEvidence, replacement: _Replacement, live_of_site: Table) -> _Predecessor | None:
    """Return the largest block of the site that was freed when a block replaced it; `live_of_site` were live before."""
    # The first freed block may be appended data, allocated at the same line.
    trace, predecessor = part.device.trace, None
    smaller = live_of_site.take(live_of_site["requested_bytes"] <= replacement.size)
    addresses = smaller["address"].tolist()
    sizes = dict(zip(addresses, smaller["requested_bytes"].tolist(), strict=True))
    alloc_seqs = dict(zip(addresses, smaller["alloc_seq"].tolist(), strict=True))
    searched = Range(replacement.alloc_seq + 1, min(replacement.until, replacement.alloc_seq + _MAX_EVENTS) + 1)
    for frees in trace.iter_events(searched, FREES, chunk=_CHUNK_EVENTS):
        for address in frees["address"][trace.devices_of(frees) == part.device.device].tolist():
            size = sizes.pop(address, 0)
            if size == replacement.size:
                return predecessor
            if size and (predecessor is None or size > predecessor.size):
                predecessor = _Predecessor(size, alloc_seqs[address])
        if predecessor is not None and max(sizes.values(), default=0) <= predecessor.size:
            return predecessor
    return predecessor


def _are_nearly_all(checks: Iterable[bool]) -> bool:
    results = list(checks)
    return sum(results) >= MIN_COVERAGE * len(results)


def _began_empty(replacements: Sequence[_Replacement], windows: Windows) -> bool:
    first, last = replacements[0], replacements[-1]
    rate = (last.size - first.size) / max(last.unit - first.unit, 1)
    units = last.unit + 1 + windows.warmup + windows.units_before
    return last.size - rate * units <= _MAX_INITIAL_SHARE * last.size


@dataclass(frozen=True)
class _QuarterTotals:
    """Allocations of each stack in the first and in the last quarter of the run after its warm-up.

    Mean sizes are compared: a stack that only allocates more often, as in an evaluation, does not grow.
    """

    before: npt.NDArray[np.float64]
    """Mean block size in the first quarter, in bytes, of each stack that allocated in both quarters."""
    after: npt.NDArray[np.float64]
    blocks: npt.NDArray[np.int64]
    """Number of blocks that each stack allocated in the last quarter."""
    sites: npt.NDArray[np.int64]
    largest: tuple[dict[int, int], ...]
    """Bytes of the largest block of each site at the beginning and end of the first and of the last quarter."""

    @classmethod
    def collect(cls, part: PartEvidence, windows: Windows) -> _QuarterTotals:
        quarter = max(windows.units // 4, 1)
        first_quarter = windows.begin, int(windows.ends[quarter - 1])
        last_quarter = int(windows.ends[-1 - quarter]), windows.judged_at
        stacks, first, last = _sum_common_stacks(part, first_quarter, last_quarter)
        largest = []
        for position in (*first_quarter, *last_quarter):
            blocks = find_largest_blocks(part.blocks_at(position), part.device.numbers)
            largest.append(dict(zip(blocks.sites.tolist(), blocks.sizes.tolist(), strict=True)))
        return cls(
            before=first["total_bytes"] / first["allocations"],
            after=last["total_bytes"] / last["allocations"],
            blocks=last["allocations"],
            sites=part.device.numbers.of(stacks),
            largest=tuple(largest),
        )

    def everything_grows(self, replacements: Sequence[_Replacement], added_bytes: float, buffers: set[int]) -> bool:
        """Return whether everything else but `buffers` grew along with a buffer between the two quarters."""
        site = replacements[0].site
        # By the growth, not by time: the program may run slower in one quarter than in the other.
        first_begin, first_end, last_begin, last_end = (int(largest.get(site, 0)) for largest in self.largest)
        early, late = (first_begin + first_end) / 2, (last_begin + last_end) / 2
        growth = late - early
        # At most the number of allocations of the line.
        replacement_count = min((last_end - last_begin) / added_bytes, float(self.blocks[self.sites == site].sum()))
        grows_along = (self.after >= self.before * (1 + _MIN_RELATIVE_GROWTH * growth / max(early, 1))) & ~np.isin(
            self.sites, list(buffers)
        )
        # The buffer is included, since its stack may also allocate other blocks of the same line.
        total_growth = float(((self.after - self.before) * self.blocks)[grows_along].sum())
        return total_growth >= (1 + _MAX_OTHER_GROWTH) * growth * replacement_count


def _sum_common_stacks(
    part: PartEvidence, *quarters: tuple[int, int]
) -> tuple[npt.NDArray[np.int64], dict[str, npt.NDArray[np.int64]], dict[str, npt.NDArray[np.int64]]]:
    """Return the stacks that allocated in both ranges of events, with their allocations and total_bytes in each."""
    totals = [[part.stacks_at(event) for event in quarter] for quarter in quarters]
    stacks = np.unique(np.concatenate([table["stack_id"] for pair in totals for table in pair]))
    names = ("allocations", "total_bytes")
    first, last = (
        {
            name: _sum_by_stack(stacks, end["stack_id"], end[name])
            - _sum_by_stack(stacks, begin["stack_id"], begin[name])
            for name in names
        }
        for begin, end in totals
    )
    in_both = (first["allocations"] > 0) & (last["allocations"] > 0)
    common = ({name: quarter[name][in_both] for name in names} for quarter in (first, last))
    return stacks[in_both], next(common), next(common)


def _sum_by_stack(
    stacks: npt.NDArray[np.int64], stack_ids: npt.NDArray[np.int64], values: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    return sums(np.searchsorted(stacks, stack_ids), values, len(stacks))
