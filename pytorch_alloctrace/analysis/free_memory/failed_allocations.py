"""The failed allocations of a trace, and how the program went on after each."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ..._replay import MINIMUM_BLOCK
from ...reading.names import KINDS
from ...reading.positions import Range
from ...reading.recorded import RecordedTrace
from ...reading.table import Table

_OOM = KINDS.index("oom")
_UNSIGNED = (1 << 64) - 1
_CHUNK = 1_000_000
ENDED, WENT_ON, RETRIED = "ended", "went on", "retried"


@dataclass(frozen=True)
class FailedAllocation:
    """A request that the allocator refused. Bytes."""

    seq: int
    """Number of the event."""
    time_ns: int
    """Since 1970-01-01 UTC."""
    device: str
    """Torch's spelling."""
    requested_bytes: int
    """As torch rounded it up."""
    device_free_bytes: int
    """What the driver reported as free on the device at that time."""
    stream: int
    """That it was for."""
    pool: tuple[int, int]
    """That it was for; (0, 0): not a private one."""
    thread: int
    """As in `Trace.threads`."""
    stack_id: int
    """0: unknown."""
    node_type: str
    """The autograd node that was evaluated, in full ("torch::autograd::generated::MmBackward0"); "": none."""
    backward: bool = False
    """`stack_id` is that of the forward that caused it: autograd's threads have none."""
    outcome: str = ENDED
    """"ended": nothing more was allocated on the device; "retried": a later request of this size or more was served;
    "went on": smaller ones were, or, where the request is in a compacted part, any."""
    outcome_seq: int | None = None
    """The event of that allocation, the first one; None: none, or it is in a compacted part."""
    outcome_ns: int | None = None
    """Its time, since 1970-01-01 UTC."""


def find_failed_allocations(
    trace: RecordedTrace, *, device: str | None = None, within: Range | None = None, last: int | None = None
) -> list[FailedAllocation]:
    """In order; on one device or all, in a range, only the last n of them. Reads the events from the first one on.

    Of those in a compacted part only the ones before which the memory is known.
    """
    within = within or Range(0, trace.end_seq)
    numbers = np.array([*trace.failed_allocations], dtype=np.int64)
    wanted = np.array([seq for seq in numbers[within.has(numbers)] if trace.is_known_at(int(seq) - 1)], dtype=np.int64)
    if not len(wanted):
        return []
    requests: deque[FailedAllocation] = deque(maxlen=last)
    compacted = trace.integrity.compacted_until
    first = 0 if wanted.min() < compacted else int(wanted.min())
    for events in trace.iter_events(Range(first, trace.end_seq), ("oom", "alloc"), chunk=_CHUNK, with_state=False):
        devices = trace.devices_of(events)
        is_oom = events["kind"] == _OOM
        refused = is_oom & np.isin(events["seq"], wanted)
        if device is not None:
            refused &= devices == device
        requests.extend(_requests(trace, events.take(refused)))
        for name in {request.device for request in requests if request.outcome != RETRIED}:
            _settle(requests, name, events.take(~is_oom & (devices == name)))
    return [one if one.seq >= compacted else _settled_in_compacted_part(trace, one) for one in requests]


def _settled_in_compacted_part(trace: RecordedTrace, request: FailedAllocation) -> FailedAllocation:
    """What the events after it were is not known, but whether anything was allocated."""
    before, after = (
        int(trace.stack_totals(at, device=request.device)["allocations"].sum()) for at in (request.seq - 1, "end")
    )
    return replace(request, outcome=WENT_ON if after > before else ENDED, outcome_seq=None, outcome_ns=None)


def _requests(trace: RecordedTrace, events: Table) -> list[FailedAllocation]:
    caused_by = trace.failed_allocations
    types = trace.node_types
    requests = []
    for row in events.rows():
        device, stream, pool = trace.locations.row(row["location"])
        requests.append(
            FailedAllocation(
                seq=row["seq"],
                time_ns=row["time_ns"],
                device=device,
                requested_bytes=row["requested_bytes"],
                device_free_bytes=row["address"] & _UNSIGNED,
                stream=stream,
                pool=pool,
                thread=row["thread"],
                stack_id=row["stack_id"] or caused_by[row["seq"]],
                node_type=str(types[min(row["node_type"], len(types) - 1)]),
                backward=caused_by[row["seq"]] != 0,
            )
        )
    return requests


def _settle(requests: deque[FailedAllocation], device: str, served: Table) -> None:
    """Notes the outcome of the failed allocations of a device, as far as these allocations show it."""
    if not len(served):
        return
    seq: npt.NDArray[np.int64] = served["seq"]
    # An out-of-memory event has the size rounded up, an allocation as it was asked for.
    sizes = -(-served["requested_bytes"] // MINIMUM_BLOCK) * MINIMUM_BLOCK
    largest_from = np.maximum.accumulate(sizes[::-1])[::-1]
    for index, request in enumerate(requests):
        if request.device != device or request.outcome == RETRIED:
            continue
        first = int(np.searchsorted(seq, request.seq))
        if first == len(seq):
            continue
        if largest_from[first] >= request.requested_bytes:
            row, outcome = first + int(np.argmax(sizes[first:] >= request.requested_bytes)), RETRIED
        elif request.outcome == ENDED:
            row, outcome = first, WENT_ON
        else:
            continue
        time_ns = int(served["time_ns"][row])
        requests[index] = replace(request, outcome=outcome, outcome_seq=int(seq[row]), outcome_ns=time_ns)
