"""What was in memory, exactly, at any moment: segments, blocks and their sums over time, from the events alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from .. import _replay
from .driver import signed
from .integers import ADDRESSES, with_int64
from .integrity import Integrity
from .kinds import device_name

SEGMENT_COLUMNS = (
    "device",
    "address",
    "total_size",
    "allocated_size",
    "active_size",
    "requested_size",
    "stream",
    "segment_type",
    "segment_pool_id",
    "is_expandable",
)
_MADE = ("stack_id", "backward", "node_type", "thread", "birth_seq", "birth_ns")
"""Of a block that is in use: what made it, and when."""
BLOCK_COLUMNS = ("device", "segment", "address", "nbytes", "requested_size", "state", *_MADE, "age_ns")
LIVE_COLUMNS = ("address", "nbytes", "device", *_MADE)
MEASURES = ("requested", "allocated", "active", "reserved", "releasable", "stranded", "largest_free")
"""In bytes; of each the timeline has the value at an interval's end, and the lowest and highest within it."""

_BLOCK_STATES = pd.Index(["inactive", "active_allocated", "active_pending_free"])
_NEED_SEGMENTS = MEASURES[3:]
_ENDS = ("", "_min", "_max")
POINTS = 6000
"""Intervals that the one pass measures: those of a timeline with fewer are made of them, where the number divides."""


def external_fragmentation(largest_free: pd.Series[Any], free: pd.Series[Any]) -> pd.Series[Any]:
    """1 - largest free block / all free bytes: 0 where nothing is free, <NA> where it is not told."""
    known = free.astype("Float64")
    return (1 - largest_free / known.where(known > 0)).fillna(0).where(known.notna())


@dataclass(frozen=True)
class Peak:
    """The most that a device had at once, and the event that reached it."""

    bytes: int
    seq: int
    time_ns: int


@dataclass(frozen=True)
class Contradiction:
    """An event that does not fit what came before it."""

    seq: int
    device: str
    sentence: str


@dataclass(frozen=True)
class Verification:
    """How far a trace agrees with itself: see `Trace.verify`."""

    states: int
    """Allocator states in the trace: at the start and stop of the recording, and wherever the program asked for one."""
    agreeing: int
    """Of these, those that the replay equals in every segment and block; the first of a recording that began when CUDA
    was in use is where the replay begins, and counts as agreeing."""
    differences: list[Contradiction] = field(default_factory=list)
    """States that the replay does not equal although nothing was lost before them (the first 1000)."""
    contradictions: int = 0
    """Events that do not fit what came before, with no loss that explains it."""
    contradiction_list: list[Contradiction] = field(default_factory=list)
    """The first 1000 of them."""
    after_loss: int = 0
    """Events that do not fit, after a loss and before the next state."""
    resumed: int = 0
    """States from which the replay went on after a loss."""
    void_states: int = 0
    """States of which events are missing."""
    unmatched_frees: int = 0
    """Frees of blocks whose alloc is not in the trace: made before it began, or lost."""
    lost: int = 0
    """Events that are missing: not recorded, or in damaged or absent blocks."""
    integrity: str = "complete"
    """`Integrity.state` of the trace."""

    @property
    def ok(self) -> bool:
        """Nothing is lost, and all that is there agrees."""
        faults = self.differences or self.contradictions or self.void_states or self.lost
        return not faults and self.integrity == "complete"


