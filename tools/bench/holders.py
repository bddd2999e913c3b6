"""Processor time of the object scans in a program with many live objects.

The objects are instances, tuples and lists in a dict, as most programs have them, and a trainer that keeps tensors.
Measured, each as the median of some rounds: `holders` of one tensor, `tensors`, the final scan of a recording, and a
scan during the recording. Prints a table and writes JSON.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.objects.object_scan import scan_objects
from pytorch_alloctrace.recording.object_scans import MAX_FINAL_SCAN_S, MAX_SCAN_S

ROUNDS = 3
TIMEOUT_S = 300.0
TENSORS = 10_000
RESULTS = Path("benchmarks/results/holders.json")


class Row:
    def __init__(self, number: int) -> None:
        self.key = str(number)
        self.place = (number, [number])


class Trainer:
    def __init__(self) -> None:
        self.predictions: list[torch.Tensor] = []


def rows(count: int) -> Iterator[Row]:
    # A row, a tuple and a list: three objects. Numbers and strings refer to nothing and are not counted.
    return map(Row, range(count // 3))


def measure_search(search: Callable[[], Any]) -> tuple[float, Any]:
    """Return the median processor seconds of a search, and its last result."""
    seconds = []
    result = None
    for _ in range(ROUNDS):
        gc.collect()
        begin = time.process_time()
        result = search()
        seconds.append(time.process_time() - begin)
    return statistics.median(seconds), result


def measure(objects: int) -> dict[str, Any]:
    trainer = Trainer()
    trainer.predictions += [torch.zeros(16) for _ in range(TENSORS)]
    table = {row.key: row for row in rows(objects)}
    tracked = len(gc.get_objects())
    middle = trainer.predictions[TENSORS // 2]
    holders_s, holders = measure_search(lambda: alloctrace.holders(middle, seconds=TIMEOUT_S))
    tensors_s, tensors = measure_search(lambda: alloctrace.tensors(lines=False, seconds=TIMEOUT_S))
    final_scan_s, final_scan = measure_search(lambda: scan_objects(MAX_FINAL_SCAN_S))
    running_scan_s, _ = measure_search(lambda: scan_objects(MAX_SCAN_S, search_unreached=False))
    assert holders.complete and str(holders.chains[0]).startswith("trainer.predictions"), str(holders)
    assert tensors.attrs["complete"] and len(tensors) >= TENSORS
    assert str(final_scan.groups[0]).startswith("trainer.predictions"), final_scan
    assert len(table) == objects // 3
    return {
        "objects": objects,
        "tracked_objects": tracked,
        "holders_s": holders_s,
        "tensors_s": tensors_s,
        "look_at_end_s": final_scan_s,
        "look_at_end_is_complete": final_scan.complete,
        "look_in_mid_run_s": running_scan_s,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help=f"where the JSON goes (such as {RESULTS})")
    parser.add_argument("--objects", type=int, nargs="+", default=[0, 100_000, 1_000_000, 4_000_000])
    options = parser.parse_args()
    measured = []
    names = ("holders", "tensors", "final scan", "scan while running")
    print(f"{'objects':>12}" + "".join(f"{name:>18}" for name in names))
    for objects in options.objects:
        row = measure(objects)
        measured.append(row)
        cells = (row["holders_s"], row["tensors_s"], row["look_at_end_s"], row["look_in_mid_run_s"])
        print(f"{objects:12,}" + "".join(f"{cell:16.3f} s" for cell in cells), flush=True)
    if options.out:
        about = {"torch": torch.__version__, "python": sys.version.split()[0], "cores": os.cpu_count()}
        result = {"machine": platform.machine(), **about, "tensors": TENSORS, "rounds": ROUNDS, "measured": measured}
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
