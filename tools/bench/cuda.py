"""Cost of recording the CUDA allocator, compared with the unrecorded program and with torch's own history, in one run.

The unit is the pair: one `torch.empty(1000, device="cuda")` allocated and freed, 20 Python frames deep. Each recorder
has a separate process, because its hooks in the allocator stay attached. Rounds alternate between the processes, so a
machine that slows down slows all of them.

Without a GPU the benchmark runs on the simulated device, where allocator, operators and dispatch are torch's own too.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
from pathlib import Path
from typing import Any

from pytorch_alloctrace.cost import RECORDERS
from pytorch_alloctrace.cost.measuring import DEPTH, Worker, started

VARIANTS = RECORDERS["cuda"]
PLAIN, OURS, PEER = VARIANTS[0], VARIANTS[1], VARIANTS[3]
Rows = dict[str, list[dict[str, float]]]
"""Minimum of each figure, in one row per process, by variant."""


def run_rounds(workers: list[Worker], request: tuple[str | int, ...], rounds: int, rows: Rows) -> None:
    """Append a row for each process: the minimum of each figure over the rounds.

    Minimum, because other load on the host only slows a round, by up to a factor of two for seconds at a time. Short
    rounds fit between such slow periods.
    """
    for worker in workers:  # one-time work (new stacks, first segments) is not a cost per pair
        worker.run(*request)
    measured = [[worker.run(*request) for worker in workers] for _ in range(rounds)]
    for index, worker in enumerate(workers):
        values = [results[index] for results in measured]
        rows[worker.name].append({field: min(value[field] for value in values) for field in values[0]})


def figures_of(rows: Rows) -> dict[str, Any]:
    """Return, for each variant, the median of each figure over the processes, and its excess over the plain program."""
    typical = {
        name: {field: statistics.median(value[field] for value in values) for field in values[0]}
        for name, values in rows.items()
    }
    baseline = typical[PLAIN]
    return {
        name: {field: round(value, 1) for field, value in figures.items()}
        | {f"added_{field}": round(value - baseline[field], 1) for field, value in figures.items()}
        for name, figures in typical.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where the JSON goes (default: standard output)")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, for a rough result")
    options = parser.parse_args()
    # Several processes: the addresses that the loader chooses make some of them slower by a tenth.
    processes, rounds = (1, 10) if options.quick else (7, 60)
    measured: dict[str, Rows] = {kind: {name: [] for name in VARIANTS} for kind in ("pairs", "contended", "training")}
    for _ in range(processes):
        with started(VARIANTS, "cuda") as (workers, _):
            run_rounds(workers, ("pairs", DEPTH, 4_000), rounds, measured["pairs"])
            run_rounds(workers, ("contended", DEPTH, 40), 2, measured["contended"])
            run_rounds(workers, ("steps", 1), rounds, measured["training"])
            device = workers[0].machine
    pairs, contended, training = (figures_of(rows) for rows in measured.values())
    ratio = pairs[OURS]["added_wall"] / pairs[PEER]["added_wall"]
    for name, figures in training.items():
        figures["added_percent_of_process_cpu"] = round(
            100 * figures["added_process_cpu"] / training[PLAIN]["process_cpu"], 1
        )
        print(
            f"{name:32} {pairs[name]['wall']:8,.0f} ns a pair, added {pairs[name]['added_wall']:8,.0f}; "
            f"with a busy second thread added {contended[name]['added_wall'] / 1e3:8,.0f} us; "
            f"training step {figures['process_cpu'] / 1e6:6.1f} ms, "
            f"added {figures['added_percent_of_process_cpu']:5.1f} %",
            file=sys.stderr,
        )
    print(f"ours adds {ratio:.2f} of what {PEER} adds", file=sys.stderr)
    result = {
        "machine": {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count(), **device},
        "python": platform.python_version(),
        "pair": "torch.empty(1000, device='cuda') made and freed, 20 Python frames deep; nanoseconds",
        "pairs": pairs,
        "ratio_to_torch_python_history": round(ratio, 3),
        "contended": contended,
        "training_step": training,
    }
    text = json.dumps(result, indent=1)
    if options.out:
        options.out.write_text(text + "\n")
    else:
        print(text)


if __name__ == "__main__":
    main()
