"""Leaks made of judged lines: which lines are one finding, and the numbers of each.

one finding        lines whose blocks were allocated in the same units, under one call that the program repeats; or in
                   the loop that makes this call, as part of an autograd graph: a loss kept with its graph keeps many
                   other tensors. Two independent leaks in the same loop are two findings
rate               bytes of the blocks allocated since the onset that are old enough, divided by the length of that time
confidence         (1 - share freed after all) x evenness of allocations x n / (n + 1), where n is the number of
                   `CONFIDENCE_PARTS` with allocations. At most `MAX_CONFIDENCE_NEVER_FREED` if no block was ever
                   freed: a buffer may not be full yet
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...reading.recorded import RecordedTrace
from ...reading.sites import Frame, Site, StackIndex, bytes_by_stack
from .backlog import Backlog
from .call_paths import CallTree, find_common_path, find_line_to_inspect
from .forecast import FreeBytes
from .leak import BACKLOG, MIN_SHARED_TIMES, SURVIVORS, Leak, LeakingSite, compute_certainty
from .lifetimes import LifetimeEvidence
from .loops import LoopIndex
from .survivors import JudgedLine

MAIN_LINE_SHARE = 0.8
"""Minimum share of a leak's bytes for the line that allocates them to be the line to inspect."""
MIN_CODE_SHARE = 0.2
"""Minimum share of a leak's bytes that lines of code hold, for sites without code to come last."""
MAX_CONFIDENCE_NEVER_FREED = 0.85
BACKLOG_CONFIDENCE = 0.8
CONFIDENCE_PARTS = 24
_MAX_SAMPLES = 200


class _Group(NamedTuple):
    lines: list[JudgedLine]
    calls: Callable[[], list[int]]


