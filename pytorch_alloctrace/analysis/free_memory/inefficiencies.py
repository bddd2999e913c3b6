"""Inefficiencies of a CUDA device's memory, other than leaks (`leaks`) and failed allocations (`oom`).

Each has a number of bytes at stake, at least `MIN_BYTES` and `MIN_SHARE` of the reserved bytes (outside: of the
device): torch's segments of 2 and 20 MiB cause a few in every program. Half of the run is half of its time or of its
allocations, whichever shows more, since a program may load data for half of the time.

    fragmentation  stranded bytes at the last position with at least their median over the run, since every program
                   strands some within a step. Its line is the one that pins the most (`pinning`)
    cache          releasable bytes that were not used in the second half of the run; `is_warmup` if last used in the
                   first quarter
    rounding       allocated - requested bytes at the peak of allocated bytes
    pending        maximum bytes, over the ends of timeline intervals, that are freed but awaited by another stream
    churn          bytes taken from the driver in the second half of the run, compared with the maximum reserved in it.
                   Estimated from timeline intervals, usually too low
    outside        maximum bytes used outside torch (contexts, libraries, other processes) from `MIN_OUTSIDE_BYTES` on:
                   a context and CUDA's libraries use half a GiB and more
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

MIN_SHARE = 0.2
MIN_BYTES = 64 << 20
MIN_OUTSIDE_BYTES = 1 << 30
HALF, QUARTER = 0.5, 0.25
"""Shares of the run, in allocations."""
MIN_CHURN = 3.0
"""Minimum ratio of bytes taken from the driver in half a run to the maximum reserved in it."""
_POINTS = 2000


@dataclass(frozen=True)
class Inefficiency:
    """One inefficiency of a device. Sizes are bytes of blocks, after rounding."""

    kind: str
    """One of fragmentation, cache, rounding, pending, churn, outside."""
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
    """fragmentation: blocks, block_bytes of the line; cache: is_warmup (0, 1); pending: byte_seconds; churn: times."""


def find_inefficiencies(trace: RecordedTrace, device: str) -> tuple[Inefficiency, ...]:
    """Return the inefficiencies of a device, most bytes first; none if its allocator reports no segments."""
    walk = Walk(trace)
    evidence = InefficiencyEvidence(walk, trace, device)
    walk.make()
    return inefficiencies_of(evidence)


class InefficiencyEvidence:
    """Evidence for inefficiencies: the timeline, and the memory at its worst positions."""

    def __init__(self, walk: Walk, trace: RecordedTrace, device: str) -> None:
        self.trace = trace
        self.device = device
        self.fragmentation: Visit[Fragmentation] | None = None
        """Fragmentation at the last position with at least the median of stranded bytes."""
        self.pending: Visit[Table] | None = None
        self.peak: Visit[Table] | None = None
        self.timeline = trace.timeline(_POINTS, device)
        self.reports_segments = len(self.timeline) > 0 and not np.ma.getmaskarray(self.timeline["reserved_bytes"]).all()
        if not self.reports_segments:
            return
        end_times = np.append(self.timeline["time_ns"][1:], trace.end_ns)
        self.allocation_share = AllocationShare(trace, device).share_until(end_times)
        """Share of the device's allocations by the end of each interval."""
        if (interval := self._find_fragmented_interval()) is not None:
            seq = self.end_of(interval)
            self.fragmentation = walk.visit(seq + 1, partial(fragmentation_at, trace, seq, device=device))
            self.stranded = int(self.values("stranded_bytes")[interval])
            self.reserved = int(self.values("reserved_bytes")[interval])
        pending_bytes = self.timeline["active_bytes"] - self.timeline["allocated_bytes"]
        self.pending_bytes = pending_bytes
        if _is_notable(int(pending_bytes.max()), int(self.timeline["reserved_bytes_max"].max())):
            seq = self.end_of(int(pending_bytes.argmax()))
            self.pending = walk.visit(seq + 1, partial(_pending_blocks, trace, seq + 1, device))
        peak = trace.replay.peak("allocated", device)
        if peak is not None:
            until = peak.seq + 1
            self.peak = walk.visit(until, lambda: trace.replay.stacks(until, device))

    def _find_fragmented_interval(self) -> int | None:
        is_used = self.values("reserved_bytes_max") > 0
        min_stranded = self.values("stranded_bytes_min")
        allocation_shares = np.diff(self.allocation_share, prepend=0.0)
        median = (
            max(
                _weighted_median(min_stranded[is_used], weights[is_used])
                for weights in (allocation_shares, np.ones(len(allocation_shares)))
            )
            if is_used.any()
            else 0
        )
        if median < MIN_BYTES:
            return None
        return int(np.flatnonzero(self.values("stranded_bytes") >= median)[-1])

    def values(self, name: str) -> npt.NDArray[np.int64]:
        """Return a column of the timeline, 0 where it is unknown."""
        column: Any = self.timeline[name]
        return np.asarray(np.ma.filled(column, 0))

    def end_of(self, interval: int) -> int:
        """Return the last event up to the end of a timeline interval."""
        times = self.timeline["time_ns"]
        end_ns = self.trace.end_ns if interval + 1 == len(times) else int(times[interval + 1])
        return self.trace.first_event_after_time(end_ns) - 1


