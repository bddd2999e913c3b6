"""One ordered walk through a trace: each position that an analysis looks at is visited once, in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from ..errors import CompactedError
from ..reading.recorded import RecordedTrace

_T = TypeVar("_T")


class Visit(Generic[_T]):
    """A position that a walk comes by, and what was found there."""

    def __init__(self, until: int, look: Callable[[], _T]) -> None:
        self.until = until
        """The memory before this event is looked at."""
        self._look = look
        self._result: list[_T] = []
        self._error: CompactedError | None = None

    def make(self) -> None:
        """Look. A position in a compacted part of the trace is noted."""
        try:
            self._result.append(self._look())
        except CompactedError as error:
            self._error = error

    @property
    def result(self) -> _T:
        """What was found. Raises CompactedError if the position is in a compacted part of the trace."""
        if self._error is not None:
            raise self._error
        return self._result[0]

    @property
    def is_compacted(self) -> bool:
        """Whether the position is in a compacted part of the trace."""
        return self._error is not None


class Walk:
    """Visits to the states of a trace. Made in order, they take one walk through its events."""

    def __init__(self, trace: RecordedTrace) -> None:
        self._trace = trace
        self._visits: list[Visit[object]] = []

    def visit(self, until: int, look: Callable[[], _T]) -> Visit[_T]:
        """Plan a visit to the memory before event `until`. look: what to do there; it asks the replay."""
        visit = Visit(until, look)
        self._visits.append(visit)  # type: ignore[arg-type]
        return visit

    def make(self) -> None:
        """Make all visits, in the order of their events."""
        for visit in sorted(self._visits, key=lambda visit: visit.until):
            visit.make()
        self._trace.replay.release_state()
