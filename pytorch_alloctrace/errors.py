"""What can go wrong, as types. Every message is one sentence that says what to do next."""

from __future__ import annotations


class AlloctraceError(Exception):
    """Base of all errors of this package."""


class RecorderUnavailableError(AlloctraceError):
    """This installation cannot record: built without torch, or for another torch, CUDA or Python."""


class SessionError(AlloctraceError):
    """A recording cannot start, or is asked for what it cannot do: nothing was hooked."""


class TraceError(AlloctraceError):
    """A file cannot be read as a trace: not there, not a trace, or of a newer format."""


class PositionError(AlloctraceError):
    """A moment was asked for (``at=``, ``since=``) that the trace does not have."""


class MissingPackageError(AlloctraceError):
    """An optional package is not installed."""
