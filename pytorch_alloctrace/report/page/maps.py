"""The memory at each moment of the page: segments and blocks, and what each stack holds, as runs: a row says that a
stack holds so much from one moment to another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from ...analysis.free_memory.allocator import SettingsHistory
from ...analysis.free_memory.fragmentation import Fragmentation, blocks_with_steps, fragmentation_of
from ...analysis.free_memory.pinning import pinning_lines
from ...analysis.usage.composition import PHASES, StackPhases, composition_of, phases_of_blocks
from ...reading.names import ROLES, UNKNOWN
from ...reading.recorded import RecordedTrace
from ...reading.table import ALLOCATED, INACTIVE, PENDING_FREE, Table, sums
from ..tables import rows
from .columns import MISSING, Columns
from .moments import Bounds
from .names import PageStacks, fewer_stacks

_VALUES = ["bytes", "blocks", "backward_bytes"]


@dataclass(frozen=True)
class Holdings:
    """What the stacks of a device hold."""

    table: pd.DataFrame
    """moment, stack_id, bytes, blocks, backward_bytes: a row for each stack that holds something."""
    shown_under: dict[int, int]
    """The stack under which each is shown; -1: under none of its own."""

    def blocks_at(self, moments: int) -> npt.NDArray[np.int64]:
        """How many blocks are live at each moment."""
        return np.bincount(self.table["moment"], weights=self.table["blocks"], minlength=moments).astype(np.int64)


def holdings_of(trace: RecordedTrace, device: str, seqs: Sequence[int], bounds: Bounds) -> Holdings:
    """What the stacks of a device hold after these events."""
    tables = []
    for moment, seq in enumerate(seqs):
        totals = trace.stack_totals(seq, device=device)
        held = totals.take(totals["live_blocks"] > 0)
        tables.append(
            pd.DataFrame(
                {
                    "moment": moment,
                    "stack_id": held["stack_id"],
                    "bytes": held["live_bytes"],
                    "blocks": held["live_blocks"],
                    "backward_bytes": held["live_backward_bytes"],
                }
            )
        )
    table = pd.concat(tables, ignore_index=True)
    most = table.groupby("stack_id")["bytes"].max()
    stack_ids, sizes = most.index.to_numpy(np.int64), most.to_numpy(np.int64)
    # Stacks are put together until their rows fit.
    bound = bounds.stacks
    while True:
        under = fewer_stacks(trace.stacks, stack_ids, sizes, bound, bounds.sites)
        shown = table.assign(stack_id=table["stack_id"].map(under))
        shown = shown.groupby(["moment", "stack_id"], as_index=False)[_VALUES].sum()
        if bound <= 1 or run_count(shown, ["stack_id"], _VALUES) <= bounds.holding_runs:
            return Holdings(shown, under)
        bound //= 2


def run_count(table: pd.DataFrame, keys: list[str], values: list[str]) -> int:
    """How many rows `runs` makes of a table."""
    return len(runs(table, keys, values))


def runs(table: pd.DataFrame, keys: list[str], values: list[str]) -> pd.DataFrame:
    """Rows that are the same at moments that follow each other, as one, with the `first` and the `last` of them. table:
    with `moment`; keys: what is the same thing; values: what has to be the same, too. By first moment, then by key."""
    ordered = table.sort_values([*keys, "moment"], kind="stable", ignore_index=True)
    moment = ordered["moment"].to_numpy(np.int64)
    begins = np.ones(len(ordered), dtype=bool)
    if len(ordered) > 1:
        same = moment[1:] == moment[:-1] + 1
        for name in [*keys, *values]:
            column = ordered[name].to_numpy()
            same &= column[1:] == column[:-1]
        begins[1:] = ~same
    starts = np.flatnonzero(begins)
    ends = np.append(starts[1:], len(ordered))[: len(starts)] - 1
    made = ordered.iloc[starts].drop(columns="moment").assign(first=moment[starts], last=moment[ends])
    return made.sort_values(["first", *keys], kind="stable", ignore_index=True)


def packed_holdings(holdings: Holdings, stacks: PageStacks, columns: Columns) -> dict[str, Any]:
    """As the page has them."""
    made = runs(holdings.table, ["stack_id"], _VALUES)
    frames = {int(stack): stacks.frame(int(stack)) if stack >= 0 else -1 for stack in made["stack_id"].unique()}
    return {
        "frame": columns.add(made["stack_id"].map(frames)),
        "bytes": columns.add(made["bytes"], differences=False),
        "blocks": columns.add(made["blocks"], differences=False),
        "backward": columns.add(made["backward_bytes"], differences=False),
        "first": columns.add(made["first"]),
        "length": columns.add(made["last"] - made["first"], differences=False),
    }


_SEGMENT = ["address", "total_bytes", "stream", "pool", "is_large", "is_expandable"]
_BLOCK = ["segment", "address", "block_bytes", "requested_bytes", "state", "stack_id", "alloc_seq", "birth_time"]
_STATES = {ALLOCATED: 0, PENDING_FREE: 1, INACTIVE: 2}
PINNER = 4
"""Added to the state of a block that pins its segment."""
_PINNED_LINES = 6
_GROUPS = 300
"""Modules, those that hold the most."""
_POOL_FIGURES = ("segments", "total_bytes", "active_bytes", "free_bytes", "largest_free_bytes")
TIMES = 1 << 16
"""In how many parts the run is divided for the births of blocks."""


@dataclass
class Maps:
    """What is known of a device at some of the moments."""

    moments: list[int]
    """Those that have a map, by number."""
    segments: pd.DataFrame
    blocks: pd.DataFrame
    left_out: dict[int, int] = field(default_factory=dict)
    """How many of the smallest blocks a map lacks, by moment."""
    fragmentation: dict[int, dict[str, Any]] = field(default_factory=dict)
    groups: dict[str, dict[int, list[list[Any]]]] = field(default_factory=dict)
    """The live memory by what else it can be told apart ("phase"; "module" and "role" where a trace has them): name,
    bytes, blocks, by moment."""


def maps_of(
    trace: RecordedTrace,
    device: str,
    seqs: Sequence[int],
    important: Sequence[int],
    holdings: Holdings,
    stacks: PageStacks,
    bounds: Bounds,
) -> Maps:
    """The maps of as many moments as fit. important: the numbers of the moments, the most important first."""
    live = holdings.blocks_at(len(seqs))
    chosen: list[int] = []
    left = bounds.block_rows
    for moment in important:
        if len(chosen) == bounds.maps or (chosen and live[moment] > left):
            continue
        chosen.append(moment)
        left -= int(live[moment])
    history, phases = SettingsHistory(trace), StackPhases(trace)
    made = Maps(sorted(chosen), pd.DataFrame(), pd.DataFrame())
    segments, blocks = [], []
    for moment in made.moments:
        seq = seqs[moment]
        held = blocks_with_steps(trace, seq + 1, device)
        of_device = trace.replay.segments(seq + 1, device)
        found = None
        if len(of_device):
            settings = history.before(device, seq + 1)
            found = fragmentation_of(trace, seq, device, of_device, held.take(held["segment"] != 0), settings)
            made.fragmentation[moment] = _fragmentation(trace, found, stacks)
        in_use = held.take(held["state"] == ALLOCATED)
        made.groups.setdefault("phase", {})[moment] = _phases(trace, in_use, phases)
        for by, name in _groups_known(trace, in_use):
            table = composition_of(trace, in_use, by, seq + 1).head(_GROUPS)
            if set(table[name]) - {UNKNOWN}:
                made.groups.setdefault(by, {})[moment] = [
                    [row[name], row["live_bytes"], row["live_blocks"]] for row in table.rows()
                ]
        segments.append(_segment_rows(of_device, moment))
        blocks.append(_block_rows(trace, held, found, moment, bounds, made))
    made.segments = pd.concat(segments, ignore_index=True)
    made.blocks = pd.concat(blocks, ignore_index=True)
    _fit(made, important, bounds)
    return made


def _groups_known(trace: RecordedTrace, in_use: Table) -> Iterator[tuple[str, str]]:
    """Yield each further `by` of a composition that the trace knows, and the column that names its groups."""
    if trace.stacks.has_modules:
        yield "module", "site"
    if (in_use["role"] != ROLES.index(UNKNOWN)).any():
        yield "role", "role"


def _phases(trace: RecordedTrace, live: Table, known: StackPhases) -> list[list[Any]]:
    """The live memory by phase of the step."""
    phases = phases_of_blocks(trace, live, known)
    held, count = sums(phases, live["requested_bytes"], len(PHASES)), np.bincount(phases, minlength=len(PHASES))
    return [[name, int(held[i]), int(count[i])] for i, name in enumerate(PHASES) if count[i]]


def _fragmentation(trace: RecordedTrace, found: Fragmentation, stacks: PageStacks) -> dict[str, Any]:
    figures = ("reserved", "active", "free", "releasable", "stranded", "largest_free")
    lines = pinning_lines(trace.stacks, found._pinned.found, found._pinned.blocks).head(_PINNED_LINES)
    return {
        **{name: int(getattr(found, f"{name}_bytes")) for name in figures},
        "external": round(float(found.external_fragmentation), 6),
        "pinners": [
            [stacks.site(row["stack_id"]), row["stranded_bytes"], row["blocks"], row["allocated_bytes"]]
            for row in rows(lines)
        ],
        "pieces": [[row["from_bytes"], row["pieces"], row["free_bytes"]] for row in rows(found.free_pieces)],
        "pools": [
            [list(row["segment_pool_id"]), row["stream"], row["segment_type"], *(row[name] for name in _POOL_FIGURES)]
            for row in rows(found.pools)
        ],
    }


def _segment_rows(segments: Table, moment: int) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "moment": moment,
            "address": segments["address"],
            "total_bytes": segments["total_bytes"],
            "stream": segments["stream"],
            "pool": [f"{pool[0]},{pool[1]}" for pool in segments["segment_pool_id"].tolist()],
            "is_large": segments["is_large"].astype(np.int64),
            "is_expandable": segments["is_expandable"].astype(np.int64),
        }
    )


def _block_rows(
    trace: RecordedTrace, held: Table, found: Fragmentation | None, moment: int, bounds: Bounds, made: Maps
) -> pd.DataFrame:
    inside = held.take(held["segment"] != 0 if found is not None else held["state"] == ALLOCATED)
    if len(inside) > bounds.block_runs:
        made.left_out[moment] = len(inside) - bounds.block_runs
        inside = inside.take(np.argsort(-inside["block_bytes"], kind="stable")[: bounds.block_runs])
    state = np.array([_STATES[number] for number in range(len(_STATES))], np.int64)[inside["state"]]
    is_unknown = (inside["state"] == INACTIVE) | inside["older"]
    births = inside["alloc_ns"] - trace.begin_ns
    times = np.clip(births, 0, None) * float(TIMES) // max(trace.end_ns - trace.begin_ns, 1)
    if found is not None:
        pinning = found._pinned.blocks["address"][found._pinned.found.holds["row"]]
        state = state + np.where(np.isin(inside["address"], pinning) & (state < 2), PINNER, 0)
    return pd.DataFrame(
        {
            "moment": moment,
            "segment": inside["segment"],
            "address": inside["address"],
            "block_bytes": inside["block_bytes"],
            "requested_bytes": inside["requested_bytes"],
            "state": state,
            "stack_id": np.where(state == _STATES[INACTIVE], MISSING, inside["stack_id"]),
            "alloc_seq": np.where(inside["older"], MISSING, inside["alloc_seq"]),
            "birth_time": np.where(is_unknown | (births < 0), MISSING, times),
        }
    )


def _fit(made: Maps, important: Sequence[int], bounds: Bounds) -> None:
    """Drops maps, the least important first, until the table of blocks is small enough."""
    ranked = [moment for moment in important if moment in set(made.moments)]
    while len(ranked) > 1 and len(_block_runs(made)) > bounds.block_runs:
        ranked = ranked[: max(len(ranked) * 3 // 4, 1)]
        made.moments = sorted(ranked)
        made.segments = made.segments[made.segments["moment"].isin(ranked)]
        made.blocks = made.blocks[made.blocks["moment"].isin(ranked)]


def _block_runs(made: Maps) -> pd.DataFrame:
    """Moments count among those with a map."""
    return runs(_among(made.blocks, made.moments), ["address"], [name for name in _BLOCK if name != "address"])


def _among(table: pd.DataFrame, moments: list[int]) -> pd.DataFrame:
    number = {moment: index for index, moment in enumerate(moments)}
    return table.assign(moment=table["moment"].map(number).astype(np.int64))


def packed_maps(made: Maps, holdings: Holdings, stacks: PageStacks, columns: Columns) -> dict[str, Any]:
    """As the page has them."""
    segments = runs(_among(made.segments, made.moments), ["address"], [one for one in _SEGMENT if one != "address"])
    pools = sorted(set(segments["pool"]))
    blocks = _block_runs(made)
    under = {int(stack): holdings.shown_under.get(int(stack), int(stack)) for stack in blocks["stack_id"].unique()}
    frames = {stack: stacks.frame(shown) if shown >= 0 else -1 for stack, shown in under.items()}
    return {
        "moments": made.moments,
        "left_out": made.left_out,
        "fragmentation": made.fragmentation,
        "groups": made.groups,
        "pools": pools,
        "segments": {
            "address": columns.add(segments["address"]),
            "size": columns.add(segments["total_bytes"], differences=False),
            "stream": columns.add(segments["stream"]),
            "pool": columns.add(segments["pool"].map(pools.index).astype(np.int64)),
            "large": columns.add(segments["is_large"], differences=False),
            "expandable": columns.add(segments["is_expandable"], differences=False),
            **_when(segments, columns),
        },
        "blocks": {
            "segment": columns.add(blocks["segment"]),
            "address": columns.add(blocks["address"]),
            "size": columns.add(blocks["block_bytes"], differences=False),
            "requested": columns.add(blocks["requested_bytes"] - blocks["block_bytes"], differences=False),
            "state": columns.add(blocks["state"], differences=False),
            "frame": columns.add(blocks["stack_id"].map(frames).astype(np.int64)),
            "birth": columns.add(blocks["alloc_seq"]),
            "birth_time": columns.add(blocks["birth_time"]),
            **_when(blocks, columns),
        },
    }


def _when(made: pd.DataFrame, columns: Columns) -> dict[str, list[int]]:
    return {
        "first": columns.add(made["first"]),
        "length": columns.add(made["last"] - made["first"], differences=False),
    }
