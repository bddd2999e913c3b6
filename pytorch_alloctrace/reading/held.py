"""What the recorder found when it looked at the program's objects."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, eq=False)
class Held:
    """Pieces of memory that one object of the program held."""

    event: int
    """The number of the next event at that moment."""
    holder: str
    """In words: "Trainer.predictions (list of 46) in trainer, local of main() at train.py:31"."""
    path: str
    """To one of them: "trainer.predictions[...]"."""
    filename: str
    """Of the function that has the variable, or of the global one; "" if neither."""
    line: int
    """Where that function was; 0 for a global variable."""
    count: int
    bytes: int
    """Requested bytes of them."""
    addresses: npt.NDArray[np.uint64]
    """Of some of them."""
    is_garbage: bool
    """True for a reference cycle that waited for the collector: no variable of the program led to it."""
