"""The lines of one source file, each with what it and everything that it called allocated.

A line counts once for an allocation however often it is on its stack. What backward allocated counts for the line of
the forward that caused it, and its callers.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

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
_LISTED = 8
"""As many files are listed where the asked one is not there."""


@dataclass(frozen=True, eq=False)
class Annotation:
    """A source file with what its lines allocated on a device, in the whole run or a range. Requested bytes."""

    filename: str
    """As the code objects have it."""
    device: str
    table: pd.DataFrame
    """See `Trace.annotate`."""
    text_from: TextFrom
    """Whether the text is the file's, or the trace's."""
    peak: PeakMemory
    """The peak at which `peak_bytes` were held: the highest of the ranges."""


def annotate(
    trace: RecordedTrace,
    file: str,
    pairs: Sequence[tuple[Position | None, Position | None]] = ((None, None),),
    *,
    device: str | None = None,
) -> Annotation:
    """See `Trace.annotate`. pairs: since and until, of several ranges that do not overlap: allocations,
    total_bytes and net_bytes are then sums over them."""
    filename = find_file(trace, file)
    if tuple(pairs) == ((None, None),):
        ranges = [Range(0, trace.end_seq)]
        peak = peak_memory(trace, "allocated", device=device)
    else:
        ranges = ranges_between(trace, pairs, device=device)
        peak = peak_of_ranges(trace, ranges, "allocated", device=device)
    lines = _LinesOfStacks(trace.stacks, filename)
    table = _figures(trace, lines, peak, ranges)
    path = os.path.join(trace.working_directory, filename)
    text, text_from = source_text(path, lines.recorded, trace.begin_ns)
    if text_from is not TextFrom.FILE:
        # The trace may be from another machine.
        here, here_from = source_text(file, lines.recorded, trace.begin_ns)
        text, text_from = (here, here_from) if here_from is TextFrom.FILE else (text, text_from)
    table = table.reindex(sorted({*text, *table.index}), fill_value=0).rename_axis("line").reset_index()
    sources = [text.get(int(line)) for line in table["line"]]
    table.insert(1, "source", pd.Series(sources, index=table.index, dtype=object))
    return Annotation(filename, peak.device, table[[*ANNOTATION_COLUMNS]], text_from, peak)


def find_file(trace: RecordedTrace, file: str) -> str:
    """The name that the trace has for a file; `file`: that, or the end of it. Files of the user come first. Raises
    TraceError for a file that the trace does not have, and for an end that several have."""
    stacks = trace.stacks
    _, first = np.unique(stacks.lines, return_index=True)
    frames = {(stacks.frame(int(stack)).filename, bool(stacks.is_user[stack])) for stack in first if stack}
    own = sorted(name for name, is_user in frames if is_user)
    libraries = sorted(name for name, is_user in frames if not is_user and name)
    wanted = os.path.normpath(file) if file else ""
    for names in (own, libraries):
        found = [name for name in names if wanted and (name == file or f"/{name}".endswith(f"/{wanted}"))]
        if len(found) > 1 and wanted not in found:
            raise TraceError(f"the trace has {len(found)} files {file!r}: say which, {_listed(trace, found, 'or')}")
        if found:
            return wanted if wanted in found else found[0]
    has = _listed(trace, own, "and") if own else "no file of your own code (recorded without stacks?)"
    raise TraceError(f"the trace has no file {file!r}: it has {has}" if file else f"name a file: the trace has {has}")


def _listed(trace: RecordedTrace, names: list[str], last: str) -> str:
    shown = [short_filename(name, trace.working_directory) for name in names]
    if len(set(shown)) < len(names):
        shown = names
    if len(shown) > _LISTED:
        shown = [*shown[:_LISTED], f"{len(shown) - _LISTED} more"]
    return f" {last} ".join(filter(None, [", ".join(shown[:-1]), shown[-1]]))


class _LinesOfStacks:
    """Which lines of a file are on each stack."""

    def __init__(self, stacks: StackIndex, filename: str) -> None:
        self._stacks = stacks
        _, first, number = np.unique(stacks.lines, return_index=True, return_inverse=True)
        frames = [stacks.frame(int(stack)) for stack in first]
        lines = np.array([frame.line if frame.filename == filename else 0 for frame in frames], dtype=np.int64)
        self._line = np.maximum(lines[number], 0)
        self._known: dict[int, frozenset[int]] = {0: frozenset()}
        self.recorded = {frame.line: frame.source for frame in frames if frame.filename == filename and frame.line > 0}
        """The lines that occur in stacks, with their text as the trace has it."""

    def of(self, stack: int) -> frozenset[int]:
        """The lines on a stack."""
        pending = []
        while stack not in self._known:
            pending.append(stack)
            stack = int(self._stacks.parent[stack])
        found = self._known[stack]
        for frame in reversed(pending):
            line = int(self._line[frame])
            if line and line not in found:
                found = found | {line}
            self._known[frame] = found
        return found


def _figures(trace: RecordedTrace, lines: _LinesOfStacks, peak: PeakMemory, ranges: Sequence[Range]) -> pd.DataFrame:
    """allocations, total_bytes, peak_bytes, net_bytes of the lines that have any, by line."""
    device = peak.device

    def held_at(positions: Iterable[int]) -> pd.DataFrame:
        totals = [tables.stack_totals(trace, position, device=device) for position in positions]
        return pd.concat(totals).groupby("stack_id")[["allocations", "total_bytes", "live_bytes"]].sum()

    totals = held_at(within.until for within in ranges)
    if ranges[0].first > 0:
        totals = totals.sub(held_at(within.since for within in ranges), fill_value=0)
    at_peak = tables.stack_totals(trace, peak.seq, device=device).set_index("stack_id")["live_bytes"]
    joined = totals.join(at_peak.rename("peak_bytes"), how="outer").fillna(0).astype(np.int64)
    sums: dict[int, npt.NDArray[np.int64]] = {}
    columns = joined[["allocations", "total_bytes", "peak_bytes", "live_bytes"]]
    for stack, values in zip(columns.index, columns.to_numpy(np.int64), strict=True):
        for line in lines.of(int(stack)):
            sums[line] = sums.get(line, 0) + values
    found = pd.DataFrame.from_dict(sums, orient="index", columns=[*ANNOTATION_COLUMNS[2:]], dtype=np.int64)
    return found[found.any(axis=1)]
