"""Leaks made of lines that keep their blocks: which of them are one finding, and what is said of each.

One finding        lines whose blocks were born in the same units, if all are allocated under a call that the program
                   repeats, or in the loop that makes it and as part of an autograd graph: a loss kept with its graph
                   keeps many other tensors. Two lines that leak by themselves, in the same loop, are two findings
rate               bytes of the blocks that were born from the onset on and are old enough, by the time between
confidence         (1 - share that died after all) x evenness of births x n / (n + 1), n being the units, at most 24,
                   in which they were born; at most `NEVER_DIED` where no block of these stacks has ever died: it may be
                   a buffer that is not full yet
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ... import _replay
from ...reading.recorded import RecordedTrace
from ...reading.sites import Frame, Site, StackIndex, bytes_by_stack
from .backlog import Backlog
from .call_paths import CallTree, common_path, line_to_look_at
from .leak import BACKLOG, SAME_BIRTHS, SURVIVORS, Leak, LeakingSite, certainty
from .lifetimes import Lives
from .survivors import Judged

MOST = 0.8
"""A line that allocates at least this share of a leak's bytes is the line to look at."""
GOOD_PART = 0.2
"""Memory without a stack is not what a finding is about if lines of code hold at least this share of it."""
NEVER_DIED = 0.85
"""The most that is said where no block of a line has ever died."""
RISING_CONFIDENCE = 0.8
PARTS = 24
"""Parts of a leak's time in which births are counted."""
_SAMPLES = 200


class _Group(NamedTuple):
    """Lines that are one finding."""

    lines: list[Judged]
    calls: Callable[[], list[int]]
    """Those of the first, see `LeakMaker._calls_of`."""


