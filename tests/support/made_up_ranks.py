"""Synthetic traces of ranks, with weights, activations and batches; arguments choose the faults of a rank."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pytorch_alloctrace import _replay

MIB = 1 << 20
ALLOC, REQUESTED, COMPLETED, SEGMENT, OOM, STEP = 1, 2, 3, 4, 9, 10
SCRIPT = "/home/user/job/train.py"
BEGIN_NS = 1_700_000_000 * 10**9
LINES = {"weights": 5, "forward": 12, "keep": 20, "batch": 8, "cache": 30}


@dataclass
class Rank:
    """A rank and its faults."""

    rank: int
    world_size: int
    steps: int = 40
    weights: int = 1024 * MIB
    activations: int = 512 * MIB
    inputs: int = 0
    """Bytes of the CUDA block of line "batch", from the first step on."""
    leaks_from: int | None = None
    """First step that leaks a block."""
    leak: int = 12 * MIB
    """Bytes leaked per step."""
    larger_from: int | None = None
    """Step that allocates a cache of 600 MiB, which stays."""
    oom_at: int | None = None
    """Step with a failed allocation."""
    seconds_per_step: tuple[float, ...] = (0.5,)
    """Lengths of steps, repeated."""
    begins: float = 0.0
    """Seconds from the beginning of the run to that of the rank."""
    host: str = "node0"
    process: int = 0
    parent: int = 1
    folder: str = "/home/user/job"
    also_on: int | None = None
    """Second CUDA device on which the rank has a block."""

    @property
    def name(self) -> str:
        return f"alloctrace-{self.rank}-{self.process or 1000 + self.rank}.alloctrace"

    def write(self, folder: Path) -> Path:
        path = folder / self.name
        writer = _replay.TraceWriter(os.fsencode(path), True, self._at(0.0), json.dumps(self._header()))
        rows = self._events(writer)
        writer.push(*(np.array(column, dtype=np.uint64) for column in zip(*rows, strict=True)))
        writer.finish(json.dumps({"reason": "disable"}))
        return path

    def _at(self, seconds: float) -> int:
        return BEGIN_NS + int((self.begins + seconds) * 1e9)

    def _header(self) -> dict[str, Any]:
        variables = {"RANK": str(self.rank), "WORLD_SIZE": str(self.world_size), "LOCAL_RANK": str(self.rank % 8)}
        return {
            "program": f"{self.folder}/train.py",
            "arguments": [],
            "working_directory": self.folder,
            "host": self.host,
            "process": self.process or 1000 + self.rank,
            "parent_process": self.parent,
            "rank": str(self.rank),
            "world_size": self.world_size,
            "started": self._at(0.0) / 1e9,
            "devices": ["cuda", "cpu"],
            "python_storages": True,
            "options": {"stacks": "python"},
            "trace": f"{self.folder}/{self.name}",
            "library_prefixes": ["/usr/lib/python3/"],
            "environment": {**variables, "TORCHELASTIC_RUN_ID": "7", "MASTER_PORT": "29500"},
        }

    def _events(self, writer: _replay.TraceWriter) -> Iterable[tuple[int, ...]]:
        script = f"{self.folder}/train.py"
        thread = writer.thread("MainThread")
        main = writer.frame(0, writer.code("main", script, 1, b""), 0)
        frames = {name: writer.frame(main, writer.code(name, script, line, b""), 0) for name, line in LINES.items()}
        cuda, cpu = writer.location(1, self.rank % 8, 0, (0, 0)), writer.location(0, 0, 0, (0, 0))
        rows: list[tuple[int, ...]] = []
        next_address = 0x7F0000000000

        def add(kind: int, at: float, address: int, size: int, name: str = "", location: int = cuda) -> None:
            stack = frames[name] if name else 0
            rows.append((kind, self._at(at), address, size, stack, thread, location, 0, 0))

        def grow(at: float, size: int, name: str, location: int = cuda) -> int:
            nonlocal next_address
            address, next_address = next_address, next_address + size
            add(SEGMENT, at, address, size, name, location)
            add(ALLOC, at, address, size, name, location)
            return address

        grow(0.0, self.weights, "weights")
        if self.also_on is not None:
            grow(0.0, 64 * MIB, "weights", writer.location(1, self.also_on, 0, (0, 0)))
        if self.inputs:
            grow(0.0, self.inputs, "batch")
        activations, end_of_step = 0, 0.0
        for step, seconds in zip(range(self.steps), itertools.cycle(self.seconds_per_step)):
            begin = end_of_step
            batch = 0x100000 + step * 4096
            add(ALLOC, begin, batch, 4096, "batch", cpu)
            if step == self.larger_from:
                grow(begin, 600 * MIB, "cache")
            if activations:
                add(ALLOC, begin, activations, self.activations, "forward")
            else:
                activations = grow(begin, self.activations, "forward")
            if self.leaks_from is not None and step >= self.leaks_from:
                grow(begin, self.leak, "keep")
            if step == self.oom_at:
                add(OOM, begin, 100 * MIB, 4096 * MIB, "forward")
            end_of_step = begin + seconds
            end = begin + 0.9 * seconds
            add(REQUESTED, end, activations, self.activations)
            add(COMPLETED, end, activations, self.activations)
            add(COMPLETED, end, batch, 4096, "", cpu)
            add(STEP, end, 1, step, "", 0)
        return rows


def write_ranks(folder: Path, count: int, **faulty: Rank) -> list[Path]:
    """Write the traces of `count` ranks, healthy except those passed as `rank3=Rank(...)`."""
    folder.mkdir(parents=True, exist_ok=True)
    return [faulty.get(f"rank{number}", Rank(number, count)).write(folder) for number in range(count)]
