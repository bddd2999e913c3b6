"""A trace as it was recorded: events, stacks and sites, the state at a position, sums over time."""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import pandas as pd

from .. import _replay
from ..errors import PositionError, TraceError, UserPathError
from .driver import driver_memory
from .dtypes import TEXT, no_rows
from .integrity import Integrity
from .kinds import KINDS, STEP, device_name, kind_name, named_device
from .positions import PEAKS, Position, PositionTable, Range, Region, time_of
from .replay import POINTS, Replay
from .sites import Frame, StackIndex, group_stacks
from .timeline import make_timeline
from .user_code import UserCode, packages_to_open
from .words import counted

EVENT_COLUMNS = (
    *("seq", "time_ns", "kind", "device", "address", "nbytes", "stream", "pool", "thread", "stack_id", "step"),
)
"""The default columns of `Trace.events`."""
AUTOGRAD_COLUMNS = ("autograd_seq", "node_seq", "node_thread", "node_type", "forward_stack_id")
"""More columns, on request. autograd_seq: the number of the next autograd node of the thread. node_seq, node_thread,
node_type: number, maker thread and type of the node that is being evaluated (in backward). forward_stack_id: the stack
of the forward that caused an allocation of backward, where backward has no stack and that is known; else 0."""
STACK_COLUMNS = (*("stack_id", "allocations", "bytes", "live_bytes", "live_blocks", "largest", "live_backward_bytes"),)
"""The columns of `Trace.stack_totals`."""

Progress = Callable[[float], None]


@runtime_checkable
class PassProgress(Protocol):
    """A `Progress` that is also told which pass over the trace the shares are of."""

    def __call__(self, share: float) -> None: ...

    def begin_pass(self, name: str) -> None:
        """name: "reading run.alloctrace", "replaying run.alloctrace"."""

    def end_pass(self) -> None: ...


