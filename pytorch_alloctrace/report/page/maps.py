"""Holdings of the stacks, segments and blocks at each snapshot of the page.

Tables are run-length encoded: a row is valid from snapshot `first` to snapshot `last`.
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
from .names import PageStacks, merge_stacks
from .snapshots import Bounds

_VALUES = ["bytes", "blocks", "backward_bytes"]


@dataclass(frozen=True)
class Holdings:
    """Memory that the stacks of a device hold, at each snapshot."""

    table: pd.DataFrame
    """Columns snapshot, stack_id, bytes, blocks, backward_bytes; one row per stack that holds memory."""
    representatives: dict[int, int]
    """Stack into which each stack is merged; -1 if its line holds too little to be named."""

    def count_blocks(self, count: int) -> npt.NDArray[np.int64]:
        return np.bincount(self.table["snapshot"], weights=self.table["blocks"], minlength=count).astype(np.int64)


def collect_holdings(trace: RecordedTrace, device: str, seqs: Sequence[int], bounds: Bounds) -> Holdings:
    """Return the memory of a device's stacks after each event of `seqs`, merged until the rows fit the bounds."""
    tables = []
    for snapshot, seq in enumerate(seqs):
        totals = trace.stack_totals(seq, device=device)
        live = totals.take(totals["live_blocks"] > 0)
        tables.append(
            pd.DataFrame(
                {
                    "snapshot": snapshot,
                    "stack_id": live["stack_id"],
                    "bytes": live["live_bytes"],
                    "blocks": live["live_blocks"],
                    "backward_bytes": live["live_backward_bytes"],
                }
            )
        )
    table = pd.concat(tables, ignore_index=True)
    max_bytes = table.groupby("stack_id")["bytes"].max()
    stack_ids, max_bytes_of_stacks = max_bytes.index.to_numpy(np.int64), max_bytes.to_numpy(np.int64)
    max_stacks = bounds.stacks
    while True:
        representatives = merge_stacks(trace.stacks, stack_ids, max_bytes_of_stacks, max_stacks, bounds.sites)
        merged = table.assign(stack_id=table["stack_id"].map(representatives))
        merged = merged.groupby(["snapshot", "stack_id"], as_index=False)[_VALUES].sum()
        if max_stacks <= 1 or len(merge_runs(merged, ["stack_id"], _VALUES)) <= bounds.holding_runs:
            return Holdings(merged, representatives)
        max_stacks //= 2


def merge_runs(table: pd.DataFrame, keys: list[str], values: list[str]) -> pd.DataFrame:
    """Merge rows that are equal at consecutive snapshots: `first` and `last` replace `snapshot`.

    Ordered by `first`, then by the keys: the page stops reading at the first row after its snapshot.
    """
    ordered = table.sort_values([*keys, "snapshot"], kind="stable", ignore_index=True)
    snapshot = ordered["snapshot"].to_numpy(np.int64)
    is_run_start = np.ones(len(ordered), dtype=bool)
    if len(ordered) > 1:
        continues_run = snapshot[1:] == snapshot[:-1] + 1
        for name in [*keys, *values]:
            column = ordered[name].to_numpy()
            continues_run &= column[1:] == column[:-1]
        is_run_start[1:] = ~continues_run
    starts = np.flatnonzero(is_run_start)
    ends = np.append(starts[1:], len(ordered))[: len(starts)] - 1
    runs = ordered.iloc[starts].drop(columns="snapshot").assign(first=snapshot[starts], last=snapshot[ends])
    return runs.sort_values(["first", *keys], kind="stable", ignore_index=True)


def pack_holdings(holdings: Holdings, stacks: PageStacks, columns: Columns) -> dict[str, Any]:
    """Add the holdings to the columns and return their JSON references."""
    runs = merge_runs(holdings.table, ["stack_id"], _VALUES)
    frame_of = {int(stack): stacks.frame(int(stack)) if stack >= 0 else -1 for stack in runs["stack_id"].unique()}
    return {
        "frame": columns.add(runs["stack_id"].map(frame_of)),
        "bytes": columns.add(runs["bytes"], differences=False),
        "blocks": columns.add(runs["blocks"], differences=False),
        "backward": columns.add(runs["backward_bytes"], differences=False),
        **_pack_validity(runs, columns),
    }


