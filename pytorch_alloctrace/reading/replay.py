"""Memory at any event: segments, blocks and their sums, as columns.

csrc/core/replay computes the memory from the events alone. This module names devices and columns.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
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
MAXIMA = frozenset({"largest_bytes"})
"""Columns of which rows are combined to their maximum; the others of STACK_COLUMNS are added up."""
_FLAGS = frozenset({"backward", "older", "role_is_exact", "is_expandable", "is_large"})
_CODES = frozenset({"state", "role"})
MEASURES = (
    *("requested_bytes", "allocated_bytes", "active_bytes", "reserved_bytes", "releasable_bytes", "stranded_bytes"),
    "largest_free_bytes",
)
"""Measures of the timeline, in bytes: at the end of an interval, and its minimum and maximum."""
NEED_SEGMENTS = MEASURES[3:]
"""Measures that are unknown if the allocator reports no segments."""
ENDS = ("", "_min", "_max")


def external_fragmentation(largest_free: Any, free: Any) -> npt.NDArray[np.float64]:
    """Return 1 - largest free block / all free bytes, 0 where nothing is free. Both in bytes, masked where unknown."""
    divisor = np.maximum(free, 1)
    # Not below 0, even if events contradict each other.
    share: npt.NDArray[np.float64] = np.where(free > 0, np.maximum(1 - largest_free / divisor, 0), 0.0)
    if isinstance(free, np.ma.MaskedArray):
        return np.ma.array(share, mask=np.ma.getmaskarray(free))
    return share


@dataclass(frozen=True)
class Peak:
    """Maximum bytes of a device, and the event that reached it."""

    bytes: int
    seq: int
    time_ns: int


@dataclass(frozen=True)
class GroupTimeline:
    """Requested bytes of a device's live blocks in equal intervals: a row per interval; by role, then by site.

    An interval includes the level at its begin. The rows of a compacted part are 0.
    """

    at_peak: npt.NDArray[np.int64]
    """Bytes after the event with the highest sum of all groups in the interval."""
    lowest: npt.NDArray[np.int64]
    """Minimum of each group by itself."""
    highest: npt.NDArray[np.int64]
    """Maximum of each group by itself."""
    peak_seq: npt.NDArray[np.int64]
    """Event of `at_peak`, by interval."""


@dataclass(frozen=True)
class Contradiction:
    """An event that contradicts the events before it."""

    seq: int
    """Number of the event."""
    device: str
    """Device in torch's spelling."""
    sentence: str
    """Description of the contradiction."""


@dataclass(frozen=True)
class Verification:
    """Consistency of a trace: see `Trace.verify`."""

    states: int
    """Number of allocator states: at the start and stop of the recording, and wherever the program took a snapshot."""
    agreeing: int
    """Number of states equal to the replay in every segment and block. If CUDA was in use before the recording, the
    replay begins from the first state, which counts as agreeing."""
    differences: list[Contradiction] = field(default_factory=list)
    """The first 1000 states that differ from the replay although nothing was lost before them."""
    contradictions: int = 0
    """Number of events that contradict earlier events without a loss that explains it."""
    contradiction_list: list[Contradiction] = field(default_factory=list)
    """The first 1000 of these contradictions."""
    after_loss: int = 0
    """Number of contradicting events after a loss and before the next state."""
    resumed: int = 0
    """Number of states from which the replay continued after a loss."""
    void_states: int = 0
    """Number of states with missing events."""
    unmatched_frees: int = 0
    """Number of frees whose alloc is not in the trace: allocated before the recording, or lost."""
    missed_frees: int = 0
    """Number of allocs at a live address, whose free is missing. 0 unless events were lost."""
    lost: int = 0
    """Number of missing events: not recorded, or in corrupt or absent blocks."""
    integrity: str = "complete"
    """`Integrity.state` of the trace."""

    @property
    def ok(self) -> bool:
        """True if nothing is lost and all events and states agree."""
        faults = self.differences or self.contradictions or self.void_states or self.lost
        return not faults and self.integrity == "complete"


