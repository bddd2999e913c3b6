"""Atomic file output."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from ..errors import ReportError


def write_whole(path: str | os.PathLike[str], write: Callable[[BinaryIO], object], *, trace: str) -> Path:
    """Write a file atomically, replacing an existing file unless it is `trace`, the path of the source trace."""
    target = Path(path)
    if target.exists() and target.samefile(trace):
        raise ReportError(f"{str(target)!r} is the trace itself: name another file")
    temporary_path = target.parent / f".{target.name}.{secrets.token_hex(4)}"
    try:
        try:
            with temporary_path.open("wb") as file:
                write(file)
            temporary_path.replace(target)
        finally:
            temporary_path.unlink(missing_ok=True)
    except OSError as error:
        raise ReportError(f"{str(target)!r} cannot be written: {error.strerror or error}") from None
    return target
