"""What can go wrong. Every message is one sentence that says what to do next."""

from __future__ import annotations


class AlloctraceError(Exception):
    """Base of all errors of this package."""


class RecorderUnavailableError(AlloctraceError):
    """Recording is not possible here: no torch, one that is too old, or no compiler to build the recorder for it."""


class SessionError(AlloctraceError):
    """A recording cannot start, or was asked for something that it cannot do; nothing is hooked."""


class TraceError(AlloctraceError):
    """A file cannot be read as a trace (not there, not a trace, of a newer format), or lacks the device asked for."""


class PositionError(AlloctraceError):
    """A position was asked for (``at=``, ``since=``, ``until=``) that the trace does not have."""


class CompactedError(PositionError):
    """A position lies in the compacted part of a trace, of which only sums are left."""


class IncompleteTraceWarning(UserWarning):
    """Part of a trace is missing: what is read from it may be wrong about the rest."""


class UserPathError(AlloctraceError):
    """No file of a trace is in one of the ``user_paths``."""

    def __init__(self, message: str, paths: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.paths = paths
        """Those that name no file."""


class MissingPackageError(AlloctraceError):
    """An optional package is not installed."""


class SettingError(AlloctraceError):
    """A setting of torch's allocator is not one, or is one that torch would refuse."""


class NotPredictableError(AlloctraceError):
    """What torch's allocator would have done cannot be told from this trace."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        """In a word: "device" (none with CUDA), "allocator" (not torch's caching one), "incomplete" (events are
        missing), "pools" (of a kind that is not modelled), "beginning" (the recording began in memory that is not
        known) or "check" (the model does not reproduce the recording)."""


class ReportError(AlloctraceError):
    """A report cannot be written where it was asked for."""


class SchedulerError(AlloctraceError):
    """A scheduler of Dask cannot be used: nobody answers, it has no workers, or these lack this package."""