class Replay:
    """A replayed trace. `locations`: of the reader (device, stream, pool by location id)."""

    def __init__(
        self,
        reader: _replay.TraceReader,
        locations: pd.DataFrame,
        points: int = POINTS,
        progress: Callable[[float], None] | None = None,
    ) -> None:
        self._run = _replay.Replay(reader, points, progress)
        self._locations = locations
        self._points = points
        self.devices: dict[str, dict[str, Any]] = {
            device_name(entry["device_type"], entry["device_index"]): entry for entry in self._run.timelines()
        }
        self._names = list(self.devices)
        self.totals: dict[str, Any] = self._run.totals()
        """Of the whole trace: positions (kind, seq, time_ns, value, requested bytes that were live on each device),
        refusals (seq of each out-of-memory event, and the stack of forward that caused it where backward asked),
        kind_counts (by kind), unmatched_frees, missed_frees."""

    @property
    def used_devices(self) -> list[str]:
        """Those on which there was memory."""
        return [name for name, entry in self.devices.items() if entry["is_used"]]

    def peak(self, measure: str, device: str | None = None) -> Peak | None:
        """The peak of "allocated" or "reserved" bytes, of one device or of that with the highest; None without one."""
        peaks = [Peak(*entry[f"{measure}_peak"]) for name, entry in self.devices.items() if device in (None, name)]
        highest = max(peaks, key=lambda peak: peak.bytes, default=None)
        return highest if highest is not None and highest.bytes else None

    def sequence_after(self, time_ns: int) -> int:
        """Number of the first event after a moment (ns since 1970); beyond all events where there is none."""
        return self._run.sequence_after(time_ns)

    def time_before(self, until: int) -> int:
        """When the last event before `until` was (ns since 1970); 0 where there is none."""
        return self._run.time_before(until)

    def segments(self, until: int, device: str | None = None) -> pd.DataFrame:
        """See `Trace.segments`; the state before event `until`."""
        tables = []
        for name, columns in self._by_device(self._run.segments_before, until, device):
            table = pd.DataFrame(columns)
            location = self._locations.iloc[table.pop("location")]
            table["device"] = name
            table["stream"] = location["stream"].to_numpy()
            table["segment_pool_id"] = location["pool"].to_numpy()
            table["segment_type"] = np.where(table.pop("is_large"), "large", "small")
            table["is_expandable"] = table["is_expandable"].astype(bool)
            tables.append(table)
        return _joined(tables, SEGMENT_COLUMNS)

    def blocks(self, until: int, device: str | None = None) -> pd.DataFrame:
        """See `Trace.blocks`; the state before event `until`."""
        tables = []
        for name, columns in self._by_device(self._run.blocks_before, until, device):
            columns["state"] = pd.Categorical.from_codes(columns["state"].astype(np.int8), categories=_BLOCK_STATES)
            columns["backward"] = columns["backward"].astype(bool)
            tables.append(pd.DataFrame({"device": name, **columns}))
        return _joined(tables, BLOCK_COLUMNS)

    def live(self, until: int, device: str | None = None) -> pd.DataFrame:
        """See `Trace.live`, without the steps; the state before event `until`."""
        tables = []
        for name, columns in self._by_device(self._run.live_before, until, device):
            columns["backward"] = columns["backward"].astype(bool)
            tables.append(pd.DataFrame({"device": name, **columns}))
        return _joined(tables, LIVE_COLUMNS).sort_values("birth_seq", ignore_index=True, kind="stable")

    def stacks(self, until: int, device: str | None = None) -> list[pd.DataFrame]:
        """See `Trace.stack_totals`, each device apart; the state before event `until`."""
        return [
            with_int64(pd.DataFrame(columns)) for _, columns in self._by_device(self._run.stacks_before, until, device)
        ]

    def _by_device(
        self, ask: Callable[..., list[tuple[int, int, dict[str, Any]]]], until: int, device: str | None
    ) -> list[tuple[str, dict[str, Any]]]:
        """In the order of their numbers, with their names; one of them, or all."""
        if device is not None and device not in self.devices:
            return []
        entry = None if device is None else self.devices[device]
        entries = ask(until, None if entry is None else (entry["device_type"], entry["device_index"]))
        return [
            (device_name(kind, index), columns) for kind, index, columns in sorted(entries, key=lambda one: one[:2])
        ]

    def timeline(self, points: int, device: str | None = None) -> pd.DataFrame:
        """See `Trace.timeline`, without its times; `points` divides the number of intervals that were measured."""
        tables = []
        for name, entry in self.devices.items():
            if device in (None, name):
                tables.append(_fewer(pd.DataFrame(entry["columns"]), points))
                tables[-1].insert(0, "device", name)
                not_told = pd.Series(pd.NA, index=tables[-1].index, dtype="Int64")
                for measure in (f"{name}{end}" for name in _NEED_SEGMENTS for end in _ENDS):
                    tables[-1][measure] = signed(tables[-1][measure]) if entry["tells_segments"] else not_told
        columns = [f"{measure}{end}" for measure in MEASURES for end in _ENDS]
        return _joined(tables, ("device", *columns, "blocks", "seq"))

    def samples(self) -> dict[str, Any]:
        """What the driver said, by column: see `driver.driver_memory`."""
        return self._run.samples()

    def verification(self, integrity: Integrity) -> Verification:
        """See `Trace.verify`."""
        found = self._run.findings()
        for name in ("differences", "contradiction_list"):
            found[name] = [Contradiction(seq, self._names[device], sentence) for seq, device, sentence in found[name]]
        lost = integrity.lost + integrity.missing_events
        unmatched = self.totals["unmatched_frees"]
        return Verification(**found, unmatched_frees=unmatched, lost=lost, integrity=integrity.state)


def _joined(tables: list[pd.DataFrame], columns: tuple[str, ...]) -> pd.DataFrame:
    if not tables:
        return pd.DataFrame({name: pd.Series(dtype=np.uint64 if name in ADDRESSES else np.int64) for name in columns})
    return with_int64(pd.concat(tables, ignore_index=True)[list(columns)])


def _fewer(table: pd.DataFrame, points: int) -> pd.DataFrame:
    """Every len/points rows as one: the last, lowest and highest values, and the event of the highest."""
    group = len(table) // points
    if group == 1:
        return table
    made = {}
    for name in table.columns:
        rows = table[name].to_numpy().reshape(points, group)
        if name == "seq":
            highest = table["allocated_max"].to_numpy().reshape(points, group).argmax(axis=1)
            made[name] = rows[np.arange(points), highest]
        elif name.endswith("_min"):
            made[name] = rows.min(axis=1)
        elif name.endswith("_max"):
            made[name] = rows.max(axis=1)
        else:
            made[name] = rows[:, -1]
    return pd.DataFrame(made)
