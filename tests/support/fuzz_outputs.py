"""Fuzzing of the outputs that read traces: `fuzz_outputs.py FOLDER SECONDS FIRST_SEED`.

Each seed makes a trace and chooses outputs. Traces with faults stay in FOLDER; every_output.py runs all outputs.
"""

from __future__ import annotations

import functools
import random
import sys
import time
from pathlib import Path

import every_output
import hostile_traces

_CHEAP_OUTPUTS = 5
"""Number of cheap outputs run on each trace, besides `api` and `verify`."""
_MAX_TRACE_BYTES = 40_000
"""Maximum size of a trace to mutate."""


def choose_outputs(seed: int) -> list[str]:
    dice = random.Random(~seed)
    costly = every_output.COSTLY if dice.random() < 0.06 else ()
    return ["api", "verify", *dice.sample(every_output.cheap_outputs(), _CHEAP_OUTPUTS), *costly]


@functools.cache
def _read_corpus() -> list[bytes]:
    """Return the small traces of the corpus."""
    traces = [path.read_bytes() for path in sorted(hostile_traces.CORPUS.glob("*.alloctrace"))]
    return [trace for trace in traces if len(trace) <= _MAX_TRACE_BYTES]


def write_trace(folder: Path, seed: int) -> Path:
    path = folder / f"seed{seed}.alloctrace"
    path.write_bytes(hostile_traces.make_hostile(seed, _read_corpus()))
    return path


def fuzz(folder: Path, seconds: float, first_seed: int) -> None:
    every_output.prepare()
    begin, seed, faults = time.monotonic(), first_seed, []
    while time.monotonic() - begin < seconds:
        path = write_trace(folder, seed)
        outcome = every_output.run_outputs(path, choose_outputs(seed))
        for fault in outcome.faults:
            faults.append(f"{path.name}: {fault}")
            print(faults[-1], flush=True)
        if not outcome.faults:
            path.unlink()
        seed += 1
    print(f"{seed - first_seed} traces, {len(faults)} faults", flush=True)


if __name__ == "__main__":
    fuzz(Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
