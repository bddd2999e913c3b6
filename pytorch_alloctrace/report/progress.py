"""Progress bar for slow reading, on a terminal, after one second."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from rich.progress import Progress

_DELAY_SECONDS = 1.0


class SlowProgress:
    """A `PassProgress` that shows a pass and its share, from 0 to 1; between passes `otherwise`, without a share."""

    def __init__(self, console: Console, otherwise: str = "working") -> None:
        self._console = console
        self._otherwise = otherwise
        self._begin = time.monotonic()
        self._bar: Progress | None = None
        self._name = otherwise

    def __enter__(self) -> SlowProgress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()

    def begin_pass(self, name: str) -> None:
        """Begin a pass such as "reading run.alloctrace"."""
        self._name = name
        self(0.0)

    def end_pass(self) -> None:
        self._name = self._otherwise
        self._show(None)

    def __call__(self, share: float) -> None:
        self._show(share)

    def _show(self, share: float | None) -> None:
        if not self._console.is_terminal:
            return
        if self._bar is None:
            if time.monotonic() - self._begin < _DELAY_SECONDS:
                return
            # Imported late: most commands end before a bar is needed.
            from rich.progress import BarColumn, Progress, TextColumn

            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[share]}"),
                console=self._console,
                transient=True,
            )
            self._bar.add_task("", total=1.0, share="")
            self._bar.start()
        text = "" if share is None else f"{100 * share:3.0f} %"
        total = None if share is None else 1.0  # None: the bar shows no share
        self._bar.update(self._bar.task_ids[0], completed=share or 0.0, total=total, description=self._name, share=text)
