"""The segments and blocks of a device at moments, as runs (see `holdings`), and how its free memory was cut up then."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from ...analysis.free_memory.allocator import SettingsHistory
from ...analysis.free_memory.fragmentation import Fragmentation, fragmentation_of
from ...analysis.free_memory.pinning import pinning_lines
from ...analysis.usage.composition import composition_of
from ...analysis.usage.phases import PHASES, StackPhases, phases_of_blocks
from ...reading.recorded import RecordedTrace
from ...reading.roles import UNKNOWN
from ..tables import records, rows
from .bounds import Bounds
from .columns import MISSING, Columns
from .holdings import Holdings, runs
from .names import PageStacks

_SEGMENT = ["address", "total_size", "stream", "pool", "is_large", "is_expandable"]
_BLOCK = ["segment", "address", "nbytes", "requested_size", "state", "stack_id", "birth_seq", "birth_time"]
_STATES = {"active_allocated": 0, "active_pending_free": 1, "inactive": 2}
PINNER = 4
"""Added to the state of a block that pins its segment."""
_PINNED_LINES = 6
_GROUPS = 300
"""Modules, those that hold the most."""
_POOL_FIGURES = ("segments", "total_size", "active_size", "free_size", "largest_free")
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
        held = trace.blocks(seq, device=device)
        of_device = trace.segments(seq, device=device).sort_values("address", ignore_index=True)
        found = None
        if len(of_device):
            inside = held[held["segment"] != 0].reset_index(drop=True)
            settings = history.before(device, seq + 1)
            found = fragmentation_of(trace, seq, device, of_device, inside, settings)
            made.fragmentation[moment] = _fragmentation(trace, found, stacks)
        in_use = held[held["state"] == "active_allocated"]
        in_use = in_use.assign(backward=in_use["backward"].astype(bool))
        made.groups.setdefault("phase", {})[moment] = _phases(trace, in_use, phases)
        in_use = in_use.drop(columns="nbytes").rename(columns={"requested_size": "nbytes"})
        for by, name in _groups_known(trace, in_use):
            table = composition_of(trace, in_use, by, seq + 1).head(_GROUPS)
            if set(table[name]) - {UNKNOWN}:
                made.groups.setdefault(by, {})[moment] = table[[name, "bytes", "blocks"]].to_numpy().tolist()
        segments.append(_segment_rows(of_device, moment))
        blocks.append(_block_rows(trace, held, found, moment, bounds, made))
    made.segments = pd.concat(segments, ignore_index=True)
    made.blocks = pd.concat(blocks, ignore_index=True)
    _fit(made, important, bounds)
    return made


def _groups_known(trace: RecordedTrace, in_use: pd.DataFrame) -> Iterator[tuple[str, str]]:
    """Yield each further `by` of a composition that the trace knows, and the column that names its groups."""
    if trace.stacks.has_modules:
        yield "module", "site"
    if (in_use["role"] != UNKNOWN).any():
        yield "role", "role"


def _phases(trace: RecordedTrace, live: pd.DataFrame, known: StackPhases) -> list[list[Any]]:
    """The live memory by phase of the step."""
    sums = live.groupby(phases_of_blocks(trace, live, known))["requested_size"].agg(["sum", "size"])
    return [[phase, int(sums["sum"][phase]), int(sums["size"][phase])] for phase in PHASES if phase in sums.index]


def _fragmentation(trace: RecordedTrace, found: Fragmentation, stacks: PageStacks) -> dict[str, Any]:
    figures = ("reserved", "active", "free", "releasable", "stranded", "largest_free")
    pinned = found.pinned
    lines = None if pinned is None else pinning_lines(trace.stacks, pinned.found, pinned.blocks).head(_PINNED_LINES)
    return {
        **{name: int(getattr(found, name)) for name in figures},
        "external": round(float(found.external_fragmentation), 6),
        "pinners": [
            [stacks.site(int(row["stack_id"])), int(row["stranded"]), int(row["blocks"]), int(row["bytes"])]
            for row in ([] if lines is None else rows(lines))
        ],
        "pieces": [[row["from_size"], row["pieces"], row["bytes"]] for row in records(found.free_pieces)],
        "pools": [
            [list(row["segment_pool_id"]), row["stream"], row["segment_type"], *(row[name] for name in _POOL_FIGURES)]
            for row in rows(found.pools)
        ],
    }


def _segment_rows(segments: pd.DataFrame, moment: int) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "moment": moment,
            "address": segments["address"].to_numpy(np.uint64).astype(np.int64),
            "total_size": segments["total_size"].to_numpy(np.int64),
            "stream": segments["stream"].to_numpy(np.int64),
            "pool": [f"{pool[0]},{pool[1]}" for pool in segments["segment_pool_id"]],
            "is_large": (segments["segment_type"] == "large").to_numpy(np.int64),
            "is_expandable": segments["is_expandable"].to_numpy(np.int64),
        }
    )


def _block_rows(
    trace: RecordedTrace, held: pd.DataFrame, found: Fragmentation | None, moment: int, bounds: Bounds, made: Maps
) -> pd.DataFrame:
    inside = held[held["segment"] != 0] if found is not None else held[held["state"] == "active_allocated"]
    if len(inside) > bounds.block_runs:
        made.left_out[moment] = len(inside) - bounds.block_runs
        inside = inside.nlargest(bounds.block_runs, "nbytes")
    state = inside["state"].map(_STATES).to_numpy(np.int64)
    begin_ns, duration = trace.begin_ns, max(trace.end_ns - trace.begin_ns, 1)
    births = (inside["birth_ns"] - begin_ns).to_numpy(np.float64, na_value=MISSING)
    if found is not None and found.pinned is not None:
        pinning = found.pinned.blocks["address"].to_numpy(np.uint64)[found.pinned.found.holds["row"].to_numpy()]
        state = state + np.where(np.isin(inside["address"].to_numpy(np.uint64), pinning) & (state < 2), PINNER, 0)
    return pd.DataFrame(
        {
            "moment": moment,
            "segment": inside["segment"].to_numpy(np.uint64).astype(np.int64),
            "address": inside["address"].to_numpy(np.uint64).astype(np.int64),
            "nbytes": inside["nbytes"].to_numpy(np.int64),
            "requested_size": inside["requested_size"].to_numpy(np.int64),
            "state": state,
            "stack_id": np.where(state == _STATES["inactive"], MISSING, inside["stack_id"].to_numpy(np.int64)),
            "birth_seq": inside["birth_seq"].to_numpy(np.int64, na_value=MISSING),
            "birth_time": np.where(births < 0, MISSING, np.clip(births, 0, None) * TIMES // duration),
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
            "size": columns.add(segments["total_size"], differences=False),
            "stream": columns.add(segments["stream"]),
            "pool": columns.add(segments["pool"].map(pools.index).astype(np.int64)),
            "large": columns.add(segments["is_large"], differences=False),
            "expandable": columns.add(segments["is_expandable"], differences=False),
            **_when(segments, columns),
        },
        "blocks": {
            "segment": columns.add(blocks["segment"]),
            "address": columns.add(blocks["address"]),
            "size": columns.add(blocks["nbytes"], differences=False),
            "requested": columns.add(blocks["requested_size"] - blocks["nbytes"], differences=False),
            "state": columns.add(blocks["state"], differences=False),
            "frame": columns.add(blocks["stack_id"].map(frames).astype(np.int64)),
            "birth": columns.add(blocks["birth_seq"]),
            "birth_time": columns.add(blocks["birth_time"]),
            **_when(blocks, columns),
        },
    }


def _when(made: pd.DataFrame, columns: Columns) -> dict[str, list[int]]:
    return {
        "first": columns.add(made["first"]),
        "length": columns.add(made["last"] - made["first"], differences=False),
    }
