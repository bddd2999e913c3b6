"""What a trace has and what is missing from it."""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass, field, fields
from typing import BinaryIO

from .. import _replay
from .names import counted


@dataclass(frozen=True)
class Integrity:
    """How whole a trace is. Counts are events unless the name says otherwise."""

    state: str
    """"complete", "truncated" (ends before the recording did), "gaps" (events lost while recording, or blocks absent)
    or "corrupt" (bytes of the file are damaged); the worst that applies."""
    events: int
    """Readable events."""
    lost: int
    """Not recorded: the ring stayed full, the file could not be written, or a fault of ours."""
    lost_by_cause: dict[str, int] = field(default_factory=dict)
    """The same by cause: ring_full, write_failed, fault."""
    missing_events: int = 0
    """In damaged or absent blocks, by the sequence numbers around them."""
    corrupt_blocks: int = 0
    """Damaged places in the file."""
    corrupt_bytes: int = 0
    """Bytes in them."""
    truncated_bytes: int = 0
    """In an unfinished block at the end of the file."""
    recovered: int = 0
    """Readable events that came from the spool of a recording that was killed or still runs."""
    uncommitted: int = 0
    """Allocator calls in progress when the program was killed; they had not returned."""
    compacted_events: int = 0
    """At the beginning, of which the trace has sums alone: see `pytorch_alloctrace.compact`. Not among `events`."""
    compacted_until: int = 0
    """The first event that the trace has as such; 0: nothing is compacted."""
    compacted_until_ns: int = 0
    """When the last compacted event happened: nanoseconds since 1970-01-01 UTC."""
    max_bytes: int = 0
    """What the files of the recording were to have at most; 0 before it was compacted, or if it was not bounded."""
    bound_exceeded: bool = False
    """That could not be kept to: what cannot be compacted is larger."""
    keep_ns: int = 0
    """How long single events were to stay, where the recording was given `keep`; 0 before it was compacted."""
    keeps_less: bool = False
    """That could not be kept to: `max_bytes` had no room for the events of so long a time."""
    ended: bool = True
    """The recording was stopped in good order."""
    spool_read: bool = False
    """Whether the spool was there and was read."""
    empty_allocations: int = 0
    """Allocations of zero bytes: no address, hence no event."""
    reentered: int = 0
    """Allocations made inside the hook itself; none is expected."""
    unknown_stacks: int = 0
    """Events whose stack could not be stored, or only its outer frames: there was no room for the new one, or there are
    more stacks than a recording tells apart (see docs/long-runs.md)."""
    is_running: bool = False
    """Whether a process was writing the trace when it was opened: False, too, if its file system has no locks."""
    end_reason: str = ""
    """How the recording ended: "disable", "exit", "SIGTERM" or, where `finish` ended the trace, "killed"; "converted"
    of a trace that `convert` wrote. Empty as long as the trace has no end."""

    @classmethod
    def from_reader(cls, integrity: _replay.Integrity, path: str, end_reason: str) -> Integrity:
        names = [entry.name for entry in fields(cls) if entry.name not in ("is_running", "end_reason")]
        is_running = not integrity.ended and is_being_recorded(path)
        return cls(**{name: getattr(integrity, name) for name in names}, is_running=is_running, end_reason=end_reason)

    @property
    def whole(self) -> bool:
        """Nothing is missing: every answer holds for the whole recording."""
        return self.state == "complete"

    @property
    def cut(self) -> bool:
        """The end is missing. What comes before it is exact, unless it has gaps too."""
        return not self.ended and not self.spool_read

    @property
    def has_gaps(self) -> bool:
        """Events are missing before the end: what was live after them is uncertain."""
        return bool(self.lost or self.missing_events or self.corrupt_blocks)

    def __str__(self) -> str:
        notes = []
        if self.compacted_until:
            notes.append(f"compacted up to event {self.compacted_until - 1:,}")
        if self.bound_exceeded:
            notes.append(f"larger than max_bytes={self.max_bytes:,}: the sums alone take too much")
        if self.keeps_less:
            asked = f"{self.keep_ns / 1e9:,.10g} s"
            notes.append(f"fewer single events than keep={asked} asks for: max_bytes={self.max_bytes:,} has no room")
        if self.corrupt_blocks:
            notes.append(f"{counted(self.corrupt_bytes, 'damaged byte')} in {counted(self.corrupt_blocks, 'place')}")
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
            notes.append(f"{counted(self.unknown_stacks, 'event')} without a whole stack")
        if self.whole and self.compacted_until:
            notes.insert(0, "nothing lost")
        return f"{self.state}: {'; '.join(notes)}" if notes else f"{self.state}, nothing lost"


def is_being_recorded(path: str | os.PathLike[str]) -> bool:
    """Whether a process is writing this trace: a recorder holds a lock on it."""
    try:
        with open_at_once(path) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def open_at_once(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file for reading; opening a named pipe would wait for somebody to write into it. Raises OSError."""
    return open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))
