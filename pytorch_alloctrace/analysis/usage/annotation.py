"""Lines of a source file, each with the bytes allocated in it and in everything it called.

A line counts once per allocation, however often it is on the stack. Memory that backward allocated counts for the line
of the forward that caused it, and for its callers.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from ...errors import TraceError
from ...reading import tables
from ...reading.positions import Position, Range
from ...reading.recorded import RecordedTrace
from ...reading.sites import StackIndex
from ...reading.source_code import TextFrom, short_filename, source_text
from .peak import PeakMemory, peak_memory, peak_of_ranges
from .ranges import ranges_between

ANNOTATION_COLUMNS = ("line", "source", "allocations", "total_bytes", "peak_bytes", "net_bytes")
_MAX_LISTED_FILES = 8


@dataclass(frozen=True, eq=False)
class Annotation:
    """Allocations by line of a source file, on a device, in the whole run or in ranges. Requested bytes."""

    filename: str
    device: str
    table: pd.DataFrame
    """Table of `Trace.annotate`."""
    text_from: TextFrom
    peak: PeakMemory
    """The peak that `peak_bytes` refers to: the highest of the ranges."""


def annotate(
    trace: RecordedTrace,
    file: str,
    pairs: Sequence[tuple[Position | None, Position | None]] = ((None, None),),
    *,
    device: str | None = None,
) -> Annotation:
    """Implement `Trace.annotate`, with sums over the disjoint ranges (since, until) in `pairs`."""
    filename = find_file(trace, file)
    if tuple(pairs) == ((None, None),):
        ranges = [Range(0, trace.end_seq)]
        peak = peak_memory(trace, "allocated", device=device)
    else:
        ranges = ranges_between(trace, pairs, device=device)
        peak = peak_of_ranges(trace, ranges, "allocated", device=device)
    lines = _LinesOfStacks(trace.stacks, filename)
    table = _sum_by_line(trace, lines, peak, ranges)
    path = str(Path(trace.working_directory) / filename)
    text, text_from = source_text(path, lines.recorded, trace.begin_ns)
    if text_from is not TextFrom.FILE:
        # The trace may be from another machine: try the path as given.
        local_text, local_from = source_text(file, lines.recorded, trace.begin_ns)
        text, text_from = (local_text, local_from) if local_from is TextFrom.FILE else (text, text_from)
    table = table.reindex(sorted({*text, *table.index}), fill_value=0).rename_axis("line").reset_index()
    sources = [text.get(int(line)) for line in table["line"]]
    table.insert(1, "source", pd.Series(sources, index=table.index, dtype=object))
    return Annotation(filename, peak.device, table[[*ANNOTATION_COLUMNS]], text_from, peak)


def find_file(trace: RecordedTrace, file: str) -> str:
    """Return the one filename of the trace that is `file` or ends with it; user code takes precedence."""
    stacks = trace.stacks
    _, first_stacks = np.unique(stacks.lines, return_index=True)
    frames = {(stacks.frame(int(stack)).filename, bool(stacks.is_user[stack])) for stack in first_stacks if stack}
    user_files = sorted(name for name, is_user in frames if is_user)
    library_files = sorted(name for name, is_user in frames if not is_user and name)
    normalized = os.path.normpath(file) if file else ""
    for names in (user_files, library_files):
        matches = [name for name in names if normalized and (name == file or f"/{name}".endswith(f"/{normalized}"))]
        if len(matches) > 1 and normalized not in matches:
            raise TraceError(
                f"{len(matches)} files of the trace match {file!r}: name one of {_join_names(trace, matches, 'or')}"
            )
        if matches:
            return normalized if normalized in matches else matches[0]
    available = (
        _join_names(trace, user_files, "and") if user_files else "no file of your own code (recorded without stacks?)"
    )
    raise TraceError(
        f"the trace has no file {file!r}: it has {available}" if file else f"name a file: the trace has {available}"
    )


def _join_names(trace: RecordedTrace, names: list[str], last: str) -> str:
    displayed = [short_filename(name, trace.working_directory) for name in names]
    if len(set(displayed)) < len(names):
        displayed = names
    if len(displayed) > _MAX_LISTED_FILES:
        displayed = [*displayed[:_MAX_LISTED_FILES], f"{len(displayed) - _MAX_LISTED_FILES} more"]
    return f" {last} ".join(filter(None, [", ".join(displayed[:-1]), displayed[-1]]))


class _LinesOfStacks:
    def __init__(self, stacks: StackIndex, filename: str) -> None:
        self._stacks = stacks
        _, first_stacks, line_index = np.unique(stacks.lines, return_index=True, return_inverse=True)
        frames = [stacks.frame(int(stack)) for stack in first_stacks]
        lines = np.array([frame.line if frame.filename == filename else 0 for frame in frames], dtype=np.int64)
        self._line = np.maximum(lines[line_index], 0)
        self._lines_of_stack: dict[int, frozenset[int]] = {0: frozenset()}
        self.recorded = {frame.line: frame.source for frame in frames if frame.filename == filename and frame.line > 0}
        """Text in the trace of each line of the file that occurs in a stack, by number."""

    def of(self, stack: int) -> frozenset[int]:
        pending = []
        while stack not in self._lines_of_stack:
            pending.append(stack)
            stack = int(self._stacks.parent[stack])
        lines = self._lines_of_stack[stack]
        for frame in reversed(pending):
            line = int(self._line[frame])
            if line and line not in lines:
                lines = lines | {line}
            self._lines_of_stack[frame] = lines
        return lines


def _sum_by_line(
    trace: RecordedTrace, lines: _LinesOfStacks, peak: PeakMemory, ranges: Sequence[Range]
) -> pd.DataFrame:
    """Return allocations, total_bytes, peak_bytes and net_bytes by line, without lines that have none."""
    device = peak.device

    def sum_totals(positions: Iterable[int]) -> pd.DataFrame:
        totals = [tables.stack_totals(trace, position, device=device) for position in positions]
        return pd.concat(totals).groupby("stack_id")[["allocations", "total_bytes", "live_bytes"]].sum()

    totals = sum_totals(within.until for within in ranges)
    if ranges[0].first > 0:
        totals = totals.sub(sum_totals(within.since for within in ranges), fill_value=0)
    at_peak = tables.stack_totals(trace, peak.seq, device=device).set_index("stack_id")["live_bytes"]
    joined = totals.join(at_peak.rename("peak_bytes"), how="outer").fillna(0).astype(np.int64)
    sums: dict[int, npt.NDArray[np.int64]] = {}
    columns = joined[["allocations", "total_bytes", "peak_bytes", "live_bytes"]]
    for stack, values in zip(columns.index, columns.to_numpy(np.int64), strict=True):
        for line in lines.of(int(stack)):
            sums[line] = sums.get(line, 0) + values
    table = pd.DataFrame.from_dict(sums, orient="index", columns=[*ANNOTATION_COLUMNS[2:]], dtype=np.int64)
    return table[table.any(axis=1)]
