"""Which sites belong together: those whose blocks were born at the same times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

SAME_BIRTHS = 0.9
"""Share of the times that two sites must have in common (of those of either) to belong together."""

_Found = TypeVar("_Found")


def grouped_by_births(
    candidates: Sequence[_Found], births: Callable[[_Found], npt.NDArray[np.int64]]
) -> list[list[_Found]]:
    """Candidates in groups, each led by the first of it; the order is kept. births: the times of a candidate."""
    groups: list[list[_Found]] = []
    for candidate in candidates:
        times = births(candidate)
        for group in groups:
            leading = births(group[0])
            if len(np.intersect1d(leading, times)) >= SAME_BIRTHS * len(np.union1d(leading, times)):
                group.append(candidate)
                break
        else:
            groups.append([candidate])
    return groups
