"""Traces that no recorder writes, with valid checksums. The same seed makes the same bytes.

`make_absurd` writes absurd events and definitions; `mutate` changes a trace and repairs the checksums.
"""

from __future__ import annotations

import json
import random
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import core_probe
from format_reader import BLOCK_HEADER, DEFINITIONS, END, EVENTS, FILE_HEADER, HEADER, MASK, block, delta, varint

CORPUS = Path(__file__).resolve().parents[1] / "corpus" / "hostile"
_SESSION = bytes(range(16))
_WALL = 1_700_000_000_000_000_000
_ODD = (0, 1, 2, 127, 128, 255, 511, 512, 1 << 20, 1 << 31, (1 << 32) - 1, 1 << 57, (1 << 63) - 1, 1 << 63, MASK)
_TEXTS = (
    "", "x", "train.py", "/home/user/train.py", "\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "[bold]not markup[/bold]",
    "<script>alert(1)</script>", "</script><img src=x onerror=alert(1)>", "a\nb\rc\td", "\u202etxt", "\x9b31m",
    "'\"`$(id)", "../../etc/passwd", "%s%n{0}", "\udcff", "long " * 900, "torch/optim/adam.py",
    "/torch/autograd/graph.py", "_engine_run_backward", "cuBLAS workspace",
    "torch::autograd::generated::MulBackward0", "\0nul",
)  # fmt: skip
_JSON: tuple[Any, ...] = (
    None, True, False, 0, -1, 1.5, 1e308, 10**30, "", "text", "\x1b[31m", [], [None], [[1]], {}, {"a": None},
    [1, "a", {}],
)  # fmt: skip
_MEMBERS = (
    "program", "arguments", "working_directory", "host", "process", "rank", "started", "python", "platform", "torch",
    "cuda", "devices", "options", "trace", "spool", "library_prefixes", "prefix", "environment", "steps", "modules",
    "looks",
)  # fmt: skip


def text(value: str) -> bytes:
    """Return a byte count and the bytes."""
    data = value.encode(errors="surrogateescape")
    return varint(len(data)) + data


def file_header() -> bytes:
    head = struct.pack("<8sII", b"ALLOCTRC", 1, 0) + _SESSION
    return head[:12] + struct.pack("<I", zlib.crc32(head)) + head[16:]


def record(kind: int, *fields: bytes) -> bytes:
    body = bytes([kind]) + b"".join(fields)
    return varint(len(body)) + body


def event_payload(events: Sequence[dict[str, int]], begin_counter: int) -> bytes:
    """Encode events in columns. Missing fields are 0."""
    return core_probe.encode(core_probe.make_events(events), len(events), begin_counter)


