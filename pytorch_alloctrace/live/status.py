"""`status()`: the recording that runs, in numbers."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref

from ..errors import SessionError, TraceError
from ..reading.following import Following, View
from ..recording.session import Session, current_session

EVERY = 2.0
"""Seconds between two readings of the trace, at least."""
TOP = 5


class _Watch:
    """What `status` keeps of one recording."""

    def __init__(self, session: Session) -> None:
        self.following: Following | None = None
        with contextlib.suppress(TraceError):  # removed while it is written
            self.following = Following(session.path)
        self._recorder = session._recorder
        self._began = session._began
        self._poked = float("-inf")
        self._shown: View | None = None
        self._before: tuple[int, int] | None = None
        self._from_trace: dict[str, float] = {}
        self._peaks: dict[str, tuple[int, int]] = {}
        self._top = -1
        self._rate = 0.0

    def stop(self) -> None:
        if self.following is not None:
            self.following.stop()

    def read(self) -> None:
        """What cannot be read is not known: its age says so."""
        if self.following is not None:
            with contextlib.suppress(TraceError):
                self.following.advance()

    def numbers(self, top: int) -> dict[str, float]:
        now = time.monotonic()
        if self.following is not None and now - self._poked >= EVERY:
            self._poked = now
            self.following.poke()
        view = self.following.latest() if self.following is not None else None
        if view is not None and (view is not self._shown or top != self._top):
            self._take(view, top)
        counts = self._recorder.counts()
        if counts is None:
            return {"recording": 0}
        events, lost, _, _ = counts
        found: dict[str, float] = {
            "recording": 1,
            "seconds": now - self._began,
            "events": events,
            "events_lost": sum(lost),
            **self._from_trace,
        }
        if view is not None:
            found["read_age_seconds"] = max(time.time() - view.seen.read_at_ns / 1e9, 0.0)
        for index, requested, allocated, active, reserved in self._recorder.cuda_totals():
            device = f"cuda:{index}"
            most_allocated, most_reserved = self._peaks.get(device, (0, 0))
            found[f"{device}/requested_bytes"] = requested
            found[f"{device}/allocated_bytes"] = allocated
            found[f"{device}/active_bytes"] = active
            found[f"{device}/reserved_bytes"] = reserved
            found[f"{device}/cached_bytes"] = reserved - active
            found[f"{device}/peak_allocated_bytes"] = max(most_allocated, allocated)
            found[f"{device}/peak_reserved_bytes"] = max(most_reserved, reserved)
        return found

    def _take(self, view: View, top: int) -> None:
        seen = view.seen
        if view is not self._shown:
            self._rate = self._rate_since(seen.events, seen.read_at_ns)
        self._shown, self._top = view, top
        found: dict[str, float] = {
            "events_read": seen.events,
            "events_per_second": self._rate,
            "file_bytes": seen.file_bytes,
            "steps": seen.steps,
            "failed_allocations": sum(device.counts.refused for device in view.devices),
        }
        if seen.steps:
            found["step"] = seen.last_step
        for device in view.devices:
            counts, name = device.counts, device.device
            self._peaks[name] = (counts.peak_allocated, counts.peak_reserved)
            found[f"{name}/requested_bytes"] = counts.requested
            found[f"{name}/allocated_bytes"] = counts.allocated
            found[f"{name}/peak_allocated_bytes"] = counts.peak_allocated
            if counts.reports_segments:
                found[f"{name}/active_bytes"] = counts.active
                found[f"{name}/reserved_bytes"] = counts.reserved
                found[f"{name}/cached_bytes"] = device.cached
                found[f"{name}/peak_reserved_bytes"] = counts.peak_reserved
            found[f"{name}/growth_bytes_per_{view.unit}"] = device.rate
        growing = view.growing
        found["growing_sites"] = len(growing)
        for site in growing[:top]:
            key = f"growth_bytes_per_{view.unit}/{site.name}"
            found[key] = found.get(key, 0) + site.rate  # of all devices
        self._from_trace = found

    def _rate_since(self, events: int, read_at_ns: int) -> float:
        before, self._before = self._before, (events, read_at_ns)
        if before is None or read_at_ns <= before[1]:
            return 0.0
        return (events - before[0]) / ((read_at_ns - before[1]) / 1e9)


_watches: weakref.WeakKeyDictionary[Session, _Watch] = weakref.WeakKeyDictionary()
_making = threading.Lock()


def status(*, top: int = TOP, fresh: bool = False) -> dict[str, float]:
    """The recording of this process in numbers, in a flat dict, for any logger. A few microseconds: for every step.

    top: how many of the lines that grow are named. fresh: reads the trace up to this moment first, which may take long;
    else what comes from the trace is as of `read_age_seconds` ago, and is read at most every 2 seconds, on a thread of
    its own.

    Now: recording (0: nothing is recorded, and there is no other key), seconds (since `enable`), events, events_lost;
    of each CUDA device under torch's caching allocator "cuda:0/requested_bytes", and so on: allocated, active,
    reserved, cached.
    As of read_age_seconds ago: events_read, events_per_second (between the last two readings), file_bytes, steps, step
    (number of the last that ended), failed_allocations; of each device its peaks, growth_bytes_per_step and, of other
    allocators ("cpu/allocated_bytes"), its bytes; growing_sites and "growth_bytes_per_step/train.py:31" of each line
    that grows. In a program without steps, rates are per_second. docs/watching.md says what each means.
    """
    session = current_session()
    if session is None:
        return {"recording": 0}
    watch = _watches.get(session)
    if watch is None:
        watch = _made(session)
    if fresh:
        with contextlib.suppress(SessionError):  # ended in the meantime, or the disk is full
            session.flush()
        watch.read()
    return watch.numbers(top)


def _made(session: Session) -> _Watch:
    with _making:
        watch = _watches.get(session)
        if watch is None:
            watch = _Watch(session)
            session._at_stop.append(watch.stop)
            _watches[session] = watch
    return watch
