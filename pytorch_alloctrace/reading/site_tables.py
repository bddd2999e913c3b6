"""Lines of code, and what they hold, as small values that outlive the trace."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from .sites import StackIndex, group_stacks


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


class SiteNumbers:
    """A number for each line of user code, in the order in which they are asked for: the same in all tables."""

    def __init__(self, stacks: StackIndex) -> None:
        self._stacks = stacks
        self._numbers: dict[tuple[Any, ...], int] = {}

    def of(self, stacks: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """By stack the number of its site; all that have no stack are one site."""
        known, of_row = np.unique(np.asarray(stacks, np.int64), return_inverse=True)
        keys = [self._stacks.key(int(stack), "line") if stack else () for stack in known]
        return np.array([self._numbers.setdefault(key, len(self._numbers)) for key in keys], dtype=np.int64)[of_row]


def bytes_by_stack(blocks: pd.DataFrame) -> dict[int, int]:
    """The bytes of a table of blocks (columns nbytes, stack_id) by stack."""
    stacks, of_row = np.unique(blocks["stack_id"].to_numpy(np.int64), return_inverse=True)
    totals = np.zeros(len(stacks), dtype=np.int64)
    np.add.at(totals, of_row, blocks["nbytes"].to_numpy(np.int64))
    return dict(zip(stacks.tolist(), totals.tolist(), strict=True))


@dataclass(frozen=True)
class SiteBytes:
    """What one site holds at a moment. Bytes are requested bytes."""

    site: Site
    bytes: int
    blocks: int
    stack_id: int
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
        site, int(row["live_bytes"]), int(row["live_blocks"]), int(row["stack_id"]), int(row["live_backward_bytes"])
    )


def describe_stacks(stacks: StackIndex, numbers: pd.Series[Any]) -> pd.DataFrame:
    """The line of user code of each stack, a row for each of `numbers`.

    Columns: site, filename, line, function, source, user.
    """
    names = {int(stack): stacks.describe(int(stack), "line") for stack in numbers.unique()}
    columns = list(stacks.describe(0, "line"))
    rows = [names[int(stack)] for stack in numbers]
    return pd.DataFrame(rows, columns=columns, index=numbers.index)


def sites_of_blocks(stacks: StackIndex, blocks: pd.DataFrame, by: str = "line") -> pd.DataFrame:
    """What each line of user code holds, as `Trace.sites` says it, of these live blocks alone (allocations, bytes and
    largest are theirs, too). blocks: with requested_size, stack_id, backward."""
    sizes = blocks["requested_size"]
    rows = blocks.assign(live_backward_bytes=sizes.where(blocks["backward"], 0))
    totals = rows.groupby("stack_id", as_index=False).agg(
        live_blocks=("requested_size", "size"),
        live_bytes=("requested_size", "sum"),
        largest=("requested_size", "max"),
        live_backward_bytes=("live_backward_bytes", "sum"),
    )
    return group_stacks(stacks, totals.assign(allocations=totals["live_blocks"], bytes=totals["live_bytes"]), by)
