"""Opens a trace file, and says what to do with a file that is none."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from .. import _replay
from ..errors import TraceError


def open_reader(path: str, spool: bytes, progress: Callable[[float], None] | None) -> _replay.TraceReader:
    """spool: its path; empty where it is next to the trace. Raises TraceError for what is no trace."""
    try:
        return _replay.TraceReader(os.fsencode(path), spool, progress)
    except _replay.FormatError:
        with open(path, "rb") as file:
            is_pickle = re.match(rb"\x80[\x02-\x05]", file.read(2)) is not None
        if is_pickle:
            raise TraceError(
                f"{path!r} is a pickle, not a trace: if torch's _dump_snapshot wrote it, `alloctrace convert` makes a "
                "trace of it"
            ) from None
        raise
