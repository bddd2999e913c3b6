"""Conditions: what is wrong with a CUDA device's memory besides leaks (`leaks`) and refused requests (`oom`).

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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pandas as pd

from ...reading.positions import Position
from ...reading.recorded import RecordedTrace, blocks_by_stack
from ...reading.sites import Site, SiteNumbers
from ..work import Work
from .allocator import SettingsHistory
from .fragmentation import fragmentation_at

if TYPE_CHECKING:
    from ..what_if.advice import Advice

SHARE = 0.2
LEAST = 64 << 20
LEAST_OUTSIDE = 1 << 30
HALF, QUARTER = 0.5, 0.25
"""Of the run, in allocations."""
CHURN = 3.0
"""The memory must go back and forth at least this many times in half a run."""
_POINTS = 2000


@dataclass(frozen=True)
class Condition:
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
    """The line with the largest part in it, if there is one."""
    stack_id: int = 0
    site_bytes: int = 0
    """Its part: of fragmentation the bytes that its blocks pin, otherwise of the bytes at stake."""
    figures: dict[str, float] = field(default_factory=dict)
    """fragmentation: blocks, block_bytes (of the line). cache: is_warmup (0 or 1). pending: byte_seconds (bytes x time,
    summed). churn: times."""
    advice: Advice | None = field(default=None, repr=False)
    """fragmentation: whether expandable segments would have reserved less; None where they are on already."""


def find_conditions(trace: RecordedTrace, device: str) -> tuple[Condition, ...]:
    """What is wrong with a device, most bytes first; nothing if its allocator reports no segments."""
    return conditions_by_device(trace, [device])[device]


def conditions_by_device(trace: RecordedTrace, devices: Sequence[str]) -> dict[str, tuple[Condition, ...]]:
    """The same of each of these devices."""
    found = {device: _at_any_time(trace, device) for device in devices}
    # Last: a summary has asked ahead for the states at the peaks, which may still be on their way.
    for device, conditions in found.items():
        if conditions is not None:
            conditions[:0] = _rounding(trace, device)
    return {device: tuple(sorted(some or (), key=lambda one: -one.bytes)) for device, some in found.items()}


def _at_any_time(trace: RecordedTrace, device: str) -> list[Condition] | None:
    """Those that are not of the peak; None if its allocator reports no segments."""
    table = trace.timeline(_POINTS, device=device)
    if not len(table) or table["reserved_max"].isna().all():
        return None
    # The share of the device's work that was done by the end of each interval.
    ends = np.append(table["time_ns"].to_numpy(np.int64)[1:], trace.end_ns)
    table["done"] = Work(trace, device).share_until(ends)
    found = [*_fragmentation(trace, device, table), *_cache(trace, device, table)]
    return [*found, *_pending(trace, device, table), *_churn(trace, device, table), *_outside(trace, device, table)]


def _is_notable(amount: int, of: int) -> bool:
    return amount >= LEAST and amount >= SHARE * of


def _fragmentation(trace: RecordedTrace, device: str, table: pd.DataFrame) -> Iterator[Condition]:
    used = _integers(table["reserved_max"]) > 0
    lowest = _integers(table["stranded_min"])
    work = np.diff(table["done"].to_numpy(np.float64), prepend=0.0)
    usual = max(_median(lowest[used], weights[used]) for weights in (work, np.ones(len(work)))) if used.any() else 0
    if usual < LEAST:
        return
    at = _end_of(trace, table, int(np.flatnonzero(_integers(table["stranded"]) >= usual)[-1]))
    worst = fragmentation_at(trace, at, device=device, is_last=True)
    if not _is_notable(worst.stranded, worst.reserved):
        return
    first = next(iter(worst.pinners_by_line.to_dict("records")), None)
    if first is None:
        return  # all segments are rather full: moving nothing would help
    from ..what_if.advice import advice_to_reserve_less

    stack = int(first["stack_id"])
    yield Condition(
        *("fragmentation", device, worst.stranded, worst.reserved, _seconds(trace, trace.time_ns(at))),
        site=Site.of_stack(trace.stacks, stack),
        stack_id=stack,
        site_bytes=int(first["stranded"]),
        figures={"blocks": int(first["blocks"]), "block_bytes": int(first["bytes"])},
        advice=None
        if SettingsHistory(trace).before(device, trace.end_seq).expandable_segments
        else advice_to_reserve_less(trace, device, ("expandable_segments:True",)),
    )


def _cache(trace: RecordedTrace, device: str, table: pd.DataFrame) -> Iterator[Condition]:
    lowest = _integers(table["releasable_min"])
    done = table["done"].to_numpy(np.float64)
    unused = max(int(half.min()) if len(half) else 0 for half in (lowest[done >= HALF], lowest[len(lowest) // 2 :]))
    reserved = int(table["reserved"].iloc[-1])
    if not _is_notable(unused, reserved):
        return
    last_needed = int(np.flatnonzero(lowest < unused).max(initial=0))
    was_warmup = bool(done[last_needed] < QUARTER)
    when = _seconds(trace, int(table["time_ns"].iloc[last_needed]))
    yield Condition("cache", device, unused, reserved, when, figures={"is_warmup": int(was_warmup)})


def _rounding(trace: RecordedTrace, device: str) -> Iterator[Condition]:
    peak = trace.replay.peak("allocated", device)
    if peak is None:
        return
    [held] = trace.replay.stacks(peak.seq + 1, device)
    wasted = (held["live_allocated"] - held["live_bytes"]).clip(lower=0)
    allocated = int(held["live_allocated"].sum())
    if _is_notable(int(wasted.sum()), allocated):
        yield _by_site(trace, "rounding", device, held.assign(nbytes=wasted), peak.seq, allocated)


def _pending(trace: RecordedTrace, device: str, table: pd.DataFrame) -> Iterator[Condition]:
    waiting = _integers(table["active"]) - _integers(table["allocated"])
    most = int(waiting.argmax())
    reserved = int(table["reserved_max"].max())
    if not _is_notable(int(waiting[most]), reserved):
        return
    at = _end_of(trace, table, most)
    blocks = blocks_by_stack(trace, at, device)
    blocks = blocks[blocks["state"] == "active_pending_free"]
    # In older traces an interval may end between the two events of an ordinary free; and borders are exact to some
    # hundred nanoseconds.
    if not _is_notable(int(blocks["nbytes"].sum()), reserved):
        return
    figures = {"byte_seconds": float(waiting.mean()) * _seconds(trace, trace.end_ns)}
    yield _by_site(trace, "pending", device, blocks, at, reserved, figures)


def _churn(trace: RecordedTrace, device: str, table: pd.DataFrame) -> Iterator[Condition]:
    half = table[table["done"] >= HALF]
    if half.empty:
        return
    before = np.concatenate([[int(half["reserved"].iloc[0])], _integers(half["reserved"])[:-1]])
    taken = int((_integers(half["reserved_max"]) - np.minimum(_integers(half["reserved_min"]), before)).sum())
    reserved = int(half["reserved_max"].max())
    if reserved >= LEAST and taken >= CHURN * reserved:
        begin = _seconds(trace, int(half["time_ns"].iloc[0]))
        yield Condition("churn", device, taken, reserved, begin, figures={"times": taken / reserved})


def _outside(trace: RecordedTrace, device: str, table: pd.DataFrame) -> Iterator[Condition]:
    known = table[table["outside"].notna()]
    total = trace.hardware.loc[trace.hardware["device"] == device, "bytes"]
    if known.empty or total.empty:
        return
    outside = _integers(known["outside"])
    most = int(outside.argmax())
    if outside[most] >= LEAST_OUTSIDE and _is_notable(int(outside[most]), int(total.iloc[0])):
        when = _seconds(trace, int(known["time_ns"].iloc[most]))
        yield Condition("outside", device, int(outside[most]), int(total.iloc[0]), when)


def _end_of(trace: RecordedTrace, table: pd.DataFrame, interval: int) -> int:
    """The last event up to the end of one of the timeline's intervals."""
    end_ns = trace.end_ns if interval + 1 == len(table) else int(table["time_ns"].iloc[interval + 1])
    return trace.first_event_after_time(end_ns) - 1


def _by_site(
    trace: RecordedTrace,
    kind: str,
    device: str,
    blocks: pd.DataFrame,
    at: Position,
    of: int,
    figures: dict[str, float] | None = None,
) -> Condition:
    """A condition of blocks whose bytes at stake are in the column nbytes; its line is the one with the most."""
    numbers = SiteNumbers(trace.stacks).of(blocks["stack_id"])
    by_line = np.zeros(int(numbers.max()) + 1, dtype=np.int64)
    np.add.at(by_line, numbers, blocks["nbytes"].to_numpy(np.int64))
    largest = int(by_line.argmax())
    stack = int(blocks["stack_id"].to_numpy()[numbers == largest][0])
    return Condition(
        *(kind, device, int(blocks["nbytes"].sum()), of, _seconds(trace, trace.time_ns(at))),
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


def _integers(column: pd.Series[int]) -> npt.NDArray[np.int64]:
    return np.asarray(column.astype("Int64").to_numpy(dtype=np.int64, na_value=0), np.int64)


def _seconds(trace: RecordedTrace, time_ns: int) -> float:
    return max(time_ns - trace.begin_ns, 0) / 1e9
