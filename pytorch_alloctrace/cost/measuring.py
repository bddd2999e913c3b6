"""Comparison of recorders with each other and with the program alone.

Each recorder has a separate process, since its hooks stay attached to an allocator. Rounds alternate between the
processes, so that a machine that gets slower affects all of them. A figure is the minimum of its rounds: other load on
the machine makes rounds slower, never faster, and some of the short rounds are undisturbed.
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
"""Stack depths that are measured, in Python frames."""
_PAIRS, _PAIRS_PROFILED = 4_000, 1_000
_MIN_ROUNDS = 5
_ROUNDS_PER_STEP = 4
"""Number of rounds of pairs for each round of training steps, which takes longer."""


class CostError(AlloctraceError):
    """Nothing can be measured. The message is the reason."""


class Worker:
    """One recorder in a separate process.

    `checkout`: the folder of another checkout, already built, whose recorder is measured instead of this one.
    """

    def __init__(self, name: str, device: str, folder: Path, checkout: Path | None = None) -> None:
        self.name = name
        environment = {**os.environ, "KINETO_LOG_LEVEL": "99"}  # silences the profiler's warning about a missing GPU
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
        self.machine: dict[str, Any] = self._read_answer()

    def run(self, *request: str | int) -> dict[str, float]:
        """Run one round and return its times in nanoseconds. Raises CostError if the process has ended."""
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):  # _read_answer reports that the process has ended
            self._process.stdin.write(" ".join(map(str, request)) + "\n")
            self._process.stdin.flush()
        return self._read_answer()

    def stop(self) -> None:
        assert self._process.stdin and self._process.stdout
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def _read_answer(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise CostError(f"the process that measured {self.name!r} has ended: its error is above")
        answer: dict[str, Any] = json.loads(line)
        return answer


@dataclass
class Rounds:
    """Times of the rounds of one kind, by recorder."""

    of: dict[str, list[dict[str, float]]] = field(default_factory=dict)

    def add(self, workers: Sequence[Worker], *request: str | int) -> None:
        """Run one round of each worker. The profiler's is shorter, since it takes a second to report its data."""
        for worker in workers:
            arguments = list(request)
            if worker.name == PROFILER and request[0] != "steps":
                arguments[-1] = _PAIRS_PROFILED
            self.of.setdefault(worker.name, []).append(worker.run(*arguments))

    def minimum(self, name: str, figure: str) -> float:
        return min(row[figure] for row in self.of[name])

    def added(self, name: str, figure: str) -> float:
        """Return the difference from the program alone, in nanoseconds."""
        return self.minimum(name, figure) - self.minimum(PLAIN, figure)

    def spread(self) -> float:
        """Return the load: the share by which the median round of the program alone exceeds its minimum."""
        wall_times = [row["wall"] for row in self.of[PLAIN]]
        return statistics.median(wall_times) / min(wall_times) - 1


@dataclass
class Costs:
    device: str
    machine: dict[str, Any]
    pairs: Rounds
    """Rounds of a tensor allocated and freed, DEPTH frames deep."""
    by_depth: dict[int, Rounds]
    """The same by depth in frames, of alloctrace and of the program alone."""
    steps: Rounds
    bytes_per_event: float

    def data(self) -> dict[str, Any]:
        def rows(rounds: Rounds, figures: Sequence[str]) -> dict[str, dict[str, float]]:
            return {
                name: {
                    key: round(value, 1)
                    for figure in figures
                    for key, value in (
                        (figure, rounds.minimum(name, figure)),
                        (f"added_{figure}", rounds.added(name, figure)),
                    )
                }
                for name in rounds.of
            }

        pair_figures = ("wall", "own_cpu", "other_cpu")
        return {
            "device": self.device,
            "machine": self.machine,
            "pair": f"torch.empty(1000, device={self.device!r}) made and freed, {DEPTH} Python frames deep; ns",
            "rounds": len(self.pairs.of[PLAIN]),
            "spread_of_rounds": round(self.pairs.spread(), 3),
            "pairs": rows(self.pairs, pair_figures),
            "by_depth": {str(depth): rows(rounds, pair_figures) for depth, rounds in self.by_depth.items()},
            "training_step": rows(self.steps, ("wall", "process_cpu", "own_cpu")),
            "bytes_per_event": round(self.bytes_per_event, 2),
        }


@contextlib.contextmanager
def started(names: Sequence[str], device: str) -> Iterator[tuple[list[Worker], Path]]:
    """Run a process for each name, and a folder for their files, during a block. Raises CostError."""
    workers: list[Worker] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            workers.extend(Worker(name, device, Path(folder)) for name in names)
            yield workers, Path(folder)
        finally:
            for worker in workers:
                worker.stop()


def list_recorders(device: str) -> tuple[str, ...]:
    names = RECORDERS[device]
    return names if importlib.util.find_spec("memray") else tuple(name for name in names if name != MEMRAY)


def measure(device: str, seconds: float) -> Costs:
    """Measure for about `seconds`, starts of processes included. Raises CostError."""
    deadline = time.monotonic() + seconds
    with started(list_recorders(device), device) as (workers, folder):
        compared_workers = [worker for worker in workers if worker.name in (PLAIN, ALLOCTRACE)]
        pairs = Rounds()
        by_depth = {depth: pairs if depth == DEPTH else Rounds() for depth in DEPTHS}
        costs = Costs(device, _describe_machine(workers[0]), pairs, by_depth, Rounds(), 0.0)
        for worker in workers:  # warm up: new stacks, first segments and the model are not a cost of each round
            for depth in DEPTHS if worker in compared_workers else (DEPTH,):
                worker.run("pairs", depth, 100)
            worker.run("steps", 1)
        round_count = 0
        while round_count < _MIN_ROUNDS or time.monotonic() < deadline:
            for depth, rounds in by_depth.items():
                rounds.add(workers if rounds is pairs else compared_workers, "pairs", depth, _PAIRS)
            if round_count % _ROUNDS_PER_STEP == 0:
                costs.steps.add(workers, "steps", 1)
            round_count += 1
        costs.bytes_per_event = _measure_event_bytes(workers, folder)
    return costs


def _measure_event_bytes(workers: Sequence[Worker], folder: Path) -> float:
    from ..reading.recorded import RecordedTrace

    for worker in workers:
        worker.stop()
    trace = RecordedTrace(folder / "all.alloctrace")
    return float(trace.file_bytes / max(trace.integrity.events, 1))


def _describe_machine(worker: Worker) -> dict[str, Any]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": cores,
        "python": platform.python_version(),
        **worker.machine,
    }
