"""Evidence for the analyses of one device. A verdict reads the replay only through this module.

Most positions, such as the peak and the end of the warm-up, are known once the trace is replayed: one ordered walk
visits them (`Walk`). A few are known only afterwards, such as the allocation of a block that may have replaced another:
`PartEvidence.blocks_at` and `stacks_at` read them, a limited number of times.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from ..reading.positions import Range
from ..reading.recorded import RecordedTrace
from ..reading.sites import SiteNumbers
from ..reading.table import Table
from .free_memory.autocast_cache import AutocastExit, list_autocast_exits
from .leaks.clock import Clock, Clocks
from .leaks.largest_blocks import LargestBlocks, choose_first_positions, find_growing_stacks, find_largest_blocks
from .leaks.lifetimes import find_last_border
from .leaks.windows import Windows, find_warmup_end
from .walk import Visit, Walk

MAX_LATE_LOOKUPS = 256
"""Maximum number of states read after the walk, for one part of the run of a device."""


class PartEvidence:
    def __init__(self, walk: Walk, device: DeviceEvidence, clock: Clock) -> None:
        trace, name = device.trace, device.device
        replay, after_judged = trace.replay, clock.judged_at + 1
        self.device = device
        self.clock = clock
        self.lifetimes = walk.visit(after_judged, lambda: replay.lifetimes(after_judged, name))
        self.stacks = walk.visit(after_judged, lambda: replay.stacks(after_judged, name))
        border = find_last_border(replay.long_lifetimes(name), clock)
        self.at_border = walk.visit(border, lambda: replay.lifetimes(border, name))
        """`Replay.lifetimes` at the last border (see `LifetimeEvidence.last_border`)."""
        # The live blocks in a compacted part of the trace are unknown: growing buffers are searched after it.
        compacted = trace.integrity.compacted_until
        self.uncompacted = clock.start_after(compacted - 1) if clock.begin < compacted else clock
        self.windows = Windows.divide(trace, self.uncompacted) if len(self.uncompacted.ends) > 1 else None
        self.growing_stacks: list[int] = []
        self.first_largest_blocks: list[Visit[LargestBlocks]] = []
        if self.windows is not None and not self.uncompacted.is_too_short:
            self.growing_stacks = find_growing_stacks(trace, name, self.windows)
            if self.growing_stacks:
                for position in choose_first_positions(self.windows):
                    self.first_largest_blocks.append(walk.visit(position + 1, self._largest_blocks_reader(position)))
        self.late_lookups = 0

    def _largest_blocks_reader(self, position: int) -> Callable[[], LargestBlocks]:
        replay, device = self.device.trace.replay, self.device
        return lambda: find_largest_blocks(
            replay.live(position + 1, device.device, self.growing_stacks), device.numbers
        )

    @functools.cached_property
    def live(self) -> Table:
        """`Replay.live` after the judged event, with the blocks of earlier parts of the run."""
        return self.blocks_at(self.clock.judged_at)

    def blocks_at(self, event: int, stacks: Sequence[int] | None = None) -> Table:
        """Return `Replay.live`, of some stacks or all, after an event that was unknown before the walk."""
        self._count_lookup()
        return self.device.trace.replay.live(event + 1, self.device.device, stacks)

    def stacks_at(self, event: int) -> Table:
        """Return `Replay.stacks` after an event that was unknown before the walk."""
        self._count_lookup()
        return self.device.trace.replay.stacks(event + 1, self.device.device)

    def _count_lookup(self) -> None:
        self.late_lookups += 1
        assert self.late_lookups <= MAX_LATE_LOOKUPS, "too many states were read after the walk"


class DeviceEvidence:
    """Evidence on one device, ready after `Walk.make`; with a range, only on the complete steps in it.

    A range without a complete step raises PositionError. with_growth adds the evidence for `growing_sites`.
    """

    def __init__(
        self, walk: Walk, trace: RecordedTrace, device: str, within: Range | None = None, *, with_growth: bool = False
    ) -> None:
        self.trace = trace
        self.device = device
        self.numbers = SiteNumbers(trace.stacks.package_line_numbers)
        clocks = Clocks(trace, device)
        self.clocks: tuple[Clock, ...] = tuple(clocks) if within is None else (clocks.within(within),)
        """Clocks of the judged parts of the run, in order."""
        self.parts = tuple(PartEvidence(walk, self, clock) for clock in self.clocks if not clock.is_too_short)
        replay, end = trace.replay, trace.end_seq
        self.live_at_end: Visit[npt.NDArray[np.int64]] = walk.visit(
            end, lambda: replay.lifetimes(end, device)["alloc_seq"] if self.parts else np.zeros(0, np.int64)
        )
        """Allocation events of the blocks that are live at the end of the trace, ascending."""
        self.at_peak: Visit[Table] | None = None
        """`Replay.lifetimes` at the peak of allocated bytes; None for a range."""
        peak = replay.peak("allocated", device)
        if peak is not None and within is None and self.parts:
            after_peak = peak.seq + 1
            self.at_peak = walk.visit(after_peak, lambda: replay.lifetimes(after_peak, device))
        self.at_warmup_end: Visit[Table] | None = None
        """`Replay.stacks` at the end of the warm-up of the first part."""
        clock = self.clocks[0]
        warmup_end = find_warmup_end(trace, clock) if with_growth and not clock.is_too_short else clock.judged_at
        if warmup_end < clock.judged_at:
            self.at_warmup_end = walk.visit(warmup_end + 1, lambda: replay.stacks(warmup_end + 1, device))

    @functools.cached_property
    def autocast_exits(self) -> list[AutocastExit]:
        return list_autocast_exits(self.trace, self.device)


def collect_evidence(trace: RecordedTrace, device: str, within: Range | None = None) -> DeviceEvidence:
    walk = Walk(trace)
    evidence = DeviceEvidence(walk, trace, device, within, with_growth=within is None)
    walk.make()
    return evidence
