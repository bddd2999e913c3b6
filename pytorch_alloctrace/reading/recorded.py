"""What a trace tells: events, stacks, sites, what is live, steps and marks, the devices."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from .. import _replay
from ..errors import PositionError
from .driver import driver_memory
from .integrity import Integrity
from .kinds import KINDS, STEP, device_name, kind_name
from .positions import PEAKS, Position, PositionTable, Range, time_of
from .replay import POINTS, Replay
from .sites import Frame, StackIndex, group_stacks
from .timeline import make_timeline

EVENT_COLUMNS = (
    "seq",
    "time_ns",
    "kind",
    "device",
    "address",
    "nbytes",
    "stream",
    "pool",
    "thread",
    "stack_id",
    "step",
)
"""The default columns of `Trace.events`."""
AUTOGRAD_COLUMNS = ("autograd_seq", "node_seq", "node_thread", "node_type", "forward_stack_id")
"""More columns, on request: number of the next autograd node of the thread; of the node being evaluated (backward)
its number, the thread that made it, and its type; and the stack of the forward that caused it, where backward
allocates without a stack of its own and that is known (else 0)."""

Progress = Callable[[float], None]


class RecordedTrace:
    """A trace, opened for reading: all that needs no analysis. `Trace` has that too."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        spool: str | os.PathLike[str] | None = None,
        user_paths: Sequence[str] = (),
        progress: Progress | None = None,
    ) -> None:
        self.path = os.fspath(path)
        self._progress = progress
        self._reader = _replay.TraceReader(os.fsencode(self.path), os.fsencode(spool) if spool else "", progress)
        self.header: dict[str, Any] = _json_object(self._reader.header_json)
        """The program, its versions, folders and options, as at enable(); empty where damage took it."""
        self.integrity = Integrity.from_reader(self._reader.integrity)
        self._user_paths = tuple(user_paths)

    def __repr__(self) -> str:
        return f"<Trace {self.path}: {self.integrity.events:,} events, {self.integrity.state}>"

    @property
    def begin_ns(self) -> int:
        """When the recording began: nanoseconds since 1970-01-01 UTC."""
        return self._reader.begin_ns

    @property
    def end_ns(self) -> int:
        """When the last known block was written: nanoseconds since 1970-01-01 UTC."""
        return self._reader.end_ns

    @property
    def end_seq(self) -> int:
        """The number after that of the last event. Not their count: in a damaged trace numbers are missing."""
        return self._reader.end_seq

    @property
    def file_bytes(self) -> int:
        """Size of the trace file."""
        return self._reader.file_bytes

    @functools.cached_property
    def stacks(self) -> StackIndex:
        """The calling-context tree and the site of each stack."""
        return StackIndex(self._reader, self.header.get("library_prefixes", []), self._user_paths)

    @functools.cached_property
    def threads(self) -> pd.DataFrame:
        """One row a thread: thread (as in events), native_id, name (Python's where it has one), autograd_id."""
        rows = [
            {
                "thread": number,
                "native_id": thread.native_id,
                "name": thread.python_name or thread.name,
                "autograd_id": thread.autograd_id,
            }
            for number, thread in enumerate(self._reader.threads())
            if number
        ]
        return pd.DataFrame(rows, columns=["thread", "native_id", "name", "autograd_id"])

    @functools.cached_property
    def _locations(self) -> pd.DataFrame:
        rows = [
            {
                "device": device_name(location.device_type, location.device_index),
                "stream": location.stream,
                "pool": location.pool,
            }
            for location in self._reader.locations()
        ]
        if rows:
            rows[0] = {"device": "", "stream": 0, "pool": (0, 0)}
        return pd.DataFrame(rows or [{"device": "", "stream": 0, "pool": (0, 0)}])

    @functools.cached_property
    def replay(self) -> Replay:
        """The whole trace replayed once, with checkpoints: what the analyses ask."""
        return self._replay_with(POINTS)

    def _replay_with(self, points: int) -> Replay:
        return Replay(self._reader, self._locations, points, self._progress)

    def first_event_after(self, at: Position, device: str | None = None) -> int:
        """Number of the first event after a position: what `live`, `segments`, `blocks` show is the state before it.

        at, device: as in `live`. Raises PositionError for a position that the trace does not have.
        """
        if isinstance(at, (int, np.integer)):
            return min(max(int(at) + 1, 0), self.end_seq)
        if at == "end":
            return self.end_seq
        time_ns = time_of(at, self.begin_ns)
        if time_ns is not None:
            return self.first_event_after_time(time_ns)
        if at in PEAKS:
            peak = self.replay.peak("reserved" if at == "peak:reserved" else "allocated", device)
            if peak is None:
                raise PositionError("the trace has no peak: nothing was allocated in it")
            return peak.seq + 1
        first = self.positions.first_event_after(str(at))
        return self.end_seq if first is None else first

    def first_event_after_time(self, time_ns: int) -> int:
        """Number of the first event after a time (nanoseconds since 1970-01-01 UTC)."""
        return min(self.replay.sequence_after(time_ns), self.end_seq)

    @functools.cached_property
    def positions(self) -> PositionTable:
        """Steps, marks and regions."""

        def value(event: _replay.PositionEvent) -> int | str:
            return event.value if event.kind == STEP else self._reader.string(event.value)

        found = self.replay.positions
        return PositionTable([(one.kind, one.seq, one.time_ns, value(one), one.live_bytes) for one in found])

    @property
    def devices(self) -> list[str]:
        """The devices that have events, most bytes at the peak first."""
        return sorted(self.replay.used_devices, key=lambda name: -self._most_allocated(name))

    def _most_allocated(self, device: str) -> int:
        peak = self.replay.peak("allocated", device)
        return peak.bytes if peak else 0

    @property
    def kind_counts(self) -> dict[str, int]:
        """How many events of each kind there are, by kind."""
        return {kind_name(number): count for number, count in enumerate(self.replay.kind_counts) if count}

    @functools.cached_property
    def refusals(self) -> dict[int, int]:
        """The out-of-memory events: number of each to the stack of forward that caused the request, where backward made
        it without a stack of its own and that is known; else 0."""
        return {refusal.seq: refusal.forward_stack for refusal in self.replay.refusals}

    @property
    def unmatched_frees(self) -> int:
        """Frees of blocks whose alloc is not in the trace: they were alive before it began, or their alloc was lost."""
        return self.replay.unmatched_frees

    @property
    def missed_frees(self) -> int:
        """Allocs at an address that was live: the free between them was not seen. 0 unless events were lost."""
        return self.replay.missed_frees

    def segments(self, at: Position = "end", *, device: str | None = None) -> pd.DataFrame:
        """The segments that torch's CUDA allocator has at a moment, as `torch.cuda.memory_snapshot()` lists them.

        at: as in `live`. Columns: device ("cuda:0"), address, total_size, allocated_size, active_size, requested_size,
        stream, segment_type ("small" or "large"), segment_pool_id, is_expandable. Allocators that tell no segments (the
        CPU's, cudaMallocAsync, pluggable ones) have none.
        """
        return self.replay.segments(self.first_event_after(at, device), device)

    def blocks(self, at: Position = "end", *, device: str | None = None) -> pd.DataFrame:
        """The blocks at a moment, those that are free included, by address.

        at: as in `live`. Columns: device, segment (its address; 0 where the allocator tells none), address, nbytes,
        requested_size, state ("active_allocated", "active_pending_free", "inactive"), as torch has them; and of those
        that are not free stack_id, backward and node_type (as in `live`), thread, birth_seq, birth_ns, age_ns, step (of
        birth; of blocks older than the recording, its beginning).
        """
        table = self.replay.blocks(self.first_event_after(at, device), device)
        table["node_type"] = self.names_of_node_types(table["node_type"].to_numpy())
        free = (table["state"] == "inactive").to_numpy(bool)
        table["step"] = self.positions.step_of(table["birth_seq"].to_numpy(), unknown=free)
        return table.assign(**self.stacks.site_columns(table["stack_id"].to_numpy(), unknown=free))

    def timeline(self, points: int = 2000, *, device: str | None = None) -> pd.DataFrame:
        """The sums of each device's memory over time, in `points` intervals of equal length. In bytes.

        Columns: device, time_ns (beginning of the interval); requested, allocated, active, reserved, releasable,
        stranded, largest_free (at its end; docs/reading.md says what they mean), each with _min and _max (within it, so
        that no peak is lost); external_fragmentation (0 to 1, at its end), outside (of PyTorch, by the driver, at its
        end), blocks (allocated at its end), seq (of the event that reached the most allocated bytes). What an allocator
        does not tell is <NA>. `Trace.plot_timeline` draws it.
        """
        if points < 1:
            raise ValueError(f"points={points}: a timeline has at least one")
        replayed = self.replay if POINTS % points == 0 else self._replay_with(points)
        moments = np.linspace(self.begin_ns, max(self.end_ns, self.begin_ns + 1), points + 1).astype(np.int64)
        return make_timeline(replayed.timeline(points, device), moments, self.driver_memory())

    def range(
        self, since: Position | None = None, until: Position | None = None, *, device: str | None = None
    ) -> Range:
        """The events after `since` (default: all), up to and including `until` (default: the end of the trace).

        since, until, device: as `at` and `device` of `live`. Raises PositionError where nothing happened in between.
        """
        within = self._range(since, until, device)
        if next(self.iter_events(1, since=within.since, until=within.until, columns=("seq",)), None) is None:
            begin, end = "the beginning" if since is None else since, "the end" if until is None else until
            raise PositionError(f"nothing happened between {begin} and {end}: the one must be before the other")
        return within

    def _range(self, since: Position | None, until: Position | None, device: str | None = None) -> Range:
        first = 0 if since is None else self.first_event_after(since, device)
        return Range(first, self.end_seq if until is None else self.first_event_after(until, device))

    def iter_events(
        self,
        chunk: int = 1_000_000,
        *,
        since: Position | None = None,
        until: Position | None = None,
        columns: Sequence[str] | None = None,
        kinds: Sequence[str] | None = None,
    ) -> Iterator[pd.DataFrame]:
        """The events in order, in frames of about `chunk` rows (at least so many, but for the last).

        since, until: positions (as `at` of `live`): everything after `since`, up to and including `until`. columns: of
        EVENT_COLUMNS and AUTOGRAD_COLUMNS. kinds: only events of these (of KINDS).
        """
        wanted = tuple(columns) if columns is not None else EVENT_COLUMNS
        for name in wanted:
            if name not in EVENT_COLUMNS + AUTOGRAD_COLUMNS:
                raise ValueError(
                    f"events have no column {name!r}: use any of {', '.join(EVENT_COLUMNS + AUTOGRAD_COLUMNS)}"
                )
        unknown = [kind for kind in kinds or () if kind not in KINDS]
        if unknown:
            raise ValueError(f"there are no events of kind {unknown[0]!r}: use any of {', '.join(KINDS)}")
        within = self._range(since, until)
        if within.end <= within.first or (kinds is not None and not kinds):
            return
        numbers = [KINDS.index(kind) for kind in kinds or ()]
        # The sizes of frees, and what in forward caused backward, follow from the events before: the replay knows them.
        has_frees = kinds is None or not {"free_requested", "free_completed"}.isdisjoint(kinds)
        with_state = "forward_stack_id" in wanted or ("nbytes" in wanted and has_frees)
        if with_state and within.first > 0:
            stream = self.replay.events(within.first, within.end, numbers)  # begins at the nearest checkpoint
        else:
            stream = self._reader.events(within.first, within.end, numbers, with_state)
        while (raw := stream.next(max(chunk, 1))) is not None:
            if len(raw["seq"]):
                yield self._event_frame(raw, wanted)

    def events(
        self,
        *,
        since: Position | None = None,
        until: Position | None = None,
        columns: Sequence[str] | None = None,
        kinds: Sequence[str] | None = None,
    ) -> pd.DataFrame:
        """All events, or those after `since`, up to and including `until` (see `iter_events`), as one DataFrame.

        Columns: seq (number of the event), time_ns (since 1970-01-01 UTC), kind (torch's own words), device ("cpu",
        "cuda:0";
        "" for positions), address, nbytes (bytes requested; of a free: those of its alloc, 0 where unknown; of a step
        its number), stream,
        pool, thread (see `threads`), stack_id (see `frames`; 0: none), step (None where the trace has none).
        """
        frames = list(self.iter_events(since=since, until=until, columns=columns, kinds=kinds))
        if frames:
            return pd.concat(frames, ignore_index=True) if len(frames) > 1 else frames[0]
        wanted = tuple(columns) if columns is not None else EVENT_COLUMNS
        return pd.DataFrame({name: [] for name in wanted})

    def _event_frame(self, raw: dict[str, Any], columns: Sequence[str]) -> pd.DataFrame:
        location = raw["location"]
        locations = self._locations.reindex(range(max(len(self._locations), int(location.max(initial=0)) + 1)))
        made: dict[str, Any] = {}
        for name in columns:
            if name == "kind":
                names = [kind_name(number) for number in range(max(len(KINDS), int(raw["kind"].max(initial=0)) + 1))]
                made[name] = pd.Categorical.from_codes(raw["kind"].astype(np.int16), categories=pd.Index(names))
            elif name == "device":
                devices = locations["device"].fillna("").astype(str)
                codes, known = pd.factorize(devices)
                made[name] = pd.Categorical.from_codes(codes[location], categories=known)
            elif name == "stream":
                made[name] = locations["stream"].fillna(0).to_numpy(np.int64)[location]
            elif name == "pool":
                pools = np.empty(len(locations), dtype=object)
                pools[:] = [value if isinstance(value, tuple) else (0, 0) for value in locations["pool"]]
                made[name] = pools[location]
            elif name == "step":
                made[name] = self.positions.step_of(raw["seq"])
            elif name == "node_type":
                made[name] = self.names_of_node_types(raw["node_type"])
            else:
                made[name] = raw[name]
        return pd.DataFrame(made)

    def names_of_node_types(self, numbers: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.object_]:
        """Types of autograd nodes, in full, by their numbers; "" for none."""
        names = np.array([*self._reader.node_types()] or [""], dtype=object)
        named: npt.NDArray[np.object_] = names[np.minimum(numbers, len(names) - 1)]
        return named

    def frames(self, stack_id: int) -> list[Frame]:
        """The frames of a stack, innermost first; empty for stack 0, which means that none is known."""
        return self.stacks.frames(int(stack_id))

    def text(self, identifier: int) -> str:
        """The text that an event names by number (of a mark, of the allocator's settings); "" where it is lost."""
        return self._reader.string(int(identifier))

    def stack_totals(self, at: Position = "end", *, device: str | None = None) -> pd.DataFrame:
        """One row a stack: stack_id, allocations, bytes, live_bytes, live_blocks, largest, live_backward_bytes; up to a
        moment, on one device or all.

        What autograd's threads allocate in backward has no Python stack: it is counted with the stack of forward that
        caused it, where that is known (live_backward_bytes: that part of live_bytes). Blocks that are older than the
        recording are live, but no allocations of it.
        """
        tables = self.replay.stacks(self.first_event_after(at, device), device)
        columns = ["stack_id", "allocations", "bytes", "live_bytes", "live_blocks", "largest", "live_backward_bytes"]
        if not tables:
            return pd.DataFrame({name: np.array([], dtype=np.int64) for name in columns})
        if len(tables) == 1:
            return tables[0][columns]
        sums = (
            pd.concat(tables)
            .groupby("stack_id", as_index=False)
            .agg(dict.fromkeys(columns[1:], "sum") | {"largest": "max"})
        )
        return sums[columns]

    def sites(self, at: Position = "end", *, device: str | None = None, by: str = "line") -> pd.DataFrame:
        """What each place in the code has allocated; bytes are requested bytes.

        by: "line", "stack", "function" or "file" of the innermost frame of user code. Columns: site, filename, line,
        function, source,
        user (False: no frame of user code, the innermost frame stands in), allocations, bytes, live_bytes, live_blocks,
        largest, live_backward_bytes (see `stack_totals`), stack_id (the one with most live bytes). at: as in `live`.
        """
        return group_stacks(self.stacks, self.stack_totals(at, device=device), by)

    def live(self, at: Position = "end", *, device: str | None = None) -> pd.DataFrame:
        """The blocks that are live at a moment, oldest first.

        at: "end", "peak" (of `device`, default the one with the highest), an event number (after it), "step:N" (at
        its end), "mark:NAME".
        Columns: address, nbytes, device, stack_id (where `backward` is true: of the forward that caused it), backward,
        node_type (of the autograd node whose backward made it, in full; "": none), thread, birth_seq, birth_ns, step
        (of birth).
        """
        blocks = self.replay.live(self.first_event_after(at, device), device)
        blocks["node_type"] = self.names_of_node_types(blocks["node_type"].to_numpy())
        blocks["step"] = self.positions.step_of(blocks["birth_seq"].to_numpy())
        return blocks.assign(**self.stacks.site_columns(blocks["stack_id"].to_numpy()))

    def time_ns(self, at: Position) -> int:
        """When a moment was: nanoseconds since 1970-01-01 UTC. at: as in `live`."""
        if at == "end":
            return self.end_ns
        return self.replay.time_before(self.first_event_after(at)) or self.begin_ns

    @functools.cached_property
    def hardware(self) -> pd.DataFrame:
        """The CUDA devices that the program could use: device, name, bytes (of memory), uuid, pci_address."""
        rows = [
            (device_name(one.device_type, one.device_index), one.name, one.bytes, one.uuid, one.pci_address)
            for one in self._reader.devices()
        ]
        return pd.DataFrame(rows, columns=["device", "name", "bytes", "uuid", "pci_address"])

    def driver_memory(self, *, device: str | None = None) -> pd.DataFrame:
        """What the driver said of each device's memory, and the system of this process's: sampled ten times a second, a
        row for each change.

        Columns, in bytes: seq, time_ns, device, used (by everyone; of "cpu": resident memory of this process), total
        (of the device, of the machine), by_this_process and by_others (where the driver tells: not in most containers),
        reserved (torch's segments at that moment; where its allocator tells them), outside (used - reserved: the CUDA
        context, libraries, other processes). What is not told is <NA>.
        """
        table = driver_memory(self.replay.samples())
        return table if device is None else table[table["device"] == device].reset_index(drop=True)

    def steps(self, *, device: str | None = None) -> pd.DataFrame:
        """One row a step that ended: step, seq and time_ns of its end, live_bytes then (on `device`, default all)."""
        wanted = [index for index, name in enumerate(self.replay.devices) if device in (None, name)]
        return self.positions.steps(wanted)

    def marks(self) -> pd.DataFrame:
        """The named positions: name, kind (mark, region_begin, region_end), seq, time_ns."""
        return self.positions.marks()


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
