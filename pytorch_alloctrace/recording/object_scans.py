"""Schedule of the scans for the holders of the program's tensors, which write their results into the trace.

The final scan runs when the recording ends. Leaked tensors are often freed when main() returns, and a killed program
runs no final scan, so scans also run during the recording. A scan is due when the event count has grown by half since
the last one. It runs at the end of a step; in a program without steps, on the main thread between two instructions,
when a polling thread requests it. All scans together take at most `FREE_SCAN_S` seconds plus `MAX_SCAN_SHARE` of the
elapsed time. A scan that ran out of time is repeated when twice the time is available.
"""

from __future__ import annotations

import _thread
import contextlib
import dataclasses
import gc
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from .own_errors import is_own_error

FIRST_SCAN_EVENTS = 2_000
SCAN_GROWTH = 1.5
"""Growth of the event count, as a factor, from one scan to the next."""
THREAD_PATIENCE = 1.25
"""Factor on the due event count for scans of the polling thread: the end of a step comes first if there is one."""
MIN_POLL_S, POLL_TIME_SHARE = 0.02, 1 / 16
"""Sleep of the polling thread: the longer of these seconds and this share of the elapsed time."""
FREE_SCAN_S = 0.2
"""Seconds that scans may take in any run."""
MAX_SCAN_SHARE = 0.005
"""Share of the elapsed time that scans may take in addition to `FREE_SCAN_S`."""
MAX_SCAN_S = 0.1
"""Maximum seconds of one scan before the end."""
MIN_SCAN_S = 0.003
"""Minimum seconds of one scan: with less time available, none runs."""
MAX_FINAL_SCAN_S = 0.5
"""Maximum seconds of the final scan. Used up only if many tensors are not reached from the program's variables."""
REQUESTED_SCAN_S = 5.0
"""Maximum seconds of a scan that `Session.diagnose` requests."""


