"""Traces of just under a megabyte with the maximum number of records of one kind, and valid checksums.

An analysis whose work grows with the product of two numbers of records takes minutes or gigabytes here.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from typing import Any

import core_probe
import numpy as np
import numpy.typing as npt
from format_reader import DEFINITIONS, END, EVENTS, HEADER, block, delta, varint
from hostile_traces import file_header, record, text

MAX_BYTES = 1_000_000
_MS = 1_000_000
_ALLOC, _COMPLETED, _SEGMENT, _SEGMENT_FREE = 1, 3, 4, 5
_OOM, _STEP, _MARK, _CONFIG, _NO_SPLIT = 9, 10, 11, 18, 19
_STATE_SEGMENT, _STATE_BLOCK, _STATE, _POOL_USE, _POOL_ALLOCATOR = 20, 21, 25, 27, 28
_BASE = 0x7F0000000000


def largest(name: str, limit: int) -> bytes:
    """Return the trace with the maximum number of records in `limit` bytes, within about 1.5 percent."""
    make, low, high = TRACES[name], 1, 2
    while len(make(high)) < limit and high < 1 << 21:
        low, high = high, high * 2
    while high - low > max(low // 64, 1):
        middle = (low + high) // 2
        low, high = (middle, high) if len(make(middle)) < limit else (low, middle)
    return make(low)


# The parts of a trace


def events(count: int, **columns: Any) -> core_probe.Events:
    """Return `count` events; each column is a number or an array."""
    rows = core_probe.make_events(count)
    rows["location"], rows["thread"] = 1, 1
    for name, values in columns.items():
        rows[name] = values
    return rows


def mixed(*parts: core_probe.Events) -> core_probe.Events:
    """Interleave the events of the parts."""
    return np.stack(parts, axis=1).reshape(-1)


def string(number: int, value: str = "x") -> bytes:
    return record(1, varint(number), text(value))


def code(number: int, name: int, filename: int, table: bytes = b"") -> bytes:
    kind = 1 if table else 0
    return record(2, *map(varint, (number, name, name, filename)), delta(1, 0), varint(kind), varint(len(table)), table)


def frame(number: int, parent: int, code_id: int = 1, instruction: int = 0, module: int = 0) -> bytes:
    return record(3, *map(varint, (number, parent, code_id, instruction)), varint(module) if module else b"")


def location(number: int, device: int = 1, index: int = 0, stream: int = 0, pool: int = 0) -> bytes:
    return record(6, varint(number), delta(device, 0), delta(index, 0), varint(stream), varint(0), varint(pool))


def thread(number: int) -> bytes:
    return record(4, varint(number), varint(number), varint(number), text("t"))


BASE_DEFINITIONS = string(1, "main") + string(2, "/home/user/train.py") + code(1, 1, 2) + thread(1) + location(1)


def trace(
    definitions: bytes = b"",
    rows: core_probe.Events | None = None,
    *,
    header: dict[str, Any] | None = None,
    block_events: int = 65_536,
    gap: int = 0,
) -> bytes:
    """Return a complete trace. gap: number of missing events between two blocks."""
    anchor = [_MS, _MS, 1_700_000_000 * 10**9]
    blocks: list[bytes] = []
    first = 0

    def add(kind: int, payload: bytes, count: int = 0) -> None:
        nonlocal anchor
        begin, anchor = anchor, [part + count * 1000 + 1 for part in anchor]
        blocks.append(block(kind, payload, first, count, begin, anchor))

    add(HEADER, json.dumps(header or {"program": "train.py", "arguments": []}).encode())
    add(DEFINITIONS, BASE_DEFINITIONS + definitions)
    rows = events(0) if rows is None else rows
    rows["time"] = anchor[0] + 1000 * np.arange(len(rows), dtype=np.uint64)
    for begin in range(0, len(rows), block_events):
        part = rows[begin : begin + block_events]
        add(EVENTS, core_probe.encode(part, len(part), anchor[0]), len(part))
        first += len(part) + gap
    add(END, b"{}")
    return file_header() + b"".join(blocks)


def _addresses(count: int, distance: int = 512) -> npt.NDArray[np.uint64]:
    return (_BASE + distance * np.arange(count)).astype(np.uint64)


def _numbers(count: int, first: int = 1) -> range:
    return range(first, first + count)


# Traces with many records of one kind


def live_blocks(n: int) -> bytes:
    return trace(rows=events(n, kind=_ALLOC, address=_addresses(n), size=100, location=1))


def contradictory_states(n: int) -> bytes:
    """Follow n live blocks by n allocator states that contradict them."""
    live = events(n, kind=_ALLOC, address=_addresses(n), size=100)
    states = mixed(events(n, kind=_STATE, size=1), events(n, kind=_STATE_SEGMENT, address=1))
    return trace(rows=np.concatenate([live, states]))


def empty_states(n: int) -> bytes:
    """Report an empty device repeatedly, after many blocks were allocated and freed."""
    address = _addresses(n)
    allocated, freed = (events(n, kind=kind, address=address, size=100) for kind in (_ALLOC, _COMPLETED))
    return trace(rows=np.concatenate([allocated, freed, events(4 * n, kind=_STATE, size=0)]))


def alternating_states(n: int) -> bytes:
    """Report a different block in each state."""
    at = _addresses(2)[np.arange(n) % 2]
    segment = events(n, kind=_STATE_SEGMENT, address=at, size=2 << 20)
    return trace(rows=mixed(events(n, kind=_STATE, size=2), segment,
                            events(n, kind=_STATE_BLOCK, address=at, size=2 << 20, node_sequence=1)))  # fmt: skip


def pools(n: int) -> bytes:
    """Use many pools of all kinds, and allocate from a segment that is in none."""
    places = b"".join(location(number, pool=number) for number in _numbers(n, 2))
    at = np.arange(2, n + 2)
    kinds = [events(n, kind=kind, location=at) for kind in (_POOL_USE, _NO_SPLIT, _POOL_ALLOCATOR)]
    segment = events(1, kind=_SEGMENT, address=_BASE, size=1 << 40)
    blocks = events(n, kind=_ALLOC, address=_addresses(n), size=512)
    return trace(places, np.concatenate([*kinds, segment, blocks, kinds[0]]))


def free_sizes(n: int) -> bytes:
    """Hold free memory in nearly equal sizes, none equal."""
    sizes = (1 << 40) + 512 * np.arange(n, dtype=np.uint64)
    return trace(rows=events(n, kind=_SEGMENT, address=_addresses(n, 1 << 41), size=sizes))


def changing_free_sizes(n: int) -> bytes:
    sizes = (1 << 40) + 512 * np.arange(n, dtype=np.uint64)
    address = _addresses(n, 1 << 41)
    rows = events(n, kind=_SEGMENT, address=address, size=sizes)
    return trace(rows=np.concatenate([rows, events(n, kind=_SEGMENT_FREE, address=address[::-1], size=sizes[::-1])]))


def deep_stacks(n: int) -> bytes:
    """Record one stack as deep as there are frames, with events at both ends in turn."""
    frames = b"".join(frame(number, number - 1, 1, number) for number in _numbers(n))
    stacks = np.arange(n, dtype=np.uint64) + 1
    stacks[1::2] = n + 1 - stacks[1::2]
    return trace(frames, events(n, kind=_ALLOC, address=_addresses(n), size=100, stack=stacks))


def broad_stacks(n: int) -> bytes:
    frames = b"".join(frame(number, number % 7, 1, number) for number in _numbers(n))
    return trace(frames, events(n, kind=_ALLOC, address=_addresses(n), size=100, stack=np.arange(n) + 1))


def children(n: int) -> bytes:
    return trace(b"".join(record(14, *map(varint, (0, number, 1, number)), text("x")) for number in _numbers(n)))


def line_table(n: int) -> bytes:
    """Record many frames in a function of very many lines."""
    table = bytes([1, 1]) * (2 * n)
    frames = b"".join(frame(number, 0, 2, 4 * n - 1) for number in _numbers(n))
    return trace(code(2, 1, 2, table) + frames, events(n, kind=_ALLOC, address=_addresses(n), stack=np.arange(n) + 1))


def names(n: int) -> bytes:
    """Record one file name as long as there are functions in the file."""
    long = string(3, "/home/user/" + "x" * (25 * n) + ".py")
    codes = b"".join(code(number, 1, 3) + frame(number, 0, number) for number in _numbers(n, 2))
    at = events(n, kind=_ALLOC, address=_addresses(n), size=100, stack=np.arange(n) + 2)
    return trace(long + codes, at)


def node_names(n: int) -> bytes:
    """Record mangled names that grow exponentially when they are demangled."""
    name = "_Z1fI1aE" + "1b".join(["N1cIS_S_E"] * 24) + "E"
    growing = "_Z1f" + "".join(f"1tIS{'' if i == 0 else _base36(i - 1)}_S{'' if i == 0 else _base36(i - 1)}_E"
                               for i in range(60))  # fmt: skip
    nodes = b"".join(record(7, varint(number), varint(1), text((name, growing)[number % 2])) for number in _numbers(n))
    rows = events(n, kind=_ALLOC, address=_addresses(n), size=100, node_type=np.arange(n) % 65_000 + 1)
    return trace(nodes, rows)


def _base36(value: int) -> str:
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    return (_base36(value // 36) if value >= 36 else "") + digits[value % 36]


def settings(n: int) -> bytes:
    """Change large settings at each event."""
    value = json.dumps({"expandable_segments": False, "x": "y" * (3 * n), "large_segment_size": 1 << 21})
    return trace(string(3, value) + string(4, value), events(n, kind=_CONFIG, size=np.arange(n) % 2 + 3))


def nodes_of_threads(n: int) -> bytes:
    """Record nodes of 256 threads as far apart as the forward pass is remembered."""
    threads = b"".join(thread(number) for number in _numbers(256))
    at = np.arange(n)
    rows = events(n, kind=_ALLOC, address=_addresses(n), stack=1, thread=at % 256 + 1, sequence=at // 256 * 1024 + 1)
    return trace(threads + frame(1, 0), rows)


def far_apart(n: int) -> bytes:
    """Record a few events in each block, with a huge gap between blocks."""
    places = location(280_000)
    live = events(4 * n, kind=_ALLOC, address=_addresses(4 * n), size=100)
    more = events(2 * n, kind=_ALLOC, address=_addresses(2 * n) + np.uint64(1 << 40), size=100, location=280_000)
    return trace(places, np.concatenate([live, more]), block_events=max(len(live) // 60_000, 2), gap=1 << 40)


def steps_of_many_devices(n: int, devices: int = 78) -> bytes:
    places, sizes = b"".join(location(number, index=number) for number in _numbers(devices, 2)), np.arange(devices)
    begin = events(devices, kind=_ALLOC, address=_addresses(devices), size=100 + sizes, location=2 + sizes)
    return trace(places, np.concatenate([begin, events(n, kind=_STEP, size=np.arange(n), address=1, location=0)]))


def marks(n: int) -> bytes:
    definitions = b"".join(string(number, f"m{number}") for number in _numbers(n, 3))
    return trace(definitions, events(n, kind=_MARK, size=np.arange(n) + 3, location=0))


def failed_allocations(n: int) -> bytes:
    """Record as many failed allocations as live blocks."""
    segment = events(1, kind=_SEGMENT, address=_BASE, size=1 << 40)
    live = events(n, kind=_ALLOC, address=_addresses(n, 1024), size=512)
    return trace(frame(1, 0), np.concatenate([segment, live, events(n, kind=_OOM, size=1 << 41, stack=1)]))


def library_blocks(n: int) -> bytes:
    definitions = b"".join(record(10, varint(n), varint(_BASE + 512 * n), text(f"w{n}")) for n in range(n))
    return trace(definitions, events(n, kind=_ALLOC, address=_addresses(n), size=100))


def modules(n: int) -> bytes:
    """Nest modules, each called by the one before."""
    definitions = b"".join(record(11, *map(varint, (number, 1, number - 1, 2))) for number in _numbers(n))
    frames = b"".join(frame(number, number - 1, 1, 4, number) for number in _numbers(n))
    return trace(definitions + frames, events(n, kind=_ALLOC, address=_addresses(n), size=100, stack=np.arange(n) + 1),
                 header={"options": {"modules": True}})  # fmt: skip


def streams(n: int) -> bytes:
    places = b"".join(location(number, stream=number) for number in _numbers(n, 2))
    at = np.arange(n) + 2
    segment = events(n, kind=_SEGMENT, address=_addresses(n, 2 << 20), size=2 << 20, location=at)
    return trace(places, mixed(segment, events(n, kind=_ALLOC, address=_addresses(n, 2 << 20), size=1, location=at)))


def header_json(n: int) -> bytes:
    nested: Any = {"a": ["x" * 100] * (n // 100), "options": {str(number): number for number in range(n // 10)}}
    return trace(header={"program": "p" * n, "arguments": [nested] * 2, "devices": [{"name": "x"}] * (n // 20)})


TRACES: dict[str, Callable[..., bytes]] = {
    name: function
    for name, function in [*globals().items()]
    if inspect.isfunction(function) and "n" in function.__annotations__
}
"""Functions that make a trace of n records, by name."""
