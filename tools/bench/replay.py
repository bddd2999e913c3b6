"""Cost of reading a trace of up to 100 million events, compared with other tools on the same events.

Measures decoding, the replay with its timeline, the diagnosis, and single positions. The traces are generated
(replay_trace.cpp): a training run under a model of torch's allocator, a million blocks live at the peak, 50,000 stacks
of 30 frames, 3 streams on each of 2 devices. They are cached in build/bench. Measures run one after the other, in
separate processes; "per core" refers to processor time.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "bench"
CORE = ("base/*", "format/*", "recording/definition_log", "recording/stack_table")
GIB = 1 << 30
MAX_PEER_SECONDS, MAX_PEER_BYTES = 60, 8 * GIB
MIN_PEER_EVENTS, MAX_PEER_EVENTS = 300_000, 4_800_000
"""Range of events for the other tools; with more, the exporter (pure Python) would take too long."""
MEASURE_SECONDS = 900
ORDINARY_EVENTS = 900_000
"""Number of events in a trace of ordinary size."""

Result = dict[str, Any]


def report(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def build_generator() -> Path:
    compiler = [os.environ.get("CXX", "g++"), "-std=c++20", "-O2", "-Wall", "-Wextra", "-Werror"]
    sources = [ROOT / "tools/bench/replay_trace.cpp"]
    sources += [file for name in CORE for file in sorted(ROOT.glob(f"csrc/core/{name}.cpp"))]
    # Hash only the headers included: a change of the reader must not cost another trace of 100 million events.
    rules = subprocess.run([*compiler, "-MM", *map(str, sources)], check=True, capture_output=True, text=True).stdout
    files = {name for name in rules.replace("\\\n", " ").split() if not name.endswith(":")}
    digest = hashlib.sha256(b"".join(Path(name).read_bytes() for name in sorted(files))).hexdigest()[:12]
    program = BUILD / f"replay_trace-{digest}"
    if not program.exists():
        report("compiling the generator")
        BUILD.mkdir(parents=True, exist_ok=True)
        for outdated in BUILD.glob("replay_trace-*"):  # including their traces, which are large
            outdated.unlink()
        unfinished = program.with_suffix(".unfinished")
        subprocess.run([*compiler, *map(str, sources), "-o", str(unfinished), "-lpthread"], check=True)
        unfinished.rename(program)
    return program


def make_trace(generator: Path, events: int) -> tuple[Path, Result]:
    """Return a trace of this many events and the generator's summary; generated once per generator."""
    # The generator's name contains the digest of its sources, so traces of another generator are never reused.
    path = BUILD / f"{generator.name}-{events}.alloctrace"
    summary = path.with_suffix(".json")
    if not summary.exists() or not path.exists():
        report(f"generating a trace of {events:,} events")
        command = [str(generator), "--out", str(path), "--events", str(events)]
        result = subprocess.run(command, check=True, capture_output=True, text=True)
        summary.write_text(result.stdout)
    return path, json.loads(summary.read_text())


def measure(name: str, path: Path, *, seconds: float = MEASURE_SECONDS, memory: int = 0, **options: Any) -> Result:
    """Run a measure of replay_measures.py; return its result, or {"failed": reason}."""
    command = [sys.executable, str(ROOT / "tools/bench/replay_measures.py"), name, str(path)]
    for option, value in {**options, **({"memory": memory} if memory else {})}.items():
        command += [f"--{option}", str(value)]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return {"failed": f"took more than {seconds:.0f} s"}
    if process.returncode != 0:
        lines = process.stderr.strip().splitlines()
        reason = lines[-1] if lines else f"ended with {process.returncode}"
        return {"failed": f"needs more than {memory / GIB:.0f} GiB" if "MemoryError" in reason else reason}
    result: Result = json.loads(process.stdout.splitlines()[-1])
    return result


def with_rate(result: Result, part: str) -> Result:
    if part in result:
        result["events_per_cpu_second"] = round(result["events"] / max(result[part]["cpu_s"], 1e-9))
    return result


def peers(generator: Path, mosaic_folder: str, first: int, last: int) -> list[Result]:
    """Measure the other tools on the same events: from `first`, doubled until a tool exceeds its limits."""
    tools = {
        "torch _memory_viz trace": ("torch_trace", {}),
        "torch _memory_viz trace_plot (packs only)": ("torch_plot", {}),
        "mosaic peak": ("mosaic", {"folder": mosaic_folder}),
    }
    rows = []
    if mosaic_folder == "" and not _has_mosaic():
        del tools["mosaic peak"]
        rows.append({
            "tool": "mosaic peak",
            "failed": "not installed, and not on PyPI (the `mosaic` there is another project): clone "
            "facebookresearch/mosaic, give its folder with --mosaic",
        })  # fmt: skip
    events = first
    while tools and events <= last:
        trace, _ = make_trace(generator, events)
        pickled = trace.with_suffix(".pickle")
        exported = measure("export", trace, to=pickled)
        if "failed" in exported:
            rows.append({"tool": "export", "events": events, **exported})
            break
        rows.append({"tool": "pytorch_alloctrace timeline", **with_rate(measure("replay", trace), "timeline")})
        for tool, (name, options) in list(tools.items()):
            report(f"{tool}, {events:,} events")
            result = measure(name, pickled, seconds=MAX_PEER_SECONDS, memory=MAX_PEER_BYTES, **options)
            rows.append({"tool": tool, "events": exported["events"], "pickle_bytes": exported["bytes"], **result})
            if "failed" in result:
                del tools[tool]
        pickled.unlink()
        events *= 2
    return rows


