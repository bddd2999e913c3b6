"""An inefficiency of a CUDA device's memory: its kind, the bytes at stake, and a line."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from ...reading.recorded import RecordedTrace
from ...reading.sites import Site
from ..leaks.leak import Holder

MIN_SHARE = 0.2
MIN_BYTES = 64 << 20


class Cause(enum.Enum):
    """Reason why a request could not use free memory."""

    PINNED = "pinned"
    """It lies next to live blocks."""
    SPLIT_LIMIT = "split limit"
    """It is in pieces from max_split_size on, and the request is smaller."""
    SIZES = "sizes"
    """It is in wholly free segments of other sizes."""
    STREAMS = "streams"
    """It was freed on other streams."""
    GRAPHS = "graphs"
    """It belongs to the pools of CUDA graphs, of which the largest pool would be enough."""
    POOLS = "pools"
    """It belongs to other private pools (MemPool)."""
    DEFAULT_POOL = "default pool"
    """It belongs to the default pool, and the request to a private pool."""


@dataclass(frozen=True)
class UnusableMemory:
    """Free memory that a request could not use, for one reason."""

    cause: Cause
    bytes: int
    count: int = 0
    """Number of blocks of `site` that pin it, of free pieces, of streams, or of private pools."""
    total_bytes: int = 0
    """Bytes of these blocks, pieces, or of all segments of these streams or pools."""
    site: Site | None = None
    """Line whose blocks pin the most, or that used most of the private pools first; None if unknown."""
    stack_id: int = 0
    site_bytes: int = 0
    """Bytes that the blocks of `site` pin."""
    largest_bytes: int = 0
    """Bytes of the largest free piece."""
    is_of_step: bool = False
    """True if the blocks of `site` that pin it are allocated and freed within the step of the request."""


@dataclass(frozen=True)
class PeakRequest:
    """Request for which torch reserved the peak of reserved bytes."""

    seq: int
    """Event number of the allocation."""
    requested_bytes: int
    stream: int
    pool: tuple[int, int]
    stack_id: int
    site: Site


@dataclass(frozen=True)
class Inefficiency:
    """One inefficiency of a device. Sizes are bytes of blocks, after rounding."""

    kind: str
    """One of fragmentation, cache, rounding, pending, churn, outside, garbage (see `garbage_cycles`), autocast (see
    `autocast_cache`), unused_graph (see `unused_graph`), unused_gradients (see `unused_gradients`)."""
    device: str
    bytes: int
    total_bytes: int
    """Reserved bytes at that time; for outside, the bytes of the device."""
    seconds: float
    """Seconds from the beginning of the recording. For cache: when the bytes were last used."""
    site: Site | None = None
    """Line with the largest part; None if there is none, or if the time is in a compacted part."""
    stack_id: int = 0
    site_bytes: int = 0
    """Bytes of this line: for fragmentation the bytes that its blocks pin, else its part of the bytes at stake."""
    figures: dict[str, float] = field(default_factory=dict)
    """fragmentation by CUDA graphs that are captured in the second half of the run: graphs_until_full, the number of
    further graphs that the device has room for; cache: is_warmup (0, 1); pending: byte_seconds; churn: times, and
    calls, the number of calls of empty_cache.
    """
    unusable: tuple[UnusableMemory, ...] = ()
    """fragmentation: the free memory by cause, the most bytes first; empty in a compacted part of the trace."""
    request: PeakRequest | None = None
    """fragmentation: the request at the peak of reserved bytes; None if the bytes are stranded ones."""
    holder: Holder | None = None
    """garbage: the object that held the blocks at an object scan; None if no scan reached them."""
    max_split_size: int = 0
    """fragmentation: the setting at that time, in bytes; 0: no limit."""


def is_notable(size: int, total: int, min_share: float = MIN_SHARE) -> bool:
    return size >= MIN_BYTES and size >= min_share * total


def elapsed_s(trace: RecordedTrace, time_ns: int) -> float:
    return max(time_ns - trace.begin_ns, 0) / 1e9