class _TraceBuilder:
    """Builder of one absurd trace."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.strings = dice.randrange(2, 40)
        self.codes = dice.randrange(1, 12)
        self.frames = dice.choice([1, 5, 30, 300, 3000])
        self.threads = dice.randrange(1, 5)
        self.locations = dice.choice([1, 2, 4, 12, 60])
        self.node_types = dice.randrange(1, 5)
        self.modules = dice.choice([0, 0, 4, 30])
        # Few addresses, so that events collide.
        base = dice.choice([0, 1 << 20, 0x7F0000000000, 1 << 63, MASK - (1 << 22)])
        unit = dice.choice([1, 512, 1 << 20, 2 << 20, 20 << 20])
        self.addresses = [(base + unit * dice.randrange(64)) & MASK for _ in range(dice.choice([2, 8, 40]))]
        self.sizes = [dice.choice([512, 1 << 20, 2 << 20, 20 << 20, unit * dice.randrange(1, 40)]) for _ in range(6)]
        self.wildness = dice.choice([0.0, 0.02, 0.1, 0.4])

    def wild(self) -> bool:
        return self.dice.random() < self.wildness

    def number(self, below: int) -> int:
        """Return an id, usually of an existing record."""
        return self.dice.choice(_ODD) % (1 << 32) if self.wild() else self.dice.randrange(max(below, 1))

    def odd(self, value: int) -> int:
        return self.dice.choice((*_ODD, self.dice.getrandbits(64))) if self.wild() else value & MASK

    def header(self) -> bytes:
        dice = self.dice
        if self.wild():
            return json.dumps(dice.choice(_JSON)).encode()
        header: dict[str, Any] = {"program": "train.py", "arguments": [], "working_directory": "/home/user"}
        header["options"] = {}
        header |= {name: dice.choice(_JSON) for name in _MEMBERS if dice.random() < 0.4}
        if dice.random() < 0.5:
            header["options"] = {name: dice.choice(_JSON) for name in ("modules", "steps", "source", "stacks", "x")}
        if dice.random() < 0.5:
            header["devices"] = [dice.choice(_JSON) for _ in range(3)]
        return json.dumps(header).encode()

    def definitions(self) -> bytes:
        dice, records = self.dice, []

        def add(kind: int, *fields: bytes) -> None:
            records.append(record(kind, *fields))

        for number in range(1, self.strings + 1):
            add(1, varint(self.id(number)), text(dice.choice(_TEXTS) if dice.random() < 0.5 else f"name{number}"))
        settings: dict[str, Any] = {
            "expandable_segments": dice.choice([True, False]),
            "large_segment_size": dice.choice(_ODD),
        }
        settings["max_split_size"] = dice.choice(_ODD)
        settings["roundup_power2_divisions"] = [dice.choice(_ODD) for _ in range(16)]
        add(1, varint(self.strings + 1), text(json.dumps(settings)))
        for number in range(1, self.codes + 1):
            names = b"".join(varint(self.number(self.strings + 2)) for _ in range(3))
            table = dice.randbytes(dice.choice([0, 3, 60]))
            add(2, varint(self.id(number)), names, delta(self.odd(dice.randrange(500)), 0),
                varint(dice.randrange(4)), varint(len(table)), table)  # fmt: skip
        deep = dice.random() < 0.5
        for number in range(1, self.frames + 1):
            parent = number - 1 if deep else dice.randrange(number)
            fields = [parent, self.number(self.codes + 2), self.number(200)]
            if self.modules:
                fields.append(self.number(self.modules + 1))
            add(3, varint(self.id(number)), *map(varint, fields))
        for number in range(1, self.threads + 1):
            name = dice.choice(["python", "pt_autograd_0", *_TEXTS])
            add(4, varint(self.id(number)), varint(self.odd(number)), varint(self.odd(number)), text(name))
            add(5, varint(number), text(dice.choice(_TEXTS)))
        for number in range(1, self.locations + 1):
            kind = dice.choice([0, 1, 1, 1, 1000, 12, 77])
            index = dice.choice([0, 0, 1, number]) if not self.wild() else dice.randrange(1 << 31)
            pool = [self.odd(dice.choice([0, 0, 1])), self.odd(dice.choice([0, 0, 1]))]
            add(6, varint(self.id(number)), delta(kind, 0), delta(index, 0), varint(self.odd(0)), *map(varint, pool))
            size = self.odd(80 << 30)
            names = [text(dice.choice(_TEXTS)) for _ in "abc"]
            add(9, delta(kind, 0), delta(index, 0), varint(size), *names)
        for number in range(1, self.node_types + 1):
            add(7, varint(self.id(number)), varint(dice.randrange(2)), text(dice.choice(_TEXTS)))
        for _ in range(dice.randrange(10)):
            add(8, varint(self.number(self.strings)), varint(self.number(600)), text(dice.choice(_TEXTS)))
        for _ in range(dice.randrange(4)):
            add(10, varint(self.number(300)), varint(dice.choice(self.addresses)), text(dice.choice(_TEXTS)))
        for number in range(1, self.modules + 1):
            numbers = [self.id(number), *(self.number(limit) for limit in (self.strings, self.modules + 1, 9))]
            add(11, *map(varint, numbers))
        for _ in range(dice.randrange(4)):
            addresses = [dice.choice(self.addresses) for _ in range(dice.randrange(5))]
            numbers = [self.number(300), self.number(100), self.odd(3), self.odd(4096)]
            texts = [text(dice.choice(_TEXTS)) for _ in range(3)]
            add(13, *map(varint, numbers), *texts, varint(len(addresses)), *(delta(at, 0) for at in addresses))
        if dice.random() < 0.2:
            dice.shuffle(records)
        return b"".join(records)

    def id(self, number: int) -> int:
        return self.dice.choice(_ODD) % (1 << 33) if self.dice.random() < self.wildness / 50 else number

    def events(self, count: int, time: int) -> list[dict[str, int]]:
        dice, events = self.dice, []
        weights = {1: 30, 2: 12, 3: 14, 4: 4, 5: 3, 6: 4, 7: 3, 9: 2, 10: 4, 11: 1, 12: 1, 13: 1, 14: 0.3, 16: 3, 17: 3,
                   18: 0.7, 19: 0.5, 20: 2, 21: 4, 22: 1, 23: 1, 24: 1, 25: 1.5, 26: 1, 27: 1, 28: 0.5, 15: 0.5, 8: 1,
                   29: 0.2, 255: 0.2, 0: 0.3}  # fmt: skip
        kinds = dice.choices([*weights], [*weights.values()], k=count)
        live: list[tuple[int, int]] = []
        step = sequence = 0
        for kind in kinds:
            time += dice.randrange(100_000)
            address, size = dice.choice(self.addresses), dice.choice(self.sizes)
            if kind in (2, 3) and live and not self.wild():
                address, location = dice.choice(live)
                size = dice.choice([0, size])
            else:
                location = self.number(self.locations + 1)
            if kind == 1:
                live.append((address, location))
            if kind == 10:
                step += 1
                size, address = step, dice.randrange(2)
            elif kind in (11, 12, 13, 16):
                size = dice.randrange(self.strings + 1)
            elif kind == 18:
                size = self.strings + 1
            elif kind == 25:
                size = dice.randrange(8)
            elif kind == 22:
                address = dice.randrange(300)
            elif kind == 14:
                address, size = dice.randrange(4), dice.randrange(5)
            elif kind in (26, 27):
                address = dice.randrange(2)
            sequence += dice.randrange(3)
            events.append({
                "kind": kind, "time": self.odd(time), "address": self.odd(address), "size": self.odd(size),
                "stack": self.number(self.frames + 1), "thread": self.number(self.threads + 1),
                "location": location % (1 << 32), "sequence": self.odd(sequence),
                "node_sequence": self.odd(dice.choice([dice.randrange(5), sequence])),
                "node_thread": self.number(4), "node_type": self.number(self.node_types + 1) % 65536,
            })  # fmt: skip
        return events

    def trace(self) -> bytes:
        dice = self.dice
        anchor = [1_000_000, 1_000_000, _WALL]
        blocks: list[bytes] = []
        first = 0

        def add(kind: int, payload: bytes, count: int = 0, passing: int = 0) -> None:
            nonlocal anchor
            begin, anchor = anchor, [part + passing for part in anchor]
            anchors = [[self.odd(part) for part in parts] for parts in (begin, anchor)]
            counters = [self.odd(0) if dice.random() < 0.3 else 0 for _ in range(6)]
            at = self.odd(first) if dice.random() < 0.1 else first
            blocks.append(block(kind, payload, at, count, anchors[0], anchors[1], counters))

        add(HEADER, self.header())
        add(DEFINITIONS, self.definitions())
        for _ in range(dice.randrange(1, 5)):
            count = dice.choice([0, 1, 20, 150])
            events = self.events(count, anchor[0])
            payload = event_payload(events, anchor[0])
            add(EVENTS, payload, self.odd(count) if dice.random() < 0.05 else count, 10_000_000)
            first += count + (dice.randrange(50) if self.wild() else 0)
        if dice.random() < 0.7:
            add(END, json.dumps(dice.choice([{"reason": "disable"}, *_JSON])).encode())
        if self.wild():
            dice.shuffle(blocks)
        if self.wild():
            blocks.insert(dice.randrange(len(blocks)), dice.choice(blocks))
        return file_header() + b"".join(blocks)


def make_absurd(seed: int) -> bytes:
    return _TraceBuilder(random.Random(seed)).trace()


def blocks_of(data: bytes) -> list[tuple[int, int]]:
    """Return where each block of a complete trace begins and ends."""
    blocks, at = [], FILE_HEADER
    while at + BLOCK_HEADER <= len(data):
        end = at + BLOCK_HEADER + int.from_bytes(data[at + 16 : at + 24], "little")
        if end > len(data):
            break
        blocks.append((at, end))
        at = end
    return blocks


def mutate(data: bytes, seed: int) -> bytes:
    """Change some of a trace's contents, and repair the checksums."""
    dice = random.Random(seed)
    head = data[:FILE_HEADER]
    blocks = [bytearray(data[begin:end]) for begin, end in blocks_of(data)]
    if not blocks:
        return data
    for _ in range(dice.choice([1, 1, 2, 4, 12])):
        block = dice.choice(blocks)
        change = dice.choice([_overwrite, _overwrite, _shift, _fields, _json])
        change(block, dice)
    if dice.random() < 0.15:
        dice.shuffle(blocks)
    if dice.random() < 0.15:
        blocks.insert(dice.randrange(len(blocks)), dice.choice(blocks))
    if dice.random() < 0.1:
        del blocks[dice.randrange(len(blocks))]
    return head + b"".join(map(repair_checksums, blocks))


