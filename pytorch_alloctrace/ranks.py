"""All ranks of a distributed run at once: which differs, in which line, since which step."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from .analysis.ranks.comparison import Comparison, compare_ranks
from .analysis.ranks.rank_summary import Detail, RankSummary
from .analysis.ranks.reduction import Progress, Reduction
from .analysis.ranks.tables import ranks_table
from .errors import TraceError
from .reading.names import named_device
from .report.ranks import RankWords, ranks_findings, write_ranks
from .report.screen import Screen, html_of, text_of

_ROWS = 10


def load_ranks(
    traces: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    scheduler: Any = None,
    jobs: int | None = None,
    user_paths: Sequence[str] = (),
    keep_summaries: bool = True,
    progress: Progress | None = None,
) -> Ranks:
    """Reads the traces of all ranks of a run, each in a process of its own, and compares them.

    traces: a folder with traces (``*.alloctrace``), or several folders and traces. scheduler: the address of a
    dask.distributed scheduler, or a client of it, whose workers read instead of this machine; they need this package
    and the same folder. jobs: so many processes of this machine (default its cores). user_paths: as in `load`; a trace
    need not have all of them. keep_summaries: keep what was found next to each trace (``TRACE.summary.json``, at most
    1 MB), so that the next time is quick. progress: called with a share from 0 to 1.

    A trace that is damaged, cut off, of another run or cannot be read does not raise: the verdict says so. Raises
    TraceError where there are no traces, MissingPackageError for a scheduler without dask, SchedulerError for one that
    cannot be used.
    """
    paths = trace_files([traces] if isinstance(traces, (str, os.PathLike)) else traces)
    with Reduction(scheduler, jobs, user_paths, keep_summaries, progress) as reduction:

        def details(summaries: Sequence[RankSummary]) -> Mapping[str, Detail]:
            without = [summary.path for summary in summaries if summary.detail is None]
            return {
                summary.path: summary.detail
                for summary in [*summaries, *reduction.read(without)]
                if summary.detail is not None
            }

        return Ranks(compare_ranks(reduction.read(paths), details))


def trace_files(given: Iterable[str | os.PathLike[str]]) -> list[str]:
    """The traces, and those in the folders, by absolute paths; each once. Raises TraceError if there are none."""
    found: dict[str, None] = {}
    for path in map(Path, given):
        if path.is_dir():
            inside = sorted(path.glob("*.alloctrace"))
            if not inside:
                below = next((one.parent for one in sorted(path.glob("*/*.alloctrace"))), None)
                hint = f": {str(below)!r} has some, name such folders" if below is not None else ""
                raise TraceError(f"there are no traces (*.alloctrace) in {str(path)!r}{hint}")
            found |= dict.fromkeys(os.path.abspath(one) for one in inside)
        elif path.exists():
            found[os.path.abspath(path)] = None
        else:
            raise TraceError(f"there is no trace or folder {str(path)!r}")
    if not found:
        raise TraceError("name a folder with traces, or some traces")
    return list(found)


class Ranks:
    """The ranks of a run, compared: see `load_ranks`. `str` of it is the verdict; a notebook shows it."""

    def __init__(self, comparison: Comparison) -> None:
        self._comparison = comparison

    @property
    def world_size(self) -> int | None:
        """How many ranks the run has; None if its processes were told none."""
        return self._comparison.run.world_size if self._comparison.run else None

    @property
    def missing(self) -> list[int]:
        """The ranks that have no trace."""
        return self._comparison.run.missing if self._comparison.run else []

    @property
    def left_out(self) -> dict[str, str]:
        """The traces that are not compared, by path: "unreadable", "copy" (of another of them), "other run", "child"
        (of the process of a rank) or "no rank"."""
        return {one.summary.path: one.why for one in self._comparison.left_out}

    def table(self, device: str | None = None) -> pd.DataFrame:
        """The ranks, a row each, those that differ most first.

        device: "cuda" (each rank's own), "cpu", "pinned", or another CUDA device that ranks use besides their own, such
        as "cuda:0"; default the one that holds most. Columns: rank (<NA> if the
        process had none), host, device (its own name: "cuda:3"), peak_bytes and live_bytes (requested bytes: at the
        peak, at the end of the last step), reserved_bytes (the highest), leak_bytes_per_unit (allocated),
        leak_filename, leak_line, seconds_per_step, steps, out_of_memory, state ("complete", "killed", "running",
        "truncated", "gaps", "corrupt"), distance (of its furthest figure from the median: an outlier from 1 on, see
        docs/ranks.md), path. What is not known is <NA>. Raises TraceError for a device that no rank has used.
        """
        return ranks_table(self._comparison, None if device is None else named_device(device, self._comparison.kinds))

    def findings(self) -> tuple[RankWords, ...]:
        """Return what is wrong with ranks or different about them, the most pressing first."""
        return ranks_findings(self._comparison)

    def verdict(self) -> str:
        """Which rank differs, in which line, since which step; then the ranks that differ most."""
        return text_of(self._write)

    def __str__(self) -> str:
        return self.verdict()

    def __repr__(self) -> str:
        return f"<Ranks: {len(self._comparison.summaries)} of {self.world_size or 'an unknown number'}>"

    def _repr_html_(self) -> str:
        """In a notebook."""
        return html_of(self._write)

    def _write(self, screen: Screen) -> None:
        write_ranks(self._comparison, screen, _ROWS)
