"""A trace, opened for reading: what was in memory at any moment, and what the analyses make of it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas as pd

from .reading.integrity import Integrity
from .reading.positions import Position
from .reading.recorded import AUTOGRAD_COLUMNS, EVENT_COLUMNS, Progress, RecordedTrace
from .reading.replay import Verification
from .reading.sites import Frame

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .analysis.free_memory.fragmentation import Fragmentation
    from .analysis.free_memory.oom import OutOfMemory
    from .analysis.usage.peak import PeakMemory
    from .report.finding import Finding


def load(
    path: str | os.PathLike[str],
    *,
    spool: str | os.PathLike[str] | None = None,
    user_paths: Sequence[str] = (),
    progress: Progress | None = None,
) -> Trace:
    """Opens a trace, whole or damaged, together with the spool of a recording that was killed or still runs.

    spool: where the spool is, if it was moved away from the trace. user_paths: files or folders whose code counts as
    the
    user's own although installed. progress: called now and then with a share from 0 to 1.

    Raises TraceError for a file that is not there, is not a trace, or is of a newer format. Damage does not raise: see
    `Trace.integrity`.
    """
    return Trace(path, spool=spool, user_paths=user_paths, progress=progress)


class Trace(RecordedTrace):
    """A trace, opened for reading: `RecordedTrace` has what it tells of itself."""

    def plot_timeline(self, points: int = 2000, *, device: str | None = None, axes: Axes | None = None) -> Figure:
        """Draws `timeline` with matplotlib, a chart a device: see `report.timeline`."""
        from .report.timeline import plot_timeline

        return plot_timeline(self.timeline(points, device=device), axes)

    def composition(self, at: Position = "end", *, device: str | None = None, by: str = "line") -> pd.DataFrame:
        """What the live memory consists of at a moment, the most bytes first; bytes are requested bytes.

        at, device: as in `live`. by: "line", "stack", "function", "file" (columns as in `sites`: site, filename, line,
        function, source, user, and stack_id), "age" (age, from_age, to_age (not included), unit: "step" or, without
        steps, "second"; youngest first) or "phase" (forward, backward, optimizer, other: `pydoc
        pytorch_alloctrace.analysis.usage.phases` says how it is told). All have bytes, share (0 to 1), blocks, largest,
        backward_bytes (of bytes, what autograd's threads made for this place).
        """
        from .analysis.usage.composition import composition_at

        return composition_at(self, at, device=device, by=by)

    def peak(
        self,
        measure: str = "allocated",
        *,
        device: str | None = None,
        since: Position | None = None,
        until: Position | None = None,
    ) -> PeakMemory:
        """The most that a device (default: the one with the highest peak) had "allocated" or "reserved" at once, with
        its composition then.

        since, until: only from one moment (as in `live`) to another. Raises PositionError where there is no peak.
        """
        from .analysis.usage.peak import peak_between, peak_memory

        if since is None and until is None:
            return peak_memory(self, measure, device=device)
        return peak_between(self, self.range(since, until, device=device), measure, device=device)

    def diff(self, a: Position, b: Position, *, device: str | None = None, by: str = "line") -> pd.DataFrame:
        """How the live memory changed from moment `a` to moment `b`, the largest change first, in requested bytes.

        at, by, device: as in `composition`. Columns: those that name the place, age or phase; bytes_before,
        bytes_after, change, blocks_before, blocks_after. What neither moment has is left out.
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
        """How often each place allocates, and how long its blocks live, up to a moment (from another one on): see
        `analysis.lifetimes`."""
        from .analysis.usage.lifetimes import site_lifetimes

        return site_lifetimes(self, device=device, by=by, since=since, until=until)

    def fragmentation(self, at: Position = "end", *, device: str | None = None) -> Fragmentation:
        """How the free memory of a CUDA device is cut up at a moment, and which live blocks pin it.

        at: as in `live`. device: default the one that has the most reserved then. Raises TraceError for a device that
        the trace does not have. Where the allocator tells no segments, all is empty.
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
        """Each time a device was out of memory, in order: what was asked for, what was there, and why it did not do.

        since, until: positions (as in `live`) that the refusals lie between. last: only the last n of them: each costs
        a state of the replay. Raises TraceError for a device that the trace does not have, PositionError for a range
        without events.
        """
        from .analysis.free_memory.oom import find_ooms

        within = None if since is None and until is None else self.range(since, until, device=device)
        return find_ooms(self, device=device, within=within, last=last)

    def diagnose(self) -> tuple[Finding, ...]:
        """What is the matter with the memory, the most pressing first, in sentences: what `analyze TRACE` begins with.

        Each has kind, title, sentences, device, bytes (at stake), site (the line to look at) and stack_id. A healthy
        run has one, of kind "no_leak".
        """
        from .analysis.summary import summarize
        from .report.verdict import diagnosis

        return diagnosis(summarize(self))

    def verify(self) -> Verification:
        """Whether the trace agrees with itself: each allocator state in it with the replay, each event with what came
        before; and what was lost."""
        return self.replay.verification(self.integrity)

    def leaks(
        self, *, device: str | None = None, since: Position | None = None, until: Position | None = None
    ) -> pd.DataFrame:
        """What leaks, on one device or all: one row a finding, likely ones first, then by rate; empty where nothing
        does, or the run is too short to tell. Definitions: `analysis.leaks.judge`. since, until: moments
        as in `live`: judges the steps between them alone, all that lies before is warm-up; raises PositionError where
        no step ends there.

        Columns: device; filename, line, function and source of the line to look at; kind ("survivors": blocks that are
        never freed; "growing": a buffer replaced by ever larger ones), rate (requested bytes per unit), unit ("step",
        or "second" in a trace without steps), confidence (0 to 1); bytes and blocks (alive when the last step ended,
        without steps at the end of the trace), bytes_at_end (of these, alive at the end of the trace), oldest_age (of
        these blocks, in units), forecast (seconds until the device is full at this rate; <NA> where its capacity is not
        known; of "cpu" the memory of the machine), stack_id (one through the line, for `frames`), sites (the lines that
        make the bytes, most first: a list of dicts with filename, line, function, source, rate, bytes, blocks,
        stack_id).
        """
        from .analysis.leaks.judge import leak_table

        within = None if since is None and until is None else self.range(since, until, device=device)
        return leak_table(self, self.devices if device is None else [device], within)


__all__ = ["AUTOGRAD_COLUMNS", "EVENT_COLUMNS", "Frame", "Integrity", "Trace", "load"]
