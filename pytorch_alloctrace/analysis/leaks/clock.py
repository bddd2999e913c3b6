"""What time is counted in where leaks are judged: steps, the program's own iterations, or allocations.

Time on the clock says nothing about a program that waits for requests, or spent its first half loading. So a part of
the run is judged in the first of these units that fits it:

steps         those of the trace, if there are enough of them
iterations    rounds of a loop that the stacks show (see csrc/core/replay/loops.h): the outermost function of user code
              that begins again often enough, all through the part of the run that is judged
allocations   a thousandth of those on the device
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ... import _replay
from ...errors import PositionError
from ...reading.positions import Range
from ...reading.recorded import RecordedTrace
from ...reading.sites import Frame
from ..allocation_share import AllocationShare

LEAST_STEPS = 7
"""Fewer steps prove nothing: three births in a row, after the first step, are not yet a habit."""
LEAST_ROUNDS = 20
"""Fewer rounds of a loop may be its beginning, or anything that happened a few times."""
COVERED = 0.7
"""The least share of the judged allocations that a loop goes round."""
WIDEST_ROUND = 0.2
"""The largest share of the judged allocations in one round: the steps of a program are alike."""
REST = 0.15
"""What comes after the last step is judged by itself if it has at least this share of the allocations."""
LEAST_ALLOCATIONS = 50
_FIRST_SEARCHED, _SEARCHED = 4096, 1 << 21
"""Events at the end of a part that are looked through for the last one of its loop: at first, and at most."""
PARTS = 1000
"""Units of a part of the run that has neither steps nor a loop."""

Numbers = npt.NDArray[np.int64]
Times = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Clock:
    """A part of the run, and the unit in which time is counted there."""

    unit: str
    """"step", "iteration" or "second": what rates are given in. Where time is counted in allocations, rates are given
    in seconds."""
    begin: int
    """The part begins with this event."""
    judged_at: int
    """The event after which the live blocks are judged: the end of the last step, the last allocation in the function
    that goes round a loop, or the last of all. Not the end of the trace: a function that returns frees its locals, so
    that a leak into a local list would be gone at the end of every program that has a main()."""
    ends: Times
    """Event numbers, ascending."""
    counts: Times
    """Time at each of `ends`, in units since the beginning."""
    whole: bool
    """Whether a birth counts to its unit as a whole: in steps and iterations."""
    first: int = 0
    """Steps before the judged part."""
    before: float = 0.0
    """Units that came before the beginning, where the clock was cut off there."""
    loop: Frame | None = None
    """The function that begins again, where iterations are counted."""

    @property
    def length(self) -> float:
        """Units from the beginning to the judged event."""
        return float(self.counts[-1]) if len(self.counts) else 0.0

    @property
    def too_short(self) -> bool:
        """Whether there is too little to judge."""
        return self.length < (LEAST_STEPS - 1 if self.whole else PARTS)

    def time(self, events: npt.ArrayLike) -> Times:
        """The time of each event, in units; in whole ones where there are steps."""
        if not len(self.ends):
            return np.zeros(np.shape(np.asarray(events)), np.float64)
        found = np.interp(np.asarray(events, np.float64), self.ends, self.counts)
        # The event that ends a step belongs to it.
        return np.ceil(found) if self.whole else found

    def since(self, event: int) -> Clock:
        """What comes after an event. Time is counted from there on."""
        inside = self.ends > event
        ends, counts = self.ends[inside], self.counts[inside]
        if not len(ends):
            return replace(self, begin=event, ends=ends, counts=counts)
        if self.whole:
            before = float(counts[0])
            return replace(
                self, begin=event, ends=ends, counts=counts - before, first=self.first + int(before), before=before
            )
        begun = float(np.interp(event, self.ends, self.counts))
        ends, counts = np.concatenate([[event], ends]), np.concatenate([[begun], counts]) - begun
        scale = PARTS / max(float(counts[-1]), 1e-9)
        return replace(self, begin=event, ends=ends, counts=counts * scale, before=begun * scale)

    @classmethod
    def of_steps(cls, ends: Numbers, ordinals: Numbers, first: int = 0) -> Clock:
        """By steps: the last event of each, and how many came before it. first: judged from this one on."""
        return cls(
            unit="step",
            begin=int(ends[first - 1]) + 1 if first else 0,
            judged_at=int(ends[-1]),
            ends=ends[first:].astype(np.float64),
            counts=(ordinals[first:] - ordinals[first]).astype(np.float64),
            whole=True,
            first=int(ordinals[first]),
        )


class Clocks:
    """The parts of the run of one device that are judged, each with its clock."""

    def __init__(self, trace: RecordedTrace, device: str) -> None:
        self._trace = trace
        self._device = device
        self._work = AllocationShare(trace, device)
        self._steps = trace.positions.step_ends
        self._ordinals = trace.positions.ordinals

    def within(self, within: Range) -> Clock:
        """Of the steps that lie wholly in a range. Raises PositionError if there are none."""
        inside = self._trace.positions.whole_steps(within)
        if not inside.any():
            reason = "no whole step lies in it" if len(self._steps) else "the trace has none"
            raise PositionError(f"leaks of a range are judged by steps, and {reason}: judge the whole run instead")
        first, last = np.flatnonzero(inside)[[0, -1]]
        return Clock.of_steps(self._steps[: last + 1], self._ordinals[: last + 1], int(first))

    def __iter__(self) -> Iterator[Clock]:
        end = self._work.last
        last_step = int(self._steps[-1]) if len(self._steps) else -1
        rest = 1 - float(self._work.share(last_step))
        if len(self._steps) >= LEAST_STEPS:
            yield Clock.of_steps(self._steps, self._ordinals)
            if rest >= REST:
                yield self._without_steps(last_step + 1, end)
            return
        clock = self._without_steps(0, end)
        if len(self._steps) and clock.loop is None:
            yield Clock.of_steps(self._steps, self._ordinals)
            return
        yield clock
        if clock.loop is not None and 1 - float(self._work.share(clock.judged_at)) >= REST:
            yield self._without_steps(clock.judged_at + 1, end)

    def _without_steps(self, begin: int, end: int) -> Clock:
        first, last = self._work.allocations([begin, end]).tolist()
        if last - first < LEAST_ALLOCATIONS:
            return Clock("second", begin, end, np.zeros(0), np.zeros(0), False)
        loop = self._outermost_loop(begin, end)
        if loop is not None:
            judged_at = self._last_inside(loop, end)
            begins = loop.begins[(loop.begins >= begin) & (loop.begins <= judged_at)].astype(np.float64)
            return Clock(
                unit="iteration",
                begin=begin,
                judged_at=judged_at,
                # A round ends where the next begins; the last one has not ended.
                ends=np.append(begins - 1, max(judged_at, begins[-1])),
                counts=np.append(np.arange(len(begins)) * float(loop.stride), len(begins) * float(loop.stride)),
                whole=True,
                loop=self._trace.stacks.frame(loop.function),
            )
        events = self._work.events
        inside = (events > begin) & (events < end)
        ends = np.concatenate([[begin], events[inside], [max(end, begin + 1)]])
        ordinals = np.concatenate([[first], self._work.counts[inside], [last]])
        counts = (ordinals - first) / (last - first) * PARTS  # in this order, so that the last is exact
        return Clock("second", begin, end, ends, counts, False)

    def _last_inside(self, loop: _replay.Loop, end: int) -> int:
        """The last allocation on the device while the function that goes round was running; `end` if none is found
        near it. Once the function has returned, what its locals held is gone."""
        inside = self._trace.stacks.inside(loop.function)
        first = max(int(loop.begins[-1]) - 1, self._trace.integrity.compacted_until, end - _SEARCHED)
        until, length = end, _FIRST_SEARCHED
        while until > first:
            since = max(until - length, first)
            last = -1
            for events in self._trace.iter_events(Range(since + 1, until + 1), ["alloc"], with_state=False):
                is_wanted = (self._trace.devices_of(events) == self._device) & inside[events["stack_id"]]
                if is_wanted.any():
                    last = int(events["seq"][is_wanted][-1])
            if last >= 0:
                return last
            until, length = since, 8 * length
        return end

    def _outermost_loop(self, begin: int, end: int) -> _replay.Loop | None:
        first, last = self._work.allocations([begin, end]).tolist()
        stacks, found = self._trace.stacks, []
        for loop in self._trace.replay.loops:
            if loop.rounds < LEAST_ROUNDS or not stacks.is_user[loop.function]:
                continue
            begins = loop.begins[(loop.begins >= begin) & (loop.begins <= end)]
            if len(begins) * loop.stride < LEAST_ROUNDS:
                continue
            ordinals = self._work.allocations(begins)
            gaps = np.diff(np.append(ordinals, last))
            if last - ordinals[0] >= COVERED * (last - first) and gaps.max() <= WIDEST_ROUND * (last - first):
                found.append(loop)
        return min(found, key=lambda loop: (loop.depth, -loop.rounds), default=None)
