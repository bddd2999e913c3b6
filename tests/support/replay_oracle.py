"""Comparisons of a trace with torch's own report of its allocator at each checkpoint (replay_programs)."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

import pytorch_alloctrace as alloctrace

SEGMENT_COLUMNS = (
    "device", "address", "total_bytes", "allocated_bytes", "active_bytes", "requested_bytes",
    "stream", "segment_type", "segment_pool_id", "is_expandable",
)  # fmt: skip
BLOCK_COLUMNS = ("device", "segment", "address", "block_bytes", "requested_bytes", "state")

Row = tuple[Any, ...]


@dataclass(frozen=True)
class Checkpoint:
    trace: str
    """File name."""
    at: str
    """Position in the trace."""
    mid_run: bool
    """True if torch had expandable segments when the trace began."""
    segments: list[Row]
    blocks: list[Row]
    peaks: dict[str, dict[str, int]]
    """At the end of a trace: maximum bytes since the trace began, by device and measure."""
    fractions: dict[str, float]
    """Fraction of the memory that the process may reserve, by device."""
    uses: dict[tuple[str, tuple[int, int]], int]
    """Use count of each MemPool, by device and pool id."""


def read_expected(path: Path) -> list[Checkpoint]:
    checkpoints = []
    for line in path.read_text().splitlines():
        reported = json.loads(line)
        reported["segments"] = sorted((*row[:8], tuple(row[8]), row[9]) for row in reported["segments"])
        reported["blocks"] = sorted(map(tuple, reported["blocks"]))
        reported["uses"] = {(device, tuple(pool)): count for device, pool, count in reported["uses"]}
        checkpoints.append(Checkpoint(**{"peaks": {}, "fractions": {}, **reported}))
    return checkpoints


def account_at_positions(
    trace: alloctrace.Trace, positions: Sequence[str]
) -> Iterator[tuple[dict[tuple[str, int], int], dict[str, int]]]:
    """Yield, at each position, requested bytes of live blocks by (device, address), and reserved bytes by device.

    Computed from allocations, frees, segments, and each device's first allocator state. Positions must be sorted.
    """
    ends = [trace._recorded.first_event_after(at) for at in positions]
    live: dict[tuple[str, int], int] = {}
    reserved: dict[str, int] = {}
    started_devices: set[str] = set()
    owner, is_first_state = "", False
    columns = ("seq", "kind", "device", "address", "requested_bytes", "autograd_seq", "node_seq")
    events = trace.events(columns=columns)
    next_end = 0
    for seq, kind, device, address, size, requested, state in zip(*(events[name] for name in columns), strict=True):
        while next_end < len(ends) and ends[next_end] is not None and seq >= ends[next_end]:
            yield live, reserved
            next_end += 1
        if not device.startswith("cuda"):
            continue
        if kind == "allocator_state":
            owner, is_first_state = device, device not in started_devices
            started_devices.add(device)
        elif kind == "state_segment" and is_first_state:
            reserved[owner] = reserved.get(owner, 0) + size
        elif kind == "state_block" and is_first_state and state == 1:
            live[owner, address] = requested
        elif kind == "alloc":
            live[device, address] = size
        elif kind == "free_requested":
            del live[device, address]
        elif kind == "free_completed":
            live.pop((device, address), None)
        elif kind in ("segment_alloc", "segment_map"):
            reserved[device] = reserved.get(device, 0) + size
        elif kind in ("segment_free", "segment_unmap"):
            reserved[device] -= size
        if kind in ("alloc", "segment_alloc", "segment_map"):
            started_devices.add(device)
    for _ in ends[next_end:]:
        yield live, reserved


def event_differences(trace: alloctrace.Trace, checkpoints: Sequence[Checkpoint]) -> list[str]:
    """Compare live blocks and reserved bytes, computed from the events alone, with torch's."""
    differences = []
    accounts = account_at_positions(trace, [checkpoint.at for checkpoint in checkpoints])
    for checkpoint, (live, reserved) in zip(checkpoints, accounts, strict=True):
        reported = {(block[0], block[2]): block[4] for block in checkpoint.blocks if block[5] == "active_allocated"}
        if reported != live:
            wrong = sorted(reported.items() ^ live.items())
            differences.append(f"{checkpoint.at}: {len(wrong)} live blocks differ from the events, as {wrong[:3]}")
        reported_bytes = dict.fromkeys(reserved, 0)
        for segment in checkpoint.segments:
            reported_bytes[segment[0]] = reported_bytes.get(segment[0], 0) + segment[2]
        if reported_bytes != reserved:
            differences.append(f"{checkpoint.at}: {reported_bytes} reserved by torch, {reserved} by the events")
    return differences


