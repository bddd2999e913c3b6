"""Comparison of all ranks of a distributed run: the rank that differs, its line and its step."""

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
from .report.ranks import RankReport, ranks_findings, write_ranks
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
    """Read the traces of all ranks of a run in parallel processes, and compare the ranks.

    Traces that are corrupt, truncated, unreadable or of another run do not raise: the verdict reports them.

    Args:
        traces: A folder with traces (``*.alloctrace``), or several folders and traces.
        scheduler: Address of a dask.distributed scheduler, or a client of it, whose workers read the traces instead of
            this machine. The workers need this package and the same folder.
        jobs: Number of processes on this machine; default the number of cores.
        user_paths: As in `load`; a trace need not contain all of them.
        keep_summaries: Whether to store a rank summary next to each trace (``TRACE.summary.json``, at most 1 MB), which
            makes the next call fast.
        progress: Called repeatedly with the share done, 0 to 1.

    Returns:
        The compared ranks.

    Raises:
        TraceError: There are no traces.
        MissingPackageError: `scheduler` needs dask.
        SchedulerError: The scheduler cannot be used.
    """
    paths = trace_files([traces] if isinstance(traces, (str, os.PathLike)) else traces)
    with Reduction(scheduler, jobs, user_paths, keep_summaries, progress) as reduction:

        def read_details(summaries: Sequence[RankSummary]) -> Mapping[str, Detail]:
            paths_without_detail = [summary.path for summary in summaries if summary.detail is None]
            return {
                summary.path: summary.detail
                for summary in [*summaries, *reduction.read(paths_without_detail)]
                if summary.detail is not None
            }

        return Ranks(compare_ranks(reduction.read(paths), read_details))


def trace_files(traces_or_folders: Iterable[str | os.PathLike[str]]) -> list[str]:
    """Return the absolute paths of the traces, and of those in the folders. Raises TraceError if there are none."""
    traces: dict[str, None] = {}
    for path in map(Path, traces_or_folders):
        if path.is_dir():
            folder_traces = sorted(path.glob("*.alloctrace"))
            if not folder_traces:
                subfolder = next((trace.parent for trace in sorted(path.glob("*/*.alloctrace"))), None)
                hint = f": name a folder with traces, such as {str(subfolder)!r}" if subfolder is not None else ""
                raise TraceError(f"there are no traces (*.alloctrace) in {str(path)!r}{hint}")
            traces |= dict.fromkeys(os.path.abspath(trace) for trace in folder_traces)
        elif path.exists():
            traces[os.path.abspath(path)] = None
        else:
            raise TraceError(f"there is no trace or folder {str(path)!r}")
    if not traces:
        raise TraceError("name traces, or a folder with traces")
    return list(traces)


class Ranks:
    """Comparison of the ranks of a run, from `load_ranks`. `str(ranks)` is the verdict, which a notebook displays."""

    def __init__(self, comparison: Comparison) -> None:
        self._comparison = comparison

    @property
    def world_size(self) -> int | None:
        """Number of ranks of the run; None if unknown to its processes."""
        return self._comparison.run.world_size if self._comparison.run else None

    @property
    def missing(self) -> list[int]:
        """Ranks without a trace."""
        return self._comparison.run.missing if self._comparison.run else []

    @property
    def left_out(self) -> dict[str, str]:
        """Traces excluded from the comparison, with the reason by path.

        Reasons: "unreadable", "copy" (of another trace), "other run", "child" (of the process of a rank), "launcher"
        (which started the ranks) or "no rank".
        """
        return {excluded.summary.path: excluded.why for excluded in self._comparison.left_out}

    def table(self, device: str | None = None) -> pd.DataFrame:
        """Return one row per rank, the ranks that differ most first.

        Args:
            device: "cuda" (the own GPU of each rank), "cpu", "pinned", or another CUDA device that ranks use besides
                their own, such as "cuda:0"; default the device with the most memory.

        Returns:
            Columns: rank (<NA> if the process had none), host, device (its own name: "cuda:3"), peak_bytes
            (allocated), live_bytes (requested, at the end of the last step), reserved_bytes (maximum),
            leak_bytes_per_unit (allocated), leak_filename, leak_line, seconds_per_step, steps, out_of_memory, state
            ("complete", "killed", "running", "truncated", "gaps", "corrupt"), distance (of the figure furthest from the
            median; 1 or more: an outlier, see docs/ranks.md), path. Unknown values are <NA>.

        Raises:
            TraceError: No rank has used the device.
        """
        return ranks_table(self._comparison, None if device is None else named_device(device, self._comparison.kinds))

    def findings(self) -> tuple[RankReport, ...]:
        """Return the problems of ranks and the differences between them, the most urgent first."""
        return ranks_findings(self._comparison)

    def verdict(self) -> str:
        """Return the verdict as text: the rank that differs, its line and step; then the ranks that differ most."""
        return text_of(self._write)

    def __str__(self) -> str:
        return self.verdict()

    def __repr__(self) -> str:
        return f"<Ranks: {len(self._comparison.summaries)} of {self.world_size or 'an unknown number'}>"

    def _repr_html_(self) -> str:
        return html_of(self._write)

    def _write(self, screen: Screen) -> None:
        write_ranks(self._comparison, screen, _ROWS)
