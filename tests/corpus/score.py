"""Scores the verdict on programs that were written by people who had not read the analysis.

    python tests/corpus/score.py record TRACES    # each program on both devices, whole and killed in mid-run
    python tests/corpus/score.py judge TRACES     # a line each, then a table

A program that leaks has `# LEAK` on the lines that a reader would point at. What the first verdict makes of it:

first       the first leak in the diagnosis is at a marked line
found       another one is
noted       only a leak that costs next to nothing is
misled      leaks are reported, none at a marked line
inconclusive   none is reported, and no all-clear is given
missed      an all-clear

and of a healthy one: clear, inconclusive, noted (next to nothing) or accused.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
KILLED_AT = 0.6
"""Share of the program's events after which it is killed."""
ENDS = ("whole", "killed")
CORPORA = ("third_party", "third_party_held_out", "third_party_fresh", "third_party_fresh2")
LEAKS = ("first", "found", "noted", "misled", "inconclusive", "missed")
HEALTHY = ("clear", "inconclusive", "noted", "accused")


def programs(corpus: str) -> list[Path]:
    return sorted([*(HERE / corpus).glob("leak_*.py"), *(HERE / corpus).glob("healthy_*.py")])


def marked_lines(program: Path) -> set[int]:
    lines = program.read_text().splitlines()
    return {number for number, line in enumerate(lines, 1) if re.search(r"# LEAK\b", line)}


def events_in(trace: Path) -> int:
    """How many events there are, while it is still written."""
    import pytorch_alloctrace as alloctrace

    warnings.simplefilter("ignore", alloctrace.IncompleteTraceWarning)
    try:
        return alloctrace.load(trace).integrity.events
    except (alloctrace.AlloctraceError, OSError):
        return 0


