"""Time and memory of comparing generated traces of many ranks, one of which leaks.

Compares through a Dask cluster with two workers, and on this host without and with cached summaries. Prints a JSON
object per run; --out writes JSON. Processor time does not depend on other load.
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

from dask_cluster import cluster
from made_up_ranks import Rank

MIB = 2**20


def write_traces(folder: Path, ranks: int, steps: int) -> int:
    """Write the traces of all ranks; return their total bytes."""
    folder.mkdir()
    for number in range(ranks):
        leaks_from = steps // 4 if number == ranks * 2 // 3 else None
        Rank(number, ranks, steps=steps, leaks_from=leaks_from, leak=MIB * 12, host=f"node{number // 8}").write(folder)
    return sum(path.stat().st_size for path in folder.iterdir())


def compare(folder: Path, *options: str) -> dict[str, Any]:
    """Run `alloctrace ranks`; return its seconds, its peak memory and the step at which the leak begins."""
    begin = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "pytorch_alloctrace", "ranks", str(folder), "--json", *options],
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    text = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, status
    findings = json.loads(text)["findings"]
    assert [(finding["kind"], finding["ranks"]) for finding in findings] == [
        ("leak", [json.loads(text)["run"]["world_size"] * 2 // 3])
    ]
    return {
        "seconds": round(time.monotonic() - begin, 1),
        "processor_seconds": round(usage.ru_utime + usage.ru_stime, 1),
        "mib": round(usage.ru_maxrss / 1024),
        "since_step": findings[0]["since_step"],
    }


def processor_seconds(processes: list[subprocess.Popen[bytes]]) -> float:
    """Return the total processor seconds of running processes."""
    stats = [Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split() for process in processes]
    return round(sum(int(fields[11]) + int(fields[12]) for fields in stats) / os.sysconf("SC_CLK_TCK"), 1)


def peak_mib(process: subprocess.Popen[bytes]) -> int:
    text = Path(f"/proc/{process.pid}/status").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("VmHWM")) // 1024


def remove_summaries(folder: Path) -> int:
    """Remove the summaries; return the size of the largest."""
    files = list(folder.glob("*.summary.json"))
    largest = max(path.stat().st_size for path in files)
    for path in files:
        path.unlink()
    return largest


def measure(folder: Path, ranks: int, steps: int) -> dict[str, Any]:
    traces = folder / str(ranks)
    row: dict[str, Any] = {"ranks": ranks, "steps": steps, "bytes": write_traces(traces, ranks, steps)}
    # The profiler of a Dask worker keeps the call stacks of an hour, half a megabyte per second.
    profile = {"DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False"}
    with cluster(folder, **profile) as (address, (scheduler, *workers)):
        before = processor_seconds(workers)
        row["cluster"] = compare(traces, "--scheduler", address)
        row["cluster"] |= {
            "workers_processor_seconds": round(processor_seconds(workers) - before, 1),
            "scheduler_mib": peak_mib(scheduler),
            "workers_mib": [peak_mib(worker) for worker in workers],
        }
        row["summary_bytes"] = remove_summaries(traces)
    (folder / "scheduler.json").unlink(missing_ok=True)
    row["here"] = compare(traces)
    row["again"] = compare(traces)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--ranks", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--steps", type=int, default=400)
    options = parser.parse_args()
    rows = []
    for ranks in options.ranks:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(row := measure(Path(folder), ranks, options.steps))
        print(json.dumps(row), flush=True)
    if options.out:
        machine = {"processor": platform.machine(), "cores": os.cpu_count()}
        result = {"machine": machine, "python": platform.python_version(), "runs": rows}
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
