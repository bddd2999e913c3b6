"""Inefficiencies of a CUDA device's memory, other than leaks (`leaks`) and failed allocations (`oom`).

Each has a number of bytes at stake, at least `MIN_BYTES` and `MIN_SHARE` of the reserved bytes (outside: of the device;
fragmentation at the peak: `MIN_LOST_SHARE`): torch's segments of 2 and 20 MiB cause a few in every program. Half of the
run is half of its time or of its allocations, whichever shows more, since a program may load data for half of the time.
The run ends where leaks are judged (`leaks.clock`): afterwards main() has returned and freed its memory.

    fragmentation  peak of reserved bytes - peak of active bytes - largest pool of a CUDA graph, whose replays use its
                   free memory: without fragmentation the rest would have been enough. `unusable` is the free memory
                   that the request at the peak could not use, by cause: the last for which torch reserved more than a
                   segment of the small pool.
                   Else stranded bytes at the last position of the trace with at least their median over the run, since
                   every program strands some within a step
    cache          releasable bytes that were not used in the second half of the run, outside private pools and unless
                   fragmentation explains them or the run is too short for leaks to be judged; `is_warmup` if last used
                   in the first quarter
    rounding       allocated - requested bytes at the peak of allocated bytes
    pending        maximum bytes, over the ends of timeline intervals, that are freed but awaited by another stream
    churn          bytes taken from the driver in the second half of the run, compared with the maximum reserved in it.
                   Estimated from timeline intervals, usually too low
    outside        maximum bytes used outside torch (contexts, libraries, other processes) from `MIN_OUTSIDE_BYTES` on:
                   a context and CUDA's libraries use half a GiB and more
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ...reading.recorded import RecordedTrace
from ...reading.sites import Site, SiteNumbers
from ...reading.table import sums
from ..leaks.clock import Clocks
from ..walk import Walk
from .fragmentation import Fragmentation
from .inefficiency import MIN_BYTES, Cause, Inefficiency, elapsed_s, is_notable
from .inefficiency_evidence import HALF, InefficiencyEvidence
from .unusable_memory import PrivatePools, describe_pinned, list_causes

MIN_OUTSIDE_BYTES = 1 << 30
MIN_CAUSE_SHARE = 0.1
"""Minimum share of the unusable bytes at the peak for a cause to be named."""
QUARTER = 0.25
"""Share of the run, in allocations."""
MIN_CHURN = 3.0
"""Minimum ratio of bytes taken from the driver in half a run to the maximum reserved in it."""


def find_inefficiencies(trace: RecordedTrace, device: str) -> tuple[Inefficiency, ...]:
    """Return the inefficiencies of a device, most bytes first; none if its allocator reports no segments."""
    walk = Walk(trace)
    evidence = InefficiencyEvidence(walk, trace, device, tuple(Clocks(trace, device)))
    walk.make()
    return inefficiencies_of(evidence)


def inefficiencies_of(evidence: InefficiencyEvidence) -> tuple[Inefficiency, ...]:
    if not evidence.reports_segments:
        return ()
    fragmentation = [*_judge_fragmentation(evidence)]
    inefficiencies = [
        *_judge_rounding(evidence),
        *fragmentation,
        *_judge_cache(evidence, fragmentation),
        *_judge_pending(evidence),
        *_judge_churn(evidence),
        *_judge_outside(evidence),
    ]
    return tuple(sorted(inefficiencies, key=lambda inefficiency: -inefficiency.bytes))


def _judge_fragmentation(evidence: InefficiencyEvidence) -> Iterator[Inefficiency]:
    if evidence.at_peak is not None and not evidence.at_peak.is_compacted:
        explained = _explain_peak(evidence, evidence.at_peak.result)
        if explained is not None:
            yield explained
            return
    if evidence.fragmentation is None:
        return
    trace, device, seq = evidence.trace, evidence.device, evidence.fragmentation.until - 1
    seconds = elapsed_s(trace, trace.time_ns(seq))
    if evidence.fragmentation.is_compacted:
        if is_notable(evidence.stranded, evidence.reserved):
            yield Inefficiency("fragmentation", device, evidence.stranded, evidence.reserved, seconds)
        return
    worst = evidence.fragmentation.result
    pools = PrivatePools(trace, worst, seq)
    part = worst.part(~pools.are_segments_of(pools.of_graphs))
    if not len(part.pinners_by_line):
        return  # every segment is mostly full: no block is a pinner
    pinned = describe_pinned(trace, part, evidence.find_unit_age_ns(seq))
    if not is_notable(pinned.bytes, worst.reserved_bytes):
        return
    yield Inefficiency(
        *("fragmentation", device, pinned.bytes, worst.reserved_bytes, seconds),
        site=pinned.site,
        stack_id=pinned.stack_id,
        site_bytes=pinned.site_bytes,
        unusable=(pinned,),
    )


def _explain_peak(evidence: InefficiencyEvidence, at_peak: Fragmentation) -> Inefficiency | None:
    """Return the fragmentation at the peak of reserved bytes, with its causes; None if it is not notable."""
    request, trace = evidence.peak_request, evidence.trace
    assert request is not None
    pools = PrivatePools(trace, at_peak, request.seq)
    unneeded = at_peak.reserved_bytes - evidence.max_active_bytes - pools.largest_graph_bytes
    if not is_notable(unneeded, at_peak.reserved_bytes, evidence.min_lost_share):
        return None
    causes = [*list_causes(trace, at_peak, request, pools)]
    min_bytes = MIN_CAUSE_SHARE * sum(part.bytes for part in causes)
    causes = sorted(
        (part for part in causes if part.bytes >= max(min_bytes, 1) and (part.cause != Cause.PINNED or part.site)),
        key=lambda part: -part.bytes,
    )
    if not causes:
        return None
    stack = causes[0].stack_id or request.stack_id
    figures: dict[str, float] = {}
    device_bytes = trace.device_bytes(evidence.device)
    are_graphs_growing = evidence.share_at(pools.last_graph_event) >= HALF
    if causes[0].cause == Cause.GRAPHS and are_graphs_growing and device_bytes is not None:
        pool_bytes = causes[0].total_bytes / causes[0].count
        figures["graphs_until_full"] = max(device_bytes - at_peak.reserved_bytes, 0) // pool_bytes
    return Inefficiency(
        *("fragmentation", evidence.device, unneeded, at_peak.reserved_bytes),
        elapsed_s(trace, trace.time_ns(request.seq)),
        site=Site.of_stack(trace.stacks, stack),
        stack_id=stack,
        site_bytes=causes[0].site_bytes,
        figures=figures,
        unusable=tuple(causes),
        request=request,
        max_split_size=at_peak.settings.max_split_size or 0,
    )


def _judge_cache(evidence: InefficiencyEvidence, fragmentation: Sequence[Inefficiency]) -> Iterator[Inefficiency]:
    if evidence.at_end_of_work is None:
        return
    unused, reserved = evidence.unused_bytes, int(evidence.values("reserved_bytes")[-1])
    if not evidence.at_end_of_work.is_compacted:
        # empty_cache() returns nothing of private pools, such as those of live CUDA graphs.
        unused -= evidence.at_end_of_work.result.releasable_bytes_of_pools
    explained = max((finding.bytes for finding in fragmentation), default=0)
    if not is_notable(unused - explained, reserved):
        return
    share = evidence.allocation_share
    last_needed = int(np.flatnonzero(evidence.values("releasable_bytes_min") < evidence.unused_bytes).max(initial=0))
    was_warmup = bool(share[last_needed] < QUARTER)
    seconds = elapsed_s(evidence.trace, int(evidence.timeline["time_ns"][last_needed]))
    figures = {"is_warmup": float(was_warmup)}
    cache = Inefficiency("cache", evidence.device, unused, reserved, seconds, figures=figures)
    released = _find_released_line(evidence)
    if released is not None and 2 * released.site_bytes >= unused:
        cache = replace(cache, site=released.site, stack_id=released.stack_id, site_bytes=released.site_bytes)
    yield cache


def _find_released_line(evidence: InefficiencyEvidence) -> Inefficiency | None:
    """Return the line of user code that released the most bytes from the peak to the end of the work, if any.

    To the end of the run if the peak follows the work.
    """
    peak, end = evidence.peak, evidence.stacks_after_peak
    if peak is None or end is None or peak.is_compacted or end.is_compacted:
        return None
    stack_ids = peak.result["stack_id"]
    count = int(max(stack_ids.max(initial=0), end.result["stack_id"].max(initial=0))) + 1
    released = sums(stack_ids, peak.result["live_block_bytes"], count)
    released -= sums(end.result["stack_id"], end.result["live_block_bytes"], count)
    sizes = np.maximum(released[stack_ids], 0)
    if not sizes.any():
        return None
    return _attribute_to_line(evidence, "cache", stack_ids, sizes, peak.until - 1, int(sizes.sum()))


def _judge_rounding(evidence: InefficiencyEvidence) -> Iterator[Inefficiency]:
    if evidence.peak is None:
        return
    stacks = evidence.peak.result
    wasted = np.maximum(stacks["live_block_bytes"] - stacks["live_bytes"], 0)
    allocated = int(stacks["live_block_bytes"].sum())
    if is_notable(int(wasted.sum()), allocated):
        blocks = np.maximum(stacks["live_blocks"], 1)
        figures = {
            "block_bytes": float(np.average(stacks["live_block_bytes"] / blocks, weights=wasted)),
            "wasted_bytes": float(np.average(wasted / blocks, weights=wasted)),
        }
        stack_ids, seq = stacks["stack_id"], evidence.peak.until - 1
        yield _attribute_to_line(evidence, "rounding", stack_ids, wasted, seq, allocated, figures)


def _judge_pending(evidence: InefficiencyEvidence) -> Iterator[Inefficiency]:
    if evidence.pending is None:
        return
    seq, reserved = evidence.pending.until - 1, int(evidence.values("reserved_bytes_max").max())
    figures = {"byte_seconds": float(evidence.pending_bytes.mean()) * elapsed_s(evidence.trace, evidence.end_ns)}
    if evidence.pending.is_compacted:
        seconds = elapsed_s(evidence.trace, evidence.trace.time_ns(seq))
        # The second largest value: one interval may end between the two events of an ordinary free.
        second_largest = int(np.sort(evidence.pending_bytes)[-2:].min())
        if is_notable(second_largest, reserved):
            yield Inefficiency("pending", evidence.device, second_largest, reserved, seconds, figures=figures)
        return
    blocks = evidence.pending.result
    # Hardly any block is pending if the interval ended between the two events of an ordinary free: in older traces, and
    # because borders are exact only to some hundred nanoseconds.
    if not is_notable(int(blocks["block_bytes"].sum()), reserved):
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
        begin = elapsed_s(evidence.trace, int(evidence.timeline["time_ns"][is_second_half][0]))
        calls = float(evidence.trace.kind_counts.get("empty_cache", 0))
        figures = {"times": taken_bytes / max_reserved, "calls": calls}
        yield Inefficiency("churn", evidence.device, taken_bytes, max_reserved, begin, figures=figures)


def _judge_outside(evidence: InefficiencyEvidence) -> Iterator[Inefficiency]:
    total = evidence.trace.device_bytes(evidence.device)
    outside: Any = evidence.run["outside_bytes"]
    if np.ma.getmaskarray(outside).all() or total is None:
        return
    interval = int(np.ma.filled(outside, np.iinfo(np.int64).min).argmax())
    max_outside = int(outside[interval])
    if max_outside >= MIN_OUTSIDE_BYTES and is_notable(max_outside, total):
        seconds = elapsed_s(evidence.trace, int(evidence.run["time_ns"][interval]))
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
    numbers = SiteNumbers(trace.stacks.line_numbers).of(stack_ids)
    by_line = sums(numbers, sizes, int(numbers.max()) + 1)
    largest = int(by_line.argmax())
    stack = int(stack_ids[numbers == largest][0])
    return Inefficiency(
        *(kind, evidence.device, int(sizes.sum()), total, elapsed_s(trace, trace.time_ns(seq))),
        site=Site.of_stack(trace.stacks, stack),
        stack_id=stack,
        site_bytes=int(by_line[largest]),
        figures=figures or {},
    )
