"""A progress bar for slow reading: on stderr, only if that is a terminal, and only after a second."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from rich.progress import Progress

_PATIENCE_SECONDS = 1.0


class SlowProgress:
    """A `PassProgress`: called with shares from 0 to 1 of the pass that `begin_pass` has named. Between passes, and
    after the last, it says what else is done, without a share, which nobody knows."""

    def __init__(self, console: Console, otherwise: str = "working") -> None:
        """otherwise: what is done between the passes, and after them."""
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
        """The shares that follow are of this: "reading run.alloctrace"."""
        self._name = name
        self(0.0)

    def end_pass(self) -> None:
        """It is over: what follows has no share."""
        self._name = self._otherwise
        self._show(None)

    def __call__(self, share: float) -> None:
        """Shows the share of the current pass."""
        self._show(share)

    def _show(self, share: float | None) -> None:
        if not self._console.is_terminal:
            return
        if self._bar is None:
            if time.monotonic() - self._begin < _PATIENCE_SECONDS:
                return
            # Most commands are done before.
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
        total = None if share is None else 1.0  # None: the bar moves to and fro
        self._bar.update(self._bar.task_ids[0], completed=share or 0.0, total=total, description=self._name, share=text)