class ObjectScans:
    """Object scans of one recording. Only errors of the program's signal handlers pass through."""

    def __init__(self, recorder: ModuleType) -> None:
        self._recorder = recorder
        self._began = time.monotonic()
        self._due_event: float = FIRST_SCAN_EVENTS
        self._spent_s = 0.0
        self._needed_s = MIN_SCAN_S
        self._scan_lock = _thread.allocate_lock()
        self._end_lock = _thread.allocate_lock()
        self._is_active = False

    def start(self) -> None:
        """Enable scans, unless Python runs without a GIL."""
        if not getattr(sys, "_is_gil_enabled", lambda: True)():
            return
        # Import here: later it would delay a step, and the polling thread must never import.
        from ..objects import object_scan  # noqa: F401

        self._collector = Collector()
        self._recorder.set_object_scan(self._scan_on_main_thread)
        self._is_active = True
        self._end_lock.acquire()
        # The program's signal handlers must not run on our thread. SIGBUS stays: see csrc/core/base/thread.h.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - {signal.SIGBUS})
        try:
            _thread.start_new_thread(self._run_thread, ())
        except RuntimeError:  # no thread available: scans run only at steps and at the end
            self._end_lock.release()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def scan_if_due(self) -> None:
        if self._is_active and self._recorder.next_event() >= self._due_event:
            self._scan_if_allowed()

    def scan_now(self) -> None:
        if self._is_active and self._scan_lock.acquire(timeout=MAX_SCAN_S):
            try:
                self._scan(REQUESTED_SCAN_S, search_unreached=True)
            finally:
                self._scan_lock.release()

    def end(self, final_scan: bool) -> bool:
        """End the polling thread, then run the final scan if requested. Return False if it is incomplete."""
        if not self._is_active:
            return True
        self._is_active = False
        if self._end_lock.locked():
            self._end_lock.release()
        if final_scan and self._scan_lock.acquire(timeout=MAX_SCAN_S):
            try:
                return self._scan(MAX_FINAL_SCAN_S, search_unreached=True)
            finally:
                self._scan_lock.release()
        return not final_scan

    def stop(self) -> None:
        self.end(final_scan=False)

    def forget_in_child(self) -> None:
        self._is_active = False

    def _run_thread(self) -> None:
        with contextlib.suppress(OSError), Path(f"/proc/self/task/{_thread.get_native_id()}/comm").open("w") as name:
            name.write("alloctrace")  # the name of all our threads
        with contextlib.suppress(MemoryError):  # scans then run only at steps and at the end
            self._request_due_scans()

    def _request_due_scans(self) -> None:
        while True:
            elapsed = time.monotonic() - self._began
            if self._end_lock.acquire(timeout=max(MIN_POLL_S, POLL_TIME_SHARE * elapsed)) or not self._is_active:
                return
            if self._recorder.next_event() >= THREAD_PATIENCE * self._due_event:
                # The scan runs on the main thread, which stops the program meanwhile. On this thread, the references
                # that the walk holds would keep objects alive after the program has dropped them.
                self._recorder.request_object_scan()

    def _scan_on_main_thread(self) -> None:
        if self._is_active and self._recorder.next_event() >= self._due_event:
            self._scan_if_allowed()

    def _scan_if_allowed(self) -> None:
        if not self._scan_lock.acquire(blocking=False):
            return
        try:
            began, event_count = time.monotonic(), self._recorder.next_event()
            if event_count < self._due_event or not self._is_active:
                return
            allowed_s = min(FREE_SCAN_S + MAX_SCAN_SHARE * (began - self._began) - self._spent_s, MAX_SCAN_S)
            if allowed_s < self._needed_s:  # a later call has more time
                return
            try:
                is_complete = self._scan(allowed_s, search_unreached=False)
            finally:
                self._spent_s += time.monotonic() - began
            self._needed_s = MIN_SCAN_S if is_complete else min(2 * allowed_s, MAX_SCAN_S)
            if is_complete or allowed_s >= MAX_SCAN_S:
                self._due_event = SCAN_GROWTH * event_count
        finally:
            self._scan_lock.release()

    def _scan(self, seconds: float, search_unreached: bool) -> bool:
        """Scan and write the results. Return whether the scan is complete."""
        try:
            if "torch" not in sys.modules or sys.is_finalizing():
                return True
            from ..objects.object_scan import scan_objects

            event = self._recorder.next_event()

            def scan_and_write() -> bool:
                scan = scan_objects(seconds, search_unreached=search_unreached)
                for group in scan.groups:
                    self._write_group(event, group)
                return scan.complete

            return self._collector.run_paused(scan_and_write)
        except Exception as error:
            if is_own_error(error):
                return False
            raise

    def _write_group(self, event: int, group: Any) -> None:
        chain = group.chain
        self._recorder.add_holder(
            event=event,
            holder=str(group),
            path=chain.path,
            filename=chain.filename,
            line=chain.line,
            count=group.count,
            bytes=group.bytes,
            addresses=sorted(group.addresses),
            is_garbage=group.is_garbage,
            containers=[dataclasses.astuple(container) for container in chain.containers],
            nodes=group.nodes,
            has_all_nodes=group.has_all_nodes,
        )


Result = TypeVar("Result")


class _CountedObject:
    """Object that the collector counts when it is created and freed, since its type has no free list."""

    __slots__ = ("unused",)


class Collector:
    """Python's garbage collector, unchanged for the program by `run_paused`."""

    RESERVE = 10_000

    def __init__(self) -> None:
        self._reserve = [_CountedObject() for _ in range(self.RESERVE)]

    def run_paused(self, function: Callable[[], Result]) -> Result:
        """Return function() without a collection meanwhile, and keep the time of the next one about the same.

        Python collects when the objects created outnumber those freed by a threshold. An object counts when it is
        created, but not when it is freed into a free list: a scan would bring the next collection forward by thousands
        of objects. (The program takes objects from free lists uncounted, which may delay its next collection.)
        """
        was_enabled = gc.isenabled()
        count_before = gc.get_count()[0]
        # Not a context manager: Ctrl-C at the start of its __exit__ would leave the collector disabled. Python handles
        # signals after a call and at the start of a function, so not just before the call of gc.enable.
        try:
            gc.disable()
            return function()
        finally:
            try:
                self._set_count(count_before)
            finally:
                if was_enabled:
                    gc.enable()

    def _set_count(self, target_count: int) -> None:
        for _ in range(2):  # the first round may reallocate the list, which changes the count
            surplus = gc.get_count()[0] - target_count
            if surplus > 0:
                del self._reserve[-surplus:]
            else:
                self._reserve.extend([_CountedObject() for _ in range(-surplus)])
