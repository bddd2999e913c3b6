"""Types of the compiled module in csrc/python/reading."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import TraceError

_Device = tuple[int, int]  # type, index
Columns = dict[str, npt.NDArray[Any]]
"""A table by column. Numbers are int64; addresses of 2**63 and more are negative (two's complement)."""

MIN_BLOCK_SIZE: int
"""Unit to which torch's allocator rounds block sizes up, in bytes."""
SMALL_REQUEST: int
"""Maximum request that torch's allocator serves from the small pool, in bytes."""
SMALL_SEGMENT: int
"""Size of the segments of the small pool, in bytes."""
MIN_SPLIT_SIZE: int
"""Exclusive minimum of max_split_size_mb, in bytes."""

class FormatError(TraceError): ...
class OpenError(TraceError): ...
class PlainPickleError(TraceError): ...
class TraceFileError(TraceError): ...

class AllocatorSettings:
    """Settings of torch's CUDA allocator, and its rules under these settings. Sizes are bytes.

    json: as in an event `config`. Missing and corrupt settings have torch's default.
    """

    def __init__(self, json: str = "") -> None: ...
    @property
    def expandable_segments(self) -> bool:
        """True if segments grow by mapping memory."""
    @property
    def large_segment_size(self) -> int:
        """Default size of a segment of the large pool in bytes; larger requests get larger segments."""
    @property
    def max_non_split_rounding_size(self) -> int:
        """Maximum bytes by which a block that is not split may exceed a request."""
    @property
    def garbage_collection_threshold(self) -> float:
        """Share of the memory fraction from which on torch frees old segments; 0: never."""
    @property
    def roundup_power2_divisions(self) -> list[int]:
        """Divisions between powers of two for requests from 1 MiB, 2 MiB, ... on; 0 and 1: no rounding."""
    @property
    def max_split_size(self) -> int | None:
        """Maximum size of a free block that torch splits, in bytes; None: no limit."""
    def segment_size(self, rounded: int) -> int:
        """Return the bytes that torch requests from the driver if no free block serves a request of this size.

        The error message of torch reports the same number (c10/cuda/CUDACachingAllocator.cpp: get_allocation_size).
        """
    def mapping_unit(self, *, is_large: bool) -> int:
        """Return the unit in bytes in which torch maps an expandable segment of the large or small pool."""
    def rounded(self, bytes: int) -> int:
        """Return the bytes to which torch rounds a request up."""
    def splits(self, block: int, requested: int, is_large: bool) -> bool:
        """Return whether torch splits a free block of `block` bytes to serve a request of `requested` bytes."""

def load_plain_pickle(data: bytes) -> Any: ...

class TraceWriter:
    def __init__(self, path: str | bytes, overwrite: bool, begin_ns: int, header_json: str) -> None: ...
    def string(self, text: str) -> int: ...
    def thread(self, name: str) -> int: ...
    def node_type(self, name: str) -> int: ...
    def library_block(self, event: int, address: int, name: str) -> None: ...
    def code(self, name: str, filename: str, first_line: int, line_table: bytes) -> int: ...
    def frame(self, parent: int, code: int, instruction: int) -> int: ...
    def location(self, type: int, index: int, stream: int, pool: tuple[int, int]) -> int: ...
    def push(
        self,
        kind: npt.ArrayLike,
        time: npt.ArrayLike,
        address: npt.ArrayLike,
        size: npt.ArrayLike,
        stack: npt.ArrayLike,
        thread: npt.ArrayLike,
        location: npt.ArrayLike,
        sequence: npt.ArrayLike,
        node_sequence: npt.ArrayLike,
        node_type: npt.ArrayLike | None = None,
    ) -> None: ...
    def finish(self, end_json: str) -> None: ...

class EventStream:
    def next(self, min_rows: int) -> Columns | None: ...

class Integrity:
    state: str
    events: int
    lost: int
    lost_by_cause: dict[str, int]
    missing_events: int
    corrupt_blocks: int
    corrupt_bytes: int
    truncated_bytes: int
    recovered: int
    uncommitted: int
    compacted_events: int
    compacted_until: int
    compacted_until_ns: int
    max_bytes: int
    bound_exceeded: bool
    keep_ns: int
    keeps_less: bool
    ended: bool
    spool_read: bool
    empty_allocations: int
    reentered: int
    unknown_stacks: int

class Location:
    device_type: int
    device_index: int
    stream: int
    pool: tuple[int, int]

class Thread:
    native_id: int
    autograd_id: int
    name: str
    python_name: str

class Device:
    device_type: int
    device_index: int
    bytes: int
    name: str
    uuid: str
    pci_address: str

class FinishedTrace:
    was_ended: bool
    spool: bytes
    recorded_path: bytes
    events: int
    uncommitted: int

def finish_trace(path: str | bytes, spool_path: str | bytes = "", force: bool = False) -> FinishedTrace: ...

class CompactionError(TraceError): ...

class CompactedTrace:
    events: int
    until: int
    bytes_before: int
    bytes_after: int

def compact_trace(
    trace: TraceReader,
    until: int,
    out: str | bytes,
    overwrite: bool = False,
    nodes_at_begin: tuple[int, int] = (0, 0),
    progress: Callable[[float], object] | None = None,
) -> CompactedTrace: ...

class TraceReader:
    def __init__(
        self, path: str | bytes, spool_path: str | bytes = "", progress: Callable[[float], object] | None = None
    ) -> None: ...
    @property
    def header_json(self) -> str: ...
    @property
    def end_json(self) -> str: ...
    @property
    def file_bytes(self) -> int: ...
    @property
    def begin_ns(self) -> int: ...
    @property
    def end_ns(self) -> int: ...
    @property
    def end_seq(self) -> int: ...
    @property
    def integrity(self) -> Integrity: ...
    def stack_table(self) -> Columns: ...
    def modules(self) -> list[tuple[str, int, str]]: ...
    def stack_labels(self) -> list[tuple[str, str]]: ...
    def library_blocks(self) -> list[tuple[int, int, int]]: ...
    def holders(self) -> list[tuple[Any, ...]]:
        """Return the fields of each `Held`: see definition 13 in docs/trace-format.md."""
    def children(self) -> list[tuple[int, int, int, str]]:
        """Return next event, ids of process and parent, and command (zero bytes between arguments) of each child."""
    def string(self, id: int) -> str: ...
    def source(self, filename: int, line: int) -> str | None: ...
    def devices(self) -> list[Device]: ...
    def locations(self) -> list[Location]: ...
    def threads(self) -> list[Thread]: ...
    def node_types(self) -> list[str]: ...
    def events(
        self, first: int = 0, end: int = ..., kinds: Sequence[int] = (), with_state: bool = True
    ) -> EventStream: ...

class PositionEvent:
    """End of a step, mark, begin or end of a region."""

    kind: int
    seq: int
    time_ns: int
    value: int
    """Number of the step, or string id of the name."""
    is_explicit: bool
    """True for a step ended by the program; False for a step inferred from an optimizer."""
    ordinal: int
    """Number of earlier steps of the same kind (explicit, inferred), including steps missing in a compacted part."""

class FailedAllocation:
    seq: int
    forward_stack: int

class Peak:
    bytes: int
    seq: int
    time_ns: int

class DeviceColumns:
    device_type: int
    device_index: int
    columns: Columns

class DeviceTimeline:
    device_type: int
    device_index: int
    reports_segments: bool
    is_used: bool
    allocated_peak: Peak
    reserved_peak: Peak
    max_requested: int

class LongLifetimes:
    """Long-lived blocks of a device: see csrc/core/replay/long_lifetimes.h."""

    begins: npt.NDArray[Any]
    """First event of each cell."""
    begins_ns: npt.NDArray[Any]
    """Time of the first event of each cell (ns since 1970)."""
    cell_length: int
    """Number of allocations per cell, except in the last cell."""
    allocations: int
    last_allocation: int
    """Event number of the last allocation."""
    last_ns: int
    """Time of the last allocation (ns since 1970)."""
    freed_blocks: Columns
    """Freed blocks: stack_id, allocated_in, freed_in (cells), blocks, block_bytes."""
    growths: Columns
    """line, cell: cells in which a line allocated more at once than ever before."""

class Loop:
    """A function that is called repeatedly from the same stack: see csrc/core/replay/loops.h."""

    caller: int
    """Calling stack; 0: the function is the outermost."""
    function: int
    """A stack that ends in the function."""
    depth: int
    rounds: int
    stride: int
    begins: npt.NDArray[Any]
    """First event of every `stride`-th call."""

class Disagreement:
    seq: int
    device: int
    """Index in `Replay.timelines`."""
    text: str

class ReplayFindings:
    states: int
    agreeing: int
    resumed: int
    void_states: int
    contradictions: int
    after_loss: int
    differences: list[Disagreement]
    kept_contradictions: list[Disagreement]

class States:
    """Memory at any event. Ascending queries take one pass. Two instances may be used on two threads at once."""

    def __init__(self, replay: Replay) -> None: ...
    def segments_before(self, until: int, device: _Device | None = None) -> list[DeviceColumns]: ...
    def blocks_before(self, until: int, device: _Device | None = None) -> list[DeviceColumns]: ...
    def live_before(
        self, until: int, device: _Device | None = None, stacks: Sequence[int] | None = None
    ) -> list[DeviceColumns]: ...
    def lifetimes_before(self, until: int, device: _Device | None = None) -> list[DeviceColumns]:
        """Return alloc_seq, alloc_ns, allocated, stack_id, older of the live blocks, oldest first."""
    def roles_before(self, until: int, device: _Device | None = None) -> list[DeviceColumns]:
        """Return bytes, exact_bytes, blocks of the live blocks by role number."""
    def stacks_before(self, until: int, device: _Device | None = None) -> list[DeviceColumns]: ...
    def release(self) -> None: ...

class Replay:
    def __init__(
        self,
        trace: TraceReader,
        points: int,
        lines: npt.ArrayLike | None = None,
        progress: Callable[[float], object] | None = None,
        nodes_at_begin: tuple[int, int] = (0, 0),
    ) -> None:
        """Replay a trace.

        lines: line number of each stack, for `LongLifetimes.growths`. nodes_at_begin: native id of the thread that
        began the recording, and the number of autograd nodes that it had created.
        """
    @property
    def positions(self) -> list[PositionEvent]: ...
    def bytes_at_positions(self, devices: Sequence[int]) -> npt.NDArray[np.int64]: ...
    @property
    def compacted_positions(self) -> list[int]: ...
    @property
    def compacted_interval_ns(self) -> int: ...
    @property
    def left_out(self) -> int: ...
    @property
    def failed_allocations(self) -> list[FailedAllocation]: ...
    @property
    def kind_counts(self) -> list[int]: ...
    @property
    def unmatched_frees(self) -> int: ...
    @property
    def missed_frees(self) -> int: ...
    @property
    def findings(self) -> ReplayFindings: ...
    def time_before(self, until: int) -> int: ...
    def events(self, first: int, end: int = ..., kinds: Sequence[int] = ()) -> EventStream: ...
    def sequence_after(self, time_ns: int) -> int: ...
    def timelines(self) -> list[DeviceTimeline]: ...
    def timeline(self, device: int, begins: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> Columns:
        """Return one row per range of measured intervals. device: index in `timelines`."""
    def long_lifetimes(self) -> list[LongLifetimes]:
        """Return the long-lived blocks by device, in the order of `timelines`."""
    def loops(self) -> list[Loop]: ...
    def nodes_created(self) -> npt.NDArray[Any]: ...
    def named_blocks(self) -> Columns: ...
    def group_timelines(
        self,
        points: int,
        begin_ns: int,
        end_ns: int,
        site_of_stack: Sequence[npt.NDArray[Any] | Sequence[int]],
        site_count: int,
        with_extremes: bool,
        progress: Callable[[float], object] | None = None,
    ) -> list[Columns]:
        """Return, by device, last, and with_extremes lowest, highest, at_peak and peak_seq.

        Bytes of intervals x (roles, then sites), flat; peak_seq: a row per interval.
        """
    def role_allocations(self, first: int, until: int) -> list[Columns]:
        """Return allocations, bytes, exact_bytes and largest of events [first, until) by device, role number."""
    def allocations_with_roles(self, device: int, roles: Sequence[int], excluded_stacks: Sequence[bool]) -> list[int]:
        """Return the events of a device's allocations with these role numbers. device: index in `timelines`.

        excluded_stacks: by stack id, True for stacks whose allocations are left out.
        """
    def samples(self) -> Columns: ...

NO_LIMIT: int

class SimulationOptions:
    """Options of a simulation of torch's allocator. Sizes are bytes.

    settings: the changed settings, as JSON of an event `config`. capacity: None: unlimited. limit: None: the share of
    the device in the recorded run; NO_LIMIT: all of the device. must_serve: events of failed allocations that the
    simulation must serve, ascending. attempts_failed: whether it attempts the other failed allocations. batch_factor:
    factor of the sizes of the `growing` allocations of `predict`.
    """

    def __init__(
        self,
        settings: str = "",
        capacity: int | None = None,
        limit: int | None = None,
        total: int = ...,
        order: str = "lowest",
        seed: int = 0,
        must_serve: Sequence[int] = (),
        attempts_failed: bool = True,
        records_events: bool = False,
        batch_factor: float = 1.0,
    ) -> None: ...

class SimulationFailure:
    seq: int
    requested: int
    needed: int
    reserved: int
    allocated: int

class SimulationResult:
    requests: int
    peak_used: int
    reserved: int
    peak_reserved: int
    peak_reserved_seq: int
    peak_allocated: int
    peak_active: int
    retries: int
    segments_allocated: int
    segments_released: int
    garbage_collected: int
    failure: SimulationFailure | None
    served: list[int]
    failed_again: list[int]
    recorded_events: int
    reproduced: int
    blocks: int
    same_blocks: int
    first_difference: int | None
    several_pools: int | None
    def events(self) -> Columns: ...

class Prediction:
    simulations: list[SimulationResult]
    requests: int
    inherited: int
    inherits_expandable: bool

def predict(
    trace: TraceReader,
    device_type: int,
    device_index: int,
    release: tuple[int, int],
    simulations: Sequence[SimulationOptions],
    growing: Sequence[int] = (),
    progress: Callable[[float], None] | None = None,
) -> Prediction: ...

class FollowedFrame:
    @property
    def function(self) -> str: ...
    @property
    def filename(self) -> str: ...
    @property
    def line(self) -> int: ...
    @property
    def source(self) -> str: ...
    @property
    def cell(self) -> str: ...

class FollowedStack:
    @property
    def device(self) -> int: ...
    @property
    def stack(self) -> int: ...
    @property
    def is_older(self) -> bool: ...
    @property
    def library(self) -> str: ...
    @property
    def node(self) -> str: ...
    @property
    def frames(self) -> list[FollowedFrame]: ...
    @property
    def bytes(self) -> int: ...
    @property
    def blocks(self) -> int: ...
    @property
    def at_points(self) -> list[int]: ...
    @property
    def holder(self) -> str: ...

class FollowedDevice:
    """Memory of one device in bytes, as defined in docs/reading.md."""

    @property
    def device_type(self) -> int: ...
    @property
    def device_index(self) -> int: ...
    @property
    def requested(self) -> int: ...
    @property
    def allocated(self) -> int: ...
    @property
    def active(self) -> int: ...
    @property
    def reserved(self) -> int: ...
    @property
    def releasable(self) -> int: ...
    @property
    def stranded(self) -> int: ...
    @property
    def blocks(self) -> int: ...
    @property
    def reports_segments(self) -> bool: ...
    @property
    def largest_free(self) -> int: ...
    @property
    def peak_allocated(self) -> int: ...
    @property
    def peak_reserved(self) -> int: ...
    @property
    def allocations(self) -> int: ...
    @property
    def total_requested(self) -> int: ...
    @property
    def failed_allocations(self) -> int: ...
    @property
    def driver_used(self) -> int: ...
    @property
    def driver_total(self) -> int: ...
    @property
    def curve_allocated(self) -> list[int]: ...
    @property
    def curve_reserved(self) -> list[int]: ...
    @property
    def requested_at_points(self) -> list[int]: ...

class Followed:
    """State of a running recording: see csrc/core/follow/followed.h."""

    @property
    def readings(self) -> int: ...
    @property
    def read_at_ns(self) -> int: ...
    @property
    def is_caught_up(self) -> bool: ...
    @property
    def events(self) -> int: ...
    @property
    def file_bytes(self) -> int: ...
    @property
    def lost(self) -> int: ...
    @property
    def missing_events(self) -> int: ...
    @property
    def corrupt_blocks(self) -> int: ...
    @property
    def ended(self) -> bool: ...
    @property
    def begin_ns(self) -> int: ...
    @property
    def end_ns(self) -> int: ...
    @property
    def steps(self) -> int: ...
    @property
    def last_step(self) -> int: ...
    @property
    def curve_interval_ns(self) -> int: ...
    @property
    def points_are_steps(self) -> bool: ...
    @property
    def points(self) -> list[float]: ...
    @property
    def devices(self) -> list[FollowedDevice]: ...
    @property
    def stacks(self) -> list[FollowedStack]: ...

class Following:
    """Incremental reader of a running recording. Raises OpenError or FormatError."""

    def __init__(self, path: bytes) -> None: ...
    def request_reading(self) -> None: ...
    def advance(self) -> None: ...
    def stop(self) -> None: ...
    def read_spool_at(self, path: bytes) -> None: ...
    @property
    def header_json(self) -> str: ...
    @property
    def problem(self) -> str: ...
    def latest(self) -> Followed | None: ...
