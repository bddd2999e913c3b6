"""How many instructions an allocation and its free are, and how many misses of the nearest caches they cost: counted by
valgrind, the same in each run, whatever else the machine does. Where starts of a process differ by more than versions
of the hook, this tells whether a change is one.

The unit is the pair of tools/bench/cuda: in the program alone, with a tracker that does nothing, and with a recording;
each in a process of its own, all at the same addresses. valgrind models caches of 64 KiB for code and 32 KiB for data,
and runs one thread at a time. Under it every allocation is a slow one, and about 160 of the instructions record that.
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

HERE = Path(__file__).resolve().parents[2]
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
"""Of the simulated device: valgrind has no room for the addresses of a large one."""


def work(what: str, switch: Path) -> None:
    import torch

    with tempfile.TemporaryDirectory() as folder:
        if what != PLAIN:
            import pytorch_alloctrace as alloctrace
            from pytorch_alloctrace.recording import object_scans as looks

            looks.FREE_SCAN_S = looks.MAX_SCAN_SHARE = 0.0
            stacks = "none" if what == NO_STACKS else "python"
            alloctrace.enable(Path(folder) / "trace.alloctrace", devices=("cuda",), stacks=stacks)
            torch.empty(1000, device="cuda")
            if what == TRACKER:
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
        time.sleep(1)  # else a thread of the recording waits for the GIL, and is woken, all the time that is counted
        counting = ctypes.CDLL(str(switch))
        counting.begin()
        at_depth(20, PAIRS)
        counting.end()
        if what in (NO_STACKS, ALLOCTRACE):
            alloctrace.disable()


def count(what: str, checkout: Path, switch: Path, folder: Path) -> dict[str, float]:
    found = folder / what
    subprocess.run(
        [
            *(HERE / "tools" / "simcuda" / "run", "--memory", MEMORY, "setarch", "-R"),
            *("valgrind", "--tool=callgrind", "--instr-atstart=no", "--collect-atstart=no", "--cache-sim=yes"),
            *("--I1=65536,4,64", "--D1=32768,8,64", "--LL=524288,8,64", f"--callgrind-out-file={found}"),
            *(sys.executable, Path(__file__).resolve(), "--work", what, switch),
        ],
        check=True,
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    text = found.read_text()
    events = re.search(r"^events: (.*)$", text, re.MULTILINE)
    totals = re.search(r"^totals: (.*)$", text, re.MULTILINE)
    assert events and totals
    values = dict(zip(events[1].split(), map(int, totals[1].split()), strict=False))
    return {FIGURES[key]: round(values[key] / PAIRS, 1) for key in FIGURES}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, nargs="?", default=HERE, help="built in place (default: this one)")
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    parser.add_argument("--work", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        return work(options.work[0], Path(options.work[1]))
    if not shutil.which("valgrind"):
        raise SystemExit("instructions: valgrind is missing: run `apt-get install valgrind`")
    checkout = options.checkout.resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "switch.c").write_text(SWITCH)
        subprocess.run(["cc", "-shared", "-fPIC", "switch.c", "-o", "switch.so"], check=True, cwd=folder)
        result = {NAMES[what]: count(what, checkout, folder / "switch.so", folder) for what in NAMES}
    for recorder, figures in result.items():
        print(f"{recorder:28} " + ", ".join(f"{value:9,.1f} {figure}" for figure, value in figures.items()))
    if options.out:
        options.out.write_text(json.dumps({"a pair": result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
