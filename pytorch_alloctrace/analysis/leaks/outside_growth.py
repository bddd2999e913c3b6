"""Growth of host memory that torch's allocators did not allocate: autograd nodes, C++ and Python objects, pinned pool.

The memory is judged in the unit of the first device (see `clock`): it grew if its minimum just before the last sixth is
above its maximum just before the end of the first third, by `MIN_BYTES` and `MIN_SHARE` of its peak. It is

cpu      anonymous memory of the process less the live bytes of "cpu", if these were recorded. Growth of less than
         `MIN_BYTES` may be the recorder's own
pinned   memory of torch's pinned pool less the live bytes of "pinned"

An allocator may keep what was freed, or return it. So the memory must also have grown in relation to the highest live
bytes so far, and the smaller growth counts.

An autograd graph that one variable keeps alive grew if it had more nodes at each of `MIN_SCANS` object scans, and
`MIN_NODES` in the end. Its nodes are host memory, however small: they are reported without a minimum of bytes.

Memory that grew is explained by the numpy arrays of one object, or its tensors on memory of numpy, if they became more
from each of `MIN_SCANS` object scans to the next, and by `MIN_EXPLAINED` of the growth in all.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...reading.names import HOST_DEVICES
from ...reading.recorded import Held, RecordedTrace
from .clock import Clock
from .doubts import MIN_UNITS
from .leak import Holder, LeakVerdict
from .referrers import find_step, make_holder

MIN_BYTES = 64 << 20
MIN_SHARE = 0.05
MIN_NODES = 1000
MIN_SCANS = 4
MIN_NODE_GROWTH = 4
"""Minimum ratio of a graph's last to its first number of nodes."""
MIN_EXPLAINED = 0.25
_BEGIN, _END, _WINDOW = 1 / 3, 5 / 6, 1 / 12
_POINTS = 2000


@dataclass(frozen=True)
class OutsideGrowth:
    """Host memory that grew outside torch's allocators."""

    device: str
    """"cpu" or "pinned"."""
    bytes: int
    """Growth between a third and five sixths of the run; 0 if it is too little."""
    bytes_per_unit: float
    """`bytes` for each step or iteration of this time."""
    unit: str
    """"step" or "iteration"."""
    last_bytes: int
    """Memory outside torch's allocators at the end of this time."""
    is_cpu_recorded: bool
    """False if the memory may contain CPU tensors."""
    nodes: int = 0
    """Number of autograd nodes of the longest graph that grew; 0 if none did."""
    holder: Holder | None = None
    """Object that keeps the graph alive; without a graph, the object that keeps more and more numpy arrays."""


def find_outside_growth(
    trace: RecordedTrace, clock: Clock, verdicts: Sequence[LeakVerdict]
) -> tuple[OutsideGrowth, ...]:
    """Return the growth of "cpu" and "pinned"; none if the run is too short to judge.

    Graphs of variables are left out if the verdicts on the devices report the tensors that these variables hold.
    """
    if not clock.is_discrete or clock.length + 1 < MIN_UNITS:
        return ()
    reported = [leak.holder for verdict in verdicts for leak in verdict.leaks]
    reported += [growth.holder for verdict in verdicts for growth in verdict.undecided]
    names = {name for holder in reported if holder is not None for name in (holder.name, holder.path)}
    growths = (
        dataclasses.replace(growth, nodes=0, holder=None)
        if growth.nodes and growth.holder is not None and (growth.holder.name or growth.holder.path) in names
        else growth
        for growth in _find_growth(trace, clock)
    )
    return tuple(growth for growth in growths if growth.bytes or growth.nodes)


