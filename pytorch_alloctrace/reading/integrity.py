"""Completeness of a trace."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, BinaryIO

from .. import _replay
from .names import counted


@dataclass(frozen=True)
class Integrity:
    """Completeness of a trace. Counts are events unless the name states another unit."""

    state: str
    """"complete", "truncated" (ends before the recording did), "gaps" (events lost while recording, or blocks absent)
    or "corrupt" (bytes of the file are corrupt); the worst that applies."""
    events: int
    """Number of readable events."""
    lost: int
    """Number of events that were not recorded: the ring was full, a write failed, or an internal fault."""
    lost_by_cause: dict[str, int] = field(default_factory=dict)
    """`lost` by cause: ring_full, write_failed, fault."""
    missing_events: int = 0
    """Number of events in corrupt or absent blocks, computed from the adjacent sequence numbers."""
    corrupt_blocks: int = 0
    """Number of corrupt places in the file."""
    corrupt_bytes: int = 0
    """Number of bytes in corrupt places."""
    truncated_bytes: int = 0
    """Number of bytes in an unfinished block at the end of the file."""
    recovered: int = 0
    """Number of readable events from the spool of a killed or running recording."""
    uncommitted: int = 0
    """Number of allocator calls that had not returned when the program was killed."""
    compacted_events: int = 0
    """Number of events at the beginning that are compacted into sums: see `pytorch_alloctrace.compact`. Not included in
    `events`."""
    compacted_until: int = 0
    """First event that is not compacted; 0: nothing is compacted."""
    compacted_until_ns: int = 0
    """Time of the last compacted event: nanoseconds since 1970-01-01 UTC."""
    max_bytes: int = 0
    """Size limit of the recording's files in bytes; 0 before the first compaction, or without a limit."""
    bound_exceeded: bool = False
    """True if the size limit was exceeded, because the data that cannot be compacted is larger."""
    keep_ns: int = 0
    """Duration of single events requested by `keep`, in ns; 0 before the first compaction, or without `keep`."""
    keeps_less: bool = False
    """True if `max_bytes` was too small for the events of the duration requested by `keep`."""
    ended: bool = True
    """True if the recording was stopped regularly."""
    spool_read: bool = False
    """True if a spool was read."""
    empty_allocations: int = 0
    """Number of allocations of zero bytes, which have no address and no event."""
    reentered: int = 0
    """Number of allocations made inside the hook itself; expected to be 0."""
    unknown_stacks: int = 0
    """Number of events without a complete stack: the stack table was full, or the recording had more stacks than it can
    distinguish (see docs/long-runs.md)."""
    is_running: bool = False
    """True if a process was writing the trace when it was opened. Always False on a file system without locks."""
    end_reason: str = ""
    """How the recording ended: "disable", "exit", "SIGTERM", "killed" (ended by `finish`) or "converted" (written by
    `convert`); empty if the trace has no end."""

    misses_python_storages: bool = False
    """True if CPU storages that torch's Python bindings allocate (`copy.deepcopy`, `torch.load`) are not recorded: in a
    trace of an older version, or with a release of torch whose default CPU allocator is of another class."""

    @classmethod
    def from_reader(
        cls, integrity: _replay.Integrity, path: str, header: Mapping[str, Any], ending: Mapping[str, Any]
    ) -> Integrity:
        """Return the integrity from the counts of a reader, and the header and the end of the trace."""
        devices = header.get("devices")
        records_cpu = isinstance(devices, list) and "cpu" in devices
        counts = {name: getattr(integrity, name) for name in dir(integrity) if not name.startswith("_")}
        return cls(
            **{entry.name: counts[entry.name] for entry in fields(cls) if entry.name in counts},
            is_running=not integrity.ended and is_being_recorded(path),
            end_reason=str(ending.get("reason", "")),
            misses_python_storages=records_cpu and header.get("python_storages") is not True,
        )

    @property
    def is_complete(self) -> bool:
        """True if nothing is missing."""
        return self.state == "complete"

    @property
    def is_truncated(self) -> bool:
        """True if the end of the recording is missing. Results before it are exact unless `has_gaps`."""
        return not self.ended and not self.spool_read

    @property
    def has_gaps(self) -> bool:
        """True if events before the end are missing, which makes the live memory after them uncertain."""
        return bool(self.lost or self.missing_events or self.corrupt_blocks)

    def __str__(self) -> str:
        notes = []
        if self.compacted_until:
            notes.append(f"compacted up to event {self.compacted_until - 1:,}")
        if self.bound_exceeded:
            notes.append(f"larger than max_bytes={self.max_bytes:,}: the sums alone exceed it")
        if self.keeps_less:
            keep = f"{self.keep_ns / 1e9:,.10g} s"
            notes.append(f"fewer single events than keep={keep} requires: max_bytes={self.max_bytes:,} is too small")
        if self.corrupt_blocks:
            notes.append(f"{counted(self.corrupt_bytes, 'corrupt byte')} in {counted(self.corrupt_blocks, 'place')}")
        if self.missing_events:
            notes.append(f"{counted(self.missing_events, 'event')} missing")
        if self.lost:
            causes = ", ".join(
                f"{name.replace('_', ' ')}: {count:,}" for name, count in self.lost_by_cause.items() if count
            )
            notes.append(f"{counted(self.lost, 'event')} lost while recording ({causes})")
        if self.truncated_bytes:
            notes.append(f"{counted(self.truncated_bytes, 'byte')} of an unfinished block")
        if not self.ended:
            if self.spool_read:
                recovered = counted(self.recovered, "event")
                state = "still being recorded" if self.is_running else "the program was killed or still runs"
                notes.append(f"{state}; {recovered} read from its spool")
            else:
                notes.append("still being recorded" if self.is_running else "ends before the recording did")
        if self.uncommitted:
            were = "was" if self.uncommitted == 1 else "were"
            notes.append(f"{counted(self.uncommitted, 'call')} {were} in progress at the end")
        if self.unknown_stacks:
            notes.append(f"{counted(self.unknown_stacks, 'event')} without a complete stack")
        if self.misses_python_storages:
            lacking = "CPU storages that torch's Python bindings allocate (copy.deepcopy, torch.load)"
            notes.append(f"{lacking} are not recorded")
        if self.is_complete and self.compacted_until:
            notes.insert(0, "nothing lost")
        return f"{self.state}: {'; '.join(notes)}" if notes else f"{self.state}, nothing lost"


def is_being_recorded(path: str | os.PathLike[str]) -> bool:
    """Return whether a process is writing this trace, from the recorder's lock on the file."""
    try:
        with open_at_once(path) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def open_at_once(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file for reading without blocking on a named pipe that nobody writes to. Raises OSError."""
    return open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))
