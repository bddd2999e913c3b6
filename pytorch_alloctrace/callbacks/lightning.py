"""Callback for Lightning's Trainer: `Trainer(callbacks=[AlloctraceCallback()])`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from .training import TOP, Training

if TYPE_CHECKING:

    class Callback: ...
else:
    try:
        from lightning.pytorch import Callback
    except ImportError:
        from pytorch_lightning import Callback


class AlloctraceCallback(Callback):
    """Callback that records `fit` and logs the numbers of `status(fresh=True)`.

    It records unless a recording already runs, and ends a step after each batch. Every `log_every_n_steps` it passes
    the numbers to all loggers of the trainer, with names that begin with "alloctrace/".

    Args:
        path: As in `enable`.
        top: As in `status`.
        **options: As in `enable`.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, *, top: int = TOP, **options: object) -> None:
        super().__init__()
        self._training = Training(path, top, options)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        self._training.begin()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        self._training.end_step()
        if trainer.global_step % trainer.log_every_n_steps == 0 and trainer.loggers:
            numbers = self._training.numbers()
            for logger in trainer.loggers:
                logger.log_metrics(numbers, step=trainer.global_step)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        self._training.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._training.end()
