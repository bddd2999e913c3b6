"""Live blocks that keep free memory from being returned to the driver.

torch returns memory in *ranges*. A range is a segment or, in an expandable segment, one mapping unit: 2 MiB in the
small pool, 20 MiB in the large one unless set otherwise. A range is returned only when nothing in it is live. So a live
block *pins* the ranges in which it begins and ends, and strands their free bytes.

The free bytes of a range are divided equally among its live blocks, so that the sum over all blocks equals the stranded
bytes. `alone_bytes` would be returned if only this block, or only the blocks of this line, were freed.
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
"""Minimum free share of a range whose live blocks count as pinners."""
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
    """Bytes that could be returned to the driver, and the blocks that pin the rest. Sizes are allocated bytes."""

    releasable: int
    """Bytes of free ranges: `empty_cache()` returns them, those of a private pool once the pool is released."""
    stranded: int
    stranded_by_segment: npt.NDArray[np.int64]
    holds: Table
    """One row per live block (`row` of the blocks) and mostly free range that contains a part of it.

    stranded is the block's equal share of the range's free bytes; blocks is the number of live blocks in the range.
    """


def pinning(segments: Table, blocks: Table, settings: AllocatorSettings) -> Pinning:
    """Return what pins the segments of one device, sorted by address."""
    parts = _split_blocks(segments, blocks, settings)
    is_stranded = parts.is_free & (parts.bytes < parts.range_size)
    stranded_bytes = parts.bytes[is_stranded]
    by_segment = sums(parts.segment_row[is_stranded], stranded_bytes, len(segments))
    free = int(blocks["block_bytes"][blocks["state"] == INACTIVE].sum())
    total = int(stranded_bytes.sum())

    ranges, first, number = np.unique(parts.range[is_stranded], return_index=True, return_inverse=True)
    range_free = sums(number, stranded_bytes, len(ranges))
    range_size = parts.range_size[is_stranded][first]
    mostly_free = np.flatnonzero(range_free > MOSTLY_FREE * range_size)
    live = np.flatnonzero(~parts.is_free)
    index = np.searchsorted(ranges[mostly_free], parts.range[live])
    index = np.minimum(index, max(len(mostly_free) - 1, 0))
    pins = ranges[mostly_free][index] == parts.range[live] if len(mostly_free) else np.zeros(len(live), dtype=bool)
    live, of_range = live[pins], mostly_free[index[pins]] if len(mostly_free) else index[pins]
    count = np.bincount(of_range, minlength=len(ranges))[of_range].astype(np.int64)
    # The remainder goes to the first blocks, so that the sum over blocks equals the stranded bytes.
    quotient, remainder = np.divmod(range_free[of_range], np.maximum(count, 1))
    holds = Table(
        {
            "row": parts.row[live],
            "range": parts.range[live],
            "free": range_free[of_range],
            "range_size": range_size[of_range],
            "blocks": count,
            "stranded": quotient + (_count_earlier_in_group(of_range) < remainder),
        }
    )
    return Pinning(free - total, total, by_segment, holds)


def _count_earlier_in_group(groups: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return for each element the number of earlier elements of its group."""
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    counts = np.empty(len(groups), dtype=np.int64)
    counts[order] = np.arange(len(groups)) - np.searchsorted(ordered, ordered, side="left")
    return counts


@dataclass(frozen=True, eq=False)
class _BlockParts:
    """One row per block and range in which the block begins or ends."""

    row: npt.NDArray[np.int64]
    segment_row: npt.NDArray[np.int64]
    range: npt.NDArray[np.uint64]
    range_size: npt.NDArray[np.int64]
    bytes: npt.NDArray[np.int64]
    is_free: npt.NDArray[np.bool_]


