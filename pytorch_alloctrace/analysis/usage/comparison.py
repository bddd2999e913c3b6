"""Differences of the live memory between two positions of a trace, or between two runs of a program."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from ...errors import PositionError
from ...reading.modules import is_outside, outside_name
from ...reading.names import ROLES, named_device
from ...reading.positions import PEAKS, Position
from ...reading.recorded import RecordedTrace
from ...reading.sites import Frame, groups_stacks
from ...reading.source_code import TextFrom, functions_of_lines, source_text
from ...reading.tables import TEXT
from .composition import composition_at
from .matching import NEAR, SAME, CodeLine, match_by_text, match_files, match_lines

NEW, GONE = "new", "gone"
CHANGE_COLUMNS = (
    *("live_bytes_before", "live_bytes_after", "change_bytes", "live_blocks_before", "live_blocks_after"),
)
_LIVE = ("live_bytes", "live_blocks")
_Chain = tuple[CodeLine, ...]
COMPARISON_COLUMNS = (
    *("match", "filename", "line_before", "line_after", "function", "source_before", "source_after", "user"),
    *("moved", "filename_before", "function_before"),
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
    pairs = _match_versions(*versions, by)
    before, after = (
        table.assign(pair=np.array([numbers[chain] for chain in version.chains], np.int64))
        for table, version, numbers in zip((before, after), versions, pairs.numbers, strict=True)
    )
    table = _join_compositions(before, after, "pair", ["pair", "filename", "function", "user"])
    matched = [pairs.pairs[number] for number in table["pair"]]
    for name in ("filename", "function"):
        rows = zip(matched, table[name], strict=True)
        names = [getattr(pair.after[0], name) if pair.after else value for pair, value in rows]
        table[name] = pd.Series(names, dtype=TEXT, index=table.index)
        names_before = [getattr(pair.before[0], name) if pair.before else None for pair in matched]
        table[f"{name}_before"] = pd.Series(names_before, dtype=object, index=table.index)
    table["moved"] = pd.Series([pair.is_moved for pair in matched], dtype=np.bool_, index=table.index)
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
        self.chains = _make_chains(trace, table, by)
        """What identifies each row: its line, function or file, or all user frames of its stack, innermost first."""
        chain_lines = [line for chain in self.chains for line in chain]
        user_lines = _lines_of_stacks(trace, trace.stacks.is_user)
        recorded = [*user_lines, *_lines_of_stacks(trace, trace.stacks.site == 0)]
        # The lines of rows first: of equal lines, the first stays, and only rows have bytes.
        recorded = [*dict.fromkeys([*(chain_lines if by in ("line", "stack") else []), *recorded])]
        self.lines = [*recorded, *self._list_other_lines(recorded, {line.filename for line in user_lines})]
        """All lines that are recorded, and those of files of user code that are as they were recorded."""
        self.groups = self.lines
        """Lines, functions, files or modules to match."""
        if by not in ("line", "stack"):
            functions = {line.place for line in self.lines} if by == "function" else set()
            groups = [*_groups_of_stacks(trace, by), *(CodeLine(*place, 0, None) for place in sorted(functions))]
            self.groups = [*dict.fromkeys([*chain_lines, *groups])]

    @property
    def files(self) -> list[str]:
        return [line.filename for line in (*self.groups, *self.lines)]

    def _list_other_lines(self, recorded: Sequence[CodeLine], user_files: set[str]) -> list[CodeLine]:
        names = {(*line.place, line.line) for line in recorded}
        texts: dict[str, dict[int, str | None]] = {}
        for line in recorded:
            if line.filename in user_files and line.line:
                texts.setdefault(line.filename, {})[line.line] = line.source
        lines = itertools.chain.from_iterable(map(self._read_file, texts, texts.values()))
        return [line for line in lines if (*line.place, line.line) not in names]

    def _read_file(self, filename: str, recorded_text: dict[int, str | None]) -> list[CodeLine]:
        path = Path(self.trace.working_directory) / filename
        text, text_from = source_text(str(path), recorded_text, self.trace.begin_ns)
        # A file written since may have lines that the program lacked, although the lines in stacks agree.
        if text_from is not TextFrom.FILE or path.stat().st_mtime_ns >= self.trace.begin_ns:
            return []
        functions = functions_of_lines("\n".join(text.values()))
        return [CodeLine(filename, name, line, text.get(line), is_recorded=False) for line, name in sorted(functions)]


@dataclass(frozen=True)
class _Pair:
    """A row of the comparison. before, after: its lines in each version; None if that version lacks one of them."""

    before: _Chain | None
    after: _Chain | None
    kind: str
    is_moved: bool = False
    """True if the first line was in another function, or in a file that does not match."""


@dataclass(frozen=True)
class _Pairs:
    pairs: list[_Pair]
    numbers: tuple[dict[_Chain, int], dict[_Chain, int]]
    """The number of the pair of each chain, before and after."""


def _match_versions(before: _Version, after: _Version, by: str) -> _Pairs:
    """Match the rows of two tables by matching all lines that are known of both programs."""
    files = match_files(before.files, after.files, (before.trace.working_directory, after.trace.working_directory))
    files |= match_by_text(
        [line for line in before.lines if line.filename not in files],
        [line for line in after.lines if line.filename not in files.values()],
        lambda line: line.filename,
    )
    matches = match_lines(before.groups, after.groups, files)
    forward = {before.groups[match.before]: after.groups[match.after] for match in matches}
    if by == "function":
        forward |= _match_renamed_functions(before, after, forward)
    backward = {line_after: line_before for line_before, line_after in forward.items()}
    near_lines = {after.groups[match.after] for match in matches if match.kind == NEAR}
    pairs: dict[_Pair, int] = {}
    numbers: tuple[dict[_Chain, int], dict[_Chain, int]] = {}, {}
    for side, version, other_lines in ((0, before, forward), (1, after, backward)):
        for chain in dict.fromkeys(version.chains):
            matched = tuple(other_lines[line] for line in chain) if all(line in other_lines for line in chain) else None
            if matched is None:
                pair = _Pair(chain, None, GONE) if side == 0 else _Pair(None, chain, NEW)
            else:
                chains = (chain, matched) if side == 0 else (matched, chain)
                place = files.get(chains[0][0].filename), chains[0][0].function
                kind = NEAR if near_lines.intersection(chains[1]) else SAME
                pair = _Pair(*chains, kind, place != chains[1][0].place)
            numbers[side][chain] = pairs.setdefault(pair, len(pairs))
    return _Pairs([*pairs], numbers)


def _match_renamed_functions(
    before: _Version, after: _Version, forward: dict[CodeLine, CodeLine]
) -> dict[CodeLine, CodeLine]:
    """Match the functions that are in none of the matches `forward`, by the text of their lines."""
    matched = [{line.place for line in side} for side in (forward, forward.values())]
    places = match_by_text(
        [line for line in before.lines if line.place not in matched[0]],
        [line for line in after.lines if line.place not in matched[1]],
        lambda line: line.place,
    )
    groups = [{line.place: line for line in version.groups} for version in (before, after)]
    return {
        groups[0][place]: groups[1][other]
        for place, other in places.items()
        if place in groups[0] and other in groups[1]
    }


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
    groups = [CodeLine(row["filename"], row["function"], row["line"], row["source"]) for row in rows]
    # A role of which nothing was live outside of modules is not new or gone.
    roles = ROLES if any(is_outside(group.function) and not group.filename for group in groups) else ()
    return [*groups, *(CodeLine("", outside_name(role), 0, None) for role in roles)]


def _make_chains(trace: RecordedTrace, table: pd.DataFrame, by: str) -> list[_Chain]:
    if by != "stack":
        rows = table.to_dict("records")
        return [
            (
                CodeLine(
                    *(row["filename"], row["function"], int(row["line"]), _text(row["source"])),
                    live_bytes=int(row["live_bytes"]),
                ),
            )
            for row in rows
        ]
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
