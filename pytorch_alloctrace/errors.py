"""Errors and warnings of the package. Every message is one sentence with the next step."""

from __future__ import annotations


class AlloctraceError(Exception):
    """Base class of all errors of this package."""


class RecorderUnavailableError(AlloctraceError):
    """Recording is impossible: torch is missing or too old, or there is no compiler to build the recorder."""


class SessionError(AlloctraceError):
    """A recording cannot start, or cannot do what was requested; no hooks are installed."""


class TraceError(AlloctraceError):
    """A file cannot be read as a trace (missing, not a trace, newer format), or lacks the requested device."""


class PositionError(AlloctraceError):
    """The trace lacks a requested position (``at=``, ``since=``, ``until=``)."""


class CompactedError(PositionError):
    """A requested position lies in the compacted part of a trace, which has only sums."""


class IncompleteTraceWarning(UserWarning):
    """A part of a trace is missing: results may be incomplete."""


class UserPathError(AlloctraceError):
    """One of the ``user_paths`` contains no file of the trace."""

    def __init__(self, message: str, paths: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.paths = paths
        """The `user_paths` that contain no file of the trace."""


class MissingPackageError(AlloctraceError):
    """An optional package is not installed."""


class SettingError(AlloctraceError):
    """A setting of torch's allocator is unknown, or torch would reject it."""


class NotPredictableError(AlloctraceError):
    """The behaviour of torch's allocator cannot be predicted from this trace."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        """Reason: "device" (no CUDA device), "allocator" (not torch's caching allocator), "incomplete" (missing
        events), "pools" (kind of pool not modelled), "beginning" (memory at the begin of the recording unknown) or
        "check" (the model does not reproduce the recording)."""


class ReportError(AlloctraceError):
    """A report cannot be written to the requested path."""


class SchedulerError(AlloctraceError):
    """A Dask scheduler cannot be used: it does not answer, it has no workers, or the workers lack this package."""
