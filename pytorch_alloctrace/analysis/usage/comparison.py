"""How the live memory differs, between two positions of one trace or between two runs of a program."""

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
    """See `Trace.diff`."""
    return differences(trace, [(a, b)], device=device, by=by)


def differences(
    trace: RecordedTrace, ranges: Sequence[tuple[Position, Position]], *, device: str | None = None, by: str = "line"
) -> pd.DataFrame:
    """The same of several ranges together: bytes and blocks are sums over their beginnings, and over their ends."""
    before, after = (
        pd.concat(
            [composition_at(trace, position, device=device, by=by).to_frame() for position in side], ignore_index=True
        )
        for side in zip(*ranges, strict=True)
    )
    sums = ("share", "largest_bytes", "live_backward_bytes", "exact_bytes", *_LIVE)
    names = [name for name in before.columns if name not in sums]
    return _changes(before, after, _key_of(by), names)


def steps_between(trace: RecordedTrace, a: Position, b: Position) -> int:
    """How many steps end after one position, up to and including another."""
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
    """See `pytorch_alloctrace.compare`."""
    if device is not None:
        device = named_device(device, [*dict.fromkeys([*trace_b.known_devices, *trace_a.known_devices])])
    if device is not None and not any(has_position(trace, at, device) for trace in (trace_a, trace_b)):
        raise PositionError(f"neither trace has {device} at {at}")
    before, after = (_composition(trace, at, by, device) for trace in (trace_a, trace_b))
    if not groups_stacks(by):
        names = [name for name in ("role", "age", "from_age", "to_age", "unit", "phase") if name in before.columns]
        return _changes(before, after, _key_of(by), names)
    chains = _chains(trace_a, before, by), _chains(trace_b, after, by)
    folders = tuple(trace.working_directory for trace in (trace_a, trace_b))
    pairs_before, pairs_after, kinds = _pairs(*chains, (folders[0], folders[1]))
    before, after = before.assign(pair=pairs_before), after.assign(pair=pairs_after)
    table = _changes(before, after, "pair", ["pair", "filename", "function", "user"])
    for when, side in (("before", before), ("after", after)):
        named = side.drop_duplicates("pair").set_index("pair")
        for name in ("line", "stack_id"):
            table[f"{name}_{when}"] = table["pair"].map(named[name]).astype("Int64")
        sources = [_text(named["source"].get(pair)) for pair in table["pair"]]
        table[f"source_{when}"] = pd.Series(sources, dtype=object, index=table.index)
    still_there = set(pairs_after)
    matches = [kinds.get(pair, NEW) if pair in still_there else GONE for pair in table["pair"]]
    table["match"] = pd.Series(matches, dtype=TEXT, index=table.index)
    return table[list(COMPARISON_COLUMNS)]


def devices_at(trace_a: RecordedTrace, trace_b: RecordedTrace, at: Position) -> list[str]:
    """The devices that at least one of two traces has at a position, those of the second first."""
    names = dict.fromkeys([*trace_b.devices, *trace_a.devices])
    return [name for name in names if has_position(trace_a, at, name) or has_position(trace_b, at, name)]


def has_position(trace: RecordedTrace, at: Position, device: str) -> bool:
    """Whether a trace has the device and, if `at` is a peak, a peak of it."""
    if at in PEAKS and device in trace.devices:
        return trace.replay.peak("reserved" if at == "peak:reserved" else "allocated", device) is not None
    return device in trace.devices


def _composition(trace: RecordedTrace, at: Position, by: str, device: str | None) -> pd.DataFrame:
    """Empty if only the other trace has the device."""
    missing = device is not None and not has_position(trace, at, device)
    # Nothing is live before the first event.
    table = composition_at(trace, -1, by=by) if missing else composition_at(trace, at, device=device, by=by)
    return table.to_frame()


def _pairs(
    before: list[_Chain], after: list[_Chain], folders: tuple[str, str]
) -> tuple[list[int], list[int], dict[int, str]]:
    """A number for each row, the same for rows that match; and how they match, for the numbers that both have."""
    ours, theirs = (list(dict.fromkeys(line for chain in chains for line in chain)) for chains in (before, after))
    files = match_files([line.filename for line in ours], [line.filename for line in theirs], folders)
    matches = match_lines(ours, theirs, files)
    now = {ours[match.before]: theirs[match.after] for match in matches}
    near = {ours[match.before] for match in matches if match.kind == NEAR}
    numbers: dict[Hashable, int] = {}
    pairs_after = [numbers.setdefault(chain, len(numbers)) for chain in after]
    kinds: dict[int, str] = {}
    pairs_before = []
    for chain in before:
        pair = numbers.get(tuple(now[line] for line in chain)) if all(line in now for line in chain) else None
        if pair is None:
            pair = numbers.setdefault((GONE, chain), len(numbers))
        elif kinds.get(pair) != NEAR:
            kinds[pair] = NEAR if near.intersection(chain) else SAME
        pairs_before.append(pair)
    return pairs_before, pairs_after, kinds


def _chains(trace: RecordedTrace, table: pd.DataFrame, by: str) -> list[_Chain]:
    """What identifies each row: its line, function or file; for a stack its frames of user code, innermost first."""
    if by != "stack":
        rows = table.to_dict("records")
        return [(CodeLine(row["filename"], row["function"], int(row["line"]), _text(row["source"])),) for row in rows]
    return [tuple(_code_line(frame) for frame in _user_frames(trace, int(stack))) for stack in table["stack_id"]]


def _text(source: Any) -> str | None:
    # A column of text has NaN instead of None.
    return source if isinstance(source, str) else None


def _code_line(frame: Frame) -> CodeLine:
    return CodeLine(frame.filename, frame.function, frame.line, frame.source)


def _user_frames(trace: RecordedTrace, stack: int) -> list[Frame]:
    """Those of user code; all, if there are none."""
    nodes = []
    while stack:
        nodes.append(stack)
        stack = int(trace.stacks.parent[stack])
    own = [node for node in nodes if trace.stacks.is_user[node]] or nodes
    return [trace.stacks.frame(node) for node in own]


def _key_of(by: str) -> str:
    """The column of a composition that identifies its rows."""
    # Sites have different names within a trace; several stacks of one line differ only in their ids.
    return {"stack": "stack_id", "role": "role", "age": "age", "phase": "phase"}.get(by, "site")


def _changes(before: pd.DataFrame, after: pd.DataFrame, key: str, names: list[str]) -> pd.DataFrame:
    """Two compositions whose rows are the same where `key` is, as one table, the largest change in either direction
    first. names: its columns besides CHANGE_COLUMNS, taken from `after` if it has the row."""
    named = pd.concat([after[names], before[names]]).drop_duplicates(key).set_index(key, drop=False)
    held = {
        f"{name}_{when}": table.groupby(key)[name].sum().reindex(named.index, fill_value=0).astype("int64")
        for when, table in (("before", before), ("after", after))
        for name in _LIVE
    }
    table = named.assign(**held, change_bytes=held["live_bytes_after"] - held["live_bytes_before"])
    order = (-table["change_bytes"].abs()).argsort(kind="stable")
    return table.iloc[order].reset_index(drop=True)[[*names, *CHANGE_COLUMNS]]