class RecordedTrace:
    """A trace, opened for reading: everything that needs no analysis. `pytorch_alloctrace.Trace` adds the analyses."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        spool: str | os.PathLike[str] | None = None,
        user_paths: Sequence[str] = (),
        progress: Progress | None = None,
    ) -> None:
        self.path = os.fspath(path)
        """The trace file."""
        self._progress = progress
        if spool is not None and not os.path.exists(spool):
            raise TraceError(f"there is no spool {os.fspath(spool)!r}: give the file that lay next to the trace")
        with self._pass("reading"):
            self._reader = _replay.TraceReader(os.fsencode(self.path), os.fsencode(spool) if spool else "", progress)
        self.header: dict[str, Any] = _json_object(self._reader.header_json)
        """The program, its versions, folders and options, as of enable(); empty if damage took it."""
        self.integrity = Integrity.from_reader(self._reader.integrity)
        """What the trace has and what is missing from it."""
        self.ending: dict[str, Any] = _json_object(self._reader.end_json)
        """How the recording ended, its "reason": "disable", "exit", "SIGTERM" or, where `finish` ended the trace,
        "killed". Empty as long as the trace has no end."""
        self.user_paths = tuple(user_paths)
        """Files, folders and packages whose code counts as the user's own although it is installed."""
        self._code = self._user_code(user_paths)

    def _user_code(self, user_paths: Sequence[str]) -> UserCode:
        # A damaged header may hold anything.
        prefixes, folder = self.header.get("library_prefixes"), self.header.get("working_directory")
        prefixes = [str(prefix) for prefix in prefixes] if isinstance(prefixes, list) else []
        code = UserCode(prefixes, user_paths, folder if isinstance(folder, str) else "")
        if user_paths:
            files = self._reader.stack_table()["filename"]
            names = [self._reader.string(int(file)) for file in np.unique(files)]
            if unmatched := code.unmatched(names):
                there = ", ".join(packages_to_open(names)) or "none but torch"
                raise UserPathError(
                    f"no file of the trace is in {unmatched[0]!r}: name a file, a folder or a package "
                    f"(installed packages that the trace has: {there})",
                    tuple(unmatched),
                )
        return code

    def __repr__(self) -> str:
        return f"<Trace {self.path}: {counted(self.integrity.events, 'event')}, {self.integrity.state}>"

    # The file

    @property
    def begin_ns(self) -> int:
        """When the recording began: nanoseconds since 1970-01-01 UTC."""
        return self._reader.begin_ns

    @property
    def end_ns(self) -> int:
        """When the last known block of the file was written, or the last event in the spool of a killed recording
        happened: nanoseconds since 1970-01-01 UTC."""
        return self._reader.end_ns

    @property
    def end_seq(self) -> int:
        """The number after that of the last event. Not the count of events: a damaged trace lacks numbers."""
        return self._reader.end_seq

    @property
    def file_bytes(self) -> int:
        """Size of the trace file."""
        return self._reader.file_bytes

    @functools.cached_property
    def replay(self) -> Replay:
        """The replay of the whole trace, made once. Analyses that need no names ask it by event number."""
        return self._replayed(POINTS)

    def _replayed(self, points: int) -> Replay:
        with self._pass("replaying"):
            return Replay(self._reader, self._locations, points, self._progress)

    @contextlib.contextmanager
    def _pass(self, name: str) -> Iterator[None]:
        progress = self._progress
        if isinstance(progress, PassProgress):
            progress.begin_pass(f"{name} {os.path.basename(self.path)}")
        yield
        if isinstance(progress, PassProgress):
            progress.end_pass()

    # Events

    def events(
        self,
        *,
        since: Position | None = None,
        until: Position | None = None,
        columns: Sequence[str] | None = None,
        kinds: Sequence[str] | None = None,
    ) -> pd.DataFrame:
        """The events after `since`, up to and including `until`, in order, one row each.

        since, until: positions, as `at` of `live`; default all events. columns: of EVENT_COLUMNS (the default) and
        AUTOGRAD_COLUMNS. kinds: only events of these kinds.

        Columns: seq (the number of the event), time_ns (since 1970-01-01 UTC), kind (torch's own words), device
        ("cpu", "cuda:0"; "" for positions), address, nbytes (requested; of a free those of its alloc, 0 if unknown; of
        a step its number), stream, pool, thread (see `threads`), stack_id (for `frames`; 0: none), step (<NA> in a
        trace without steps).

        Raises PositionError for a position that the trace does not have, ValueError for an unknown column or kind.
        """
        chunks = list(self.iter_events(since=since, until=until, columns=columns, kinds=kinds))
        if chunks:
            return pd.concat(chunks, ignore_index=True) if len(chunks) > 1 else chunks[0]
        none = {name: np.zeros(0, np.int64) for name in ("location", *EVENT_COLUMNS, *AUTOGRAD_COLUMNS)}
        none["address"] = np.zeros(0, np.uint64)
        return self._event_table(none, EVENT_COLUMNS if columns is None else columns)

    def iter_events(
        self,
        chunk: int = 1_000_000,
        *,
        since: Position | None = None,
        until: Position | None = None,
        columns: Sequence[str] | None = None,
        kinds: Sequence[str] | None = None,
    ) -> Iterator[pd.DataFrame]:
        """The same, in tables of at least `chunk` rows (the last may have fewer), for traces larger than memory."""
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
                yield self._event_table(raw, wanted)

    def _event_table(self, raw: dict[str, Any], columns: Sequence[str]) -> pd.DataFrame:
        location = raw["location"]
        # Damage may have taken the definition of a location.
        locations = self._locations.reindex(range(max(len(self._locations), int(location.max(initial=0)) + 1)))
        made: dict[str, Any] = {}
        for name in columns:
            if name == "kind":
                names = [kind_name(number) for number in range(max(len(KINDS), int(raw["kind"].max(initial=0)) + 1))]
                made[name] = pd.Categorical.from_codes(raw["kind"].astype(np.int16), categories=pd.Index(names))
            elif name == "device":
                codes, known = pd.factorize(locations["device"].fillna("").astype(str))
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
                made[name] = self._node_types(raw["node_type"])
            else:
                made[name] = raw[name]
        # Nobody else has these arrays: to copy them into one block is a sixth of the time of reading all events.
        return pd.DataFrame(made, copy=False)

    def _node_types(self, numbers: npt.NDArray[np.integer[Any]]) -> Any:
        """Types of autograd nodes, in full, by number; "" for none."""
        names = np.array([*self._reader.node_types()] or [""], dtype=object)
        return pd.array(names[np.minimum(numbers, len(names) - 1)], dtype=TEXT)

    @functools.cached_property
    def _locations(self) -> pd.DataFrame:
        """Device, stream and pool by location id; 0 is none."""
        rows: list[dict[str, Any]] = [
            {
                "device": device_name(location.device_type, location.device_index),
                "stream": location.stream,
                "pool": location.pool,
            }
            for location in self._reader.locations()
        ]
        return pd.DataFrame([{"device": "", "stream": 0, "pool": (0, 0)}, *rows[1:]])

    @property
    def kind_counts(self) -> dict[str, int]:
        """How many events of each kind there are, by kind."""
        return {kind_name(number): count for number, count in enumerate(self.replay.kind_counts) if count}

    @functools.cached_property
    def refused_requests(self) -> dict[int, int]:
        """The out-of-memory events: the number of each, and the stack id of the forward that caused the request, where
        backward has no stack and that is known; else 0."""
        return {refusal.seq: refusal.forward_stack for refusal in self.replay.refusals}

    @property
    def unmatched_frees(self) -> int:
        """Frees of blocks whose alloc is not in the trace: allocated before the recording, or their alloc was lost."""
        return self.replay.unmatched_frees

    @property
    def missed_frees(self) -> int:
        """Allocs at an address that was live: the free in between was not seen. 0 unless events were lost."""
        return self.replay.missed_frees

    def text(self, identifier: int) -> str:
        """The text that an event names by number (of a mark, of the allocator's settings); "" if it was lost."""
        return self._reader.string(int(identifier))

    # Stacks and sites

    @functools.cached_property
    def stacks(self) -> StackIndex:
        """The stacks, and the site of each."""
        return StackIndex(self._reader, self._code)

    def frames(self, stack_id: int) -> list[Frame]:
        """The frames of a stack, innermost first; none for stack 0, which means that no stack is known.

        Raises IndexError for a stack that the trace does not have.
        """
        return self.stacks.frames(int(stack_id))

    def sites(self, at: Position = "end", *, device: str | None = None, by: str = "line") -> pd.DataFrame:
        """What each site had allocated up to a position, the most live bytes first. Bytes are requested bytes.

        at, device: as in `live`. by: "line", "function", "file" of the site, or "stack".

        Columns: site, filename, line, function, source, user (False: the stack has no frame of user code, and its
        innermost frame stands in), allocations, bytes, live_bytes, live_blocks, largest, live_backward_bytes (see
        `stack_totals`), stack_id (the stack with the most live bytes).
        """
        return group_stacks(self.stacks, self.stack_totals(at, device=device), by)

    def stack_totals(self, at: Position = "end", *, device: str | None = None) -> pd.DataFrame:
        """What each stack had allocated up to a position, one row per stack. Bytes are requested bytes.

        at, device: as in `live`; default all devices. Columns: stack_id, allocations, bytes, live_bytes, live_blocks,
        largest, live_backward_bytes.

        What autograd's threads allocate has no Python stack: where the stack of the forward that caused it is known, it
        is counted with that one (live_backward_bytes: that part of live_bytes). Blocks older than the recording are
        live, but not among its allocations.
        """
        tables = self.replay.stacks(self.first_event_after(at, device), self.named_device(device))
        if not tables:
            return no_rows(STACK_COLUMNS)
        if len(tables) == 1:
            return tables[0][[*STACK_COLUMNS]]
        how = dict.fromkeys(STACK_COLUMNS[1:], "sum") | {"largest": "max"}
        return pd.concat(tables).groupby("stack_id", as_index=False).agg(how)[[*STACK_COLUMNS]]

    # The state at a position

    def live(self, at: Position = "end", *, device: str | None = None) -> pd.DataFrame:
        """The blocks that were live at a position, oldest first.

        at: "end", "peak" (of `device`, default the one with the highest), "peak:reserved", an event number (after it),
        "step:N" (the end of step N), "mark:NAME" (the first of that name), "mark:NAME#3" (the third), "region:NAME"
        (its beginning), "region:NAME:end", "12.5s" (after the recording began) or a datetime. device: "cpu", "cuda:0",
        ..., or "cuda" if the trace has one CUDA device; default all.

        Columns: address, nbytes (requested), device, stack_id (where `backward` is True: of the forward that caused
        it), backward, node_type (of the autograd node that allocated it, in full; "": none), thread, birth_seq,
        birth_ns, step (of birth); site, filename, line, function (as in `sites`). birth_seq, birth_ns and step are <NA>
        for a block that was there before the recording.

        Raises PositionError for a position, TraceError for a device that the trace does not have.
        """
        blocks = self.replay.live(self.first_event_after(at, device), self.named_device(device))
        del blocks["allocated"]  # `blocks` has it
        blocks["node_type"] = self._node_types(blocks["node_type"].to_numpy())
        blocks["step"] = self.positions.step_of(blocks["birth_seq"].to_numpy())
        blocks = blocks.assign(**self.stacks.site_columns(blocks["stack_id"].to_numpy()))
        return _without_births(blocks, ("birth_seq", "birth_ns", "step"))

    def blocks(self, at: Position = "end", *, device: str | None = None) -> pd.DataFrame:
        """The blocks of the allocator at a position, including the free ones, by address.

        at, device: as in `live`. Columns: device, segment (its address; 0 if the allocator reports none), address,
        nbytes (after rounding), requested_size, state ("active_allocated", "active_pending_free", "inactive"), as torch
        has them. For blocks that are not free also: stack_id, backward, node_type, thread, birth_seq, birth_ns, age_ns,
        step, site, filename, line, function, as in `live`.
        """
        table = self.replay.blocks(self.first_event_after(at, device), self.named_device(device))
        table["node_type"] = self._node_types(table["node_type"].to_numpy())
        is_free = (table["state"] == "inactive").to_numpy(bool)
        table["step"] = self.positions.step_of(table["birth_seq"].to_numpy(), unknown=is_free)
        table = table.assign(**self.stacks.site_columns(table["stack_id"].to_numpy(), unknown=is_free))
        return _without_births(table, ("birth_seq", "birth_ns", "age_ns", "step"))

    def segments(self, at: Position = "end", *, device: str | None = None) -> pd.DataFrame:
        """The segments of torch's CUDA allocator at a position, as `torch.cuda.memory_snapshot()` lists them.

        at, device: as in `live`. Columns: device, address, total_size, allocated_size, active_size, requested_size,
        stream, segment_type ("small" or "large"), segment_pool_id, is_expandable; sizes in bytes. Allocators that
        report no segments (the CPU's, cudaMallocAsync, pluggable ones) have none.
        """
        return self.replay.segments(self.first_event_after(at, device), self.named_device(device))

    # Over time

    @property
    def devices(self) -> list[str]:
        """The devices that have events, the one with the highest peak first."""
        return sorted(self.replay.used_devices, key=lambda name: -self._most_allocated(name))

    @functools.cached_property
    def known_devices(self) -> list[str]:
        """`devices`, then those on which nothing was allocated: the program could use them, a request was refused
        there, or the driver reported."""
        names = [*self.devices, *self.replay.devices, *self._driver_memory["device"], *self.hardware["device"]]
        return [*dict.fromkeys(names)]

    def named_device(self, device: str | None) -> str | None:
        """A device as `known_devices` has it; None: all. "cuda" stands for the only CUDA device. Raises TraceError for
        one that the trace does not have, and for "cuda" if there are several."""
        return None if device is None else named_device(device, self.known_devices)

    def _most_allocated(self, device: str) -> int:
        peak = self.replay.peak("allocated", device)
        return peak.bytes if peak else 0

    def timeline(self, points: int = 2000, *, device: str | None = None) -> pd.DataFrame:
        """The sums of each device's memory over time, in `points` intervals of equal length. In bytes.

        Columns: device, time_ns (when the interval begins); requested, allocated, active, reserved, releasable,
        stranded, largest_free (at its end; see docs/reading.md), each with _min and _max (within it, so that no peak is
        lost); external_fragmentation (0 to 1, at its end), outside (used outside PyTorch, as the driver reports it, at
        its end), blocks (allocated at its end), seq (the event that reached the most allocated bytes in it). What an
        allocator does not report is <NA>. `Trace.plot_timeline` draws it.
        """
        if points < 1:
            raise ValueError(f"points={points}: a timeline has at least one")
        # The replay has measured POINTS intervals, which are put together where the number divides.
        replay = self.replay
        if POINTS % points:
            replay = self._replayed(points)
        borders = np.linspace(self.begin_ns, max(self.end_ns, self.begin_ns + 1), points + 1).astype(np.int64)
        return make_timeline(replay.timeline(points, self.named_device(device)), borders, self._driver_memory)

    def driver_memory(self, *, device: str | None = None) -> pd.DataFrame:
        """What the driver reported of each device's memory, and the system of this process's: a row for each change,
        sampled ten times a second.

        Columns, in bytes: seq, time_ns, device, used (by everyone; for "cpu" the resident memory of this process),
        total (of the device, of the machine), by_this_process and by_others (in most containers the driver does not
        report them), reserved (torch's segments then), outside (used - reserved: the CUDA context, libraries, other
        processes). What is not known is <NA>.
        """
        table, device = self._driver_memory, self.named_device(device)
        return table.copy() if device is None else table[table["device"] == device].reset_index(drop=True)

    @functools.cached_property
    def _driver_memory(self) -> pd.DataFrame:
        return driver_memory(self.replay.samples())

    @functools.cached_property
    def hardware(self) -> pd.DataFrame:
        """The CUDA devices that the program could use: device, name, bytes (of memory), uuid, pci_address."""
        rows = [
            (device_name(one.device_type, one.device_index), one.name, one.bytes, one.uuid, one.pci_address)
            for one in self._reader.devices()
        ]
        columns = ["device", "name", "bytes", "uuid", "pci_address"]
        return pd.DataFrame(rows, columns=columns) if rows else no_rows(columns)

    @functools.cached_property
    def threads(self) -> pd.DataFrame:
        """The threads that had events: thread (as in events), native_id, name (Python's if it has one), autograd_id."""
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
        return pd.DataFrame(rows) if rows else no_rows(("thread", "native_id", "name", "autograd_id"))

    # Positions

    def steps(self, *, device: str | None = None) -> pd.DataFrame:
        """The steps that ended: step, seq and time_ns of the end, live_bytes then (requested, on `device`, default all
        together)."""
        device = self.named_device(device)
        wanted = [index for index, name in enumerate(self.replay.devices) if device in (None, name)]
        return self.positions.steps(wanted)

    def marks(self) -> pd.DataFrame:
        """The marks and regions: name, kind (mark, region_begin, region_end), seq, time_ns."""
        return self.positions.marks()

    @functools.cached_property
    def positions(self) -> PositionTable:
        """The steps, marks and regions, and which step an event belongs to."""

        def value(event: _replay.PositionEvent) -> int | str:
            return event.value if event.kind == STEP else self._reader.string(event.value)

        found = self.replay.positions
        return PositionTable([(one.kind, one.seq, one.time_ns, value(one), one.live_bytes) for one in found])

    def first_event_after(self, at: Position, device: str | None = None) -> int:
        """The number of the first event after a position: the state at the position is the one before this event.

        at, device: as in `live`. Raises PositionError for a position, TraceError for a device that the trace does not
        have.
        """
        device = self.named_device(device)
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
        """The number of the first event after a time (nanoseconds since 1970-01-01 UTC)."""
        return min(self.replay.sequence_after(time_ns), self.end_seq)

    def time_ns(self, at: Position, *, device: str | None = None) -> int:
        """The time of a position: nanoseconds since 1970-01-01 UTC. at, device: as in `live`."""
        if at == "end":
            return self.end_ns
        return self.replay.time_before(self.first_event_after(at, device)) or self.begin_ns

    def range(
        self, since: Position | None = None, until: Position | None = None, *, device: str | None = None
    ) -> Range:
        """The event numbers of a range: after `since` (default: from the beginning), up to and including `until`
        (default: to the end).

        since, until, device: as `at` and `device` of `live`. Raises PositionError if nothing happened in between.
        """
        within = self._range(since, until, device)
        if next(self.iter_events(1, since=within.since, until=within.until, columns=("seq",)), None) is None:
            begin, end = "the beginning" if since is None else since, "the end" if until is None else until
            raise PositionError(f"nothing happened between {begin} and {end}: the first must come before the second")
        return within

    def range_of(self, region: Region) -> Range:
        """The events of a region, from after its beginning up to and including its end."""
        return Range(region.begin_seq + 1, self.end_seq if region.end_seq is None else region.end_seq + 1)

    def _range(self, since: Position | None, until: Position | None, device: str | None = None) -> Range:
        first = 0 if since is None else self.first_event_after(since, device)
        return Range(first, self.end_seq if until is None else self.first_event_after(until, device))


def _without_births(blocks: pd.DataFrame, births: Sequence[str]) -> pd.DataFrame:
    """The blocks with <NA> in these columns where they are older than the recording, and without the column that says
    so."""
    is_older = blocks.pop("older").to_numpy(bool)
    return blocks.assign(**{name: blocks[name].astype("Int64").mask(is_older) for name in births})


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
