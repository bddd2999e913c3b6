"""A recording that runs, read as it goes on: what is live, and which lines hold ever more.

Imports neither pandas nor numpy: `status()` reads the trace of its own process with it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .. import _replay
from ..errors import TraceError
from .json_text import json_object
from .names import BEFORE_RECORDING, NO_STACK, device_name
from .source_code import UserCode, short_filename, working_directory_of

LEAST_POINTS = 5
"""With fewer, nothing is said to grow."""


@dataclass(frozen=True)
class FollowedSite:
    """What one site holds on one device. Bytes are requested bytes."""

    device: str
    name: str
    """ "train.py:31", from the program's working directory; of what no line explains what it is instead."""
    function: str
    source: str
    bytes: int
    blocks: int
    rate: float
    """Bytes per unit by which it grew over the later half of the run, up to now; may be negative."""
    grows: bool
    """It fell at no point of the later half, and rose between at least half of them. Not a verdict: a cache that is
    still being filled grows, too."""
    holder: str
    """What holds it, as the last look at the program's objects found it; "" where that is not known."""


@dataclass(frozen=True)
class FollowedMemory:
    """The memory of one device, in the words of docs/reading.md."""

    device: str
    counts: _replay.FollowedDevice
    rate: float
    """Bytes per unit by which its requested bytes grew over the later half of the run; 0 where that is not known."""

    @property
    def cached(self) -> int:
        return self.counts.releasable + self.counts.stranded


@dataclass(frozen=True)
class View:
    """What is known as of one reading."""

    seen: _replay.Followed
    unit: str
    """ "step" or, in a program without steps, "second": of all rates."""
    devices: tuple[FollowedMemory, ...]
    sites: tuple[FollowedSite, ...]
    """Those that grow first, the fastest first; then those that hold most."""

    @property
    def growing(self) -> tuple[FollowedSite, ...]:
        return tuple(site for site in self.sites if site.grows)


@dataclass
class _Sum:
    device: int
    name: str
    function: str
    source: str
    bytes: int = 0
    blocks: int = 0
    at_points: list[int] = field(default_factory=list)
    holder: str = ""


class Following:
    """Reads what a trace gains. Raises TraceError where there is none."""

    def __init__(self, path: str | os.PathLike[str], user_paths: Sequence[str] = ()) -> None:
        self._native = _replay.Following(os.fsencode(path))
        self._user_paths = user_paths
        self._code: UserCode | None = None
        self._folder = ""
        self._named: dict[int, tuple[str, str, str]] = {}
        self._view: View | None = None

    def poke(self) -> None:
        """Has what is new read on a thread of its own, which neither needs the GIL nor makes anybody wait."""
        with contextlib.suppress(RuntimeError, OSError):  # no thread to be had: later, perhaps
            self._native.poke()

    def advance(self) -> View:
        """Reads what is new now. Raises TraceError where the trace is gone."""
        self._native.advance()
        view = self.latest()
        assert view is not None
        return view

    def read_spool_at(self, path: str | os.PathLike[str]) -> None:
        """From the next reading on, also what is in the spool and not yet in the trace."""
        self._native.read_spool_at(os.fsencode(path))

    @property
    def header(self) -> dict[str, Any]:
        """As `Trace.header`; empty before the first reading."""
        return json_object(self._native.header_json)

    @property
    def problem(self) -> str:
        """Why the last reading by `poke` failed; "" where it did not."""
        return self._native.problem

    def stop(self) -> None:
        """Ends a reading that is under way, and the thread."""
        self._native.stop()

    def latest(self) -> View | None:
        """As of the last reading; None before there was one."""
        seen = self._native.latest()
        if seen is None:
            return None
        if self._view is None or self._view.seen is not seen:
            self._view = self._viewed(seen)
        return self._view

    def _viewed(self, seen: _replay.Followed) -> View:
        points = seen.points
        spans = points[-1] - points[0] if len(points) >= LEAST_POINTS else 0.0
        devices = tuple(
            FollowedMemory(
                device_name(counts.device_type, counts.device_index), counts, _rate(counts.requested_at_points, spans)
            )
            for counts in seen.devices
        )
        sums: dict[tuple[int, str], _Sum] = {}
        for row in seen.stacks:
            name, function, source = self._name(row)
            one = sums.setdefault((row.device, name), _Sum(row.device, name, function, source, 0, 0, [0] * len(points)))
            one.bytes += row.bytes
            one.blocks += row.blocks
            one.at_points = [a + b for a, b in zip(one.at_points, row.at_points, strict=True)]
            one.holder = one.holder or row.holder
        sites = [
            FollowedSite(
                devices[one.device].device,
                one.name,
                one.function,
                one.source,
                one.bytes,
                one.blocks,
                _rate(one.at_points, spans),
                spans > 0 and _grows(one.at_points),
                one.holder,
            )
            for one in sums.values()
        ]
        sites.sort(key=lambda site: (not site.grows, -site.rate if site.grows else -site.bytes))
        return View(seen, "step" if seen.points_are_steps else "second", devices, tuple(sites))

    def _name(self, row: _replay.FollowedStack) -> tuple[str, str, str]:
        known = self._named.get(row.stack)
        if known is None:
            known = self._name_of(row)
            if known[2]:  # the text of a line may come later
                self._named[row.stack] = known
        return known

    def _name_of(self, row: _replay.FollowedStack) -> tuple[str, str, str]:
        frames = row.frames
        if not frames:
            if row.is_older:
                return BEFORE_RECORDING, "", ""
            return row.library or (f"{NO_STACK} {row.node}" if row.node else NO_STACK), "", ""
        if self._code is None:
            header = self.header
            self._code, self._folder = UserCode.of_header(header, self._user_paths), working_directory_of(header)
        code = self._code
        site = next((frame for frame in frames if code.is_user_file(frame.filename)), frames[0])
        filename = short_filename(site.cell or site.filename, self._folder)
        return f"{filename}:{site.line}", site.function, site.source.strip()


