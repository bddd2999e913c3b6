"""Makes the traces of runs of many ranks, one of which leaks, and compares them: through a cluster of Dask with two
worker processes, and by processes of this machine, the first time and with the summaries that are kept then. Prints a
table; --out writes JSON. Processor time is what a busy machine does not change.
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


def make(folder: Path, ranks: int, steps: int) -> int:
    """Bytes of all traces."""
    folder.mkdir()
    for number in range(ranks):
        leaks = steps // 4 if number == ranks * 2 // 3 else None
        Rank(number, ranks, steps=steps, leaks_from=leaks, leak=MIB * 12, host=f"node{number // 8}").write(folder)
    return sum(path.stat().st_size for path in folder.iterdir())


def compare(folder: Path, *options: str) -> dict[str, Any]:
    """Runs the command as a user does. Seconds; its own memory at its highest, and what it said."""
    begin = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "pytorch_alloctrace", "ranks", str(folder), "--json", *options],
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    text = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    assert status == 0, status
    found = json.loads(text)["findings"]
    assert [(one["kind"], one["ranks"]) for one in found] == [
        ("leak", [json.loads(text)["run"]["world_size"] * 2 // 3])
    ]
    return {
        "seconds": round(time.monotonic() - begin, 1),
        "processor_seconds": round(used.ru_utime + used.ru_stime, 1),
        "mib": round(used.ru_maxrss / 1024),
        "since_step": found[0]["since_step"],
    }


def processor_seconds(processes: list[subprocess.Popen[bytes]]) -> float:
    """Of these together, so far."""
    fields = [Path(f"/proc/{one.pid}/stat").read_text().rpartition(")")[2].split() for one in processes]
    return round(sum(int(one[11]) + int(one[12]) for one in fields) / os.sysconf("SC_CLK_TCK"), 1)


def highest(process: subprocess.Popen[bytes]) -> int:
    """MiB that a process had at most."""
    text = Path(f"/proc/{process.pid}/status").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("VmHWM")) // 1024


def forget(folder: Path) -> int:
    """Removes the summaries; returns the size of the largest."""
    files = list(folder.glob("*.summary.json"))
    largest = max(path.stat().st_size for path in files)
    for path in files:
        path.unlink()
    return largest


def measure(folder: Path, ranks: int, steps: int) -> dict[str, Any]:
    traces = folder / str(ranks)
    row: dict[str, Any] = {"ranks": ranks, "steps": steps, "bytes": make(traces, ranks, steps)}
    # The profiler of a worker of Dask keeps the call stacks of an hour, half a megabyte for each second.
    profile = {"DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False"}
    with cluster(folder, **profile) as (address, (scheduler, *workers)):
        before = processor_seconds(workers)
        row["cluster"] = compare(traces, "--scheduler", address)
        row["cluster"] |= {
            "workers_processor_seconds": round(processor_seconds(workers) - before, 1),
            "scheduler_mib": highest(scheduler),
            "workers_mib": [highest(one) for one in workers],
        }
        row["summary_bytes"] = forget(traces)
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
        found = {"machine": machine, "python": platform.python_version(), "runs": rows}
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
