"""Schedule of the scans for the holders of the program's tensors, which write their results into the trace.

The final scan runs when the recording ends. Leaked tensors are often freed when main() returns, and a killed program
runs no final scan, so scans also run during the recording. A scan is due when the event count has grown by
`MIN_SCAN_GROWTH` since the last one, or by more if scans take long (`_scan_growth`). It runs at the end of a step; in a
program without steps, on the main thread between two instructions, when a polling thread requests it. While the main
thread waits (`thread.join()`), it executes no instruction: after `BLOCKED_S` the polling thread scans itself. All scans
together take at most `FREE_SCAN_S` seconds plus `MAX_SCAN_SHARE` of the elapsed time, in processor time: wall time
would end the scans of a busy machine early. A scan takes at most `SCAN_SHARE` of the time left, even if it is then
truncated: short scans until the end show more than a few complete scans at the beginning. It takes up to all of that
time if this is enough for another complete scan, and up to half of it to take twice as long as a truncated one.

A scan also runs at the start of a full garbage collection, which frees cycles that no variable leads to, and at the
first two out-of-memory errors. Both scans also search for garbage. A mark of the program causes a scan like those that
are due.
"""

from __future__ import annotations

import _thread
import contextlib
import dataclasses
import gc
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from ..objects.own_errors import is_own_error
from .modules import find_identifier
from .roles import BUFFER, DEVICE_TYPES, OPTIMIZER_STATE, PARAMETER, Note

if TYPE_CHECKING:
    from torch.multiprocessing.reductions import StorageWeakRef

    from ..objects.module_tensors import ModuleTensor
    from ..objects.object_scan import ObjectScan

DUE, COLLECTION, OUT_OF_MEMORY, MARK = 0, 1, 2, 3
"""Reasons for a scan: `ScanReason` in csrc/python/recording/pending_calls.h, and a mark of the program."""
FIRST_SCAN_EVENTS = 500
MIN_SCAN_GROWTH, TRUNCATED_SCAN_GROWTH, MAX_SCAN_GROWTH = 1.06, 1.5, 3.0
"""Growth of the event count, as a factor, from one scan to the next, and from a truncated one. With the delays of the
polling thread, the minimum leaves less than a tenth of the events without a scan."""
COLLECTION_SCAN_GROWTH = 1.5
"""Growth of the event count, as a factor, from one scan at the start of a collection to the next."""
COLLECTION_SCAN_SHARE, MIN_COLLECTION_SCAN_S = 1 / 2, 0.04
"""Share of the time left to all scans that a scan at the start of a collection may take, and its minimum in seconds."""
COLLECTION_SCAN_FACTOR = 2
"""Factor on the time of a complete scan for one that searches for garbage, too: truncated, it would show nothing."""
THREAD_PATIENCE = 1.02
"""Factor on the due event count for scans of the polling thread: the end of a step comes first if there is one."""
MIN_POLL_S, POLL_TIME_SHARE = 0.02, 1 / 64
"""Sleep of the polling thread: the longer of these seconds and this share of the elapsed time."""
FREE_SCAN_S = 0.4
"""Seconds of processor time that scans may take in any run."""
MAX_SCAN_SHARE = 0.005
"""Share of the elapsed time that scans may take in addition to `FREE_SCAN_S`."""
SCAN_SHARE = 1 / 8
"""Share of the time left to all scans that one scan may take."""
BLOCKED_S = 0.5
"""Seconds for which the main thread must not have moved, for the polling thread to scan."""
MAX_WAIT_S = 1.0
"""Maximum seconds that the final scan waits for a running scan."""
MAX_SCAN_S = 0.1
"""Maximum seconds of one scan before the end."""
MAX_OUT_OF_MEMORY_SCAN_S = 1.0
"""The same at an out-of-memory error. These scans may exceed the time of all scans by it."""
MIN_SCAN_S = 0.003
"""Minimum seconds of one scan: with less time available, none runs."""
MAX_FINAL_SCAN_S = 1.0
"""Maximum seconds of the final scan. Used up only if many tensors are not reached from the program's variables."""
REQUESTED_SCAN_S = 5.0
"""Maximum seconds of a scan that `Session.diagnose` requests."""