_SEGMENT_COLUMNS = ["address", "total_bytes", "stream", "pool", "is_large", "is_expandable"]
_BLOCK_COLUMNS = [
    "segment",
    "address",
    "block_bytes",
    "requested_bytes",
    "state",
    "stack_id",
    "alloc_seq",
    "alloc_time",
]
_STATES = {ALLOCATED: 0, PENDING_FREE: 1, INACTIVE: 2}
PINNER = 4
"""Added to the state of a block that pins its segment."""
_MAX_PINNING_LINES = 6
_MAX_GROUPS_PER_MAP = 300
_POOL_COLUMNS = ("segments", "total_bytes", "active_bytes", "free_bytes", "largest_free_bytes")
_TIME_SCALE = 1 << 16
"""Stored allocation time of the end of the run; 0 is its begin."""


@dataclass
class Maps:
    """Segments, blocks, fragmentation and groups of a device, at the `snapshots` that have a map."""

    snapshots: list[int]
    segments: pd.DataFrame
    blocks: pd.DataFrame
    left_out: dict[int, int] = field(default_factory=dict)
    """Number of the smallest blocks left out of a map, by snapshot."""
    fragmentation: dict[int, dict[str, Any]] = field(default_factory=dict)
    groups: dict[str, dict[int, list[list[Any]]]] = field(default_factory=dict)
    """Live memory by "phase", and by "module" and "role" if recorded: rows of name, bytes, blocks, by snapshot."""


def collect_maps(
    trace: RecordedTrace,
    device: str,
    seqs: Sequence[int],
    ranked: Sequence[int],
    holdings: Holdings,
    stacks: PageStacks,
    bounds: Bounds,
) -> Maps:
    """Return the maps of as many snapshots as fit. `ranked` has the snapshot numbers, the most important first."""
    live_blocks = holdings.count_blocks(len(seqs))
    mapped_snapshots: list[int] = []
    rows_left = bounds.block_rows
    for snapshot in ranked:
        if len(mapped_snapshots) == bounds.maps or (mapped_snapshots and live_blocks[snapshot] > rows_left):
            continue
        mapped_snapshots.append(snapshot)
        rows_left -= int(live_blocks[snapshot])
    history, phases = SettingsHistory(trace), StackPhases(trace)
    maps = Maps(sorted(mapped_snapshots), pd.DataFrame(), pd.DataFrame())
    segment_tables, block_tables = [], []
    for snapshot in maps.snapshots:
        seq = seqs[snapshot]
        blocks = blocks_with_steps(trace, seq + 1, device)
        segments = trace.replay.segments(seq + 1, device)
        fragmentation = None
        if len(segments):
            settings = history.before(device, seq + 1)
            fragmentation = fragmentation_of(
                trace, seq, device, segments, blocks.take(blocks["segment"] != 0), settings
            )
            maps.fragmentation[snapshot] = _pack_fragmentation(trace, fragmentation, stacks)
        in_use = blocks.take(blocks["state"] == ALLOCATED)
        maps.groups.setdefault("phase", {})[snapshot] = _group_by_phase(trace, in_use, phases)
        for grouping, name_column in _iter_groupings(trace, in_use):
            composition = composition_of(trace, in_use, grouping, seq + 1).head(_MAX_GROUPS_PER_MAP)
            if set(composition[name_column]) - {UNKNOWN}:
                describe = stacks.names.module if grouping == "module" else str
                maps.groups.setdefault(grouping, {})[snapshot] = [
                    [describe(row[name_column]), row["live_bytes"], row["live_blocks"]] for row in composition.rows()
                ]
        segment_tables.append(_segment_rows(segments, snapshot))
        block_tables.append(_block_rows(trace, blocks, fragmentation, snapshot, bounds, maps))
    maps.segments = pd.concat(segment_tables, ignore_index=True)
    maps.blocks = pd.concat(block_tables, ignore_index=True)
    _drop_maps(maps, ranked, bounds)
    return maps


