"""Atomic file output."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from ..errors import ReportError


def write_whole(path: str | os.PathLike[str], write: Callable[[BinaryIO], object], *, trace: str) -> Path:
    """Write a file atomically, replacing an existing one.

    Args:
        path: The file to write.
        write: The function that writes the content.
        trace: The path of the source trace, which is never replaced.

    Returns:
        The path of the file.

    Raises:
        ReportError: If `path` is the trace or cannot be written.
    """
    target = Path(path)
    if target.exists() and target.samefile(trace):
        raise ReportError(f"{str(target)!r} is the trace itself: name another file")
    unfinished = target.parent / f".{target.name}.{secrets.token_hex(4)}"
    try:
        try:
            with unfinished.open("wb") as file:
                write(file)
            unfinished.replace(target)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise ReportError(f"{str(target)!r} cannot be written: {error.strerror or error}") from None
    return target
