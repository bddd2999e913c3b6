"""Cost of the hook in this checkout and others (NAME=CHECKOUT), alternating in one run.

Build the others in place (`python setup.py build_ext --inplace`, with the Python of this checkout's .venv).

A start is a process for each version and for the program alone, a tracker that does nothing and torch's own history;
rounds alternate between them. The addresses that the loader chooses make starts differ by more than versions do, so the
figures are medians over starts, with minimum and maximum. --fixed: the same addresses in each start.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from pytorch_alloctrace.cost import ALLOCTRACE, HISTORY, NO_STACKS, PLAIN, PROFILER, TRACKER
from pytorch_alloctrace.cost.measuring import DEPTH, Worker

ROOT = Path(__file__).resolve().parents[2]
PEERS = {"cuda": (PLAIN, TRACKER, HISTORY), "cpu": (PLAIN, PROFILER)}
PAIRS, PAIRS_PROFILED = 4_000, 1_000


def fix_addresses() -> None:
    """Disable address randomization for the processes that this process starts."""
    no_randomization = 0x0040000
    if ctypes.CDLL(None).personality(no_randomization) == -1:
        raise SystemExit("versions: this system does not let addresses be fixed")


def one_start(
    device: str, versions: dict[str, Path], depths: list[int], rounds: int, steps: int, stacks: bool
) -> dict[str, dict[str, float]]:
    """Return what each variant adds to the program alone: ns per pair by depth, and processor ns per training step."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as exits:
        workers: dict[str, Worker] = {}
        for name in PEERS[device]:
            workers[name] = Worker(name, device, Path(folder))
        for version, checkout in versions.items():
            (Path(folder) / version).mkdir()
            workers[version] = Worker(ALLOCTRACE, device, Path(folder) / version, checkout)
            if stacks:
                name = f"{version}, no stacks"
                (Path(folder) / name).mkdir()
                workers[name] = Worker(NO_STACKS, device, Path(folder) / name, checkout)
        for worker in workers.values():
            exits.callback(worker.stop)
            for depth in depths:
                worker.run("pairs", depth, 100)
            if steps:
                worker.run("steps", 1)
        minima: dict[str, dict[str, float]] = {name: {} for name in workers}
        for index in range(rounds):
            for name, worker in workers.items():
                for depth in depths:
                    row = worker.run("pairs", depth, PAIRS_PROFILED if name == PROFILER else PAIRS)
                    key = f"{depth} frames"
                    minima[name][key] = min(minima[name].get(key, float("inf")), row["wall"])
                    key = f"{depth} frames, other threads"
                    minima[name][key] = min(minima[name].get(key, float("inf")), row["other_cpu"])
                if index < steps:
                    row = worker.run("steps", 1)
                    minima[name]["step"] = min(minima[name].get("step", float("inf")), row["process_cpu"])
    baseline = minima[PLAIN]
    return {
        name: {key: value - (0 if name == PLAIN else baseline[key]) for key, value in row.items()}
        for name, row in minima.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", metavar="NAME=CHECKOUT")
    parser.add_argument("--device", choices=PEERS, default="cuda")
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--steps", type=int, default=0, help="training steps in each start")
    parser.add_argument("--depths", type=int, nargs="+", default=[DEPTH], help="Python frames")
    parser.add_argument("--stacks", action="store_true", help="each version without stacks, too")
    parser.add_argument("--fixed", action="store_true", help="the same addresses in each start")
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    options = parser.parse_args()
    pairs = [version.partition("=") for version in options.versions]
    versions = {name: Path(folder).resolve() for name, _, folder in pairs}
    versions["now"] = ROOT
    if options.fixed:
        fix_addresses()
    starts: list[dict[str, dict[str, float]]] = []
    for number in range(options.starts):
        starts.append(
            one_start(options.device, versions, options.depths, options.rounds, options.steps, options.stacks)
        )
        pair_ns = {name: round(row[f"{options.depths[0]} frames"]) for name, row in starts[-1].items()}
        print(f"start {number + 1}: {pair_ns}", file=sys.stderr)

    def figures(values: list[float]) -> dict[str, float]:
        return {"median": round(statistics.median(values)), "least": round(min(values)), "most": round(max(values))}

    result: dict[str, Any] = {
        name: {key: figures([start[name][key] for start in starts]) for key in row} for name, row in starts[0].items()
    }
    if HISTORY in result:
        for version in versions:
            key = f"{options.depths[0]} frames"
            for name, peer in (("above_tracker", TRACKER), ("ratio_to_history", HISTORY)):
                values = [
                    s[version][key] / s[peer][key] if peer == HISTORY else s[version][key] - s[peer][key]
                    for s in starts
                ]
                result[version][name] = {
                    "median": round(statistics.median(values), 3),
                    "least": round(min(values), 3),
                    "most": round(max(values), 3),
                }
    text = json.dumps({"starts": options.starts, "fixed": options.fixed, "ns_added": result}, indent=1)
    if options.out:
        options.out.write_text(text + "\n")
    for name, row in result.items():
        print(
            f"{name:32} "
            + "; ".join(f"{key} {v['median']:,} ({v['least']:,} to {v['most']:,})" for key, v in row.items())
        )


if __name__ == "__main__":
    main()