def _iter_groupings(trace: RecordedTrace, in_use: Table) -> Iterator[tuple[str, str]]:
    """Yield each recorded grouping besides "phase", and the column with the names of its groups."""
    if trace.stacks.has_modules:
        yield "module", "site"
    if (in_use["role"] != ROLES.index(UNKNOWN)).any():
        yield "role", "role"


def _group_by_phase(trace: RecordedTrace, live: Table, stack_phases: StackPhases) -> list[list[Any]]:
    phases = phases_of_blocks(trace, live, stack_phases)
    nbytes, count = sums(phases, live["requested_bytes"], len(PHASES)), np.bincount(phases, minlength=len(PHASES))
    return [[name, int(nbytes[i]), int(count[i])] for i, name in enumerate(PHASES) if count[i]]


def _pack_fragmentation(trace: RecordedTrace, fragmentation: Fragmentation, stacks: PageStacks) -> dict[str, Any]:
    pinned = fragmentation._pinned
    measures = ("reserved", "active", "free", "releasable", "stranded", "largest_free")
    lines = pinning_lines(trace.stacks, pinned.pinning, pinned.blocks).head(_MAX_PINNING_LINES)
    return {
        **{name: int(getattr(fragmentation, f"{name}_bytes")) for name in measures},
        "external": round(float(fragmentation.external_fragmentation), 6),
        "pinners": [
            [stacks.site(row["stack_id"]), row["stranded_bytes"], row["blocks"], row["allocated_bytes"]]
            for row in rows(lines)
        ],
        "pieces": [[row["from_bytes"], row["pieces"], row["free_bytes"]] for row in rows(fragmentation.free_pieces)],
        "pools": [
            [list(row["segment_pool_id"]), row["stream"], row["segment_type"], *(row[name] for name in _POOL_COLUMNS)]
            for row in rows(fragmentation.pools)
        ],
    }


def _segment_rows(segments: Table, snapshot: int) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "snapshot": snapshot,
            "address": segments["address"],
            "total_bytes": segments["total_bytes"],
            "stream": segments["stream"],
            "pool": [f"{pool[0]},{pool[1]}" for pool in segments["segment_pool_id"].tolist()],
            "is_large": segments["is_large"].astype(np.int64),
            "is_expandable": segments["is_expandable"].astype(np.int64),
        }
    )


def _block_rows(
    trace: RecordedTrace,
    blocks: Table,
    fragmentation: Fragmentation | None,
    snapshot: int,
    bounds: Bounds,
    maps: Maps,
) -> pd.DataFrame:
    map_blocks = blocks.take(blocks["segment"] != 0 if fragmentation is not None else blocks["state"] == ALLOCATED)
    if len(map_blocks) > bounds.block_runs:
        maps.left_out[snapshot] = len(map_blocks) - bounds.block_runs
        map_blocks = map_blocks.take(np.argsort(-map_blocks["block_bytes"], kind="stable")[: bounds.block_runs])
    state = np.array([_STATES[number] for number in range(len(_STATES))], np.int64)[map_blocks["state"]]
    is_unknown = (map_blocks["state"] == INACTIVE) | map_blocks["older"]
    since_begin_ns = map_blocks["alloc_ns"] - trace.begin_ns
    times = np.clip(since_begin_ns, 0, None) * float(_TIME_SCALE) // max(trace.end_ns - trace.begin_ns, 1)
    if fragmentation is not None:
        pinned = fragmentation._pinned
        pinning = pinned.blocks["address"][pinned.pinning.holds["row"]]
        state = state + np.where(np.isin(map_blocks["address"], pinning) & (state < 2), PINNER, 0)
    return pd.DataFrame(
        {
            "snapshot": snapshot,
            "segment": map_blocks["segment"],
            "address": map_blocks["address"],
            "block_bytes": map_blocks["block_bytes"],
            "requested_bytes": map_blocks["requested_bytes"],
            "state": state,
            "stack_id": np.where(state == _STATES[INACTIVE], MISSING, map_blocks["stack_id"]),
            "alloc_seq": np.where(map_blocks["older"], MISSING, map_blocks["alloc_seq"]),
            "alloc_time": np.where(is_unknown | (since_begin_ns < 0), MISSING, times),
        }
    )


