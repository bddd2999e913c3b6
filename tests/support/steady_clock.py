"""Rewriter of the times in a trace, so that they do not depend on the machine's load.

A program calls `tick()` (or marks "tick") where time passes; `make_steady` spaces event times evenly between ticks.
"""

from __future__ import annotations

from pathlib import Path

import format_reader
import numpy as np
from format_reader import EVENTS, FILE_HEADER, Anchor, Cursor, TraceFile, delta, varint

from pytorch_alloctrace.recording import session as sessions

FREE_REQUESTED, FREE_COMPLETED, MARK, MEMORY = 2, 3, 11, 17
TICK = "tick"
TICK_NS = 2_000_000


def tick() -> None:
    """Record a mark, without the object scan of `alloctrace.mark`: programs tick far more often than users mark."""
    session = sessions._current
    if session is not None:
        session._recorder.push_mark(TICK.encode())


def make_steady(path: Path, tick_ns: int = TICK_NS) -> int:
    """Rewrite a complete trace without a spool and return its number of ticks; without ticks, leave it unchanged."""
    trace = TraceFile(path)
    first = trace.first
    names = {number for number, text in trace.names.strings.items() if text == TICK.encode()}
    # Raw times by span; a tick ends each span, the end of the trace the last. The flag of a time is False if no steady
    # time passes before it: between free_requested and free_completed of a block.
    spans: list[list[tuple[int, bool]]] = [[]]
    requested_address = -1
    for _, event in trace.events():
        if event.kind == MEMORY:  # sampled by the real clock, at no fixed event
            continue
        spans[-1].append((event.time, event.kind != FREE_COMPLETED or event.address != requested_address))
        requested_address = event.address if event.kind == FREE_REQUESTED else -1
        if event.kind == MARK and event.size in names:
            spans.append([])
    if len(spans) == 1:
        return 0
    counters, steady = [first.counter], [0.0]
    spans[-1].append((max(trace.latest.counter, *(time for span in spans for time, _ in span)), True))
    for number, span in enumerate(spans):
        offsets = np.cumsum([passes for _, passes in span])
        counters += [time for time, _ in span]
        steady += list((number + offsets / offsets[-1]) * tick_ns)
    # Times of different threads may be out of order.
    elapsed, steady_ns = np.maximum.accumulate(counters) - first.counter, np.array(steady)

    def steady_times(counters: list[int]) -> list[int]:
        """Return steady nanoseconds since the beginning. Each call, for any number of times, reads all of `elapsed`."""
        times: list[int] = (
            np.rint(np.interp(np.array(counters) - first.counter, elapsed, steady_ns)).astype(int).tolist()
        )
        return times

    def move_anchor(anchor: Anchor) -> Anchor:
        # The rewritten counter counts nanoseconds.
        [ns] = steady_times([anchor.counter])
        return Anchor(first.counter + ns, first.monotonic + ns, first.wall + ns)

    times = {
        run.first: [first.counter + ns for ns in steady_times([event.time for event in run.events])]
        for run in trace.runs
    }
    rewritten = [path.read_bytes()[:FILE_HEADER]]
    for block in trace.blocks:
        begin, payload = move_anchor(block.begin), block.payload
        if block.type == EVENTS:
            payload = _with_times(payload, times[block.first], begin.counter)
        numbers = block.first, block.count, begin, move_anchor(block.end), block.counters
        rewritten.append(format_reader.block(block.type, payload, *numbers))
    path.write_bytes(b"".join(rewritten))
    return len(spans) - 1


def _with_times(payload: bytes, times: list[int], begin: int) -> bytes:
    cursor = Cursor(payload)
    tags, kinds, _, *others = (cursor.text() for _ in range(7))
    column = b"".join(map(delta, times, [begin, *times]))
    return b"".join(varint(len(text)) + text for text in (tags, kinds, column, *others))
