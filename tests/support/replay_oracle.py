"""torch's reports of its allocator at each checkpoint of a program (replay_programs), and comparisons with them."""

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
    """Name of the trace's file."""
    at: str
    """The position in the trace."""
    mid_run: bool
    """Whether torch had expandable segments when the trace began."""
    segments: list[Row]
    blocks: list[Row]
    peaks: dict[str, dict[str, int]]
    """At the end of a trace: of each device, the most bytes of each measure since the trace began."""
    fractions: dict[str, float]
    """Of each device, the share that the process may reserve."""
    uses: dict[tuple[str, tuple[int, int]], int]
    """How many use each MemPool: by device and its id."""


def read_expected(path: Path) -> list[Checkpoint]:
    found = []
    for line in path.read_text().splitlines():
        reported = json.loads(line)
        reported["segments"] = sorted((*row[:8], tuple(row[8]), row[9]) for row in reported["segments"])
        reported["blocks"] = sorted(map(tuple, reported["blocks"]))
        reported["uses"] = {(device, tuple(pool)): count for device, pool, count in reported["uses"]}
        found.append(Checkpoint(**{"peaks": {}, "fractions": {}, **reported}))
    return found


def account_of_events(
    trace: alloctrace.Trace, positions: Sequence[str]
) -> Iterator[tuple[dict[tuple[str, int], int], dict[str, int]]]:
    """Yield live blocks, (device, address) to requested bytes, and reserved bytes of each device at each position.

    Uses allocations, frees, segments, and the first allocator state of each device. The positions are in order.
    """
    ends = [trace._recorded.first_event_after(at) for at in positions]
    live: dict[tuple[str, int], int] = {}
    reserved: dict[str, int] = {}
    begun: set[str] = set()
    owner, takes_state = "", False
    columns = ("seq", "kind", "device", "address", "requested_bytes", "autograd_seq", "node_seq")
    events = trace.events(columns=columns)
    reached = 0
    for seq, kind, device, address, size, requested, state in zip(*(events[name] for name in columns), strict=True):
        while reached < len(ends) and ends[reached] is not None and seq >= ends[reached]:
            yield live, reserved
            reached += 1
        if not device.startswith("cuda"):
            continue
        if kind == "allocator_state":
            owner, takes_state = device, device not in begun
            begun.add(device)
        elif kind == "state_segment" and takes_state:
            reserved[owner] = reserved.get(owner, 0) + size
        elif kind == "state_block" and takes_state and state == 1:
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
            begun.add(device)
    for _ in ends[reached:]:
        yield live, reserved


def event_differences(trace: alloctrace.Trace, checkpoints: Sequence[Checkpoint]) -> list[str]:
    """Compare live blocks and reserved bytes that follow from the events alone with torch's."""
    differences = []
    accounts = account_of_events(trace, [checkpoint.at for checkpoint in checkpoints])
    for checkpoint, (live, reserved) in zip(checkpoints, accounts, strict=True):
        reported = {(block[0], block[2]): block[4] for block in checkpoint.blocks if block[5] == "active_allocated"}
        if reported != live:
            odd = sorted(reported.items() ^ live.items())
            differences.append(f"{checkpoint.at}: {len(odd)} live blocks differ from the events', as {odd[:3]}")
        bytes_of = dict.fromkeys(reserved, 0)
        for segment in checkpoint.segments:
            bytes_of[segment[0]] = bytes_of.get(segment[0], 0) + segment[2]
        if bytes_of != reserved:
            differences.append(f"{checkpoint.at}: {bytes_of} reserved, the events say {reserved}")
    return differences


def pool_differences(trace: alloctrace.Trace, checkpoints: Sequence[Checkpoint]) -> list[str]:
    """Compare fractions of the devices' memory and uses of pools in the events with torch's."""
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
        recorded_uses = {known: uses.get(known, 1) for known in checkpoint.uses}  # that of the MemPool itself
        for ours, torchs in ((fractions, checkpoint.fractions), (recorded_uses, checkpoint.uses)):
            if ours != torchs:
                differences.append(f"{checkpoint.at}: {torchs}, the events say {ours}")
    return differences


def frees_memory_in_use(trace: alloctrace.Trace) -> bool:
    """Return whether torch freed a segment with blocks in use: with a late max_split_size, torch 2.11 does."""
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
    """Compare every column of every segment and block of the replay with what torch reported. at: another name of the
    checkpoint's position."""
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
    checkpoint: Checkpoint, what: str, columns: tuple[str, ...], ours: list[Row], reported: list[Row]
) -> Iterator[str]:
    if ours == reported:
        return
    key = columns.index("address")
    mine, theirs = ({(row[0], row[key]): row for row in rows} for rows in (ours, reported))
    where = f"{checkpoint.trace} at {checkpoint.at}"
    if [*mine] != sorted(mine) or len(mine) != len(ours):
        yield f"{where}: {what}s are not sorted by device and address, or twice there"
    for place in sorted({*mine, *theirs}):
        our, their = mine.get(place), theirs.get(place)
        if our != their:
            yield f"{where}: {what} at {place}: columns {columns} are {our}, torch reports {their}"


def rows_of(table: pd.DataFrame, columns: Sequence[str]) -> list[Row]:
    return [*zip(*(table[name].tolist() for name in columns), strict=True)]


def without_stale_sizes(blocks: list[Row], segments: set[tuple[str, int]] | None = None) -> list[Row]:
    """Remove the requested sizes that torch keeps in free blocks of some segments, or of all.

    They are of earlier requests: a recording begun later cannot know them.
    """
    return [
        (*row[:4], None, row[5]) if row[5] == "inactive" and (segments is None or row[:2] in segments) else row
        for row in blocks
    ]


def verification_differences(trace: alloctrace.Trace) -> list[str]:
    """Return the disagreements of the trace's own allocator states with its events."""
    verified = trace.verify()
    if verified.ok and not verified.contradictions and verified.agreeing == verified.states:
        return []
    reported = [*verified.differences[:3], *verified.contradiction_list[:3]]
    return [
        f"{verified.agreeing} of {verified.states} states agree, {verified.contradictions} contradictions: {reported}"
    ]


def peak_differences(trace: alloctrace.Trace, peaks: dict[str, dict[str, int]]) -> list[str]:
    """Compare the highest point of the timeline with the peak that torch has counted."""
    differences = []
    for device, measures in peaks.items():
        timeline = trace.timeline(points=100, device=device)
        for measure, peak in measures.items():
            highest = timeline[f"{measure}_bytes_max"].max()
            if (0 if pd.isna(highest) else int(highest)) != peak:  # not known where the device was not used
                differences.append(f"{device}: at most {highest} bytes {measure}, torch says {peak}")
    return differences
