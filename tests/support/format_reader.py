"""A reader of traces written from docs/trace-format.md alone: slow, simple, and without any code of the package.

The tests' oracle: the package must read the same from a file. Writers of a trace's parts are at the end.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

MASK = (1 << 64) - 1
K1, K2 = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F
FILE_HEADER, BLOCK_HEADER = 32, 136
BLOCK_MAGIC = b"ATBK"
HEADER, DEFINITIONS, DICTIONARY, EVENTS, END = 1, 2, 3, 4, 5
FREE_COMPLETED = 3
COMPLETED, TAKEN = 1 << 31, 1 << 30
Numbers = Sequence[int]


class CorruptTrace(Exception):
    """Error: bytes that no recorder wrote."""


class Cursor:
    """Forward reader of bytes."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def done(self) -> bool:
        return self.at >= len(self.data)

    def take(self, size: int) -> bytes:
        if size > len(self.data) - self.at:
            raise CorruptTrace("bytes end too early")
        self.at += size
        return self.data[self.at - size : self.at]

    def byte(self) -> int:
        return self.take(1)[0]

    def varint(self) -> int:
        value = 0
        for index in range(10):
            next_byte = self.byte()
            value |= (next_byte & 0x7F) << (7 * index)
            if next_byte < 0x80:
                return value & MASK
        raise CorruptTrace("a varint of more than ten bytes")

    def signed(self) -> int:
        return unzigzag(self.varint())

    def text(self) -> bytes:
        return self.take(self.varint())


def unzigzag(value: int) -> int:
    return (value >> 1) ^ -(value & 1)


class Anchor(NamedTuple):
    counter: int
    monotonic: int
    wall: int


@dataclass(frozen=True)
class Event:
    """One event with the raw values of the file; time is the raw counter."""

    kind: int
    time: int
    address: int
    size: int
    stack: int
    thread: int
    location: int
    sequence: int
    node_sequence: int
    node_thread: int
    node_type: int


@dataclass
class Run:
    """Events with consecutive sequence numbers, and the anchors that convert their times."""

    first: int
    events: list[Event]
    begin: Anchor
    end: Anchor


