"""Advice for programs that run out of memory: whether it serves the failed allocation, with and without the model.

Runs on the simulated device. Prints a Markdown table; --out writes JSON.

The programs: tests/support/oom_programs.py; one of the examples; some of what_if_programs.py on devices too small for
torch's defaults, and some on devices too small for any setting. An advised setting is set and the program runs again
unchanged. If no setting is advised, the program changed as advised runs (oom_advised_programs.py). Only the first
failure of a program is examined; once it is served, the program may fail at an allocation that the trace lacks.
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
from pytorch_alloctrace._replay import MIN_SPLIT_SIZE
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
    """Command line, to which the trace's path is appended."""
    memory: str
    variants: bool = False
    """True for a program of oom_programs.py, which has an advised version too."""


def simulated(memory: str, devices: int = 1) -> list[str]:
    return [str(ROOT / "tools/simcuda/run"), "--memory", memory, "--devices", str(devices), sys.executable]


def record(program: Program, folder: Path, setting: str = "") -> alloctrace.Trace:
    """Run the program under a setting and return its trace; an out-of-memory error is expected."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if program.variants:
        return record_case(program.name, folder, setting)
    if setting:
        environment["PYTORCH_ALLOC_CONF"] = setting
    trace = folder / "run.alloctrace"
    trace.unlink(missing_ok=True)
    command = [*simulated(program.memory), *program.command, str(trace)]
    result = subprocess.run(
        command, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )
    if result.returncode and "OutOfMemoryError" not in result.stderr:
        raise RuntimeError(result.stderr)
    return alloctrace.load(trace)


def record_case(case: str, folder: Path, setting: str = "", *, advised: bool = False) -> alloctrace.Trace:
    """Run a program of oom_programs.py unchanged, under a setting, or as advised; return its trace."""
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


def advised_before(oom: OutOfMemory) -> tuple[str, ...]:
    """Return the settings advised without a model: expandable segments, and a split limit if it frees enough bytes."""
    if oom.verdict != FRAGMENTED or oom.settings.expandable_segments:
        return ()
    settings = ["expandable_segments:True"]
    pinners, lines = oom.here.pinners, oom.here.pinners_by_line
    if len(lines):
        split = max(-(-int(lines["largest_bytes"][0]) // MIB), MIN_SPLIT_SIZE // MIB) + 1
        stranded_above = pinners["stranded_bytes"][pinners["range_bytes"] > split * MIB].sum()
        is_lower = oom.settings.max_split_size is None or split * MIB < oom.settings.max_split_size
        if is_lower and 2 * stranded_above >= pinners["stranded_bytes"].sum():
            settings.append(f"max_split_size_mb:{split}")
    return tuple(settings)


TO_THE_END, SERVED, FAILS = "to the end", "served, another one refused later", "FAILS"


def outcome_of(oom: OutOfMemory, again: alloctrace.Trace, before: alloctrace.Trace) -> str:
    """Return the outcome of the failed allocation in a second run of the program."""
    kinds, columns = ("alloc",), ("device",)

    def count_served(trace: alloctrace.Trace, until: int) -> int:
        events = trace.events(until=until, kinds=kinds, columns=columns)
        return int((events["device"] == oom.device).sum())

    failures = [failure.seq for failure in again.ooms(device=oom.device)]
    if not failures:
        return TO_THE_END
    return SERVED if count_served(again, failures[0]) > count_served(before, oom.seq) else FAILS


def row_of(program: Program, folder: Path) -> dict[str, Any]:
    trace = record(program, folder)
    ooms = trace.ooms()
    first = ooms[0]
    old = advised_before(first)
    advisor = Advisor(trace._recorded)
    advice = advisor.on_request(first) if first.verdict == FRAGMENTED else Advice()
    now = tuple(outcome.setting.text for outcome in advice.helping)
    names = SiteNames(str(trace.header["working_directory"]))
    helps = [sentence for sentence in sentences(first, names, advisor) if sentence.startswith("What helps")]
    row: dict[str, Any] = {
        "program": program.name,
        "refused": len(ooms),
        "verdict": first.verdict,
        "before": list(old),
        "now": list(now),
        "now_is_certain": advice.is_certain,
        "words": " ".join(helps),
        "why_not": advice.why_not,
        "again": {},
    }
    fragmented = [oom for oom in ooms if oom.verdict == FRAGMENTED]
    row["fragmented"] = len(fragmented)
    row["advised_before"] = sum(bool(advised_before(oom)) for oom in fragmented)
    row["advised_now"] = sum(bool(advisor.on_request(oom).settings) for oom in fragmented)
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
    return ", ".join(f"`{setting}`: {again[setting]}" for setting in settings) or "no setting"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="where to write JSON")
    parser.add_argument("--only", nargs="*", metavar="NAME", help="run these programs only")
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
    advised = {when: [row["again"][text] != FAILS for row in rows for text in row[when]] for when in ("before", "now")}
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