def _rate(values: Sequence[int], span: float) -> float:
    return (values[-1] - values[0]) / span if span > 0 and values else 0.0


def _grows(values: Sequence[int]) -> bool:
    changes = [after - before for before, after in itertools.pairwise(values)]
    return min(changes) >= 0 and sum(change > 0 for change in changes) * 2 >= len(changes)


_MAGIC = b"ALLOCTRC"
_WRITES = os.O_WRONLY | os.O_RDWR


def trace_of_process(process: int) -> str:
    """The path of the trace that a process is writing, found among its open files, which does not disturb it. Raises
    TraceError, with what to do, where there is none."""
    folder = f"/proc/{process}"
    if not os.path.isdir(folder):
        raise TraceError(f"there is no process {process}: give the number of one that runs, or its trace")
    try:
        numbers = os.listdir(f"{folder}/fd")
    except PermissionError:
        raise TraceError(f"process {process} belongs to another user: give its trace") from None
    except FileNotFoundError:
        raise TraceError(f"process {process} has just ended: give its trace") from None
    gone = False
    for number in sorted(numbers, key=int):
        try:
            path = os.readlink(f"{folder}/fd/{number}")
            with open(f"{folder}/fdinfo/{number}") as file:
                flags = int(next(line for line in file if line.startswith("flags:")).split()[1], 8)
            if not path.startswith("/") or not flags & _WRITES:
                continue
            is_gone = path.endswith(" (deleted)") and not os.path.exists(path)
            if not is_gone and not os.path.isfile(path):  # a device, which reading may act on
                continue
            if not is_gone:
                with open(path, "rb") as file:
                    if file.read(len(_MAGIC)) == _MAGIC:
                        return path
            gone = gone or path.endswith(".alloctrace (deleted)")
        except (OSError, StopIteration, ValueError):  # closed in the meantime, or not ours to read
            continue
    if gone:
        raise TraceError(f"the trace of process {process} was removed while it is being written: nothing can be read")
    raise TraceError(
        f"process {process} records nothing: start it with `alloctrace run`, or with alloctrace.enable() in it; a "
        "child of it that does has a number of its own"
    )
