"""A trace as it was recorded: events, stacks and sites, the state at a position, sums over time."""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import pandas as pd

from .. import _replay
from ..errors import FoldedError, PositionError, TraceError
from .driver import driver_memory
from .dtypes import TEXT, no_rows
from .event_table import AUTOGRAD_COLUMNS, EVENT_COLUMNS, EventTables
from .gathered import Gathered
from .head_start import begun
from .held import Held
from .integrity import Integrity
from .json_text import json_object
from .kinds import KINDS, STEP, kind_name, named_device
from .opened import MEASURED, Opened
from .positions import PEAKS, Position, PositionEvent, PositionTable, Range, Region, time_of
from .process import device_table, thread_table
from .replay import Replay
from .roles import ROLES_SHOWN
from .sites import Frame, StackIndex, group_stacks
from .timeline import make_timeline
from .words import counted

STACK_COLUMNS = (*("stack_id", "allocations", "bytes", "live_bytes", "live_blocks", "largest", "live_backward_bytes"),)
"""The columns of `Trace.stack_totals`."""

KEPT_IN_FOLDS = frozenset({"oom", "config"})
"""Kinds of events that a folded trace keeps."""
_MOST_KEPT = 1024
"""How many of them at most: see csrc/core/replay/run_evidence.h."""

