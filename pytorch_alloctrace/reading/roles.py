"""What blocks are for: the names of the roles, and tables of them. csrc/core/replay/roles.h decides."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

ROLES = (
    "unknown",
    "parameter",
    "buffer",
    "gradient",
    "optimizer state",
    "input",
    "activation",
    "temporary",
    "library workspace",
    "other",
)
"""By number; same order as csrc/core/format/event.h."""

UNKNOWN = ROLES[0]

ROLES_SHOWN = (
    "parameter",
    "buffer",
    "optimizer state",
    "gradient",
    "activation",
    "input",
    "temporary",
    "library workspace",
    "other",
    "unknown",
)
"""In the order in which tables have them."""

ROLE = pd.CategoricalDtype([*ROLES])


def roles_by_number(numbers: npt.NDArray[np.integer[Any]]) -> pd.Categorical:
    """The names of roles."""
    return pd.Categorical.from_codes(numbers.astype(np.int8), dtype=ROLE)
