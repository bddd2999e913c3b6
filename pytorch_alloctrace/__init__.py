"""Recorder and analyses of every allocation of a PyTorch program, with Python stacks.

    import pytorch_alloctrace as alloctrace
    alloctrace.enable()

Then run ``alloctrace TRACE``, or ``python -m pytorch_alloctrace TRACE``. Reading traces needs neither torch nor a GPU.
"""

from __future__ import annotations

from . import command as _command

# Before the other imports: Ctrl-C during an import would show a traceback.
if _command.is_running():
    _command.exit_on_interrupt()

import importlib as _importlib
import os as _os
import sys as _sys
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from .errors import (
    AlloctraceError,
    CompactedError,
    IncompleteTraceWarning,
    MissingPackageError,
    NotPredictableError,
    PositionError,
    RecorderUnavailableError,
    ReportError,
    SchedulerError,
    SessionError,
    SettingError,
    TraceError,
    UserPathError,
)

if _TYPE_CHECKING:
    from .analysis.leaks.leak_report import LeakReport
    from .converting.convert import convert
    from .live.changes import Changes, changes
    from .live.footprint import Footprint, footprint
    from .live.status import status
    from .live.tensors import tensors
    from .notebook import diagnose
    from .objects.holders import Holders, holders
    from .ranks import Ranks, load_ranks
    from .reading.integrity import Integrity
    from .reading.sites import Frame
    from .reading.trace_files import compact
    from .recording.session import (
        Session,
        disable,
        enable,
        is_enabled,
        mark,
        observe,
        pluggable_library,
        region,
        step,
    )
    from .report.timeline import plot_timeline
    from .trace import Trace, compare, finish, load

__version__ = "0.1.0"

__all__ = [
    "AlloctraceError",
    "Changes",
    "CompactedError",
    "Footprint",
    "Frame",
    "Holders",
    "IncompleteTraceWarning",
    "Integrity",
    "LeakReport",
    "MissingPackageError",
    "NotPredictableError",
    "PositionError",
    "Ranks",
    "RecorderUnavailableError",
    "ReportError",
    "SchedulerError",
    "Session",
    "SessionError",
    "SettingError",
    "Trace",
    "TraceError",
    "UserPathError",
    "changes",
    "compact",
    "compare",
    "convert",
    "diagnose",
    "disable",
    "enable",
    "finish",
    "footprint",
    "holders",
    "is_enabled",
    "load",
    "load_ranks",
    "mark",
    "observe",
    "plot_timeline",
    "pluggable_library",
    "region",
    "status",
    "step",
    "tensors",
]


_LAZY_IMPORTS = {
    "Changes": ".live.changes",
    "Footprint": ".live.footprint",
    "Frame": ".reading.sites",
    "Holders": ".objects.holders",
    "Integrity": ".reading.integrity",
    "LeakReport": ".analysis.leaks.leak_report",
    "Ranks": ".ranks",
    "Session": ".recording.session",
    "Trace": ".trace",
    "changes": ".live.changes",
    "compare": ".trace",
    "convert": ".converting.convert",
    "diagnose": ".notebook",
    "disable": ".recording.session",
    "enable": ".recording.session",
    "finish": ".trace",
    "compact": ".reading.trace_files",
    "footprint": ".live.footprint",
    "holders": ".objects.holders",
    "is_enabled": ".recording.session",
    "load": ".trace",
    "load_ranks": ".ranks",
    "mark": ".recording.session",
    "observe": ".recording.session",
    "plot_timeline": ".report.timeline",
    "pluggable_library": ".recording.session",
    "region": ".recording.session",
    "status": ".live.status",
    "step": ".recording.session",
    "tensors": ".live.tensors",
}
"""Modules of the names imported on first use: a recorded program must not pay for the readers (pandas alone takes 0.4 s
and 34 MiB), nor a reading command for the recorder."""

if not _command.is_running():
    # Not lazy: exit handlers run in reverse order, and the recording must end after the program's own handlers.
    from .recording import session as _session  # noqa: F401


def __getattr__(name: str) -> _Any:
    if name not in _LAZY_IMPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value = getattr(_importlib.import_module(_LAZY_IMPORTS[name], __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


def load_ipython_extension(shell: _Any) -> None:
    """Register the cell magic %%alloctrace, for `%load_ext pytorch_alloctrace`."""
    from .notebook import register

    register(shell)


def _enable_from_environment() -> None:
    """Start recording if ALLOCTRACE is set to a path. On an error, print one line to stderr and continue."""
    path = _os.environ.get("ALLOCTRACE")
    # `alloctrace run` starts its own recording, and the other commands must not be recorded.
    if not path or _command.is_running():
        return
    from .recording.session import enable, is_enabled

    if is_enabled():
        return
    try:
        enable(path)
    except Exception as error:  # must not reach a program that only imports this package
        print(f"pytorch_alloctrace: not recording: {error}", file=_sys.stderr)


_enable_from_environment()