@dataclass
class Names:
    """Definitions by id."""

    strings: dict[int, bytes] = field(default_factory=dict)
    codes: dict[int, tuple[int, int, int, int, int, bytes]] = field(default_factory=dict)
    frames: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    threads: dict[int, tuple[int, int, bytes]] = field(default_factory=dict)
    thread_names: dict[int, bytes] = field(default_factory=dict)
    locations: dict[int, tuple[int, int, int, int, int]] = field(default_factory=dict)
    node_types: dict[int, tuple[bool, bytes]] = field(default_factory=dict)
    sources: dict[tuple[int, int], bytes] = field(default_factory=dict)
    holders: dict[tuple[int, bytes, bytes], tuple[Any, ...]] = field(default_factory=dict)
    """Fields of the record from the file on, by event, holder and path."""
    children: dict[tuple[int, int], tuple[int, int, bytes]] = field(default_factory=dict)
    """Event, parent's process id and command, by process id and start time."""

    def add(self, payload: bytes) -> None:
        records = Cursor(payload)
        while not records.done():
            record = Cursor(records.text())
            kind = record.byte()
            if kind == 1:
                identifier = record.varint()
                self.strings[identifier] = record.text()
            elif kind == 2:
                identifier, name, qualified, filename = (record.varint() for _ in range(4))
                self.codes[identifier] = (name, qualified, filename, record.signed(), record.varint(), record.text())
            elif kind == 3:
                identifier, caller, code, instruction = (record.varint() for _ in range(4))
                if caller >= identifier:
                    raise CorruptTrace("a frame called by itself")
                self.frames[identifier] = (caller, code, instruction)
            elif kind == 4:
                identifier, native, autograd = (record.varint() for _ in range(3))
                self.threads[identifier] = (native, autograd, record.text())
            elif kind == 5:
                identifier = record.varint()
                self.thread_names[identifier] = record.text()
            elif kind == 6:
                identifier, device_type, device_index = record.varint(), record.signed(), record.signed()
                stream, first, second = (record.varint() for _ in range(3))
                self.locations[identifier] = (device_type, device_index, stream, first, second)
            elif kind == 7:
                identifier, mangled = record.varint(), record.varint() == 1
                self.node_types[identifier] = (mangled, record.text())
            elif kind == 8:
                filename, line = record.varint(), record.varint()
                self.sources[filename, line] = record.text()
            elif kind == 13:
                event, line, count, total = (record.varint() for _ in range(4))
                holder, path, filename = record.text(), record.text(), record.text()
                addresses: list[int] = []
                for _ in range(record.varint()):
                    addresses.append((addresses[-1] if addresses else 0) + record.signed())
                is_garbage = record.varint() == 1
                is_old = record.done()
                container_count = 0 if is_old else record.varint()
                containers = [(record.text(), *(record.varint() for _ in range(4))) for _ in range(container_count)]
                nodes, has_all_nodes, foreign = (
                    (0, False, 0) if is_old else (record.varint(), record.varint() == 1, record.varint())
                )
                is_old = record.done()
                names = [b"" if is_old else record.text() for _ in range(4)]
                is_old = record.done()
                store = (b"", b"", b"", 0) if is_old else (*(record.text() for _ in range(3)), record.varint())
                tensor_bytes = 0 if record.done() else record.varint()
                back_reference, dtype = (b"", b"") if record.done() else (record.text(), record.text())
                self.holders[event, holder, path] = (
                    *(filename, line, count, total, addresses, is_garbage, containers, nodes, has_all_nodes, foreign),
                    *(*names, store, tensor_bytes, back_reference, dtype),
                )
            elif kind == 14:
                event, process, parent, start = (record.varint() for _ in range(4))
                event, parent, _ = self.children.get((process, start), (event, parent, b""))
                self.children[process, start] = (event, parent, record.text())

    def stack(self, innermost: int) -> list[tuple[bytes, bytes, int, bytes | None]]:
        """Return qualified name, filename, line and source of each frame, innermost first."""
        frames = []
        while innermost:
            innermost, code, instruction = self.frames[innermost]
            name, qualified, filename, first_line, table_kind, table = self.codes[code]
            line = line_of(table_kind, table, first_line, instruction)
            frames.append(
                (self.strings[qualified or name], self.strings[filename], line, self.sources.get((filename, line)))
            )
        return frames


