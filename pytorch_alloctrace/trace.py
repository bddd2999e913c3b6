"""The public reading interface: memory at any position of a trace, and the analyses of it."""

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
    """Open a trace for reading, together with the spool of a killed or running recording.

    A corrupt or truncated trace does not raise: `load` warns (IncompleteTraceWarning), and `Trace.integrity` lists what
    is missing.

    Args:
        path: The trace file.
        spool: The spool, if it was moved away from the trace.
        user_paths: Files, folders or packages ("transformers") whose code counts as user code although it is installed.
        progress: Called repeatedly with the share done, 0 to 1.

    Returns:
        The opened trace.

    Raises:
        TraceError: The trace or the spool does not exist, or the file is not a trace or has a newer format.
        UserPathError: One of `user_paths` contains no file of the trace.
    """
    trace = Trace(path, spool=spool, user_paths=user_paths, progress=progress)
    if not trace.integrity.is_complete:
        warnings.warn(f"{os.fspath(path)}: {trace.integrity}", IncompleteTraceWarning, stacklevel=2)
    return trace


def compare(
    trace_a: Trace, trace_b: Trace, *, at: Position = "peak", device: str | None = None, by: str = "line"
) -> pd.DataFrame:
    """Compare the live memory of two runs by site, in requested bytes, the largest change first.

    Sites match if their source text is equal, whatever they hold: first in the same function and file, then in others.
    Files are compared by their path within the working directory, else by the last parts of the path, else by their
    text. A line whose text changed is matched with the most similar line. By "stack", only frames of user code are
    compared, and stacks with equal frames are one row.

    Args:
        trace_a: The trace of the run before.
        trace_b: The trace of the run after.
        at: A position in both traces, as in `Trace.live`.
        device: As in `Trace.live`; default all.
        by: As in `Trace.usage` at a position, except "call".

    Returns:
        Columns: match ("same", "near": the text changed, "new": not found in the program of trace_a, "gone": not found
        in that of trace_b), filename (as in trace_b), line_before, line_after (<NA> if there is none), function,
        source_before, source_after, user, moved (True: from another function, or from a file that does not match),
        filename_before, function_before (None if new), stack_id_before, stack_id_after (for `frames` of each trace: the
        stack with the most bytes, <NA> if the site holds nothing); by "role", "age" and "phase" the columns that name
        the group; live_bytes_before, live_bytes_after, change_bytes, live_blocks_before, live_blocks_after.

    Raises:
        PositionError: One of the traces lacks the position.
        TraceError: Neither trace has the device.
    """
    from .analysis.usage import comparison

    return comparison.compare(trace_a._recorded, trace_b._recorded, at=at, device=device, by=by)


