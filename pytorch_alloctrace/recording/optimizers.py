"""Torch's hook after the step of any optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def listen_to_steps(after_step: Callable[[object], None]) -> Any:
    """Calls a function with every torch optimizer that has stepped, including those that exist already. What it returns
    has `remove`, which ends that."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    def call(optimizer: object, args: object, kwargs: object) -> None:
        after_step(optimizer)

    # torch.compile must neither trace this function nor break the graph of a compiled step because of it.
    call._torchdynamo_disable = True  # type: ignore[attr-defined]
    return register_optimizer_step_post_hook(call)
