"""Synthetic traces in which the test chooses every text: names of files, functions, modules, threads, objects, ..."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from format_reader import DEFINITIONS, FILE_HEADER, block, delta, varint
from hostile_traces import blocks_of, record, text

from pytorch_alloctrace import _replay

MIB = 1 << 20
BEGIN_NS = 1_700_000_000 * 10**9
STEPS = 40
_ALLOC, _REQUESTED, _COMPLETED, _SEGMENT, _OOM, _STEP = 1, 2, 3, 4, 9, 10
_MARK, _REGION_BEGIN, _REGION_END, _ROLE = 11, 12, 13, 16
_LINES = {"main": 1, "weights": 5, "forward": 12, "keep": 20, "small": 30, "batch": 40}


@dataclass
class TextTrace:
    """Texts of a trace with steps, leaks, a failed allocation, roles, marks and two regions."""

    files: dict[str, str]
    """File of each function: main, weights, forward, keep, small, batch."""
    label: str = "plain"
    """Name of the mark, region, thread, module, parameter and node."""
    functions: dict[str, str] = field(default_factory=dict)
    """Names of functions that differ from the keys of `files`."""
    source: str = "kept.append(torch.empty(n))"
    holders: tuple[str, ...] = ()
    """Names of the objects that hold the leaks."""
    header: dict[str, Any] = field(default_factory=dict)

    def write(self, path: Path) -> Path:
        writer = _replay.TraceWriter(os.fsencode(path), True, BEGIN_NS, json.dumps(self._header(path)))
        rows, addresses = self._events()
        writer.push(*(np.array(column, dtype=np.uint64) for column in zip(*rows, strict=True)))
        writer.finish(json.dumps({"reason": "disable"}))
        data = path.read_bytes()
        (_, end), *_ = blocks_of(data)
        anchor = [BEGIN_NS, BEGIN_NS, BEGIN_NS]
        definitions = block(DEFINITIONS, self._definitions(len(rows), addresses), 0, 0, anchor, anchor)
        path.write_bytes(data[:end] + definitions + data[end:])
        assert end > FILE_HEADER
        return path

    def _header(self, path: Path) -> dict[str, Any]:
        return {
            "program": self.files["main"],
            "arguments": [],
            "working_directory": os.path.dirname(self.files["main"]),
            "process": 1000,
            "devices": ["cuda", "cpu"],
            "python_storages": True,
            "options": {"stacks": "python", "modules": True},
            "trace": str(path),
            "library_prefixes": ["/usr/lib/python3/"],
            **self.header,
        }

    def _definitions(self, events: int, addresses: list[int]) -> bytes:
        records = [record(1, varint(1), text(self.label))]
        for number, (name, file) in enumerate(self.files.items(), 1):
            function, line = self.functions.get(name, name), _LINES[name]
            records.append(record(1, varint(10 * number), text(function)))
            records.append(record(1, varint(10 * number + 1), text(file)))
            names = [varint(i) for i in (number, 10 * number, 10 * number, 10 * number + 1)]
            records.append(record(2, *names, delta(line, 0), varint(0), varint(0)))
            records.append(record(8, varint(10 * number + 1), varint(line), text(self.source)))
            caller, module = (0, 0) if name == "main" else (1, 1)
            records.append(record(3, *map(varint, (number, caller, number, 0, module))))
        records.append(record(11, *map(varint, (1, 1, 0, 1))))
        records.append(record(4, varint(1), varint(1), varint(1), text(self.label)))
        records.append(record(5, varint(1), text(self.label)))
        records.append(record(6, varint(1), delta(1, 0), delta(0, 0), *map(varint, (0, 0, 0))))
        records.append(record(6, varint(2), delta(0, 0), delta(0, 0), *map(varint, (0, 0, 0))))
        records.append(record(9, delta(1, 0), delta(0, 0), varint(80 << 30), *(text(self.label) for _ in "abc")))
        records.append(record(14, *map(varint, (1, 1001, 1000, 1)), text(self.label)))
        for number, holder in enumerate(self.holders):
            leaks = addresses[number :: len(self.holders)]
            counts = [varint(n) for n in (events, 7, len(leaks), len(leaks) * MIB)]
            texts = [text(holder), text(holder), text(self.files["keep"])]
            deltas = [delta(at, before) for before, at in zip([0, *leaks], leaks, strict=False)]
            records.append(record(13, *counts, *texts, varint(len(leaks)), *deltas, varint(0)))
        return b"".join(records)

    def _events(self) -> tuple[list[tuple[int, ...]], list[int]]:
        stacks = {name: number for number, name in enumerate(self.files, 1)}
        rows: list[tuple[int, ...]] = []
        leaked: list[int] = []
        next_address = 0x7F0000000000

        def add(kind: int, at: float, address: int, size: int, name: str = "", location: int = 1, aux: int = 0) -> None:
            rows.append((kind, BEGIN_NS + int(at * 1e9), address, size, stacks.get(name, 0), 1, location, 0, aux))

        def grow(at: float, size: int, name: str, used: int = 0) -> int:
            nonlocal next_address
            address, next_address = next_address, next_address + size
            add(_SEGMENT, at, address, size, name)
            add(_ALLOC, at, address, used or size, name)
            return address

        weights = grow(0.0, 64 * MIB, "weights")
        add(_ROLE, 0.0, weights, 1, "weights", aux=1)
        for step in range(STEPS):
            begin = float(step)
            if step % (STEPS // 2) == 0:
                add(_REGION_BEGIN, begin, 0, 1, location=0)
            batch = 0x100000 + step * 4096
            add(_ALLOC, begin, batch, 4096, "batch", 2)
            activations = grow(begin, 20 * MIB, "forward")
            leaked.append(grow(begin, 12 * MIB, "keep"))
            grow(begin, 20 * MIB, "small", MIB)
            add(_MARK, begin + 0.6, 0, 1, location=0)
            if step == STEPS - 2:
                add(_OOM, begin + 0.7, 100 * MIB, 4096 * MIB, "forward")
            for address, size, location in ((activations, 20 * MIB, 1), (batch, 4096, 2)):
                add(_REQUESTED, begin + 0.8, address, size, location=location)
                add(_COMPLETED, begin + 0.8, address, size, location=location)
            add(_STEP, begin + 0.9, 1, step, location=0)
            if (step + 1) % (STEPS // 2) == 0:
                add(_REGION_END, begin + 0.95, 0, 1, location=0)
        return rows, leaked
