"""A trace as recorded: file, events, stacks, positions and replay. Numpy columns, no DataFrames."""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from .. import _replay
from ..errors import CompactedError, PositionError, TraceError, UserPathError
from .integrity import Integrity
from .json_text import json_object
from .locations import Locations
from .names import KINDS, STEP, counted, device_name, kind_name, named_device
from .other_files import explain_other_file
from .positions import PEAKS, Position, PositionEvent, PositionTable, Range, Region, time_of
from .replay import MAXIMA, GroupTimeline, Replay
from .sites import Frame, StackIndex, group_stacks
from .source_code import UserCode, packages_to_open, working_directory_of
from .table import Table, maxima, sums
from .timeline import MEASURED, device_timeline, driver_samples, intervals

KEPT_WHEN_COMPACTED = frozenset({"oom", "config"})
FREES = ("free_requested", "free_completed")
_CHUNK = 50_000
"""Events per read."""

Progress = Callable[[float], None]


@runtime_checkable
class PassProgress(Protocol):
    """A `Progress` that is also called at the begin and end of each pass over the trace."""

    def __call__(self, share: float) -> None: ...

    def begin_pass(self, name: str) -> None:
        """Begin a pass, such as "reading run.alloctrace" or "replaying run.alloctrace"."""

    def end_pass(self) -> None: ...


@dataclass(frozen=True, eq=False)
class Held:
    """Memory held by one variable of the program, from an object scan."""

    event: int
    """Number of the next event at the time of the scan."""
    holder: str
    """Description of the variable: "Cache.items, global of train.py"."""
    path: str
    """Referrer path to one of the blocks: "trainer.predictions[...]"."""
    filename: str
    """File of the function that has the variable, or of the global variable; "" if neither."""
    line: int
    """Current line of that function; 0 for a global variable."""
    count: int
    bytes: int
    """Requested bytes."""
    addresses: npt.NDArray[np.int64]
    """Addresses of some of the held blocks; none of numpy arrays."""
    is_garbage: bool
    """True for an uncollected reference cycle that no variable of the program refers to."""
    containers: list[dict[str, Any]]
    """Type, length, size, bound and nones of the containers on the path, outermost first. Empty in older traces."""
    nodes: int
    """Number of autograd nodes that the variable keeps alive. A node counts for one variable, like a block."""
    has_all_nodes: bool
    """False if there may be more nodes: the scan ran out of time or could not read all graphs; in older traces."""
    foreign_bytes: int
    """Those of `bytes` that no allocator of torch provided: all, if the blocks are numpy arrays. 0 in older traces."""
    name: str
    """The variable alone: "trainer.predictions"; "" in older traces."""
    scope: str
    """Scope of the variable: "global", "local", "class attribute"; "" if no variable leads to the blocks, and in older
    traces."""
    function: str
    """Function of a local variable; "" for other scopes."""
    through: str
    """References from the variable to the blocks: see `Chain.through`."""
    store: tuple[str, str, str, int]
    """Line of user code that stores into the holder, as kind, file, function and line: see `objects.stores`; "" and 0
    if unknown, and in older traces."""
    tensor_bytes: int
    """Those of `bytes` that are elements of the tensors: fewer if they are views. 0 if unknown, and in older traces."""
    back_reference: str
    """Attribute through which an object on the path is in a reference cycle: "Node.parent"; "" if none was found,
    and in older traces."""
    dtype: str
    """Data type of all the tensors: "float64"; "" if they have several, and in older traces."""


@dataclass(frozen=True)
class FinalScan:
    """The object scan at the end of the recording."""

    result: str
    """"complete"; "truncated" (out of time, or too many objects); "graphs in use" (other threads may have been changing
    graphs); "failed"; "unsupported" (in this Python); "unknown" in older traces."""
    event: int
    """Number of the next event at the time of the scan; -1 if it did not run, and in older traces."""
    objects: int
    """Number of visited objects; 0 if unknown."""
    unlisted: int
    """Number of blocks that Python objects held, but that are in no `Held` of the scan."""

    @classmethod
    def from_ending(cls, ending: dict[str, Any]) -> FinalScan | None:
        """Return the final scan, or None if the recording had no end in Python, as when the program was killed."""
        scan = ending.get("final_scan")
        # A corrupt trace may contain any value.
        if isinstance(scan, dict):
            numbers = [scan.get(name) for name in ("event", "objects", "unlisted")]
            event, objects, unlisted = (number if isinstance(number, int) else -1 for number in numbers)
            return cls(str(scan.get("result")), event, max(objects, 0), max(unlisted, 0))
        if ending.get("last_look") == "cut":  # until format 4 without "final_scan"
            return cls("truncated", -1, 0, 0)
        return cls("unknown", -1, 0, 0) if ending.get("reason") in ("disable", "exit") else None