def _has_mosaic() -> bool:
    probe = "import mosaic.libmosaic"
    return subprocess.run([sys.executable, "-c", probe], capture_output=True, check=False).returncode == 0


def row(name: str, result: Result, part: str = "total") -> str:
    if "failed" in result or "unavailable" in result:
        events = f"{result['events']:12,} events " if "events" in result else ""
        return f"{name:44} {events}{result.get('failed') or result.get('unavailable')}"
    times = result[part]
    events = result.get("events", 0)
    return (
        f"{name:44} {events:12,} events {times['wall_s']:9.2f} s  {times['cpu_s']:9.2f} s cpu "
        f"{events / max(times['cpu_s'], 1e-9) / 1e6:8.2f} M/s/core {result['peak_bytes'] / (1 << 20):9,.0f} MiB"
    )


def table(result: Result) -> str:
    lines = [f"{'':44} {'':19} {'wall':>11}  {'processor':>15} {'events':>17} {'peak memory':>13}"]
    for key in ("middle", "large"):
        part = result[key]
        lines.append(f"-- {part['made']['events']:,} events, {part['made']['live_peak']:,} blocks live at the peak")
        lines.append(row("decode (after load)", part["decode"], "decode"))
        lines.append(row("  load", part["decode"], "load"))
        lines.append(row("timeline of 2000 points (after load)", part["replay"], "timeline"))
        if verify := part["replay"].get("verify"):
            lines.append(
                f"  ({verify['agreeing']} of {verify['states']} allocator states in the trace agree with the replay; "
                f"{verify['contradictions']} contradictions)"
            )
        lines.append(row("diagnosis (after load)", part["diagnosis"], "diagnose"))
        positions = part["moments"]
        if "median_s" in positions:
            lines.append(
                f"{'a random position, after the first pass':44} {positions['events']:12,} events: median "
                f"{positions['median_s']:.2f} s, longest {positions['longest_s']:.2f} s of {len(positions['seconds'])} "
                f"{positions['peak_bytes'] / (1 << 20):,.0f} MiB"
            )
        else:
            lines.append(row("a random position, after the first pass", positions))
    lines.append(row("table of all events", result["middle"]["events"], "make"))
    ordinary = result["ordinary"]
    if "median_s" in ordinary["prompt"]:
        lines.append(
            f"{'the verdict, from the prompt':44} {ordinary['made']['events']:12,} events: median "
            f"{ordinary['prompt']['median_s']:.2f} s, minimum {ordinary['prompt']['least_s']:.2f} s"
        )
    else:
        lines.append(row("the verdict, from the prompt", ordinary["prompt"]))
    lines.append("-- the same events in other tools (loading and replaying the pickle, complete process)")
    lines += [
        row(peer["tool"], peer, "load_and_timeline" if "timeline" in peer else "total") for peer in result["peers"]
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where the JSON goes (default: standard output's last line)")
    parser.add_argument("--events", type=int, help="events of the large trace (100,000,000; with --quick 2,000,000)")
    parser.add_argument("--quick", action="store_true", help="smaller traces, for a rough result")
    parser.add_argument("--mosaic", default="", help="folder with a clone of facebookresearch/mosaic")
    parser.add_argument("--no-peers", action="store_true", help="do not run the other tools")
    options = parser.parse_args()
    large = options.events or (2_000_000 if options.quick else 100_000_000)
    middle = min(1_000_000 if options.quick else 10_000_000, large)

    generator = build_generator()
    small, _ = make_trace(generator, 100_000)
    result: Result = {
        "machine": {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()},
        "python": platform.python_version(),
        "load_average": os.getloadavg()[0],
        "check": measure("check", small),
    }
    if "failed" in result["check"]:
        raise SystemExit(f"the generated traces are wrong: {result['check']['failed']}")
    for key, events in (("middle", middle), ("large", large)):
        path, summary = make_trace(generator, events)
        report(f"measuring {path.name}")
        result[key] = {
            "made": summary,
            "decode": with_rate(measure("decode", path), "decode"),
            "replay": with_rate(measure("replay", path), "timeline"),
            "diagnosis": measure("diagnosis", path),
        }
        # Fewer positions in the large trace, where the nearest checkpoint may be far away.
        result[key]["moments"] = measure("moments", path, count=20 if key == "middle" else 5)
    result["middle"]["events"] = measure("events", make_trace(generator, middle)[0])
    ordinary, summary = make_trace(generator, min(ORDINARY_EVENTS, large))
    result["ordinary"] = {"made": summary, "prompt": measure("prompt", ordinary, count=11)}
    limits = (100_000, 200_000) if options.quick else (MIN_PEER_EVENTS, MAX_PEER_EVENTS)
    result["peers"] = [] if options.no_peers else peers(generator, options.mosaic, *limits)
    report(table(result))
    text = json.dumps(result, indent=1)
    if options.out:
        options.out.write_text(text + "\n")
    else:
        print(text)


if __name__ == "__main__":
    main()
