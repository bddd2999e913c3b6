"""Evidence: what the analyses of one device know of a trace. The only door between the replay and the verdict.

Most positions whose memory a verdict looks at are known once the trace is replayed: the peak, the end, where leaks are
judged, the end of the warm-up, the windows of growing buffers, the worst fragmentation, the failed request. They are
visited in one ordered walk, and what is found at each is reduced there (`Walk`, `Visit`). The few that are known only
afterwards, such as the birth of a block that may have replaced another, are asked for through
`DeviceEvidence.blocks_at`, a bounded number of times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from ..reading.positions import Range
from ..reading.recorded import RecordedTrace
from ..reading.sites import SiteNumbers
from ..reading.table import Table
from .leaks.clock import Clock, Clocks
from .leaks.largest_blocks import LargestBlocks, first_positions, largest_of, stacks_that_may_grow
from .leaks.lifetimes import last_border
from .leaks.windows import Windows, warmup_end
from .walk import Visit, Walk

MAX_LATE_QUESTIONS = 256
"""Maximum number of states that are asked for after the walk, of one part of the run of a device."""


class PartEvidence:
    """Evidence on one judged part of the run of a device."""

    def __init__(self, walk: Walk, device: DeviceEvidence, clock: Clock) -> None:
        trace, name = device.trace, device.device
        replay, judged = trace.replay, clock.judged_at + 1
        self.device = device
        self.clock = clock
        self.lifetimes = walk.visit(judged, lambda: replay.lifetimes(judged, name))
        """`Replay.lifetimes` after the judged event."""
        self.stacks = walk.visit(judged, lambda: replay.stacks(judged, name))
        """`Replay.stacks` after the judged event."""
        border = last_border(replay.long_lives(name), clock)
        self.at_border = walk.visit(border, lambda: replay.lifetimes(border, name))
        """`Replay.lifetimes` where the counts of deaths end: see `Lives.last_border`."""
        # What was live at any time of a compacted part is not known: buffers are looked at after it.
        compacted = trace.integrity.compacted_until
        self.uncompacted = clock.since(compacted - 1) if clock.begin < compacted else clock
        self.windows = Windows.of(trace, self.uncompacted) if len(self.uncompacted.ends) > 1 else None
        self.growing_stacks: list[int] = []
        """The stacks of lines that may have a growing buffer."""
        self.first_looks: list[Visit[LargestBlocks]] = []
        """The largest blocks of their lines at a few positions."""
        if self.windows is not None and not self.uncompacted.too_short:
            self.growing_stacks = stacks_that_may_grow(trace, name, self.windows)
            if self.growing_stacks:
                for position in first_positions(self.windows):
                    self.first_looks.append(walk.visit(position + 1, self._look_at(position)))
        self.late_questions = 0
        """States that were asked for after the walk."""

    def _look_at(self, position: int) -> Callable[[], LargestBlocks]:
        replay, device = self.device.trace.replay, self.device
        return lambda: largest_of(replay.live(position + 1, device.device, self.growing_stacks), device.numbers)

    def blocks_at(self, event: int, stacks: Sequence[int] | None = None) -> Table:
        """Return `Replay.live` after an event that was not known before the walk. stacks: only what these have
        allocated."""
        self._count()
        return self.device.trace.replay.live(event + 1, self.device.device, stacks)

    def stacks_at(self, event: int) -> Table:
        """Return `Replay.stacks` after an event that was not known before the walk."""
        self._count()
        return self.device.trace.replay.stacks(event + 1, self.device.device)

    def _count(self) -> None:
        self.late_questions += 1
        assert self.late_questions <= MAX_LATE_QUESTIONS, "the states that an analysis asks for are bounded"


class DeviceEvidence:
    """Evidence on one device of a trace.

    Args:
        walk: Where its positions are visited; everything but `blocks_at` is known after `Walk.make`.
        trace: The trace.
        device: Torch's spelling.
        within: Judge only the steps in these events. Raises PositionError if there are none.
        with_growth: Whether the sites that grew are asked for, too.
    """

    def __init__(
        self, walk: Walk, trace: RecordedTrace, device: str, within: Range | None = None, *, with_growth: bool = False
    ) -> None:
        self.trace = trace
        self.device = device
        self.numbers = SiteNumbers(trace.stacks)
        """Numbers of the lines of user code."""
        clocks = Clocks(trace, device)
        self.clocks: tuple[Clock, ...] = tuple(clocks) if within is None else (clocks.within(within),)
        """The parts of the run that are judged, the first one first."""
        self.parts = tuple(PartEvidence(walk, self, clock) for clock in self.clocks if not clock.too_short)
        replay, end = trace.replay, trace.end_seq
        self.born_at_end: Visit[npt.NDArray[np.int64]] = walk.visit(
            end, lambda: replay.lifetimes(end, device)["alloc_seq"] if self.parts else np.zeros(0, np.int64)
        )
        """The births of the blocks that are live at the end of the trace, ascending."""
        self.at_warmup_end: Visit[Table] | None = None
        """`Replay.stacks` where the warm-up of the first part ends."""
        first = self.clocks[0]
        warmup = warmup_end(trace, first) if with_growth and not first.too_short else first.judged_at
        if warmup < first.judged_at:
            self.at_warmup_end = walk.visit(warmup + 1, lambda: replay.stacks(warmup + 1, device))


def evidence_of(trace: RecordedTrace, device: str, within: Range | None = None) -> DeviceEvidence:
    """Collect the evidence on the leaks of one device. The arguments are those of `DeviceEvidence`."""
    walk = Walk(trace)
    evidence = DeviceEvidence(walk, trace, device, within, with_growth=within is None)
    walk.make()
    return evidence
