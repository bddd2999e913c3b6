"""Differences of the live memory between two positions of a trace, or between two runs of a program."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from ...errors import PositionError
from ...reading.names import named_device
from ...reading.positions import PEAKS, Position
from ...reading.recorded import RecordedTrace
from ...reading.sites import Frame, groups_stacks
from ...reading.source_code import TextFrom, functions_of_lines, source_text
from ...reading.tables import TEXT
from .composition import composition_at
from .matching import NEAR, SAME, CodeLine, match_files, match_lines

NEW, GONE = "new", "gone"
CHANGE_COLUMNS = (
    *("live_bytes_before", "live_bytes_after", "change_bytes", "live_blocks_before", "live_blocks_after"),
)
_LIVE = ("live_bytes", "live_blocks")
_Chain = tuple[CodeLine, ...]
COMPARISON_COLUMNS = (
    *("match", "filename", "line_before", "line_after", "function", "source_before", "source_after", "user"),
    *("stack_id_before", "stack_id_after"),
    *CHANGE_COLUMNS,
)


def difference(
    trace: RecordedTrace, a: Position, b: Position, *, device: str | None = None, by: str = "line"
) -> pd.DataFrame:
    """Implement `Trace.diff`."""
    return differences(trace, [(a, b)], device=device, by=by)


def differences(
    trace: RecordedTrace, ranges: Sequence[tuple[Position, Position]], *, device: str | None = None, by: str = "line"
) -> pd.DataFrame:
    """Return the `difference` from all beginnings to all ends of several ranges, in sums over the ranges."""
    before, after = (
        pd.concat(
            [composition_at(trace, position, device=device, by=by).to_frame() for position in side], ignore_index=True
        )
        for side in zip(*ranges, strict=True)
    )
    sums = ("share", "largest_bytes", "live_backward_bytes", "exact_bytes", *_LIVE)
    names = [name for name in before.columns if name not in sums]
    return _join_compositions(before, after, _key_column(by), names)


def steps_between(trace: RecordedTrace, a: Position, b: Position) -> int:
    """Return the number of steps that end after one position, up to and including another."""
    ends = trace.positions.step_ends
    return int(((ends >= trace.first_event_after(a)) & (ends < trace.first_event_after(b))).sum())


def compare(
    trace_a: RecordedTrace,
    trace_b: RecordedTrace,
    *,
    at: Position = "peak",
    device: str | None = None,
    by: str = "line",
) -> pd.DataFrame:
    """Implement `pytorch_alloctrace.compare`."""
    if device is not None:
        device = named_device(device, [*dict.fromkeys([*trace_b.known_devices, *trace_a.known_devices])])
    if device is not None and not any(has_position(trace, at, device) for trace in (trace_a, trace_b)):
        raise PositionError(f"neither trace has {device} at {at}")
    before, after = (_compose_or_empty(trace, at, by, device) for trace in (trace_a, trace_b))
    if not groups_stacks(by):
        names = [name for name in ("role", "age", "from_age", "to_age", "unit", "phase") if name in before.columns]
        return _join_compositions(before, after, _key_column(by), names)
    versions = _Version(trace_a, before, by), _Version(trace_b, after, by)
    pairs = _match_versions(*versions)
    before, after = (
        table.assign(pair=np.array([numbers[chain] for chain in version.chains], np.int64))
        for table, version, numbers in zip((before, after), versions, pairs.numbers, strict=True)
    )
    table = _join_compositions(before, after, "pair", ["pair", "filename", "function", "user"])
    matched = [pairs.pairs[number] for number in table["pair"]]
    filenames = zip(matched, table["filename"], strict=True)
    names = [pair.after[0].filename if pair.after else filename for pair, filename in filenames]
    table["filename"] = pd.Series(names, dtype=TEXT, index=table.index)
    for when, side in (("before", before), ("after", after)):
        innermost = [chain[0] if (chain := getattr(pair, when)) else None for pair in matched]
        lines = [None if line is None else line.line for line in innermost]
        table[f"line_{when}"] = pd.Series(lines, dtype="Int64", index=table.index)
        sources = [None if line is None else line.source for line in innermost]
        table[f"source_{when}"] = pd.Series(sources, dtype=object, index=table.index)
        stacks = side.drop_duplicates("pair").set_index("pair")["stack_id"]
        table[f"stack_id_{when}"] = table["pair"].map(stacks).astype("Int64")
    table["match"] = pd.Series([pair.kind for pair in matched], dtype=TEXT, index=table.index)
    return table[list(COMPARISON_COLUMNS)]


def devices_at(trace_a: RecordedTrace, trace_b: RecordedTrace, at: Position) -> list[str]:
    """Return the devices that at least one trace has at a position, those of the second trace first."""
    names = dict.fromkeys([*trace_b.devices, *trace_a.devices])
    return [name for name in names if has_position(trace_a, at, name) or has_position(trace_b, at, name)]


def has_position(trace: RecordedTrace, at: Position, device: str) -> bool:
    """Return True if a trace has the device and, if `at` is a peak, a peak of the device."""
    if at in PEAKS and device in trace.devices:
        return trace.replay.peak("reserved" if at == "peak:reserved" else "allocated", device) is not None
    return device in trace.devices


def _compose_or_empty(trace: RecordedTrace, at: Position, by: str, device: str | None) -> pd.DataFrame:
    """Return the composition, empty if only the other trace has the device."""
    is_missing = device is not None and not has_position(trace, at, device)
    # Nothing is live before the first event.
    table = composition_at(trace, -1, by=by) if is_missing else composition_at(trace, at, device=device, by=by)
    return table.to_frame()


class _Version:
    """One of two compared runs: the lines of its rows, and all lines of its program that are known."""

    def __init__(self, trace: RecordedTrace, table: pd.DataFrame, by: str) -> None:
        self.trace = trace
        self.by = by
        self.chains = _make_chains(trace, table, by)
        """What identifies each row: its line, function or file, or all user frames of its stack, innermost first."""
        user_lines = _lines_of_stacks(trace, trace.stacks.is_user)
        self._user_files = {line.filename for line in user_lines}
        if by not in ("line", "stack"):
            other_lines = _groups_of_stacks(trace, by)
        else:
            other_lines = [*user_lines, *_lines_of_stacks(trace, trace.stacks.site == 0)]
        self.recorded = [*dict.fromkeys([*(line for chain in self.chains for line in chain), *other_lines])]

    @property
    def files(self) -> list[str]:
        return [line.filename for line in self.recorded]

    def list_lines(self, filenames: Iterable[str]) -> list[CodeLine]:
        """Return `recorded`, and all other lines of those files of user code that are as they were recorded."""
        if self.by not in ("line", "stack", "function"):
            return self.recorded
        names = {(line.filename, line.function, line.line) for line in self.recorded}
        texts: dict[str, dict[int, str | None]] = {name: {} for name in filenames if name in self._user_files}
        for line in self.recorded:
            if line.filename in texts and line.line:
                texts[line.filename][line.line] = line.source
        lines = [*self.recorded]
        for filename, recorded_text in texts.items():
            file_lines = self._read_file(filename, recorded_text)
            lines += [line for line in file_lines if (filename, line.function, line.line) not in names]
        return lines

    def _read_file(self, filename: str, recorded_text: dict[int, str | None]) -> list[CodeLine]:
        path = Path(self.trace.working_directory) / filename
        text, text_from = source_text(str(path), recorded_text, self.trace.begin_ns)
        # A file written since may have lines that the program lacked, although the lines in stacks agree.
        if text_from is not TextFrom.FILE or path.stat().st_mtime_ns >= self.trace.begin_ns:
            return []
        functions = functions_of_lines("\n".join(text.values()))
        if self.by == "function":
            names = sorted({function for _, function in functions})
            return [CodeLine(filename, name, 0, None, is_recorded=False) for name in names]
        return [CodeLine(filename, name, line, text.get(line), is_recorded=False) for line, name in sorted(functions)]


@dataclass(frozen=True)
class _Pair:
    """A row of the comparison. before, after: its lines in each version; None if that version lacks one of them."""

    before: _Chain | None
    after: _Chain | None
    kind: str


@dataclass(frozen=True)
class _Pairs:
    pairs: list[_Pair]
    numbers: tuple[dict[_Chain, int], dict[_Chain, int]]
    """The number of the pair of each chain, before and after."""


def _match_versions(before: _Version, after: _Version) -> _Pairs:
    """Match the rows of two tables by matching all lines that are known of both programs."""
    files = match_files(before.files, after.files, (before.trace.working_directory, after.trace.working_directory))
    lines_before, lines_after = before.list_lines(files), after.list_lines(files.values())
    matches = match_lines(lines_before, lines_after, files)
    forward = {lines_before[match.before]: lines_after[match.after] for match in matches}
    backward = {line_after: line_before for line_before, line_after in forward.items()}
    near_lines = {lines_after[match.after] for match in matches if match.kind == NEAR}
    pairs: dict[_Pair, int] = {}
    numbers: tuple[dict[_Chain, int], dict[_Chain, int]] = {}, {}
    for side, version, other_lines in ((0, before, forward), (1, after, backward)):
        for chain in dict.fromkeys(version.chains):
            matched = tuple(other_lines[line] for line in chain) if all(line in other_lines for line in chain) else None
            if matched is None:
                pair = _Pair(chain, None, GONE) if side == 0 else _Pair(None, chain, NEW)
            else:
                chains = (chain, matched) if side == 0 else (matched, chain)
                pair = _Pair(*chains, NEAR if near_lines.intersection(chains[1]) else SAME)
            numbers[side][chain] = pairs.setdefault(pair, len(pairs))
    return _Pairs([*pairs], numbers)


def _lines_of_stacks(trace: RecordedTrace, selected: npt.NDArray[np.bool_]) -> list[CodeLine]:
    """Return the lines of the innermost frames of the selected stacks."""
    stacks = np.flatnonzero(selected)
    stacks = stacks[stacks > 0]
    _, first = np.unique(trace.stacks.lines[stacks], return_index=True)
    return [_make_code_line(trace.stacks.frame(int(stack))) for stack in stacks[first]]


def _groups_of_stacks(trace: RecordedTrace, by: str) -> list[CodeLine]:
    """Return the functions, files or modules of all stacks."""
    stacks = np.arange(1, len(trace.stacks))
    _, first = np.unique(trace.stacks.groups_of(stacks, by), return_index=True)
    rows = [trace.stacks.describe(int(stack), by) for stack in stacks[first]]
    return [CodeLine(row["filename"], row["function"], row["line"], row["source"]) for row in rows]


def _make_chains(trace: RecordedTrace, table: pd.DataFrame, by: str) -> list[_Chain]:
    if by != "stack":
        rows = table.to_dict("records")
        return [(CodeLine(row["filename"], row["function"], int(row["line"]), _text(row["source"])),) for row in rows]
    return [
        tuple(_make_code_line(frame) for frame in _user_frames(trace, int(stack))) or (CodeLine("", "", 0, None),)
        for stack in table["stack_id"]
    ]


def _text(source: Any) -> str | None:
    # A column of text has NaN in place of None.
    return source if isinstance(source, str) else None


def _make_code_line(frame: Frame) -> CodeLine:
    return CodeLine(frame.filename, frame.function, frame.line, frame.source)


def _user_frames(trace: RecordedTrace, stack: int) -> list[Frame]:
    """Return the frames of user code, or all frames if there are none."""
    nodes = []
    while stack:
        nodes.append(stack)
        stack = int(trace.stacks.parent[stack])
    user_nodes = [node for node in nodes if trace.stacks.is_user[node]] or nodes
    return [trace.stacks.frame(node) for node in user_nodes]


def _key_column(by: str) -> str:
    # A site's name is unique within a trace. Stacks of one line differ only in their ids.
    return {"stack": "stack_id", "role": "role", "age": "age", "phase": "phase"}.get(by, "site")


def _join_compositions(before: pd.DataFrame, after: pd.DataFrame, key: str, names: list[str]) -> pd.DataFrame:
    """Join compositions on `key`: `names`, of `after` if it has the row, and CHANGE_COLUMNS; largest change first."""
    labels = pd.concat([after[names], before[names]]).drop_duplicates(key).set_index(key, drop=False)
    sums = {
        f"{name}_{when}": table.groupby(key)[name].sum().reindex(labels.index, fill_value=0).astype("int64")
        for when, table in (("before", before), ("after", after))
        for name in _LIVE
    }
    table = labels.assign(**sums, change_bytes=sums["live_bytes_after"] - sums["live_bytes_before"])
    order = (-table["change_bytes"].abs()).argsort(kind="stable")
    return table.iloc[order].reset_index(drop=True)[[*names, *CHANGE_COLUMNS]]
