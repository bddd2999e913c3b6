"""Simple model of torch's caching allocator that checks a trace's events for contradictions.

The model shares no code with the generator or csrc/core. Each event must be possible in the state that the earlier
events led to, and the allocator state at the trace's end must equal the model's.
"""

from __future__ import annotations

import random
from bisect import bisect_left, insort
from dataclasses import dataclass, field
from typing import Any

import pytorch_alloctrace as alloctrace

MIB = 1 << 20
KINDS = ("alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "state_segment", "state_block")
STATES = {"inactive": 0, "active_allocated": 1, "active_pending_free": 2}


class ContradictionError(Exception):
    """An event that is impossible after the earlier events."""


@dataclass
class Block:
    address: int
    size: int
    segment: int
    state: str = "inactive"
    requested: int = 0


@dataclass
class Segment:
    size: int
    stream: int
    large: bool
    blocks: list[Block] = field(default_factory=list)
    """Blocks by ascending address."""


class Device:
    def __init__(self) -> None:
        self.segments: dict[int, Segment] = {}
        self.blocks: dict[int, Block] = {}
        self.free: dict[tuple[int, bool], list[tuple[int, int]]] = {}
        """Sorted (size, address) pairs by stream and pool: the first pair that is large enough is the best fit."""

    def segment_alloc(self, address: int, size: int, stream: int) -> None:
        for other, segment in self.segments.items():
            if address < other + segment.size and other < address + size:
                raise ContradictionError(f"segment {address:#x} overlaps {other:#x}")
        block = Block(address, size, address)
        self.segments[address] = Segment(size, stream, size > 2 * MIB, [block])
        self.blocks[address] = block
        self._enter(block)

    def segment_free(self, address: int, size: int) -> None:
        segment = self.segments.pop(address, None)
        if segment is None or segment.size != size:
            raise ContradictionError(f"no segment of {size} bytes at {address:#x}")
        if [block.state for block in segment.blocks] != ["inactive"]:
            raise ContradictionError(f"segment {address:#x} is freed with blocks in it")
        self._leave(segment.blocks[0], segment)
        del self.blocks[address]

    def alloc(self, address: int, requested: int, stream: int) -> None:
        size = max(512, -(-requested // 512) * 512)
        large = size > MIB
        free = self.free.get((stream, large), [])
        best = bisect_left(free, (size, 0))
        if best == len(free):
            raise ContradictionError(f"an alloc of {requested} bytes, but no free block is large enough")
        if free[best][1] != address:
            raise ContradictionError(f"alloc at {address:#x}, but {free[best][1]:#x} is the best fit")
        block = self.blocks[address]
        segment = self.segments[block.segment]
        self._leave(block, segment)
        remainder = block.size - size
        if remainder > MIB if large else remainder >= 512:
            after = Block(address + size, remainder, block.segment)
            block.size = size
            segment.blocks.insert(self._index(segment, address) + 1, after)
            self.blocks[after.address] = after
            self._enter(after)
        block.state, block.requested = "active_allocated", requested

    def free_requested(self, address: int, requested: int) -> None:
        self._change(address, requested, "active_allocated", "active_pending_free")

    def free_completed(self, address: int, requested: int) -> None:
        block = self._change(address, requested, "active_pending_free", "inactive")
        block.requested = 0
        segment = self.segments[block.segment]
        at = self._index(segment, address)
        if at + 1 < len(segment.blocks) and segment.blocks[at + 1].state == "inactive":
            after = segment.blocks.pop(at + 1)
            self._leave(after, segment)
            del self.blocks[after.address]
            block.size += after.size
        if at > 0 and segment.blocks[at - 1].state == "inactive":
            before = segment.blocks[at - 1]
            self._leave(before, segment)
            del self.blocks[segment.blocks.pop(at).address]
            before.size += block.size
            block = before
        self._enter(block)

    def state(self) -> list[tuple[int, ...]]:
        """Return the state in the trace's form: segments by ascending address, each followed by its blocks."""
        rows: list[tuple[int, ...]] = []
        for address, segment in sorted(self.segments.items()):
            rows.append((address, segment.size, segment.stream, 0, int(segment.large)))
            rows += [
                (block.address, block.size, segment.stream, block.requested, STATES[block.state])
                for block in segment.blocks
            ]
        return rows

    def tiles(self) -> list[tuple[Any, ...]]:
        """Return all blocks as `Trace.blocks` lists them. The last request of a free block is not compared."""
        return [
            (address, block.address, block.size, block.state, block.requested)
            for address, segment in sorted(self.segments.items())
            for block in segment.blocks
        ]

    def _change(self, address: int, requested: int, before: str, after: str) -> Block:
        block = self.blocks.get(address)
        if block is None or block.state != before:
            raise ContradictionError(f"{address:#x} is {block.state if block else 'no block'}, not {before}")
        if block.requested != requested:
            raise ContradictionError(f"{address:#x} was requested with {block.requested} bytes, not {requested}")
        block.state = after
        return block

    @staticmethod
    def _index(segment: Segment, address: int) -> int:
        return bisect_left(segment.blocks, address, key=lambda block: block.address)

    def _enter(self, block: Block) -> None:
        segment = self.segments[block.segment]
        insort(self.free.setdefault((segment.stream, segment.large), []), (block.size, block.address))

    def _leave(self, block: Block, segment: Segment) -> None:
        free = self.free[segment.stream, segment.large]
        del free[bisect_left(free, (block.size, block.address))]


def check(trace: alloctrace.Trace, positions: int = 20) -> dict[str, Any]:
    """Check a trace's events, and the replay at random positions; return the counts or raise ContradictionError."""
    devices: dict[str, Device] = {}
    final_states: dict[str, list[tuple[int, ...]]] = {}
    counts = dict.fromkeys(KINDS, 0)
    compared_positions = set(random.Random(1).sample(range(trace.integrity.events), positions))
    compared = 0
    columns = ("seq", "kind", "device", "address", "requested_bytes", "stream", "autograd_seq", "node_seq")
    for chunk in trace.events(columns=columns, chunk=1_000_000):
        for seq, kind, name, address, size, stream, sequence, node in chunk.itertuples(index=False, name=None):
            if kind in counts:
                counts[kind] += 1
                device = devices.setdefault(name, Device())
                if kind in ("state_segment", "state_block"):
                    final_states.setdefault(name, []).append((address, size, stream, sequence, node))
                else:
                    arguments = (address, size, stream) if kind in ("alloc", "segment_alloc") else (address, size)
                    try:
                        getattr(device, kind)(*arguments)
                    except ContradictionError as error:
                        raise ContradictionError(f"event {seq}, {kind} on {name}: {error}") from None
            if seq in compared_positions and hasattr(trace, "blocks"):
                compare_position(trace, seq, devices)
                compared += 1
    for name, rows in final_states.items():
        if rows != devices[name].state():
            raise ContradictionError(f"{name}: the state at the end differs from the state after the last event")
    return {
        "integrity": trace.integrity.state,
        "devices_checked_at_the_end": len(final_states),
        "moments_equal_to_the_replay": compared,
        **counts,
    }


def compare_position(trace: Any, seq: int, devices: dict[str, Device]) -> None:
    table = trace.blocks(at=seq)
    table.loc[table["state"] == "inactive", "requested_bytes"] = 0
    columns = ["segment", "address", "block_bytes", "state", "requested_bytes"]
    for name, device in devices.items():
        replayed = [tuple(row) for row in table.loc[table["device"] == name, columns].itertuples(index=False)]
        if replayed != device.tiles():
            raise ContradictionError(f"after event {seq} the blocks of the replay of {name} differ from the model's")
