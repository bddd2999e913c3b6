"""Types of the compiled module: csrc/python/reading."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy.typing as npt

from .errors import TraceError

_Device = tuple[int, int]  # type, index
Columns = dict[str, npt.NDArray[Any]]
"""A table, by column. Numbers are int64, addresses uint64."""

MINIMUM_BLOCK: int
"""Sizes of blocks are rounded up to a multiple of it. This and what follows: rules of torch's allocator, in bytes."""
SMALL_REQUEST: int
"""Requests up to here come from the small pool."""
SMALL_SEGMENT: int
"""Size of all its segments; unit of those that are made for one request."""
LEAST_OWN_SEGMENT: int
"""From here on a request gets a segment of its own size."""
DEFAULT_LARGE_SEGMENT: int
LEAST_SPLIT_SIZE: int
"""torch takes no max_split_size_mb that is not above this."""

class FormatError(TraceError): ...
class OpenError(TraceError): ...

class EventStream:
    def next(self, wanted: int) -> Columns | None: ...

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
    removed_spool: bytes
    events: int
    uncommitted: int

def finish_trace(path: str | bytes, spool_path: str | bytes = "") -> FinishedTrace: ...

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
    def stack_labels(self) -> list[tuple[str, str]]: ...
    def library_blocks(self) -> list[tuple[int, int, int]]: ...
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
    """A step's end, a mark, a region's begin or end."""

    kind: int
    seq: int
    time_ns: int
    value: int
    """The number of the step, or the string id of the name."""
    is_said: bool
    """Of a step: the program ended it, not an optimizer."""
    live_bytes: list[int]
    """Requested bytes on each device, in the order of `Replay.timelines`."""

class Refusal:
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
    columns: Columns

class LongLives:
    """Which blocks of a device lived long: see csrc/core/replay/long_lives.h."""

    begins: npt.NDArray[Any]
    """The event with which each cell begins."""
    begins_ns: npt.NDArray[Any]
    """Its time (ns since 1970)."""
    cell_length: int
    """Allocations in each cell, but in the last."""
    allocations: int
    last_allocation: int
    """Number of the event."""
    last_ns: int
    """Its time."""
    deaths: Columns
    """stack_id, born, died (cells), blocks, allocated (bytes)."""

class Loop:
    """A function that begins again and again under the same calls: see csrc/core/replay/loops.h."""

    caller: int
    """The stack that calls it; 0: it is the outermost."""
    function: int
    """A stack that ends in it."""
    depth: int
    rounds: int
    stride: int
    begins: npt.NDArray[Any]
    """The event with which each `stride`-th round begins."""

class Disagreement:
    seq: int
    device: int
    """Its index in `Replay.timelines`."""
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

class Replay:
    def __init__(self, trace: TraceReader, points: int, progress: Callable[[float], object] | None = None) -> None: ...
    @property
    def positions(self) -> list[PositionEvent]: ...
    @property
    def refusals(self) -> list[Refusal]: ...
    @property
    def kind_counts(self) -> list[int]: ...
    @property
    def unmatched_frees(self) -> int: ...
    @property
    def missed_frees(self) -> int: ...
    @property
    def findings(self) -> ReplayFindings: ...
    def time_before(self, until: int) -> int: ...
    def segments_before(self, until: int, wanted: _Device | None = None) -> list[DeviceColumns]: ...
    def blocks_before(self, until: int, wanted: _Device | None = None) -> list[DeviceColumns]: ...
    def live_before(
        self, until: int, wanted: _Device | None = None, stacks: Sequence[int] | None = None
    ) -> list[DeviceColumns]: ...
    def stacks_before(self, until: int, wanted: _Device | None = None) -> list[DeviceColumns]: ...
    def events(self, first: int, end: int = ..., kinds: Sequence[int] = ()) -> EventStream: ...
    def sequence_after(self, time_ns: int) -> int: ...
    def timelines(self) -> list[DeviceTimeline]: ...
    def long_lives(self) -> list[LongLives]:
        """By device, in the order of `timelines`."""
    def loops(self) -> list[Loop]: ...
    def nodes_made(self) -> npt.NDArray[Any]:
        """By stack: about how many of its allocations were of operators that made an autograd node."""
    def samples(self) -> Columns: ...