@dataclass(frozen=True)
class LeakMaker:
    """Makes findings of what was judged on one device."""

    trace: RecordedTrace
    lives: Lives
    free: int | None
    """Bytes that the device could still take."""
    born_at_end: npt.NDArray[np.int64]
    """The births of all blocks that are live at the end of the trace, ascending."""

    @functools.cached_property
    def _is_at_end(self) -> npt.NDArray[np.bool_]:
        """Which of the survivors are live at the end of the trace."""
        at_end, born = self.born_at_end, self.lives.survivors.seq
        if not len(at_end):
            return np.zeros(len(born), np.bool_)
        found: npt.NDArray[np.bool_] = at_end[np.searchsorted(at_end[:-1], born)] == born  # by birth, as they come
        return found

    def of_survivors(self, judged: Sequence[Judged]) -> list[Leak]:
        """The leaks in which these lines, most bytes first, belong together."""
        groups: list[_Group] = []
        for one in judged:
            calls = functools.cache(functools.partial(self._calls_of, one))
            for group in groups:
                first = group.lines[0]
                if _same_births(first, one) and self._belong_together(first, group.calls(), one, calls()):
                    group.lines.append(one)
                    break
            else:
                groups.append(_Group([one], calls))
        return [self._leak(group.lines) for group in groups]

    def of_backlog(self, backlog: Backlog) -> Leak:
        """What keeps more and more blocks at once."""
        lives, clock = self.lives, self.lives.clock
        survivors = lives.survivors
        rows = survivors.of_site[backlog.site]
        total = int(survivors.bytes[rows].sum())
        seconds = (lives.judged_ns - self.trace.replay.time_before(backlog.since_event + 1)) / 1e9
        length = max(clock.length - backlog.since if clock.whole else seconds, 1e-9)
        added = (int(backlog.counts[-1]) - int(backlog.counts[0])) / max(int(backlog.counts[-1]), 1)
        rate = total * added / length
        by_stack = _bytes_by_stack(self.trace.stacks, lives, rows)
        stack = max(by_stack, key=by_stack.__getitem__)
        site = Site.of_stack(self.trace.stacks, stack)
        path, path_share = self._path(CallTree(self.trace.stacks, by_stack), site)
        picked = np.linspace(0, len(backlog.counts) - 1, min(_SAMPLES, len(backlog.counts))).round().astype(int)
        each = total / max(len(rows), 1)
        return Leak(
            kind=BACKLOG,
            device=lives.device,
            unit=clock.unit,
            judged_at=clock.judged_at,
            bytes_per_unit=rate,
            allocated_bytes=total,
            blocks=len(rows),
            allocated_bytes_at_end=self._bytes_at_end(rows),
            blocks_at_onset=int(backlog.counts[0]),
            age=0.0,
            reached=0,
            died=int(lives.deaths.blocks[lives.deaths.of_site[backlog.site]].sum()),
            never_died=False,
            onset=clock.first + backlog.since,
            units_with_survivors=0,
            units_judged=int(clock.length),
            confidence=RISING_CONFIDENCE * certainty(self.trace, clock.whole),
            oldest_age=self._shown(clock.length - float(survivors.birth[rows].min())),
            seconds_per_unit=self._seconds_per_unit(),
            forecast_seconds=self._seconds_until_full(rate),
            sites=(LeakingSite(site, stack, rate, total, len(rows)),),
            line=site,
            path=path,
            path_share=path_share,
            allocated_bytes_over_run=tuple((backlog.counts[picked] * each).astype(np.int64).tolist()),
        )

    def _leak(self, group: list[Judged]) -> Leak:
        lives, clock, first = self.lives, self.lives.clock, group[0]
        survivors = lives.survivors
        rows = np.concatenate([one.rows for one in group])
        total = int(survivors.bytes[rows].sum())
        length = self._length(first.onset, first.last, int(survivors.alloc_ns[first.rows].min()))
        rate = float(total / length)
        by_stack = _bytes_by_stack(self.trace.stacks, lives, rows)
        sites = self._sites(group, length)
        tree = CallTree(self.trace.stacks, by_stack)
        line = self._line(sites, tree)
        path, path_share = self._path(tree, sites[0].site)
        return Leak(
            kind=SURVIVORS,
            device=lives.device,
            unit=clock.unit,
            judged_at=clock.judged_at,
            bytes_per_unit=rate,
            allocated_bytes=total,
            blocks=len(rows),
            allocated_bytes_at_end=self._bytes_at_end(rows),
            blocks_at_onset=0,
            age=self._shown(first.age),
            reached=first.reached,
            died=first.died,
            never_died=first.ever_died == 0,
            onset=clock.first + first.onset,
            units_with_survivors=len(first.births),
            units_judged=int(first.last - first.onset) + 1,
            confidence=self._confidence(first),
            oldest_age=self._shown(clock.length - float(survivors.birth[rows].min())),
            seconds_per_unit=self._seconds_per_unit(),
            forecast_seconds=self._seconds_until_full(rate),
            sites=sites,
            line=line,
            path=path,
            path_share=path_share,
            allocated_bytes_over_run=self._live([one.site for one in group]),
        )

    def _path(self, tree: CallTree, site: Site) -> tuple[tuple[Frame, ...], float]:
        """See `Leak.path`, without this site."""
        path, share = common_path(tree)
        if path and (path[0].filename, path[0].line) == (site.filename, site.line):
            path = path[1:]
        return path, share

    def _bytes_at_end(self, rows: npt.NDArray[np.int64]) -> int:
        return int(self.lives.survivors.bytes[rows][self._is_at_end[rows]].sum())

    def _length(self, onset: float, last: float, onset_ns: int) -> float:
        """The time between: in steps or iterations, else in seconds."""
        if self.lives.clock.whole:
            return last - onset + 1
        share = (last - onset) / max(self.lives.clock.length - onset, 1e-9)
        return max((self.lives.judged_ns - onset_ns) / 1e9 * share, 1e-9)

    def _seconds(self) -> float:
        begin = self.trace.replay.time_before(self.lives.clock.begin + 1) or self.trace.begin_ns
        return max(self.lives.judged_ns - begin, 0) / 1e9

    def _shown(self, units: float) -> float:
        """A length of time as it is shown: in steps, or seconds."""
        clock = self.lives.clock
        return units if clock.whole else units / clock.length * self._seconds()

    def _seconds_per_unit(self) -> float:
        clock = self.lives.clock
        return self._seconds() / clock.length if clock.whole and clock.length else 1.0

    def _seconds_until_full(self, rate: float) -> float | None:
        return self.free / rate * self._seconds_per_unit() if self.free is not None and rate > 0 else None

    def _confidence(self, judged: Judged) -> float:
        clock = self.lives.clock
        part = np.floor((judged.births - judged.onset) * PARTS / max(judged.last - judged.onset + 1, 1e-9))
        count = len(np.unique(part))
        confidence = (1 - judged.died / max(judged.reached, 1)) * (1 - judged.unevenness / 2) * count / (count + 1)
        if judged.ever_died == 0:
            confidence = min(confidence, NEVER_DIED)
        return float(confidence * certainty(self.trace, clock.whole))

    def _sites(self, group: list[Judged], length: float) -> tuple[LeakingSite, ...]:
        """The lines, most bytes first; several stacks of one line are one."""
        rows_of: dict[int, list[npt.NDArray[np.int64]]] = {}
        for one in group:
            rows_of.setdefault(one.site, []).append(one.rows)
        found = []
        for parts in rows_of.values():
            rows = np.concatenate(parts)
            by_stack = _bytes_by_stack(self.trace.stacks, self.lives, rows)
            stack = max(by_stack, key=by_stack.__getitem__)
            total = int(self.lives.survivors.bytes[rows].sum())
            found.append(LeakingSite(Site.of_stack(self.trace.stacks, stack), stack, total / length, total, len(rows)))
        found.sort(key=lambda site: -site.allocated_bytes)
        of_lines = [site for site in found if site.site.filename]
        if sum(site.allocated_bytes for site in of_lines) >= GOOD_PART * sum(site.allocated_bytes for site in found):
            found = [*of_lines, *(site for site in found if not site.site.filename)]
        return tuple(found)

    def _line(self, sites: tuple[LeakingSite, ...], tree: CallTree) -> Site:
        of_lines = sum(site.allocated_bytes for site in sites if site.site.filename) or tree.bytes
        if sites[0].allocated_bytes >= MOST * of_lines:
            return sites[0].site
        return line_to_look_at(tree) or sites[0].site

    def _live(self, sites: list[int]) -> tuple[int, ...]:
        """The bytes of all survivors of some lines that were born by each of at most 200 times, evenly spread."""
        survivors, clock = self.lives.survivors, self.lives.clock
        none = np.zeros(0, np.int64)
        rows = np.sort(np.concatenate([survivors.of_site.get(site, none) for site in sites]))
        count = min(_SAMPLES, int(clock.length) + 1) if clock.whole else _SAMPLES
        times = np.linspace(0, clock.length, count)
        born = survivors.birth[rows]
        held = np.append(0, np.cumsum(survivors.bytes[rows]))
        return tuple(held[np.searchsorted(born, times, side="right")].tolist())

    def _belong_together(self, one: Judged, calls: list[int], other: Judged, other_calls: list[int]) -> bool:
        """Whether the blocks of two lines, born in the same units, are held by one reference: they are allocated under
        one call that the program makes again and again, or in one function that makes such calls, where a part of an
        autograd graph is kept. What has no stack belongs to whatever was born with it. calls: see `_calls_of`."""
        if not calls or not other_calls:
            return True
        shared = [node for node, also in zip(calls, other_calls, strict=False) if node == also]
        often = len(one.births) // 2
        if any(self._repeats(node, often) for node in shared):
            return True
        level = len(shared)
        if level >= min(len(calls), len(other_calls)):
            return False
        stacks = self.trace.stacks
        in_one_function = stacks.call(calls[level]) == stacks.call(other_calls[level])
        return in_one_function and self._repeats(calls[level], often) and self._is_of_a_graph(one, other)

    def _calls_of(self, judged: Judged) -> list[int]:
        """The calls, outermost first, under which most of a line's bytes were allocated; none without a stack."""
        stacks, calls = self.trace.stacks, []
        by_stack = _bytes_by_stack(stacks, self.lives, judged.rows)
        stack = max(by_stack, key=by_stack.__getitem__)
        while stacks.has_frames(stack):
            calls.append(stack)
            stack = int(stacks.parent[stack])
        return calls[::-1]

    def _is_of_a_graph(self, *group: Judged) -> bool:
        """Whether the operators that made one of these lines' blocks also made autograd nodes."""
        made = self.trace.replay.nodes_made
        for judged in group:
            stacks = np.unique(self.lives.survivors.stack[judged.rows])
            known = stacks[stacks < len(made)]
            if 2 * int(made[known].sum()) >= len(judged.rows):
                return True
        return False

    def _repeats(self, node: int, often: int) -> bool:
        """Whether a frame is of a function that begins again at least so often."""
        return any(loop.rounds >= often for loop in self._loops.get(self.trace.stacks.call(node), ()))

    @functools.cached_property
    def _loops(self) -> dict[tuple[int, int, int], list[_replay.Loop]]:
        found: dict[tuple[int, int, int], list[_replay.Loop]] = {}
        for loop in self.trace.replay.loops:
            found.setdefault(self.trace.stacks.call(loop.function), []).append(loop)
        return found


def _same_births(one: Judged, other: Judged) -> bool:
    if min(len(one.births), len(other.births)) < SAME_BIRTHS * max(len(one.births), len(other.births)):
        return False
    common = len(np.intersect1d(one.births, other.births, assume_unique=True))
    return common >= SAME_BIRTHS * len(np.union1d(one.births, other.births))


def _bytes_by_stack(index: StackIndex, lives: Lives, rows: npt.NDArray[np.int64]) -> dict[int, int]:
    return bytes_by_stack(index.same[lives.survivors.stack[rows]], lives.survivors.bytes[rows])
