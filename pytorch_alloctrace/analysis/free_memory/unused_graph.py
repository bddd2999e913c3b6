"""Autograd graph at the peak that no backward uses: an evaluation without `torch.no_grad()`.

The activations of a line's calls of the model (`forwards`) hold `LARGE_SHARE` of the peak. Later they are freed, but
not by backward, and no pass of backward evaluates the line before. Calls count that would be the cause of out of
memory, and in training a single call from a line that backward never evaluates.

A run may end between forward and backward, by an exception. So the program must allocate afterwards, or have trained by
other lines alone and free the graph before it exits, or have called the model more often than `MIN_CALLS` times without
any backward.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ...reading.names import HOST_DEVICES
from ...reading.positions import Range
from ...reading.recorded import FREES, RecordedTrace
from ...reading.replay import Peak
from ...reading.sites import Site, StackIndex
from ...reading.table import Table
from .forwards import LARGE_SHARE, MAX_EVENTS, MIN_CALLS, ForwardReader, Forwards, find_lines, find_module_calls
from .inefficiency import MIN_BYTES, Inefficiency

UNUSED_GRAPH = "unused_graph"
MIN_FREED_SHARE = 0.9
"""Minimum share of the bytes of the graph to be freed before backward evaluates its line, if it ever does."""
MAX_BACKWARD_SHARE = 0.3
"""Maximum share of the bytes of the graph that backward frees."""
MAX_OTHER_SHARE = 0.01
"""Maximum share of the bytes of the graph that its line holds while it does not run."""
_POINTS = 2000


def find_graph_at_peak(trace: RecordedTrace, device: str, peak: Peak) -> Inefficiency | Forwards | None:
    """Return the graph at the peak of allocated bytes if no backward uses it. Raises CompactedError.

    Returns the forwards if a backward uses the graphs of many at once; None for ordinary training.

    The line of an unused graph calls the model, or calls the function that does if backward evaluates calls from
    elsewhere. figures: is_training (1 if any backward ran before), is_trained (1 if backward evaluates other calls of
    the line), is_in_thread (1 if the line runs in a thread of `threading`), other_peak_bytes (peak of training while
    the line does not run; absent if unknown).
    """
    # On the CPU, backward runs on the calling thread, and the forward of its allocations is not recorded.
    if peak.bytes < MIN_BYTES or device in HOST_DEVICES or not find_module_calls(trace.stacks).any():
        return None
    until = peak.seq + 1
    live = trace.replay.live(until, device)
    in_backward = any(events["node_type"].any() for events in trace.iter_events(Range(peak.seq, until)))
    reader = ForwardReader(trace, device, until, live, in_backward=in_backward)
    _, calls = reader.read_forwards()
    if calls is None or calls.forwards.may_lack_graph:
        return None
    size = int(live["block_bytes"][calls.rows].sum())
    if size < max(MIN_BYTES, LARGE_SHARE * peak.bytes):
        return None
    later = reader.read_events(Range(until, min(until + MAX_EVENTS, trace.end_seq)))
    is_backward = later["node_type"] != 0
    evaluated = np.union1d(calls.evaluated, later["stack"][is_backward])
    caller = _find_own_caller(trace.stacks, calls.forwards.site.stack_id, evaluated)
    forwards = calls.forwards
    is_evaluation = forwards.is_training and caller > 0
    if not is_evaluation and forwards.find_cause(peak.bytes) is None:
        return None
    end = _find_end(trace, device, until, live.take(calls.rows))
    is_pass = is_backward & (later["seq"] < end)
    # A backward in Python may evaluate any forward: only its own stack is known.
    may_be_of_line = np.isin(later["stack"], calls.stacks) | (later["stack"] > 0) & (later["forward_stack_id"] == 0)
    if not end or (is_pass & may_be_of_line).any():
        are_many = max(forwards.count, forwards.call_count) >= MIN_CALLS
        return forwards if are_many and forwards.find_cause(peak.bytes) is not None else None
    goes_on = (later["seq"] > end).any()
    # An exception that ends another phase of training keeps its graph until the program exits.
    scan = trace.final_scan
    is_evaluation &= end < (trace.end_seq if scan is None or scan.event < 0 else scan.event)
    is_inference = not forwards.is_training and max(forwards.count, forwards.call_count) > MIN_CALLS
    if not (goes_on or is_evaluation or is_inference):
        return None
    stack = caller or calls.forwards.site.stack_id
    figures = {
        "is_training": float(forwards.is_training),
        "is_trained": float(not caller),
        "is_in_thread": float(forwards.is_in_thread),
    }
    if caller and (other_peak := _find_other_peak(trace, device, caller, evaluated, size)):
        figures["other_peak_bytes"] = other_peak
    return Inefficiency(
        kind=UNUSED_GRAPH,
        device=device,
        bytes=size,
        total_bytes=peak.bytes,
        seconds=max(peak.time_ns - trace.begin_ns, 0) / 1e9,
        site=Site.of_stack(trace.stacks, stack),
        stack_id=stack,
        site_bytes=size,
        figures=figures,
    )


def _find_own_caller(stacks: StackIndex, stack: int, evaluated: npt.NDArray[np.int64]) -> int:
    """Return the innermost part of a stack at a line that no evaluated stack contains; 0 if there is none."""
    lines, shared_lines = stacks.group("line"), find_lines(stacks, evaluated)
    while stacks.has_frames(stack):
        if int(lines[stack]) not in shared_lines:
            return stack
        stack = int(stacks.parent[stack])
    return 0


def _find_end(trace: RecordedTrace, device: str, until: int, graph: Table) -> int:
    """Return the event by which the graph was freed without backward; 0 if backward freed it, or if unknown.

    A graph that is live when the program exits ends there.
    """
    sizes = dict(zip(graph["address"].tolist(), graph["block_bytes"].tolist(), strict=True))
    total = sum(sizes.values())
    freed = by_backward = 0
    last = min(until + MAX_EVENTS, trace.end_seq)
    for events in trace.iter_events(Range(until, last), FREES, with_state=False):
        rows = events.take((trace.devices_of(events) == device) & np.isin(events["address"], graph["address"]))
        columns = (rows[name].tolist() for name in ("address", "seq", "node_type"))
        for address, seq, node_type in zip(*columns, strict=True):
            size = sizes.pop(address, 0)  # later frees are of other blocks
            freed += size
            by_backward += size if node_type else 0
            if freed >= MIN_FREED_SHARE * total:
                return int(seq) if by_backward <= MAX_BACKWARD_SHARE * freed else 0
    has_ended = trace.final_scan is not None and trace.integrity.is_complete
    return last if last == trace.end_seq and has_ended else 0


def _find_other_peak(
    trace: RecordedTrace, device: str, caller: int, evaluated: npt.NDArray[np.int64], size: int
) -> int:
    """Return the peak of allocated bytes in intervals without the graph of a line; 0 if none of them has training.

    evaluated: Stacks of forward that backward evaluates.
    """
    stacks = trace.stacks
    lines = stacks.group("line")
    is_training = np.zeros(len(lines), np.bool_)
    is_training[evaluated] = True
    return find_peak_without(trace, device, stacks.outermost(lines == lines[caller]) > 0, is_training, size)


def find_peak_without(
    trace: RecordedTrace, device: str, is_part: npt.NDArray[np.bool_], is_training: npt.NDArray[np.bool_], size: int
) -> int:
    """Return the peak of allocated bytes in intervals in which some stacks hold hardly anything; 0 if unknown.

    Args:
        trace: Trace.
        device: Device as torch spells it.
        is_part: By stack: whether it is one of these stacks.
        is_training: By stack: whether it allocates in training. The peak is unknown if none does in these intervals.
        size: Bytes of these stacks at the peak of the device.
    """
    groups = np.where(is_part, 0, np.where(is_training, 1, 2))
    timelines = trace.group_timelines(_POINTS, trace.begin_ns, trace.end_ns, {device: groups}, 3)
    held, training, _ = timelines[device].highest[:, -3:].T
    is_without = held <= MAX_OTHER_SHARE * size
    if not training[is_without].any():
        return 0
    is_known = timelines[device].highest.any(axis=1)  # not compacted
    return int(trace.timeline(_POINTS, device)["allocated_bytes_max"][is_without & is_known].max(initial=0))
