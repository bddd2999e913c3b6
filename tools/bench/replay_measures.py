"""Measures of tools/bench/replay, each run in a separate process: replay_measures.py MEASURE FILE [--key value].

The last line on standard output is JSON: the result of the measure, and the time and peak memory of the process.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import pickle
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def timed(action: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """Run an action; return its result, and its wall and processor seconds (of all threads)."""
    wall, processor = time.perf_counter(), time.process_time()
    result = action()
    return result, {
        "wall_s": round(time.perf_counter() - wall, 4),
        "cpu_s": round(time.process_time() - processor, 4),
    }


def peak_bytes() -> int:
    """Return the peak resident memory of this process. ru_maxrss would include the parent's memory at the fork."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


# Measures of this project. Only the functions here call the reader.


def load(path: Path) -> Any:
    import pytorch_alloctrace as alloctrace

    return alloctrace.load(path)


def timeline(trace: Any) -> Any:
    return trace.timeline(points=2000)


def blocks_at(trace: Any, at: int) -> Any:
    return trace.blocks(at=at)


def decode(path: Path, **_: Any) -> dict[str, Any]:
    """Decode every event, without a replay."""
    trace, loading = timed(lambda: load(path))
    loaded = peak_bytes()
    _, counting = timed(lambda: list(trace.events(kinds=("lost",), chunk=1_000_000)))
    return {"events": trace.integrity.events, "load": loading, "decode": counting, "loaded_bytes": loaded}


def replay(path: Path, **_: Any) -> dict[str, Any]:
    trace, loading = timed(lambda: load(path))
    table, replaying = timed(lambda: timeline(trace))
    result = {"events": trace.integrity.events, "load": loading, "timeline": replaying, "columns": list(table.columns)}
    result["load_and_timeline"] = {part: round(loading[part] + replaying[part], 4) for part in loading}
    result["timeline_peak_bytes"] = peak_bytes()
    verified = trace.verify()
    result["verify"] = {
        name: getattr(verified, name) for name in ("states", "agreeing", "contradictions", "after_loss")
    }
    return result


def diagnosis(path: Path, **_: Any) -> dict[str, Any]:
    """Compute everything that `analyze TRACE` shows."""
    trace, loading = timed(lambda: load(path))
    findings, diagnosing = timed(trace.diagnose)
    return {
        "events": trace.integrity.events,
        "load": loading,
        "diagnose": diagnosing,
        "findings": [finding.title for finding in findings],
    }


def events(path: Path, **_: Any) -> dict[str, Any]:
    """Build the table of all events."""
    trace = load(path)
    table, making = timed(trace.events)
    return {"events": len(table), "make": making, "table_bytes": int(table.memory_usage().sum())}


