"""A trace, opened for reading: what was in memory at any moment, and what the analyses make of it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from .integrity import Integrity
from .positions import Moment
from .recorded import ALL, AUTOGRAD_COLUMNS, EVENT_COLUMNS, Progress, RecordedTrace
from .replay import POINTS, Verification
from .sites import Frame
from .timeline import Timeline, make_timeline

if TYPE_CHECKING:
    from .analysis.composition import PeakMemory
    from .analysis.fragmentation import Fragmentation
    from .analysis.oom import OutOfMemory
    from .report.findings import Finding


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

    def segments(self, at: Moment = "end", *, device: str | None = None) -> pd.DataFrame:
        """The segments that torch's CUDA allocator has at a moment, as `torch.cuda.memory_snapshot()` lists them.

        at: as in `live`. Columns: device ("cuda:0"), address, total_size, allocated_size, active_size, requested_size,
        stream, segment_type ("small" or "large"), segment_pool_id, is_expandable. Allocators that tell no segments (the
        CPU's, cudaMallocAsync, pluggable ones) have none.
        """
        until = self._until(at, device)
        return self._replayed.segments(ALL if until is None else until, device)

    def blocks(self, at: Moment = "end", *, device: str | None = None) -> pd.DataFrame:
        """The blocks at a moment, those that are free included, by address.

        at: as in `live`. Columns: device, segment (its address; 0 where the allocator tells none), address, size,
        requested_size, state ("active_allocated", "active_pending_free", "inactive"), as torch has them; and of those
        that are not free stack, backward and node_type (as in `live`), thread, birth_seq, birth_ns, age_ns, step (of
        birth; of blocks older than the recording, its beginning).
        """
        until = self._until(at, device)
        table = self._replayed.blocks(ALL if until is None else until, device)
        table["node_type"] = self.names_of_node_types(table["node_type"].to_numpy())
        free = (table["state"] == "inactive").to_numpy()
        table["step"] = self.positions.step_of(table["birth_seq"].to_numpy(), unknown=free)
        return table

    def timeline(self, points: int = 2000, device: str | None = None) -> Timeline:
        """The sums of each device's memory over time, in `points` intervals of equal length. In bytes.

        Columns: device, time_ns (beginning of the interval); requested, allocated, active, reserved, releasable,
        stranded, largest_free (at its end; docs/reading.md says what they mean), each with _min and _max (within it, so
        that no peak is lost); external_fragmentation (0 to 1, at its end), outside (of PyTorch, by the driver, at its
        end), blocks (allocated at its end), seq (of the event that reached the most allocated bytes). What an allocator
        does not tell is <NA>. Its `plot()` draws it (needs matplotlib).
        """
        if points < 1:
            raise ValueError(f"points={points}: a timeline has at least one")
        replayed = self._replayed if POINTS % points == 0 else self._replayed_with(points)
        moments = np.linspace(self.begin_ns, max(self.end_ns, self.begin_ns + 1), points + 1).astype(np.int64)
        return make_timeline(replayed.timeline(points, device), moments, self.driver_memory())

    def composition(self, at: Moment = "end", *, by: str = "line", device: str | None = None) -> pd.DataFrame:
        """What the live memory consists of at a moment, the most bytes first; bytes are requested bytes.

        at, device: as in `live`. by: "line", "stack", "function", "file" (columns as in `sites`: site, filename, line,
        function, source, user, and stack), "age" (age, from_age, to_age (not included), unit: "step" or, without steps,
        "second"; youngest first) or "phase" (forward, backward, optimizer, other: `pydoc
        pytorch_alloctrace.analysis.phases` says how it is told). All have bytes, share (0 to 1), blocks, largest,
        backward_bytes (of bytes, what autograd's threads made for this place).
        """
        from .analysis.composition import composition_at

        return composition_at(self, at, by, device)

    def peak(
        self,
        device: str | None = None,
        measure: str = "allocated",
        *,
        since: Moment | None = None,
        until: Moment | None = None,
    ) -> PeakMemory:
        """The most that a device (default: the one with the highest peak) had "allocated" or "reserved" at once, with
        its composition then.

        since, until: only from one moment (as in `live`) to another. Raises PositionError where there is no peak.
        """
        from .analysis.composition import peak_memory
        from .analysis.stretch import Stretch, peak_between

        if since is None and until is None:
            return peak_memory(self, device, measure)
        return peak_between(self, Stretch.between(self, since, until, device), device, measure)

    def diff(self, a: Moment, b: Moment, *, by: str = "line", device: str | None = None) -> pd.DataFrame:
        """How the live memory changed from moment `a` to moment `b`, the largest change first, in requested bytes.

        at, by, device: as in `composition`. Columns: those that name the place, age or phase; bytes_before,
        bytes_after, change, blocks_before, blocks_after. What neither moment has is left out.
        """
        from .analysis.difference import difference

        return difference(self, a, b, by, device)

    def lifetimes(
        self, device: str | None = None, by: str = "line", *, at: Moment = "end", since: Moment | None = None
    ) -> pd.DataFrame:
        """How often each place allocates, and how long its blocks live, up to a moment (from another one on): see
        `analysis.lifetimes`."""
        from .analysis.lifetimes import site_lifetimes

        return site_lifetimes(self, device, by, at, since)

    def fragmentation(self, at: Moment = "end", device: str | None = None) -> Fragmentation:
        """How the free memory of a CUDA device is cut up at a moment, and which live blocks pin it.

        at: as in `live`. device: default the one that has the most reserved then. Raises TraceError for a device that
        the trace does not have. Where the allocator tells no segments, all is empty.
        """
        from .analysis.fragmentation import fragmentation_at

        return fragmentation_at(self, at, device)

    def ooms(self, device: str | None = None, *, last: int | None = None) -> list[OutOfMemory]:
        """Each time a device was out of memory, in order: what was asked for, what was there, and why it did not do.

        last: only so many, the last ones. Each costs a state of the replay. Raises TraceError for a device that the
        trace does not have.
        """
        from .analysis.oom import find_ooms

        return find_ooms(self, device, last)

    def diagnose(self) -> tuple[Finding, ...]:
        """What is the matter with the memory, the most pressing first, in sentences: what `analyze TRACE` begins with.

        Each has kind, title, sentences, device, bytes (at stake), site (the line to look at) and stack. A healthy run
        has one, of kind "no_leak".
        """
        from .analysis.summary import summarize
        from .report.findings import diagnosis

        return diagnosis(summarize(self))

    def verify(self) -> Verification:
        """Whether the trace agrees with itself: each allocator state in it with the replay, each event with what came
        before; and what was lost."""
        return self._replayed.verification(self.integrity)

    def leaks(
        self, device: str | None = None, *, since: Moment | None = None, until: Moment | None = None
    ) -> pd.DataFrame:
        """What leaks, on one device or all: one row a finding, likely ones first, then by rate; empty where nothing
        does, or the run is too short to tell. Definitions: `pytorch_alloctrace.analysis.leaks`. since, until: moments
        as in `live`: judges the steps between them alone, all that lies before is warm-up; raises PositionError where
        no step ends there.

        Columns: device; filename, line, function and source of the line to look at; kind ("survivors": blocks that are
        never freed; "growing": a buffer replaced by ever larger ones), rate (requested bytes per unit), unit ("step",
        or "second" in a trace without steps), confidence (0 to 1); bytes and blocks (alive when the last step ended,
        without steps at the end of the trace), bytes_at_end (of these, alive at the end of the trace), oldest_age (of
        these blocks, in units), forecast (seconds until the device is full at this rate; <NA> where its capacity is not
        known; of "cpu" the memory of the machine), stack (one through the line, for `frames`), sites (the lines that
        make the bytes, most first: a list of dicts with filename, line, function, source, rate, bytes, blocks, stack).
        """
        from .analysis.leak_table import leak_table
        from .analysis.stretch import Stretch

        stretch = None if since is None and until is None else Stretch.between(self, since, until, device)
        return leak_table(self, self.devices if device is None else [device], stretch)


__all__ = ["AUTOGRAD_COLUMNS", "EVENT_COLUMNS", "Frame", "Integrity", "Trace", "load"]