def record_one(program: Path, device: str, folder: Path, only_whole: bool) -> str:
    """Records a program twice: to its end, and killed on the way. Returns what went wrong."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [str(ROOT / "tools/simcuda/run"), "--memory", "8GiB"] if device == "cuda" else []
    whole, killed = (folder / f"{program.parent.name}-{program.stem}-{device}-{end}.alloctrace" for end in ENDS)

    def run(trace: Path) -> list[str]:
        recorded = ["pytorch_alloctrace", "run", "--overwrite", "--devices", device, "--output", str(trace)]
        return [*command, sys.executable, "-m", *recorded, str(program), device]

    done = subprocess.run(run(whole), env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        return f"{program.stem} {device}: exit {done.returncode}\n{done.stderr[-2000:]}"
    if only_whole:
        return ""
    wanted = KILLED_AT * events_in(whole)
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(run(killed), env=environment, start_new_session=True, **quiet) as process:
        while process.poll() is None and events_in(killed) < wanted:
            time.sleep(0.01)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return ""


def record(options: argparse.Namespace) -> None:
    options.folder.mkdir(parents=True, exist_ok=True)
    found = [program for corpus in options.corpus or CORPORA for program in programs(corpus)]
    wanted = [
        (program, device)
        for program in found
        for device in options.device or ["cpu", "cuda"]
        if re.search(options.only, program.stem)
    ]
    with ThreadPoolExecutor(options.jobs) as pool:
        for failed in pool.map(lambda one: record_one(*one, options.folder, options.whole), wanted):
            if failed:
                print(failed, file=sys.stderr)


def verdict_on(trace: Path, program: Path) -> tuple[str, str]:
    """One of LEAKS or HEALTHY, and what was said first."""
    from pytorch_alloctrace.analysis.summary import summarize
    from pytorch_alloctrace.reading.recorded import RecordedTrace
    from pytorch_alloctrace.report.verdict import diagnosis

    findings = diagnosis(summarize(RecordedTrace(trace)))
    leaks = [one for one in findings if one.kind in ("leak", "growth")]
    notes = [one for one in findings if one.kind == "minor_leak"]
    clear = any(one.kind == "no_leak" for one in findings) and not any(one.kind == "inconclusive" for one in findings)
    said = next((one.title for one in findings if one.kind not in ("incomplete",)), "")
    if program.stem.startswith("healthy"):
        return ("accused" if leaks else "noted" if notes else "clear" if clear else "inconclusive"), said
    marks = marked_lines(program)

    def is_right(one: object) -> bool:
        site = getattr(one, "site", None)
        return site is not None and Path(site.filename).name == program.name and site.line in marks

    if leaks and is_right(leaks[0]):
        return "first", said
    if any(map(is_right, leaks)):
        return "found", said
    if any(map(is_right, notes)):
        return "noted", said
    return ("misled" if leaks else "missed" if clear else "inconclusive"), said


def judge(folder: Path, only: str, result: Path | None) -> None:
    counts: dict[tuple[str, str, str, str], collections.Counter[str]] = collections.defaultdict(collections.Counter)
    rows = []
    for trace in sorted(folder.glob("*.alloctrace")):
        corpus, stem, device, end = trace.stem.rsplit("-", 3)
        if only and not re.search(only, trace.stem):
            continue
        program = HERE / corpus / f"{stem}.py"
        began = time.monotonic()
        verdict, said = verdict_on(trace, program)
        rows.append({"program": stem, "corpus": corpus, "device": device, "end": end, "verdict": verdict, "said": said})
        counts[corpus, stem.partition("_")[0], device, end][verdict] += 1
        mark = "  " if verdict in ("first", "clear") else "* "
        print(f"{mark}{trace.stem:72} {verdict:10} {time.monotonic() - began:4.1f}s  {said}", flush=True)
    print()
    for (corpus, kind, device, end), found in sorted(counts.items()):
        words = LEAKS if kind == "leak" else HEALTHY
        listed = ", ".join(f"{found[word]} {word}" for word in words)
        print(f"{corpus:20} {kind:8} {device:5} {end:7} {sum(found.values()):3}: {listed}")
    if result:
        result.write_text(json.dumps(rows, indent=1) + "\n")


def table(results: list[Path]) -> None:
    """Markdown: for each kind of program, what each result has found and accused."""
    loaded = [json.loads(result.read_text()) for result in results]
    print(f"| programs | device | run | {' | '.join(result.stem for result in results)} |")
    print(f"|---|---|---|{'---|' * len(results)}")
    keys = sorted({(_kind(row), row["device"], row["end"]) for rows in loaded for row in rows})
    for key in keys:
        cells = []
        for rows in loaded:
            found = [row["verdict"] for row in rows if (_kind(row), row["device"], row["end"]) == key]
            good, bad = ("first", "missed") if "leak" in key[0] else ("clear", "accused")
            text = f"{found.count(good)} {good}, {found.count(bad)} {bad} of {len(found)}" if found else "-"
            cells.append(text)
        print(f"| {' | '.join(key)} | {' | '.join(cells)} |")


def _kind(row: dict[str, str]) -> str:
    source = (HERE / row["corpus"] / f"{row['program']}.py").read_text()
    kind = "training" if "optim" in source else "without an optimizer"
    return f"{row['corpus']}: {row['program'].partition('_')[0]}, {kind}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    of_record = verbs.add_parser("record")
    of_record.add_argument("folder", type=Path)
    of_record.add_argument("--corpus", action="append")
    of_record.add_argument("--device", action="append", choices=("cpu", "cuda"))
    of_record.add_argument("--jobs", type=int, default=2)
    of_record.add_argument("--only", default="", help="a regular expression on the names of programs")
    of_record.add_argument("--whole", action="store_true", help="no killed runs")
    of_judge = verbs.add_parser("judge")
    of_judge.add_argument("folder", type=Path)
    of_judge.add_argument("--only", default="", help="a regular expression on the names of traces")
    of_judge.add_argument("--json", type=Path)
    of_table = verbs.add_parser("table", help="results of judge --json side by side, as Markdown")
    of_table.add_argument("results", type=Path, nargs="+")
    options = parser.parse_args()
    if options.verb == "table":
        table(options.results)
    elif options.verb == "record":
        record(options)
    else:
        judge(options.folder, options.only, options.json)


if __name__ == "__main__":
    main()
