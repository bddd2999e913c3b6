"""What the search for what holds tensors costs, in seconds of a processor, while a program has many objects alive.

The objects are a program's own, of the kinds that programs have most of: instances, tuples and lists, in a dict.
Among them is a trainer that keeps tensors. Measured, each the median of some rounds: `holders` of one of these tensors,
`tensors` of all, the look of a recording at its end, and one in mid-run. Prints a table and writes JSON.
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
PATIENCE = 300.0
"""Seconds after which a search gives up: more than it takes, on a busy machine too."""
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
    # A row, a tuple and a list: three objects, apart from the numbers and texts, which refer to nothing.
    return map(Row, range(count // 3))


def seconds(search: Callable[[], Any]) -> tuple[float, Any]:
    """Of a processor, the median; and what was found last."""
    taken = []
    found = None
    for _ in range(ROUNDS):
        gc.collect()
        begin = time.process_time()
        found = search()
        taken.append(time.process_time() - begin)
    return statistics.median(taken), found


def measure(objects: int) -> dict[str, Any]:
    trainer = Trainer()
    trainer.predictions += [torch.zeros(16) for _ in range(TENSORS)]
    table = {row.key: row for row in rows(objects)}
    tracked = len(gc.get_objects())
    one, holders = seconds(lambda: alloctrace.holders(trainer.predictions[TENSORS // 2], seconds=PATIENCE))
    everything, table_of_all = seconds(lambda: alloctrace.tensors(lines=False, seconds=PATIENCE))
    at_end, last = seconds(lambda: scan_objects(MAX_FINAL_SCAN_S, more=True))
    midway, _ = seconds(lambda: scan_objects(MAX_SCAN_S, more=False))
    assert holders.complete and str(holders.chains[0]).startswith("Trainer.predictions"), str(holders)
    assert table_of_all.attrs["complete"] and len(table_of_all) >= TENSORS
    assert str(last.groups[0]).startswith("Trainer.predictions"), last
    assert len(table) == objects // 3
    return {
        "objects": objects,
        "tracked_objects": tracked,
        "holders_s": one,
        "tensors_s": everything,
        "look_at_end_s": at_end,
        "look_at_end_is_complete": last.complete,
        "look_in_mid_run_s": midway,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help=f"where the JSON goes (such as {RESULTS})")
    parser.add_argument("--objects", type=int, nargs="+", default=[0, 100_000, 1_000_000, 4_000_000])
    options = parser.parse_args()
    found = []
    names = ("holders", "tensors", "look at the end", "look in mid-run")
    print(f"{'objects':>12}" + "".join(f"{name:>18}" for name in names))
    for objects in options.objects:
        row = measure(objects)
        found.append(row)
        cells = (row["holders_s"], row["tensors_s"], row["look_at_end_s"], row["look_in_mid_run_s"])
        print(f"{objects:12,}" + "".join(f"{cell:16.3f} s" for cell in cells), flush=True)
    if options.out:
        about = {"torch": torch.__version__, "python": sys.version.split()[0], "cores": os.cpu_count()}
        result = {"machine": platform.machine(), **about, "tensors": TENSORS, "rounds": ROUNDS, "measured": found}
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
