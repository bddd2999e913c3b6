"""For transformers' Trainer: `Trainer(callbacks=[AlloctraceCallback()])`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from .training import TOP, Log, Training

if TYPE_CHECKING:

    class TrainerCallback: ...
else:
    from transformers import TrainerCallback


class AlloctraceCallback(TrainerCallback):
    """Records the training, unless something records already; ends a step after each of the trainer's; when the trainer
    logs, adds the numbers of `status()`, as "alloctrace/...", to `trainer.state.log_history`.

    path and options: as in `enable`. top: as in `status`. log: called with the numbers and the step, for a logger of
    your own (`lambda numbers, step: wandb.log(numbers, step=step)`): the trainer's own have had theirs by then.
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
