"""Differences of the live memory between two positions of a trace, or between two runs of a program."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import pandas as pd

from ...errors import PositionError
from ...reading.names import named_device
from ...reading.positions import PEAKS, Position
from ...reading.recorded import RecordedTrace
from ...reading.sites import Frame, groups_stacks
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
    chains = _make_chains(trace_a, before, by), _make_chains(trace_b, after, by)
    folders = tuple(trace.working_directory for trace in (trace_a, trace_b))
    pairs_before, pairs_after, kinds = _match_chains(*chains, (folders[0], folders[1]))
    before, after = before.assign(pair=pairs_before), after.assign(pair=pairs_after)
    table = _join_compositions(before, after, "pair", ["pair", "filename", "function", "user"])
    for when, side in (("before", before), ("after", after)):
        first_rows = side.drop_duplicates("pair").set_index("pair")
        for name in ("line", "stack_id"):
            table[f"{name}_{when}"] = table["pair"].map(first_rows[name]).astype("Int64")
        sources = [_text(first_rows["source"].get(pair)) for pair in table["pair"]]
        table[f"source_{when}"] = pd.Series(sources, dtype=object, index=table.index)
    pairs_in_after = set(pairs_after)
    matches = [kinds.get(pair, NEW) if pair in pairs_in_after else GONE for pair in table["pair"]]
    table["match"] = pd.Series(matches, dtype=TEXT, index=table.index)
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


def _match_chains(
    before: list[_Chain], after: list[_Chain], folders: tuple[str, str]
) -> tuple[list[int], list[int], dict[int, str]]:
    """Return the pair number of each row of two tables, equal for matching rows, and the kind of match by pair."""
    lines_before, lines_after = (
        list(dict.fromkeys(line for chain in chains for line in chain)) for chains in (before, after)
    )
    files = match_files([line.filename for line in lines_before], [line.filename for line in lines_after], folders)
    matches = match_lines(lines_before, lines_after, files)
    matched_line = {lines_before[match.before]: lines_after[match.after] for match in matches}
    near_lines = {lines_before[match.before] for match in matches if match.kind == NEAR}
    numbers: dict[Hashable, int] = {}
    pairs_after = [numbers.setdefault(chain, len(numbers)) for chain in after]
    kinds: dict[int, str] = {}
    pairs_before = []
    for chain in before:
        pair = (
            numbers.get(tuple(matched_line[line] for line in chain))
            if all(line in matched_line for line in chain)
            else None
        )
        if pair is None:
            pair = numbers.setdefault((GONE, chain), len(numbers))
        elif kinds.get(pair) != NEAR:
            kinds[pair] = NEAR if near_lines.intersection(chain) else SAME
        pairs_before.append(pair)
    return pairs_before, pairs_after, kinds


def _make_chains(trace: RecordedTrace, table: pd.DataFrame, by: str) -> list[_Chain]:
    """Return what identifies each row: its line, function or file, or all user frames of its stack, innermost first."""
    if by != "stack":
        rows = table.to_dict("records")
        return [(CodeLine(row["filename"], row["function"], int(row["line"]), _text(row["source"])),) for row in rows]
    return [tuple(_make_code_line(frame) for frame in _user_frames(trace, int(stack))) for stack in table["stack_id"]]


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
