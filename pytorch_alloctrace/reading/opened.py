"""A trace file, opened: its reader, its header and its stacks, and the pass that replays it. Needs no pandas: it may be
at work while that is imported (see `head_start`)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import _replay
from ..errors import UserPathError
from .json_text import json_object
from .opening import open_reader
from .sites import StackIndex
from .user_code import UserCode, packages_to_open

MEASURED = 60_000
"""Intervals that the one pass measures: those of a timeline are made of them."""
POINTS = 6000
"""Intervals of a curve that is shown whole."""


class Opened:
    """What a `RecordedTrace` stands on. spool: its path; empty where it is next to the trace. reader: that of the
    trace, if it is open."""

    def __init__(
        self,
        path: str,
        spool: bytes = b"",
        user_paths: Sequence[str] = (),
        progress: Callable[[float], None] | None = None,
        reader: _replay.TraceReader | None = None,
    ) -> None:
        self.reader = reader or open_reader(path, spool, progress)
        self.header: dict[str, Any] = json_object(self.reader.header_json)
        self._code = self._user_code(user_paths)

    def _user_code(self, user_paths: Sequence[str]) -> UserCode:
        # A damaged header may hold anything.
        prefixes, folder = self.header.get("library_prefixes"), self.header.get("working_directory")
        prefixes = [str(prefix) for prefix in prefixes] if isinstance(prefixes, list) else []
        code = UserCode(prefixes, user_paths, folder if isinstance(folder, str) else "")
        if user_paths:
            files = self.reader.stack_table()["filename"]
            names = [self.reader.string(int(file)) for file in np.unique(files)]
            if unmatched := code.unmatched(names):
                there = ", ".join(packages_to_open(names)) or "none but torch"
                raise UserPathError(
                    f"no file of the trace is in {unmatched[0]!r}: name a file, a folder or a package "
                    f"(installed packages that the trace has: {there})",
                    tuple(unmatched),
                )
        return code

    @functools.cached_property
    def stacks(self) -> StackIndex:
        """The stacks, and the site of each."""
        options = self.header.get("options")
        # Of a damaged header it is not known.
        has_modules = bool(options.get("modules")) if isinstance(options, dict) else len(self.reader.modules()) > 0
        return StackIndex(self.reader, self._code, has_modules)

    @property
    def nodes_at_begin(self) -> tuple[int, int]:
        """See `_replay.Replay`."""
        # A damaged header may hold anything, an older one has none.
        match self.header.get("autograd_nodes"):
            case [int(thread), int(nodes)] if min(thread, nodes) >= 0 and max(thread, nodes) < 1 << 63:
                return thread, nodes
        return 0, 0

    def replayed(self, progress: Callable[[float], None] | None = None) -> _replay.Replay:
        """Replays it, in one pass."""
        return _replay.Replay(self.reader, MEASURED, self.stacks.line_numbers, progress, self.nodes_at_begin)