class Trace:
    """A trace opened by `load`."""

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
        """The program, its versions, folders and options when `enable` was called; empty if corrupt."""
        self.integrity: Integrity = self._recorded.integrity
        """Completeness of the trace: readable, lost and missing events."""

    def __repr__(self) -> str:
        return repr(self._recorded)

    @property
    def begin_ns(self) -> int:
        """Begin of the recording: nanoseconds since 1970-01-01 UTC."""
        return self._recorded.begin_ns

    @property
    def end_ns(self) -> int:
        """End of the trace: nanoseconds since 1970-01-01 UTC.

        The time at which the last readable block of the file was written; of a killed recording, the time of the last
        event in its spool.
        """
        return self._recorded.end_ns

    @property
    def devices(self) -> list[str]:
        """Devices with events, the device with the highest peak first."""
        return self._recorded.devices

    def hardware(self) -> pd.DataFrame:
        """Return the CUDA devices visible to the program.

        Returns:
            Columns: device, name, total_bytes (of memory), uuid, pci_address.
        """
        return tables.hardware(self._recorded)

    def threads(self) -> pd.DataFrame:
        """Return the threads that had events.

        Returns:
            Columns: thread (as in `events`), native_id, name (Python's thread name, else the system's), autograd_id.
        """
        return tables.threads(self._recorded)

    def children(self) -> pd.DataFrame:
        """Return the processes that the program and its children started and that ran while it was recorded.

        Sampled once a second: a process that ran for less may be missing. At most 1,024 are recorded.

        Returns:
            Columns: process (id), parent_process (of the program, or of another row), command (as for a shell, from at
            most 1,024 bytes; "[NAME]" if it had ended; a forked process has its parent's), seq (of the next event when
            it was found), trace (the process's own trace in the folder of this one, the first of several; "": none).
        """
        return tables.children(self._recorded)

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

        A compacted trace has only the events after its compacted part. If `kinds` are given, it also has the compacted
        failed allocations ("oom") and allocator settings ("config").

        Args:
            since: A position, as `at` of `live`; default the beginning.
            until: A position; default the end.
            columns: Names from EVENT_COLUMNS (the default) and AUTOGRAD_COLUMNS.
            kinds: Only events of these kinds; default all.
            chunk: Minimum rows of a table. If given, return an iterator of tables, for traces larger than memory; the
                last table may have fewer rows.

        Returns:
            Columns: seq (event number), time_ns (since 1970-01-01 UTC), kind (torch's names; a "free_completed" without
            a preceding "free_requested" stands for both), device ("cpu", "cuda:0"; "" for positions), address,
            requested_bytes (of a free, the bytes of its alloc, 0 if unknown; of a segment event, the bytes requested
            from the driver; of a step, its number), stream, pool, thread (see `threads`), stack_id (for `frames`; 0:
            none), step (<NA> in a trace without steps). Kind, device, stream and pool are categorical: a row takes 49
            bytes.

        Raises:
            PositionError: The trace lacks a position.
            CompactedError: A position lies in the compacted part.
            ValueError: A column or kind is unknown.
        """
        trace = self._recorded
        if chunk is None:
            return event_tables.events(trace, since=since, until=until, columns=columns, kinds=kinds)
        return event_tables.iter_events(trace, chunk, since=since, until=until, columns=columns, kinds=kinds)

    def frames(self, stack_id: int) -> list[Frame]:
        """Return the frames of a stack, innermost first.

        Args:
            stack_id: The number of a stack; 0 means that no stack is known.

        Returns:
            The frames; empty for stack 0.

        Raises:
            IndexError: The trace has no stack of this number.
        """
        return self._recorded.frames(stack_id)

    def live(self, at: Position = "end", *, device: str | None = None) -> pd.DataFrame:
        """Return the blocks that were live at a position, oldest first.

        Args:
            at: "end", "peak" (of `device`; default the device with the highest peak), "peak:reserved", an event number
                (the state after the event), "step:N" (the end of step N), "mark:NAME" (the first of that name),
                "mark:NAME#3" (the third), "region:NAME" (its beginning), "region:NAME:end", "12.5s", "100ms",
                "2min" (after the recording began) or a datetime.
            device: "cpu", "cuda:0", ..., or "cuda" if the trace has one CUDA device; default all.

        Returns:
            Columns: device, address, requested_bytes, stack_id (where `backward` is True, the stack of the forward that
            caused the allocation), backward, node_type (full type of the autograd node that allocated the block; "":
            none), thread, alloc_seq, alloc_ns, role (over the lifetime of the block: see docs/roles.md), role_is_exact
            (False: inferred), step (of the allocation); site ("train.py:12"), filename, line, function (of the
            allocating user code); name ("layers.0.weight", as named by an optimizer or `observe`; "": not named).
            alloc_seq, alloc_ns and step are <NA> for a block allocated before the recording.

        Raises:
            PositionError: The trace lacks the position.
            TraceError: The trace lacks the device.
        """
        return tables.live(self._recorded, at, device=device)

    def blocks(self, at: Position = "end", *, device: str | None = None) -> pd.DataFrame:
        """Return the blocks of the allocator at a position, including free blocks, by address.

        Args:
            at: A position, as in `live`.
            device: As in `live`.

        Returns:
            Columns: device, segment (its address; 0 if the allocator reports none), address, block_bytes (after
            rounding), requested_bytes, state (torch's "active_allocated", "active_pending_free" or "inactive"). For
            blocks in use also age_ns and the other columns of `live` except name.

        Raises:
            PositionError: The trace lacks the position.
            TraceError: The trace lacks the device.
        """
        return tables.blocks(self._recorded, at, device=device)

    def segments(self, at: Position = "end", *, device: str | None = None) -> pd.DataFrame:
        """Return the segments of torch's CUDA allocator at a position, as `torch.cuda.memory_snapshot()` lists them.

        There are no rows for allocators that report no segments: the CPU's, cudaMallocAsync, pluggable ones.

        Args:
            at: A position, as in `live`.
            device: As in `live`.

        Returns:
            Columns: device, address, total_bytes, allocated_bytes, active_bytes, requested_bytes, stream, segment_type
            ("small" or "large"), segment_pool_id, is_expandable.

        Raises:
            PositionError: The trace lacks the position.
            TraceError: The trace lacks the device.
        """
        return tables.segments(self._recorded, at, device=device)

    def holders(self) -> pd.DataFrame:
        """Return what held the program's tensors and autograd graphs at each object scan of the recording.

        A scan records at most 32 holders of blocks, 4 more holders of autograd nodes, and 4 of numpy arrays, whose
        bytes are foreign. Of a compacted part, only its last 48 scans are kept.

        Returns:
            Columns: seq (number of the next event when the scan began), holder ("trainer.losses (list of 46),
            local of main() at train.py:31"), path ("trainer.losses[...]"), filename, line (of the function
            that has the variable; 0: a global), blocks, requested_bytes (of these blocks), is_garbage (True for a
            reference cycle that is not collected yet), containers (on the path, outermost first: dicts with type,
            length, size, bound and nones, as in `Chain.containers`), nodes (autograd nodes that the holder keeps alive;
            blocks and nodes count for one holder each), has_all_nodes (False: there may be more nodes),
            foreign_bytes (of requested_bytes, those that no allocator of torch provided), name ("trainer.losses"),
            scope, function, through (as in `Chain`). In older traces, containers and the last four are empty, nodes and
            foreign_bytes 0, and has_all_nodes False.
        """
        return tables.holders(self._recorded)

    def usage(
        self,
        at: Position | None = None,
        *,
        since: Position | None = None,
        until: Position | None = None,
        by: str = "line",
        device: str | None = None,
    ) -> pd.DataFrame:
        """Return the memory of each line, or other group: live at a position, or allocated in a range.

        Without `at`, the rows are of a range: what was allocated in it, how much is live at its end, and how long it
        lives.

        Args:
            at: A position, as in `live`.
            since: Without `at`: a position; default the beginning.
            until: Without `at`: a position; default the end.
            by: "line", "function" or "file" of the user's code; "stack"; "module": the innermost instance of
                torch.nn.Module that was being called ("GPT.h.3.attn"), "module:2" the first two parts of its name;
                "role" (parameter, gradient, ...: see docs/roles.md). At a position also "phase" (forward, backward,
                optimizer, other), "age", and "call": one row per call, from the outermost down.
            device: As in `live`; default all.

        Returns:
            Sizes are requested bytes. At a position, the most live bytes first: live_bytes, share (0 to 1),
            live_blocks, largest_bytes, live_backward_bytes (the part allocated by autograd's threads).

            Of a range, the most live bytes first (with `since`, the most allocated bytes): allocations, total_bytes
            (freed or not), live_bytes, live_blocks, largest_bytes, live_backward_bytes; with `since`,
            live_bytes_change. Averages over the last complete steps, <NA> without steps: allocations_per_step,
            bytes_per_step, churn_bytes_per_step (freed within the step), retained_bytes_per_step (allocated in forward,
            freed in backward), backward_bytes_per_step. temporary (True: nothing outlives its step); slow_calls,
            slow_ns, slowest_ns (slow calls of the allocator).

            Rows by site have site, filename, line, function, source, user (False: the stack has no frame of user code,
            and the row names its innermost frame) and stack_id (the stack with the most live bytes). Others have role
            (with exact_bytes: role recorded, not inferred), phase, or age (with from_age, to_age, unit: "step" or,
            without steps, "second"). Rows by call have the columns of
            `pytorch_alloctrace.analysis.usage.tree.Tree.table`.

        Raises:
            PositionError: The trace lacks a position, or nothing happened in the range.
            TraceError: The trace lacks the device, or has no modules.
            ValueError: `by` is unknown, or `at` is given with a range.
        """
        from .analysis.usage.usage import usage

        return usage(self._recorded, at, since=since, until=until, by=by, device=device)

    def garbage(
        self, *, since: Position | None = None, until: Position | None = None, device: str | None = None
    ) -> pd.DataFrame:
        """Return the memory freed by Python's garbage collector, which reference cycles held until then, by stack.

        A block counts if the collecting thread freed it during a collection. So do blocks that a finalizer of the
        garbage, or a callback of the program in `gc.callbacks`, released. In a compacted trace, collections before the
        compacted part's end are missing.

        Args:
            since: A position, as `at` of `live`; default the beginning.
            until: A position; default the end.
            device: As in `live`; default all.

        Returns:
            Columns: site, filename, line, function, source, user (as in `usage`), device, stack_id (of the allocation;
            0 if it is older than the recording), garbage_bytes (requested bytes), garbage_blocks, last_seq (event of
            the last such free). The most bytes first.

        Raises:
            PositionError: The trace lacks a position.
            CompactedError: A position lies in the compacted part.
            TraceError: The trace lacks the device.
        """
        from .analysis.usage.garbage import garbage

        return garbage(self._recorded, since=since, until=until, device=device)

    def timeline(
        self, points: int = 2000, *, by: Literal["sum", "role"] = "sum", device: str | None = None
    ) -> pd.DataFrame:
        """Return the memory of each device over time, in `points` intervals of equal length.

        With more than 60,000 points, adjacent intervals show the same measurement.
        `pytorch_alloctrace.plot_timeline` draws the table.

        Args:
            points: Number of intervals.
            by: "sum", or "role": requested bytes of each role at the end of each interval, which takes another pass
                over the trace.
            device: As in `live`; default all.

        Returns:
            Columns: device, time_ns (begin of the interval); requested_bytes, allocated_bytes, active_bytes,
            reserved_bytes, releasable_bytes, stranded_bytes, largest_free_bytes (at its end; see docs/reading.md), each
            with _min and _max (within the interval, so that no peak is lost); external_fragmentation (0 to 1, at its
            end), outside_bytes (used outside PyTorch, reported by the driver, at its end), blocks (allocated at its
            end), seq (the event that reached the most allocated bytes in the interval). Values that an allocator does
            not report are <NA>. By role: one column per role, <NA> in a compacted part.

        Raises:
            TraceError: The trace lacks the device.
            ValueError: `points` is less than 1, or `by` is unknown.
        """
        if by not in ("sum", "role"):
            raise ValueError(f"by={by!r} is not known: use sum or role")
        read_timeline = tables.timeline if by == "sum" else tables.role_timeline
        return read_timeline(self._recorded, points, device=device)

    def driver_memory(self, *, device: str | None = None) -> pd.DataFrame:
        """Return the memory of each GPU (by its driver), of this process (by the system) and of torch's pinned pool.

        One row per change, sampled ten times a second; once a second for "pinned".

        Args:
            device: As in `live`; default all.

        Returns:
            Columns: seq, time_ns, device, used_bytes (by all processes; for "cpu" the resident memory of this process;
            for "pinned" the pinned memory that torch's pool holds, in use or cached), total_bytes (of the device, of
            the machine), this_process_bytes and other_processes_bytes (not reported in most containers), reserved_bytes
            (torch's segments at that time), outside_bytes (used - reserved: the CUDA context, libraries, other
            processes), anonymous_bytes (of "cpu": the resident memory without a file and not shared, such as the heap).
            Unknown values are <NA>.

        Raises:
            TraceError: The trace lacks the device.
        """
        return tables.driver_memory(self._recorded, device=device)

    def steps(self, *, device: str | None = None) -> pd.DataFrame:
        """Return the steps that ended.

        Args:
            device: As in `live`; default all.

        Returns:
            Columns: step, seq and time_ns of its end, live_bytes at its end (requested bytes; the sum of all devices
            unless `device` is given).

        Raises:
            TraceError: The trace lacks the device.
        """
        return tables.steps(self._recorded, device=device)

    def marks(self, *, peaks: bool = False, device: str | None = None) -> pd.DataFrame:
        """Return the marks and regions of the program, one row each, ordered by begin.

        Args:
            peaks: Add peak_bytes, the maximum of allocated bytes on `device` within each region. Each region costs
                several states of the replay.
            device: Default the device with the highest peak.

        Returns:
            Columns: name, kind ("mark" or "region"), number (from 1, per name and kind), begin_seq, begin_ns, end_seq,
            end_ns (equal to the begin for a mark; <NA> if the trace ends within the region), step (at the begin; <NA>
            without steps). `since=begin_seq, until=end_seq` is the range of a region. peak_bytes is <NA> for a mark,
            and where nothing was allocated.

        Raises:
            TraceError: The trace lacks the device.
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
        """Return the peak of a device's allocated or reserved bytes: size, event and time.

        The composition of the peak is computed on first access.

        Args:
            measure: "allocated" or "reserved".
            device: Default the device with the highest peak.
            since: A position, as `at` of `live`; default the beginning. The state at `since` counts, too.
            until: A position; default the end.

        Returns:
            The peak, in bytes.

        Raises:
            PositionError: There is no peak, or the trace lacks the range.
            TraceError: The trace lacks the device.
            ValueError: `measure` is unknown.
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
        """Return what each line of a source file allocated, callees included, in requested bytes.

        Args:
            filename: The file as in the trace, or the end of its path ("train.py").
            device: Default the device with the highest peak.
            since: A position, as `at` of `live`; default the beginning.
            until: A position; default the end.

        Returns:
            One row per line: all lines if the file exists unchanged, else only the lines in the trace. Columns: line,
            source, allocations, total_bytes (freed or not), peak_bytes (live at the peak of the device within the
            range), net_bytes (live at the end; with a range, the change).

        Raises:
            TraceError: The trace lacks the file or the device.
            PositionError: Nothing was allocated, or the trace lacks a position.
        """
        from .analysis.usage.annotation import annotate

        return annotate(self._recorded, filename, [(since, until)], device=device).table

    def diff(self, a: Position, b: Position, *, device: str | None = None, by: str = "line") -> pd.DataFrame:
        """Return the change of live memory between two positions, in requested bytes, the largest change first.

        Args:
            a: The first position, as `at` of `live`.
            b: The second position.
            device: As in `live`; default all.
            by: As in `usage` at a position, except "call".

        Returns:
            Columns: those that name the site, role, age or phase; live_bytes_before, live_bytes_after, change_bytes,
            live_blocks_before, live_blocks_after.

        Raises:
            PositionError: The trace lacks a position.
            TraceError: The trace lacks the device.
            ValueError: `by` is unknown.
        """
        from .analysis.usage.comparison import difference

        return difference(self._recorded, a, b, device=device, by=by)

    def leaks(
        self, *, device: str | None = None, since: Position | None = None, until: Position | None = None
    ) -> LeakReport:
        """Return the leaks, likely leaks first, then by rate.

        A report without leaks is an all-clear only if it is `conclusive`. It is inconclusive if the run is too short,
        if memory grows that was observed too briefly, or if a part of the trace is missing.
        `pytorch_alloctrace.analysis.leaks.judge` defines what counts as a leak.

        Args:
            device: As in `live`; default all.
            since: Judge only complete steps after this position; everything before is warm-up.
            until: Judge only complete steps before this position.

        Returns:
            The report on all judged devices.

        Raises:
            PositionError: No complete step lies in the range.
            TraceError: The trace lacks the device.
        """
        from .analysis.leaks.leak_report import leak_report

        device = self._recorded.named_device(device)
        return leak_report(self._recorded, device, self._resolve_range(since, until, device))

    def fragmentation(self, at: Position = "end", *, device: str | None = None) -> Fragmentation:
        """Return the fragmentation of a CUDA device's free memory, and the live blocks that pin it, in bytes.

        Args:
            at: A position, as in `live`.
            device: Default the device with the most reserved bytes at the position.

        Returns:
            The fragmentation; empty if the allocator reports no segments.

        Raises:
            PositionError: The trace lacks the position.
            TraceError: The trace lacks the device.
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
        """Return the failed allocations in order: the request, the available memory, and the cause, in bytes.

        The last 20 are always analysed, earlier ones until 2 million blocks have been read.

        Args:
            device: As in `live`; default all.
            since: A position, as `at` of `live`; default the beginning.
            until: A position; default the end.
            last: Return only the last n. Each takes one query of the memory at its event.

        Returns:
            The failed allocations; empty if there are none.

        Raises:
            TraceError: The trace lacks the device.
            PositionError: The range has no events.
        """
        from .analysis.free_memory.oom import find_ooms

        return find_ooms(self._recorded, device=device, within=self._resolve_range(since, until, device), last=last)

    def settings_that_help(self, oom: OutOfMemory) -> tuple[str, ...]:
        """Return settings for PYTORCH_ALLOC_CONF that would have served a failed allocation, the best first.

        Each setting helps alone. Takes a pass over the trace: a model of torch's allocator runs with each candidate.

        Args:
            oom: One of `ooms`.

        Returns:
            The settings; empty if no candidate would have helped for certain, or if none could be simulated.
        """
        from .analysis.advice import Advisor

        return Advisor(self._recorded).on_request(oom).settings

    def what_if(
        self,
        settings: Sequence[str] = (),
        *,
        memory: int | str | None = None,
        outside: int | None = None,
        device: str | None = None,
    ) -> WhatIf:
        """Predict the memory of the run under other settings of torch's allocator, or on another GPU.

        Sizes are ranges, because the driver may return addresses in different orders. A simulation ends at the first
        failed allocation: what the program would do next is unknown.

        Args:
            settings: Each as in PYTORCH_ALLOC_CONF ("expandable_segments:True", several separated by commas), instead
                of the recorded settings. Default: promising settings, ranked.
            memory: Memory of the GPU in bytes, or a GPU's name or size ("A10G", "24GB"); default that of the recorded
                GPU.
            outside: Bytes of the GPU not available to torch; default as reported by the driver, else 700 MiB.
            device: Default the CUDA device with the most reserved bytes.

        Returns:
            One outcome per setting.

        Raises:
            SettingError: A setting is invalid.
            ValueError: `memory` is text, but neither a known GPU nor a size with a unit.
            NotPredictableError: The trace's allocator cannot be modelled.
            TraceError: The trace lacks the device.
        """
        from .analysis.what_if.prediction import predict

        return predict(self._recorded, settings, memory=memory, outside=outside, device=device)

    def fit(self, settings: Sequence[str] = (), *, outside: int | None = None, device: str | None = None) -> Fit:
        """Return the smallest GPU memory that the run fits on, and whether it fits on common GPUs, in bytes.

        Args:
            settings: As in `what_if`; default the recorded settings, torch's defaults and expandable segments.
            outside: As in `what_if`.
            device: As in `what_if`.

        Returns:
            One fitting per setting.

        Raises:
            SettingError: A setting is invalid.
            NotPredictableError: The trace's allocator cannot be modelled.
            TraceError: The trace lacks the device.
        """
        from .analysis.what_if.fitting import find_fit

        return find_fit(self._recorded, settings, outside=outside, device=device)

    def _resolve_range(self, since: Position | None, until: Position | None, device: str | None) -> Range | None:
        return None if since is None and until is None else self._recorded.range(since, until, device=device)

    def diagnose(self) -> Diagnosis:
        """Return the memory problems of the run in sentences, the most urgent first, as the command `diagnose`.

        Returns:
            Findings with kind, title, sentences, device, bytes (at stake), site (the line to inspect) and stack_id. A
            healthy run has one finding, of kind "no_leak". `str` of the result is the full verdict; a notebook
            displays it.
        """
        from .analysis.summary import summarize
        from .report.diagnosis import Diagnosis

        return Diagnosis(summarize(self._recorded, top=5))

    def _repr_html_(self) -> str:
        return self.diagnose()._repr_html_()

    def report(self, *, redact: bool | Literal["names"] = False) -> Report:
        """Return the report of the run: one self-contained HTML page that works offline.

        Args:
            redact: Omit source, arguments, the host's name and folders, for a report to share; "names" also replaces
                the names of the program's files, functions, classes, variables, modules, marks and regions.

        Returns:
            The report. `Report.write(path)` writes the file, `Report.open(path)` opens it in the browser, and a
            notebook displays it.
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
        """Write the trace in the format of another tool.

        Args:
            path: The file to write.
            to: "speedscope" or "collapsed": bytes of each stack live at `at` (default the peak) or, with `since` or
                `until`, allocated in that range. "perfetto": the memory over time. "memory-viz", for torch's
                `_memory_viz.py`: the state at `at`, and up to 600,000 last events of the range. "parquet": the events
                of the range.
            at: A position, as in `live`.
            since: A position; default the beginning.
            until: A position; default the end.
            device: As in `live`; default all.

        Returns:
            The path of the file.

        Raises:
            ValueError: The format is unknown.
            PositionError: The trace lacks a position.
            TraceError: The trace lacks the device; or, for memory-viz, any CUDA device.
            ReportError: The file cannot be written.
            MissingPackageError: Parquet needs pyarrow.
        """
        from .report.export.formats import Selection, export

        selection = Selection(at, since, until, self._recorded.named_device(device))
        return export(self._recorded, path, to, selection)

    def verify(self) -> Verification:
        """Check the replay against each recorded allocator state, and each event against the events before it.

        Returns:
            The differences, the contradictions, and the number of lost events.
        """
        return self._recorded.replay.verification(self.integrity)


__all__ = ["AUTOGRAD_COLUMNS", "EVENT_COLUMNS", "Finished", "Frame", "Integrity", "Trace", "compare", "finish", "load"]
