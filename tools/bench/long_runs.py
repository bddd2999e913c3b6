"""What a recording with max_bytes costs in a long run.

stacks: what the recorder has in memory after a program has made a million stacks, with and without a bound.
soak: a program that allocates and frees CPU tensors as fast as it can; after each tenth of the events what all
    files take, the recorder's memory (what the process has beyond the same program without a recording), what an event
    added to the processor time of the program's thread, and to that of all, and what was lost.
events: the recorder alone, fed by a loop (bounded_events.cpp), for as many events as a program makes in weeks. A leak
    begins at their first tenth; the verdict on the compacted trace must name its line.

Each runs in processes of its own, one after the other. Prints tables and writes JSON.
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
BUILT = ROOT / "build" / "bench"
CORE = ("base", "format", "recording", "reading", "replay", "compaction", "bounding")
MIB = 1 << 20
BOUND = 256 * MIB

Result = dict[str, Any]


def say(text: str) -> None:
    print(text, flush=True)


def build_generator() -> Path:
    """Compiles bounded_events.cpp with the core that it needs, as far as that has changed."""
    objects = BUILT / "bounded_events"
    objects.mkdir(parents=True, exist_ok=True)
    compiler = [os.environ.get("CXX", "g++"), "-std=c++20", "-O2", "-DNDEBUG", "-Wall", "-Wextra", "-Werror"]
    sources = [ROOT / "tools/bench/bounded_events.cpp"]
    sources += [source for folder in CORE for source in sorted((ROOT / "csrc/core" / folder).glob("*.cpp"))]
    newest = max(path.stat().st_mtime for path in (ROOT / "csrc/core").rglob("*.h"))
    made = []
    for source in sources:
        target = objects / f"{source.parent.name}-{source.stem}.o"
        if not target.exists() or target.stat().st_mtime < max(source.stat().st_mtime, newest):
            subprocess.run([*compiler, "-c", str(source), "-o", str(target)], check=True)
        made.append(str(target))
    program = objects / "bounded_events"
    subprocess.run([*compiler, *made, "-o", str(program), "-lpthread"], check=True)
    return program


def lines_of(command: list[str]) -> list[Result]:
    """What a process says, a JSON object a line, as it says it."""
    said = []
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as running:
        assert running.stdout is not None
        for line in running.stdout:
            said.append(json.loads(line))
            if "events" in said[-1]:
                say(row(said[-1]))
    if running.returncode != 0:
        raise SystemExit(f"{command[0]} ended with {running.returncode}")
    return said


def row(entry: Result) -> str:
    cells = f"{entry['events']:15,} {entry['seconds']:9.1f} s {entry['ns_per_event']:9.1f} ns"
    cells += f" {entry['files'] / MIB:9.1f} MiB {entry['memory'] / MIB:9.1f} MiB"
    return cells + (f" {entry['lost']:9,} lost" if "lost" in entry else "")


def worker(*arguments: object) -> list[str]:
    return [sys.executable, str(ROOT / "tools/bench/long_runs_worker.py"), *map(str, arguments)]


def measure_events(events: int, folder: Path) -> Result:
    generator = build_generator()
    say(f"{events:,} events through the recorder alone; memory: of the process")
    path = folder / "events.alloctrace"
    *rows, end = lines_of([str(generator), "--out", str(path), "--events", str(events), "--max-bytes", str(BOUND)])
    begun = time.perf_counter()
    [verdict] = lines_of(worker("verdict", path))
    verdict["seconds"] = round(time.perf_counter() - begun, 1)
    assert verdict["leaks"] and all(leak["line"] == end["line"] for leak in verdict["leaks"]), (verdict, end)
    assert verdict["lost"] == 0 and verdict["events_in_all"] == rows[-1]["events"], (verdict, rows[-1])
    most = max(entry["files"] for entry in rows)
    assert most <= BOUND, most
    say(f"leaked: {end['leaked']:,} blocks at {end['file']}:{end['line']}; found: {verdict['leaks']}")
    return {"rows": rows, "end": end, "verdict": verdict}


def measure_stacks(stacks: int, folder: Path) -> list[Result]:
    say(f"{stacks:,} stacks, each met twice: what the process has in memory beyond the same program, not recorded")
    found: list[Result] = []
    for mode in ("plain", "unbounded", "bounded"):
        [entry] = lines_of(worker("stacks", folder / f"{mode}.alloctrace", mode, stacks, BOUND))
        entry["recorder"] = entry["memory"] - (found[0]["memory"] if found else entry["memory"])
        entry["recorder_peak"] = entry["peak"] - (found[0]["peak"] if found else entry["peak"])
        found.append(entry)
        extra = f"{entry['recorder'] / MIB:8.1f} MiB, at most {entry['recorder_peak'] / MIB:8.1f} MiB with the spool"
        say(f"{mode:>10} {extra}, {entry['cut_stacks']:,} events with cut stacks")
    return found


def measure_soak(events: int, folder: Path) -> Result:
    say(f"{events:,} events of a program; memory and ns per event: beyond the same program without a recording")
    plain = lines_of(worker("soak", folder / "none", "plain", events // 10, BOUND))
    base, pair_ns = plain[-1]["memory"], min(entry["ns_per_event"] for entry in plain[:-1])
    rows = lines_of(worker("soak", folder / "soak.alloctrace", "bounded", events, BOUND))
    for entry in rows:
        entry["recorder_memory"] = entry["memory"] - base
        entry["added_ns_per_event"] = round(entry["ns_per_event"] - pair_ns, 1)
        entry["added_with_threads_ns"] = round(entry["ns_with_threads"] - pair_ns, 1)
    [verdict] = lines_of(worker("verdict", folder / "soak.alloctrace"))
    assert verdict["lost"] == 0, verdict
    assert max(entry["files"] for entry in rows) <= BOUND
    return {"plain_ns_per_event": pair_ns, "plain_memory": base, "rows": rows, "verdict": verdict}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["stacks", "soak", "events"], metavar="stacks|soak|events")
    parser.add_argument("--events", type=int, default=100_000_000, help="of the recorder alone")
    parser.add_argument("--soak-events", type=int, default=50_000_000)
    parser.add_argument("--stacks", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path, help="where the JSON goes; what it has of other parts stays")
    options = parser.parse_args()
    result: Result = json.loads(options.out.read_text()) if options.out and options.out.exists() else {}
    with tempfile.TemporaryDirectory(dir=BUILT.parent) as name:
        folder = Path(name)
        for part in options.parts:
            begun = os.getloadavg()[0]
            if part == "stacks":
                result[part] = {"measured": measure_stacks(options.stacks, folder)}
            elif part == "soak":
                result[part] = measure_soak(options.soak_events, folder)
            elif part == "events":
                result[part] = measure_events(options.events, folder)
            else:
                parser.error(f"there is no part {part!r}")
            about = {"python": sys.version.split()[0], "cores": os.cpu_count(), "machine": platform.machine()}
            result[part] |= {**about, "load_before": round(begun, 1), "max_bytes": BOUND}
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
