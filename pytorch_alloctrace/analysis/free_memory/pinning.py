"""Which live blocks keep free memory from being returned to the driver.

torch returns memory in *ranges*: a segment as a whole, an expandable segment by its mapping units (2 MiB in the small
pool, 20 MiB in the large one unless set otherwise). A range is returned only when nothing in it is live, so one live
block strands all the free bytes of its range: it *pins* it. In an expandable segment the free units between two blocks
can be returned, and only the rest of the units that a block begins or ends in is stranded.

If several live blocks hold one range, each of them alone would suffice. The free bytes are divided equally among them,
so that the sum over all blocks is what is stranded; `alone_bytes` is what would be returned if only this block (only
the blocks of this line) were freed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..._replay import AllocatorSettings
from ...reading.recorded import RecordedTrace
from ...reading.sites import StackIndex, describe_stacks
from ...reading.table import INACTIVE, Table, maxima, sums

MOSTLY_FREE = 0.5
"""A live block is a pinner if more than this share of its range is free."""
PINNER_COLUMNS = (
    *("site", "filename", "line", "function", "source", "user", "stack_id", "backward", "address", "block_bytes"),
    *("requested_bytes", "state", "age_ns", "alloc_seq", "step", "stranded_bytes", "alone_bytes", "segment"),
    *("range_bytes", "range_free_bytes", "range_blocks", "stream", "segment_pool_id"),
)
LINE_COLUMNS = (
    *("site", "filename", "line", "function", "source", "user", "stranded_bytes", "alone_bytes", "blocks"),
    *("allocated_bytes", "largest_bytes", "ranges", "oldest_age_ns", "step", "stack_id"),
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
    holds: Table
    """A row for each live block in each mostly free range that it lies in: row (of the blocks), range, stranded (its
    equal part), free, range_size, blocks (that hold the range)."""


def pinning(segments: Table, blocks: Table, settings: AllocatorSettings) -> Pinning:
    """Return what pins the segments of one device (at least one, by address): `Replay.segments`, `Replay.blocks`."""
    parts = _parts(segments, blocks, settings)
    is_stranded = parts.is_free & (parts.bytes < parts.range_size)
    bytes_stranded = parts.bytes[is_stranded]
    by_segment = sums(parts.segment_row[is_stranded], bytes_stranded, len(segments))
    free = int(blocks["block_bytes"][blocks["state"] == INACTIVE].sum())
    total = int(bytes_stranded.sum())

    ranges, first, number = np.unique(parts.range[is_stranded], return_index=True, return_inverse=True)
    range_free = sums(number, bytes_stranded, len(ranges))
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
    holds = Table(
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


def _parts(segments: Table, blocks: Table, settings: AllocatorSettings) -> _Parts:
    """Each block in the range that it begins in and, if different, the one that it ends in. (It covers the ranges in
    between, which are either wholly free or wholly used.)"""
    total = segments["total_bytes"]
    mapped = np.where(segments["is_large"], settings.mapping_unit(is_large=True), settings.mapping_unit(is_large=False))
    unit = np.where(segments["is_expandable"], np.minimum(mapped, total), total)
    origin = segments["address"].view(np.uint64)  # by address: the highest bit of a damaged trace's may be set
    segment = np.searchsorted(origin, blocks["segment"].view(np.uint64))
    begin = (blocks["address"].view(np.uint64) - origin[segment]).astype(np.int64)
    size = blocks["block_bytes"]
    length = np.maximum(unit, 1)[segment]
    first, last = begin // length, (begin + np.maximum(size, 1) - 1) // length
    in_first = np.where(first == last, size, (first + 1) * length - begin)
    in_last = np.where(last > first, begin + size - last * length, 0)
    is_free = blocks["state"] == INACTIVE
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


def pinners(trace: RecordedTrace, found: Pinning, segments: Table, blocks: Table) -> Table:
    """Return one row per live block in mostly free ranges, most stranded bytes first.

    blocks: as `Replay.blocks` has them, with the step of birth. Columns: PINNER_COLUMNS; age_ns in ns; stranded_bytes
    and alone_bytes as the module says; range_bytes, range_free_bytes, range_blocks: size, free bytes and live blocks of
    its range (of two ranges: the sums, and the fewer).
    """
    holds = found.holds
    rows, of_row = np.unique(holds["row"], return_inverse=True)
    count = len(rows)
    range_blocks = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(range_blocks, of_row, holds["blocks"])
    table = blocks.take(rows)
    of_segment = np.searchsorted(segments["address"].view(np.uint64), table["segment"].view(np.uint64))
    older = table["older"]
    table = table.assign(
        stranded_bytes=sums(of_row, holds["stranded"], count),
        alone_bytes=sums(of_row, np.where(holds["blocks"] == 1, holds["free"], 0), count),
        range_bytes=sums(of_row, holds["range_size"], count),
        range_free_bytes=sums(of_row, holds["free"], count),
        range_blocks=range_blocks,
        stream=segments["stream"][of_segment],
        segment_pool_id=segments["segment_pool_id"][of_segment],
        age_ns=np.ma.array(table["age_ns"], mask=older),
        alloc_seq=np.ma.array(table["alloc_seq"], mask=older),
        **describe_stacks(trace.stacks, table["stack_id"]).columns,
    )
    order = np.lexsort([table["address"].view(np.uint64), table["block_bytes"], -table["stranded_bytes"]])
    return table.take(order).select(*PINNER_COLUMNS)


def pinners_by_line(stacks: StackIndex, found: Pinning, blocks: Table) -> Table:
    """Return the same, one row a line of user code: stranded_bytes (sum), alone_bytes (free bytes of the ranges that
    only blocks of this line hold), blocks, their allocated_bytes, the largest, ranges that they hold, age and step of
    the oldest, stack_id (the one that strands the most). Columns: LINE_COLUMNS."""
    lines = pinning_lines(stacks, found, blocks)
    return lines.assign(**describe_stacks(stacks, lines["stack_id"]).columns).select(*LINE_COLUMNS)


def pinning_lines(stacks: StackIndex, found: Pinning, blocks: Table) -> Table:
    """Return the same without what names the lines."""
    holds = found.holds
    row, stranded = holds["row"], holds["stranded"]
    stack_ids, stack = np.unique(blocks["stack_id"][row], return_inverse=True)
    numbers: dict[tuple[Any, ...], int] = {}
    line_of_stack = np.array(
        [numbers.setdefault(stacks.key(int(one), "line"), len(numbers)) for one in stack_ids], dtype=np.int64
    )
    line, count = line_of_stack[stack], len(numbers)
    sizes = blocks["block_bytes"][row]

    _, range_number = np.unique(holds["range"], return_inverse=True)
    pairs, first_of_line = np.unique(range_number * max(count, 1) + line, return_index=True)
    holds_range = np.zeros(len(row), dtype=bool)
    holds_range[first_of_line] = True
    lines_of_range = np.bincount(pairs // max(count, 1), minlength=1)
    is_alone = holds_range & (lines_of_range[range_number] == 1)
    # A block that reaches over two ranges is one block.
    is_first = np.zeros(len(row), dtype=bool)
    is_first[np.unique(row, return_index=True)[1]] = True

    age = np.ma.array(blocks["age_ns"][row], mask=blocks["older"][row])
    # What is older than the recording is the oldest.
    by_age = np.argsort(-age.filled(np.iinfo(np.int64).max), kind="stable")
    oldest = _first_of_each(line, by_age, count)
    by_stack = sums(stack, stranded, len(stack_ids))
    most = _first_of_each(line, by_age[np.argsort(-by_stack[stack][by_age], kind="stable")], count)
    lines = Table(
        {
            "stranded_bytes": sums(line, stranded, count),
            "alone_bytes": sums(line[is_alone], holds["free"][is_alone], count),
            "blocks": np.bincount(line[is_first], minlength=count),
            "allocated_bytes": sums(line[is_first], sizes[is_first], count),
            "largest_bytes": maxima(line, sizes, count),
            "ranges": np.bincount(line[holds_range], minlength=count),
            "oldest_age_ns": age[oldest],
            "step": blocks["step"][row[oldest]],
            "stack_id": stack_ids[stack[most]],
        }
    )
    # Of equal ones the older first.
    order = np.argsort(np.argsort(by_age)[oldest])
    lines = lines.take(order)
    return lines.take(np.lexsort([np.arange(count), -lines["alone_bytes"], -lines["stranded_bytes"]]))


def _first_of_each(groups: npt.NDArray[np.int64], order: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
    """The first of each of so many groups, in an order."""
    known, first = np.unique(groups[order], return_index=True)
    made = np.zeros(count, dtype=np.int64)
    made[known] = order[first]
    return made
