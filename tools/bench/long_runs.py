"""Cost of a recording with max_bytes in a long run.

stacks: the recorder's memory after a program has recorded a million stacks, with and without a size limit.
soak: a program that allocates and frees CPU tensors as fast as it can. After each tenth of the events: the size of all
    files, the recorder's memory (memory of the process in excess of the unrecorded program), the processor time that
    an event added to the program's thread and to all threads, and the lost events.
events: the recorder alone, fed by a loop (bounded_events.cpp), for as many events as a program records in weeks. A leak
    begins after the first tenth; the verdict on the compacted trace must name its line.

The parts run one after the other, in separate processes. Prints tables and writes JSON.
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

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "bench"
CORE = ("base", "format", "recording", "reading", "replay", "compaction", "bounding")
MIB = 1 << 20
MAX_BYTES = 256 * MIB

Result = dict[str, Any]


def report(text: str) -> None:
    print(text, flush=True)


def build_generator() -> Path:
    """Compile bounded_events.cpp and the core that it needs; recompile only changed files."""
    objects = BUILD / "bounded_events"
    objects.mkdir(parents=True, exist_ok=True)
    compiler = [os.environ.get("CXX", "g++"), "-std=c++20", "-O2", "-DNDEBUG", "-Wall", "-Wextra", "-Werror"]
    sources = [ROOT / "tools/bench/bounded_events.cpp"]
    sources += [source for folder in CORE for source in sorted((ROOT / "csrc/core" / folder).glob("*.cpp"))]
    newest = max(path.stat().st_mtime for path in (ROOT / "csrc/core").rglob("*.h"))
    compiled = []
    for source in sources:
        target = objects / f"{source.parent.name}-{source.stem}.o"
        if not target.exists() or target.stat().st_mtime < max(source.stat().st_mtime, newest):
            subprocess.run([*compiler, "-c", str(source), "-o", str(target)], check=True)
        compiled.append(str(target))
    program = objects / "bounded_events"
    subprocess.run([*compiler, *compiled, "-o", str(program), "-lpthread"], check=True)
    return program


def read_lines(command: list[str]) -> list[Result]:
    """Run a process that prints a JSON object per line; return the objects, and report each row as it arrives."""
    entries = []
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        for line in process.stdout:
            entries.append(json.loads(line))
            if "events" in entries[-1]:
                report(row(entries[-1]))
    if process.returncode != 0:
        raise SystemExit(f"{command[0]} ended with {process.returncode}")
    return entries


def row(entry: Result) -> str:
    cells = f"{entry['events']:15,} {entry['seconds']:9.1f} s {entry['ns_per_event']:9.1f} ns"
    cells += f" {entry['files'] / MIB:9.1f} MiB {entry['memory'] / MIB:9.1f} MiB"
    return cells + (f" {entry['lost']:9,} lost" if "lost" in entry else "")


def worker(*arguments: object) -> list[str]:
    return [sys.executable, str(ROOT / "tools/bench/long_runs_worker.py"), *map(str, arguments)]


def measure_events(events: int, folder: Path) -> Result:
    generator = build_generator()
    report(f"{events:,} events through the recorder alone; memory: of the process")
    path = folder / "events.alloctrace"
    command = [str(generator), "--out", str(path), "--events", str(events), "--max-bytes", str(MAX_BYTES)]
    *rows, end = read_lines(command)
    begin = time.perf_counter()
    [verdict] = read_lines(worker("verdict", path))
    verdict["seconds"] = round(time.perf_counter() - begin, 1)
    assert verdict["leaks"] and all(leak["line"] == end["line"] for leak in verdict["leaks"]), (verdict, end)
    assert verdict["lost"] == 0 and verdict["events_in_all"] == rows[-1]["events"], (verdict, rows[-1])
    largest = max(entry["files"] for entry in rows)
    assert largest <= MAX_BYTES, largest
    report(f"leaked: {end['leaked']:,} blocks at {end['file']}:{end['line']}; found: {verdict['leaks']}")
    return {"rows": rows, "end": end, "verdict": verdict}


def measure_stacks(stacks: int, folder: Path) -> list[Result]:
    report(f"{stacks:,} stacks, each recorded twice: memory in excess of the unrecorded program")
    entries: list[Result] = []
    for mode in ("plain", "unbounded", "bounded"):
        [entry] = read_lines(worker("stacks", folder / f"{mode}.alloctrace", mode, stacks, MAX_BYTES))
        entry["recorder"] = entry["memory"] - (entries[0]["memory"] if entries else entry["memory"])
        entry["recorder_peak"] = entry["peak"] - (entries[0]["peak"] if entries else entry["peak"])
        entries.append(entry)
        extra = f"{entry['recorder'] / MIB:8.1f} MiB, maximum {entry['recorder_peak'] / MIB:8.1f} MiB with the spool"
        report(f"{mode:>10} {extra}, {entry['cut_stacks']:,} events with truncated stacks")
    return entries


def measure_soak(events: int, folder: Path) -> Result:
    report(f"{events:,} events of a program; memory and ns per event in excess of the unrecorded program")
    baseline_rows = read_lines(worker("soak", folder / "none", "plain", events // 10, MAX_BYTES))
    base, pair_ns = baseline_rows[-1]["memory"], min(entry["ns_per_event"] for entry in baseline_rows[:-1])
    rows = read_lines(worker("soak", folder / "soak.alloctrace", "bounded", events, MAX_BYTES))
    for entry in rows:
        entry["recorder_memory"] = entry["memory"] - base
        entry["added_ns_per_event"] = round(entry["ns_per_event"] - pair_ns, 1)
        entry["added_with_threads_ns"] = round(entry["ns_with_threads"] - pair_ns, 1)
    [verdict] = read_lines(worker("verdict", folder / "soak.alloctrace"))
    assert verdict["lost"] == 0, verdict
    assert max(entry["files"] for entry in rows) <= MAX_BYTES
    return {"plain_ns_per_event": pair_ns, "plain_memory": base, "rows": rows, "verdict": verdict}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["stacks", "soak", "events"], metavar="stacks|soak|events")
    parser.add_argument("--events", type=int, default=100_000_000, help="events through the recorder alone")
    parser.add_argument("--soak-events", type=int, default=50_000_000)
    parser.add_argument("--stacks", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path, help="where the JSON goes; results of other parts in it stay")
    options = parser.parse_args()
    result: Result = json.loads(options.out.read_text()) if options.out and options.out.exists() else {}
    with tempfile.TemporaryDirectory(dir=BUILD.parent) as name:
        folder = Path(name)
        for part in options.parts:
            load_before = os.getloadavg()[0]
            if part == "stacks":
                result[part] = {"measured": measure_stacks(options.stacks, folder)}
            elif part == "soak":
                result[part] = measure_soak(options.soak_events, folder)
            elif part == "events":
                result[part] = measure_events(options.events, folder)
            else:
                parser.error(f"there is no part {part!r}")
            about = {"python": sys.version.split()[0], "cores": os.cpu_count(), "machine": platform.machine()}
            result[part] |= {**about, "load_before": round(load_before, 1), "max_bytes": MAX_BYTES}
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
