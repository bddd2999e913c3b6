"""torch's memory snapshot, as `torch.cuda.memory._dump_snapshot` writes it, in checked types.

Fields that a newer torch adds are ignored. Nothing in a snapshot is trusted: its values may be of any plain type. A
small file may contain the same list many times, so every visited item is counted.
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
from ..reading.other_files import TRACE_MAGIC

Pool = tuple[int, int]

FREE, ALLOCATED, PENDING = 0, 1, 2
"""States of a block, by their numbers in the trace format. PENDING: freed, but awaited by a stream."""
_STATES = {"inactive": FREE, "active_allocated": ALLOCATED}
"""Other names that begin with "active" mean PENDING: they differ between releases."""
MAX_DEVICES = 256
_MAX_FRAMES = 10_000
_MAX_UINT64 = 2**64 - 1
_MAX_TIME_US = 2**62 // 1000


@dataclass(frozen=True, slots=True)
class Block:
    """Block of a segment; sizes in bytes."""

    address: int
    size: int
    requested: int
    state: int
    frames: list[Any] | None


@dataclass(frozen=True, slots=True)
class Segment:
    """Segment at the end of the history, or a mapped part of an expandable one."""

    address: int
    size: int
    stream: int
    pool: Pool
    is_large: bool
    is_expandable: bool
    blocks: list[Block]


@dataclass(frozen=True, slots=True)
class Entry:
    action: str
    address: int
    """Address; for the action "oom", the free bytes of the driver."""
    size: int
    stream: int
    pool: Pool | None
    """None before torch 2.13, which does not record it."""
    time_us: int
    frames: list[Any] | None
    metadata: str
    """Text that `torch.cuda.memory._set_memory_metadata` had set on the thread; "": none."""


@dataclass(frozen=True, slots=True)
class Annotation:
    """Begin or end of a region named by `torch.profiler.record_function`."""

    name: str
    begins: bool
    time_us: int


@dataclass
class Snapshot:
    """Memory snapshot, with segments and entries by device."""

    segments: dict[int, list[Segment]] = field(default_factory=dict)
    history: dict[int, list[Entry]] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    annotations: list[Annotation] = field(default_factory=list)
    host_entries: int = 0
    """Number of entries and segments of pinned host memory, which are not converted."""

    @property
    def devices(self) -> list[int]:
        return sorted({*self.segments, *self.history})


def read_snapshot(path: str | os.PathLike[str]) -> Snapshot:
    """Read a snapshot from a file. Raises TraceError if the file is missing or not a snapshot."""
    path_text = repr(os.fspath(path))
    try:
        if not stat.S_ISREG(Path(path).stat().st_mode):
            raise TraceError(f"{path_text} is not a file: name the pickle that _dump_snapshot wrote")
        data = Path(path).read_bytes()
    except OSError as error:
        raise TraceError(f"the snapshot {path_text} cannot be read: {error.strerror or error}") from None
    if data.startswith(TRACE_MAGIC):
        raise TraceError(f"{path_text} is a trace already: it needs no conversion")
    try:
        values = _replay.load_plain_pickle(data)
    except _replay.PlainPickleError as error:
        raise TraceError(f"{path_text} is not a snapshot that _dump_snapshot wrote: {error}") from None
    try:
        return parse_snapshot(values, len(data))
    except TraceError as error:
        raise TraceError(f"{path_text} is not a snapshot that _dump_snapshot wrote: {error}") from None


def parse_snapshot(values: Any, max_items: int | None = None) -> Snapshot:
    """Parse the result of `torch.cuda.memory._snapshot()`. Raises TraceError, also above `max_items` items."""
    return _Reader(max_items).parse(values)


class _Reader:
    def __init__(self, max_items: int | None) -> None:
        self._remaining_items = max_items

    def parse(self, values: Any) -> Snapshot:
        snapshot = Snapshot()
        if isinstance(values, list):  # very old releases: segments only
            values = {"segments": values}
        if not isinstance(values, Mapping) or "segments" not in values:
            raise TraceError("it has no segments")
        for segment in self._check_dicts(values["segments"], "segments"):
            device = self._check_device(segment.get("device", 0))
            snapshot.segments.setdefault(device, []).append(self._parse_segment(segment))
        for segments in snapshot.segments.values():
            _check_segments(segments)
        traces = values.get("device_traces") or []
        if not isinstance(traces, (list, tuple)):
            raise TraceError("its device_traces are not a list")
        for device_number, entries in enumerate(traces):
            entry_list = self._parse_history(entries)
            if entry_list:
                snapshot.history[self._check_device(device_number)] = entry_list
        settings = values.get("allocator_settings")
        snapshot.settings = dict(settings) if isinstance(settings, Mapping) else {}
        snapshot.annotations = self._parse_annotations(values.get("external_annotations") or [])
        for name in ("host_segments", "host_traces"):
            host = values.get(name)
            snapshot.host_entries += sum(
                len(items) if isinstance(items, (list, tuple)) else 1
                for items in (host if isinstance(host, list) else [])
            )
        return snapshot

    def _check_dicts(self, values: Any, field_name: str) -> Iterator[Mapping[str, Any]]:
        if not isinstance(values, (list, tuple)):
            raise TraceError(f"its {field_name} are not a list")
        if self._remaining_items is not None:
            self._remaining_items -= len(values)
            if self._remaining_items < 0:
                raise TraceError("it repeats the same segments or entries many times")
        for value in values:
            if not isinstance(value, Mapping):
                raise TraceError(f"one of its {field_name} is not a dictionary")
            yield value

    def _parse_segment(self, values: Mapping[str, Any]) -> Segment:
        address = _read_number(values, "address")
        size = _read_number(values, "total_size")
        blocks, next_address = [], address
        for block in self._check_dicts(values.get("blocks", []), "blocks"):
            # Very old releases lack block addresses: the blocks are contiguous.
            parsed = _parse_block(block, next_address)
            blocks.append(parsed)
            next_address = parsed.address + parsed.size
        return Segment(
            address,
            size,
            _read_number(values, "stream", 0),
            _read_pool(values.get("segment_pool_id")) or (0, 0),
            values.get("segment_type") == "large",
            bool(values.get("is_expandable", False)),
            blocks,
        )

    def _parse_history(self, values: Any) -> list[Entry]:
        history, latest_us = [], 0
        for entry in self._check_dicts(values, "device_traces"):
            action = entry.get("action")
            if not isinstance(action, str):
                raise TraceError("an entry of its device_traces has no action")
            address = _read_number(entry, "device_free" if "device_free" in entry else "addr", 0)
            latest_us = max(latest_us, _read_time_us(entry, latest_us + 1))
            metadata = entry.get("user_metadata")
            history.append(
                Entry(
                    action,
                    address,
                    _read_number(entry, "size", 0),
                    _read_number(entry, "stream", 0),
                    _read_pool(entry.get("pool_id")),
                    latest_us,
                    _read_frames(entry),
                    metadata if isinstance(metadata, str) else "",
                )
            )
        return history

    def _parse_annotations(self, values: Any) -> list[Annotation]:
        annotations = []
        for entry in self._check_dicts(values, "external_annotations"):
            name, stage = entry.get("name"), entry.get("stage")
            if isinstance(name, str) and stage in ("START", "END"):
                annotations.append(Annotation(name, stage == "START", _read_time_us(entry, 0)))
        return sorted(annotations, key=lambda annotation: annotation.time_us)

    @staticmethod
    def _check_device(value: Any) -> int:
        if not isinstance(value, int) or not 0 <= value < MAX_DEVICES:
            raise TraceError(f"its device {value!r} is not a number from 0 to {MAX_DEVICES - 1}")
        return value


def _parse_block(values: Mapping[str, Any], default_address: int) -> Block:
    size = _read_number(values, "size")
    state = values.get("state")
    if not isinstance(state, str):
        raise TraceError("a block has no state")
    requested = values.get("requested_size")
    frames = _read_frames(values)
    history = values.get("history")
    if isinstance(history, list) and history and isinstance(history[-1], Mapping):  # old releases
        requested = history[-1].get("real_size") if requested is None else requested
        frames = _read_frames(history[-1]) if frames is None else frames
    state_number = _STATES.get(state, PENDING if state.startswith("active") else FREE)
    return Block(
        _read_number(values, "address", default_address),
        size,
        min(requested, size) if isinstance(requested, int) and _is_number(requested) else size,
        state_number,
        frames if state_number != FREE else None,
    )


def _check_segments(segments: list[Segment]) -> None:
    """Raise TraceError if segments overlap, or blocks do not tile their segment."""
    segments.sort(key=lambda segment: segment.address)
    end = 0
    for segment in segments:
        if segment.address < end:
            raise TraceError(f"segments overlap at {segment.address:#x}")
        next_address, end = segment.address, segment.address + segment.size
        for block in segment.blocks:
            if block.address != next_address or block.size == 0:
                raise TraceError(f"the blocks of the segment at {segment.address:#x} are not contiguous")
            next_address += block.size
        if next_address != end or end > _MAX_UINT64:
            raise TraceError(f"the blocks of the segment at {segment.address:#x} do not fill it")


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_UINT64


def _read_number(values: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = values.get(name, default)
    if isinstance(value, int) and not isinstance(value, bool):
        # Some releases write addresses and streams as signed numbers.
        return value & _MAX_UINT64
    raise TraceError(f"{name} is {type(value).__name__}, not a number")


def _read_time_us(values: Mapping[str, Any], default: int) -> int:
    """Return the time of an entry in microseconds since 1970. Raises TraceError beyond the year 2116."""
    time_us = _read_number(values, "time_us", default)
    if time_us > _MAX_TIME_US:
        raise TraceError(f"time_us is {time_us}: not a time before the year 2116")
    return time_us


def _read_pool(value: Any) -> Pool | None:
    if isinstance(value, (list, tuple)) and len(value) == 2 and all(_is_number(number) for number in value):
        return (value[0], value[1])
    return None


def _read_frames(values: Mapping[str, Any]) -> list[Any] | None:
    """Return the frames of the allocation, else those of the forward that caused it, or None."""
    for name in ("frames", "forward_frames"):
        frames = values.get(name)
        if isinstance(frames, list) and frames and len(frames) <= _MAX_FRAMES:
            return frames
    return None
