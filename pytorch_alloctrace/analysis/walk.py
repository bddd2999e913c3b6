"""One ordered walk through a trace, which visits each position of an analysis once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from ..errors import CompactedError
from ..reading.recorded import RecordedTrace

_T = TypeVar("_T")


class Visit(Generic[_T]):
    """A position of a walk, and the result that is read there."""

    def __init__(self, until: int, read: Callable[[], _T]) -> None:
        self.until = until
        """The memory before this event is read."""
        self._read = read
        self._result: list[_T] = []
        self._error: CompactedError | None = None

    def make(self) -> None:
        """Read the result, or note that the position is compacted."""
        try:
            self._result.append(self._read())
        except CompactedError as error:
            self._error = error

    @property
    def result(self) -> _T:
        """The result; raises CompactedError if the position is in a compacted part of the trace."""
        if self._error is not None:
            raise self._error
        return self._result[0]

    @property
    def is_compacted(self) -> bool:
        return self._error is not None


class Walk:
    """Visits to the states of a trace. Made in order, they take one walk through its events."""

    def __init__(self, trace: RecordedTrace) -> None:
        self._trace = trace
        self._visits: list[Visit[object]] = []

    def visit(self, until: int, read: Callable[[], _T]) -> Visit[_T]:
        """Plan a visit before event `until`, at which `read` returns the result from the replay."""
        visit = Visit(until, read)
        self._visits.append(visit)  # type: ignore[arg-type]
        return visit

    def make(self) -> None:
        for visit in sorted(self._visits, key=lambda visit: visit.until):
            visit.make()
        self._trace.replay.release_state()