def inefficiencies_of(evidence: InefficiencyEvidence) -> tuple[Inefficiency, ...]:
    if not evidence.reports_segments:
        return ()
    inefficiencies = [
        *_judge_rounding(evidence),
        *_judge_fragmentation(evidence),
        *_judge_cache(evidence),
        *_judge_pending(evidence),
        *_judge_churn(evidence),
        *_judge_outside(evidence),
    ]
    return tuple(sorted(inefficiencies, key=lambda inefficiency: -inefficiency.bytes))


def _is_notable(size: int, total: int) -> bool:
    return size >= MIN_BYTES and size >= MIN_SHARE * total


def _judge_fragmentation(evidence: InefficiencyEvidence) -> Iterator[Inefficiency]:
    if evidence.fragmentation is None:
        return
    trace, device, seq = evidence.trace, evidence.device, evidence.fragmentation.until - 1
    if evidence.fragmentation.is_compacted:
        if _is_notable(evidence.stranded, evidence.reserved):
            seconds = _elapsed_s(trace, trace.time_ns(seq))
            yield Inefficiency("fragmentation", device, evidence.stranded, evidence.reserved, seconds)
        return
    worst = evidence.fragmentation.result
    if not _is_notable(worst.stranded_bytes, worst.reserved_bytes):
        return
    top_line = next(iter(worst.pinners_by_line.head(1).rows()), None)
    if top_line is None:
        return  # every segment is mostly full: no block is a pinner
    stack = int(top_line["stack_id"])
    yield Inefficiency(
        *("fragmentation", device, worst.stranded_bytes, worst.reserved_bytes, _elapsed_s(trace, trace.time_ns(seq))),
        site=Site.of_stack(trace.stacks, stack),
        stack_id=stack,
        site_bytes=int(top_line["stranded_bytes"]),
        figures={"blocks": int(top_line["blocks"]), "block_bytes": int(top_line["allocated_bytes"])},
    )


