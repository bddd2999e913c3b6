"""Conversion of a memory snapshot of torch into a trace."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .. import _replay
from ..errors import TraceError
from ..reading.names import KINDS, REGION_BEGIN, REGION_END, STEP, device_name
from .rewind import Rewind, Run
from .snapshot import Annotation, Entry, Pool, Snapshot, parse_snapshot, read_snapshot
from .stacks import Stacks
from .trace_header import make_header, settings_json

_ACTIONS = (
    *("alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap"),
    *("snapshot", "oom"),
)
_KINDS = {name: KINDS.index(name) for name in _ACTIONS}
_CONFIG, _NO_SPLIT, _ALLOCATOR_STATE, _STATE_SEGMENT, _STATE_BLOCK = (
    KINDS.index(name) for name in ("config", "no_split", "allocator_state", "state_segment", "state_block")
)
_LARGE, _EXPANDABLE = 1, 2
_CUDA = 1
_MAX_ROWS = 65_536
_PROFILER_STEP = "ProfilerStep#"


@dataclass(frozen=True)
class Converted:
    """Result of `convert`."""

    trace: Path
    """Path of the trace."""
    events: int
    """Number of history entries in the trace."""
    devices: tuple[str, ...]
    """Devices in the snapshot."""
    mid_run: tuple[str, ...]
    """Devices whose history begins with memory already in use: torch keeps only the last entries."""
    frames: bool
    """Whether the snapshot has stacks."""
    faults: int
    """Number of entries that contradict later ones: the history was paused, cleared, or is of another run."""
    skipped: dict[str, int] = field(default_factory=dict)
    """Number of entries that are not in the trace, by kind: pinned host memory, and unknown actions."""


def convert(
    snapshot: str | os.PathLike[str] | Mapping[str, Any],
    trace: str | os.PathLike[str] | None = None,
    *,
    overwrite: bool = False,
) -> Converted:
    """Write a trace made from a memory snapshot of torch 2.9 or later, with or without a history.

    The file is not unpickled: a reader for plain values runs none of its code, and needs at most 24 times the file's
    size plus 64 MiB of memory.

    Args:
        snapshot: File that `torch.cuda.memory._dump_snapshot` wrote, or the result of `torch.cuda.memory._snapshot`.
        trace: File to write. Default: the snapshot's name with the suffix ".alloctrace".
        overwrite: Replace an existing file.

    Returns:
        The path of the trace, and what it contains.

    Raises:
        TraceError: The file is not a snapshot, or the trace exists already or cannot be written.
    """
    if isinstance(snapshot, (str, os.PathLike)):
        source = os.fspath(snapshot)
        contents = read_snapshot(source)
        target = Path(trace) if trace is not None else Path(source).with_suffix(".alloctrace")
        if target.exists() and target.samefile(source):
            raise TraceError(f"{str(target)!r} is the snapshot itself: name another file for the trace")
        if target.exists() and not overwrite:
            raise TraceError(f"{str(target)!r} exists already: give another path, or overwrite=True")
        taken_ns = max(Path(source).stat().st_mtime_ns, 0)
    else:
        if trace is None:
            raise TraceError("trace is missing: a snapshot that is not a file gives no default name; pass a path")
        source, contents, target, taken_ns = "", parse_snapshot(snapshot), Path(trace), time.time_ns()
    return _Conversion(contents, source, target, taken_ns, overwrite).write()


@dataclass(frozen=True)
class _Device:
    """History of one device, undone to its begin."""

    index: int
    begin: Rewind
    """Memory before the history."""
    pools: list[Pool]
    """Pool of each entry."""


class _Conversion:
    def __init__(self, snapshot: Snapshot, source: str, target: Path, taken_ns: int, overwrite: bool) -> None:
        self._snapshot = snapshot
        self._settings = settings_json(snapshot.settings, _has_expandable_segments(snapshot))
        times = [entry.time_us for entries in snapshot.history.values() for entry in (entries[0], entries[-1])]
        self._begin_ns = min(times) * 1000 if times else taken_ns
        self._end_ns = max(times) * 1000 if times else taken_ns
        self._stacks = Stacks(snapshot)
        header = make_header(self._stacks.distinct, source, os.path.abspath(target), snapshot.settings, self._begin_ns)
        self._target = target
        self._writer = _replay.TraceWriter(os.fsencode(target), overwrite, self._begin_ns, json.dumps(header))
        self._rows: list[tuple[int, ...]] = []
        self._flushed = 0
        self._metadata = ""
        """Metadata of the last entry."""

    def write(self) -> Converted:
        devices = {index: self._rewind(index) for index in self._snapshot.devices}
        not_begun = dict(devices)
        skipped: dict[str, int] = {}
        events = 0
        for index, entry_number in self._sort_entries():
            if index is None:
                self._write_annotation(self._snapshot.annotations[entry_number])
                continue
            if index in not_begun:
                self._write_initial_state(not_begun.pop(index))
            entry = self._snapshot.history[index][entry_number]
            if entry.action not in _KINDS:
                skipped[entry.action] = skipped.get(entry.action, 0) + 1
                continue
            pool = devices[index].pools[entry_number]
            self._write_metadata(entry.metadata, entry.time_us * 1000)
            node_type = 0
            if entry.action == "alloc":
                if library := self._stacks.library(entry.frames):
                    self._writer.library_block(self._flushed + len(self._rows), entry.address, library)
                if node := self._stacks.node(entry.frames):
                    node_type = self._writer.node_type(node)
            self._add(
                _KINDS[entry.action],
                entry.time_us * 1000,
                entry.address,
                entry.size,
                self._location(index, entry.stream, pool),
                self._stacks.id(entry.frames, self._writer),
                self._stacks.thread(entry.frames, self._writer),
                node_type=node_type,
            )
            events += 1
        self._write_metadata("", self._end_ns)
        for device in not_begun.values():
            self._write_initial_state(device)
        for index in devices:
            if index in self._snapshot.history:
                self._write_allocator_state(
                    index, Rewind(self._snapshot.segments.get(index, []), self._allocator_settings).runs
                )
        self._flush()
        lacks_beginning = any(device.begin.runs for device in devices.values())
        self._writer.finish(json.dumps({"reason": "converted", "lacks_beginning": lacks_beginning}))
        if self._snapshot.host_entries:
            skipped["pinned host memory"] = self._snapshot.host_entries
        mid_run = [index for index, device in devices.items() if device.begin.runs and index in self._snapshot.history]
        return Converted(
            self._target,
            events,
            tuple(device_name(_CUDA, index) for index in devices),
            tuple(device_name(_CUDA, index) for index in mid_run),
            bool(self._stacks.distinct),
            sum(device.begin.faults for device in devices.values()),
            skipped,
        )

    @property
    def _allocator_settings(self) -> _replay.AllocatorSettings:
        return _replay.AllocatorSettings(self._settings)

    def _rewind(self, index: int) -> _Device:
        rewind = Rewind(self._snapshot.segments.get(index, []), self._allocator_settings)
        pools = [rewind.undo_entry(entry) for entry in reversed(self._snapshot.history.get(index, []))]
        return _Device(index, rewind, pools[::-1])

    def _sort_entries(self) -> list[tuple[int | None, int]]:
        """Return device (None: an annotation) and index of each entry by time, in order within a device."""
        streams: list[tuple[int | None, list[Entry] | list[Annotation]]] = [
            *self._snapshot.history.items(),
            (None, self._snapshot.annotations),
        ]
        owners = [owner for owner, entries in streams for _ in entries]
        numbers = [number for _, entries in streams for number in range(len(entries))]
        times = np.array([entry.time_us for _, entries in streams for entry in entries], dtype=np.uint64)
        return [(owners[row], numbers[row]) for row in np.argsort(times, kind="stable").tolist()]

    def _write_initial_state(self, device: _Device) -> None:
        history = self._snapshot.history.get(device.index)
        time_ns = history[0].time_us * 1000 if history else self._end_ns
        location = self._location(device.index, 0, (0, 0))
        self._add(_CONFIG, time_ns, 0, self._writer.string(self._settings), location)
        for pool, stream in device.begin.unsplit_pools.items():
            self._add(_NO_SPLIT, time_ns, 0, 0, self._location(device.index, stream, pool))
        if device.begin.runs:
            self._write_allocator_state(device.index, device.begin.runs, time_ns)

    def _write_allocator_state(self, index: int, runs: list[tuple[int, Run]], time_ns: int | None = None) -> None:
        time_ns = self._end_ns if time_ns is None else time_ns
        entries = sum(1 + len(run.pieces) for _, run in runs)
        self._add(_ALLOCATOR_STATE, time_ns, 0, entries, self._location(index, 0, (0, 0)))
        for begin, run in runs:
            location = self._location(index, run.stream, run.pool)
            flags = (_LARGE if run.is_large else 0) | (_EXPANDABLE if run.is_expandable else 0)
            self._add(_STATE_SEGMENT, time_ns, begin, run.end - begin, location, node=flags)
            for address in run.addresses:
                piece = run.pieces[address]
                stack = self._stacks.id(piece.frames, self._writer)
                self._add(_STATE_BLOCK, time_ns, address, piece.size, location, stack, 0, piece.requested, piece.state)

    def _write_annotation(self, annotation: Annotation) -> None:
        time_ns = max(min(annotation.time_us * 1000, self._end_ns), self._begin_ns)
        kind = REGION_BEGIN if annotation.begins else REGION_END
        self._add(kind, time_ns, 0, self._writer.string(annotation.name), 0)
        number = annotation.name.removeprefix(_PROFILER_STEP)
        if not annotation.begins and number != annotation.name and number.isdecimal() and len(number) < 18:
            self._add(STEP, time_ns, 1, int(number), 0)  # recorded by the program's profiler.step()

    def _write_metadata(self, metadata: str, time_ns: int) -> None:
        """Write the regions that end and begin before an entry: an entry is in a region if and only if it has its name.

        Not a region per thread: a snapshot has no threads, and those inferred from stacks would keep regions open.
        """
        if metadata != self._metadata:
            for kind, name in ((REGION_END, self._metadata), (REGION_BEGIN, metadata)):
                if name:
                    self._add(kind, time_ns, 0, self._writer.string(name), 0)
        self._metadata = metadata

    def _location(self, index: int, stream: int, pool: Pool) -> int:
        return self._writer.location(_CUDA, index, stream, pool)

    def _add(
        self,
        kind: int,
        time_ns: int,
        address: int,
        size: int,
        location: int,
        stack: int = 0,
        thread: int = 0,
        sequence: int = 0,
        node: int = 0,
        node_type: int = 0,
    ) -> None:
        self._rows.append((kind, time_ns, address, size, stack, thread, location, sequence, node, node_type))
        if len(self._rows) >= _MAX_ROWS:
            self._flush()

    def _flush(self) -> None:
        if self._rows:
            columns = zip(*self._rows, strict=True)
            self._writer.push(*(np.array(column, dtype=np.uint64) for column in columns))
            self._flushed += len(self._rows)
            self._rows.clear()


def _has_expandable_segments(snapshot: Snapshot) -> bool:
    return any(segment.is_expandable for segments in snapshot.segments.values() for segment in segments) or any(
        entry.action == "segment_map" for entries in snapshot.history.values() for entry in entries
    )