def _find_growth(trace: RecordedTrace, clock: Clock) -> Iterator[OutsideGrowth]:
    shares = [_BEGIN - _WINDOW, _BEGIN, _END - _WINDOW, _END]
    events = np.interp([share * clock.length for share in shares], clock.counts, clock.ends).astype(np.int64)
    times = [trace.replay.time_before(int(event) + 1) for event in events]
    for device in HOST_DEVICES:
        samples = trace.driver_samples(device)
        column = "anonymous_bytes" if device == "cpu" else "used_bytes"
        is_known = ~np.ma.getmaskarray(samples[column])
        sample_times, levels = samples["time_ns"][is_known], np.ma.getdata(samples[column])[is_known]
        if not len(levels):
            continue
        is_recorded = device in trace.devices
        of_torch = _live_and_highest(trace, device, sample_times) if is_recorded else (np.zeros_like(levels),)
        growth, min_growth, last_bytes = np.iinfo(np.int64).max, np.iinfo(np.int64).max, 0
        for live in reversed(of_torch):
            early, late = (_in_window(sample_times, levels - live, *window) for window in (times[:2], times[2:]))
            growth = min(growth, int(late.max() - early.max()))
            min_growth, last_bytes = min(min_growth, int(late.min() - early.max())), int(late.max())
        graph = _find_growing_graph(trace) if device == "cpu" else None
        arrays = None
        if min_growth < max(MIN_BYTES, MIN_SHARE * last_bytes):
            if graph is None:
                continue
            growth = 0
        elif device == "cpu" and graph is None:
            arrays = _find_growing_arrays(trace, growth)
        keeper = graph or arrays
        yield OutsideGrowth(
            device=device,
            bytes=growth,
            bytes_per_unit=growth / ((_END - _BEGIN) * clock.length),
            unit=clock.unit,
            last_bytes=last_bytes,
            is_cpu_recorded=device != "cpu" or is_recorded,
            nodes=graph.nodes if graph is not None else 0,
            holder=None if keeper is None else make_holder(trace, [keeper], find_step(trace, keeper.event), 1.0),
        )


def _live_and_highest(
    trace: RecordedTrace, device: str, times: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the allocated bytes at each of some times, and the highest up to it."""
    timeline = trace.timeline(_POINTS, device)
    interval = np.clip(np.searchsorted(timeline["time_ns"], times, side="right") - 1, 0, None)
    live, highest = (np.ma.getdata(timeline[name]) for name in ("allocated_bytes", "allocated_bytes_max"))
    return live[interval], np.maximum.accumulate(highest)[interval]


def _in_window(
    times: npt.NDArray[np.int64], levels: npt.NDArray[np.int64], begin: int, end: int
) -> npt.NDArray[np.int64]:
    """Return the levels between two times, and the one that held at the first. Samples are written on change."""
    first = max(int(np.searchsorted(times, begin, side="right")) - 1, 0)
    return levels[first : max(int(np.searchsorted(times, end, side="right")), first + 1)]


def _find_growing_graph(trace: RecordedTrace) -> Held | None:
    """Return the variable with the longest graph that grew from scan to scan, at its last complete scan."""
    growing = _find_growing(
        [held for held in trace.held if held.nodes and held.has_all_nodes],
        lambda held: held.nodes,
        lambda first, last: last >= max(MIN_NODES, MIN_NODE_GROWTH * first),
    )
    return max(growing, key=lambda held: held.nodes, default=None)


def _find_growing_arrays(trace: RecordedTrace, growth: int) -> Held | None:
    """Return the object whose memory of numpy grew by most of `growth` from scan to scan, at its last scan."""
    growing = _find_growing(
        [held for held in trace.held if held.foreign_bytes],
        lambda held: held.foreign_bytes,
        lambda first, last: last - first >= MIN_EXPLAINED * growth,
    )
    return max(growing, key=lambda held: held.foreign_bytes, default=None)


def _find_growing(
    scans: Sequence[Held], size_of: Callable[[Held], int], is_enough: Callable[[int, int], bool]
) -> Iterator[Held]:
    """Yield the last scan of each object whose size rose from scan to scan. is_enough: of first and last size."""
    scans_of: dict[str, list[Held]] = {}
    for held in scans:
        scans_of.setdefault(held.path, []).append(held)
    for same in scans_of.values():
        sizes = [size_of(held) for held in same]
        is_rising = all(before < after for before, after in itertools.pairwise(sizes))
        if len(same) >= MIN_SCANS and is_rising and is_enough(sizes[0], sizes[-1]):
            yield same[-1]
