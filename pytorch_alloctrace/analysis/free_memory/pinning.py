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
    # With numpy alone: a report asks for this at many moments, and most of the time would be pandas' own.
    parts = _parts(segments, blocks, settings)
    is_stranded = parts.is_free & (parts.bytes < parts.range_size)
    bytes_stranded = parts.bytes[is_stranded]
    by_segment = np.zeros(len(segments), dtype=np.int64)
    np.add.at(by_segment, parts.segment_row[is_stranded], bytes_stranded)
    free = int(blocks["nbytes"].to_numpy(np.int64)[_is_free(blocks)].sum())
    total = int(bytes_stranded.sum())

    ranges, first, number = np.unique(parts.range[is_stranded], return_index=True, return_inverse=True)
    range_free = np.zeros(len(ranges), dtype=np.int64)
    np.add.at(range_free, number, bytes_stranded)
    range_size = parts.range_size[is_stranded][first]
    mostly_free = np.flatnonzero(range_free > MOSTLY_FREE * range_size)
    live = np.flatnonzero(~parts.is_free)
    at = np.searchsorted(ranges[mostly_free], parts.range[live])
    at = np.minimum(at, max(len(mostly_free) - 1, 0))
    held = ranges[mostly_free][at] == parts.range[live] if len(mostly_free) else np.zeros(len(live), dtype=bool)
    live, of_range = live[held], mostly_free[at[held]] if len(mostly_free) else at[held]
    count = np.bincount(of_range, minlength=len(ranges))[of_range].astype(np.int64)
    # The remainder goes to the first ones, so that the sum is what is stranded.
    part, rest = np.divmod(range_free[of_range], np.maximum(count, 1))
    holds = pd.DataFrame(
        {
            "row": parts.row[live],
            "range": parts.range[live],
            "free": range_free[of_range],
            "range_size": range_size[of_range],
            "blocks": count,
            "stranded": part + (_earlier(of_range) < rest),
        }
    )
    return Pinning(free - total, total, by_segment, holds)


def _is_free(blocks: pd.DataFrame) -> npt.NDArray[np.bool_]:
    return (blocks["state"] == "inactive").to_numpy(bool)


def _earlier(groups: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """How many of the same group stand before each."""
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    made = np.empty(len(groups), dtype=np.int64)
    made[order] = np.arange(len(groups)) - np.searchsorted(ordered, ordered, side="left")
    return made


@dataclass(frozen=True, eq=False)
class _Parts:
    """A row for each block in each range that it begins or ends in."""

    row: npt.NDArray[np.int64]
    segment_row: npt.NDArray[np.int64]
    range: npt.NDArray[np.uint64]
    range_size: npt.NDArray[np.int64]
    bytes: npt.NDArray[np.int64]
    is_free: npt.NDArray[np.bool_]


def _parts(segments: pd.DataFrame, blocks: pd.DataFrame, settings: AllocatorSettings) -> _Parts:
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
    is_free = _is_free(blocks)
    in_one, in_other = np.flatnonzero(in_first > 0), np.flatnonzero(in_last > 0)
    rows = np.concatenate([in_one, in_other])
    of_segment = segment[rows]
    offset = np.concatenate([(first * length)[in_one], (last * length)[in_other]])
    return _Parts(
        row=rows,
        segment_row=of_segment,
        range=origin[of_segment] + offset.astype(np.uint64),
        range_size=np.minimum(length[rows], total[of_segment] - offset),
        bytes=np.concatenate([in_first[in_one], in_last[in_other]]),
        is_free=is_free[rows],
    )


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
    lines = pinning_lines(stacks, found, blocks)
    return pd.concat([lines, describe_stacks(stacks, lines["stack_id"])], axis=1)[list(LINE_COLUMNS)]


def pinning_lines(stacks: StackIndex, found: Pinning, blocks: pd.DataFrame) -> pd.DataFrame:
    """The same without what names the lines."""
    holds = {name: found.holds[name].to_numpy() for name in ("row", "range", "free", "stranded")}
    row, stranded = holds["row"], holds["stranded"]
    stack_ids, stack = np.unique(blocks["stack_id"].to_numpy(np.int64)[row], return_inverse=True)
    numbers: dict[tuple[Any, ...], int] = {}
    line_of_stack = np.array(
        [numbers.setdefault(stacks.key(int(one), "line"), len(numbers)) for one in stack_ids], dtype=np.int64
    )
    line, count = line_of_stack[stack], len(numbers)
    nbytes = blocks["nbytes"].to_numpy(np.int64)[row]

    def total(values: npt.NDArray[Any], mask: npt.NDArray[np.bool_] | None = None) -> npt.NDArray[np.int64]:
        made = np.zeros(count, dtype=np.int64)
        where = slice(None) if mask is None else mask
        np.add.at(made, line[where], values[where])
        return made

    _, range_number = np.unique(holds["range"], return_inverse=True)
    pairs, first_of_line = np.unique(range_number * max(count, 1) + line, return_index=True)
    holds_range = np.zeros(len(row), dtype=bool)
    holds_range[first_of_line] = True
    lines_of_range = np.bincount(pairs // max(count, 1), minlength=1)
    is_alone = holds_range & (lines_of_range[range_number] == 1)
    # A block that reaches over two ranges is one block.
    is_first = np.zeros(len(row), dtype=bool)
    is_first[np.unique(row, return_index=True)[1]] = True
    largest = np.zeros(count, dtype=np.int64)
    np.maximum.at(largest, line, nbytes)

    age = blocks["age_ns"].array[row]
    # What is older than the recording is the oldest.
    ages = age.to_numpy(np.float64, na_value=np.inf)
    by_age = np.argsort(-ages, kind="stable")
    oldest = _first_of_each(line, by_age, count)
    by_stack = np.zeros(len(stack_ids), dtype=np.int64)
    np.add.at(by_stack, stack, stranded)
    most = _first_of_each(line, by_age[np.argsort(-by_stack[stack][by_age], kind="stable")], count)
    lines = pd.DataFrame(
        {
            "stranded": total(stranded),
            "alone": total(holds["free"], is_alone),
            "blocks": total(np.ones(len(row), dtype=np.int64), is_first),
            "bytes": total(nbytes, is_first),
            "largest": largest,
            "ranges": total(np.ones(len(row), dtype=np.int64), holds_range),
            "oldest_age_ns": age[oldest],
            "step": blocks["step"].array[row[oldest]],
            "stack_id": stack_ids[stack[most]],
        }
    )
    # Of equal ones the older first.
    lines = lines.iloc[np.argsort(np.argsort(by_age)[oldest])]
    return lines.sort_values(["stranded", "alone"], ascending=False, kind="stable", ignore_index=True)


def _first_of_each(groups: npt.NDArray[np.int64], order: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
    """The first of each of so many groups, in an order."""
    known, first = np.unique(groups[order], return_index=True)
    made = np.zeros(count, dtype=np.int64)
    made[known] = order[first]
    return made
