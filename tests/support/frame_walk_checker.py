"""Comparison of the walker's stacks with those of the traceback module, for Python 3.10 and later."""

from __future__ import annotations

import sys
import traceback
from typing import Any

MAX_FRAMES = 4096
"""Maximum number of frames of a stack: the walker records the innermost frames."""

Probe = Any
"""The module that frame_walk_probe.cpp defines."""


def printable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


class Checker:
    """Collector of differences between stacks. Raises nothing: many programs swallow exceptions, as `__del__` does."""

    def __init__(self, probe: Probe, mode: str) -> None:
        self.probe = probe
        # Through the public API a thread has a stack only while it holds the GIL.
        self.walk = probe.current_stack_with_gil if mode == "public API" else probe.current_stack
        self.compared = 0
        self.budget = 0
        self.differences: list[str] = []
        probe.start(mode)

    def check(self) -> None:
        """Call check_fast while the budget lasts."""
        if self.budget > 0:
            self.budget -= 1
            self.check_fast()

    def check_fast(self) -> None:
        """Compare the caller's stack with traceback's, in names, files and lines, without reading source files."""
        stack, frame = self.walk(), sys._getframe()
        summary = traceback.StackSummary.extract(traceback.walk_stack(frame), lookup_lines=False)
        summary.reverse()
        lines = [(entry.name, entry.filename, entry.lineno or 0) for entry in summary]
        lines[-1] = (lines[-1][0], lines[-1][1], frame.f_code.co_firstlineno + 2)
        self.compare(stack, lines, frame)

    def compare(self, stack: int, expected: list[tuple[str, str, int]], frame: Any) -> None:
        frames = self.probe.frames(stack)
        expected_frames = [(printable(name), printable(filename), line) for name, filename, line in expected]
        self.compared += 1
        if [(name, filename, line) for name, _, filename, line, *_ in frames] != expected_frames[-MAX_FRAMES:]:
            self.differences.append(f"found {frames[-12:]}, expected {expected_frames[-12:]}")
        if sys.version_info >= (3, 11):
            names = [printable(entry.f_code.co_qualname) for entry, _ in traceback.walk_stack(frame)][::-1]
            if [name for _, name, *_ in frames] != names[-MAX_FRAMES:]:
                self.differences.append(f"qualified names {frames[-12:]}, expected {names[-12:]}")

    def expect(self, is_met: bool, message: str) -> None:
        self.compared += 1
        if not is_met:
            self.differences.append(message)
