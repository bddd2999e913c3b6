"""What is advised where a program runs out of memory, before and after there was a model of torch's allocator, and
whether the program, run again with that, gets what it was refused. All on the simulated device. Prints a table as
Markdown has it; --out writes JSON.

The programs: those of tests/support/oom_programs.py; one of the examples; some of what_if_programs.py on devices that
are too small for them under torch's defaults, and some of these for any setting. Settings are set, and the program runs
as it is. Where no setting is advised, it runs as changed by the advice (oom_advised_programs.py). Of programs that run
out of memory many times, the first is run again: what comes after it would be another run.

A program that gets what it was refused may still be refused something later, of which the first trace has nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace._replay import LEAST_SPLIT_SIZE
from pytorch_alloctrace.analysis.advice import Advice, Advisor
from pytorch_alloctrace.analysis.free_memory.allocator import MIB
from pytorch_alloctrace.analysis.free_memory.oom import FRAGMENTED, OutOfMemory
from pytorch_alloctrace.report.oom import sentences
from pytorch_alloctrace.report.site_names import SiteNames

ROOT = Path(__file__).resolve().parents[2]
SUPPORT = ROOT / "tests/support"
CASES = (
    *("full_by_activations", "full_by_weights", "full_by_a_leak", "fragmented", "fragmented_with_max_split_size"),
    *("cache_in_a_private_pool", "cache_in_a_pool_that_is_held", "cache_of_a_graph"),
    *("cache_outside_of_the_pool_in_use", "cache_of_another_stream", "another_process", "outside_of_pytorch"),
    *("memory_fraction", "memory_fraction_set_late", "fragmented_below_a_memory_fraction", "larger_than_the_device"),
    *("expandable_full", "caught_and_recovered", "one_of_two_devices", "in_backward", "nearly_full"),
)
ON_SMALL_DEVICES = (
    *(("server", 7420), ("server", 6600), ("buffers", 3200), ("buffers", 2900), ("buffers", 2750)),
    *(("generation", 990), ("lengths", 640), ("lengths", 630)),
)
RANDOM = ("random_sizes", "random_sizes_expandable")


@dataclass(frozen=True)
class Program:
    """A program that can be run in a folder."""

    name: str
    command: tuple[str, ...]
    """With the trace's path, or its folder, as its last argument."""
    memory: str
    variants: bool = False
    """One of oom_programs.py, of which there is an advised form too."""


def simulated(memory: str, devices: int = 1) -> list[str]:
    return [str(ROOT / "tools/simcuda/run"), "--memory", memory, "--devices", str(devices), sys.executable]


