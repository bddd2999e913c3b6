"""Magic of a trace, and errors for files that are not traces: what such a file seems to be, and the next step."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from .. import _replay
from ..errors import TraceError

TRACE_MAGIC = b"ALLOCTRC"
"""First bytes of a trace: `kFileMagic` in csrc/core/format/format.h."""
_READ_BYTES = 256
_KINDS = (
    (rb"\x80[\x02-\x05]", "a pickle: if torch's _dump_snapshot wrote it, use `alloctrace convert`"),
    (rb"ALLOCSPL", "the spool of a recording: give the trace, which has the same name without .spool"),
    (rb'\s*\{\s*"format": "pytorch_alloctrace\.', "the --json output of a command: give the trace"),
    (rb"(?i)\s*<(!doctype )?html", "an HTML page: give the trace that the report was made from"),
    (rb"PK\x03\x04|\x1f\x8b|\x28\xb5\x2f\xfd|\xfd7zXZ|BZh", "a compressed file or one of torch.save: unpack the trace"),
)
"""Beginnings of other files, with the kind of file and the next step."""


@contextlib.contextmanager
def explain_other_file(path: str | os.PathLike[str]) -> Iterator[None]:
    """Replace a FormatError by an error that names the kind of the file, if it is known."""
    try:
        yield
    except _replay.FormatError:
        if kind := _find_kind(Path(path)):
            raise TraceError(f"{os.fspath(path)} is not an alloctrace trace: it seems to be {kind}") from None
        raise


def _find_kind(path: Path) -> str | None:
    with path.open("rb") as file:
        beginning = file.read(_READ_BYTES)
    if path.suffix == ".py" and not beginning.startswith(TRACE_MAGIC):
        return "a Python program: record it with `alloctrace run`"
    return next((kind for pattern, kind in _KINDS if re.match(pattern, beginning)), None)