class ObjectScans:
    """Object scans of one recording. Only errors of the program's signal handlers pass through."""

    def __init__(self, recorder: ModuleType) -> None:
        self._recorder = recorder
        self._began = time.monotonic()
        self._due_event: float = FIRST_SCAN_EVENTS
        self._due_collection_event = math.inf  # until another scan has shown how long one takes
        self._spent_s = 0.0
        self._needed_s = MIN_SCAN_S
        self._has_failed = False  # a scan of MAX_SCAN_S was truncated
        self._complete_s = math.inf  # enough for a scan like the last complete one
        self._main_position: tuple[int, int] | None = None
        self._main_moved = self._began
        self._final_scan: dict[str, Any] = {}
        self._scan_event = 0
        self._scan_lock = _thread.allocate_lock()
        self._end_lock = _thread.allocate_lock()
        self._is_active = False
        self._module_notes: dict[Note, StorageWeakRef] = {}

    def start(self) -> None:
        """Enable scans, unless Python runs without a GIL."""
        # Import here: later it would delay a step, and the polling thread must never import.
        from ..objects.object_scan import ScanResult

        if not getattr(sys, "_is_gil_enabled", lambda: True)():
            self._final_scan = {"result": ScanResult.UNSUPPORTED.value}
            return
        self._final_scan = {"result": ScanResult.FAILED.value}
        self._collector = Collector()
        self._recorder.set_object_scan(self._scan_for_recorder)
        self._main_thread = threading.main_thread().ident
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
            self._scan_within_budget()

    def scan_at_mark(self) -> None:
        """Scan on the main thread, as far as time allows, unless hardly anything has been recorded since the last scan.

        A user marks the positions at which the memory matters.
        """
        is_new = self._recorder.next_event() >= MIN_SCAN_GROWTH * self._scan_event
        if self._is_active and is_new and _thread.get_ident() == self._main_thread:
            self._scan_within_budget(MARK)

    def scan_now(self) -> None:
        if self._is_active and self._scan_lock.acquire(timeout=MAX_WAIT_S):
            try:
                self._scan(REQUESTED_SCAN_S, search_unreached=True)
            finally:
                self._scan_lock.release()

    def end(self) -> dict[str, Any]:
        """End the polling thread, then run the final scan. Return how the scan ended, for the end of the trace."""
        if self._is_active:
            self.stop()
            if self._scan_lock.acquire(timeout=MAX_WAIT_S):
                try:
                    scan = self._scan(MAX_FINAL_SCAN_S, search_unreached=True, at_end=True)
                finally:
                    self._scan_lock.release()
                if scan is not None:
                    self._final_scan = {
                        "result": scan.result.value,
                        "event": self._scan_event,
                        "objects": scan.objects,
                        "unlisted": scan.unlisted,
                    }
        return self._final_scan

    def stop(self) -> None:
        """End the polling thread, without a final scan."""
        if self._is_active:
            self._is_active = False
            if self._end_lock.locked():
                self._end_lock.release()

    def forget_in_child(self) -> None:
        if self._is_active:
            self._is_active = False
            self._collector.resume_in_child()

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
                if self._main_thread_is_blocked():
                    with contextlib.suppress(Exception):
                        self._scan_within_budget()
            else:
                self._main_position = None

    def _main_thread_is_blocked(self) -> bool:
        """Return whether the main thread has not moved for `BLOCKED_S`, and not because of a running backward."""
        frame = sys._current_frames().get(self._main_thread or 0)
        position = None if frame is None else (id(frame), frame.f_lasti)
        is_in_backward = frame is not None and "run_backward" in frame.f_code.co_names
        del frame  # a reference would keep the variables of the call alive
        now = time.monotonic()
        if position != self._main_position:
            self._main_position, self._main_moved = position, now
        return position is not None and not is_in_backward and now - self._main_moved >= BLOCKED_S

    def _scan_for_recorder(self, reason: int) -> None:
        """Scan on the main thread if a scan is due, else at once for one of the other reasons.

        Nothing is torn down yet when a collection starts: the collector calls this where it may also call finalizers.
        Not before collections on other threads: see `_request_due_scans`.
        """
        if reason == DUE:
            self._main_position = None  # the main thread runs
            self.scan_if_due()
            return
        if reason == COLLECTION and (
            self._recorder.next_event() < self._due_collection_event or _thread.get_ident() != self._main_thread
        ):
            return
        self._scan_within_budget(reason)

    def _scan_within_budget(self, reason: int = DUE) -> None:
        if not self._is_active or not self._scan_lock.acquire(blocking=False):
            return
        try:
            began, event_count = time.monotonic(), self._recorder.next_event()
            if reason == DUE and event_count < self._due_event:  # another thread has just scanned
                return
            elapsed_s = began - self._began
            remaining_s = FREE_SCAN_S + MAX_SCAN_SHARE * elapsed_s - self._spent_s
            max_s = MAX_SCAN_S
            if reason == OUT_OF_MEMORY:
                max_s, allowed_s, min_s = MAX_OUT_OF_MEMORY_SCAN_S, MAX_OUT_OF_MEMORY_SCAN_S, 0.0
            elif reason == COLLECTION:
                allowed_s = remaining_s * COLLECTION_SCAN_SHARE
                min_s = max(COLLECTION_SCAN_FACTOR * self._needed_s, MIN_COLLECTION_SCAN_S)
            else:
                allowed_s, min_s = remaining_s * SCAN_SHARE, MIN_SCAN_S
                if self._complete_s <= remaining_s:
                    allowed_s = max(allowed_s, self._complete_s)
                elif self._needed_s <= min(remaining_s / 2, max_s) and not self._has_failed:
                    allowed_s = max(allowed_s, self._needed_s)
            if allowed_s < min_s:  # a later call has more time
                return
            allowed_s = min(allowed_s, max_s)
            scan, cpu_before = None, time.thread_time()
            try:
                scan = self._scan(allowed_s, search_unreached=reason not in (DUE, MARK))
            finally:
                scan_s = time.thread_time() - cpu_before
                self._spent_s += scan_s if reason != OUT_OF_MEMORY else min(scan_s, MAX_SCAN_S)
            if reason == OUT_OF_MEMORY:
                # Until hardly anything else happened, a shorter scan would show less.
                self._due_event = max(self._due_event, MIN_SCAN_GROWTH * event_count)
                return
            if reason == COLLECTION:
                self._due_collection_event = COLLECTION_SCAN_GROWTH * event_count
                return
            if self._due_collection_event == math.inf:
                self._due_collection_event = event_count
            # Not truncated by graphs that other threads change: with more time, it would not read them either.
            is_truncated = scan is not None and scan.is_truncated
            # Twice the maximum is never allowed: after a scan that took it, those that follow are short ones.
            self._needed_s = 2 * allowed_s if is_truncated else max(1.5 * scan_s, MIN_SCAN_S)
            self._has_failed |= is_truncated and allowed_s >= max_s
            self._complete_s = math.inf if is_truncated else self._needed_s
            growth = TRUNCATED_SCAN_GROWTH if is_truncated else _scan_growth(scan_s, remaining_s - scan_s)
            self._due_event = max(event_count * growth, FIRST_SCAN_EVENTS)
        finally:
            self._scan_lock.release()

    def _scan(self, seconds: float, search_unreached: bool, *, at_end: bool = False) -> ObjectScan | None:
        """Scan, write the results and return the scan; None without torch, and after an error of this package."""
        try:
            if "torch" not in sys.modules or sys.is_finalizing():
                return None
            from ..objects.object_scan import scan_objects

            self._scan_event = event = self._recorder.next_event()

            def scan_and_write() -> ObjectScan:
                scan = scan_objects(seconds, search_unreached=search_unreached, at_end=at_end)
                for group in scan.groups:
                    self._write_group(event, group)
                self._write_module_tensors(scan.module_tensors)
                return scan

            return self._collector.run_paused(scan_and_write)
        except Exception as error:
            if is_own_error(error):
                return None
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
            foreign_bytes=group.foreign_bytes,
            name=chain.holder,
            scope=chain.scope,
            function=chain.function,
            through=chain.through,
            store=tuple(chain.store),
            tensor_bytes=group.tensor_bytes,
            back_reference=chain.back_reference,
            dtype=group.dtype,
        )

    def _write_module_tensors(self, module_tensors: Sequence[ModuleTensor]) -> None:
        """Write the roles of parameters, buffers and optimizer state once: the reference expires with the memory."""
        before, self._module_notes = self._module_notes, {}
        blocks: set[tuple[int, int, int]] = set()
        notes: list[Note] = []
        for name, kind, module, storage, reference in module_tensors:
            device, _, index = storage.device.partition(":")
            block = storage.address, DEVICE_TYPES[device], int(index or 0)
            if block in blocks:
                continue
            blocks.add(block)
            note = (*block, (PARAMETER, BUFFER, OPTIMIZER_STATE)[kind], name, find_identifier(module))
            written = before.get(note)
            if written is None or written.expired():
                notes.append(note)
                written = reference
            self._module_notes[note] = written
        self._recorder.push_roles(notes)


