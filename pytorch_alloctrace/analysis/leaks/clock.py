"""Units of time in which leaks are judged: steps, the program's iterations, or allocations.

Wall-clock time does not fit a program that waits for requests or loads for half of its run. A part of the run is judged
in the first of these units that fits:

steps         the steps of the trace, if there are enough
iterations    of a loop that the stacks show (see csrc/core/replay/loops.h): the outermost function of user code that is
              called often enough, all through the judged part of the run
allocations   a thousandth of the allocations on the device

One pass is not a loop: see `loops`. Inferred steps count only if they are even: with one optimizer for each task or
expert, a step may take one iteration or thirty, and the iterations of the loop are the better unit.
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
from .loops import MIN_ITERATIONS, LoopIndex

LEAST_STEPS = 7
"""Minimum number of steps: three allocations in a row after the first step may be a coincidence."""
MIN_COVERED_SHARE = 0.7
MAX_ITERATION_SHARE = 0.2
"""Maximum share of the judged allocations in one iteration: the steps of a program are alike."""
MIN_REMAINDER_SHARE = 0.15
"""Minimum share of the allocations after the last step for them to be judged as a part of their own."""
MAX_UNEVENNESS = 0.5
"""Maximum standard deviation of the iterations in an inferred step, divided by their mean: gradient accumulation takes
the same number in each step."""
MIN_ITERATIONS_PER_STEP = 2
LEAST_ALLOCATIONS = 50
_FIRST_SEARCH_EVENTS, _MAX_SEARCH_EVENTS = 4096, 1 << 21
"""Number of events searched back for the last event of a loop: in the first search, and in all."""
ALLOCATION_UNITS = 1000

Numbers = npt.NDArray[np.int64]
Times = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Clock:
    """A part of the run, and the unit in which its time is counted."""

    unit: str
    """Unit of rates: "step", "iteration" or "second". "second" if time is counted in allocations."""
    begin: int
    """First event of the part."""
    judged_at: int
    """Event after which the live blocks are judged: the end of the last step, the last allocation in the loop's
    function, or the last allocation. At the end of the trace, main() has returned: leaks into its locals are freed."""
    ends: Times
    """Event numbers at which `counts` is exact, ascending."""
    counts: Times
    """Time at each of `ends`, in units since the beginning."""
    is_discrete: bool
    """True if time is counted in whole steps or iterations."""
    first_step: int = 0
    """Number of steps before the judged part."""
    units_before: float = 0.0
    """Number of units cut off by `start_after`."""
    loop: Frame | None = None

    @property
    def length(self) -> float:
        return float(self.counts[-1]) if len(self.counts) else 0.0

    @property
    def is_too_short(self) -> bool:
        return self.length < (LEAST_STEPS - 1 if self.is_discrete else ALLOCATION_UNITS)

    def units_at(self, events: npt.ArrayLike) -> Times:
        if not len(self.ends):
            return np.zeros(np.shape(np.asarray(events)), np.float64)
        units = np.interp(np.asarray(events, np.float64), self.ends, self.counts)
        # Rounded up: the event that ends a step belongs to the step.
        return np.ceil(units) if self.is_discrete else units

    def start_after(self, event: int) -> Clock:
        """Return the clock of the part after an event, counted from there."""
        is_after = self.ends > event
        ends, counts = self.ends[is_after], self.counts[is_after]
        if not len(ends):
            return replace(self, begin=event, ends=ends, counts=counts)
        if self.is_discrete:
            before = float(counts[0])
            return replace(
                self,
                begin=event,
                ends=ends,
                counts=counts - before,
                first_step=self.first_step + int(before),
                units_before=before,
            )
        before = float(np.interp(event, self.ends, self.counts))
        ends, counts = np.concatenate([[event], ends]), np.concatenate([[before], counts]) - before
        scale = ALLOCATION_UNITS / max(float(counts[-1]), 1e-9)
        return replace(self, begin=event, ends=ends, counts=counts * scale, units_before=before * scale)

    @classmethod
    def from_steps(cls, ends: Numbers, ordinals: Numbers, first: int = 0) -> Clock:
        """Return a clock of steps, from their last events and ordinals. first: index of the first judged step."""
        return cls(
            unit="step",
            begin=int(ends[first - 1]) + 1 if first else 0,
            judged_at=int(ends[-1]),
            ends=ends[first:].astype(np.float64),
            counts=(ordinals[first:] - ordinals[first]).astype(np.float64),
            is_discrete=True,
            first_step=int(ordinals[first]),
        )


class Clocks:
    def __init__(self, trace: RecordedTrace, device: str) -> None:
        self._trace = trace
        self._device = device
        self._allocation_share = AllocationShare(trace, device)
        self._steps = trace.positions.step_ends
        self._ordinals = trace.positions.ordinals
        self.loops = LoopIndex(trace)

    def within(self, within: Range) -> Clock:
        is_inside = self._trace.positions.whole_steps(within)
        if not is_inside.any():
            reason = "the range contains no whole step" if len(self._steps) else "the trace has no steps"
            raise PositionError(f"leaks in a range are judged by steps, but {reason}: judge the whole run instead")
        first, last = np.flatnonzero(is_inside)[[0, -1]]
        return Clock.from_steps(self._steps[: last + 1], self._ordinals[: last + 1], int(first))

    def __iter__(self) -> Iterator[Clock]:
        last_allocation = self._allocation_share.last
        last_step = int(self._steps[-1]) if len(self._steps) else -1
        remainder_share = 1 - float(self._allocation_share.share(last_step))
        if len(self._steps) >= LEAST_STEPS and not self._are_steps_uneven():
            yield Clock.from_steps(self._steps, self._ordinals)
            if remainder_share >= MIN_REMAINDER_SHARE:
                yield self._make_clock_without_steps(last_step + 1, last_allocation)
            return
        clock = self._make_clock_without_steps(0, last_allocation)
        if len(self._steps) and clock.loop is None:
            yield Clock.from_steps(self._steps, self._ordinals)
            return
        yield clock
        if clock.loop is not None and 1 - float(self._allocation_share.share(clock.judged_at)) >= MIN_REMAINDER_SHARE:
            yield self._make_clock_without_steps(clock.judged_at + 1, last_allocation)

    def _are_steps_uneven(self) -> bool:
        """Return whether inferred steps take uneven numbers of iterations of the outermost loop."""
        if not self._trace.positions.steps_are_inferred:
            return False
        loop = self._find_outermost_loop(int(self._steps[0]), int(self._steps[-1]))
        if loop is None:
            return False
        counts = np.diff(np.searchsorted(loop.begins, self._steps)) * loop.stride
        mean = float(counts.mean())
        return mean >= MIN_ITERATIONS_PER_STEP and float(counts.std()) > MAX_UNEVENNESS * mean

    def _make_clock_without_steps(self, begin: int, end: int) -> Clock:
        first, last = self._allocation_share.allocations([begin, end]).tolist()
        if last - first < LEAST_ALLOCATIONS:
            return Clock("second", begin, end, np.zeros(0), np.zeros(0), False)
        loop = self._find_outermost_loop(begin, end)
        if loop is not None:
            judged_at = self._find_last_allocation_in(loop, end)
            begins = loop.begins[(loop.begins >= begin) & (loop.begins <= judged_at)].astype(np.float64)
            return Clock(
                unit="iteration",
                begin=begin,
                judged_at=judged_at,
                # An iteration ends where the next begins; the last iteration has not ended.
                ends=np.append(begins - 1, max(judged_at, begins[-1])),
                counts=np.append(np.arange(len(begins)) * float(loop.stride), len(begins) * float(loop.stride)),
                is_discrete=True,
                loop=self._trace.stacks.frame(loop.function),
            )
        events = self._allocation_share.events
        is_inside = (events > begin) & (events < end)
        ends = np.concatenate([[begin], events[is_inside], [max(end, begin + 1)]])
        ordinals = np.concatenate([[first], self._allocation_share.counts[is_inside], [last]])
        counts = (ordinals - first) / (last - first) * ALLOCATION_UNITS  # in this order, so that the last is exact
        return Clock("second", begin, end, ends, counts, False)

    def _find_last_allocation_in(self, loop: _replay.Loop, end: int) -> int:
        """Return the last allocation before the loop's function returned and freed its locals; `end` if unknown."""
        is_in_loop = self._trace.stacks.inside(loop.function)
        search_begin = max(int(loop.begins[-1]) - 1, self._trace.integrity.compacted_until, end - _MAX_SEARCH_EVENTS)
        until, search_length = end, _FIRST_SEARCH_EVENTS
        while until > search_begin:
            since = max(until - search_length, search_begin)
            last_seq = -1
            for events in self._trace.iter_events(Range(since + 1, until + 1), ["alloc"], with_state=False):
                is_match = (self._trace.devices_of(events) == self._device) & is_in_loop[events["stack_id"]]
                if is_match.any():
                    last_seq = int(events["seq"][is_match][-1])
            if last_seq >= 0:
                return last_seq
            until, search_length = since, 8 * search_length
        return end

    def _find_outermost_loop(self, begin: int, end: int) -> _replay.Loop | None:
        first, last = self._allocation_share.allocations([begin, end]).tolist()
        stacks, candidates = self._trace.stacks, []
        for loop in self._trace.replay.loops:
            if loop.rounds < MIN_ITERATIONS or not stacks.is_user[loop.function]:
                continue
            if self.loops.is_in_one_pass(loop.function):
                continue
            begins = loop.begins[(loop.begins >= begin) & (loop.begins <= end)]
            if len(begins) * loop.stride < MIN_ITERATIONS:
                continue
            ordinals = self._allocation_share.allocations(begins)
            gaps = np.diff(np.append(ordinals, last))
            covered = last - ordinals[0]
            if covered >= MIN_COVERED_SHARE * (last - first) and gaps.max() <= MAX_ITERATION_SHARE * (last - first):
                candidates.append(loop)
        return min(candidates, key=lambda loop: (loop.depth, -loop.rounds), default=None)
