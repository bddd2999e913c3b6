"""Records every allocation of a PyTorch program, with its Python stack, and says what happened to the memory.

    import pytorch_alloctrace as alloctrace
    alloctrace.enable()

Then ``python -m pytorch_alloctrace.analyze TRACE``. Reading traces needs neither torch nor a GPU.
"""

from __future__ import annotations

import os as _os

from .errors import AlloctraceError, PositionError, RecorderUnavailableError, SessionError, TraceError
from .session import Session, disable, enable, is_enabled, mark, region, step
from .trace import Frame, Integrity, Trace, load

__version__ = "0.1.0"

__all__ = [
    "AlloctraceError",
    "Frame",
    "Integrity",
    "PositionError",
    "RecorderUnavailableError",
    "Session",
    "SessionError",
    "Trace",
    "TraceError",
    "disable",
    "enable",
    "is_enabled",
    "load",
    "mark",
    "region",
    "step",
]


def _enable_from_environment() -> None:
    """ALLOCTRACE=path: records from the import on. A refusal is said on stderr; the program runs on without."""
    path = _os.environ.get("ALLOCTRACE")
    if not path or is_enabled():
        return
    try:
        enable(path)
    except AlloctraceError as error:
        import sys

        print(f"pytorch_alloctrace: not recording: {error}", file=sys.stderr)


_enable_from_environment()