def _drop_maps(maps: Maps, ranked: Sequence[int], bounds: Bounds) -> None:
    """Drop maps, the least important first, until the table of blocks fits the bounds."""
    remaining = [snapshot for snapshot in ranked if snapshot in set(maps.snapshots)]
    while len(remaining) > 1 and len(_merge_block_runs(maps)) > bounds.block_runs:
        remaining = remaining[: max(len(remaining) * 3 // 4, 1)]
        maps.snapshots = sorted(remaining)
        maps.segments = maps.segments[maps.segments["snapshot"].isin(remaining)]
        maps.blocks = maps.blocks[maps.blocks["snapshot"].isin(remaining)]


def _merge_block_runs(maps: Maps) -> pd.DataFrame:
    return merge_runs(
        _renumber(maps.blocks, maps.snapshots), ["address"], [name for name in _BLOCK_COLUMNS if name != "address"]
    )


def _renumber(table: pd.DataFrame, snapshots: list[int]) -> pd.DataFrame:
    """Replace each snapshot by its index in `snapshots`, those that have a map."""
    index_of = {snapshot: index for index, snapshot in enumerate(snapshots)}
    return table.assign(snapshot=table["snapshot"].map(index_of).astype(np.int64))


def pack_maps(maps: Maps, holdings: Holdings, stacks: PageStacks, columns: Columns) -> dict[str, Any]:
    """Add the maps to the columns and return their JSON references."""
    value_columns = [name for name in _SEGMENT_COLUMNS if name != "address"]
    segments = merge_runs(_renumber(maps.segments, maps.snapshots), ["address"], value_columns)
    pools = sorted(set(segments["pool"]))
    blocks = _merge_block_runs(maps)
    representatives = {
        int(stack): holdings.representatives.get(int(stack), int(stack)) for stack in blocks["stack_id"].unique()
    }
    frame_of = {stack: stacks.frame(target) if target >= 0 else -1 for stack, target in representatives.items()}
    return {
        "snapshots": maps.snapshots,
        "left_out": maps.left_out,
        "fragmentation": maps.fragmentation,
        "groups": maps.groups,
        "pools": pools,
        "segments": {
            "address": columns.add(segments["address"]),
            "size": columns.add(segments["total_bytes"], differences=False),
            "stream": columns.add(segments["stream"]),
            "pool": columns.add(segments["pool"].map(pools.index).astype(np.int64)),
            "large": columns.add(segments["is_large"], differences=False),
            "expandable": columns.add(segments["is_expandable"], differences=False),
            **_pack_validity(segments, columns),
        },
        "blocks": {
            "segment": columns.add(blocks["segment"]),
            "address": columns.add(blocks["address"]),
            "size": columns.add(blocks["block_bytes"], differences=False),
            "requested": columns.add(blocks["requested_bytes"] - blocks["block_bytes"], differences=False),
            "state": columns.add(blocks["state"], differences=False),
            "frame": columns.add(blocks["stack_id"].map(frame_of).astype(np.int64)),
            "birth": columns.add(blocks["alloc_seq"]),
            "birth_time": columns.add(blocks["alloc_time"]),
            **_pack_validity(blocks, columns),
        },
    }


def _pack_validity(runs: pd.DataFrame, columns: Columns) -> dict[str, list[int]]:
    return {
        "first": columns.add(runs["first"]),
        "length": columns.add(runs["last"] - runs["first"], differences=False),
    }
