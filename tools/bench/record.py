"""Cost of recording, compared with the plain program and with other memory tools, in one run.

The unit is the pair: one `torch.empty(1000)` allocated and freed, 20 Python frames deep. Variants alternate from round
to round, so a machine that slows down slows all of them; the time that a variant adds is the difference to the adjacent
plain round.

Each round of ours is a separate recording of 50 ms. Object scans may take 0.2 seconds of any recording
(recording/object_scans.py) and would dominate, so they are off here; tools/bench/holders measures them.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.recording import object_scans

DEPTH = 20
Make = Callable[[], AbstractContextManager[Any]]


class Cost(NamedTuple):
    """Nanoseconds per pair."""

    wall: float
    own_cpu: float
    """Processor time of the thread that allocates."""
    other_cpu: float
    """Processor time of all other threads of the process, mainly writers."""


def pairs(count: int) -> Cost:
    empty = torch.empty
    wall, own, process = time.perf_counter(), time.thread_time(), time.process_time()
    for _ in range(count):
        empty(1000)
    own, process = time.thread_time() - own, time.process_time() - process
    wall = time.perf_counter() - wall
    return Cost(wall / count * 1e9, own / count * 1e9, (process - own) / count * 1e9)


def at_depth(depth: int, count: int) -> Cost:
    return pairs(count) if depth <= 1 else at_depth(depth - 1, count)


def memray_tracker(path: Path) -> AbstractContextManager[Any] | None:
    try:
        import memray
    except ImportError:
        return None
    return memray.Tracker(path, native_traces=False)  # type: ignore[no-any-return]


def torch_profiler() -> AbstractContextManager[Any]:
    from torch.profiler import ProfilerActivity, profile

    return profile(activities=[ProfilerActivity.CPU], profile_memory=True, with_stack=True)


def compare(folder: Path, rounds: int, count: int) -> dict[str, Any]:
    """Return the median added ns per pair of each variant."""
    numbers = iter(range(10**9))
    variants: dict[str, tuple[Make, int]] = {
        "plain": (nullcontext, count),
        "alloctrace": (lambda: alloctrace.enable(folder / f"{next(numbers)}.alloctrace"), count),
        "alloctrace, stacks='none'": (
            lambda: alloctrace.enable(folder / f"{next(numbers)}.alloctrace", stacks="none"),
            count,
        ),
        "torch.profiler": (torch_profiler, count // 20),
    }
    if memray_tracker(folder / "probe.bin") is not None:
        variants["memray"] = (lambda: memray_tracker(folder / f"{next(numbers)}.bin") or nullcontext(), count // 4)
    at_depth(DEPTH, count)
    costs: dict[str, list[Cost]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, (make, variant_pairs) in variants.items():
            gc.collect()
            with make():
                at_depth(DEPTH, 1000)  # one-time work (new stacks, first files) is not a cost per pair
                costs[name].append(at_depth(DEPTH, variant_pairs))
    baseline = costs["plain"]

    def added(values: list[Cost], field: str) -> float:
        differences = (
            getattr(value, field) - getattr(base, field) for value, base in zip(values, baseline, strict=True)
        )
        return round(statistics.median(differences), 1)

    return {
        name: {
            "ns_per_pair": round(statistics.median(value.wall for value in values), 1),
            "added_ns_per_pair": added(values, "wall"),
            "added_own_cpu_ns": added(values, "own_cpu"),
            "added_other_cpu_ns": added(values, "other_cpu"),
            "rounds_ns": [round(value.wall, 1) for value in values],
        }
        for name, values in costs.items()
    }


def measure_depths(folder: Path, rounds: int, count: int) -> dict[str, float]:
    """Return the processor ns per pair added to the allocating thread, by depth: the slope is the frame walk."""
    added: dict[str, list[float]] = {}
    for number in range(rounds):
        for depth in (1, 20, 60):
            baseline = at_depth(depth, count).own_cpu
            for stacks in ("none", "python"):
                with alloctrace.enable(folder / f"depth-{number}-{depth}-{stacks}.alloctrace", stacks=stacks):
                    at_depth(depth, 1000)
                    added.setdefault(f"depth {depth}, stacks={stacks}", []).append(
                        at_depth(depth, count).own_cpu - baseline
                    )
    return {name: round(statistics.median(values), 1) for name, values in added.items()}


def measure_training(folder: Path) -> dict[str, Any]:
    """Measure a real training run on one thread: a small transformer with AdamW."""
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # spinning pool threads would count as the recorder's processor time
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    model = torch.nn.Sequential(
        torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.nn.Linear(64, 8)
    )
    optimizer = torch.optim.AdamW(model.parameters())
    path = folder / "training.alloctrace"

    def train(steps: int) -> float:
        begin = time.process_time()
        for _ in range(steps):
            loss = model(torch.randn(4, 16, 64)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return time.process_time() - begin

    train(20)
    baseline, traced = [], []
    for _ in range(30):
        baseline.append(train(20))
        with alloctrace.enable(path, overwrite=True):
            train(10)
            traced.append(train(20))
            train(100)
    # Lower quartiles: other load slows blocks of steps by more than the difference to measure.
    added = 100 * (statistics.quantiles(traced)[0] / statistics.quantiles(baseline)[0] - 1)
    torch.set_num_threads(threads)
    trace = alloctrace.load(path)
    file_bytes = path.stat().st_size
    return {
        "events": trace.integrity.events,
        "lost": trace.integrity.lost,
        "file_bytes": file_bytes,
        "bytes_per_event": round(file_bytes / trace.integrity.events, 2),
        "events_per_step": round(trace.integrity.events / 130),
        "added_processor_percent": round(added, 1),
    }


def build_native(folder: Path) -> Path:
    torch_folder = Path(torch.__file__).parent
    library = folder / "native_threads.so"
    command = [
        "g++",
        "-std=c++20",
        "-O2",
        "-shared",
        "-fPIC",
        str(Path(__file__).with_name("native_threads.cpp")),
        "-o",
        str(library),
    ]
    command += [f"-I{torch_folder}/include", f"-L{torch_folder}/lib", "-lc10", f"-Wl,-rpath,{torch_folder}/lib"]
    subprocess.run(command, check=True)
    return library


def measure_gil(folder: Path) -> dict[str, Any]:
    """Measure threads that allocate while another holds the GIL in a C call: a hook that needed the GIL would hang."""
    library = build_native(folder)
    gil_held, gil_free = ctypes.PyDLL(str(library)), ctypes.CDLL(str(library))
    for calls in (gil_held, gil_free):
        calls.allocate_in_threads.restype = ctypes.c_double
    blocks = 300_000
    total = ctypes.c_double()
    result: dict[str, Any] = {"blocks": blocks}
    for name, calls, traced in (
        ("plain, GIL free", gil_free, False),
        ("plain, GIL held", gil_held, False),
        ("traced, GIL free", gil_free, True),
        ("traced, GIL held", gil_held, True),
    ):
        with alloctrace.enable(folder / f"{name}.alloctrace") if traced else nullcontext():
            longest = calls.allocate_in_threads(1, blocks, ctypes.byref(total))
        result[name] = {"ns_per_pair": round(total.value / blocks, 1), "longest_us": round(longest / 1000, 1)}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where the JSON goes (default: standard output's last line)")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, for a rough result")
    options = parser.parse_args()
    rounds, count = (3, 20_000) if options.quick else (40, 50_000)
    object_scans.FREE_SCAN_S = object_scans.MAX_SCAN_SHARE = 0.0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        result = {
            "machine": {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()},
            "python": platform.python_version(),
            "torch": torch.__version__,
            "pair": f"torch.empty(1000) made and freed, {DEPTH} Python frames deep",
            "compare": compare(folder, rounds, count),
            "where_the_time_goes": measure_depths(folder, rounds, count),
            "training": measure_training(folder),
            "gil": measure_gil(folder),
        }
    for variant, numbers in result["compare"].items():
        print(
            f"{variant:28} {numbers['ns_per_pair']:8,.0f} ns a pair, added {numbers['added_ns_per_pair']:8,.0f} "
            f"(processor: own thread {numbers['added_own_cpu_ns']:,.0f}, others {numbers['added_other_cpu_ns']:,.0f})",
            file=sys.stderr,
        )
    for name, added in result["where_the_time_goes"].items():
        print(f"{name:28} added {added:10,.0f} ns a pair", file=sys.stderr)
    print(f"training: {result['training']}\nGIL: {result['gil']}", file=sys.stderr)
    text = json.dumps(result, indent=1)
    if options.out:
        options.out.write_text(text + "\n")
    else:
        print(text)


if __name__ == "__main__":
    main()
