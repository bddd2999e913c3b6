"""torch's memory snapshot, as `torch.cuda.memory._dump_snapshot` writes it: what of it is known, in checked types.

Whatever a release of torch adds is left alone. Nothing of a snapshot is trusted: its values may be of any plain type,
and lists may be in it many times, which costs nothing in the file: all that is visited is counted.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .. import _replay
from ..errors import TraceError

Pool = tuple[int, int]

FREE, ALLOCATED, PENDING = 0, 1, 2
"""States of a block, by their numbers in the trace format. PENDING: freed, but awaited by a stream."""
_STATES = {"inactive": FREE, "active_allocated": ALLOCATED}
"""What else begins with "active" is PENDING: its name has changed between releases."""
MOST_DEVICES = 256
_LONGEST_STACK = 10_000
_LARGEST = 2**64 - 1
_LATEST_US = 2**62 // 1000


@dataclass(frozen=True, slots=True)
class Block:
    """A block of a segment; sizes in bytes."""

    address: int
    size: int
    requested: int
    state: int
    frames: list[Any] | None


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment at the end, or a mapped part of an expandable one."""

    address: int
    size: int
    stream: int
    pool: Pool
    is_large: bool
    is_expandable: bool
    blocks: list[Block]


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of the history."""

    action: str
    address: int
    """Of "oom" what the driver had free."""
    size: int
    stream: int
    pool: Pool | None
    """None: torch before 2.13 does not say."""
    time_us: int
    frames: list[Any] | None


@dataclass(frozen=True, slots=True)
class Annotation:
    """A region that `torch.profiler.record_function` named begins or ends."""

    name: str
    begins: bool
    time_us: int


@dataclass
class Snapshot:
    """A snapshot; segments and entries by device."""

    segments: dict[int, list[Segment]] = field(default_factory=dict)
    history: dict[int, list[Entry]] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    annotations: list[Annotation] = field(default_factory=list)
    host_entries: int = 0
    """Entries and segments of pinned host memory, which are not converted."""

    @property
    def devices(self) -> list[int]:
        """Those that have segments or a history."""
        return sorted({*self.segments, *self.history})


def read_snapshot(path: str | os.PathLike[str]) -> Snapshot:
    """Raises TraceError for a file that is not there or is no snapshot."""
    shown = repr(os.fspath(path))
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise TraceError(f"{shown} is no file: name the pickle that _dump_snapshot wrote")
        data = Path(path).read_bytes()
    except OSError as error:
        raise TraceError(f"the snapshot {shown} cannot be read: {error.strerror or error}") from None
    if data.startswith(b"ALLOCTRC"):
        raise TraceError(f"{shown} is a trace already: it needs no conversion")
    try:
        values = _replay.load_plain_pickle(data)
    except _replay.PlainPickleError as error:
        raise TraceError(f"{shown} is not a snapshot that _dump_snapshot wrote: {error}") from None
    try:
        return snapshot_of(values, len(data))
    except TraceError as error:
        raise TraceError(f"{shown} is not a snapshot that _dump_snapshot wrote: {error}") from None


def snapshot_of(values: Any, most: int | None = None) -> Snapshot:
    """The same of what `torch.cuda.memory._snapshot()` returns. most: no more segments, blocks and entries than this.
    Raises TraceError where it is none."""
    return _Reader(most).snapshot(values)


class _Reader:
    def __init__(self, most: int | None) -> None:
        self._left = most

    def snapshot(self, values: Any) -> Snapshot:
        made = Snapshot()
        if isinstance(values, list):  # of very old releases: the segments alone
            values = {"segments": values}
        if not isinstance(values, Mapping) or "segments" not in values:
            raise TraceError("it has no segments")
        for values_of in self._dicts(values["segments"], "segments"):
            device = self._device(values_of.get("device", 0))
            made.segments.setdefault(device, []).append(self._segment(values_of))
        for segments in made.segments.values():
            _check(segments)
        traces = values.get("device_traces") or []
        if not isinstance(traces, (list, tuple)):
            raise TraceError("its device_traces are no list")
        for number, entries in enumerate(traces):
            found = self._history(entries)
            if found:
                made.history[self._device(number)] = found
        settings = values.get("allocator_settings")
        made.settings = dict(settings) if isinstance(settings, Mapping) else {}
        made.annotations = self._annotations(values.get("external_annotations") or [])
        for name in ("host_segments", "host_traces"):
            host = values.get(name)
            made.host_entries += sum(
                len(one) if isinstance(one, (list, tuple)) else 1 for one in (host if isinstance(host, list) else [])
            )
        return made

    def _dicts(self, values: Any, what: str) -> Iterator[Mapping[str, Any]]:
        if not isinstance(values, (list, tuple)):
            raise TraceError(f"its {what} are no list")
        if self._left is not None:
            self._left -= len(values)
            if self._left < 0:
                raise TraceError("it has the same segments or entries many times")
        for value in values:
            if not isinstance(value, Mapping):
                raise TraceError(f"one of its {what} is no dictionary")
            yield value

    def _segment(self, values: Mapping[str, Any]) -> Segment:
        address = _number(values, "address")
        size = _number(values, "total_size")
        blocks, at = [], address
        for block in self._dicts(values.get("blocks", []), "blocks"):
            # Very old releases do not say where a block begins: they lie one behind the other.
            made = _block(block, at)
            blocks.append(made)
            at = made.address + made.size
        return Segment(
            address,
            size,
            _number(values, "stream", 0),
            _pool(values.get("segment_pool_id")) or (0, 0),
            values.get("segment_type") == "large",
            bool(values.get("is_expandable", False)),
            blocks,
        )

    def _history(self, values: Any) -> list[Entry]:
        found, latest = [], 0
        for entry in self._dicts(values, "device_traces"):
            action = entry.get("action")
            if not isinstance(action, str):
                raise TraceError("an entry of its device_traces has no action")
            address = _number(entry, "device_free" if "device_free" in entry else "addr", 0)
            latest = max(latest, _time(entry, latest + 1))
            found.append(
                Entry(
                    action,
                    address,
                    _number(entry, "size", 0),
                    _number(entry, "stream", 0),
                    _pool(entry.get("pool_id")),
                    latest,
                    _frames(entry),
                )
            )
        return found

    def _annotations(self, values: Any) -> list[Annotation]:
        found = []
        for entry in self._dicts(values, "external_annotations"):
            name, stage = entry.get("name"), entry.get("stage")
            if isinstance(name, str) and stage in ("START", "END"):
                found.append(Annotation(name, stage == "START", _time(entry, 0)))
        return sorted(found, key=lambda one: one.time_us)

    @staticmethod
    def _device(value: Any) -> int:
        if not isinstance(value, int) or not 0 <= value < MOST_DEVICES:
            raise TraceError(f"it has a device {value!r}")
        return value


def _block(values: Mapping[str, Any], follows: int) -> Block:
    size = _number(values, "size")
    state = values.get("state")
    if not isinstance(state, str):
        raise TraceError("a block has no state")
    requested = values.get("requested_size")
    frames = _frames(values)
    history = values.get("history")
    if isinstance(history, list) and history and isinstance(history[-1], Mapping):  # of old releases
        requested = history[-1].get("real_size") if requested is None else requested
        frames = _frames(history[-1]) if frames is None else frames
    known = _STATES.get(state, PENDING if state.startswith("active") else FREE)
    return Block(
        _number(values, "address", follows),
        size,
        min(requested, size) if isinstance(requested, int) and _is_number(requested) else size,
        known,
        frames if known != FREE else None,
    )


def _check(segments: list[Segment]) -> None:
    """Raises TraceError where blocks do not tile their segment, or segments lie over each other."""
    segments.sort(key=lambda one: one.address)
    end = 0
    for segment in segments:
        if segment.address < end:
            raise TraceError(f"segments lie over each other at {segment.address:#x}")
        at, end = segment.address, segment.address + segment.size
        for block in segment.blocks:
            if block.address != at or block.size == 0:
                raise TraceError(f"the blocks of the segment at {segment.address:#x} do not follow each other")
            at += block.size
        if at != end or end > _LARGEST:
            raise TraceError(f"the blocks of the segment at {segment.address:#x} do not fill it")


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST


def _number(values: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = values.get(name, default)
    if isinstance(value, int) and not isinstance(value, bool):
        # Addresses and streams are printed as signed by some releases.
        return value & _LARGEST
    raise TraceError(f"{name} is {type(value).__name__}, not a number")


def _time(values: Mapping[str, Any], default: int) -> int:
    """Return the time of an entry in microseconds since 1970. Raises TraceError beyond the year 2116."""
    time_us = _number(values, "time_us", default)
    if time_us > _LATEST_US:
        raise TraceError(f"time_us is {time_us}: no time that a clock shows")
    return time_us


def _pool(value: Any) -> Pool | None:
    if isinstance(value, (list, tuple)) and len(value) == 2 and all(_is_number(one) for one in value):
        return (value[0], value[1])
    return None


def _frames(values: Mapping[str, Any]) -> list[Any] | None:
    """Those of the allocation, else, in backward, of the forward that caused it."""
    for name in ("frames", "forward_frames"):
        frames = values.get(name)
        if isinstance(frames, list) and frames and len(frames) <= _LONGEST_STACK:
            return frames
    return None