class Replay:
    """A replayed trace. Tables of one device have no rows if the trace lacks the device."""

    def __init__(self, reader: _replay.TraceReader, run: _replay.Replay, locations: Locations) -> None:
        self._run = run
        self._states = _replay.States(run)
        self._locations = locations
        self.devices = {
            device_name(timeline.device_type, timeline.device_index): timeline for timeline in self._run.timelines()
        }
        self._names = list(self.devices)
        self._times: dict[int, int] = {}
        self._long_lifetimes = self._run.long_lifetimes()
        self.compacted_positions = frozenset(self._run.compacted_positions)
        """Events of the compacted part before which the memory is known."""
        self.compacted_interval_ns = self._run.compacted_interval_ns
        """Resolution of the curves of the compacted part, in ns; 0: nothing is compacted."""
        self.left_out = self._run.left_out
        """Number of steps, marks and regions dropped from the compacted part, which stores a limited number."""
        self._compacted_until = reader.integrity.compacted_until
        self.positions = self._run.positions
        """Ends of steps, marks, begins and ends of regions, in order."""
        self.failed_allocations = self._run.failed_allocations
        """Failed allocations, each with the stack of the forward that caused the request of backward."""
        self.kind_counts = self._run.kind_counts
        self.unmatched_frees = self._run.unmatched_frees
        self.missed_frees = self._run.missed_frees

    def bytes_at_positions(self, devices: Sequence[int]) -> npt.NDArray[np.int64]:
        """Return the requested bytes at each of `positions`, summed over devices given by index."""
        return self._run.bytes_at_positions(devices)

    def long_lifetimes(self, device: str) -> _replay.LongLifetimes:
        return self._long_lifetimes[self._names.index(device)]

    @functools.cached_property
    def loops(self) -> list[_replay.Loop]:
        return self._run.loops()

    @functools.cached_property
    def nodes_created(self) -> npt.NDArray[np.int64]:
        """By stack: estimated number of allocations by operators that created an autograd node."""
        return self._run.nodes_created()

    @property
    def used_devices(self) -> list[str]:
        """Devices on which memory was allocated or reserved."""
        return [name for name, timeline in self.devices.items() if timeline.is_used]

    def peak(self, measure: str, device: str | None = None) -> Peak | None:
        """Return the peak of "allocated" or "reserved" bytes of a device, by default the highest; None: no memory."""
        if measure not in ("allocated", "reserved"):
            raise ValueError(f"measure={measure!r} is not known: use allocated or reserved")
        timelines = [timeline for name, timeline in self.devices.items() if device in (None, name)]
        peaks = [timeline.reserved_peak if measure == "reserved" else timeline.allocated_peak for timeline in timelines]
        highest = max(peaks, key=lambda peak: peak.bytes, default=None)
        if highest is None or not highest.bytes:
            return None
        return Peak(highest.bytes, highest.seq, highest.time_ns)

    def max_requested(self, device: str) -> int:
        """Return the peak of the device's requested bytes."""
        return self.devices[device].max_requested

    def events(self, first: int, end: int, kinds: Sequence[int]) -> _replay.EventStream:
        """Return the events from `first` up to but excluding `end`. Empty `kinds`: events of all kinds."""
        return self._run.events(first, end, kinds)

    def sequence_after(self, time_ns: int) -> int:
        """Return the number of the first event after a time (ns since 1970), or a number beyond all events."""
        return self._run.sequence_after(time_ns)

    def time_before(self, until: int) -> int:
        """Return the time of the last event before `until` (ns since 1970), or 0."""
        time_ns = self._times.get(until)
        if time_ns is None:
            time_ns = self._times[until] = self._run.time_before(until)
        return time_ns

    def segments(self, until: int, device: str) -> Table:
        """Return the segments before event `until`: SEGMENT_COLUMNS, is_large, stream, segment_pool_id."""
        table = self._read_state(
            self._states.segments_before, until, device, (*SEGMENT_COLUMNS, "is_large", "location")
        )
        location = table.columns.pop("location")
        places = self._locations.up_to(int(location.max(initial=0)))
        return table.assign(stream=places.streams[location], segment_pool_id=places.pools[location])

    def blocks(self, until: int, device: str) -> Table:
        """Return all blocks before event `until`, including free blocks, by address: BLOCK_COLUMNS.

        state, role and node_type are numbers. older: the block was allocated before the recording; its alloc_seq and
        alloc_ns are those of the begin of the recording.
        """
        return self._read_state(self._states.blocks_before, until, device, BLOCK_COLUMNS)

    def live(self, until: int, device: str, stacks: Sequence[int] | None = None) -> Table:
        """Return the live blocks (of these stacks) before event `until`, oldest first: LIVE_COLUMNS, as in `blocks`."""

        def read_live(until: int, device_id: tuple[int, int]) -> list[_replay.DeviceColumns]:
            return self._states.live_before(until, device_id, stacks)

        return self._read_state(read_live, until, device, LIVE_COLUMNS)

    def lifetimes(self, until: int, device: str) -> Table:
        """Return LIFETIME_COLUMNS of the live blocks before event `until`, oldest first."""
        return self._read_state(self._states.lifetimes_before, until, device, LIFETIME_COLUMNS)

    def stacks(self, until: int, device: str) -> Table:
        """Return the totals of each stack before event `until`: STACK_COLUMNS."""
        return self._read_state(self._states.stacks_before, until, device, STACK_COLUMNS)

    def role_bytes(self, until: int, device: str) -> dict[str, tuple[int, int, int]]:
        """Return the live memory before event `until` by role, in the order of ROLES_SHOWN, without unused roles.

        Values: requested bytes, requested bytes of blocks whose role was recorded, number of blocks.
        """
        table = self._read_state(self._states.roles_before, until, device, ("live_bytes", "exact_bytes", "live_blocks"))
        values = zip(*(column.tolist() for column in table.columns.values()), strict=True)
        rows = dict(zip(ROLES, values, strict=True)) if len(table) else {}
        return {role: rows[role] for role in ROLES_SHOWN if role in rows and rows[role][2]}

    def release_state(self) -> None:
        """Free the state of the last query, which may take hundreds of megabytes."""
        self._states.release()

    def _read_state(
        self,
        read: Callable[[int, tuple[int, int]], list[_replay.DeviceColumns]],
        until: int,
        device: str,
        columns: Sequence[str],
    ) -> Table:
        timeline = self.devices.get(device)
        states = [] if timeline is None else read(until, (timeline.device_type, timeline.device_index))
        if states:
            return Table({name: states[0].columns[name] for name in columns})
        return Table({name: np.zeros(0, _dtype(name)) for name in columns})

    def timeline(self, begins: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], device: str) -> Table:
        """Return MEASURES with minimum and maximum, blocks and seq of each range [begins, ends) of measurements."""
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
        """Devices on which the program named blocks."""
        return frozenset(self._names[number] for number in set(self._run.named_blocks()["device"].tolist()))

    def named_blocks(self) -> Table:
        """Return the events in which the program named a block, in order.

        Columns: seq, device (its name), address, requested_bytes, alloc_seq, stack_id, name (a string id),
        module (its id; 0: unknown), role (a number), older.
        """
        columns = self._run.named_blocks()
        names = np.array([*self._names, ""], dtype=object)
        return Table({**columns, "device": names[columns["device"]]})

    def role_timelines(
        self, points: int, begin_ns: int, end_ns: int, progress: Callable[[float], None] | None = None
    ) -> dict[str, dict[str, npt.NDArray[np.int64]]]:
        """Return the requested bytes at the end of each interval, by device and role. Takes another pass."""
        timelines = self._run.group_timelines(points, begin_ns, end_ns, (), 0, False, progress)
        return {
            name: {role: columns["last"].reshape(points, -1)[:, ROLES.index(role)] for role in ROLES_SHOWN}
            for name, columns in zip(self._names, timelines, strict=False)
        }

    def group_timelines(
        self,
        points: int,
        begin_ns: int,
        end_ns: int,
        site_of_stack: Mapping[str, npt.NDArray[np.integer[Any]]],
        site_count: int,
        progress: Callable[[float], None] | None = None,
    ) -> dict[str, GroupTimeline]:
        """Return the requested bytes of each role and site in equal intervals, by device. Takes a pass over them.

        Args:
            points: Number of intervals.
            begin_ns: Begin of the first interval (wall clock).
            end_ns: End of the last interval.
            site_of_stack: By device, the site (below `site_count` - 1) of each stack id. All other stacks belong to
                the last site.
            site_count: Number of sites.
            progress: Gets a fraction from 0 to 1.
        """
        sites = [site_of_stack.get(name, np.zeros(0, np.int64)) for name in self._names]
        timelines = self._run.group_timelines(points, begin_ns, end_ns, sites, site_count, True, progress)
        return {
            name: GroupTimeline(
                columns["at_peak"].reshape(points, -1),
                columns["lowest"].reshape(points, -1),
                columns["highest"].reshape(points, -1),
                columns["peak_seq"],
            )
            for name, columns in zip(self._names, timelines, strict=False)
        }

    def role_allocations(self, first: int, until: int) -> dict[str, Table]:
        """Return the totals of events [first, until) by device, with a row for each role number.

        Columns: allocations, total_bytes, exact_bytes, largest_bytes. Raises CompactedError if the range begins in the
        compacted part, whose allocations are known by stack only.
        """
        if first < self._compacted_until:
            raise CompactedError(
                f"allocations before event {self._compacted_until:,} are compacted into sums by line, not by role: "
                "give a range after it"
            )
        tables = self._run.role_allocations(first, until)
        return {name: Table(columns) for name, columns in zip(self._names, tables, strict=False)}

    def allocations_with_roles(
        self, device: str, roles: Sequence[int], excluded_stacks: npt.NDArray[np.bool_]
    ) -> list[int]:
        """Return the events of the allocations with these role numbers, except those of the stacks marked True."""
        return self._run.allocations_with_roles(self._names.index(device), roles, excluded_stacks.tolist())

    def samples(self) -> _replay.Columns:
        return self._run.samples()

    def verification(self, integrity: Integrity) -> Verification:
        findings = self._run.findings

        def to_contradictions(items: list[_replay.Disagreement]) -> list[Contradiction]:
            return [Contradiction(item.seq, self._names[item.device], item.text) for item in items]

        return Verification(
            states=findings.states,
            agreeing=findings.agreeing,
            differences=to_contradictions(findings.differences),
            contradictions=findings.contradictions,
            contradiction_list=to_contradictions(findings.kept_contradictions),
            after_loss=findings.after_loss,
            resumed=findings.resumed,
            void_states=findings.void_states,
            unmatched_frees=self.unmatched_frees,
            missed_frees=self.missed_frees,
            lost=integrity.lost + integrity.missing_events,
            integrity=integrity.state,
        )


def _dtype(column: str) -> Any:
    if column in _CODES:
        return np.int8
    return np.bool_ if column in _FLAGS else np.int64