def record(program: Program, folder: Path, setting: str = "") -> alloctrace.Trace:
    """Runs it, under a setting; it may die of what this is about."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if program.variants:
        return record_case(program.name, folder, setting)
    if setting:
        environment["PYTORCH_ALLOC_CONF"] = setting
    trace = folder / "run.alloctrace"
    trace.unlink(missing_ok=True)
    command = [*simulated(program.memory), *program.command, str(trace)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode and "OutOfMemoryError" not in done.stderr:
        raise RuntimeError(done.stderr)
    return alloctrace.load(trace)


def record_case(case: str, folder: Path, setting: str = "", *, advised: bool = False) -> alloctrace.Trace:
    """One of oom_programs.py: as it is, under a setting, or as advised."""
    (folder / "extra").write_text("0")
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "SIMCUDA_OTHER_PROCESSES": "4711:5GiB@1",
        "SIMCUDA_NVML_EXTRA": str(folder / "extra"),
    }
    program = "oom_advised_programs.py" if advised or setting else "oom_programs.py"
    name = f"{case}={setting}" if setting else case
    command = [*simulated("8GiB", 3), str(SUPPORT / program), str(folder), name]
    subprocess.run(command, env=environment, check=True, stdin=subprocess.DEVNULL)
    return alloctrace.load(folder / f"{name}.alloctrace")


PROGRAMS = (
    *(Program(case, (), "", variants=True) for case in (*CASES, *RANDOM)),
    Program("examples/fragmented", (str(ROOT / "examples/fragmented.py"),), "8GiB"),
    *(
        Program(f"{name} on {memory:,} MiB", (str(SUPPORT / "what_if_programs.py"), name), f"{memory}MiB")
        for name, memory in ON_SMALL_DEVICES
    ),
)


def advised_before(found: OutOfMemory) -> tuple[str, ...]:
    """What was advised without a model: expandable segments wherever they were off, and a limit of splitting above what
    pins the most, if at least half of what is stranded lies in larger segments.
    """
    if found.verdict != FRAGMENTED or found.settings.expandable_segments:
        return ()
    settings = ["expandable_segments:True"]
    pinners, lines = found.here.pinners, found.here.pinners_by_line
    if len(lines):
        split = max(-(-int(lines["largest_bytes"][0]) // MIB), LEAST_SPLIT_SIZE // MIB) + 1
        whole = pinners["stranded_bytes"][pinners["range_bytes"] > split * MIB].sum()
        is_lower = found.settings.max_split_size is None or split * MIB < found.settings.max_split_size
        if is_lower and 2 * whole >= pinners["stranded_bytes"].sum():
            settings.append(f"max_split_size_mb:{split}")
    return tuple(settings)


TO_THE_END, SERVED, FAILS = "to the end", "served, another one refused later", "FAILS"


def outcome_of(found: OutOfMemory, again: alloctrace.Trace, before: alloctrace.Trace) -> str:
    """What becomes of the request that was refused in another run of the same program."""
    kinds, columns = ("alloc",), ("device",)

    def served(trace: alloctrace.Trace, until: int) -> int:
        events = trace.events(until=until, kinds=kinds, columns=columns)
        return int((events["device"] == found.device).sum())

    refused = [one.seq for one in again.ooms(device=found.device)]
    if not refused:
        return TO_THE_END
    return SERVED if served(again, refused[0]) > served(before, found.seq) else FAILS


def row_of(program: Program, folder: Path) -> dict[str, Any]:
    trace = record(program, folder)
    found = trace.ooms()
    first = found[0]
    old = advised_before(first)
    advisor = Advisor(trace._recorded)
    advice = advisor.on_request(first) if first.verdict == FRAGMENTED else Advice()
    now = tuple(one.setting.text for one in advice.helping)
    names = SiteNames(str(trace.header["working_directory"]))
    helps = [sentence for sentence in sentences(first, names, advisor) if sentence.startswith("What helps")]
    row: dict[str, Any] = {
        "program": program.name,
        "refused": len(found),
        "verdict": first.verdict,
        "before": list(old),
        "now": list(now),
        "now_is_certain": advice.is_certain,
        "words": " ".join(helps),
        "why_not": advice.why_not,
        "again": {},
    }
    # All that were told apart by the verdict, for the count alone.
    fragmented = [one for one in found if one.verdict == FRAGMENTED]
    row["fragmented"] = len(fragmented)
    row["advised_before"] = sum(bool(advised_before(one)) for one in fragmented)
    row["advised_now"] = sum(bool(advisor.on_request(one).settings) for one in fragmented)
    original = folder / "original"
    original.mkdir()
    for file in folder.glob("*.alloctrace"):
        file.rename(original / file.name)
    trace = alloctrace.load(next(original.glob("*.alloctrace")))
    for setting in dict.fromkeys((*old, *now)):
        row["again"][setting] = outcome_of(first, record(program, folder, setting), trace)
    if program.variants and program.name not in RANDOM:
        row["as_advised"] = record_case(program.name, folder, advised=True).ooms() == []
    return row


def cell(settings: list[str], again: dict[str, str]) -> str:
    return ", ".join(f"`{one}`: {again[one]}" for one in settings) or "no setting"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="where to write JSON")
    parser.add_argument("--only", nargs="*", metavar="NAME", help="of the programs")
    options = parser.parse_args()
    rows = []
    print("| program | verdict | before | now | changed as advised |\n|---|---|---|---|---|")
    for program in PROGRAMS:
        if options.only and program.name not in options.only:
            continue
        with tempfile.TemporaryDirectory() as folder:
            row = row_of(program, Path(folder))
        rows.append(row)
        changed = {True: TO_THE_END, False: FAILS, None: "-"}[row.get("as_advised")]
        before, now = cell(row["before"], row["again"]), cell(row["now"], row["again"])
        now += "" if row["now_is_certain"] else " (if the limit allows it)"
        print(f"| {row['program']} | {row['verdict']} | {before} | {now} | {changed} |", flush=True)
    advised = {when: [row["again"][one] != FAILS for row in rows for one in row[when]] for when in ("before", "now")}
    changed_rows = [row["as_advised"] for row in rows if "as_advised" in row]
    for when, served in advised.items():
        print(f"{when}: with {sum(served)} of {len(served)} settings the failed allocation is served")
    print(f"changed as advised: {sum(changed_rows)} of {len(changed_rows)} programs run to the end")
    if options.out is not None:
        results = {
            "machine": {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()},
            "torch": torch.__version__,
            "python": platform.python_version(),
            "programs": rows,
        }
        options.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
