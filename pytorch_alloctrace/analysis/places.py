"""Lines of code, and what they hold, as small values that outlive the trace."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ..sites import StackIndex


@dataclass(frozen=True)
class Site:
    """A place in the code: the innermost frame of the user's own code, or what stands in for it."""

    filename: str
    """Empty where no stack is known."""
    line: int
    function: str
    source: str | None
    """Text of the line; None where the trace does not have it."""
    user: bool
    """False: the stack has no frame of user code, its innermost frame stands in."""

    @classmethod
    def of_stack(cls, stacks: StackIndex, stack: int) -> Site:
        """The site of a stack; a stack that the trace does not have counts as unknown."""
        named = stacks.describe(stack if 0 <= stack < len(stacks) else 0, "line")
        return cls(named["filename"], named["line"], named["function"], named["source"], named["user"])


@dataclass(frozen=True)
class SiteBytes:
    """What one site holds at a moment. Bytes are requested bytes."""

    site: Site
    bytes: int
    blocks: int
    stack: int
    """Of the site's stacks the one that holds the most."""
    backward_bytes: int = 0
    """Of `bytes`, what backward made for this line."""


def top_sites(sites: pd.DataFrame, top: int) -> tuple[SiteBytes, ...]:
    """The first rows of a table made by `Trace.sites`, those that hold nothing left out."""
    holding = sites[sites["live_bytes"] > 0].head(top)
    return tuple(_site_bytes(row) for row in holding.to_dict("records"))


def _site_bytes(row: dict[Hashable, Any]) -> SiteBytes:
    # A column of text has NaN, not None, where there is none.
    source = row["source"] if isinstance(row["source"], str) else None
    site = Site(row["filename"], int(row["line"]), row["function"], source, bool(row["user"]))
    return SiteBytes(
        site, int(row["live_bytes"]), int(row["live_blocks"]), int(row["stack"]), int(row["live_backward_bytes"])
    )
