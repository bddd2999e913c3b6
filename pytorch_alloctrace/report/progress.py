"""A progress bar for slow reading: on stderr, only if that is a terminal, and only after a second."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

_PATIENCE_SECONDS = 1.0


class SlowProgress:
    """Called with shares from 0 to 1. A share below the last one begins another pass over the trace."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._begin = time.monotonic()
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._passes = 1
        self._last = 0.0

    def __enter__(self) -> SlowProgress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, share: float) -> None:
        """Shows the share of the current pass."""
        if share < self._last:
            self._passes += 1
        self._last = share
        if not self._console.is_terminal:
            return
        if self._bar is None:
            if time.monotonic() - self._begin < _PATIENCE_SECONDS:
                return
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.percentage:>3.0f} %"),
                console=self._console,
                transient=True,
            )
            self._task = self._bar.add_task("", total=1.0)
            self._bar.start()
        self._bar.update(self._task, completed=share, description=f"reading the trace, pass {self._passes}")
