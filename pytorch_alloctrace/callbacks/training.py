"""The recording of a training, for the callbacks of all trainers."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from ..live.status import TOP, status
from ..recording.session import Session, enable, is_enabled, step

PREFIX = "alloctrace/"
Log = Callable[[dict[str, float], int], object]


class Training:
    def __init__(self, path: str | os.PathLike[str] | None, top: int, options: Mapping[str, object]) -> None:
        self._path = path
        self._top = top
        self._options = dict(options)
        self._session: Session | None = None

    def begin(self) -> None:
        if not is_enabled():
            self._session = enable(self._path, **self._options)  # type: ignore[arg-type]

    def end_step(self) -> None:
        step()
        status(top=0)  # reads the trace in a thread, at most every 2 seconds, so that `numbers` has little left to read

    def numbers(self) -> dict[str, float]:
        """Return the numbers of `status()`, as of now: the steps and peaks of an earlier read would be too low."""
        return {PREFIX + name: number for name, number in status(top=self._top, fresh=True).items()}

    def end(self) -> None:
        """End the recording if this object began it. May be called more than once."""
        session, self._session = self._session, None
        if session is not None:
            session.__exit__(None, None, None)


__all__ = ["PREFIX", "TOP", "Log", "Training"]
