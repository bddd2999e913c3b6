"""What the hook costs in several versions of this project, by turns in one run: NAME=CHECKOUT for each, built in place
(`python setup.py build_ext --inplace`, with the Python of this checkout's .venv). This checkout is always among them.

A start is a process for each version and for the program alone, a tracker that does nothing and torch's own history;
rounds alternate between them. Where the loader puts code and data makes starts differ by more than versions do, so the
figures are the medians over starts, and their least and most are shown. --fixed: at the same address in each start.
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

HERE = Path(__file__).resolve().parents[2]
PEERS = {"cuda": (PLAIN, TRACKER, HISTORY), "cpu": (PLAIN, PROFILER)}
PAIRS, PAIRS_PROFILED = 4_000, 1_000


def fix_addresses() -> None:
    """For the processes that this one starts."""
    no_randomization = 0x0040000
    if ctypes.CDLL(None).personality(no_randomization) == -1:
        raise SystemExit("versions: this system does not let addresses be fixed")


def one_start(
    device: str, versions: dict[str, Path], depths: list[int], rounds: int, steps: int, stacks: bool
) -> dict[str, dict[str, float]]:
    """What each adds to the program alone: nanoseconds a pair, by depth, and the processor time of a training step."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as ends:
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
            ends.callback(worker.stop)
            for depth in depths:
                worker.run("pairs", depth, 100)
            if steps:
                worker.run("steps", 1)
        least: dict[str, dict[str, float]] = {name: {} for name in workers}
        for index in range(rounds):
            for name, worker in workers.items():
                for depth in depths:
                    row = worker.run("pairs", depth, PAIRS_PROFILED if name == PROFILER else PAIRS)
                    key = f"{depth} frames"
                    least[name][key] = min(least[name].get(key, float("inf")), row["wall"])
                    key = f"{depth} frames, other threads"
                    least[name][key] = min(least[name].get(key, float("inf")), row["other_cpu"])
                if index < steps:
                    row = worker.run("steps", 1)
                    least[name]["step"] = min(least[name].get("step", float("inf")), row["process_cpu"])
    plain = least[PLAIN]
    return {
        name: {key: value - (0 if name == PLAIN else plain[key]) for key, value in row.items()}
        for name, row in least.items()
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
    parser.add_argument("--fixed", action="store_true", help="all at the same address in each start")
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    options = parser.parse_args()
    versions = {name: Path(folder).resolve() for name, _, folder in (one.partition("=") for one in options.versions)}
    versions["now"] = HERE
    if options.fixed:
        fix_addresses()
    starts: list[dict[str, dict[str, float]]] = []
    for number in range(options.starts):
        starts.append(
            one_start(options.device, versions, options.depths, options.rounds, options.steps, options.stacks)
        )
        shown = {name: round(row[f"{options.depths[0]} frames"]) for name, row in starts[-1].items()}
        print(f"start {number + 1}: {shown}", file=sys.stderr)

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
