"""A trace, opened for reading: what was in memory at any position, and what the analyses make of it."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from .errors import IncompleteTraceWarning
from .reading import event_tables, tables
from .reading.event_tables import AUTOGRAD_COLUMNS, EVENT_COLUMNS
from .reading.finish import Finished, finish
from .reading.integrity import Integrity
from .reading.positions import Position, Range
from .reading.recorded import Progress, RecordedTrace
from .reading.replay import Verification
from .reading.sites import Frame, StackIndex

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .analysis.free_memory.fragmentation import Fragmentation
    from .analysis.free_memory.oom import OutOfMemory
    from .analysis.leaks.leak_report import LeakReport
    from .analysis.usage.peak import PeakMemory
    from .analysis.usage.tree import Tree
    from .analysis.what_if.fitting import Fit
    from .analysis.what_if.prediction import WhatIf
    from .report.diagnosis import Diagnosis
    from .report.page.report import Report


def load(
    path: str | os.PathLike[str],
    *,
    spool: str | os.PathLike[str] | None = None,
    user_paths: Sequence[str] = (),
    progress: Progress | None = None,
) -> Trace:
    """Opens a trace, whole or damaged, together with the spool of a recording that was killed or still runs.

    spool: where the spool is, if it was moved away from the trace. user_paths: files, folders or packages
    ("transformers") whose code counts as the user's own although it is installed. progress: called now and then with a
    share from 0 to 1.

    Raises TraceError for a file or a spool that is not there, and for a file that is not a trace or is of a newer
    format; UserPathError if no file of the trace is in one of `user_paths`. Damage does not raise: it warns
    (IncompleteTraceWarning), and `Trace.integrity` says what is missing.
    """
    trace = Trace(path, spool=spool, user_paths=user_paths, progress=progress)
    if not trace.integrity.whole:
        warnings.warn(f"{os.fspath(path)} is {trace.integrity}", IncompleteTraceWarning, stacklevel=2)
    return trace


class Trace:
    """A trace, opened for reading by `load`. What it holds besides DataFrames is in `RecordedTrace`."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        spool: str | os.PathLike[str] | None = None,
        user_paths: Sequence[str] = (),
        progress: Progress | None = None,
    ) -> None:
        self._recorded = RecordedTrace(path, spool=spool, user_paths=user_paths, progress=progress)
        self.path = self._recorded.path
        """The trace file."""
        self.header: dict[str, Any] = self._recorded.header
        """The program, its versions, folders and options, as of enable(); empty if damage took it."""
        self.integrity = self._recorded.integrity
        """What the trace has and what is missing from it."""
        self.ending: dict[str, Any] = self._recorded.ending
        """How the recording ended, its "reason": "disable", "exit", "SIGTERM" or, where `finish` ended the trace,
        "killed"; "converted" of one that `convert` made. Empty as long as the trace has no end."""
        self.user_paths = self._recorded.user_paths
        """Files, folders and packages whose code counts as the user's own although it is installed."""

    def __repr__(self) -> str:
        return repr(self._recorded)

    @property
    def begin_ns(self) -> int:
        """When the recording began: nanoseconds since 1970-01-01 UTC."""
        return self._recorded.begin_ns

    @property
    def end_ns(self) -> int:
        """When the last known block of the file was written or, of a killed recording, the last event in its spool
        happened: nanoseconds since 1970-01-01 UTC."""
        return self._recorded.end_ns

    @property
    def end_seq(self) -> int:
        """The number after that of the last event. Not the count of events: a damaged trace lacks numbers."""
        return self._recorded.end_seq

    @property
    def file_bytes(self) -> int:
        """Size of the trace file."""
        return self._recorded.file_bytes

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
        return event_tables.events(self._recorded, since=since, until=until, columns=columns, kinds=kinds)

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
        return event_tables.iter_events(self._recorded, chunk, since=since, until=until, columns=columns, kinds=kinds)

    @property
    def kind_counts(self) -> dict[str, int]:
        """How many events of each kind there are, by kind."""
        return self._recorded.kind_counts

    @property
    def unmatched_frees(self) -> int:
        """Frees of blocks whose alloc is not in the trace: allocated before the recording, or their alloc was lost."""
        return self._recorded.replay.unmatched_frees

    @property
    def missed_frees(self) -> int:
        """Allocs at an address that was live: the free in between was not seen. 0 unless events were lost."""
        return self._recorded.replay.missed_frees

    def text(self, identifier: int) -> str:
        """The text that an event names by number (of a mark, of the allocator's settings); "" if it was lost."""
        return self._recorded.text(identifier)

    @property
    def stacks(self) -> StackIndex:
        """The stacks, and the site of each."""
        return self._recorded.stacks

    def frames(self, stack_id: int) -> list[Frame]:
        """The frames of a stack, innermost first; none for stack 0, which means that no stack is known.

        Raises IndexError for a stack that the trace does not have.
        """
        return self._recorded.frames(stack_id)

    def sites(self, at: Position = "end", *, device: str | None = None, by: str = "line") -> pd.DataFrame:
        """What each site had allocated up to a position, the most live bytes first. Bytes are requested bytes.

        at, device: as in `live`. by: "line", "function", "file" of the site, "stack", or "module": the innermost
        instance of torch.nn.Module that was being called, `site` being its name ("GPT.h.3.attn"); "module:2": the first
        two parts of that name. Raises TraceError for "module" where the trace has no modules.

        Columns: site, filename, line, function, source, user (False: the stack has no frame of user code, and its
        innermost frame stands in), allocations, bytes, live_bytes, live_blocks, largest, live_backward_bytes (see
        `stack_totals`), stack_id (the stack with the most live bytes).
        """
        return tables.sites(self._recorded, at, device=device, by=by)

    def stack_totals(self, at: Position = "end", *, device: str | None = None) -> pd.DataFrame:
        """What each stack had allocated up to a position, one row per stack. Bytes are requested bytes.

        at, device: as in `live`; default all devices. Columns: stack_id, allocations, bytes, live_bytes, live_blocks,
        largest, live_backward_bytes.

        What autograd's threads allocate has no Python stack: where the stack of the forward that caused it is known, it
        is counted with that one (live_backward_bytes: that part of live_bytes). Blocks older than the recording are
        live, but not among its allocations.
        """
        return tables.stack_totals(self._recorded, at, device=device)

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
        return tables.live(self._recorded, at, device=device)

    def blocks(self, at: Position = "end", *, device: str | None = None) -> pd.DataFrame:
        """The blocks of the allocator at a position, including the free ones, by address.

        at, device: as in `live`. Columns: device, segment (its address; 0 if the allocator reports none), address,
        nbytes (after rounding), requested_size, state ("active_allocated", "active_pending_free", "inactive"), as torch
        has them. For blocks that are not free also: stack_id, backward, node_type, thread, birth_seq, birth_ns, age_ns,
        step, role, role_is_exact, site, filename, line, function, as in `live`.
        """
        return tables.blocks(self._recorded, at, device=device)

    def named_blocks(self) -> pd.DataFrame:
        """The blocks of which the program said what they are: its optimizers, or `observe`. A row each time, in order.

        Columns: seq (of the event that said so), device, address, nbytes (requested), birth_seq (<NA> if it is older
        than the recording), stack_id, name (such as "layers.0.weight"; "" if the program did not say), role (parameter,
        buffer, gradient or optimizer state).
        """
        return tables.named_blocks(self._recorded)

    def segments(self, at: Position = "end", *, device: str | None = None) -> pd.DataFrame:
        """The segments of torch's CUDA allocator at a position, as `torch.cuda.memory_snapshot()` lists them.

        at, device: as in `live`. Columns: device, address, total_size, allocated_size, active_size, requested_size,
        stream, segment_type ("small" or "large"), segment_pool_id, is_expandable; sizes in bytes. Allocators that
        report no segments (the CPU's, cudaMallocAsync, pluggable ones) have none.
        """
        return tables.segments(self._recorded, at, device=device)

    @property
    def devices(self) -> list[str]:
        """The devices that have events, the one with the highest peak first."""
        return self._recorded.devices

    def role_timeline(self, points: int = 2000, *, device: str | None = None) -> pd.DataFrame:
        """How much of each device's memory was for what over time: requested bytes at the end of each of `points`
        intervals of equal length. It takes another pass over the trace.

        Columns: device, time_ns (when the interval begins), and one for each role of
        `pytorch_alloctrace.reading.roles.ROLES`; <NA> in a folded part. Raises ValueError for less than one point.
        """
        return tables.role_timeline(self._recorded, points, device=device)

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
        return tables.timeline(self._recorded, points, device=device)

    def driver_memory(self, *, device: str | None = None) -> pd.DataFrame:
        """What the driver reported of each device's memory, and the system of this process's: a row for each change,
        sampled ten times a second.

        Columns, in bytes: seq, time_ns, device, used (by everyone; for "cpu" the resident memory of this process),
        total (of the device, of the machine), by_this_process and by_others (in most containers the driver does not
        report them), reserved (torch's segments then), outside (used - reserved: the CUDA context, libraries, other
        processes). What is not known is <NA>.
        """
        return tables.driver_memory(self._recorded, device=device)

    @functools.cached_property
    def hardware(self) -> pd.DataFrame:
        """The CUDA devices that the program could use: device, name, bytes (of memory), uuid, pci_address."""
        return tables.hardware(self._recorded)

    @functools.cached_property
    def threads(self) -> pd.DataFrame:
        """The threads that had events: thread (as in events), native_id, name (Python's if it has one), autograd_id."""
        return tables.threads(self._recorded)

    def steps(self, *, device: str | None = None) -> pd.DataFrame:
        """The steps that ended: step, seq and time_ns of the end, live_bytes then (requested, on `device`, default all
        together)."""
        return tables.steps(self._recorded, device=device)

    def marks(self) -> pd.DataFrame:
        """The marks and regions: name, kind (mark, region_begin, region_end), seq, time_ns."""
        return tables.marks(self._recorded)

    def time_ns(self, at: Position, *, device: str | None = None) -> int:
        """The time of a position: nanoseconds since 1970-01-01 UTC. at, device: as in `live`."""
        return self._recorded.time_ns(at, device=device)

    def peak(
        self,
        measure: str = "allocated",
        *,
        device: str | None = None,
        since: Position | None = None,
        until: Position | None = None,
    ) -> PeakMemory:
        """The most bytes that a device had "allocated" or "reserved" at once: how many, at which event, and when.

        device: default the one with the highest peak. since, until: only in this range (positions, as `at` of `live`);
        the state that it begins with counts. What the peak consisted of is worked out when it is first asked for.

        Raises PositionError if there is no peak or no such range, TraceError for a device that the trace does not have,
        ValueError for another measure.
        """
        from .analysis.usage.peak import peak_between, peak_memory

        if since is None and until is None:
            return peak_memory(self._recorded, measure, device=device)
        return peak_between(self._recorded, self._recorded.range(since, until, device=device), measure, device=device)

    def regions(self, *, peaks: bool = False, device: str | None = None) -> pd.DataFrame:
        """The regions of the program, one row each, by their beginnings.

        peaks: also peak_bytes, the most bytes that `device` (default the one with the highest peak) had allocated
        within each, <NA> if nothing was; each costs some states of the replay. Columns: name, number (from 1, among
        those of the same name), begin_seq, begin_ns, end_seq, end_ns (<NA> if the trace ends before the region does),
        step (in which it begins; <NA> without steps). `since=begin_seq, until=end_seq` is its range.
        """
        from .analysis.usage.regions import region_table

        return region_table(self._recorded, peaks=peaks, device=self._recorded.named_device(device))

    def composition(self, at: Position = "end", *, device: str | None = None, by: str = "line") -> pd.DataFrame:
        """What the live memory consisted of at a position, the most bytes first. Bytes are requested bytes.

        at, device: as in `live`. by: "line", "stack", "function", "file" or "module" (as in `sites`, with its columns:
        site, filename, line, function, source, user, stack_id); "role" (role; exact_bytes, the part of bytes whose role
        was recorded, not inferred: see docs/roles.md); "age" (age, from_age, to_age (not included), unit: "step" or, in
        a trace without steps, "second"; youngest first); or "phase" (forward, backward, optimizer, other: see
        `pytorch_alloctrace.analysis.usage.phases`). All have bytes, share (0 to 1), blocks, largest, backward_bytes
        (the part of bytes that autograd's threads allocated).
        """
        from .analysis.usage.composition import composition_at

        return composition_at(self._recorded, at, device=device, by=by).to_frame()

    def tree(self, at: Position = "end", *, device: str | None = None, all_frames: bool = False) -> Tree:
        """What the live memory consisted of at a position, by call: from the outermost call of the user's code down,
        each with all that it called. In requested bytes.

        at, device: as in `live`. all_frames: also the calls inside libraries. `Tree.calls` are the outermost calls,
        each with its own `calls`; `Tree.table` is a DataFrame with a row a call.
        """
        from .analysis.usage.tree import tree_at

        return tree_at(self._recorded, at, device=device, all_frames=all_frames)

    def annotate(
        self,
        filename: str,
        *,
        device: str | None = None,
        since: Position | None = None,
        until: Position | None = None,
    ) -> pd.DataFrame:
        """What each line of a source file allocated, including what it called; a row a line. In requested bytes.

        filename: as in the trace, or the end of it ("train.py"). device: default the one with the highest peak. since,
        until: positions, as `at` of `live`; default the whole run.

        Columns: line, source, allocations and bytes (all that were made), peak_bytes (live at the peak of the device,
        in the range if there is one), net_bytes (live at the end; in a range by how much that changed). If the file is
        here and unchanged, it has all its lines, otherwise only those that the trace knows.

        Raises TraceError for a file that the trace does not have, PositionError if nothing was allocated.
        """
        from .analysis.usage.annotation import annotate

        return annotate(self._recorded, filename, [(since, until)], device=device).table

    def diff(self, a: Position, b: Position, *, device: str | None = None, by: str = "line") -> pd.DataFrame:
        """How the live memory changed from position `a` to position `b`, the largest change first. In requested bytes.

        device, by: as in `composition`. Columns: those that name the site, role, age or phase; bytes_before,
        bytes_after, change, blocks_before, blocks_after.
        """
        from .analysis.usage.comparison import difference

        return difference(self._recorded, a, b, device=device, by=by)

    def lifetimes(
        self,
        *,
        device: str | None = None,
        by: str = "line",
        since: Position | None = None,
        until: Position = "end",
    ) -> pd.DataFrame:
        """How much each site allocates per step, and how long its blocks live. In requested bytes.

        device, by: as in `sites`. since, until: positions, as `at` of `live`.

        Columns: those of `sites`, and averages over the last whole steps, <NA> without steps: allocations_per_step,
        bytes_per_step, churn_per_step (freed within the step), retained_per_step (allocated in forward, freed in
        backward), backward_per_step; temporary (True: nothing outlives its step); slow_calls, slow_ns, slowest_ns
        (calls of the allocator that took long); with `since` also live_change. See
        `pytorch_alloctrace.analysis.usage.lifetimes`.
        """
        from .analysis.usage.lifetimes import site_lifetimes

        return site_lifetimes(self._recorded, device=device, by=by, since=since, until=until)

    def role_totals(
        self, *, device: str | None = None, since: Position | None = None, until: Position = "end"
    ) -> pd.DataFrame:
        """How much was allocated for what, and how much of it is live, a row for each role. In requested bytes.

        device: default all. since, until: positions, as `at` of `live`. Each range takes one more pass over it.

        Columns: role (see docs/roles.md), allocations, bytes (of them, including what was freed again), exact_bytes
        (the part of bytes whose role was recorded, not inferred), live_bytes and live_blocks (at `until`), largest;
        with `since` also live_change. Raises PositionError for a range without events, TraceError for a device that the
        trace does not have.
        """
        from .analysis.usage.role_totals import role_totals

        return role_totals(self._recorded, device=device, since=since, until=until)

    def leaks(
        self, *, device: str | None = None, since: Position | None = None, until: Position | None = None
    ) -> LeakReport:
        """Return what leaks, likely leaks first, then by rate.

        A report without leaks is an all-clear only where it is `conclusive`: not if the run is too short to judge, if
        something grows of which too little has been seen to say whether it leaks, or if a part of the trace is missing.

        device: default all. since, until: judges only the steps that lie wholly in this range, and takes everything
        before them as the warm-up. What counts as a leak is defined in `pytorch_alloctrace.analysis.leaks.judge`.

        Raises PositionError if no whole step lies in the range, TraceError for a device that the trace does not have.
        """
        from .analysis.leaks.leak_report import leak_report

        device = self._recorded.named_device(device)
        return leak_report(self._recorded, device, self._asked_range(since, until, device))

    def fragmentation(self, at: Position = "end", *, device: str | None = None) -> Fragmentation:
        """How the free memory of a CUDA device was cut up at a position, and which live blocks pin it. In bytes.

        at: as in `live`. device: default the one with the most reserved then. All is empty if the allocator reports no
        segments. Raises TraceError for a device that the trace does not have.
        """
        from .analysis.free_memory.fragmentation import fragmentation_at

        return fragmentation_at(self._recorded, at, device=device)

    def ooms(
        self,
        *,
        device: str | None = None,
        since: Position | None = None,
        until: Position | None = None,
        last: int | None = None,
    ) -> list[OutOfMemory]:
        """The refused requests, in order: what was asked for, what there was, and why it was not enough. In bytes.

        device: default all. since, until: only in this range. last: only the last n; each costs a state of the replay.
        Of very many, among very many blocks, only the last are looked into: those with 2 million blocks around them.
        Raises TraceError for a device that the trace does not have, PositionError for a range without events.
        """
        from .analysis.free_memory.oom import find_ooms

        return find_ooms(self._recorded, device=device, within=self._asked_range(since, until, device), last=last)

    def what_if(
        self,
        settings: Sequence[str] = (),
        *,
        memory: int | None = None,
        outside: int | None = None,
        device: str | None = None,
    ) -> WhatIf:
        """What the same requests would have come to under other settings of torch's allocator, or on another card.

        settings: each as PYTORCH_ALLOC_CONF has it ("expandable_segments:True", or several with commas); without any,
        the sensible ones are tried, and ranked. memory: bytes of the card (default those of the recorded one). outside:
        bytes of it that torch does not get (default as the driver reported, else 700 MiB). device: default the CUDA
        device with the most reserved.

        Sizes are ranges over orders of the addresses that the driver may give. A run ends at the first request that is
        refused: what the program would have done then is not known.

        Raises SettingError for what is no setting, NotPredictableError where the trace's allocator cannot be modelled,
        TraceError for a device that the trace does not have.
        """
        from .analysis.what_if.prediction import predict

        return predict(self._recorded, settings, memory=memory, outside=outside, device=device)

    def fit(self, settings: Sequence[str] = (), *, outside: int | None = None, device: str | None = None) -> Fit:
        """The smallest memory that the run fits on, and what it comes to on common cards. In bytes.

        settings, outside, device: as in `what_if`; without settings, the recorded ones and expandable segments. Raises
        the same errors.
        """
        from .analysis.what_if.fitting import find_fit

        return find_fit(self._recorded, settings, outside=outside, device=device)

    def _asked_range(self, since: Position | None, until: Position | None, device: str | None) -> Range | None:
        return None if since is None and until is None else self._recorded.range(since, until, device=device)

    def diagnose(self) -> Diagnosis:
        """What is wrong with the memory, the most pressing first, in sentences: what `analyze TRACE` begins with.

        Each finding has kind, title, sentences, device, bytes (at stake), site (the line to look at) and stack_id. A
        healthy run has one, of kind "no_leak". `str` of the result is the whole verdict, which a notebook shows.
        """
        from .analysis.summary import summarize
        from .report.diagnosis import Diagnosis

        return Diagnosis(summarize(self._recorded, top=5))

    def _repr_html_(self) -> str:
        """In a notebook: the verdict."""
        return self.diagnose()._repr_html_()

    def report(self, *, redact: bool = False) -> Report:
        """One self-contained HTML page that shows the whole run; it works offline, from a file. `Report.write(path)`
        makes the file, `Report.open(path)` shows it in the browser, and a notebook shows the report itself.

        redact: leaves out source, arguments, the host's name and folders, for a report that is shared.
        """
        from .report.page.report import Report

        return Report(self._recorded, redact=redact)

    def export(
        self,
        path: str | os.PathLike[str],
        to: str,
        *,
        at: Position | None = None,
        since: Position | None = None,
        until: Position | None = None,
        device: str | None = None,
    ) -> Path:
        """Writes the trace in the format of another tool; returns the path.

        to: "speedscope" or "collapsed": what each stack holds at `at` (default the end) or, with `since` or `until`,
        what it allocated in that range. "perfetto": the memory over time. "memory-viz": what torch's
        `_memory_viz.py` reads: the state at `at`, and the events of the range, the last 600,000 at most. "parquet": the
        events of the range. at, since, until, device: as in `live`; default all devices.

        Raises ValueError for another format, PositionError for a position, TraceError for a device that the trace does
        not have, ReportError where the file cannot be written, MissingPackageError where Parquet needs pyarrow.
        """
        from .report.atomic import write_whole
        from .report.export.formats import FORMATS, Export

        if to not in FORMATS:
            raise ValueError(f"to={to!r} is not known: use one of {', '.join(FORMATS)}")
        what = Export(at, since, until, self._recorded.named_device(device))
        return write_whole(path, lambda file: FORMATS[to].write(self._recorded, what, file), trace=self.path)

    def verify(self) -> Verification:
        """Whether the trace agrees with itself: the replay with each allocator state, each event with those before it;
        and what was lost."""
        return self._recorded.replay.verification(self.integrity)

    def plot_timeline(self, points: int = 2000, *, device: str | None = None, axes: Axes | None = None) -> Figure:
        """Draws `timeline` with matplotlib, one chart per device.

        axes: where to draw one device; otherwise a figure is made. Raises MissingPackageError without matplotlib,
        ValueError if there is nothing to draw, or several devices for `axes`.
        """
        from .report.timeline import plot_timeline

        return plot_timeline(self.timeline(points, device=device), axes)


__all__ = ["AUTOGRAD_COLUMNS", "EVENT_COLUMNS", "Finished", "Frame", "Integrity", "Trace", "finish", "load"]
