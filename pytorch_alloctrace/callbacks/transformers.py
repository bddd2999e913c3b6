"""Callback for transformers' Trainer: `Trainer(callbacks=[AlloctraceCallback()])`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from .training import TOP, Log, Training

if TYPE_CHECKING:

    class TrainerCallback: ...
else:
    from transformers import TrainerCallback


class AlloctraceCallback(TrainerCallback):
    """Callback that records the training and logs the numbers of `status(fresh=True)`.

    It records unless a recording already runs, and ends a step after each step of the trainer. When the trainer logs,
    it adds the numbers to `trainer.state.log_history`, with names that begin with "alloctrace/".

    Args:
        path: As in `enable`.
        top: As in `status`.
        log: Called with the numbers and the step, to pass them to a logger
            (`lambda numbers, step: wandb.log(numbers, step=step)`). The trainer's own loggers do not get the numbers.
        **options: As in `enable`.
    """

    def __init__(
        self, path: str | os.PathLike[str] | None = None, *, top: int = TOP, log: Log | None = None, **options: object
    ) -> None:
        super().__init__()
        self._training = Training(path, top, options)
        self._log = log

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._training.begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._training.end_step()

    def on_log(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        numbers = self._training.numbers()
        if state.log_history:
            state.log_history[-1].update(numbers)
        if self._log is not None:
            self._log(numbers, state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._training.end()
