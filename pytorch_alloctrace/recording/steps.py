"""Steps inferred from torch's optimizers, for programs that do not call step().

A step ends when the optimizer that ended the last one, the leader, steps again. So the two optimizers of a GAN, or one
optimizer for each parameter, end one step per iteration, not two or hundreds.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

TAKE_OVER_AFTER = 16
"""Number of steps of another optimizer, without a step of the leader, after which it becomes the leader.

More than a GAN's critic takes per step of its generator: so many steps mean another phase of the program."""


class OptimizerSteps:
    """Calls `end_step` at the end of each inferred step, between `start` and `stop`."""

    def __init__(self, end_step: Callable[[], None]) -> None:
        self._end_step = end_step
        self._handle: Any = None
        self._leader: weakref.ref[object] | None = None
        self._steps_of_others: dict[int, int] = {}

    def start(self) -> None:
        self._handle = listen_to_steps(self._after_step)

    def stop(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.remove()

    def _after_step(self, optimizer: object) -> None:
        leader = self._leader() if self._leader is not None else None
        if leader is not None and leader is not optimizer:
            steps = self._steps_of_others.get(id(optimizer), 0) + 1
            self._steps_of_others[id(optimizer)] = steps
            if steps < TAKE_OVER_AFTER:
                return
        self._leader = weakref.ref(optimizer)
        self._steps_of_others.clear()
        self._end_step()


def listen_to_steps(listener: Callable[[object], None], before: bool = False) -> Any:
    """Call `listener` after each step of any torch optimizer, or before it, until `remove` of the returned handle."""
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    def call(optimizer: object, args: object, kwargs: object) -> None:
        listener(optimizer)

    # Without this, torch.compile traces the function, or breaks the graph of a compiled step at it.
    call._torchdynamo_disable = True  # type: ignore[attr-defined]
    return (register_optimizer_step_pre_hook if before else register_optimizer_step_post_hook)(call)
