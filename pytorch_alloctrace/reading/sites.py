"""From stacks to places in the user's code.

A site is the innermost frame of the user's own code: not torch, not an installed package, not the standard library,
not frozen modules.
Stacks that differ only inside libraries are one site. Where a stack has no user frame its innermost frame stands in,
and
`user` is False.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from .. import _replay

BY = ("line", "stack", "function", "file")
SITE_COLUMNS = (
    *("site", "filename", "line", "function", "source", "user"),
    *("allocations", "bytes", "live_bytes", "live_blocks", "largest", "live_backward_bytes", "stack_id"),
)


@dataclass(frozen=True)
class Frame:
    """One frame of a stack. `function` is the name that traceback prints; `source` is the text of the line, None
    where the
    trace does not have it."""

    function: str
    filename: str
    line: int
    source: str | None = None

    def __str__(self) -> str:
        return f"{self.filename}:{self.line} in {self.function}"


def is_user_file(filename: str, library_prefixes: Sequence[str], user_paths: Sequence[str] = ()) -> bool:
    """Whether code of this file is the user's own; `user_paths` are folders or files that are in any case."""
    # A folder means what is in it, not its namesakes: lib is no prefix of library.
    if any(filename == path or filename.startswith(path.rstrip(os.sep) + os.sep) for path in user_paths):
        return True
    if not filename or filename.startswith("<frozen "):
        return False
    return not any(filename.startswith(prefix) for prefix in library_prefixes)


class StackIndex:
    """The stacks of a trace: their frames, and for each the site it belongs to. Stack 0 is "no stack known"."""

    def __init__(
        self, reader: _replay.TraceReader, library_prefixes: Sequence[str], user_paths: Sequence[str] = ()
    ) -> None:
        self._reader = reader
        table: dict[str, npt.NDArray[Any]] = reader.stack_table()
        self.parent = table["parent"]
        self._name = table["name"]
        self._filename = table["filename"]
        self._line = table["line"]
        self._strings: dict[int, str] = {}
        user_by_file = {
            int(file): is_user_file(self._string(int(file)), library_prefixes, user_paths)
            for file in np.unique(self._filename)
        }
        self.is_user = np.array([user_by_file[int(file)] for file in self._filename], dtype=bool)
        self.is_user[0] = False
        self.site = self._sites()

    def __len__(self) -> int:
        return len(self.parent)

    def _sites(self) -> npt.NDArray[np.uint32]:
        """For each stack its innermost user frame, 0 where there is none. Callers have lower ids: one pass is
        enough."""
        site = np.where(self.is_user, np.arange(len(self.parent), dtype=np.uint32), np.uint32(0))
        pending = np.flatnonzero(~self.is_user)
        for stack in pending:
            site[stack] = site[self.parent[stack]]
        return site.astype(np.uint32)

    def _string(self, identifier: int) -> str:
        text = self._strings.get(identifier)
        if text is None:
            text = self._strings[identifier] = self._reader.string(identifier)
        return text

    def frame(self, stack: int) -> Frame:
        """The innermost frame of a stack."""
        filename, line = int(self._filename[stack]), int(self._line[stack])
        return Frame(
            self._string(int(self._name[stack])), self._string(filename), line, self._reader.source(filename, line)
        )

    def frames(self, stack: int) -> list[Frame]:
        """All frames, innermost first; empty for stack 0. Raises IndexError for a stack that the trace does not
        have."""
        if not 0 <= stack < len(self):
            raise IndexError(f"the trace has no stack {stack}: stacks count from 1 to {len(self) - 1}")
        found = []
        while stack:
            found.append(self.frame(stack))
            stack = int(self.parent[stack])
        return found

    def representative(self, stack: int) -> int:
        """The frame that stands for a stack: its site, else its innermost frame."""
        return int(self.site[stack]) or stack

    def key(self, stack: int, by: str) -> tuple[Any, ...]:
        """What stacks of one group have in common."""
        frame = self.representative(stack)
        file = int(self._filename[frame])
        if by == "line":
            return (file, int(self._line[frame]))
        if by == "function":
            return (file, int(self._name[frame]))
        if by == "file":
            return (file,)
        return (stack,)

    def describe(self, stack: int, by: str) -> dict[str, Any]:
        """The columns that name a group: site, filename, line, function, source, user."""
        if stack == 0:
            return {
                "site": "(no Python stack)",
                "filename": "",
                "line": 0,
                "function": "",
                "source": None,
                "user": False,
            }
        representative = self.representative(stack)
        frame = self.frame(representative)
        line = frame.line if by in ("line", "stack") else 0
        site = {"function": f"{frame.function} ({frame.filename})", "file": frame.filename}.get(
            by, f"{frame.filename}:{line}"
        )
        return {
            "site": site,
            "filename": frame.filename,
            "line": line,
            "function": "" if by == "file" else frame.function,
            "source": frame.source if by in ("line", "stack") else None,
            "user": bool(self.is_user[representative]),
        }


def group_stacks(
    index: StackIndex, totals: pd.DataFrame, by: str, more: Mapping[str, str] | None = None
) -> pd.DataFrame:
    """Totals by stack (columns stack_id, allocations, bytes, live_bytes, live_blocks, largest) summed by site.

    Each row's `stack_id` is the one of its group with the most live bytes, then the most bytes. Ordered by live bytes,
    then bytes. more: further columns of `totals`, which come last, and how they are joined: "sum" or "max".
    """
    more = dict(more or {})
    if by not in BY:
        raise ValueError(f"by={by!r} is not known: use one of {', '.join(BY)}")
    if totals.empty:
        return pd.DataFrame(columns=[*SITE_COLUMNS, *more])
    numbers: dict[tuple[Any, ...], int] = {}
    group = np.array([numbers.setdefault(index.key(int(stack), by), len(numbers)) for stack in totals["stack_id"]])
    keyed = totals.assign(group=group).sort_values(["live_bytes", "bytes"], ascending=False, kind="stable")
    groups = keyed.groupby("group", sort=False).agg(
        allocations=("allocations", "sum"),
        bytes=("bytes", "sum"),
        live_bytes=("live_bytes", "sum"),
        live_blocks=("live_blocks", "sum"),
        largest=("largest", "max"),
        live_backward_bytes=("live_backward_bytes", "sum"),
        stack_id=("stack_id", "first"),
        **{name: (name, how) for name, how in more.items()},
    )
    names = pd.DataFrame([index.describe(int(stack), by) for stack in groups["stack_id"]], index=groups.index)
    result = pd.concat([names, groups], axis=1)[[*SITE_COLUMNS, *more]]
    result["source"] = result["source"].astype(object).where(result["source"].notna(), None)
    return result.sort_values(["live_bytes", "bytes"], ascending=False, kind="stable").reset_index(drop=True)
