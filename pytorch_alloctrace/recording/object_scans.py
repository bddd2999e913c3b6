"""When a recording looks at what holds the program's tensors, and how that gets into the trace.

A look costs time and says what is held at that moment. What leaks is often freed when main() returns, and a killed
program has no end at all; so there are looks in mid-run, ever rarer: each when there have been half as many events
again as at the last one, at the end of a step, or, in a program without steps, on the main thread between two of its
instructions, where a thread that sleeps in between asks for it. All of them together take at most `FREE` seconds and
`SHARE` of the time that has passed; one for which the time did not suffice is made up for when there is twice as much.
The last is taken when the recording ends.
"""

from __future__ import annotations

import _thread
import contextlib
import gc
import signal
import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar

from .own_errors import is_own_error

FIRST = 2_000
"""Events after which the first look is due."""
LATER = 1.5
"""The next is due after so many times as many events as there were then."""
PATIENCE = 1.25
"""From the thread, so much later: where there are steps, they come first."""
POLL, POLL_SHARE = 0.02, 1 / 16
"""How long the thread sleeps, in seconds: so long, or this share of the time that has passed."""
FREE = 0.2
"""Seconds that looks may take in any run,"""
SHARE = 0.005
"""and of the time that has passed."""
LONGEST = 0.1
"""Seconds of one look in mid-run, at most,"""
LEAST = 0.003
"""and at least: with less there is none."""
AT_END = 0.5
"""Seconds of the look at the end, at most; less unless there are many tensors to which the program does not lead."""

ASKED = 5.0
"""Seconds of a look that was asked for, at most."""


class Looks:
    """The looks of one recording. Their errors do not reach the program; those of its signal handlers do."""

    def __init__(self, recorder: ModuleType) -> None:
        self._recorder = recorder
        self._begin = time.monotonic()
        self._due: float = FIRST
        self._spent = 0.0
        self._needed = LEAST
        self._busy = _thread.allocate_lock()
        self._ended = _thread.allocate_lock()
        self._on = False

    def start(self) -> None:
        """From now on; not where Python runs without a GIL."""
        if not getattr(sys, "_is_gil_enabled", lambda: True)():
            return
        # Here, where it costs nobody a step; and so that our thread never imports.
        from ..objects import look  # noqa: F401

        self._collector = Collector()
        self._recorder.set_object_scan(self._on_main_thread)
        self._on = True
        self._ended.acquire()
        # No signal of the program is to be handled on a thread of ours. SIGBUS: see csrc/core/base/thread.h.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - {signal.SIGBUS})
        try:
            _thread.start_new_thread(self._wait, ())
        except RuntimeError:  # no thread to be had: then only at steps and at the end
            self._ended.release()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def at_step(self) -> None:
        """Looks, if it is time to."""
        if self._on and self._recorder.next_event() >= self._due:
            self._look_if_allowed()

    def now(self) -> None:
        """Looks at once, for as long as a person waits."""
        if self._on and self._busy.acquire(timeout=LONGEST):
            try:
                self._look(ASKED, more=True)
            finally:
                self._busy.release()

    def end(self, look: bool) -> bool:
        """The last look, and the end of the thread. False: it could not see all."""
        if not self._on:
            return True
        self._on = False
        if self._ended.locked():
            self._ended.release()
        if look and self._busy.acquire(timeout=LONGEST):
            try:
                return self._look(AT_END, more=True)
            finally:
                self._busy.release()
        return not look

    def stop(self) -> None:
        """Ends it without a look."""
        self.end(look=False)

    def forget_in_child(self) -> None:
        """The thread is not in a forked child."""
        self._on = False

    def _wait(self) -> None:
        with contextlib.suppress(OSError), open(f"/proc/self/task/{_thread.get_native_id()}/comm", "w") as name:
            name.write("alloctrace")  # as our other threads are called
        with contextlib.suppress(MemoryError):  # from then on only at steps and at the end
            self._wait_for_looks()

    def _wait_for_looks(self) -> None:
        while True:
            elapsed = time.monotonic() - self._begin
            if self._ended.acquire(timeout=max(POLL, POLL_SHARE * elapsed)) or not self._on:
                return
            if self._recorder.next_event() >= PATIENCE * self._due:
                # Only on the main thread, between two of its instructions: there the program does nothing meanwhile.
                # From here, what the walk has in its hands would live longer than the program lets it.
                self._recorder.request_object_scan()

    def _on_main_thread(self) -> None:
        if self._on and self._recorder.next_event() >= self._due:
            self._look_if_allowed()

    def _look_if_allowed(self) -> None:
        if not self._busy.acquire(blocking=False):
            return
        try:
            now, events = time.monotonic(), self._recorder.next_event()
            if events < self._due or not self._on:
                return
            allowed = min(FREE + SHARE * (now - self._begin) - self._spent, LONGEST)
            if allowed < self._needed:  # in a while
                return
            try:
                is_complete = self._look(allowed, more=False)
            finally:
                self._spent += time.monotonic() - now
            self._needed = LEAST if is_complete else min(2 * allowed, LONGEST)
            if is_complete or allowed >= LONGEST:
                self._due = LATER * events
        finally:
            self._busy.release()

    def _look(self, seconds: float, more: bool) -> bool:
        """Whether all was seen; also where there is nothing to look at."""
        try:
            if "torch" not in sys.modules or sys.is_finalizing():
                return True
            from ..objects.look import look

            event = self._recorder.next_event()

            def look_and_write() -> bool:
                found = look(seconds, more=more)
                for group in found.groups:
                    self._write(event, group)
                return found.complete

            return self._collector.run_paused(look_and_write)
        except Exception as error:
            if is_own_error(error):
                return False
            raise

    def _write(self, event: int, group: Any) -> None:
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
        )


Result = TypeVar("Result")


class _Counted:
    """An object that the collector counts when it is made and when it is freed: none of these comes from a list of
    free ones."""

    __slots__ = ("unused",)


class Collector:
    """Python's garbage collector, as the program has it before and after `run_paused`."""

    RESERVE = 10_000

    def __init__(self) -> None:
        self._reserve = [_Counted() for _ in range(self.RESERVE)]

    def run_paused(self, function: Callable[[], Result]) -> Result:
        """Return function(), with no collection meanwhile, and the next one about when it would have been.

        Python collects when so many more objects were made than freed. Objects that go into its lists of free ones were
        counted when they were made, and are not when they are freed: a look brought the next collection forward by
        thousands of objects. (What is in those lists afterwards the program takes from there, uncounted: its next
        collection may be as many objects later.)
        """
        collects = gc.isenabled()
        before = gc.get_count()[0]
        # Not a context manager: Ctrl-C at the start of its __exit__ would leave the program without a collector. Python
        # handles signals after a call and at the start of a function, never before the call of gc.enable.
        try:
            gc.disable()
            return function()
        finally:
            try:
                self._set_count(before)
            finally:
                if collects:
                    gc.enable()

    def _set_count(self, wanted: int) -> None:
        for _ in range(2):  # the first time, the list itself may be made anew
            added = gc.get_count()[0] - wanted
            if added > 0:
                del self._reserve[-added:]
            else:
                self._reserve.extend([_Counted() for _ in range(-added)])
