"""What was in memory at any event: segments, blocks and their sums, as columns. csrc/core/replay computes it, from the
events alone; what is here names devices and columns.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _replay
from ..errors import CompactedError
from .integrity import Integrity
from .locations import Locations
from .names import ROLES, ROLES_SHOWN, device_name
from .table import Table

_ALLOCATION = ("stack_id", "backward", "node_type", "thread", "alloc_seq", "alloc_ns")
"""Where a block in use was allocated, and when."""
SEGMENT_COLUMNS = ("address", "total_bytes", "allocated_bytes", "active_bytes", "requested_bytes", "is_expandable")
BLOCK_COLUMNS = (
    *("segment", "address", "block_bytes", "requested_bytes", "state", *_ALLOCATION, "age_ns", "older"),
    *("role", "role_is_exact"),
)
LIVE_COLUMNS = ("address", "requested_bytes", "block_bytes", *_ALLOCATION, "older", "role", "role_is_exact")
LIFETIME_COLUMNS = ("alloc_seq", "alloc_ns", "block_bytes", "stack_id", "older")
STACK_COLUMNS = (
    *("stack_id", "allocations", "total_bytes", "live_bytes", "live_blocks", "largest_bytes", "live_backward_bytes"),
    "live_block_bytes",
)
_FLAGS = frozenset({"backward", "older", "role_is_exact", "is_expandable", "is_large"})
_CODES = frozenset({"state", "role"})
MEASURES = (
    *("requested_bytes", "allocated_bytes", "active_bytes", "reserved_bytes", "releasable_bytes", "stranded_bytes"),
    "largest_free_bytes",
)
"""The timeline has the value of each at an interval's end, and the lowest and highest within it."""
NEED_SEGMENTS = MEASURES[3:]
"""What is unknown where the allocator reports no segments."""
ENDS = ("", "_min", "_max")


def external_fragmentation(largest_free: Any, free: Any) -> npt.NDArray[np.float64]:
    """Return 1 - largest free block / all free bytes, 0 where nothing is free. Both in bytes, masked where unknown."""
    some = np.maximum(free, 1)
    # Not below 0, even where events contradict each other.
    share: npt.NDArray[np.float64] = np.where(free > 0, np.maximum(1 - largest_free / some, 0), 0.0)
    if isinstance(free, np.ma.MaskedArray):
        return np.ma.array(share, mask=np.ma.getmaskarray(free))
    return share


@dataclass(frozen=True)
class Peak:
    """The most that a device had at once, and the event that reached it."""

    bytes: int
    seq: int
    time_ns: int


@dataclass(frozen=True)
class Contradiction:
    """An event that does not fit what came before it."""

    seq: int
    """Number of the event."""
    device: str
    """Torch's spelling."""
    sentence: str
    """What does not fit."""


@dataclass(frozen=True)
class Verification:
    """How far a trace agrees with itself: see `Trace.verify`."""

    states: int
    """Allocator states in the trace: at the start and stop of the recording, and wherever the program asked for one."""
    agreeing: int
    """How many of them equal the replay in every segment and block. Where CUDA was in use before the recording, the
    replay begins from the first state, which counts as agreeing."""
    differences: list[Contradiction] = field(default_factory=list)
    """States that differ from the replay although nothing was lost before them (the first 1000)."""
    contradictions: int = 0
    """Events that do not fit what came before, with no loss that explains it."""
    contradiction_list: list[Contradiction] = field(default_factory=list)
    """The first 1000 of them."""
    after_loss: int = 0
    """Events that do not fit, after a loss and before the next state."""
    resumed: int = 0
    """States from which the replay continued after a loss."""
    void_states: int = 0
    """States with missing events."""
    unmatched_frees: int = 0
    """Frees of blocks whose alloc is not in the trace: made before it began, or lost."""
    missed_frees: int = 0
    """Allocs at an address that was live: the free in between was not seen. 0 unless events were lost."""
    lost: int = 0
    """Events that are missing: not recorded, or in damaged or absent blocks."""
    integrity: str = "complete"
    """`Integrity.state` of the trace."""

    @property
    def ok(self) -> bool:
        """Nothing is lost, and all that is there agrees."""
        faults = self.differences or self.contradictions or self.void_states or self.lost
        return not faults and self.integrity == "complete"


