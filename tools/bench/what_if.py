"""Accuracy of the allocator model: predicted against recorded peaks of reserved memory.

Records ten programs under torch's default settings, and again under each of six others. From the first trace alone the
model predicts the other peaks. Prints a table; --out writes JSON; --events adds the model's speed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from replay import build_generator, make_trace

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace._replay import SimulationOptions
from pytorch_alloctrace.analysis.what_if.model import Model
from pytorch_alloctrace.analysis.what_if.settings import SENSIBLE, parse_setting
from pytorch_alloctrace.reading.recorded import RecordedTrace

ROOT = Path(__file__).resolve().parents[2]
SIMULATIONS = 8
"""Number of simultaneous simulations in the measurement of speed."""
NAMES = (
    *("mlp", "transformer", "convnet", "streams", "empty_cache"),
    *("server", "lengths", "generation", "images", "buffers"),
)
MIB = 2**20


def record(name: str, folder: Path, setting: str) -> alloctrace.Trace:
    trace = folder / f"{name}-{setting.replace(':', '-').replace(',', '-') or 'default'}.alloctrace"
    command = [str(ROOT / "tools/simcuda/run"), "--memory", "80GiB", sys.executable, "-m", "what_if_programs"]
    environment = {**os.environ, "PYTORCH_ALLOC_CONF": setting, "OMP_NUM_THREADS": "1"}
    subprocess.run([*command, name, str(trace)], check=True, env=environment, stdin=subprocess.DEVNULL)
    return alloctrace.load(trace)


def peak(trace: alloctrace.Trace) -> int:
    return trace.peak("reserved", device="cuda:0").bytes


def compare(name: str, folder: Path) -> dict[str, Any]:
    recorded = record(name, folder, "")
    prediction = recorded.what_if(SENSIBLE)
    rows = []
    for outcome in prediction.outcomes[1:]:
        again = peak(record(name, folder, outcome.setting.text))
        low, high = outcome.peak_reserved_bytes
        row = {"setting": outcome.setting.text, "low": low, "high": high, "again": again}
        rows.append(row | {"equal": low == high == again, "inside": low <= again <= high})
    return {
        "program": name,
        "events": recorded.integrity.events,
        "reproduced": prediction.check.reproduced,
        "recorded": prediction.check.recorded,
        "peak": peak(recorded),
        "predictions": rows,
    }


def speed(events: int) -> dict[str, Any]:
    """Return the time of eight simulations over a generated trace (see replay.py), and requests per CPU second each."""
    path, _ = make_trace(build_generator(), events)
    trace = RecordedTrace(path)
    device = Model(trace).device
    simulations = [SimulationOptions(parse_setting(text).json, order="lowest") for text in (SENSIBLE * 2)[:SIMULATIONS]]
    begin, processor_begin = time.perf_counter(), time.process_time()
    prediction = trace.predicted(simulations, device=device)
    seconds, processor = time.perf_counter() - begin, time.process_time() - processor_begin
    return {
        "events": trace.integrity.events,
        "requests": prediction.requests,
        "simulations": len(simulations),
        "wall_s": seconds,
        "cpu_s": processor,
        "requests_per_cpu_second_and_lane": int(prediction.requests * len(simulations) / processor),
        "load_average": os.getloadavg()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="where to write JSON")
    parser.add_argument("--programs", nargs="*", default=NAMES, metavar="NAME", help="some of the ten programs")
    parser.add_argument("--events", type=int, metavar="N", help="also measure the speed, on a trace of N events")
    options = parser.parse_args()
    results: dict[str, Any] = {
        "machine": {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()},
        "torch": torch.__version__,
        "python": platform.python_version(),
        "programs": [],
    }
    with tempfile.TemporaryDirectory() as folder:
        for name in options.programs:
            comparison = compare(name, Path(folder))
            results["programs"].append(comparison)
            cells = []
            for row in comparison["predictions"]:
                verdict = "=" if row["equal"] else "in" if row["inside"] else "NOT"
                cells.append(f"{row['low'] // MIB:,}-{row['high'] // MIB:,} {verdict} {row['again'] // MIB:,}")
            print(
                f"{name:12} {comparison['reproduced']}/{comparison['recorded']} {comparison['peak'] // MIB:,}:",
                *cells,
                sep="  ",
                flush=True,
            )
    rows = [row for comparison in results["programs"] for row in comparison["predictions"]]
    equal, in_range = sum(row["equal"] for row in rows), sum(row["inside"] for row in rows)
    print(f"{equal} of {len(rows)} equal, {in_range} equal or inside the range")
    results |= {"predictions": len(rows), "equal": equal, "equal_or_inside": in_range}
    if options.events is not None:
        results["speed"] = speed(options.events)
        print(results["speed"])
    if options.out is not None:
        options.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