def line_of(kind: int, table: bytes, first_line: int, instruction: int) -> int:
    """Return the line of an instruction, or 0 if it has none."""
    line, end = first_line, 0
    if kind == 1:
        for advance, step in struct.iter_unpack("<Bb", table[: len(table) // 2 * 2]):
            end += advance
            line += 0 if step == -128 else step
            if instruction < end:
                return 0 if step == -128 else line
    if kind == 2:
        entries = Cursor(table)
        try:
            while not entries.done():
                first = entries.byte()
                code = first >> 3 & 15
                end += 2 * ((first & 7) + 1)
                if code <= 9:
                    entries.byte()
                elif code <= 12:
                    entries.take(2)
                    line += code - 10
                elif code <= 14:
                    step = six_bit_number(entries)
                    line += -(step >> 1) if step & 1 else step >> 1
                    for _ in range(3 if code == 14 else 0):
                        six_bit_number(entries)
                if instruction < end:
                    return 0 if code == 15 else line
        except CorruptTrace:
            pass
    return first_line


def six_bit_number(entries: Cursor) -> int:
    value = shift = 0
    while True:
        next_byte = entries.byte()
        value |= (next_byte & 0x3F) << shift
        shift += 6
        if not next_byte & 0x40:
            return value


def slot(a: int, b: int) -> int:
    mixed = ((a * K1) & MASK) ^ ((b * K2) & MASK)
    return ((mixed * K1) & MASK) >> 52


def decode_events(payload: bytes, count: int, begin_counter: int) -> list[Event]:
    sections = Cursor(payload)
    tags, kinds, times, address_column, sizes, stacks, contexts = (Cursor(sections.text()) for _ in range(7))
    if len(tags.data) != count:
        raise CorruptTrace("not as many tags as events")
    next_address, next_stack, next_size = [0] * 4096, [0] * 4096, [0] * 4096
    addresses: list[int] = []
    time, last_new, number, stack, last_alloc, thread = begin_counter, 0, 0, 0, 0, 0
    last_of_thread: dict[int, tuple[int, int, int, int, int]] = {}
    events = []
    for tag in tags.data:
        kind = tag & 15 if tag & 15 < 15 else kinds.byte()
        time = (time + times.signed()) & MASK

        slot_index = slot(number, kind)
        if tag & 0x40:
            entry = address_column.varint()
            if entry == 0:
                number = len(addresses)
                last_new = (last_new + address_column.signed()) & MASK
                addresses.append(last_new)
            else:
                number += unzigzag(entry - 1)
        else:
            number = next_address[slot_index]
        if not 0 <= number < len(addresses):
            raise CorruptTrace("an address without a number")
        next_address[slot_index] = number

        slot_index = slot(stack, kind)
        stack = (stack + stacks.signed()) & 0xFFFFFFFF if tag & 0x10 else next_stack[slot_index]
        next_stack[slot_index] = stack

        slot_index = slot(last_alloc * 256 | kind, stack)
        size = sizes.varint() if tag & 0x20 else next_size[slot_index]
        next_size[slot_index] = size
        if kind == 1:
            last_alloc = size

        bits = contexts.byte() if tag & 0x80 else 0
        if bits & 1:
            thread = contexts.varint()
        location, sequence, node_sequence, node_thread, node_type = last_of_thread.get(thread, (0, 0, 0, 0, 0))
        if bits & 2:
            location = contexts.varint()
        if bits & 4:
            sequence = (sequence + contexts.signed()) & MASK
        if bits & 8:
            node_sequence = (node_sequence + contexts.signed()) & MASK
            node_thread, node_type = contexts.varint(), contexts.varint()
        last_of_thread[thread] = (location, sequence, node_sequence, node_thread, node_type)
        events.append(Event(kind, time, addresses[number], size, stack, thread, *last_of_thread[thread]))
    return events


@dataclass
class Block:
    offset: int
    type: int
    first: int
    count: int
    begin: Anchor
    end: Anchor
    counters: tuple[int, ...]
    payload: bytes


class TraceFile:
    """A complete trace file, and its spool if there is one. Raises CorruptTrace for undocumented contents."""

    def __init__(self, path: Path, spool: Path | None = None) -> None:
        data = path.read_bytes()
        magic, self.version, checksum, self.session = struct.unpack_from("<8sII16s", data)
        if magic != b"ALLOCTRC" or self.version != 3 or checksum != zlib.crc32(data[:12] + bytes(4) + data[16:32]):
            raise CorruptTrace("file header")
        self.blocks: list[Block] = []
        self.names = Names()
        self.runs: list[Run] = []
        self.header: dict[str, Any] = {}
        self.end: dict[str, Any] | None = None
        self.counters: tuple[int, ...] = (0,) * 6
        self.uncommitted = 0
        offset, next_event, previous_end = FILE_HEADER, 0, None
        while offset < len(data):
            block = read_block(data, offset)
            if block.first != next_event or (previous_end is not None and block.begin != previous_end):
                raise CorruptTrace("a block is missing")
            next_event, previous_end = block.first + block.count, block.end
            self.take(block)
            offset += BLOCK_HEADER + len(block.payload)
        self.first = self.blocks[0].begin
        self.latest = max((block.end for block in self.blocks), key=lambda anchor: anchor.monotonic)
        spool = spool or path.with_name(path.name + ".spool")
        if spool.exists():
            self.read_spool(spool.read_bytes(), next_event)

    def take(self, block: Block) -> None:
        self.blocks.append(block)
        self.counters = tuple(map(max, self.counters, block.counters))
        if block.type == HEADER:
            self.header = json.loads(block.payload)
        elif block.type in (DEFINITIONS, DICTIONARY):
            self.names.add(block.payload)
        elif block.type == EVENTS:
            events = decode_events(block.payload, block.count, block.begin.counter)
            self.runs.append(Run(block.first, events, block.begin, block.end))
        elif block.type == END:
            self.end = json.loads(block.payload)

    def read_spool(self, data: bytes, next_event: int) -> None:
        """Read a spool that no process writes any longer."""
        magic, version, event_bytes, session, ring, capacity, log, log_capacity, _ = struct.unpack_from(
            "<8sII16s5Q", data
        )
        if (magic, version, event_bytes, session) != (b"ALLOCSPL", 3, 64, self.session):
            return
        valid = struct.unpack_from("<I", data, 120)[0] & 1
        anchor = Anchor(*struct.unpack_from("<3Q", data, 96 if valid else 72))
        (head,) = struct.unpack_from("<Q", data, 128)
        tail, log_head, log_tail = struct.unpack_from("<3Q", data, 192)
        lost = struct.unpack_from("<3Q", data, 256)
        self.counters = tuple(map(max, self.counters, (*lost, *struct.unpack_from("<3Q", data, 304))))
        self.names.add(bytes(data[log + position % log_capacity] for position in range(log_tail, log_head)))
        if tail > next_event:
            raise CorruptTrace("events are missing between the trace and its spool")
        begin, end = self.latest, max(self.latest, anchor, key=lambda candidate: candidate.monotonic)
        self.latest = end
        for position in range(max(tail, next_event), head):
            at = ring + position % capacity * 64
            commit, stack, time, address, size, thread, *context, kind = struct.unpack_from("<IIQQQIIQQIHB", data, at)
            flipped = commit ^ (position + 1) & 0xFFFFFFFF
            if flipped == COMPLETED:
                kind = FREE_COMPLETED
            elif flipped not in (0, TAKEN):
                self.uncommitted += 1
                continue
            event = Event(kind, time, address, size, stack, thread, *context)
            last = self.runs[-1] if self.runs else None
            if last and last.begin is begin and last.first + len(last.events) == position:
                last.events.append(event)
            else:
                self.runs.append(Run(position, [event], begin, end))

    def events(self) -> list[tuple[int, Event]]:
        """Return (sequence number, event), in order."""
        return [(run.first + index, event) for run in self.runs for index, event in enumerate(run.events)]

    def times_ns(self) -> list[int]:
        """Return nanoseconds since 1970-01-01 UTC of each event, in the order of events()."""
        mean_slope = (self.latest.monotonic - self.first.monotonic) / max(self.latest.counter - self.first.counter, 1)
        times = []
        for run in self.runs:
            elapsed, counts = run.end.monotonic - run.begin.monotonic, run.end.counter - run.begin.counter
            slope = elapsed / counts if elapsed > 1_000_000 and counts > 0 else mean_slope
            base = self.first.wall + run.begin.monotonic - self.first.monotonic
            times += [base + int((event.time - run.begin.counter) * slope) for event in run.events]
        return times


def read_block(data: bytes, offset: int) -> Block:
    """Read the block at an offset. Raises CorruptTrace unless the block is intact."""
    header = data[offset : offset + BLOCK_HEADER]
    if len(header) < BLOCK_HEADER or header[:4] != BLOCK_MAGIC:
        raise CorruptTrace("no block header")
    checksum, payload_checksum, kind, _, size, first, count = struct.unpack_from("<IIHHQQQ", header, 4)
    payload = data[offset + BLOCK_HEADER : offset + BLOCK_HEADER + size]
    if checksum != zlib.crc32(header[8:]) or len(payload) != size or payload_checksum != zlib.crc32(payload):
        raise CorruptTrace("a checksum does not match")
    begin, end = (Anchor(*struct.unpack_from("<3Q", header, at)) for at in (40, 64))
    return Block(offset, kind, first, count, begin, end, struct.unpack_from("<6Q", header, 88), payload)


def varint(value: int) -> bytes:
    """Return the LEB128 encoding of a number."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def delta(value: int, previous: int) -> bytes:
    """Return the encoding of a difference modulo 2^64."""
    difference = (value - previous) & MASK
    signed = difference - (1 << 64) if difference >> 63 else difference
    return varint(((signed << 1) ^ (signed >> 63)) & MASK)


def block(
    kind: int, payload: bytes, first: int, count: int, begin: Numbers, end: Numbers, counters: Numbers = (0,) * 6
) -> bytes:
    numbers = [number & MASK for number in (len(payload), first, count, *begin, *end, *counters)]
    checked = struct.pack("<IHH15Q", zlib.crc32(payload), kind, 0, *numbers)
    return BLOCK_MAGIC + struct.pack("<I", zlib.crc32(checked)) + checked + payload
