"""Conditions: what is wrong with a CUDA device's memory besides leaks (`leaks`) and failed allocations (`oom`).

Each condition has the bytes that are at stake. It is reported only if these are at least `SHARE` of what the device has
reserved (of memory outside PyTorch: of the device) and at least `LEAST` bytes: torch takes memory in segments of 2 and
20 MiB, so that every program has some of it. Halves of the run are those of its time or of its allocations, whichever
shows more: a program that first loads for half an hour is judged by what it does then.

    fragmentation  stranded bytes, at the last position at which there are as many as in half of the run: every program
                   strands some for a short time within a step. Its line is the one that pins the most (`pinning`)
    cache          releasable bytes that nothing has used in the last half of the run: the fewest in it. If they were
                   last needed in the first quarter, only the warm-up needed them
    rounding       allocated - requested bytes at the peak of allocated bytes
    pending        the most bytes, at the end of one of the timeline's intervals, that are freed but still awaited by
                   another stream (record_stream)
    churn          what torch took from the driver in the second half of the run, in multiples of the most that was
                   reserved in it: memory that goes back and forth (estimated from the timeline's intervals, so rather
                   too low)
    outside        the most that others than torch used on the device: contexts, libraries, other processes; at least
                   `LEAST_OUTSIDE`, since a context and CUDA's libraries take half a GiB and more
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ...reading.recorded import RecordedTrace
from ...reading.sites import Site, SiteNumbers
from ...reading.table import PENDING_FREE, Table, sums
from ..allocation_share import AllocationShare
from ..walk import Visit, Walk
from .fragmentation import Fragmentation, fragmentation_at

SHARE = 0.2
LEAST = 64 << 20
LEAST_OUTSIDE = 1 << 30
HALF, QUARTER = 0.5, 0.25
"""Of the run, in allocations."""
CHURN = 3.0
"""The memory must go back and forth at least this many times in half a run."""
_POINTS = 2000


@dataclass(frozen=True)
class Inefficiency:
    """One thing that is wrong. Bytes are those of blocks, after rounding."""

    kind: str
    """"fragmentation", "cache", "rounding", "pending", "churn" or "outside"."""
    device: str
    bytes: int
    """At stake."""
    of: int
    """Reserved at that time; for `outside` the size of the device."""
    seconds: float
    """When it was, since the recording began. Of cache: since when it is unused."""
    site: Site | None = None
    """The line with the largest part in it; None if no line has one, and if the time is in a compacted part."""
    stack_id: int = 0
    site_bytes: int = 0
    """Its part: of fragmentation the bytes that its blocks pin, otherwise of the bytes at stake."""
    figures: dict[str, float] = field(default_factory=dict)
    """fragmentation: blocks, block_bytes (of the line). cache: is_warmup (0 or 1). pending: byte_seconds (bytes x time,
    summed). churn: times."""


def find_inefficiencies(trace: RecordedTrace, device: str) -> tuple[Inefficiency, ...]:
    """Return what is wrong with a device, most bytes first; nothing if its allocator reports no segments."""
    walk = Walk(trace)
    evidence = InefficiencyEvidence(walk, trace, device)
    walk.make()
    return inefficiencies_of(evidence)


class InefficiencyEvidence:
    """Evidence for conditions: the timeline, and the memory where it was at its worst."""

    def __init__(self, walk: Walk, trace: RecordedTrace, device: str) -> None:
        self.trace = trace
        self.device = device
        self.fragmentation: Visit[Fragmentation] | None = None
        """The last position at which as much is stranded as in half of the run."""
        self.pending: Visit[Table] | None = None
        """The blocks that wait for another stream, where that is the most."""
        self.peak: Visit[Table] | None = None
        """`Replay.stacks` at the peak of allocated bytes."""
        self.timeline = trace.timeline(_POINTS, device)
        self.reports_segments = len(self.timeline) > 0 and not np.ma.getmaskarray(self.timeline["reserved_bytes"]).all()
        if not self.reports_segments:
            return
        # The share of the device's work that was done by the end of each interval.
        ends = np.append(self.timeline["time_ns"][1:], trace.end_ns)
        self.done = AllocationShare(trace, device).share_until(ends)
        if (interval := self._of_fragmentation()) is not None:
            at = self.end_of(interval)
            self.fragmentation = walk.visit(at + 1, partial(fragmentation_at, trace, at, device=device))
            self.stranded = int(self.values("stranded_bytes")[interval])
            self.reserved = int(self.values("reserved_bytes")[interval])
        waiting = self.timeline["active_bytes"] - self.timeline["allocated_bytes"]
        self.waiting = waiting
        if _is_notable(int(waiting.max()), int(self.timeline["reserved_bytes_max"].max())):
            at = self.end_of(int(waiting.argmax()))
            self.pending = walk.visit(at + 1, partial(_pending_blocks, trace, at + 1, device))
        peak = trace.replay.peak("allocated", device)
        if peak is not None:
            until = peak.seq + 1
            self.peak = walk.visit(until, lambda: trace.replay.stacks(until, device))

    def _of_fragmentation(self) -> int | None:
        used = self.values("reserved_bytes_max") > 0
        lowest = self.values("stranded_bytes_min")
        work = np.diff(self.done, prepend=0.0)
        usual = max(_median(lowest[used], weights[used]) for weights in (work, np.ones(len(work)))) if used.any() else 0
        if usual < LEAST:
            return None
        return int(np.flatnonzero(self.values("stranded_bytes") >= usual)[-1])

    def values(self, name: str) -> npt.NDArray[np.int64]:
        """Return a column of the timeline; 0 where it is unknown."""
        column: Any = self.timeline[name]
        return np.asarray(np.ma.filled(column, 0))

    def end_of(self, interval: int) -> int:
        """Return the last event up to the end of one of the timeline's intervals."""
        times = self.timeline["time_ns"]
        end_ns = self.trace.end_ns if interval + 1 == len(times) else int(times[interval + 1])
        return self.trace.first_event_after_time(end_ns) - 1


