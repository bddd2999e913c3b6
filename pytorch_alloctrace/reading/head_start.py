"""A pass over a trace that begins before all is imported that looks at its result.

Half of the time of a command that reads an ordinary trace is that of importing pandas and what stands on it. The replay
needs neither these nor the GIL: it runs meanwhile, on a thread of its own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .. import _replay
from .opening import open_reader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .opened import Opened

Progress = Callable[[float], None]


class _StoppedError(Exception):
    """Nobody waits for the pass any more."""


class HeadStart:
    """Opens a trace and replays it. What goes wrong is not told: whoever waits does the same again, and meets it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._progress: Progress | None = None
        self._stopped = False
        self._is_open = threading.Event()
        self._opened: Opened | None = None
        self._run: _replay.Replay | None = None
        self._thread = threading.Thread(target=self._begin, name="alloctrace replay")
        self._thread.start()

    def opened(self, progress: Progress | None) -> Opened | None:
        """The trace, as soon as it is open. None: it could not be opened."""
        self._progress = progress
        self._is_open.wait()
        self._progress = None
        return self._opened

    def replayed(self, progress: Progress | None) -> _replay.Replay | None:
        """The replay, as soon as the pass is over. None: it failed."""
        self._progress = progress
        self._thread.join()
        return self._run

    def stop(self) -> None:
        """Ends the pass, if it is not over."""
        self._stopped = True
        self._thread.join()

    def _begin(self) -> None:
        try:
            reader = open_reader(self.path, b"", self._tell)
            # Only now: it needs numpy, which the command line imports in the meantime.
            from .opened import Opened

            self._opened = Opened(self.path, reader=reader)
            self._is_open.set()
            self._run = self._opened.replayed(self._tell)
        except Exception:
            return
        finally:
            self._is_open.set()

    def _tell(self, share: float) -> None:
        if self._stopped:
            raise _StoppedError
        if self._progress is not None:
            self._progress(share)


_current: HeadStart | None = None


@contextmanager
def head_start(path: str | None) -> Iterator[None]:
    """The next trace of this path that is opened has begun already. None: nothing is begun."""
    global _current
    started = _current = None if path is None else HeadStart(path)
    try:
        yield
    finally:
        _current = None
        if started is not None:
            started.stop()


def begun(path: str) -> HeadStart | None:
    """The head start of a trace, once: whoever asks again begins anew."""
    global _current
    found = _current
    if found is None or os.path.abspath(found.path) != os.path.abspath(path):
        return None
    _current = None
    return found
