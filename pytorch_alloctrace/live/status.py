"""`status()`: the numbers of the current recording."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref

from ..errors import SessionError, TraceError
from ..reading.following import Following, View
from ..recording.session import Session, current_session

MIN_INTERVAL_S = 2.0
"""Minimum interval between two reads of the trace."""
TOP = 5
"""Default number of growing lines that are named."""


class _Watch:
    def __init__(self, session: Session) -> None:
        self.following: Following | None = None
        with contextlib.suppress(TraceError):  # the trace was removed during the recording
            self.following = Following(session.path)
        self._recorder = session._recorder
        self._began = session._began
        self._requested_at = float("-inf")
        self._last_view: View | None = None
        self._last_read: tuple[int, int] | None = None
        self._from_trace: dict[str, float] = {}
        self._peaks: dict[str, tuple[int, int]] = {}
        self._last_top = -1
        self._rate = 0.0

    def stop(self) -> None:
        if self.following is not None:
            self.following.stop()

    def read(self) -> None:
        """Read the trace now. After an error the previous numbers stay, and `read_age_seconds` grows."""
        if self.following is not None:
            with contextlib.suppress(TraceError):
                self.following.advance()

    def numbers(self, top: int) -> dict[str, float]:
        now = time.monotonic()
        if self.following is not None and now - self._requested_at >= MIN_INTERVAL_S:
            self._requested_at = now
            self.following.request_reading()
        view = self.following.latest() if self.following is not None else None
        if view is not None and (view is not self._last_view or top != self._last_top):
            self._update_from_view(view, top)
        counts = self._recorder.counts()
        if counts is None:
            return {"recording": 0}
        events, lost, _, _ = counts
        numbers: dict[str, float] = {
            "recording": 1,
            "seconds": now - self._began,
            "events": events,
            "events_lost": sum(lost),
            **self._from_trace,
        }
        if view is not None:
            numbers["read_age_seconds"] = max(time.time() - view.seen.read_at_ns / 1e9, 0.0)
        for index, requested, allocated, active, reserved in self._recorder.cuda_totals():
            device = f"cuda:{index}"
            numbers[f"{device}/requested_bytes"] = requested
            numbers[f"{device}/allocated_bytes"] = allocated
            numbers[f"{device}/active_bytes"] = active
            numbers[f"{device}/reserved_bytes"] = reserved
            numbers[f"{device}/cached_bytes"] = reserved - active
            if device in self._peaks:  # else the trace has not been read, and the peak may be above the current bytes
                peak_allocated, peak_reserved = self._peaks[device]
                numbers[f"{device}/peak_allocated_bytes"] = max(peak_allocated, allocated)
                numbers[f"{device}/peak_reserved_bytes"] = max(peak_reserved, reserved)
        return numbers

    def _update_from_view(self, view: View, top: int) -> None:
        progress = view.seen
        if view is not self._last_view:
            self._rate = self._rate_since(progress.events, progress.read_at_ns)
        self._last_view, self._last_top = view, top
        numbers: dict[str, float] = {
            "events_read": progress.events,
            "events_per_second": self._rate,
            "file_bytes": progress.file_bytes,
            "steps": progress.steps,
            "failed_allocations": sum(device.counts.failed_allocations for device in view.devices),
        }
        if progress.steps:
            numbers["step"] = progress.last_step
        for device in view.devices:
            counts, name = device.counts, device.device
            self._peaks[name] = (counts.peak_allocated, counts.peak_reserved)
            numbers[f"{name}/requested_bytes"] = counts.requested
            numbers[f"{name}/allocated_bytes"] = counts.allocated
            numbers[f"{name}/peak_allocated_bytes"] = counts.peak_allocated
            if counts.reports_segments:
                numbers[f"{name}/active_bytes"] = counts.active
                numbers[f"{name}/reserved_bytes"] = counts.reserved
                numbers[f"{name}/cached_bytes"] = device.cached
                numbers[f"{name}/peak_reserved_bytes"] = counts.peak_reserved
            numbers[f"{name}/growth_bytes_per_{view.unit}"] = device.rate
        growing = view.growing
        numbers["growing_sites"] = len(growing)
        for site in growing[:top]:
            key = f"growth_bytes_per_{view.unit}/{site.name}"
            numbers[key] = numbers.get(key, 0) + site.rate  # the sum over all devices
        self._from_trace = numbers

    def _rate_since(self, events: int, read_at_ns: int) -> float:
        last_read, self._last_read = self._last_read, (events, read_at_ns)
        if last_read is None or read_at_ns <= last_read[1]:
            return 0.0
        return (events - last_read[0]) / ((read_at_ns - last_read[1]) / 1e9)


_watches: weakref.WeakKeyDictionary[Session, _Watch] = weakref.WeakKeyDictionary()
_creation_lock = threading.Lock()


def status(*, top: int = TOP, fresh: bool = False) -> dict[str, float]:
    """Return the current recording as a flat dict of numbers for a logger. Takes a few microseconds.

    Current values:
    `recording` (0 if nothing is recorded; then it is the only key), `seconds` since `enable`, `events`, `events_lost`,
    and for each CUDA device of torch's caching allocator `cuda:0/requested_bytes`, likewise allocated, active, reserved
    and cached.

    Values as of `read_age_seconds` ago, read from the trace by a thread at most every 2 seconds:
    `events_read`, `events_per_second` (between the last two reads), `file_bytes`, `steps`, `step` (the last that
    ended), `failed_allocations`, `growing_sites` and `growth_bytes_per_step/train.py:31` for each growing line. For
    each device its peaks, `growth_bytes_per_step` and, with other allocators, its bytes (`cpu/allocated_bytes`).
    Without steps, rates are `per_second`. docs/watching.md describes every key.

    Args:
        top: Number of growing lines that are named.
        fresh: Read the trace up to now first, which may take long.
    """
    session = current_session()
    if session is None:
        return {"recording": 0}
    watch = _watches.get(session)
    if watch is None:
        watch = _create_watch(session)
    if fresh:
        with contextlib.suppress(SessionError):  # the recording has ended, or the disk is full
            session.flush()
        watch.read()
    return watch.numbers(top)


def _create_watch(session: Session) -> _Watch:
    with _creation_lock:
        watch = _watches.get(session)
        if watch is None:
            watch = _Watch(session)
            session._at_stop.append(watch.stop)
            _watches[session] = watch
    return watch