_CHUNK = 50_000
"""Rows of the parts that the table of all events is made of."""
_LARGE = 2_000_000
"""Events, of which a table takes more memory than it takes to read them."""
_FROM_STATE = ("nbytes", "forward_stack_id")
"""Columns of events that follow from the events before."""

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
        self._begun = begun(self.path) if spool is None and not user_paths else None
        """The pass that the command line has begun already."""
        with self._pass("reading"):
            opened = None if self._begun is None else self._begun.opened(progress)
            self._opened = opened or Opened(self.path, os.fsencode(spool) if spool else b"", user_paths, progress)
        self._reader = self._opened.reader
        self.header: dict[str, Any] = self._opened.header
        """The program, its versions, folders and options, as of enable(); empty if damage took it."""
        self.integrity = Integrity.from_reader(self._reader.integrity)
        """What the trace has and what is missing from it."""
        self.ending: dict[str, Any] = json_object(self._reader.end_json)
        """How the recording ended, its "reason": "disable", "exit", "SIGTERM" or, where `finish` ended the trace,
        "killed"; "converted" of one that `convert` made. Empty as long as the trace has no end."""
        self.user_paths = tuple(user_paths)
        """Files, folders and packages whose code counts as the user's own although it is installed."""

    def __repr__(self) -> str:
        return f"<Trace {self.path}: {counted(self.integrity.events, 'event')}, {self.integrity.state}>"

    # The file

    @property
    def begin_ns(self) -> int:
        """When the recording began: nanoseconds since 1970-01-01 UTC."""
        return self._reader.begin_ns

    @property
    def end_ns(self) -> int:
        """When the last known block of the file was written or, of a killed recording, the last event in its spool
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
        with self._pass("replaying"):
            begun, self._begun = self._begun, None
            run = None if begun is None else begun.replayed(self._progress)
            return Replay(self._reader, run or self._opened.replayed(self._progress), self._event_tables.locations)

    def write_folded(self, out: bytes, until: int, overwrite: bool) -> _replay.FoldedTrace:
        """See `pytorch_alloctrace.fold`. until: the first event that stays."""
        with self._pass("folding"):
            return _replay.fold_trace(self._reader, until, out, overwrite, self._opened.nodes_at_begin, self._progress)

    @contextlib.contextmanager
    def _pass(self, name: str) -> Iterator[None]:
        progress = self._progress
        if isinstance(progress, PassProgress):
            progress.begin_pass(f"{name} {os.path.basename(self.path)}")
        yield
        if isinstance(progress, PassProgress):
            progress.end_pass()

    def is_known_at(self, seq: int) -> bool:
        """Whether what was in memory after an event is known: not at most moments of a folded part."""
        return seq + 1 >= self.integrity.folded_until or seq + 1 in self.replay.folded_moments

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

        A folded trace has the events after its fold; where kinds are given, the refused requests ("oom") and settings
        ("config") of what is folded too.

        Columns: seq (the number of the event), time_ns (since 1970-01-01 UTC), kind (torch's own words; a
        "free_completed" without a "free_requested" before it is both), device
        ("cpu", "cuda:0"; "" for positions), address, nbytes (requested; of a free those of its alloc, 0 if unknown; of
        a step its number), stream, pool, thread (see `threads`), stack_id (for `frames`; 0: none), step (<NA> in a
        trace without steps). Kind, device, stream and pool are categories: a row takes 49 bytes.

        Raises PositionError for a position that the trace does not have, FoldedError for one in the folded part,
        ValueError for an unknown column or kind.
        """
        wanted = EVENT_COLUMNS if columns is None else tuple(columns)
        groups = [wanted]
        if self.integrity.events > _LARGE:
            # What only the replay's state knows comes first: the state is gone before the rest takes its memory.
            parts = [tuple(name for name in wanted if (name in _FROM_STATE) == is_first) for is_first in (True, False)]
            groups = [part for part in parts if part] or groups
        most = self.integrity.events + (_MOST_KEPT if self.integrity.folded_until else 0)
        found: dict[str, pd.Series[Any]] = {}
        for group in groups:
            gathered = Gathered(most)
            for part in self.iter_events(_CHUNK, since=since, until=until, columns=group, kinds=kinds):
                gathered.add(part)
            table = gathered.table() if gathered.rows else self._event_tables.empty(group, self._step_of)
            found |= {str(name): table[name] for name in table}
        return pd.DataFrame({name: found[name] for name in wanted}, copy=False)

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
        folded = self.integrity.folded_until
        if 0 < within.first < folded and (kinds is None or not KEPT_IN_FOLDS.issuperset(kinds)):
            raise FoldedError(
                f"the events before {folded:,} are folded into sums: give a position from event {folded:,} on, or none"
            )
        numbers = [KINDS.index(kind) for kind in kinds or ()]
        # The sizes of frees, and what in forward caused backward, follow from the events before: the replay knows them.
        has_frees = kinds is None or not {"free_requested", "free_completed"}.isdisjoint(kinds)
        with_state = "forward_stack_id" in wanted or ("nbytes" in wanted and has_frees)
        if folded or (with_state and within.first > 0):
            stream = self.replay.events(within.first, within.end, numbers)  # begins at the nearest checkpoint
        else:
            stream = self._reader.events(within.first, within.end, numbers, with_state)
        while (raw := stream.next(max(chunk, 1))) is not None:
            if len(raw["seq"]):
                yield self._event_tables.table(raw, wanted, self._step_of)

    @functools.cached_property
    def _event_tables(self) -> EventTables:
        return EventTables(self._reader)

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

    @property
    def stacks(self) -> StackIndex:
        """The stacks, and the site of each."""
        return self._opened.stacks

    def frames(self, stack_id: int) -> list[Frame]:
        """The frames of a stack, innermost first; none for stack 0, which means that no stack is known.

        Raises IndexError for a stack that the trace does not have.
        """
        return self.stacks.frames(int(stack_id))

    def sites(self, at: Position = "end", *, device: str | None = None, by: str = "line") -> pd.DataFrame:
        """What each site had allocated up to a position, the most live bytes first. Bytes are requested bytes.

        at, device: as in `live`. by: "line", "function", "file" of the site, "stack", or "module": the innermost
        instance of torch.nn.Module that was being called, `site` being its name ("GPT.h.3.attn"); "module:2": the first
        two parts of that name. Raises TraceError for "module" where the trace has no modules.

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
        birth_ns, step (of birth); role (of `pytorch_alloctrace.reading.roles`: what the block is for in its whole
        life), role_is_exact (False: inferred, see docs/roles.md); site, filename, line, function (as in `sites`).
        birth_seq, birth_ns and step are <NA> for a block that was there before the recording.

        Raises PositionError for a position, TraceError for a device that the trace does not have.
        """
        blocks = self.replay.live(self.first_event_after(at, device), self.named_device(device))
        del blocks["allocated"]  # `blocks` has it
        blocks["node_type"] = self._event_tables.node_types(blocks["node_type"].to_numpy())
        blocks["step"] = self.positions.step_of(blocks["birth_seq"].to_numpy())
        blocks = blocks.assign(**self.stacks.site_columns(blocks["stack_id"].to_numpy()))
        return _without_births(blocks, ("birth_seq", "birth_ns", "step"))

    def blocks(self, at: Position = "end", *, device: str | None = None) -> pd.DataFrame:
        """The blocks of the allocator at a position, including the free ones, by address.

        at, device: as in `live`. Columns: device, segment (its address; 0 if the allocator reports none), address,
        nbytes (after rounding), requested_size, state ("active_allocated", "active_pending_free", "inactive"), as torch
        has them. For blocks that are not free also: stack_id, backward, node_type, thread, birth_seq, birth_ns, age_ns,
        step, role, role_is_exact, site, filename, line, function, as in `live`.
        """
        table = blocks_by_stack(self, at, device)
        table["node_type"] = self._event_tables.node_types(table["node_type"].to_numpy())
        is_free = (table["state"] == "inactive").to_numpy(bool)
        return table.assign(**self.stacks.site_columns(table["stack_id"].to_numpy(), unknown=is_free))

    def named_blocks(self) -> pd.DataFrame:
        """The blocks of which the program said what they are: its optimizers, or `observe`. A row each time, in order.

        Columns: seq (of the event that said so), device, address, nbytes (requested), birth_seq (<NA> if it is older
        than the recording), stack_id, name (such as "layers.0.weight"; "" if the program did not say), role (parameter,
        buffer, gradient or optimizer state).
        """
        table = self.replay.named_blocks()
        texts = {number: self._reader.string(int(number)) for number in table["name"].unique()}
        table["name"] = pd.Series([texts[number] for number in table["name"]], dtype=TEXT)
        older = pd.Series(table.pop("older").to_numpy(bool))
        return table.assign(birth_seq=table["birth_seq"].astype("Int64").mask(older))

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

    def role_timeline(self, points: int = 2000, *, device: str | None = None) -> pd.DataFrame:
        """How much of each device's memory was for what over time: requested bytes at the end of each of `points`
        intervals of equal length. It takes another pass over the trace.

        Columns: device, time_ns (when the interval begins), and one for each role of
        `pytorch_alloctrace.reading.roles.ROLES`; <NA> in a folded part. Raises ValueError for less than one point.
        """
        borders, ends = self._intervals(points)
        device = self.named_device(device)
        with self._pass("replaying"):
            found = self.replay.role_timelines(int(ends[-1]), self._progress)
        last = ends[1:] - 1
        tables = [
            pd.DataFrame({"device": name, "time_ns": borders[:-1], **{role: columns[role][last] for role in columns}})
            for name, columns in found.items()
            if device in (None, name)
        ]
        if self.integrity.folded_until:
            for table in tables:
                is_folded = table["time_ns"] < self.integrity.folded_until_ns
                for role in ROLES_SHOWN:
                    table[role] = table[role].astype("Int64").mask(is_folded)
        return pd.concat(tables, ignore_index=True) if tables else no_rows(("device", "time_ns", *ROLES_SHOWN))

    def _intervals(self, points: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The borders of `points` intervals, in ns, and as numbers of borders of `MEASURED` ones, or of `points` if
        that is more."""
        if points < 1:
            raise ValueError(f"points={points}: a timeline has at least one")
        finest = max(points, MEASURED)
        ends = np.linspace(0, finest, points + 1).round().astype(np.int64)
        # Not between the times themselves: a double has 256 ns there.
        times = np.linspace(0, max(self.end_ns - self.begin_ns, 1), finest + 1).astype(np.int64)
        return self.begin_ns + times[ends], ends

    def timeline(self, points: int = 2000, *, device: str | None = None) -> pd.DataFrame:
        """The sums of each device's memory over time, in `points` intervals of equal length. In bytes.
        The replay has measured 60,000 intervals: where `points` does not divide that, an interval begins and ends with
        the nearest of them; where `points` is larger, several show what was measured of the same one.

        Columns: device, time_ns (when the interval begins); requested, allocated, active, reserved, releasable,
        stranded, largest_free (at its end; see docs/reading.md), each with _min and _max (within it, so that no peak is
        lost); external_fragmentation (0 to 1, at its end), outside (used outside PyTorch, as the driver reports it, at
        its end), blocks (allocated at its end), seq (the event that reached the most allocated bytes in it). What an
        allocator does not report is <NA>. `Trace.plot_timeline` draws it.
        """
        borders, ends = self._intervals(points)
        first, until = ends[:-1] * MEASURED // ends[-1], -(-ends[1:] * MEASURED // ends[-1])
        table = self.replay.timeline(first, until, self.named_device(device))
        return make_timeline(table, borders, self._driver_memory)

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

    def predicted(self, lanes: Sequence[_replay.LaneOptions], *, device: str) -> _replay.Prediction:
        """What torch's allocator would have done with a device's requests, in each of these lanes; one pass over the
        events. See `pytorch_alloctrace.analysis.what_if`."""
        named = self.named_device(device)
        assert named is not None
        memory = self.replay.devices[named]
        return _replay.predict(self._reader, memory.device_type, memory.device_index, self.torch_release, list(lanes))

    @property
    def torch_release(self) -> tuple[int, int]:
        """Of the torch that the program had; where the header does not say, the one whose rules are best known."""
        found = re.match(r"(\d+)\.(\d+)", str(self.header.get("torch")))
        return (int(found[1]), int(found[2])) if found else (2, 11)

    @functools.cached_property
    def hardware(self) -> pd.DataFrame:
        """The CUDA devices that the program could use: device, name, bytes (of memory), uuid, pci_address."""
        return device_table(self._reader.devices())

    @functools.cached_property
    def held(self) -> tuple[Held, ...]:
        """What the looks of the recorder found to be held by what, in the order in which they were taken."""
        return tuple(Held(*one) for one in self._reader.holders())

    @functools.cached_property
    def threads(self) -> pd.DataFrame:
        """The threads that had events: thread (as in events), native_id, name (Python's if it has one), autograd_id."""
        return thread_table(self._reader.threads())

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
        return PositionTable.of_events(
            [(one.kind, one.seq, one.time_ns, one.value, one.is_said, one.ordinal) for one in self.replay.positions],
            self._reader.string,
            self.replay.bytes_at_positions,
        )

    @functools.cached_property
    def _places(self) -> PositionTable:
        """The same without what was live, which takes a replay to know."""
        if "replay" in vars(self) or self.integrity.folded_until:
            return self.positions
        names = ("kind", "seq", "time_ns", "nbytes", "address")
        rows: list[PositionEvent] = []
        counts = [0, 0]  # of steps, inferred and said
        stream = self._reader.events(0, self.end_seq, [STEP, *range(STEP + 1, STEP + 4)], False)
        while (raw := stream.next(_CHUNK)) is not None:
            for kind, seq, time_ns, value, is_said in zip(*(raw[name].tolist() for name in names), strict=True):
                rows.append((kind, seq, time_ns, value, is_said != 0, counts[is_said != 0]))
                counts[is_said != 0] += kind == STEP
        return PositionTable.of_events(rows, self._reader.string)

    def _step_of(self, seq: npt.NDArray[Any]) -> Any:
        steps = self._places.step_of(seq)
        # In the largest table that there is: half as wide, if all of the trace's steps have room in it.
        return steps.astype("Int32") if self._places.highest_step < 1 << 31 else steps

    def first_event_after(self, at: Position, device: str | None = None) -> int:
        """The number of the first event after a position: the state at the position is the one before this event.

        at, device: as in `live`; -1 is before all events. Raises PositionError or TraceError if the trace lacks it.
        """
        device = self.named_device(device)
        if isinstance(at, (int, np.integer)):
            if not -1 <= at < self.end_seq:
                raise PositionError(f"there is no event {at:,}: the trace has {self.end_seq:,}, from 0 on")
            return int(at) + 1
        if at == "end":
            return self.end_seq
        time_ns = time_of(at, self.begin_ns)
        if time_ns is not None:
            # A datetime has microseconds.
            if not self.begin_ns - 1000 <= time_ns <= self.end_ns + 1000:
                seconds = (self.end_ns - self.begin_ns) // 1000 / 1e6
                raise PositionError(f"{at} is outside the trace, which lasts {seconds:.6f} s")
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


def blocks_by_stack(trace: RecordedTrace, at: Position, device: str | None) -> pd.DataFrame:
    """`RecordedTrace.blocks` without the names of types and sites: for whoever needs them of a few blocks only. They
    take as long as all the rest."""
    table = trace.replay.blocks(trace.first_event_after(at, device), trace.named_device(device))
    is_free = (table["state"] == "inactive").to_numpy(bool)
    table["step"] = trace.positions.step_of(table["birth_seq"].to_numpy(), unknown=is_free)
    return _without_births(table, ("birth_seq", "birth_ns", "age_ns", "step"))


def _without_births(blocks: pd.DataFrame, births: Sequence[str]) -> pd.DataFrame:
    """The blocks with <NA> in these columns where they are older than the recording, and without the column that says
    so."""
    is_older = blocks.pop("older").to_numpy(bool)
    return blocks.assign(**{name: blocks[name].astype("Int64").mask(is_older) for name in births})