def pool_differences(trace: alloctrace.Trace, checkpoints: Sequence[Checkpoint]) -> list[str]:
    """Compare memory fractions and use counts of pools in the events with torch's."""
    kinds = ("pool_use", "pool_release", "memory_fraction")
    columns = ("seq", "kind", "device", "address", "requested_bytes", "pool")
    events = trace.events(kinds=kinds, columns=columns)
    rows = [*zip(*(events[name] for name in columns), strict=True)]
    differences = []
    for checkpoint in checkpoints:
        end = trace._recorded.first_event_after(checkpoint.at)
        fractions = dict.fromkeys(checkpoint.fractions, 1.0)
        uses: dict[tuple[str, tuple[int, int]], int] = {}
        for seq, kind, device, address, size, pool in rows:
            if end is not None and seq >= end:
                break
            if kind == "memory_fraction":
                [fractions[device]] = struct.unpack("<d", struct.pack("<Q", int(address)))
            elif kind == "pool_release":
                uses[device, pool] = int(size)
            elif address:
                uses[device, pool] = uses.get((device, pool), 1) + 1
        recorded_uses = {pool: uses.get(pool, 1) for pool in checkpoint.uses}  # 1: the MemPool's own use
        for computed, reported in ((fractions, checkpoint.fractions), (recorded_uses, checkpoint.uses)):
            if computed != reported:
                differences.append(f"{checkpoint.at}: torch reports {reported}, the events give {computed}")
    return differences


def frees_memory_in_use(trace: alloctrace.Trace) -> bool:
    """Return whether torch freed a segment with live blocks, as 2.11 does after a late max_split_size."""
    sizes: dict[tuple[str, int], int] = {}
    owner = ""
    columns = ("kind", "device", "address", "requested_bytes")
    events = trace.events(columns=columns)
    for kind, device, address, size in zip(*(events[name] for name in columns), strict=True):
        owner = device if kind == "allocator_state" else owner
        if kind in ("segment_alloc", "state_segment"):
            sizes[device if kind == "segment_alloc" else owner, address] = size
        elif kind == "segment_free" and sizes.pop((device, address), size) != size:
            return True
    return False


def state_differences(
    trace: alloctrace.Trace, checkpoint: Checkpoint, at: int | str | pd.Timestamp | None = None
) -> list[str]:
    """Compare all columns of the replay's segments and blocks with torch's report.

    `at` is another name of the checkpoint's position.
    """
    at = checkpoint.at if at is None else at
    segments = rows_of(trace.segments(at=at), SEGMENT_COLUMNS)
    blocks, reported = rows_of(trace.blocks(at=at), BLOCK_COLUMNS), checkpoint.blocks
    if checkpoint.mid_run:
        expandable = {(segment[0], segment[1]) for segment in checkpoint.segments if segment[9]}
        blocks, reported = without_stale_sizes(blocks, expandable), without_stale_sizes(reported, expandable)
    return [
        *_row_differences(checkpoint, "segment", SEGMENT_COLUMNS, segments, checkpoint.segments),
        *_row_differences(checkpoint, "block", BLOCK_COLUMNS, blocks, reported),
    ]


def _row_differences(
    checkpoint: Checkpoint, kind: str, columns: tuple[str, ...], replayed: list[Row], reported: list[Row]
) -> Iterator[str]:
    if replayed == reported:
        return
    key = columns.index("address")
    replayed_by_key, reported_by_key = ({(row[0], row[key]): row for row in rows} for rows in (replayed, reported))
    where = f"{checkpoint.trace} at {checkpoint.at}"
    if [*replayed_by_key] != sorted(replayed_by_key) or len(replayed_by_key) != len(replayed):
        yield f"{where}: {kind}s are unsorted by device and address, or duplicate"
    for address in sorted({*replayed_by_key, *reported_by_key}):
        replay_row, torch_row = replayed_by_key.get(address), reported_by_key.get(address)
        if replay_row != torch_row:
            yield f"{where}: {kind} at {address}: columns {columns} are {replay_row}, torch reports {torch_row}"


def rows_of(table: pd.DataFrame, columns: Sequence[str]) -> list[Row]:
    return [*zip(*(table[name].tolist() for name in columns), strict=True)]


def without_stale_sizes(blocks: list[Row], segments: set[tuple[str, int]] | None = None) -> list[Row]:
    """Remove the requested sizes of free blocks, in some segments or in all.

    These are sizes of earlier requests, which a recording that begins later does not contain.
    """
    return [
        (*row[:4], None, row[5]) if row[5] == "inactive" and (segments is None or row[:2] in segments) else row
        for row in blocks
    ]


def verification_differences(trace: alloctrace.Trace) -> list[str]:
    """Return the differences between the trace's allocator states and its events."""
    result = trace.verify()
    if result.ok and not result.contradictions and result.agreeing == result.states:
        return []
    reported = [*result.differences[:3], *result.contradiction_list[:3]]
    return [f"{result.agreeing} of {result.states} states agree, {result.contradictions} contradictions: {reported}"]


def peak_differences(trace: alloctrace.Trace, peaks: dict[str, dict[str, int]]) -> list[str]:
    """Compare the maximum of the timeline with torch's peak."""
    differences = []
    for device, measures in peaks.items():
        timeline = trace.timeline(points=100, device=device)
        for measure, peak in measures.items():
            maximum = timeline[f"{measure}_bytes_max"].max()
            if (0 if pd.isna(maximum) else int(maximum)) != peak:  # NaN: the device was not used
                differences.append(f"{device}: maximum {maximum} bytes {measure}, torch reports {peak}")
    return differences
