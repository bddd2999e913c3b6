"""What recording the CUDA allocator costs, against the plain program and against torch's own history, all in one run.

The unit is the pair: one `torch.empty(1000, device="cuda")` made and freed, 20 Python frames deep. Each recorder has a
separate process, because what it attaches to the allocator stays; rounds alternate between the processes, so that a
machine that gets slower gets slower for all.

Where there is no GPU it runs on the simulated device: the allocator, the operators and their dispatch are torch's own
there too.
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
"""For each variant, one row a process: the least of each figure."""


def run_rounds(workers: list[Worker], request: tuple[str | int, ...], rounds: int, rows: Rows) -> None:
    """Adds a row for each process: of every figure, the least of its rounds.

    The least: what a busy machine, or a neighbour of a virtual one, does to a round only makes it slower, and here by
    up to a factor of two for seconds. Short rounds find the times in between.
    """
    for worker in workers:  # what happens once (new stacks, first segments) is not a cost per pair
        worker.run(*request)
    measured = [[worker.run(*request) for worker in workers] for _ in range(rounds)]
    for index, worker in enumerate(workers):
        values = [of_round[index] for of_round in measured]
        rows[worker.name].append({field: min(value[field] for value in values) for field in values[0]})


def figures_of(rows: Rows) -> dict[str, Any]:
    """For each variant the median over its processes of every figure, and what it adds to the plain program's."""
    typical = {
        name: {field: statistics.median(value[field] for value in values) for field in values[0]}
        for name, values in rows.items()
    }
    plain = typical[PLAIN]
    return {
        name: {field: round(value, 1) for field, value in figures.items()}
        | {f"added_{field}": round(value - plain[field], 1) for field, value in figures.items()}
        for name, figures in typical.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where the JSON goes (default: standard output)")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, for a look")
    options = parser.parse_args()
    # Processes too: where the loader puts code and data makes some of them slower than others by a tenth.
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
