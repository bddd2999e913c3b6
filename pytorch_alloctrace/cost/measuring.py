"""Measures recorders against each other, and against the program alone.

Each recorder has a process of its own, since what it attaches to an allocator stays, and rounds alternate between the
processes, so that a machine that gets slower gets slower for all. A figure is the least of its rounds: what a busy
machine, or the neighbour of a virtual one, does to a round only makes it slower, and short rounds find the times in
between.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import AlloctraceError
from . import ALLOCTRACE, MEMRAY, PLAIN, PROFILER, RECORDERS

DEPTH = 20
DEPTHS = (5, 20, 60, 200)
"""Python frames."""
_PAIRS, _PAIRS_PROFILED = 4_000, 1_000
_LEAST_ROUNDS = 5
_ROUNDS_A_STEP = 4
"""A training step takes as long as many rounds of pairs."""


class CostError(AlloctraceError):
    """Nothing can be measured. The message says why."""


class Worker:
    """One recorder in its process; `checkout`: the one of that folder, built there, instead of this one."""

    def __init__(self, name: str, device: str, folder: Path, checkout: Path | None = None) -> None:
        self.name = name
        environment = {**os.environ, "KINETO_LOG_LEVEL": "99"}  # the profiler's, which misses a GPU where there is none
        if checkout is not None:
            environment["PYTHONPATH"] = str(checkout)
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.worker", name, device, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=checkout,
            env=environment,
        )
        self.machine: dict[str, Any] = self._answer()

    def run(self, *request: str | int) -> dict[str, float]:
        """One round; nanoseconds. Raises CostError if the process has ended."""
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):  # why is what the answer shows
            self._process.stdin.write(" ".join(map(str, request)) + "\n")
            self._process.stdin.flush()
        return self._answer()

    def stop(self) -> None:
        """Ends the process in good order."""
        assert self._process.stdin and self._process.stdout
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise CostError(f"the process that measured {self.name!r} has ended: its error is above")
        answer: dict[str, Any] = json.loads(line)
        return answer


@dataclass
class Rounds:
    """What the rounds of one kind took, by recorder."""

    of: dict[str, list[dict[str, float]]] = field(default_factory=dict)

    def add(self, workers: Sequence[Worker], *request: str | int) -> None:
        """One round of each; the profiler's is shorter, it takes a second to say what it saw."""
        for worker in workers:
            words = list(request)
            if worker.name == PROFILER and request[0] != "steps":
                words[-1] = _PAIRS_PROFILED
            self.of.setdefault(worker.name, []).append(worker.run(*words))

    def least(self, name: str, figure: str) -> float:
        """In nanoseconds."""
        return min(row[figure] for row in self.of[name])

    def added(self, name: str, figure: str) -> float:
        """By which it is more than that of the program alone."""
        return self.least(name, figure) - self.least(PLAIN, figure)

    def spread(self) -> float:
        """By how much the median round of the program alone is above its least: how busy the machine is."""
        walls = [row["wall"] for row in self.of[PLAIN]]
        return statistics.median(walls) / min(walls) - 1


@dataclass
class Costs:
    """What was measured on one device."""

    device: str
    machine: dict[str, Any]
    pairs: Rounds
    """Of a tensor made and freed, DEPTH frames deep."""
    by_depth: dict[int, Rounds]
    """The same at other depths, with our recorder and without."""
    steps: Rounds
    """Training steps."""
    bytes_per_event: float
    """Of our trace."""

    def data(self) -> dict[str, Any]:
        """Plain values, for JSON; times in nanoseconds."""

        def rows(rounds: Rounds, figures: Sequence[str]) -> dict[str, dict[str, float]]:
            return {
                name: {
                    key: round(value, 1)
                    for figure in figures
                    for key, value in (
                        (figure, rounds.least(name, figure)),
                        (f"added_{figure}", rounds.added(name, figure)),
                    )
                }
                for name in rounds.of
            }

        walls = ("wall", "own_cpu", "other_cpu")
        return {
            "device": self.device,
            "machine": self.machine,
            "pair": f"torch.empty(1000, device={self.device!r}) made and freed, {DEPTH} Python frames deep; ns",
            "rounds": len(self.pairs.of[PLAIN]),
            "spread_of_rounds": round(self.pairs.spread(), 3),
            "pairs": rows(self.pairs, walls),
            "by_depth": {str(depth): rows(rounds, walls) for depth, rounds in self.by_depth.items()},
            "training_step": rows(self.steps, ("wall", "process_cpu", "own_cpu")),
            "bytes_per_event": round(self.bytes_per_event, 2),
        }


@contextlib.contextmanager
def started(names: Sequence[str], device: str) -> Iterator[tuple[list[Worker], Path]]:
    """The processes, and the folder of what they write, for the time of a block. Raises CostError if one cannot
    begin."""
    workers: list[Worker] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for name in names:
                workers.append(Worker(name, device, Path(folder)))
            yield workers, Path(folder)
        finally:
            for worker in workers:
                worker.stop()


def recorders_of(device: str) -> tuple[str, ...]:
    """Those that are there."""
    names = RECORDERS[device]
    return names if importlib.util.find_spec("memray") else tuple(name for name in names if name != MEMRAY)


def measure(device: str, seconds: float) -> Costs:
    """Measures for about so many seconds, starting the processes included. Raises CostError."""
    ends = time.monotonic() + seconds
    with started(recorders_of(device), device) as (workers, folder):
        ours = [worker for worker in workers if worker.name in (PLAIN, ALLOCTRACE)]
        pairs = Rounds()
        by_depth = {depth: pairs if depth == DEPTH else Rounds() for depth in DEPTHS}
        costs = Costs(device, _machine(workers[0]), pairs, by_depth, Rounds(), 0.0)
        for worker in workers:  # what happens once (new stacks, first segments, a model) is not a cost of each
            for depth in DEPTHS if worker in ours else (DEPTH,):
                worker.run("pairs", depth, 100)
            worker.run("steps", 1)
        done = 0
        while done < _LEAST_ROUNDS or time.monotonic() < ends:
            for depth, rounds in by_depth.items():
                rounds.add(workers if rounds is pairs else ours, "pairs", depth, _PAIRS)
            if done % _ROUNDS_A_STEP == 0:
                costs.steps.add(workers, "steps", 1)
            done += 1
        costs.bytes_per_event = _bytes_per_event(workers, folder)
    return costs


def _bytes_per_event(workers: Sequence[Worker], folder: Path) -> float:
    from ..reading.recorded import RecordedTrace

    for worker in workers:
        worker.stop()
    trace = RecordedTrace(folder / "all.alloctrace")
    return float(trace.file_bytes / max(trace.integrity.events, 1))


def _machine(worker: Worker) -> dict[str, Any]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": cores,
        "python": platform.python_version(),
        **worker.machine,
    }