class Replay:
    """A replayed trace. Every method asks for one device; its tables have no rows where the trace lacks the device."""

    def __init__(self, reader: _replay.TraceReader, run: _replay.Replay, locations: Locations) -> None:
        self._run = run
        self._states = _replay.States(run)
        self._locations = locations
        self.devices = {
            device_name(timeline.device_type, timeline.device_index): timeline for timeline in self._run.timelines()
        }
        self._names = list(self.devices)
        self._times: dict[int, int] = {}  # few are asked for, again and again
        self._long_lives = self._run.long_lives()
        self.compacted_positions = frozenset(self._run.compacted_positions)
        """The events before which the memory is known though the trace is compacted further."""
        self.compacted_interval_ns = self._run.compacted_interval_ns
        """How exact the curves of a compacted part are; 0: nothing is compacted."""
        self.left_out = self._run.left_out
        """Steps, marks and regions that are not in a compacted part any more: there were too many."""
        self._folded_until = reader.integrity.compacted_until
        self.positions = self._run.positions
        """Each step's end, mark, region's begin and end."""
        self.refusals = self._run.refusals
        """Each out-of-memory event, and the stack of the forward that caused it where backward asked."""
        self.kind_counts = self._run.kind_counts
        """How many events there are of each kind."""
        self.unmatched_frees = self._run.unmatched_frees
        self.missed_frees = self._run.missed_frees

    def bytes_at_positions(self, devices: Sequence[int]) -> npt.NDArray[np.int64]:
        """Return the requested bytes on some devices together, by number, at each of `positions`."""
        return self._run.bytes_at_positions(devices)

    def long_lives(self, device: str) -> _replay.LongLives:
        """Return which blocks of a device lived long, by stack."""
        return self._long_lives[self._names.index(device)]

    @functools.cached_property
    def loops(self) -> list[_replay.Loop]:
        """The functions that begin again and again under the same calls."""
        return self._run.loops()

    @functools.cached_property
    def nodes_made(self) -> npt.NDArray[np.int64]:
        """By stack: about how many of its allocations were of operators that made an autograd node."""
        return self._run.nodes_made()

    @property
    def used_devices(self) -> list[str]:
        """Those on which there was memory."""
        return [name for name, timeline in self.devices.items() if timeline.is_used]

    def peak(self, measure: str, device: str | None = None) -> Peak | None:
        """Return the peak of "allocated" or "reserved" bytes, of one device or of that with the highest; None without
        one.

        Raises ValueError for another measure.
        """
        if measure not in ("allocated", "reserved"):
            raise ValueError(f"measure={measure!r} is not known: use allocated or reserved")
        wanted = [timeline for name, timeline in self.devices.items() if device in (None, name)]
        peaks = [one.reserved_peak if measure == "reserved" else one.allocated_peak for one in wanted]
        highest = max(peaks, key=lambda peak: peak.bytes, default=None)
        if highest is None or not highest.bytes:
            return None
        return Peak(highest.bytes, highest.seq, highest.time_ns)

    def most_requested(self, device: str) -> int:
        """Return the most requested bytes at a time."""
        return self.devices[device].most_requested

    def events(self, first: int, end: int, kinds: Sequence[int]) -> _replay.EventStream:
        """Return the events from `first` on and before `end`, by column; of these kinds, none: of all."""
        return self._run.events(first, end, kinds)

    def sequence_after(self, time_ns: int) -> int:
        """Return the number of the first event after a time (ns since 1970); beyond all events where there is none."""
        return self._run.sequence_after(time_ns)

    def time_before(self, until: int) -> int:
        """Return the time of the last event before `until` (ns since 1970); 0 where there is none."""
        time_ns = self._times.get(until)
        if time_ns is None:
            time_ns = self._times[until] = self._run.time_before(until)
        return time_ns

    def segments(self, until: int, device: str) -> Table:
        """Return the segments before event `until`: SEGMENT_COLUMNS, is_large, stream, segment_pool_id."""
        table = self._state(self._states.segments_before, until, device, (*SEGMENT_COLUMNS, "is_large", "location"))
        location = table.columns.pop("location")
        places = self._locations.up_to(int(location.max(initial=0)))
        return table.assign(stream=places.streams[location], segment_pool_id=places.pools[location])

    def blocks(self, until: int, device: str) -> Table:
        """Return the blocks before event `until`, the free ones included, by address: BLOCK_COLUMNS. state, role and
        node_type are numbers; older: the block was there before the recording, which began at its birth."""
        return self._state(self._states.blocks_before, until, device, BLOCK_COLUMNS)

    def live(self, until: int, device: str, stacks: Sequence[int] | None = None) -> Table:
        """Return the live blocks before event `until`, oldest first: LIVE_COLUMNS, as in `blocks`. stacks: only what
        these have allocated."""

        def ask(until: int, wanted: tuple[int, int]) -> list[_replay.DeviceColumns]:
            return self._states.live_before(until, wanted, stacks)

        return self._state(ask, until, device, LIVE_COLUMNS)

    def lifetimes(self, until: int, device: str) -> Table:
        """Return LIFETIME_COLUMNS of the live blocks before event `until`, oldest first."""
        return self._state(self._states.lives_before, until, device, LIFETIME_COLUMNS)

    def stacks(self, until: int, device: str) -> Table:
        """Return what each stack had allocated before event `until`: STACK_COLUMNS."""
        return self._state(self._states.stacks_before, until, device, STACK_COLUMNS)

    def role_bytes(self, until: int, device: str) -> dict[str, tuple[int, int, int]]:
        """Return what is live before event `until`, by role, in the order of ROLES_SHOWN, without roles that no block
        has: its requested bytes, those of them whose role was recorded, and the blocks."""
        table = self._state(self._states.roles_before, until, device, ("live_bytes", "exact_bytes", "live_blocks"))
        rows = dict(zip(ROLES, zip(*(column.tolist() for column in table.columns.values()), strict=True), strict=False))
        return {role: rows[role] for role in ROLES_SHOWN if role in rows and rows[role][2]}

    def release_state(self) -> None:
        """Free the state that was asked for last: it may take hundreds of megabytes."""
        self._states.release()

    def _state(
        self,
        ask: Callable[[int, tuple[int, int]], list[_replay.DeviceColumns]],
        until: int,
        device: str,
        columns: Sequence[str],
    ) -> Table:
        timeline = self.devices.get(device)
        states = [] if timeline is None else ask(until, (timeline.device_type, timeline.device_index))
        if states:
            return Table({name: states[0].columns[name] for name in columns})
        return Table({name: np.zeros(0, _dtype(name)) for name in columns})

    def timeline(self, begins: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], device: str) -> Table:
        """Return MEASURES, each with its lowest and highest, blocks and seq of each interval. begins, ends: which of
        the measured intervals make one each: from the number of the first on, and before that of another."""
        names = [f"{measure}{end}" for measure in MEASURES for end in ENDS]
        if device not in self.devices:
            return Table({name: np.zeros(0, np.int64) for name in (*names, "blocks", "seq")})
        columns = self._run.timeline(self._names.index(device), begins, ends)
        is_unknown = not self.devices[device].reports_segments
        unknown = {f"{measure}{end}" for measure in NEED_SEGMENTS for end in ENDS}
        return Table(
            {
                name: np.ma.array(columns[name], mask=np.full(len(begins), is_unknown))
                if name in unknown
                else columns[name]
                for name in (*names, "blocks", "seq")
            }
        )

    @functools.cached_property
    def devices_with_names(self) -> frozenset[str]:
        """Those of which the program said of any block what it is."""
        return frozenset(self._names[number] for number in set(self._run.named_blocks()["device"].tolist()))

    def named_blocks(self) -> Table:
        """Return a row for each time that the program said what a block is, in order: seq, device (its name), address,
        requested_bytes, alloc_seq, stack_id, name (a string id), role (a number), older."""
        columns = self._run.named_blocks()
        names = np.array([*self._names, ""], dtype=object)
        return Table({**columns, "device": names[columns["device"]]})

    def role_timelines(
        self, points: int, progress: Callable[[float], None] | None = None
    ) -> dict[str, dict[str, npt.NDArray[np.int64]]]:
        """Return, by device and role, the requested bytes at the end of each interval. It takes another pass."""
        timelines = self._run.role_timelines(points, progress)
        return {
            name: {role: columns[ROLES.index(role)] for role in ROLES_SHOWN}
            for name, columns in zip(self._names, timelines, strict=False)
        }

    def role_allocations(self, first: int, until: int) -> dict[str, Table]:
        """Return, by device, what was allocated for each role, by its number, by the events from `first` on and before
        `until`: allocations, total_bytes, exact_bytes, largest_bytes. Raises CompactedError for compacted events: what
        they allocated is known by stack alone."""
        if first < self._folded_until:
            raise CompactedError(
                f"what was allocated before event {self._folded_until:,} is compacted into sums by line, not by role: "
                "give a range after it"
            )
        tables = self._run.role_allocations(first, until)
        return {name: Table(columns) for name, columns in zip(self._names, tables, strict=False)}

    def samples(self) -> _replay.Columns:
        """Return what the driver reported, by column: see `timeline.driver_samples`."""
        return self._run.samples()

    def verification(self, integrity: Integrity) -> Verification:
        """See `Trace.verify`."""
        found = self._run.findings

        def named(items: list[_replay.Disagreement]) -> list[Contradiction]:
            return [Contradiction(item.seq, self._names[item.device], item.text) for item in items]

        return Verification(
            states=found.states,
            agreeing=found.agreeing,
            differences=named(found.differences),
            contradictions=found.contradictions,
            contradiction_list=named(found.kept_contradictions),
            after_loss=found.after_loss,
            resumed=found.resumed,
            void_states=found.void_states,
            unmatched_frees=self.unmatched_frees,
            missed_frees=self.missed_frees,
            lost=integrity.lost + integrity.missing_events,
            integrity=integrity.state,
        )


def _dtype(column: str) -> Any:
    if column in _CODES:
        return np.int8
    return np.bool_ if column in _FLAGS else np.int64
