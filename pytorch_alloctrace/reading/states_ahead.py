"""States of the replay that will be asked for: asked for in their order, they take one walk through the trace, and not
one each. The walk needs the GIL only for what it finds, so it may go on while other questions are answered."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from typing import TypeAlias

from .. import _replay

Ask: TypeAlias = tuple[str, int, str]
"""What is asked of a state ("lives", "roles" or "stacks"), the event before which it is, and a device."""
ByDevice: TypeAlias = "list[tuple[str, _replay.Columns]]"


class StatesAhead:
    """Answers what was asked ahead.

    answer: gives one answer, from these states. meanwhile: the walk begins at once, on a thread of its own, which holds
    a second state of the memory until it is over. Otherwise whoever takes the first answer walks.
    """

    def __init__(
        self,
        asks: Sequence[Ask],
        answer: Callable[[_replay.States, Ask], ByDevice],
        states: _replay.States,
        *,
        meanwhile: bool = False,
    ) -> None:
        self._answer = answer
        self._states = states
        self._futures: dict[Ask, Future[ByDevice]] = {
            ask: Future() for ask in sorted(set(asks), key=lambda ask: ask[1])
        }
        self._begun = self._stopped = False
        self._thread: threading.Thread | None = None
        if meanwhile:
            thread = threading.Thread(target=self._walk, args=[list(self._futures.items())], name="alloctrace states")
            try:
                thread.start()
            except RuntimeError:  # there are too many threads: it takes longer
                return
            self._begun, self._thread = True, thread

    def take(self, ask: Ask) -> ByDevice | None:
        """The answer; None where it was not asked for, or the walk has been stopped. Raises what went wrong with it. It
        is kept until `forget`, or in the case of lives, which are large, not at all."""
        future = self._futures.get(ask)
        if future is None:
            return None
        if not self._begun:
            self._begun = True
            self._walk(list(self._futures.items()))
        if ask[0] == "lives":
            self._futures.pop(ask, None)
        try:
            return future.result()
        except CancelledError:
            return None

    def forget(self, device: str) -> None:
        """Nothing more will be asked of a device."""
        self._futures = {ask: future for ask, future in self._futures.items() if ask[2] != device}

    def stop(self) -> None:
        """Ends the walk: nothing more will be asked."""
        self._stopped = True
        if self._thread is not None:
            self._thread.join()
        self._futures = {}

    def _walk(self, futures: list[tuple[Ask, Future[ByDevice]]]) -> None:
        try:
            for ask, future in futures:
                if self._stopped:
                    break
                try:
                    future.set_result(self._answer(self._states, ask))
                except Exception as error:  # of any kind: it is for whoever takes this answer
                    future.set_exception(error)
            self._states.let_go()
        finally:
            for _, future in futures:  # nobody shall wait for what will not come
                future.cancel()
