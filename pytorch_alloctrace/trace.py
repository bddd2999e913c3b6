"""A trace, opened for reading: what was in memory at any position, and what the analyses make of it."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import pandas as pd

from .errors import IncompleteTraceWarning
from .reading import event_tables, tables
from .reading.event_tables import AUTOGRAD_COLUMNS, EVENT_COLUMNS
from .reading.integrity import Integrity
from .reading.positions import Position, Range
from .reading.recorded import Progress, RecordedTrace
from .reading.replay import Verification
from .reading.sites import Frame
from .reading.trace_files import Finished, finish

if TYPE_CHECKING:
    from .analysis.free_memory.fragmentation import Fragmentation
    from .analysis.free_memory.oom import OutOfMemory
    from .analysis.leaks.leak_report import LeakReport
    from .analysis.usage.peak import PeakMemory
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


def compare(
    trace_a: Trace, trace_b: Trace, *, at: Position = "peak", device: str | None = None, by: str = "line"
) -> pd.DataFrame:
    """Return what two runs hold at a position of each, matched by site, the largest change first, in requested bytes.

    A site is the same if file (by its path within the program's working directory, else by the last parts of its path),
    function and source text are; a line whose text was changed is matched with the nearest line of its function. By
    "stack" only the frames of user code count, and stacks that have the same frames are one row.

    Args:
        trace_a: The trace of the run before.
        trace_b: The trace of the run after.
        at: A position of both, as in `Trace.live`.
        device: As in `Trace.live`; default all.
        by: As in `Trace.usage` at a position, except "call".

    Returns:
        Columns: match ("same", "near": the nearest line, "new": only in trace_b, "gone": only in trace_a), filename (as
        trace_b has it), line_before, line_after (<NA> if there is none), function, source_before, source_after, user,
        stack_id_before, stack_id_after (for `frames` of each trace: the stack with the most bytes); by "role", "age"
        and "phase" those that name it; live_bytes_before, live_bytes_after, change_bytes, live_blocks_before,
        live_blocks_after.

    Raises:
        PositionError: A trace does not have the position.
        TraceError: Neither trace has the device.
    """
    from .analysis.usage import comparison

    return comparison.compare(trace_a._recorded, trace_b._recorded, at=at, device=device, by=by)


class Trace:
    """A trace, opened for reading by `load`."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        spool: str | os.PathLike[str] | None = None,
        user_paths: Sequence[str] = (),
        progress: Progress | None = None,
    ) -> None:
        self._recorded = RecordedTrace(path, spool=spool, user_paths=user_paths, progress=progress)
        self.path: str = self._recorded.path
        """The trace file."""
        self.header: dict[str, Any] = self._recorded.header
        """The program, its versions, folders and options, as of enable(); empty if damage took it."""
        self.integrity: Integrity = self._recorded.integrity
        """What the trace has and what is missing from it."""

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
    def devices(self) -> list[str]:
        """The devices that have events, the one with the highest peak first."""
        return self._recorded.devices

    def hardware(self) -> pd.DataFrame:
        """Return the CUDA devices that the program could use: device, name, total_bytes (of memory), uuid,
        pci_address."""
        return tables.hardware(self._recorded)

    def threads(self) -> pd.DataFrame:
        """Return the threads that had events: thread (as in events), native_id, name (Python's if it has one),
        autograd_id."""
        return tables.threads(self._recorded)

    @overload
    def events(
        self,
        *,
        since: Position | None = None,
        until: Position | None = None,
        columns: Sequence[str] | None = None,
        kinds: Sequence[str] | None = None,
        chunk: None = None,
    ) -> pd.DataFrame: ...

    @overload
    def events(
        self,
        *,
        since: Position | None = None,
        until: Position | None = None,
        columns: Sequence[str] | None = None,
        kinds: Sequence[str] | None = None,
        chunk: int,
    ) -> Iterator[pd.DataFrame]: ...

    def events(
        self,
        *,
        since: Position | None = None,
        until: Position | None = None,
        columns: Sequence[str] | None = None,
        kinds: Sequence[str] | None = None,
        chunk: int | None = None,
    ) -> pd.DataFrame | Iterator[pd.DataFrame]:
        """Return the events after `since`, up to and including `until`, in order, one row each.

        A compacted trace has the events after its compacted part; if kinds are given, also the failed allocations
        ("oom") and settings ("config") of that part.

        Args:
            since: A position, as `at` of `live`; default the beginning.
            until: A position; default the end.
            columns: Of EVENT_COLUMNS (the default) and AUTOGRAD_COLUMNS.
            kinds: Only events of these kinds.
            chunk: Return an iterator of tables of at least so many rows (the last may have fewer), for traces larger
                than memory.

        Returns:
            Columns: seq (the number of the event), time_ns (since 1970-01-01 UTC), kind (torch's own words; a
            "free_completed" without a "free_requested" before it is both), device ("cpu", "cuda:0"; "" for positions),
            address, requested_bytes (of a free those of its alloc, 0 if unknown; of a segment event what torch
            requested from the driver; of a step its number), stream, pool, thread (see `threads`), stack_id (for
            `frames`; 0: none), step (<NA> in a trace without steps). Kind, device, stream and pool are categories: a
            row takes 49 bytes.

        Raises:
            PositionError: The trace does not have a position.
            CompactedError: A position is in the compacted part.
            ValueError: A column or kind is unknown.
        """
        trace = self._recorded
        if chunk is None:
            return event_tables.events(trace, since=since, until=until, columns=columns, kinds=kinds)
        return event_tables.iter_events(trace, chunk, since=since, until=until, columns=columns, kinds=kinds)

    def frames(self, stack_id: int) -> list[Frame]:
        """The frames of a stack, innermost first; none for stack 0, which means that no stack is known.

        Raises IndexError for a stack that the trace does not have.
        """
        return self._recorded.frames(stack_id)

    def live(self, at: Position = "end", *, device: str | None = None) -> pd.DataFrame:
        """Return the blocks that were live at a position, oldest first.

        Args:
            at: "end", "peak" (of `device`, default the one with the highest), "peak:reserved", an event number (after
                it), "step:N" (the end of step N), "mark:NAME" (the first of that name), "mark:NAME#3" (the third),
                "region:NAME" (its beginning), "region:NAME:end", "12.5s" (after the recording began) or a datetime.
            device: "cpu", "cuda:0", ..., or "cuda" if the trace has one CUDA device; default all.

        Returns:
            Columns: device, address, requested_bytes, stack_id (where `backward` is True: of the forward that caused
            it), backward, node_type (of the autograd node that allocated it, in full; "": none), thread, alloc_seq,
            alloc_ns, role (what the block is for in its whole life: see docs/roles.md), role_is_exact (False:
            inferred), step (of birth); site ("train.py:12"), filename, line, function (where the user's code allocated
            it); name ("layers.0.weight", where the program named it: its optimizers, or `observe`; else ""). alloc_seq,
            alloc_ns and step are <NA> for a block that was there before the recording.

        Raises:
            PositionError: The trace does not have the position.
            TraceError: The trace does not have the device.
        """
        return tables.live(self._recorded, at, device=device)

    def blocks(self, at: Position = "end", *, device: str | None = None) -> pd.DataFrame:
        """Return the blocks of the allocator at a position, including the free ones, by address.

        Args:
            at: A position, as in `live`.
            device: As in `live`.

        Returns:
            Columns: device, segment (its address; 0 if the allocator reports none), address, block_bytes (after
            rounding), requested_bytes, state ("active_allocated", "active_pending_free", "inactive"), as torch has
            them. For blocks that are not free also the other columns of `live` but name, and age_ns.
        """
        return tables.blocks(self._recorded, at, device=device)

    def segments(self, at: Position = "end", *, device: str | None = None) -> pd.DataFrame:
        """Return the segments of torch's CUDA allocator at a position, as `torch.cuda.memory_snapshot()` lists them.

        Allocators that report no segments (the CPU's, cudaMallocAsync, pluggable ones) have none.

        Args:
            at: A position, as in `live`.
            device: As in `live`.

        Returns:
            Columns: device, address, total_bytes, allocated_bytes, active_bytes, requested_bytes, stream, segment_type
            ("small" or "large"), segment_pool_id, is_expandable.
        """
        return tables.segments(self._recorded, at, device=device)

    def usage(
        self,
        at: Position | None = None,
        *,
        since: Position | None = None,
        until: Position | None = None,
        by: str = "line",
        device: str | None = None,
    ) -> pd.DataFrame:
        """Return what the memory was used for: what is live at a position or, without `at`, what was allocated in a
        range of the run, how much of that is live at its end, and how long it lives.

        Args:
            at: A position, as in `live`.
            since: Without `at`: a position; default the beginning.
            until: Without `at`: a position; default the end.
            by: "line", "function" or "file" of the user's code; "stack"; "module": the innermost instance of
                torch.nn.Module that was being called ("GPT.h.3.attn"), "module:2" the first two parts of its name;
                "role" (parameter, gradient, ...: see docs/roles.md). At a position also "phase" (forward, backward,
                optimizer, other), "age", and "call": a row a call, from the outermost down.
            device: As in `live`; default all.

        Returns:
            At a position, the most live bytes first: live_bytes, share (0 to 1), live_blocks, largest_bytes,
            live_backward_bytes (the part that autograd's threads allocated). Of a range, the most live bytes first
            (with `since`, the most allocated bytes): allocations, total_bytes (all that was allocated, freed or not),
            live_bytes, live_blocks, largest_bytes, live_backward_bytes; with `since` live_bytes_change; averages over
            the last whole steps, <NA> without steps: allocations_per_step, bytes_per_step, churn_bytes_per_step (freed
            within the step), retained_bytes_per_step (allocated in forward, freed in backward),
            backward_bytes_per_step; temporary (True: nothing outlives its step); slow_calls, slow_ns, slowest_ns (calls
            of the allocator that took long). All are requested bytes. Rows by site have site, filename, line, function,
            source, user (False: the stack has no frame of user code, and its innermost frame stands in) and stack_id
            (the stack with the most live bytes); others role (with exact_bytes, whose role was recorded, not inferred),
            phase, or age (with from_age, to_age, unit: "step" or, without steps, "second"). Rows by call are those of
            `pytorch_alloctrace.analysis.usage.tree.Tree.table`.

        Raises:
            PositionError: The trace does not have a position, or nothing happened in the range.
            TraceError: The trace does not have the device, or no modules.
            ValueError: `by` is unknown, or `at` is given with a range.
        """
        from .analysis.usage.usage import usage

        return usage(self._recorded, at, since=since, until=until, by=by, device=device)

    def timeline(
        self, points: int = 2000, *, by: Literal["sum", "role"] = "sum", device: str | None = None
    ) -> pd.DataFrame:
        """Return the memory of each device over time, in `points` intervals of equal length.

        The replay has measured 60,000 intervals: where `points` does not divide that, an interval begins and ends with
        the nearest of them; where `points` is larger, several show what was measured of the same one.
        `pytorch_alloctrace.plot_timeline` draws it.

        Args:
            points: Number of intervals.
            by: "sum", or "role": requested bytes of each role at the end of each interval, which takes another pass
                over the trace.
            device: As in `live`; default all.

        Returns:
            Columns: device, time_ns (when the interval begins); requested_bytes, allocated_bytes, active_bytes,
            reserved_bytes, releasable_bytes, stranded_bytes, largest_free_bytes (at its end; see docs/reading.md), each
            with _min and _max (within it, so that no peak is lost); external_fragmentation (0 to 1, at its end),
            outside_bytes (used outside PyTorch, as the driver reports it, at its end), blocks (allocated at its end),
            seq (the event that reached the most allocated bytes in it). What an allocator does not report is <NA>. By
            role: one column for each, <NA> in a compacted part.

        Raises:
            ValueError: Less than one point, or `by` is unknown.
        """
        if by not in ("sum", "role"):
            raise ValueError(f"by={by!r} is not known: use sum or role")
        make = tables.timeline if by == "sum" else tables.role_timeline
        return make(self._recorded, points, device=device)

    def driver_memory(self, *, device: str | None = None) -> pd.DataFrame:
        """Return what the driver reported of each device's memory, and the system of this process's: a row for each
        change, sampled ten times a second.

        Args:
            device: As in `live`; default all.

        Returns:
            Columns: seq, time_ns, device, used_bytes (by everyone; for "cpu" the resident memory of this process),
            total_bytes (of the device, of the machine), this_process_bytes and other_processes_bytes (in most
            containers the driver does not report them), reserved_bytes (torch's segments then), outside_bytes (used -
            reserved: the CUDA context, libraries, other processes). What is not known is <NA>.
        """
        return tables.driver_memory(self._recorded, device=device)

    def steps(self, *, device: str | None = None) -> pd.DataFrame:
        """Return the steps that ended: step, seq and time_ns of the end, live_bytes then (requested, on `device`,
        default all together)."""
        return tables.steps(self._recorded, device=device)

    def marks(self, *, peaks: bool = False, device: str | None = None) -> pd.DataFrame:
        """Return the marks and regions of the program, one row each, by their beginnings.

        Args:
            peaks: Also peak_bytes, the most bytes that `device` had allocated within each region; each costs some
                states of the replay.
            device: Default the one with the highest peak.

        Returns:
            Columns: name, kind ("mark" or "region"), number (from 1, among those of the same name and kind), begin_seq,
            begin_ns, end_seq, end_ns (of a mark the same; <NA> if the trace ends before the region does), step (in
            which it begins; <NA> without steps). `since=begin_seq, until=end_seq` is the range of a region. peak_bytes
            is <NA> of a mark, and where nothing was allocated.
        """
        from .analysis.usage.marks import mark_table

        return mark_table(self._recorded, peaks=peaks, device=self._recorded.named_device(device))

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

        Columns: line, source, allocations and total_bytes (all that was allocated), peak_bytes (live at the peak of the
        device, in the range if there is one), net_bytes (live at the end; in a range by how much that changed). If the
        file is here and unchanged, it has all its lines, otherwise only those that the trace knows.

        Raises TraceError for a file that the trace does not have, PositionError if nothing was allocated.
        """
        from .analysis.usage.annotation import annotate

        return annotate(self._recorded, filename, [(since, until)], device=device).table

    def diff(self, a: Position, b: Position, *, device: str | None = None, by: str = "line") -> pd.DataFrame:
        """How the live memory changed from position `a` to position `b`, the largest change first. In requested bytes.

        device, by: as in `usage`, but not "call". Columns: those that name the site, role, age or phase;
        live_bytes_before, live_bytes_after, change_bytes, live_blocks_before, live_blocks_after.
        """
        from .analysis.usage.comparison import difference

        return difference(self._recorded, a, b, device=device, by=by)

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
        """The failed allocations, in order: what was asked for, what there was, and why it was not enough. In bytes.

        device: default all. since, until: only in this range. last: only the last n; each costs a state of the replay.
        Of very many, among very many blocks, only the last are looked into: those with 2 million blocks around them.
        Raises TraceError for a device that the trace does not have, PositionError for a range without events.
        """
        from .analysis.free_memory.oom import find_ooms

        return find_ooms(self._recorded, device=device, within=self._asked_range(since, until, device), last=last)

    def settings_that_help(self, oom: OutOfMemory) -> tuple[str, ...]:
        """Return settings for PYTORCH_ALLOC_CONF that would have served a failed allocation (one of `ooms`), the best
        first; each helps alone. Empty if none that was tried would have for certain, or if nothing could be
        tried. Takes a pass over the trace: a model of torch's allocator is run with each."""
        from .analysis.advice import Advisor

        return Advisor(self._recorded).on_request(oom).settings

    def what_if(
        self,
        settings: Sequence[str] = (),
        *,
        memory: int | None = None,
        outside: int | None = None,
        device: str | None = None,
    ) -> WhatIf:
        """What the same requests would have come to under other settings of torch's allocator, or on another GPU.

        settings: each as PYTORCH_ALLOC_CONF has it ("expandable_segments:True", or several with commas); without any,
        the sensible ones are tried, and ranked. memory: bytes of the GPU (default those of the recorded one). outside:
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
        """The smallest memory that the run fits on, and what it comes to on common GPUs. In bytes.

        settings, outside, device: as in `what_if`; without settings, the recorded ones and expandable segments. Raises
        the same errors.
        """
        from .analysis.what_if.fitting import find_fit

        return find_fit(self._recorded, settings, outside=outside, device=device)

    def _asked_range(self, since: Position | None, until: Position | None, device: str | None) -> Range | None:
        return None if since is None and until is None else self._recorded.range(since, until, device=device)

    def diagnose(self) -> Diagnosis:
        """What is wrong with the memory, the most pressing first, in sentences, as the command `diagnose` does.

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
        from .report.export.formats import Selection, export

        selection = Selection(at, since, until, self._recorded.named_device(device))
        return export(self._recorded, path, to, selection)

    def verify(self) -> Verification:
        """Whether the trace agrees with itself: the replay with each allocator state, each event with those before it;
        and what was lost."""
        return self._recorded.replay.verification(self.integrity)


__all__ = ["AUTOGRAD_COLUMNS", "EVENT_COLUMNS", "Finished", "Frame", "Integrity", "Trace", "compare", "finish", "load"]