def _judge_cache(evidence: InefficiencyEvidence) -> Iterator[Inefficiency]:
    lowest, share = evidence.values("releasable_bytes_min"), evidence.allocation_share
    unused = max(int(half.min()) if len(half) else 0 for half in (lowest[share >= HALF], lowest[len(lowest) // 2 :]))
    reserved = int(evidence.values("reserved_bytes")[-1])
    if not _is_notable(unused, reserved):
        return
    last_needed = int(np.flatnonzero(lowest < unused).max(initial=0))
    was_warmup = bool(share[last_needed] < QUARTER)
    seconds = _elapsed_s(evidence.trace, int(evidence.timeline["time_ns"][last_needed]))
    yield Inefficiency("cache", evidence.device, unused, reserved, seconds, figures={"is_warmup": int(was_warmup)})


def _judge_rounding(evidence: InefficiencyEvidence) -> Iterator[Inefficiency]:
    if evidence.peak is None:
        return
    stacks = evidence.peak.result
    wasted = np.maximum(stacks["live_block_bytes"] - stacks["live_bytes"], 0)
    allocated = int(stacks["live_block_bytes"].sum())
    if _is_notable(int(wasted.sum()), allocated):
        yield _attribute_to_line(evidence, "rounding", stacks["stack_id"], wasted, evidence.peak.until - 1, allocated)


def _pending_blocks(trace: RecordedTrace, until: int, device: str) -> Table:
    blocks = trace.replay.blocks(until, device)
    return blocks.take(blocks["state"] == PENDING_FREE).select("stack_id", "block_bytes")


def _judge_pending(evidence: InefficiencyEvidence) -> Iterator[Inefficiency]:
    if evidence.pending is None:
        return
    seq, reserved = evidence.pending.until - 1, int(evidence.values("reserved_bytes_max").max())
    figures = {"byte_seconds": float(evidence.pending_bytes.mean()) * _elapsed_s(evidence.trace, evidence.trace.end_ns)}
    if evidence.pending.is_compacted:
        seconds = _elapsed_s(evidence.trace, evidence.trace.time_ns(seq))
        # The second largest value: one interval may end between the two events of an ordinary free.
        second_largest = int(np.sort(evidence.pending_bytes)[-2:].min())
        if _is_notable(second_largest, reserved):
            yield Inefficiency("pending", evidence.device, second_largest, reserved, seconds, figures=figures)
        return
    blocks = evidence.pending.result
    # Hardly any block is pending if the interval ended between the two events of an ordinary free: in older traces, and
    # because borders are exact only to some hundred nanoseconds.
    if not _is_notable(int(blocks["block_bytes"].sum()), reserved):
        return
    yield _attribute_to_line(evidence, "pending", blocks["stack_id"], blocks["block_bytes"], seq, reserved, figures)


def _judge_churn(evidence: InefficiencyEvidence) -> Iterator[Inefficiency]:
    is_second_half = evidence.allocation_share >= HALF
    if not is_second_half.any():
        return
    names = ("reserved_bytes", "reserved_bytes_min", "reserved_bytes_max")
    level, lowest, highest = (evidence.values(name)[is_second_half] for name in names)
    previous_level = np.concatenate([level[:1], level[:-1]])
    taken_bytes, max_reserved = int((highest - np.minimum(lowest, previous_level)).sum()), int(highest.max())
    if max_reserved >= MIN_BYTES and taken_bytes >= MIN_CHURN * max_reserved:
        begin = _elapsed_s(evidence.trace, int(evidence.timeline["time_ns"][is_second_half][0]))
        yield Inefficiency(
            "churn", evidence.device, taken_bytes, max_reserved, begin, figures={"times": taken_bytes / max_reserved}
        )


def _judge_outside(evidence: InefficiencyEvidence) -> Iterator[Inefficiency]:
    total = evidence.trace.device_bytes.get(evidence.device)
    outside: Any = evidence.timeline["outside_bytes"]
    if np.ma.getmaskarray(outside).all() or total is None:
        return
    interval = int(np.ma.filled(outside, np.iinfo(np.int64).min).argmax())
    max_outside = int(outside[interval])
    if max_outside >= MIN_OUTSIDE_BYTES and _is_notable(max_outside, total):
        seconds = _elapsed_s(evidence.trace, int(evidence.timeline["time_ns"][interval]))
        yield Inefficiency("outside", evidence.device, max_outside, total, seconds)


def _attribute_to_line(
    evidence: InefficiencyEvidence,
    kind: str,
    stack_ids: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    seq: int,
    total: int,
    figures: dict[str, float] | None = None,
) -> Inefficiency:
    """Return an inefficiency with `sizes` at stake, by stack, and the line with the largest part."""
    trace = evidence.trace
    numbers = SiteNumbers(trace.stacks).of(stack_ids)
    by_line = sums(numbers, sizes, int(numbers.max()) + 1)
    largest = int(by_line.argmax())
    stack = int(stack_ids[numbers == largest][0])
    return Inefficiency(
        *(kind, evidence.device, int(sizes.sum()), total, _elapsed_s(trace, trace.time_ns(seq))),
        site=Site.of_stack(trace.stacks, stack),
        stack_id=stack,
        site_bytes=int(by_line[largest]),
        figures=figures or {},
    )


def _weighted_median(values: npt.NDArray[np.int64], weights: npt.NDArray[np.float64]) -> int:
    order = np.argsort(values, kind="stable")
    below = np.cumsum(weights[order])
    return int(values[order][np.searchsorted(below, below[-1] / 2)])


def _elapsed_s(trace: RecordedTrace, time_ns: int) -> float:
    return max(time_ns - trace.begin_ns, 0) / 1e9
