"""Cost of the CUDA allocator's hook with several threads and devices, a slow device, and new stacks.

Compares with the plain program and torch's own history, in separate processes that take turns. The threads are native:
because of the GIL, Python threads would allocate one at a time.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from record import build_native
from torch import nn

from pytorch_alloctrace.cost import ALLOCTRACE, HISTORY, PLAIN

THREADS, DEVICES = (1, 2, 4, 8), (1, 2)
PAIRS = 100_000
"""Number of pairs of all threads together."""
DEVICE_TIMES = (0.0, 0.9, 1.1, 1.3, 2.0)
"""Device times of a training step, in multiples of the unrecorded program's launch time."""
STEPS = 20
WAYS, LEVELS = 16, 5
"""Branches per call and depth of the call tree: a million paths."""
TREE = "\n".join(
    ["def way(depth, number):", "    if depth == 0: torch.empty(9, device='cuda'); return"]
    + [f"    if number % {WAYS} == {way}: return way(depth - 1, number // {WAYS})" for way in range(WAYS)]
)


def measure_threads(library: Path) -> dict[str, float]:
    """Return nanoseconds per pair by "threads on devices": the elapsed time divided by the pairs of one thread."""
    native = ctypes.CDLL(str(library))
    total = ctypes.c_double()
    pair_ns = {}
    for devices in DEVICES:
        for count in THREADS:
            blocks = PAIRS // count
            for _ in range(3):  # the minimum of three
                native.allocate_on_devices(count, devices, blocks, ctypes.byref(total))
                name = f"{count} on {devices}"
                pair_ns[name] = min(pair_ns.get(name, float("inf")), total.value / blocks)
    return pair_ns


def measure_steps(launch: float) -> dict[str, float]:
    """Return seconds per training step, by device time in multiples of `launch` (seconds)."""
    simulated = ctypes.CDLL(None)
    layer = nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True)
    model = nn.TransformerEncoder(layer, 8, enable_nested_tensor=False).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(8, 64, 256, device="cuda")
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)

    def step(device_time: float) -> float:
        begin = time.perf_counter()
        simulated.simcuda_hold_stream(stream)
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        while time.perf_counter() - begin < device_time:
            time.sleep(0.0002)
        simulated.simcuda_release_stream(stream)
        torch.cuda.synchronize()
        return time.perf_counter() - begin

    def median(device_time: float) -> float:
        return statistics.median(step(device_time) for _ in range(STEPS))

    median(0.0)
    return {f"{multiple:g}": median(multiple * launch) for multiple in DEVICE_TIMES}


def measure_new_stacks() -> float:
    """Return nanoseconds per pair when each pair has a new stack."""
    namespace: dict[str, Any] = {"torch": torch}
    exec(compile(TREE, "tree.py", "exec"), namespace)
    way = namespace["way"]
    torch.empty(9, device="cuda")
    begin = time.perf_counter()
    for number in range(WAYS**LEVELS):
        way(LEVELS, number)
    return (time.perf_counter() - begin) / WAYS**LEVELS * 1e9


def run_child(name: str, measure: str, library: Path, launch: float) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        if name == ALLOCTRACE:
            import pytorch_alloctrace as alloctrace
            from pytorch_alloctrace.recording import object_scans

            # Object scans may take 0.2 s of any recording, too large a part of a measurement of less than a second.
            object_scans.FREE_SCAN_S = object_scans.MAX_SCAN_SHARE = 0.0
            alloctrace.enable(Path(folder) / "trace.alloctrace", devices=("cuda",))
        elif name == HISTORY:
            torch.cuda.memory._record_memory_history(context="all", stacks="python", max_entries=100_000)
        torch.empty(1, device="cuda")  # one-time work is not measured
        measures = {"threads": lambda: measure_threads(library), "steps": lambda: measure_steps(launch)}
        result: Any = measures.get(measure, measure_new_stacks)()
        if name == ALLOCTRACE:
            alloctrace.disable()
        print(json.dumps(result))


def run(name: str, measure: str, library: Path, launch: float = 0.0) -> Any:
    command = [sys.executable, __file__, "--child", name, measure, str(library), str(launch)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1])


def minimum_of(rows: list[dict[str, float]]) -> dict[str, float]:
    return {key: min(row[key] for row in rows) for key in rows[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where the JSON goes (default: standard output)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        name, measure, library, launch = options.child
        return run_child(name, measure, Path(library), float(launch))
    names = (PLAIN, ALLOCTRACE, HISTORY)
    rows: dict[str, dict[str, list[Any]]] = {name: {"threads": [], "steps": [], "stacks": []} for name in names}
    with tempfile.TemporaryDirectory() as folder:
        library = build_native(Path(folder))
        launch = min(run(PLAIN, "steps", library).values())  # there is no device yet
        for _ in range(options.rounds):
            for name in names:
                rows[name]["threads"].append(run(name, "threads", library))
                rows[name]["steps"].append(run(name, "steps", library, launch))
                rows[name]["stacks"].append(run(name, "stacks", library))
    result = {
        "device": torch.cuda.get_device_name(0),
        "torch": torch.__version__,
        "pairs_ns": {name: minimum_of(row["threads"]) for name, row in rows.items()},
        "launch_s": launch,
        "steps_s": {name: minimum_of(row["steps"]) for name, row in rows.items()},
        "new_stacks_ns": {name: min(row["stacks"]) for name, row in rows.items()},
    }
    text = json.dumps(result, indent=1)
    if options.out:
        options.out.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