def _split_blocks(segments: Table, blocks: Table, settings: AllocatorSettings) -> _BlockParts:
    """Return each block in the range in which it begins and, if different, in the range in which it ends.

    The ranges in between contain nothing else, so they are completely free or completely used.
    """
    total = segments["total_bytes"]
    mapped = np.where(segments["is_large"], settings.mapping_unit(is_large=True), settings.mapping_unit(is_large=False))
    unit = np.where(segments["is_expandable"], np.minimum(mapped, total), total)
    origin = segments["address"].view(np.uint64)  # unsigned: an address in a corrupt trace may have its highest bit set
    segment = np.searchsorted(origin, blocks["segment"].view(np.uint64))
    begin = (blocks["address"].view(np.uint64) - origin[segment]).astype(np.int64)
    size = blocks["block_bytes"]
    length = np.maximum(unit, 1)[segment]
    first_unit, last_unit = begin // length, (begin + np.maximum(size, 1) - 1) // length
    in_first = np.where(first_unit == last_unit, size, (first_unit + 1) * length - begin)
    in_last = np.where(last_unit > first_unit, begin + size - last_unit * length, 0)
    is_free = blocks["state"] == INACTIVE
    begin_rows, end_rows = np.flatnonzero(in_first > 0), np.flatnonzero(in_last > 0)
    rows = np.concatenate([begin_rows, end_rows])
    of_segment = segment[rows]
    offset = np.concatenate([(first_unit * length)[begin_rows], (last_unit * length)[end_rows]])
    return _BlockParts(
        row=rows,
        segment_row=of_segment,
        range=origin[of_segment] + offset.astype(np.uint64),
        range_size=np.minimum(length[rows], total[of_segment] - offset),
        bytes=np.concatenate([in_first[begin_rows], in_last[end_rows]]),
        is_free=is_free[rows],
    )


def pinners(trace: RecordedTrace, pinned: Pinning, segments: Table, blocks: Table) -> Table:
    """Return PINNER_COLUMNS of each live block in mostly free ranges, the most stranded bytes first.

    The module's docstring defines stranded_bytes and alone_bytes. range_bytes, range_free_bytes and range_blocks are
    size, free bytes and live blocks of the block's range; for two ranges, the sums and the minimum of the blocks.
    """
    holds = pinned.holds
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


def pinners_by_line(stacks: StackIndex, pinned: Pinning, blocks: Table) -> Table:
    """Return LINE_COLUMNS: the pinners by line of user code, the most stranded bytes first.

    alone_bytes are the free bytes of ranges that only blocks of this line pin, ranges the number of ranges that these
    blocks pin. oldest_age_ns and step are of the oldest block, stack_id is the stack that strands the most.
    """
    lines = pinning_lines(stacks, pinned, blocks)
    return lines.assign(**describe_stacks(stacks, lines["stack_id"]).columns).select(*LINE_COLUMNS)


def pinning_lines(stacks: StackIndex, pinned: Pinning, blocks: Table) -> Table:
    """Return `pinners_by_line` without the columns that describe the line."""
    holds = pinned.holds
    row, stranded = holds["row"], holds["stranded"]
    stack_ids, stack = np.unique(blocks["stack_id"][row], return_inverse=True)
    numbers: dict[tuple[Any, ...], int] = {}
    line_of_stack = np.array(
        [numbers.setdefault(stacks.key(int(stack_id), "line"), len(numbers)) for stack_id in stack_ids], dtype=np.int64
    )
    line, count = line_of_stack[stack], len(numbers)
    sizes = blocks["block_bytes"][row]

    _, range_number = np.unique(holds["range"], return_inverse=True)
    pairs, first_of_line = np.unique(range_number * max(count, 1) + line, return_index=True)
    holds_range = np.zeros(len(row), dtype=bool)
    holds_range[first_of_line] = True
    lines_of_range = np.bincount(pairs // max(count, 1), minlength=1)
    is_alone = holds_range & (lines_of_range[range_number] == 1)
    # A block in two ranges is counted once.
    is_first = np.zeros(len(row), dtype=bool)
    is_first[np.unique(row, return_index=True)[1]] = True

    age = np.ma.array(blocks["age_ns"][row], mask=blocks["older"][row])
    # Blocks older than the recording have no age: they sort as the oldest.
    by_age = np.argsort(-age.filled(np.iinfo(np.int64).max), kind="stable")
    oldest = _find_first_of_each(line, by_age, count)
    by_stack = sums(stack, stranded, len(stack_ids))
    top_stack = _find_first_of_each(line, by_age[np.argsort(-by_stack[stack][by_age], kind="stable")], count)
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
            "stack_id": stack_ids[stack[top_stack]],
        }
    )
    # Among lines with equal bytes, the one with the older block comes first.
    order = np.argsort(np.argsort(by_age)[oldest])
    lines = lines.take(order)
    return lines.take(np.lexsort([np.arange(count), -lines["alone_bytes"], -lines["stranded_bytes"]]))


def _find_first_of_each(
    groups: npt.NDArray[np.int64], order: npt.NDArray[np.int64], count: int
) -> npt.NDArray[np.int64]:
    """Return for each of `count` groups its first element in `order`."""
    present, first = np.unique(groups[order], return_index=True)
    result = np.zeros(count, dtype=np.int64)
    result[present] = order[first]
    return result
