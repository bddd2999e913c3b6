"""Reader of a running recording: live memory, and the lines whose memory grows.

Imports neither pandas nor numpy, because `status()` runs it in the recorded program.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .. import _replay
from ..errors import TraceError
from .json_text import json_object
from .names import BEFORE_RECORDING, NO_STACK, device_name
from .other_files import TRACE_MAGIC, explain_other_file
from .source_code import UserCode, short_filename, working_directory_of

MIN_POINTS = 5
"""Minimum number of points at which growth is judged."""


@dataclass(frozen=True)
class FollowedSite:
    """Live memory of one site on one device, in requested bytes."""

    device: str
    name: str
    """Site relative to the working directory ("train.py:31"), or a label for memory without a line."""
    function: str
    source: str
    bytes: int
    blocks: int
    rate: float
    """Growth over the later half of the run so far, in bytes per unit; may be negative."""
    grows: bool
    """True if the bytes never fell in the later half, and rose between at least half of its points. Not a verdict: a
    cache that is being filled grows, too."""
    holder: str
    """Variable that holds the memory, from the last object scan; "" if unknown."""


@dataclass(frozen=True)
class FollowedMemory:
    """Memory of one device, in the terms of docs/reading.md."""

    device: str
    counts: _replay.FollowedDevice
    rate: float
    """Growth of requested bytes over the later half of the run, in bytes per unit; 0 if unknown."""

    @property
    def cached(self) -> int:
        return self.counts.releasable + self.counts.stranded


@dataclass(frozen=True)
class View:
    """State of the recording after one read."""

    seen: _replay.Followed
    unit: str
    """Unit of all rates: "step" or, in a program without steps, "second"."""
    devices: tuple[FollowedMemory, ...]
    sites: tuple[FollowedSite, ...]
    """Growing sites first, the fastest first; then the others, the largest first."""

    @property
    def growing(self) -> tuple[FollowedSite, ...]:
        return tuple(site for site in self.sites if site.grows)


@dataclass
class _SiteTotal:
    device: int
    name: str
    function: str
    source: str
    bytes: int = 0
    blocks: int = 0
    at_points: list[int] = field(default_factory=list)
    holder: str = ""


class Following:
    """Incremental reader of a growing trace. Raises TraceError if the trace does not exist."""

    def __init__(self, path: str | os.PathLike[str], user_paths: Sequence[str] = ()) -> None:
        with explain_other_file(path):
            self._native = _replay.Following(os.fsencode(path))
        self._user_paths = user_paths
        self._code: UserCode | None = None
        self._folder = ""
        self._site_names: dict[int, tuple[str, str, str]] = {}
        self._view: View | None = None

    def request_reading(self) -> None:
        """Read new events on a separate thread that does not need the GIL."""
        with contextlib.suppress(RuntimeError, OSError):  # no thread available: the next call tries again
            self._native.request_reading()

    def advance(self) -> View:
        """Read new events on this thread. Raises TraceError if the trace no longer exists."""
        self._native.advance()
        view = self.latest()
        assert view is not None
        return view

    def read_spool_at(self, path: str | os.PathLike[str]) -> None:
        """Read events of this spool that are not yet in the trace, from the next read on."""
        self._native.read_spool_at(os.fsencode(path))

    @property
    def header(self) -> dict[str, Any]:
        return json_object(self._native.header_json)

    @property
    def problem(self) -> str:
        """Error of the last read by `request_reading`; "" if it succeeded."""
        return self._native.problem

    def stop(self) -> None:
        """Stop the thread, and a read in progress."""
        self._native.stop()

    def latest(self) -> View | None:
        """Return the state after the last read; None before the first read."""
        state = self._native.latest()
        if state is None:
            return None
        if self._view is None or self._view.seen is not state:
            self._view = self._make_view(state)
        return self._view

    def _make_view(self, state: _replay.Followed) -> View:
        points = state.points
        units = points[-1] - points[0] if len(points) >= MIN_POINTS else 0.0
        devices = tuple(
            FollowedMemory(
                device_name(counts.device_type, counts.device_index), counts, _rate(counts.requested_at_points, units)
            )
            for counts in state.devices
        )
        totals: dict[tuple[int, str], _SiteTotal] = {}
        holders_by_total: dict[tuple[int, str], Counter[str]] = {}
        for row in state.stacks:
            name, function, source = self._site_name(row)
            total = totals.setdefault(
                (row.device, name), _SiteTotal(row.device, name, function, source, 0, 0, [0] * len(points))
            )
            total.bytes += row.bytes
            total.blocks += row.blocks
            total.at_points = [a + b for a, b in zip(total.at_points, row.at_points, strict=True)]
            holders = holders_by_total.setdefault((row.device, name), Counter())
            holders[row.holder] += row.bytes
        for key, total in totals.items():
            [(holder, size)] = holders_by_total[key].most_common(1)
            total.holder = holder if 2 * size >= total.bytes else ""
        sites = [
            FollowedSite(
                devices[total.device].device,
                total.name,
                total.function,
                total.source,
                total.bytes,
                total.blocks,
                _rate(total.at_points, units),
                units > 0 and _is_growing(total.at_points),
                total.holder,
            )
            for total in totals.values()
        ]
        sites.sort(key=lambda site: (not site.grows, -site.rate if site.grows else -site.bytes))
        return View(state, "step" if state.points_are_steps else "second", devices, tuple(sites))

    def _site_name(self, row: _replay.FollowedStack) -> tuple[str, str, str]:
        names = self._site_names.get(row.stack)
        if names is None:
            names = self._read_site_name(row)
            if names[2]:  # the text of a line may be recorded later
                self._site_names[row.stack] = names
        return names

    def _read_site_name(self, row: _replay.FollowedStack) -> tuple[str, str, str]:
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


def _rate(values: Sequence[int], units: float) -> float:
    return (values[-1] - values[0]) / units if units > 0 and values else 0.0


def _is_growing(values: Sequence[int]) -> bool:
    changes = [after - before for before, after in itertools.pairwise(values)]
    return min(changes) >= 0 and sum(change > 0 for change in changes) * 2 >= len(changes)


_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR


def trace_of_process(process: int) -> str:
    """Return the trace that a process is writing, from its open files in /proc. Raises TraceError if there is none."""
    folder = Path(f"/proc/{process}")
    if not folder.is_dir():
        raise TraceError(f"there is no process {process}: give the id of a running process, or its trace")
    try:
        numbers = [entry.name for entry in (folder / "fd").iterdir()]
    except PermissionError:
        raise TraceError(f"process {process} belongs to another user: give its trace") from None
    except FileNotFoundError:
        raise TraceError(f"process {process} has just ended: give its trace") from None
    was_removed = False
    for number in sorted(numbers, key=int):
        try:
            path = str((folder / "fd" / number).readlink())
            with (folder / "fdinfo" / number).open() as file:
                flags = int(next(line for line in file if line.startswith("flags:")).split()[1], 8)
            if not path.startswith("/") or not flags & _WRITE_FLAGS:
                continue
            is_removed = path.endswith(" (deleted)") and not os.path.exists(path)
            if not is_removed and not os.path.isfile(path):  # a device: a read may have side effects
                continue
            if not is_removed:
                with Path(path).open("rb") as file:
                    if file.read(len(TRACE_MAGIC)) == TRACE_MAGIC:
                        return path
            was_removed = was_removed or path.endswith(".alloctrace (deleted)")
        except (OSError, StopIteration, ValueError):  # closed in the meantime, or not readable for this user
            continue
    if was_removed:
        raise TraceError(
            f"the trace of process {process} was removed during the recording, and cannot be read: "
            "record the program again"
        )
    raise TraceError(
        f"process {process} records nothing: start it with `alloctrace run`, or call alloctrace.enable() in it; for a "
        "recording child process, give the id of the child"
    )