def _scan_growth(scan_s: float, remaining_s: float) -> float:
    """Return the growth of the event count to the next scan, which leaves time for scans of later events.

    While the event count becomes e times as large, scans may take a quarter of the time left to all scans: a short
    program has several, and a long one still has time at its end.
    """
    return min(max(MIN_SCAN_GROWTH, math.exp(scan_s / max(remaining_s / 4, scan_s / 2))), MAX_SCAN_GROWTH)


Result = TypeVar("Result")


class _CountedObject:
    """Object that the collector counts when it is created and freed, since its type has no free list."""

    __slots__ = ("unused",)


class Collector:
    """Python's garbage collector, unchanged for the program by `run_paused`."""

    RESERVE = 10_000

    def __init__(self) -> None:
        self._reserve = [_CountedObject() for _ in range(self.RESERVE)]
        self._is_paused = False

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
            self._is_paused = was_enabled
            gc.disable()
            return function()
        finally:
            try:
                self._set_count(count_before)
            finally:
                if was_enabled:
                    gc.enable()
                self._is_paused = False

    def resume_in_child(self) -> None:
        """Enable the collector in a forked child if another thread, which the child lacks, has paused it."""
        if self._is_paused:
            self._is_paused = False
            gc.enable()

    def _set_count(self, target_count: int) -> None:
        for _ in range(2):  # the first round may reallocate the list, which changes the count
            surplus = gc.get_count()[0] - target_count
            if surplus > 0:
                del self._reserve[-surplus:]
            else:
                self._reserve.extend([_CountedObject() for _ in range(-surplus)])
