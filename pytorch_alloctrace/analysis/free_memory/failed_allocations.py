"""Failed allocations of a trace, and how the program went on after each."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ..._replay import MIN_BLOCK_SIZE
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
    """A failed allocation (out of memory). Sizes in bytes."""

    seq: int
    """Event number of the failure."""
    time_ns: int
    """Nanoseconds since 1970-01-01 UTC."""
    device: str
    """Device in torch's spelling."""
    requested_bytes: int
    """Requested bytes as rounded by torch."""
    device_free_bytes: int
    """Free bytes of the device at the failure, as the driver reported them."""
    stream: int
    """Stream of the request."""
    pool: tuple[int, int]
    """Pool of the request; (0, 0): not a private pool."""
    thread: int
    """Thread of the request, as in `Trace.threads`."""
    stack_id: int
    """Stack of the request; 0: unknown."""
    node_type: str
    """Full name of the running autograd node ("torch::autograd::generated::MmBackward0"); empty if none."""
    backward: bool = False
    """True if `stack_id` is the forward stack that caused the request: autograd's threads have none."""
    outcome: str = ENDED
    """What the program allocated on the device afterwards: "ended", "retried" or "went on".

    "ended": nothing. "retried": a request of this size or more. "went on": only smaller ones; for a failure in a
    compacted part, any.
    """
    outcome_seq: int | None = None
    """First event of such an allocation; None if there is none or it is in a compacted part."""
    outcome_ns: int | None = None
    """Time of that event in nanoseconds since 1970-01-01 UTC."""


def find_failed_allocations(
    trace: RecordedTrace, *, device: str | None = None, within: Range | None = None, last: int | None = None
) -> list[FailedAllocation]:
    """Return the failed allocations in order, or the `last` n; in a compacted part, only those at a known state."""
    within = within or Range(0, trace.end_seq)
    seqs = np.array([*trace.failed_allocations], dtype=np.int64)
    selected_seqs = np.array([seq for seq in seqs[within.has(seqs)] if trace.is_known_at(int(seq) - 1)], dtype=np.int64)
    if not len(selected_seqs):
        return []
    failures: deque[FailedAllocation] = deque(maxlen=last)
    compacted = trace.integrity.compacted_until
    first = 0 if selected_seqs.min() < compacted else int(selected_seqs.min())
    for events in trace.iter_events(Range(first, trace.end_seq), ("oom", "alloc"), chunk=_CHUNK, with_state=False):
        devices = trace.devices_of(events)
        is_oom = events["kind"] == _OOM
        is_selected = is_oom & np.isin(events["seq"], selected_seqs)
        if device is not None:
            is_selected &= devices == device
        failures.extend(_read_failures(trace, events.take(is_selected)))
        for name in {failure.device for failure in failures if failure.outcome != RETRIED}:
            _update_outcomes(failures, name, events.take(~is_oom & (devices == name)))
    return [failure if failure.seq >= compacted else _set_compacted_outcome(trace, failure) for failure in failures]


def _set_compacted_outcome(trace: RecordedTrace, failure: FailedAllocation) -> FailedAllocation:
    """Return the failure with its outcome from allocation totals: the events after it are compacted."""
    before, after = (
        int(trace.stack_totals(at, device=failure.device)["allocations"].sum()) for at in (failure.seq - 1, "end")
    )
    return replace(failure, outcome=WENT_ON if after > before else ENDED, outcome_seq=None, outcome_ns=None)


def _read_failures(trace: RecordedTrace, events: Table) -> list[FailedAllocation]:
    forward_stacks = trace.failed_allocations
    node_types = trace.node_types
    failures = []
    for row in events.rows():
        device, stream, pool = trace.locations.row(row["location"])
        failures.append(
            FailedAllocation(
                seq=row["seq"],
                time_ns=row["time_ns"],
                device=device,
                requested_bytes=row["requested_bytes"],
                device_free_bytes=row["address"] & _UNSIGNED,
                stream=stream,
                pool=pool,
                thread=row["thread"],
                stack_id=row["stack_id"] or forward_stacks[row["seq"]],
                node_type=str(node_types[min(row["node_type"], len(node_types) - 1)]),
                backward=forward_stacks[row["seq"]] != 0,
            )
        )
    return failures


def _update_outcomes(failures: deque[FailedAllocation], device: str, allocations: Table) -> None:
    if not len(allocations):
        return
    seq: npt.NDArray[np.int64] = allocations["seq"]
    # An oom event has the rounded size, an alloc event the requested one.
    sizes = -(-allocations["requested_bytes"] // MIN_BLOCK_SIZE) * MIN_BLOCK_SIZE
    largest_from = np.maximum.accumulate(sizes[::-1])[::-1]
    for index, failure in enumerate(failures):
        if failure.device != device or failure.outcome == RETRIED:
            continue
        first = int(np.searchsorted(seq, failure.seq))
        if first == len(seq):
            continue
        if largest_from[first] >= failure.requested_bytes:
            row, outcome = first + int(np.argmax(sizes[first:] >= failure.requested_bytes)), RETRIED
        elif failure.outcome == ENDED:
            row, outcome = first, WENT_ON
        else:
            continue
        time_ns = int(allocations["time_ns"][row])
        failures[index] = replace(failure, outcome=outcome, outcome_seq=int(seq[row]), outcome_ns=time_ns)
