"""What tools/bench/replay measures, each in a process of its own: replay_measures.py MEASURE FILE [--key value].

The last line on standard output is JSON: what the measure returns, and what the process took.
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
    """Processor time is that of all threads: it is what a figure per core counts."""
    wall, processor = time.perf_counter(), time.process_time()
    result = action()
    return result, {
        "wall_s": round(time.perf_counter() - wall, 4),
        "cpu_s": round(time.process_time() - processor, 4),
    }


def peak_bytes() -> int:
    """Most resident memory of this process. Not ru_maxrss: that begins with what the parent had at the fork."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


# What is measured of this project. The functions that call the reader are here and nowhere else, to follow its API.


def load(path: Path) -> Any:
    import pytorch_alloctrace as alloctrace

    return alloctrace.load(path)


def timeline(trace: Any) -> Any:
    return trace.timeline(points=2000)


def blocks_at(trace: Any, at: int) -> Any:
    return trace.blocks(at=at)


def decode(path: Path, **_: Any) -> dict[str, Any]:
    """Every event decoded, and nothing made of it."""
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
    """All that `analyze TRACE` shows."""
    trace, loading = timed(lambda: load(path))
    findings, diagnosing = timed(trace.diagnose)
    return {
        "events": trace.integrity.events,
        "load": loading,
        "diagnose": diagnosing,
        "findings": [finding.title for finding in findings],
    }


def events(path: Path, **_: Any) -> dict[str, Any]:
    """The table of all events."""
    trace = load(path)
    table, making = timed(trace.events)
    return {"events": len(table), "make": making, "table_bytes": int(table.memory_usage().sum())}


def prompt(path: Path, count: int, **_: Any) -> dict[str, Any]:
    """The verdict, from the prompt: with the start of the interpreter, imports, and its end."""
    command = [sys.executable, "-m", "pytorch_alloctrace", str(path)]
    taken = [timed(lambda: subprocess.run(command, capture_output=True, check=True))[1]["wall_s"] for _ in range(count)]
    return {"seconds": taken, "median_s": sorted(taken)[count // 2], "least_s": min(taken)}


def moments(path: Path, count: int, **_: Any) -> dict[str, Any]:
    trace = load(path)

    def first() -> None:
        timeline(trace)
        blocks_at(trace, 0)  # what is made once for all positions

    _, first_pass = timed(first)
    chosen = random.Random(1).sample(range(trace.integrity.events), count)
    each, rows = [], []
    for at in chosen:
        table, took = timed(lambda at=at: blocks_at(trace, at))
        each.append(took["wall_s"])
        rows.append(len(table))
    return {
        "events": trace.integrity.events,
        "first_pass": first_pass,
        "seconds": each,
        "median_s": sorted(each)[count // 2],
        "longest_s": max(each),
        "blocks": rows,
    }


def check(path: Path, **_: Any) -> dict[str, Any]:
    import replay_model

    return replay_model.check(load(path))


def export(path: Path, to: str, **_: Any) -> dict[str, Any]:
    from pytorch_alloctrace.report.export.memory_viz import memory_viz

    trace = load(path)._recorded
    exported, took = timed(lambda: memory_viz(trace, None, None, None, None, most_events=trace.integrity.events))
    Path(to).write_bytes(exported)
    events = sum(map(len, pickle.loads(exported)["device_traces"]))
    return {"events": events, "bytes": len(exported), **took}


# What is measured of others: each reads the pickle and does what it has that goes through all events.


def _memory_viz() -> Any:
    """torch/cuda/_memory_viz.py by itself, which needs only the standard library: not to count torch against it."""
    spec = importlib.util.find_spec("torch")
    assert spec and spec.origin, "torch is not installed"
    path = Path(spec.origin).parent / "cuda" / "_memory_viz.py"
    loader = importlib.util.spec_from_file_location("memory_viz", path)
    assert loader and loader.loader
    module = importlib.util.module_from_spec(loader)
    loader.loader.exec_module(module)
    return module


def _unpickle(path: Path) -> Any:
    with open(path, "rb") as file:
        return pickle.load(file)


def torch_trace(path: Path, **_: Any) -> dict[str, Any]:
    """`_memory_viz.py trace`: the one that follows the events in Python; prints them as lines of text."""
    viz = _memory_viz()
    data, loading = timed(lambda: _unpickle(path))
    text, following = timed(lambda: viz.trace(data))
    return {"load": loading, "replay": following, "output_bytes": len(text)}


def torch_plot(path: Path, **_: Any) -> dict[str, Any]:
    """`_memory_viz.py trace_plot`: packs the pickle into a web page, whose JavaScript replays it in the browser."""
    viz = _memory_viz()
    data, loading = timed(lambda: _unpickle(path))
    page, packing = timed(lambda: viz.trace_plot(data))
    return {"load": loading, "pack": packing, "output_bytes": len(page)}


def mosaic(path: Path, folder: str = "", **_: Any) -> dict[str, Any]:
    """The peak with its stacks, what `mosaic_get_memory_usage_peak` does."""
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
    parser.add_argument("--memory", type=int, default=0, help="bytes that this process may take")
    options = parser.parse_args()
    if options.memory:
        resource.setrlimit(resource.RLIMIT_AS, (options.memory, options.memory))
    if options.measure in OWN:
        import pytorch_alloctrace.trace  # noqa: F401  # with numpy and pandas: no part of what reading a trace takes
    arguments = {"to": options.to, "folder": options.folder, "count": options.count}
    result, total = timed(lambda: MEASURES[options.measure](options.file, **arguments))
    print(json.dumps({**result, "total": total, "peak_bytes": peak_bytes()}))


if __name__ == "__main__":
    main()