def open_reader(path: str, spool: bytes, progress: Progress | None) -> _replay.TraceReader:
    """Open a trace. `spool` is b"" if the spool is next to the trace. Raises TraceError for other files."""
    with explain_other_file(path):
        return _replay.TraceReader(os.fsencode(path), spool, progress)


class RecordedTrace:
    """A trace opened for reading by the analyses. The public interface is `pytorch_alloctrace.Trace`."""

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
        if spool is not None and not os.path.exists(spool):
            raise TraceError(f"there is no spool {os.fspath(spool)!r}: give the spool file of this trace")
        with self._pass("reading"):
            self.reader = open_reader(self.path, os.fsencode(spool) if spool else b"", progress)
        self.header: dict[str, Any] = json_object(self.reader.header_json)
        self.ending: dict[str, Any] = json_object(self.reader.end_json)
        """How the recording ended; empty if the trace has no end."""
        self.final_scan = FinalScan.from_ending(self.ending)
        self.integrity = Integrity.from_reader(self.reader.integrity, self.path, self.header, self.ending)
        self.user_paths = tuple(user_paths)
        self._code = self._read_user_code()

    def __repr__(self) -> str:
        return f"<Trace {self.path}: {counted(self.integrity.events, 'event')}, {self.integrity.state}>"

    def _read_user_code(self) -> UserCode:
        code = UserCode.of_header(self.header, self.user_paths)
        if self.user_paths:
            files = self.reader.stack_table()["filename"]
            names = [self.reader.string(int(file)) for file in np.unique(files)]
            if unmatched := code.unmatched(names):
                packages = ", ".join(packages_to_open(names)) or "none but torch"
                raise UserPathError(
                    f"no file of the trace is in {unmatched[0]!r}: name a file, a folder or a package "
                    f"(installed packages in the trace: {packages})",
                    tuple(unmatched),
                )
        return code

    # The file

    @property
    def lacks_beginning(self) -> bool:
        """True if the trace is converted from a snapshot whose history begins when memory was in use."""
        return self.ending.get("reason") == "converted" and self.ending.get("lacks_beginning") is not False

    @property
    def covers_run(self) -> bool:
        """True if no event of the run, or of a recorded part of it, is missing."""
        return self.integrity.is_complete and not self.lacks_beginning

    @property
    def begin_ns(self) -> int:
        return self.reader.begin_ns

    @property
    def end_ns(self) -> int:
        return self.reader.end_ns

    @property
    def end_seq(self) -> int:
        """Number of the last event + 1. Not the count of events: a corrupt trace lacks some numbers."""
        return self.reader.end_seq

    @property
    def file_bytes(self) -> int:
        return self.reader.file_bytes

    @property
    def working_directory(self) -> str:
        return working_directory_of(self.header)

    @functools.cached_property
    def replay(self) -> Replay:
        with self._pass("replaying"):
            run = _replay.Replay(
                self.reader, MEASURED, self.stacks.package_line_numbers, self._progress, self._autograd_nodes_at_begin
            )
            return Replay(self.reader, run, self.locations)

    @property
    def _autograd_nodes_at_begin(self) -> tuple[int, int]:
        # A corrupt header may contain any value, an older header has none.
        match self.header.get("autograd_nodes"):
            case [int(thread), int(nodes)] if min(thread, nodes) >= 0 and max(thread, nodes) < 1 << 63:
                return thread, nodes
        return 0, 0

    def write_compacted(self, out: bytes, until: int, overwrite: bool) -> _replay.CompactedTrace:
        """Write a compacted trace: see `pytorch_alloctrace.compact`. until: the first event that is not compacted."""
        with self._pass("compaction"):
            return _replay.compact_trace(
                self.reader, until, out, overwrite, self._autograd_nodes_at_begin, self._progress
            )

    @contextlib.contextmanager
    def _pass(self, name: str) -> Iterator[None]:
        progress = self._progress
        if isinstance(progress, PassProgress):
            progress.begin_pass(f"{name} {os.path.basename(self.path)}")
        yield
        if isinstance(progress, PassProgress):
            progress.end_pass()

    def is_known_at(self, seq: int) -> bool:
        """Return whether the memory after an event is known. In a compacted part, it is known after few events."""
        return seq + 1 >= self.integrity.compacted_until or seq + 1 in self.replay.compacted_positions

    # Events

    @functools.cached_property
    def locations(self) -> Locations:
        return Locations(self.reader)

    @functools.cached_property
    def node_types(self) -> npt.NDArray[Any]:
        """Full type names of autograd nodes by number; "": no node."""
        return np.array([*self.reader.node_types()] or [""], dtype=object)

    def iter_events(
        self,
        within: Range,
        kinds: Sequence[str] | None = None,
        *,
        chunk: int = _CHUNK,
        with_state: bool = True,
    ) -> Iterator[Table]:
        """Yield the events of a range in tables of at least `chunk` rows; the last may have fewer.

        Columns: seq, time_ns, kind (a number), location, address, requested_bytes, thread, stack_id, forward_stack_id,
        autograd_seq, node_seq, node_thread, node_type (a number). with_state: compute requested_bytes of frees, and
        forward_stack_id, both from earlier events. A compacted trace has only the events after its compacted part; if
        `kinds` are given, also the compacted KEPT_WHEN_COMPACTED. Raises CompactedError if the range begins in the
        compacted part after event 0, unless `kinds` are only these.
        """
        if within.end <= within.first or (kinds is not None and not kinds):
            return
        compacted = self.integrity.compacted_until
        if 0 < within.first < compacted and (kinds is None or not KEPT_WHEN_COMPACTED.issuperset(kinds)):
            raise CompactedError(
                f"the events before {compacted:,} are compacted into sums: "
                f"give a position from event {compacted:,} on, or none"
            )
        kind_numbers = [KINDS.index(kind) for kind in kinds or ()]
        if compacted or (with_state and within.first > 0):
            stream = self.replay.events(within.first, within.end, kind_numbers)  # begins at the nearest checkpoint
        else:
            stream = self.reader.events(within.first, within.end, kind_numbers, with_state)
        while (columns := stream.next(max(chunk, 1))) is not None:
            if len(columns["seq"]):
                yield Table(columns)

    def devices_of(self, events: Table) -> npt.NDArray[Any]:
        """Return the device of each event of `iter_events`; "" for positions."""
        location = events["location"]
        return self.locations.up_to(int(location.max(initial=0))).devices[location]

    @property
    def kind_counts(self) -> dict[str, int]:
        return {kind_name(number): count for number, count in enumerate(self.replay.kind_counts) if count}

    @functools.cached_property
    def failed_allocations(self) -> dict[int, int]:
        """Failed allocations: event number -> stack id of the forward that caused the request of backward, or 0."""
        return {failure.seq: failure.forward_stack for failure in self.replay.failed_allocations}

    def text(self, identifier: int) -> str:
        """Return the text of an id in an event (name of a mark, allocator settings); "" if it was lost."""
        return self.reader.string(int(identifier))

    # Stacks and sites

    @functools.cached_property
    def stacks(self) -> StackIndex:
        options = self.header.get("options")
        # A corrupt header has no options.
        has_modules = bool(options.get("modules")) if isinstance(options, dict) else len(self.reader.modules()) > 0
        return StackIndex(self.reader, self._code, has_modules)

    def frames(self, stack_id: int) -> list[Frame]:
        return self.stacks.frames(int(stack_id))

    def stack_totals(self, at: Position = "end", *, device: str | None = None) -> Table:
        """Return the totals of each stack up to a position. Several devices are added up."""
        device = self.named_device(device)
        until = self.first_event_after(at, device)
        tables = [self.replay.stacks(until, name) for name in ([device] if device else self.replay.devices)]
        if len(tables) == 1:
            return tables[0]
        if not tables:
            return self.replay.stacks(until, "")
        stacks, of_row = np.unique(np.concatenate([table["stack_id"] for table in tables]), return_inverse=True)
        columns = {"stack_id": stacks}
        for name in tables[0].columns:
            if name != "stack_id":
                values = np.concatenate([table[name] for table in tables])
                columns[name] = (maxima if name in MAXIMA else sums)(of_row, values, len(stacks))
        return Table(columns)

    def sites(self, at: Position = "end", *, device: str | None = None, by: str = "line") -> Table:
        """Return SITE_TOTALS up to a position, the most live bytes first."""
        return group_stacks(self.stacks, self.stack_totals(at, device=device), by)

    # Devices

    @functools.cached_property
    def devices(self) -> list[str]:
        """Devices with allocations, also failed ones, the device with the highest peak first."""
        names, failures = self.replay.used_devices, [*self.failed_allocations]
        if failures and len(names) < len(self.replay.devices):  # the first allocation of a device may have failed
            failed: set[str] = set()
            for events in self.iter_events(Range(failures[0], failures[-1] + 1), ["oom"], with_state=False):
                failed.update(self.devices_of(events).tolist())
            names = [name for name in self.replay.devices if name in names or name in failed]
        return sorted(names, key=lambda name: -self._peak_allocated(name))

    @functools.cached_property
    def known_devices(self) -> list[str]:
        """`devices`, then devices without allocations: visible, or reported by the driver."""
        names = [*self.devices, *self.replay.devices, *self._samples["device"], *self._visible_bytes]
        return [*dict.fromkeys(names)]

    def named_device(self, device: str | None) -> str | None:
        """Return a device as in `known_devices`. Raises TraceError if it is missing, or several match "cuda"."""
        return None if device is None else named_device(device, self.known_devices)

    def _peak_allocated(self, device: str) -> int:
        peak = self.replay.peak("allocated", device)
        return peak.bytes if peak else 0

    @functools.cached_property
    def _visible_bytes(self) -> dict[str, int]:
        """Memory in bytes of each CUDA device visible to the program."""
        return {device_name(gpu.device_type, gpu.device_index): gpu.bytes for gpu in self.reader.devices()}

    @functools.cached_property
    def device_names(self) -> dict[str, str]:
        """Name that the driver gives each CUDA device visible to the program."""
        return {device_name(gpu.device_type, gpu.device_index): gpu.name for gpu in self.reader.devices()}

    @functools.cached_property
    def _samples(self) -> Table:
        return driver_samples(self.replay.samples())

    def driver_samples(self, device: str | None = None) -> Table:
        """Return the driver's samples (`Trace.driver_memory`) of a device as in `known_devices`, or of all."""
        return self._samples if device is None else self._samples.take(self._samples["device"] == device)

    def device_bytes(self, device: str) -> int | None:
        """Return the total memory of a device in bytes; of the machine for "cpu"; None if unknown.

        For CUDA it is what torch reports as total (`torch.cuda.get_device_properties`), else the driver's total, which
        may include memory that CUDA programs cannot get.
        """
        totals = np.ma.compressed(self.driver_samples(device)["total_bytes"])
        return self._visible_bytes.get(device, int(totals.max()) if len(totals) else None)

    def timeline(self, points: int, device: str) -> Table:
        borders, ends = intervals(self.begin_ns, self.end_ns, points)
        return device_timeline(self.replay, self.driver_samples(device), device, borders, ends)

    def role_timelines(self, points: int) -> dict[str, dict[str, npt.NDArray[np.int64]]]:
        """Return the requested bytes at the end of each measured interval, by device and role. Takes another pass."""
        with self._pass("replaying"):
            return self.replay.role_timelines(points, self.begin_ns, self.end_ns, self._progress)

    def group_timelines(
        self,
        points: int,
        begin_ns: int,
        end_ns: int,
        site_of_stack: Mapping[str, npt.NDArray[np.integer[Any]]],
        site_count: int,
    ) -> dict[str, GroupTimeline]:
        """Return `Replay.group_timelines`."""
        with self._pass("replaying"):
            return self.replay.group_timelines(points, begin_ns, end_ns, site_of_stack, site_count, self._progress)

    def predicted(
        self, simulations: Sequence[_replay.SimulationOptions], *, device: str, growing: Sequence[int] = ()
    ) -> _replay.Prediction:
        """Run simulations of torch's allocator (`analysis.what_if`) over a device's requests, in one pass.

        growing: events of the requests that a simulation's `batch_factor` scales, ascending.
        """
        memory = self.replay.devices[device]
        return _replay.predict(
            self.reader, memory.device_type, memory.device_index, self.torch_release, list(simulations), growing
        )

    def block_names(self, addresses: Sequence[int], alloc_seqs: Sequence[int], until: int) -> list[str]:
        """Return the last name that a look-up or an object scan gave each block before event `until`, or ""."""
        return [
            self.text(number) if number else "" for number in self._find_named(addresses, alloc_seqs, until, "name")
        ]

    def block_modules(self, addresses: Sequence[int], alloc_seqs: Sequence[int]) -> list[int]:
        """Return the id of the module that has each parameter, buffer or state of an optimizer; 0 if unknown."""
        return self._find_named(addresses, alloc_seqs, self.end_seq, "module")

    def _find_named(self, addresses: Sequence[int], alloc_seqs: Sequence[int], until: int, column: str) -> list[int]:
        """Return the last value of a column of `Replay.named_blocks` that is not 0 for each block, else 0."""
        namings = self.replay.named_blocks()
        namings = namings.take(namings["seq"] < until)
        blocks = zip(namings["address"].tolist(), namings["alloc_seq"].tolist(), strict=True)
        # A later look-up by an optimizer, without name and module, keeps those from an object scan.
        values = {block: value for block, value in zip(blocks, namings[column].tolist(), strict=True) if value}
        return [values.get(block, 0) for block in zip(addresses, alloc_seqs, strict=True)]

    @property
    def torch_release(self) -> tuple[int, int]:
        """Release of the program's torch; without one in the header, 2.11, whose rules the replay models best."""
        release = re.match(r"(\d+)\.(\d+)", str(self.header.get("torch")))
        return (int(release[1]), int(release[2])) if release else (2, 11)

    @functools.cached_property
    def held(self) -> tuple[Held, ...]:
        return tuple(Held(*fields) for fields in self.reader.holders())

    # Positions

    def steps(self, device: str | None = None) -> Table:
        device = self.named_device(device)
        devices = [index for index, name in enumerate(self.replay.devices) if device in (None, name)]
        return self.positions.steps(devices)

    @functools.cached_property
    def positions(self) -> PositionTable:
        return PositionTable.of_events(
            [
                (event.kind, event.seq, event.time_ns, event.value, event.is_explicit, event.ordinal)
                for event in self.replay.positions
            ],
            self.reader.string,
            self.replay.bytes_at_positions,
        )

    @functools.cached_property
    def positions_without_levels(self) -> PositionTable:
        """`positions` without live bytes, which need a replay."""
        if "replay" in vars(self) or self.integrity.compacted_until:
            return self.positions
        names = ("kind", "seq", "time_ns", "requested_bytes", "address")
        rows: list[PositionEvent] = []
        counts = [0, 0]  # of inferred steps, of steps ended by the program
        stream = self.reader.events(0, self.end_seq, [STEP, *range(STEP + 1, STEP + 4)], False)
        while (columns := stream.next(_CHUNK)) is not None:
            for kind, seq, time_ns, value, explicit in zip(*(columns[name].tolist() for name in names), strict=True):
                rows.append((kind, seq, time_ns, value, explicit != 0, counts[explicit != 0]))
                counts[explicit != 0] += kind == STEP
        return PositionTable.of_events(rows, self.reader.string)

    def first_event_after(self, at: Position, device: str | None = None) -> int:
        """Return the first event after a position; the state at the position is the state before that event.

        at: as in `Trace.live`; -1 is before all events. Raises PositionError, and TraceError for a missing device.
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
            # A datetime has a resolution of 1 us.
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
        """Return the number of the first event after a time (nanoseconds since 1970-01-01 UTC)."""
        return min(self.replay.sequence_after(time_ns), self.end_seq)

    def time_ns(self, at: Position, *, device: str | None = None) -> int:
        """Return the time of a position in nanoseconds since 1970-01-01 UTC. at, device: as in `Trace.live`."""
        if at == "end":
            return self.end_ns
        return self.replay.time_before(self.first_event_after(at, device)) or self.begin_ns

    def range(
        self, since: Position | None = None, until: Position | None = None, *, device: str | None = None
    ) -> Range:
        """Return the events after `since`, up to and including `until`. Raises PositionError if there are none."""
        within = self.unchecked_range(since, until, device)
        if next(self.iter_events(within, chunk=1, with_state=False), None) is None:
            begin, end = "the beginning" if since is None else since, "the end" if until is None else until
            raise PositionError(f"nothing happened between {begin} and {end}: the first must come before the second")
        return within

    def range_of(self, region: Region) -> Range:
        return Range(region.begin_seq + 1, self.end_seq if region.end_seq is None else region.end_seq + 1)

    def unchecked_range(self, since: Position | None, until: Position | None, device: str | None = None) -> Range:
        """Return a range as `range` does, but allow an empty range."""
        first = 0 if since is None else self.first_event_after(since, device)
        return Range(first, self.end_seq if until is None else self.first_event_after(until, device))