def inefficiencies_of(evidence: InefficiencyEvidence) -> tuple[Inefficiency, ...]:
    """Return what is wrong with a device, most bytes first."""
    if not evidence.reports_segments:
        return ()
    inefficiencies = [
        *_rounding(evidence),
        *_fragmentation(evidence),
        *_cache(evidence),
        *_pending(evidence),
        *_churn(evidence),
        *_outside(evidence),
    ]
    return tuple(sorted(inefficiencies, key=lambda one: -one.bytes))


def _is_notable(amount: int, of: int) -> bool:
    return amount >= LEAST and amount >= SHARE * of


def _fragmentation(evidence: InefficiencyEvidence) -> Iterator[Inefficiency]:
    if evidence.fragmentation is None:
        return
    trace, device, at = evidence.trace, evidence.device, evidence.fragmentation.until - 1
    if evidence.fragmentation.is_compacted:
        if _is_notable(evidence.stranded, evidence.reserved):
            when = _seconds(trace, trace.time_ns(at))
            yield Inefficiency("fragmentation", device, evidence.stranded, evidence.reserved, when)
        return
    worst = evidence.fragmentation.result
    if not _is_notable(worst.stranded_bytes, worst.reserved_bytes):
        return
    first = next(iter(worst.pinners_by_line.head(1).rows()), None)
    if first is None:
        return  # all segments are rather full: moving nothing would help
    stack = int(first["stack_id"])
    yield Inefficiency(
        *("fragmentation", device, worst.stranded_bytes, worst.reserved_bytes, _seconds(trace, trace.time_ns(at))),
        site=Site.of_stack(trace.stacks, stack),
        stack_id=stack,
        site_bytes=int(first["stranded_bytes"]),
        figures={"blocks": int(first["blocks"]), "block_bytes": int(first["allocated_bytes"])},
    )


