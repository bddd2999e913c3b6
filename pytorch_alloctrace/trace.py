"""A trace, opened for reading: what was in memory at any position, and what the analyses make of it."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from .errors import IncompleteTraceWarning
from .reading.event_table import AUTOGRAD_COLUMNS, EVENT_COLUMNS
from .reading.finish import Finished, finish
from .reading.integrity import Integrity
from .reading.positions import Position, Range
from .reading.recorded import Progress, RecordedTrace
from .reading.replay import Verification
from .reading.sites import Frame

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .analysis.free_memory.fragmentation import Fragmentation
    from .analysis.free_memory.oom import OutOfMemory
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


class Trace(RecordedTrace):
    """A trace, opened for reading by `load`."""

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
            return peak_memory(self, measure, device=device)
        return peak_between(self, self.range(since, until, device=device), measure, device=device)

    def regions(self, *, peaks: bool = False, device: str | None = None) -> pd.DataFrame:
        """The regions of the program, one row each, by their beginnings.

        peaks: also peak_bytes, the most bytes that `device` (default the one with the highest peak) had allocated
        within each, <NA> if nothing was; each costs some states of the replay. Columns: name, number (from 1, among
        those of the same name), begin_seq, begin_ns, end_seq, end_ns (<NA> if the trace ends before the region does),
        step (in which it begins; <NA> without steps). `since=begin_seq, until=end_seq` is its range.
        """
        from .analysis.usage.regions import region_table

        return region_table(self, peaks=peaks, device=self.named_device(device))

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

        return composition_at(self, at, device=device, by=by)

    def tree(self, at: Position = "end", *, device: str | None = None, all_frames: bool = False) -> Tree:
        """What the live memory consisted of at a position, by call: from the outermost call of the user's code down,
        each with all that it called. In requested bytes.

        at, device: as in `live`. all_frames: also the calls inside libraries. `Tree.calls` are the outermost calls,
        each with its own `calls`; `Tree.table` is a DataFrame with a row a call.
        """
        from .analysis.usage.tree import tree_at

        return tree_at(self, at, device=device, all_frames=all_frames)

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

        return annotate(self, filename, [(since, until)], device=device).table

    def diff(self, a: Position, b: Position, *, device: str | None = None, by: str = "line") -> pd.DataFrame:
        """How the live memory changed from position `a` to position `b`, the largest change first. In requested bytes.

        device, by: as in `composition`. Columns: those that name the site, role, age or phase; bytes_before,
        bytes_after, change, blocks_before, blocks_after.
        """
        from .analysis.usage.comparison import difference

        return difference(self, a, b, device=device, by=by)

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

        return site_lifetimes(self, device=device, by=by, since=since, until=until)

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

        return role_totals(self, device=device, since=since, until=until)

    def leaks(
        self, *, device: str | None = None, since: Position | None = None, until: Position | None = None
    ) -> pd.DataFrame:
        """What leaks, one row per leak, likely ones first, then by rate.

        An empty table is an all-clear only where `attrs["decided"]` says so: by device, False if the run is too short
        to judge, or if something grows of which too little has been seen to say whether it leaks.

        device: default all. since, until: judges only the steps that lie wholly in this range, and takes everything
        before them as the warm-up. What counts as a leak is defined in `pytorch_alloctrace.analysis.leaks.judge`.

        Columns: device; filename, line, function, source of the line to look at; kind ("survivors": blocks that are
        never freed; "rising": ever more at once, though each is freed; "growing": a buffer replaced by ever larger
        ones); rate (allocated bytes per unit), unit ("step", "iteration" of a loop that the stacks show, or "second"),
        confidence (0 to 1); bytes (allocated) and blocks (live where it was judged), bytes_at_end (those still live at
        the end of the trace), oldest_age (in units), forecast (seconds until the device is full; <NA> if its capacity
        is unknown; for "cpu" the machine's memory), stack_id (one through the line), sites (the lines that allocate the
        bytes, most first: dicts with filename, line, function, source, rate, bytes, blocks, stack_id).

        Raises PositionError if no whole step lies in the range, TraceError for a device that the trace does not have.
        """
        from .analysis.leaks.judge import leak_table

        device = self.named_device(device)
        return leak_table(self, self.devices if device is None else [device], self._asked_range(since, until, device))

    def fragmentation(self, at: Position = "end", *, device: str | None = None) -> Fragmentation:
        """How the free memory of a CUDA device was cut up at a position, and which live blocks pin it. In bytes.

        at: as in `live`. device: default the one with the most reserved then. All is empty if the allocator reports no
        segments. Raises TraceError for a device that the trace does not have.
        """
        from .analysis.free_memory.fragmentation import fragmentation_at

        return fragmentation_at(self, at, device=device)

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

        return find_ooms(self, device=device, within=self._asked_range(since, until, device), last=last)

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

        return predict(self, settings, memory=memory, outside=outside, device=device)

    def fit(self, settings: Sequence[str] = (), *, outside: int | None = None, device: str | None = None) -> Fit:
        """The smallest memory that the run fits on, and what it comes to on common cards. In bytes.

        settings, outside, device: as in `what_if`; without settings, the recorded ones and expandable segments. Raises
        the same errors.
        """
        from .analysis.what_if.fitting import find_fit

        return find_fit(self, settings, outside=outside, device=device)

    def _asked_range(self, since: Position | None, until: Position | None, device: str | None) -> Range | None:
        return None if since is None and until is None else self.range(since, until, device=device)

    def diagnose(self) -> Diagnosis:
        """What is wrong with the memory, the most pressing first, in sentences: what `analyze TRACE` begins with.

        Each finding has kind, title, sentences, device, bytes (at stake), site (the line to look at) and stack_id. A
        healthy run has one, of kind "no_leak". `str` of the result is the whole verdict, which a notebook shows.
        """
        from .analysis.summary import summarize
        from .report.diagnosis import Diagnosis

        return Diagnosis(summarize(self, top=5))

    def _repr_html_(self) -> str:
        """In a notebook: the verdict."""
        return self.diagnose()._repr_html_()

    def report(self, *, redact: bool = False) -> Report:
        """One self-contained HTML page that shows the whole run; it works offline, from a file. `Report.write(path)`
        makes the file, `Report.open(path)` shows it in the browser, and a notebook shows the report itself.

        redact: leaves out source, arguments, the host's name and folders, for a report that is shared.
        """
        from .report.page.report import Report

        return Report(self, redact=redact)

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
        what = Export(at, since, until, self.named_device(device))
        return write_whole(path, lambda file: FORMATS[to].write(self, what, file), trace=self.path)

    def verify(self) -> Verification:
        """Whether the trace agrees with itself: the replay with each allocator state, each event with those before it;
        and what was lost."""
        return self.replay.verification(self.integrity)

    def plot_timeline(self, points: int = 2000, *, device: str | None = None, axes: Axes | None = None) -> Figure:
        """Draws `timeline` with matplotlib, one chart per device.

        axes: where to draw one device; otherwise a figure is made. Raises MissingPackageError without matplotlib,
        ValueError if there is nothing to draw, or several devices for `axes`.
        """
        from .report.timeline import plot_timeline

        return plot_timeline(self.timeline(points, device=device), axes)


__all__ = ["AUTOGRAD_COLUMNS", "EVENT_COLUMNS", "Finished", "Frame", "Integrity", "Trace", "finish", "load"]
