"""Records every allocation of a PyTorch program, with its Python stack, and says what happened to the memory.

    import pytorch_alloctrace as alloctrace
    alloctrace.enable()

Then ``python -m pytorch_alloctrace.analyze TRACE``. Reading traces needs neither torch nor a GPU.
"""

from __future__ import annotations

import os as _os
import sys as _sys
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from .errors import (
    AlloctraceError,
    MissingPackageError,
    PositionError,
    RecorderUnavailableError,
    SessionError,
    TraceError,
)
from .recording.session import Session, disable, enable, is_enabled, mark, pluggable_library, region, step
from .trace import Frame, Integrity, Trace, load

if _TYPE_CHECKING:
    from .analysis.usage.comparison import compare

__version__ = "0.1.0"

__all__ = [
    "AlloctraceError",
    "Frame",
    "Integrity",
    "MissingPackageError",
    "PositionError",
    "RecorderUnavailableError",
    "Session",
    "SessionError",
    "Trace",
    "TraceError",
    "compare",
    "disable",
    "enable",
    "is_enabled",
    "load",
    "mark",
    "pluggable_library",
    "region",
    "step",
]


def __getattr__(name: str) -> _Any:
    """`compare`, when it is asked for: a program that records need not load the analyses."""
    if name == "compare":
        from .analysis.usage.comparison import compare

        return compare
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _enable_from_environment() -> None:
    """ALLOCTRACE=path: records from the import on. A refusal is said on stderr; the program runs on without."""
    path = _os.environ.get("ALLOCTRACE")
    if not path or is_enabled() or _is_own_command():
        return
    try:
        enable(path)
    except Exception as error:  # whatever it is, it must not reach a program that only imported us
        print(f"pytorch_alloctrace: not recording: {error}", file=_sys.stderr)


def _is_own_command() -> bool:
    """`python -m pytorch_alloctrace run` records by itself, and `analyze` is not what the user wants recorded."""
    words = _sys.orig_argv
    return "-m" in words and words[words.index("-m") + 1 :][:1] in (
        ["pytorch_alloctrace"],
        ["pytorch_alloctrace.analyze"],
    )


_enable_from_environment()