def prompt(path: Path, count: int, **_: Any) -> dict[str, Any]:
    """Run the command that prints the verdict, including interpreter start, imports and exit."""
    command = [sys.executable, "-m", "pytorch_alloctrace", str(path)]
    times = [timed(lambda: subprocess.run(command, capture_output=True, check=True))[1]["wall_s"] for _ in range(count)]
    return {"seconds": times, "median_s": sorted(times)[count // 2], "least_s": min(times)}


def moments(path: Path, count: int, **_: Any) -> dict[str, Any]:
    trace = load(path)

    def run_first_pass() -> None:
        timeline(trace)
        blocks_at(trace, 0)  # builds what all positions share

    _, first_pass = timed(run_first_pass)
    positions = random.Random(1).sample(range(trace.integrity.events), count)
    seconds, block_counts = [], []
    for at in positions:
        table, times = timed(lambda at=at: blocks_at(trace, at))
        seconds.append(times["wall_s"])
        block_counts.append(len(table))
    return {
        "events": trace.integrity.events,
        "first_pass": first_pass,
        "seconds": seconds,
        "median_s": sorted(seconds)[count // 2],
        "longest_s": max(seconds),
        "blocks": block_counts,
    }


def check(path: Path, **_: Any) -> dict[str, Any]:
    import replay_model

    return replay_model.check(load(path))


def export(path: Path, to: str, **_: Any) -> dict[str, Any]:
    from pytorch_alloctrace.report.export.memory_viz import memory_viz

    trace = load(path)._recorded
    exported, times = timed(lambda: memory_viz(trace, None, None, None, None, most_events=trace.integrity.events))
    Path(to).write_bytes(exported)
    events = sum(map(len, pickle.loads(exported)["device_traces"]))
    return {"events": events, "bytes": len(exported), **times}


# Measures of other tools: each loads the pickle and runs the tool's function that iterates over all events.


def _memory_viz() -> Any:
    """Import torch/cuda/_memory_viz.py by path, so that the time to import torch is not counted."""
    spec = importlib.util.find_spec("torch")
    assert spec and spec.origin, "torch is not installed"
    path = Path(spec.origin).parent / "cuda" / "_memory_viz.py"
    loader = importlib.util.spec_from_file_location("memory_viz", path)
    assert loader and loader.loader
    module = importlib.util.module_from_spec(loader)
    loader.loader.exec_module(module)
    return module


def _unpickle(path: Path) -> Any:
    with path.open("rb") as file:
        return pickle.load(file)


def torch_trace(path: Path, **_: Any) -> dict[str, Any]:
    """Run `_memory_viz.py trace`, which replays the events in Python and prints them as lines of text."""
    viz = _memory_viz()
    data, loading = timed(lambda: _unpickle(path))
    text, following = timed(lambda: viz.trace(data))
    return {"load": loading, "replay": following, "output_bytes": len(text)}


def torch_plot(path: Path, **_: Any) -> dict[str, Any]:
    """Run `_memory_viz.py trace_plot`, which packs the pickle into a web page, whose JavaScript does the replay."""
    viz = _memory_viz()
    data, loading = timed(lambda: _unpickle(path))
    page, packing = timed(lambda: viz.trace_plot(data))
    return {"load": loading, "pack": packing, "output_bytes": len(page)}


def mosaic(path: Path, folder: str = "", **_: Any) -> dict[str, Any]:
    """Compute the peak with its stacks, as `mosaic_get_memory_usage_peak` does."""
    if folder:
        sys.path.insert(0, folder)
    from mosaic.libmosaic.analyzer.memory_abstract import MemoryAbstract  # type: ignore[import-not-found]

    abstract = MemoryAbstract(memory_snapshot_file=str(path))
    _, loading = timed(abstract.load_memory_snapshot)
    _, following = timed(lambda: abstract.memory_snapshot.analyze_memory_snapshot("memory_peak"))
    return {"load": loading, "replay": following, "peak": abstract.memory_snapshot.memory_peak}


OWN = ("decode", "replay", "diagnosis", "events", "moments", "check", "export")
MEASURES: dict[str, Callable[..., dict[str, Any]]] = {
    measure.__name__: measure
    for measure in (decode, replay, diagnosis, events, prompt, moments, check, export, torch_trace, torch_plot, mosaic)
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("measure", choices=MEASURES)
    parser.add_argument("file", type=Path)
    parser.add_argument("--to", default="")
    parser.add_argument("--folder", default="")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--memory", type=int, default=0, help="limit on the address space in bytes")
    options = parser.parse_args()
    if options.memory:
        resource.setrlimit(resource.RLIMIT_AS, (options.memory, options.memory))
    if options.measure in OWN:
        import pytorch_alloctrace.trace  # noqa: F401  # imports numpy and pandas outside the measured time
    arguments = {"to": options.to, "folder": options.folder, "count": options.count}
    result, total = timed(lambda: MEASURES[options.measure](options.file, **arguments))
    print(json.dumps({**result, "total": total, "peak_bytes": peak_bytes()}))


if __name__ == "__main__":
    main()
