"""Instructions and L1 cache misses of an allocation and its free, counted by valgrind.

The counts do not depend on load, and show differences between versions smaller than those between process starts. The
unit is the pair of tools/bench/cuda: in the program alone, with a tracker that does nothing, and with a recording;
each in a separate process, all at the same addresses. valgrind models caches of 64 KiB for code and 32 KiB for data,
and runs one thread at a time. Under valgrind every allocation is slow, and about 160 of the instructions record that.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAIRS = 4_000
PLAIN, TRACKER, NO_STACKS, ALLOCTRACE = "plain", "tracker", "none", "python"
NAMES = {
    PLAIN: "the program alone",
    TRACKER: "a tracker that does nothing",
    NO_STACKS: "alloctrace, stacks='none'",
    ALLOCTRACE: "alloctrace",
}
FIGURES = {
    "Ir": "instructions",
    "I1mr": "misses of code",
    "D1mr": "misses of data read",
    "D1mw": "misses of data written",
}
SWITCH = """
#include <valgrind/callgrind.h>
void begin(void) { CALLGRIND_START_INSTRUMENTATION; CALLGRIND_TOGGLE_COLLECT; }
void end(void) { CALLGRIND_TOGGLE_COLLECT; CALLGRIND_STOP_INSTRUMENTATION; }
"""
MEMORY = "2GiB"
"""Memory of the simulated device: valgrind's address space has no room for a larger device."""


def run_child(variant: str, switch: Path) -> None:
    import torch

    with tempfile.TemporaryDirectory() as folder:
        if variant != PLAIN:
            import pytorch_alloctrace as alloctrace
            from pytorch_alloctrace.recording import object_scans

            object_scans.FREE_SCAN_S = object_scans.MAX_SCAN_SHARE = 0.0
            stacks = "none" if variant == NO_STACKS else "python"
            alloctrace.enable(Path(folder) / "trace.alloctrace", devices=("cuda",), stacks=stacks)
            torch.empty(1000, device="cuda")
            if variant == TRACKER:
                alloctrace.disable()

        def pairs(count: int) -> None:
            empty = torch.empty
            for _ in range(count):
                empty(1000, device="cuda")

        def at_depth(depth: int, count: int) -> None:
            if depth <= 1:
                pairs(count)
            else:
                at_depth(depth - 1, count)

        at_depth(20, 100)
        time.sleep(1)  # else a recording thread that waits for the GIL wakes up repeatedly during the count
        counter = ctypes.CDLL(str(switch))
        counter.begin()
        at_depth(20, PAIRS)
        counter.end()
        if variant in (NO_STACKS, ALLOCTRACE):
            alloctrace.disable()


def count(variant: str, checkout: Path, switch: Path, folder: Path) -> dict[str, float]:
    output = folder / variant
    subprocess.run(
        [
            *(ROOT / "tools" / "simcuda" / "run", "--memory", MEMORY, "setarch", "-R"),
            *("valgrind", "--tool=callgrind", "--instr-atstart=no", "--collect-atstart=no", "--cache-sim=yes"),
            *("--I1=65536,4,64", "--D1=32768,8,64", "--LL=524288,8,64", f"--callgrind-out-file={output}"),
            *(sys.executable, Path(__file__).resolve(), "--child", variant, switch),
        ],
        check=True,
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    text = output.read_text()
    events = re.search(r"^events: (.*)$", text, re.MULTILINE)
    totals = re.search(r"^totals: (.*)$", text, re.MULTILINE)
    assert events and totals
    values = dict(zip(events[1].split(), map(int, totals[1].split()), strict=False))
    return {FIGURES[key]: round(values[key] / PAIRS, 1) for key in FIGURES}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, nargs="?", default=ROOT, help="built in place (default: this one)")
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return run_child(options.child[0], Path(options.child[1]))
    if not shutil.which("valgrind"):
        raise SystemExit("instructions: valgrind is missing: run `apt-get install valgrind`")
    checkout = options.checkout.resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "switch.c").write_text(SWITCH)
        subprocess.run(["cc", "-shared", "-fPIC", "switch.c", "-o", "switch.so"], check=True, cwd=folder)
        result = {name: count(variant, checkout, folder / "switch.so", folder) for variant, name in NAMES.items()}
    for recorder, figures in result.items():
        print(f"{recorder:28} " + ", ".join(f"{value:9,.1f} {figure}" for figure, value in figures.items()))
    if options.out:
        options.out.write_text(json.dumps({"a pair": result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
