"""Which live blocks keep free memory from being returned to the driver.

torch returns memory in *ranges*: a segment as a whole, an expandable segment by its mapping units (2 MiB in the small
pool, 20 MiB in the large one unless set otherwise). A range is returned only when nothing in it is live, so one live
block strands all the free bytes of its range: it *pins* it. In an expandable segment the free units between two blocks
can be returned, and only the rest of the units that a block begins or ends in is stranded.

If several live blocks hold one range, each of them alone would suffice. The free bytes are divided equally among them,
so that the sum over all blocks is what is stranded; `alone` is what would be returned if only this block (only the
blocks of this line) were freed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from ...reading.recorded import RecordedTrace
from ...reading.sites import StackIndex, describe_stacks
from .allocator import AllocatorSettings

MOSTLY_FREE = 0.5
"""A live block is a pinner if more than this share of its range is free."""
PINNER_COLUMNS = (
    *("site", "filename", "line", "function", "source", "user", "stack_id", "backward", "address", "nbytes"),
    *("requested_size", "state", "age_ns", "birth_seq", "step", "stranded", "alone", "segment", "range_size"),
    *("range_free", "range_blocks", "stream", "segment_pool_id"),
)
LINE_COLUMNS = (
    *("site", "filename", "line", "function", "source", "user", "stranded", "alone", "blocks", "bytes", "largest"),
    *("ranges", "oldest_age_ns", "step", "stack_id"),
)


@dataclass(frozen=True, eq=False)
class Pinning:
    """How many free bytes could be returned, and what holds the rest. Bytes are allocated bytes."""

    releasable: int
    """Free ranges: `empty_cache()` gives them back (those of a private pool once the pool is released)."""
    stranded: int
    """Free bytes in ranges that contain live blocks."""
    stranded_by_segment: npt.NDArray[np.int64]
    """The same for each row of the segments."""
    holds: pd.DataFrame
    """A row for each live block in each mostly free range that it lies in: row (of the blocks), range, stranded (its
    equal part), free, range_size, blocks (that hold the range)."""


def pinning(segments: pd.DataFrame, blocks: pd.DataFrame, settings: AllocatorSettings) -> Pinning:
    """From the segments of one device (at least one, by address) and their blocks: `Trace.segments`, `Trace.blocks`."""
    parts = _parts(segments, blocks, settings)
    is_stranded = parts["is_free"] & (parts["bytes"] < parts["range_size"])
    stranded = parts[is_stranded]
    by_segment = np.zeros(len(segments), dtype=np.int64)
    np.add.at(by_segment, stranded["segment_row"].to_numpy(), stranded["bytes"].to_numpy())
    free = int(blocks.loc[blocks["state"] == "inactive", "nbytes"].sum())
    total = int(stranded["bytes"].sum())

    ranges = stranded.groupby("range").agg(free=("bytes", "sum"), range_size=("range_size", "first"))
    ranges = ranges[ranges["free"] > MOSTLY_FREE * ranges["range_size"]]
    live = parts.loc[~parts["is_free"], ["row", "range"]]
    holds = live.merge(ranges, left_on="range", right_index=True).reset_index(drop=True)
    by_range = holds.groupby("range")["row"]
    holds["blocks"] = by_range.transform("size").astype(np.int64)
    # The remainder goes to the first ones, so that the sum is what is stranded.
    rest = by_range.cumcount() < holds["free"] % holds["blocks"]
    holds["stranded"] = holds["free"] // holds["blocks"] + rest
    return Pinning(free - total, total, by_segment, holds)


def _parts(segments: pd.DataFrame, blocks: pd.DataFrame, settings: AllocatorSettings) -> pd.DataFrame:
    """Each block in the range that it begins in and, if different, the one that it ends in. (It covers the ranges in
    between, which are either wholly free or wholly used.)"""
    total = segments["total_size"].to_numpy(np.int64)
    units = {kind: settings.mapping_unit(kind) for kind in ("small", "large")}
    mapped = segments["segment_type"].map(units).to_numpy(np.int64)
    unit = np.where(segments["is_expandable"].to_numpy(bool), np.minimum(mapped, total), total)
    origin = segments["address"].to_numpy(np.uint64)
    segment = np.searchsorted(origin, blocks["segment"].to_numpy(np.uint64))
    begin = (blocks["address"].to_numpy(np.uint64) - origin[segment]).astype(np.int64)
    size = blocks["nbytes"].to_numpy(np.int64)
    length = np.maximum(unit, 1)[segment]
    first, last = begin // length, (begin + np.maximum(size, 1) - 1) // length
    in_first = np.where(first == last, size, (first + 1) * length - begin)
    in_last = np.where(last > first, begin + size - last * length, 0)
    made = []
    for index, part in ((first, in_first), (last, in_last)):
        rows = np.flatnonzero(part > 0)
        offset = (index * length)[rows]
        made.append(
            pd.DataFrame(
                {
                    "row": rows,
                    "segment_row": segment[rows],
                    "range": origin[segment[rows]] + offset.astype(np.uint64),
                    "range_size": np.minimum(length[rows], total[segment[rows]] - offset),
                    "bytes": part[rows],
                    "is_free": (blocks["state"] == "inactive").to_numpy(bool)[rows],
                }
            )
        )
    return pd.concat(made, ignore_index=True)


def pinners(trace: RecordedTrace, found: Pinning, segments: pd.DataFrame, blocks: pd.DataFrame) -> pd.DataFrame:
    """One row per live block in mostly free ranges, most stranded bytes first.

    blocks: as `Trace.blocks` has them. Columns: PINNER_COLUMNS; sizes in bytes, age_ns in ns, step of
    birth, stranded and alone as the module says; range_size, range_free, range_blocks: size, free bytes and live blocks
    of its range (of two ranges: the sums, and the fewer).
    """
    holds = found.holds.assign(alone=np.where(found.holds["blocks"] == 1, found.holds["free"], 0))
    rows = holds.groupby("row").agg(
        stranded=("stranded", "sum"),
        alone=("alone", "sum"),
        range_size=("range_size", "sum"),
        range_free=("free", "sum"),
        range_blocks=("blocks", "min"),
    )
    table = pd.concat([blocks.iloc[rows.index].reset_index(drop=True), rows.reset_index(drop=True)], axis=1)
    names = describe_stacks(trace.stacks, table["stack_id"])
    table = table.assign(**{str(name): names[name] for name in names})
    of_segment = segments.set_index("address")[["stream", "segment_pool_id"]]
    table = table.join(of_segment, on="segment")
    order = table.sort_values(["stranded", "nbytes", "address"], ascending=[False, True, True], kind="stable")
    return order[list(PINNER_COLUMNS)].reset_index(drop=True)


def pinners_by_line(stacks: StackIndex, found: Pinning, blocks: pd.DataFrame) -> pd.DataFrame:
    """The same, one row a line of user code: stranded (sum), alone (free bytes of the ranges that only blocks of this
    line hold), blocks, their bytes, the largest, ranges that they hold, age and step of the oldest, stack_id (the one
    that strands the most). Columns: LINE_COLUMNS."""
    holds = found.holds
    columns = {name: blocks[name].to_numpy()[holds["row"]] for name in ("stack_id", "nbytes")}
    columns |= {name: blocks[name].array[holds["row"].to_numpy()] for name in ("age_ns", "step")}
    held = holds.assign(**columns)
    numbers: dict[tuple[Any, ...], int] = {}
    of_stack = {
        int(stack): numbers.setdefault(stacks.key(int(stack), "line"), len(numbers))
        for stack in held["stack_id"].unique()
    }
    held["site_number"] = held["stack_id"].map(of_stack).astype(np.int64)
    lines_of_range = held.groupby("range")["site_number"].nunique()
    first_of_line = ~held.duplicated(["range", "site_number"])
    is_alone = held["range"].map(lines_of_range).eq(1) & first_of_line
    held["alone"] = held["free"].where(is_alone, 0)
    held["first_of_line"] = first_of_line
    # A block that reaches over two ranges is one block.
    is_first = ~held.duplicated("row")
    held["counted"], held["counted_size"] = is_first.astype(np.int64), held["nbytes"].where(is_first, 0)
    by_stack = held.groupby("stack_id")["stranded"].sum()
    held = held.assign(of_stack=held["stack_id"].map(by_stack)).sort_values(
        "age_ns",
        ascending=False,
        kind="stable",
        na_position="first",  # older than the recording
    )
    groups = held.groupby("site_number", sort=False)
    lines = groups.agg(
        stranded=("stranded", "sum"),
        alone=("alone", "sum"),
        blocks=("counted", "sum"),
        bytes=("counted_size", "sum"),
        largest=("nbytes", "max"),
        ranges=("first_of_line", "sum"),
    )
    oldest = held.drop_duplicates("site_number").set_index("site_number")
    lines["oldest_age_ns"], lines["step"] = oldest["age_ns"], oldest["step"]
    most = held.sort_values("of_stack", ascending=False, kind="stable").drop_duplicates("site_number")
    lines["stack_id"] = most.set_index("site_number")["stack_id"]
    lines = lines.reset_index(drop=True)
    lines = pd.concat([lines, describe_stacks(stacks, lines["stack_id"])], axis=1)
    order = lines.sort_values(["stranded", "alone"], ascending=False, kind="stable")
    return order[list(LINE_COLUMNS)].reset_index(drop=True)
