"""Files that are there as a whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from ..errors import ReportError


def write_whole(path: str | os.PathLike[str], write: Callable[[BinaryIO], object], *, trace: str) -> Path:
    """Writes a file, which another process never sees half written, in place of one that is there. trace: the path of
    the trace that it is made of, which is never replaced. Raises ReportError where it cannot be written."""
    target = Path(path)
    if target.exists() and target.samefile(trace):
        raise ReportError(f"{str(target)!r} is the trace itself: name another file")
    unfinished = target.parent / f".{target.name}.{secrets.token_hex(4)}"
    try:
        try:
            with unfinished.open("wb") as file:
                write(file)
            os.replace(unfinished, target)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise ReportError(f"{str(target)!r} cannot be written: {error.strerror or error}") from None
    return target
