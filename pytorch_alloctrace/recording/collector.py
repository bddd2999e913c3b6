"""Work inside the program that does not decide when its garbage is collected."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import TypeVar

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