def _overwrite(raw: bytearray, dice: random.Random) -> None:
    if len(raw) == BLOCK_HEADER:
        return
    at = dice.randrange(BLOCK_HEADER, len(raw))
    size = min(dice.choice([1, 1, 2, 8]), len(raw) - at)
    value = dice.choice([dice.randbytes(size), bytes(size), b"\xff" * size, bytes([raw[at] ^ 1 << dice.randrange(8)])])
    raw[at : at + len(value)] = value


def _shift(raw: bytearray, dice: random.Random) -> None:
    at = dice.randrange(BLOCK_HEADER, len(raw) + 1)
    if dice.random() < 0.5:
        del raw[at : at + dice.randrange(1, 20)]
    else:
        raw[at:at] = dice.randbytes(dice.randrange(1, 20))


def _fields(raw: bytearray, dice: random.Random) -> None:
    at = 24 + 8 * dice.randrange(14)
    raw[at : at + 8] = (dice.choice((*_ODD, dice.getrandbits(64)))).to_bytes(8, "little")


def _json(raw: bytearray, dice: random.Random) -> None:
    try:
        value = json.loads(bytes(raw[BLOCK_HEADER:]))
    except ValueError:
        return
    if isinstance(value, dict) and value:
        value[dice.choice([*value])] = dice.choice(_JSON)
        raw[BLOCK_HEADER:] = json.dumps(value).encode()


def repair_checksums(raw: bytearray) -> bytes:
    raw[16:24] = (len(raw) - BLOCK_HEADER).to_bytes(8, "little")
    raw[8:12] = zlib.crc32(raw[BLOCK_HEADER:]).to_bytes(4, "little")
    raw[4:8] = zlib.crc32(raw[8:BLOCK_HEADER]).to_bytes(4, "little")
    return bytes(raw)


def make_hostile(seed: int, seeds: Sequence[bytes]) -> bytes:
    """Return an absurd trace, or a mutated trace of `seeds`."""
    if seed % 3 == 1:
        return mutate(seeds[seed % len(seeds)], seed)
    return mutate(make_absurd(seed), seed) if seed % 3 else make_absurd(seed)
