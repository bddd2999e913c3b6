"""Fuzzing of the faces that read traces: `fuzz_outputs.py FOLDER SECONDS FIRST_SEED`.

Each seed makes a trace and chooses outputs. Traces that crash one stay in FOLDER; every_output.py runs all on them.
"""

from __future__ import annotations

import functools
import random
import sys
import time
from pathlib import Path

import every_output
import hostile_traces

_CHEAP = 5
"""Faces that each trace is shown to, besides `api` and `verify`."""
_TRACES_OF_RECORDINGS = 40_000
"""Bytes of the largest trace that is mutated."""


def chosen_faces(seed: int) -> list[str]:
    dice = random.Random(~seed)
    costly = every_output.COSTLY if dice.random() < 0.06 else ()
    return ["api", "verify", *dice.sample(every_output.cheap_faces(), _CHEAP), *costly]


@functools.cache
def _recorded() -> list[bytes]:
    """Return the small traces of the corpus."""
    traces = [path.read_bytes() for path in sorted(hostile_traces.CORPUS.glob("*.alloctrace"))]
    return [trace for trace in traces if len(trace) <= _TRACES_OF_RECORDINGS]


def write_trace(folder: Path, seed: int) -> Path:
    path = folder / f"seed{seed}.alloctrace"
    path.write_bytes(hostile_traces.hostile(seed, _recorded()))
    return path


def fuzz(folder: Path, seconds: float, first_seed: int) -> None:
    every_output.prepare()
    begin, seed, faults = time.monotonic(), first_seed, []
    while time.monotonic() - begin < seconds:
        path = write_trace(folder, seed)
        outcome = every_output.show(path, chosen_faces(seed))
        for fault in outcome.faults:
            faults.append(f"{path.name}: {fault}")
            print(faults[-1], flush=True)
        if not outcome.faults:
            path.unlink()
        seed += 1
    print(f"{seed - first_seed} traces, {len(faults)} faults", flush=True)


if __name__ == "__main__":
    fuzz(Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