@dataclass(frozen=True)
class LeakBuilder:
    trace: RecordedTrace
    lifetimes: LifetimeEvidence
    free_bytes: FreeBytes | None
    loops: LoopIndex
    live_at_end: npt.NDArray[np.int64]
    """Allocation events of all blocks that are live at the end of the trace, ascending."""

    @functools.cached_property
    def _is_at_end(self) -> npt.NDArray[np.bool_]:
        at_end, alloc_seqs = self.live_at_end, self.lifetimes.survivors.alloc_seqs
        if not len(at_end):
            return np.zeros(len(alloc_seqs), np.bool_)
        is_at_end: npt.NDArray[np.bool_] = at_end[np.searchsorted(at_end[:-1], alloc_seqs)] == alloc_seqs
        return is_at_end

    def build_survivor_leaks(self, lines: Sequence[JudgedLine]) -> list[Leak]:
        """Build the leaks of these lines, most bytes first."""
        groups: list[_Group] = []
        for line in lines:
            calls = functools.cache(functools.partial(self._list_calls, line))
            for group in groups:
                first = group.lines[0]
                if _has_same_times(first, line) and self._belong_together(first, group.calls(), line, calls()):
                    group.lines.append(line)
                    break
            else:
                groups.append(_Group([line], calls))
        return [self._build_leak(group.lines) for group in groups]

    def build_backlog_leak(self, backlog: Backlog) -> Leak:
        lifetimes, clock = self.lifetimes, self.lifetimes.clock
        survivors = lifetimes.survivors
        rows = survivors.rows_of_site[backlog.site]
        total = int(survivors.bytes[rows].sum())
        seconds = (lifetimes.judged_ns - self.trace.replay.time_before(backlog.since_event + 1)) / 1e9
        length = max(clock.length - backlog.since if clock.is_discrete else seconds, 1e-9)
        added_share = (int(backlog.counts[-1]) - int(backlog.counts[0])) / max(int(backlog.counts[-1]), 1)
        rate = total * added_share / length
        seconds_per_unit = seconds / length if clock.is_discrete else 1.0
        by_stack = _sum_by_stack(self.trace.stacks, lifetimes, rows)
        stack = max(by_stack, key=by_stack.__getitem__)
        site = Site.of_stack(self.trace.stacks, stack)
        path, path_share = self._find_path(CallTree(self.trace.stacks, by_stack), site)
        indices = np.linspace(0, len(backlog.counts) - 1, min(_MAX_SAMPLES, len(backlog.counts))).round().astype(int)
        bytes_per_block = total / max(len(rows), 1)
        return Leak(
            kind=BACKLOG,
            device=lifetimes.device,
            unit=clock.unit,
            judged_at=clock.judged_at,
            bytes_per_unit=rate,
            allocated_bytes=total,
            blocks=len(rows),
            allocated_bytes_at_end=self._sum_bytes_at_end(rows),
            blocks_at_onset=int(backlog.counts[0]),
            age=0.0,
            reached=0,
            died=int(lifetimes.freed_blocks.counts[lifetimes.freed_blocks.rows_of_site[backlog.site]].sum()),
            never_died=False,
            onset=clock.first_step + backlog.since,
            units_with_survivors=0,
            units_judged=int(clock.length),
            confidence=BACKLOG_CONFIDENCE * compute_certainty(self.trace, clock.is_discrete),
            oldest_age=self._to_shown_unit(clock.length - float(survivors.alloc_times[rows].min())),
            seconds_per_unit=seconds_per_unit,
            forecast_seconds=self._seconds_until_full(rate, seconds_per_unit),
            sites=(LeakingSite(site, stack, rate, total, len(rows)),),
            line=site,
            path=path,
            path_share=path_share,
            allocated_bytes_over_run=tuple((backlog.counts[indices] * bytes_per_block).astype(np.int64).tolist()),
        )

    def _build_leak(self, group: list[JudgedLine]) -> Leak:
        lifetimes, clock, first = self.lifetimes, self.lifetimes.clock, group[0]
        survivors = lifetimes.survivors
        rows = np.concatenate([line.rows for line in group])
        total = int(survivors.bytes[rows].sum())
        onset_ns = int(survivors.alloc_ns[first.rows].min())
        length = self._measure_length(first.onset, first.last, onset_ns)
        rate = float(total / length)
        seconds_per_unit = self._seconds_per_unit(first.onset, onset_ns)
        by_stack = _sum_by_stack(self.trace.stacks, lifetimes, rows)
        sites = self._build_sites(group, length)
        tree = CallTree(self.trace.stacks, by_stack)
        line_to_inspect = self._choose_line(sites, tree)
        path, path_share = self._find_path(tree, sites[0].site)
        return Leak(
            kind=SURVIVORS,
            device=lifetimes.device,
            unit=clock.unit,
            judged_at=clock.judged_at,
            bytes_per_unit=rate,
            allocated_bytes=total,
            blocks=len(rows),
            allocated_bytes_at_end=self._sum_bytes_at_end(rows),
            blocks_at_onset=0,
            age=self._to_shown_unit(first.age),
            reached=first.reached,
            died=first.freed,
            never_died=first.ever_freed == 0,
            onset=clock.first_step + first.onset,
            units_with_survivors=len(first.alloc_units),
            units_judged=int(first.last - first.onset) + 1,
            confidence=self._compute_confidence(first),
            oldest_age=self._to_shown_unit(clock.length - float(survivors.alloc_times[rows].min())),
            seconds_per_unit=seconds_per_unit,
            forecast_seconds=self._seconds_until_full(rate, seconds_per_unit),
            sites=sites,
            line=line_to_inspect,
            path=path,
            path_share=path_share,
            allocated_bytes_over_run=self._sample_live_bytes([line.site for line in group]),
            is_in_thread=self.trace.stacks.is_in_thread(sites[0].stack_id),
            block_stacks=tuple(np.unique(survivors.stack[rows]).tolist()),
        )

    def _find_path(self, tree: CallTree, site: Site) -> tuple[tuple[Frame, ...], float]:
        """Return `Leak.path`, which omits the given site, and its share of the bytes."""
        path, share = find_common_path(tree)
        if path and (path[0].filename, path[0].line) == (site.filename, site.line):
            path = path[1:]
        return path, share

    def _sum_bytes_at_end(self, rows: npt.NDArray[np.int64]) -> int:
        return int(self.lifetimes.survivors.bytes[rows][self._is_at_end[rows]].sum())

    def _measure_length(self, onset: float, last: float, onset_ns: int) -> float:
        """Return the time from `onset` to `last`: in steps or iterations, else in seconds."""
        if self.lifetimes.clock.is_discrete:
            return last - onset + 1
        share = (last - onset) / max(self.lifetimes.clock.length - onset, 1e-9)
        return max((self.lifetimes.judged_ns - onset_ns) / 1e9 * share, 1e-9)

    def _seconds(self) -> float:
        begin = self.trace.replay.time_before(self.lifetimes.clock.begin + 1) or self.trace.begin_ns
        return max(self.lifetimes.judged_ns - begin, 0) / 1e9

    def _to_shown_unit(self, units: float) -> float:
        clock = self.lifetimes.clock
        return units if clock.is_discrete else units / clock.length * self._seconds()

    def _seconds_per_unit(self, onset: float, onset_ns: int) -> float:
        """Return the average seconds of a unit since the onset: a program may load for most of the run before it."""
        clock = self.lifetimes.clock
        length = clock.length - onset
        return max(self.lifetimes.judged_ns - onset_ns, 1) / 1e9 / length if clock.is_discrete and length > 0 else 1.0

    def _seconds_until_full(self, rate: float, seconds_per_unit: float) -> float | None:
        if self.free_bytes is None or rate <= 0:
            return None
        return self.free_bytes.until_full() / rate * seconds_per_unit

    def _compute_confidence(self, line: JudgedLine) -> float:
        clock = self.lifetimes.clock
        part_of_unit = np.floor(
            (line.alloc_units - line.onset) * CONFIDENCE_PARTS / max(line.last - line.onset + 1, 1e-9)
        )
        part_count = len(np.unique(part_of_unit))
        confidence = (1 - line.freed / max(line.reached, 1)) * (1 - line.unevenness / 2) * part_count / (part_count + 1)
        if line.ever_freed == 0:
            confidence = min(confidence, MAX_CONFIDENCE_NEVER_FREED)
        return float(confidence * compute_certainty(self.trace, clock.is_discrete))

    def _build_sites(self, group: list[JudgedLine], length: float) -> tuple[LeakingSite, ...]:
        """Build one site for each line of user code, most bytes first; `group` has several stacks of some lines."""
        user_lines = self.trace.stacks.line_numbers[self.lifetimes.survivors.stack]
        rows_of_line: dict[int, list[npt.NDArray[np.int64]]] = {}
        for line in group:
            rows_of_line.setdefault(int(user_lines[line.rows[0]]), []).append(line.rows)
        sites = []
        for row_parts in rows_of_line.values():
            rows = np.concatenate(row_parts)
            by_stack = _sum_by_stack(self.trace.stacks, self.lifetimes, rows)
            stack = max(by_stack, key=by_stack.__getitem__)
            total = int(self.lifetimes.survivors.bytes[rows].sum())
            sites.append(LeakingSite(Site.of_stack(self.trace.stacks, stack), stack, total / length, total, len(rows)))
        sites.sort(key=lambda site: -site.allocated_bytes)
        code_sites = [site for site in sites if site.site.filename]
        if sum(site.allocated_bytes for site in code_sites) >= MIN_CODE_SHARE * sum(
            site.allocated_bytes for site in sites
        ):
            sites = [*code_sites, *(site for site in sites if not site.site.filename)]
        return tuple(sites)

    def _choose_line(self, sites: tuple[LeakingSite, ...], tree: CallTree) -> Site:
        code_bytes = sum(site.allocated_bytes for site in sites if site.site.filename) or tree.bytes
        if sites[0].allocated_bytes >= MAIN_LINE_SHARE * code_bytes:
            return sites[0].site
        return find_line_to_inspect(tree) or sites[0].site

    def _sample_live_bytes(self, sites: list[int]) -> tuple[int, ...]:
        """Return the survivors' bytes at up to `_MAX_SAMPLES` evenly spaced times, by allocation."""
        survivors, clock = self.lifetimes.survivors, self.lifetimes.clock
        no_rows = np.zeros(0, np.int64)
        rows = np.sort(np.concatenate([survivors.rows_of_site.get(site, no_rows) for site in sites]))
        count = min(_MAX_SAMPLES, int(clock.length) + 1) if clock.is_discrete else _MAX_SAMPLES
        times = np.linspace(0, clock.length, count)
        alloc_times = survivors.alloc_times[rows]
        total_bytes = np.append(0, np.cumsum(survivors.bytes[rows]))
        return tuple(total_bytes[np.searchsorted(alloc_times, times, side="right")].tolist())

    def _belong_together(self, line: JudgedLine, calls: list[int], other: JudgedLine, other_calls: list[int]) -> bool:
        """Return whether one reference may hold the blocks of two lines that were allocated in the same units."""
        if not calls or not other_calls:  # no stack
            return True
        shared = [node for node, other_node in zip(calls, other_calls, strict=False) if node == other_node]
        min_repeats = len(line.alloc_units) // 2
        if any(self.loops.is_repeated(node, min_repeats) for node in shared):
            return True
        level = len(shared)
        if level >= min(len(calls), len(other_calls)):
            return False
        stacks = self.trace.stacks
        is_one_function = stacks.call(calls[level]) == stacks.call(other_calls[level])
        return (
            is_one_function
            and self.loops.is_repeated(calls[level], min_repeats)
            and self._has_autograd_graph(line, other)
        )

    def _list_calls(self, line: JudgedLine) -> list[int]:
        """Return the calls, outermost first, under which most of a line's bytes were allocated."""
        by_stack = _sum_by_stack(self.trace.stacks, self.lifetimes, line.rows)
        return self.loops.calls(max(by_stack, key=by_stack.__getitem__))

    def _has_autograd_graph(self, *group: JudgedLine) -> bool:
        """Return whether operators that allocated the blocks of one of these lines also made autograd nodes."""
        nodes_created = self.trace.replay.nodes_created
        for line in group:
            stacks = np.unique(self.lifetimes.survivors.stack[line.rows])
            counted_stacks = stacks[stacks < len(nodes_created)]
            if 2 * int(nodes_created[counted_stacks].sum()) >= len(line.rows):
                return True
        return False


def _has_same_times(line: JudgedLine, other: JudgedLine) -> bool:
    units, other_units = line.alloc_units, other.alloc_units
    if min(len(units), len(other_units)) < MIN_SHARED_TIMES * max(len(units), len(other_units)):
        return False
    common = len(np.intersect1d(units, other_units, assume_unique=True))
    return common >= MIN_SHARED_TIMES * len(np.union1d(units, other_units))


def _sum_by_stack(index: StackIndex, lifetimes: LifetimeEvidence, rows: npt.NDArray[np.int64]) -> dict[int, int]:
    return bytes_by_stack(index.same[lifetimes.survivors.stack[rows]], lifetimes.survivors.bytes[rows])