def _cache(evidence: InefficiencyEvidence) -> Iterator[Inefficiency]:
    lowest, done = evidence.values("releasable_bytes_min"), evidence.done
    unused = max(int(half.min()) if len(half) else 0 for half in (lowest[done >= HALF], lowest[len(lowest) // 2 :]))
    reserved = int(evidence.values("reserved_bytes")[-1])
    if not _is_notable(unused, reserved):
        return
    last_needed = int(np.flatnonzero(lowest < unused).max(initial=0))
    was_warmup = bool(done[last_needed] < QUARTER)
    when = _seconds(evidence.trace, int(evidence.timeline["time_ns"][last_needed]))
    yield Inefficiency("cache", evidence.device, unused, reserved, when, figures={"is_warmup": int(was_warmup)})


def _rounding(evidence: InefficiencyEvidence) -> Iterator[Inefficiency]:
    if evidence.peak is None:
        return
    held = evidence.peak.result
    wasted = np.maximum(held["live_block_bytes"] - held["live_bytes"], 0)
    allocated = int(held["live_block_bytes"].sum())
    if _is_notable(int(wasted.sum()), allocated):
        yield _by_site(evidence, "rounding", held["stack_id"], wasted, evidence.peak.until - 1, allocated)


def _pending_blocks(trace: RecordedTrace, until: int, device: str) -> Table:
    blocks = trace.replay.blocks(until, device)
    return blocks.take(blocks["state"] == PENDING_FREE).select("stack_id", "block_bytes")


def _pending(evidence: InefficiencyEvidence) -> Iterator[Inefficiency]:
    if evidence.pending is None:
        return
    at, reserved = evidence.pending.until - 1, int(evidence.values("reserved_bytes_max").max())
    figures = {"byte_seconds": float(evidence.waiting.mean()) * _seconds(evidence.trace, evidence.trace.end_ns)}
    if evidence.pending.is_compacted:
        when = _seconds(evidence.trace, evidence.trace.time_ns(at))
        # The second largest: one interval may end between the two events of an ordinary free.
        most = int(np.sort(evidence.waiting)[-2:].min())
        if _is_notable(most, reserved):
            yield Inefficiency("pending", evidence.device, most, reserved, when, figures=figures)
        return
    blocks = evidence.pending.result
    # In older traces an interval may end between the two events of an ordinary free; and borders are exact to some
    # hundred nanoseconds.
    if not _is_notable(int(blocks["block_bytes"].sum()), reserved):
        return
    yield _by_site(evidence, "pending", blocks["stack_id"], blocks["block_bytes"], at, reserved, figures)


def _churn(evidence: InefficiencyEvidence) -> Iterator[Inefficiency]:
    half = evidence.done >= HALF
    if not half.any():
        return
    names = ("reserved_bytes", "reserved_bytes_min", "reserved_bytes_max")
    level, lowest, highest = (evidence.values(name)[half] for name in names)
    before = np.concatenate([level[:1], level[:-1]])
    taken, reserved = int((highest - np.minimum(lowest, before)).sum()), int(highest.max())
    if reserved >= LEAST and taken >= CHURN * reserved:
        begin = _seconds(evidence.trace, int(evidence.timeline["time_ns"][half][0]))
        yield Inefficiency("churn", evidence.device, taken, reserved, begin, figures={"times": taken / reserved})


def _outside(evidence: InefficiencyEvidence) -> Iterator[Inefficiency]:
    total = evidence.trace.device_bytes.get(evidence.device)
    outside: Any = evidence.timeline["outside_bytes"]
    if np.ma.getmaskarray(outside).all() or total is None:
        return
    interval = int(np.ma.filled(outside, np.iinfo(np.int64).min).argmax())
    most = int(outside[interval])
    if most >= LEAST_OUTSIDE and _is_notable(most, total):
        when = _seconds(evidence.trace, int(evidence.timeline["time_ns"][interval]))
        yield Inefficiency("outside", evidence.device, most, total, when)


def _by_site(
    evidence: InefficiencyEvidence,
    kind: str,
    stack_ids: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    at: int,
    of: int,
    figures: dict[str, float] | None = None,
) -> Inefficiency:
    """Return a condition whose bytes at stake are `sizes`, by stack; its line is the one with the most."""
    trace = evidence.trace
    numbers = SiteNumbers(trace.stacks).of(stack_ids)
    by_line = sums(numbers, sizes, int(numbers.max()) + 1)
    largest = int(by_line.argmax())
    stack = int(stack_ids[numbers == largest][0])
    return Inefficiency(
        *(kind, evidence.device, int(sizes.sum()), of, _seconds(trace, trace.time_ns(at))),
        site=Site.of_stack(trace.stacks, stack),
        stack_id=stack,
        site_bytes=int(by_line[largest]),
        figures=figures or {},
    )


def _median(values: npt.NDArray[np.int64], weights: npt.NDArray[np.float64]) -> int:
    """The value that half of the weight lies up to."""
    order = np.argsort(values, kind="stable")
    below = np.cumsum(weights[order])
    return int(values[order][np.searchsorted(below, below[-1] / 2)])


def _seconds(trace: RecordedTrace, time_ns: int) -> float:
    return max(time_ns - trace.begin_ns, 0) / 1e9
