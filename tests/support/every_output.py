"""Runs of all outputs on traces that may be hostile, each in a process of its own with limits.

    python every_output.py TRACE[@OUTPUT,OUTPUT...]...

prints a line of JSON for each trace: the faults, and the maximum memory and processor time of an output. Without
arguments, reads them from standard input, one per line. Imports all modules once, then forks for each output, so that
outputs share no state.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import resource
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

MAX_MEMORY_BYTES = 1 << 30
"""Maximum bytes that an output may use, besides the imported libraries."""
MAX_SECONDS = 60
"""Maximum processor time of an output: a guard against endless loops."""

_FAULT, _TRACEBACK = 98, 99
_CONTROL_CHARACTER = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""A control character that must not reach a terminal: any but the newline and the tab."""

COMMANDS: dict[str, tuple[str, ...]] = {
    "diagnose": ("diagnose",),
    "diagnose-json": ("diagnose", "--json"),
    "diagnose-brief": ("diagnose", "--brief"),
    "diagnose-markdown": ("diagnose", "--markdown"),
    "leaks": ("leaks", "--all-frames"),
    "leaks-json": ("leaks", "--json"),
    "peak": ("peak",),
    "peak-tree": ("peak", "--tree"),
    "peak-role": ("peak", "--by", "role"),
    "peak-module": ("peak", "--by", "module"),
    "annotate": ("annotate",),
    "sites": ("sites", "--all-frames"),
    "sites-json": ("sites", "--json"),
    "segments": ("segments",),
    "blocks": ("blocks", "--csv"),
    "holders": ("holders",),
    "holders-json": ("holders", "--at", "end", "--json"),
    "timeline": ("timeline",),
    "timeline-csv": ("timeline", "--csv"),
    "fragmentation": ("fragmentation",),
    "fragmentation-peak": ("fragmentation", "--at", "peak:reserved"),
    "oom": ("oom",),
    "oom-json": ("oom", "--json"),
    "verify": ("verify",),
    "verify-json": ("verify", "--json"),
    "convert": ("convert",),
    "range": ("leaks", "--since", "0"),
    "what-if": ("what-if",),
    "fit": ("fit",),
}
COSTLY = ("report", "serve")
"""Outputs that take seconds for any trace."""


@dataclass
class Outcome:
    """Results of all outputs on one trace."""

    trace: str
    faults: list[str] = field(default_factory=list)
    """Forbidden behaviour, each with its output."""
    outcomes: dict[str, int] = field(default_factory=dict)
    """Exit status by output."""
    seconds: float = 0
    """Maximum processor time of an output."""
    slowest: str = ""
    peak_bytes: int = 0
    """Maximum resident memory of an output, including libraries."""
    largest: str = ""


def prepare() -> None:
    """Import the modules that outputs need, before the first fork."""
    os.environ["COLUMNS"] = "100"
    import matplotlib.pyplot  # noqa: F401
    import pyarrow.parquet  # noqa: F401

    import pytorch_alloctrace.analyze.trace_command
    import pytorch_alloctrace.report.page.server
    import pytorch_alloctrace.trace  # noqa: F401


def run_outputs(trace: Path, outputs: Sequence[str] | None = None) -> Outcome:
    """Run all outputs, or the given ones, on a trace."""
    outcome = Outcome(str(trace))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for output, run in all_outputs(trace, folder).items():
            if outputs is None or output in outputs:
                _run_output(output, run, folder, outcome)
    return outcome


def all_outputs(trace: Path, folder: Path) -> dict[str, Callable[[], int]]:
    """Return a function for each output that returns its exit status. folder: for the files that outputs write."""

    from pytorch_alloctrace.report.export.formats import FORMATS

    def command(*arguments: str) -> Callable[[], int]:
        def run() -> int:
            from pytorch_alloctrace.__main__ import main

            return main([*arguments, str(trace)])

        return run

    outputs = {name: command(*arguments) for name, arguments in COMMANDS.items()}
    outputs["diff"] = command("diff", str(trace))
    outputs["report"] = command("report", "-o", str(folder / "report.html"))
    outputs["compact"] = command("compact", "--until", "end", "-o", str(folder / "compacted.alloctrace"))
    outputs |= {f"export-{to}": command("export", "--to", to, "-o", str(folder / to)) for to in FORMATS}
    outputs["serve"] = lambda: _open_and_call(trace, _serve)
    outputs["ranks"] = lambda: _compare_with_itself(trace)
    outputs["live"] = lambda: _follow(trace)
    outputs["finish"] = lambda: _finish(trace, folder)
    outputs["api"] = lambda: _open_and_call(trace, _call_api)
    return outputs


def cheap_outputs() -> list[str]:
    return [name for name in all_outputs(Path(), Path()) if name not in COSTLY]


def _compare_with_itself(trace: Path) -> int:
    """Compare the trace with itself as two ranks, in this process, where the limits apply."""
    import dataclasses

    from pytorch_alloctrace.analysis.ranks.comparison import compare_ranks
    from pytorch_alloctrace.analysis.ranks.summary_file import summarize_rank
    from pytorch_alloctrace.ranks import Ranks
    from pytorch_alloctrace.report.ranks import ranks_data

    summary = summarize_rank(str(trace), keep=False)
    assert summary.detail is not None
    rank = None if summary.rank is None else 7
    summaries = [summary, dataclasses.replace(summary, path=f"{trace}-2", session="another", rank=rank)]
    ranks = Ranks(
        compare_ranks(summaries, lambda chosen: dict.fromkeys((item.path for item in chosen), summary.detail))
    )
    print(ranks.verdict().rstrip())
    print(json.dumps(ranks_data(ranks._comparison, 10), allow_nan=False))
    if summary.unreadable:
        print(summary.unreadable, file=sys.stderr)
    return 2 if summary.unreadable else 0


def _follow(trace: Path) -> int:
    """Follow the trace as `live` and `status()` do while it is being written."""
    from rich.console import Console

    from pytorch_alloctrace.errors import AlloctraceError
    from pytorch_alloctrace.reading.following import Following
    from pytorch_alloctrace.report.live import Rates, view_json, write_view
    from pytorch_alloctrace.report.screen import Screen

    try:
        following = Following(trace)
        following.advance()
        following.read_spool_at(f"{trace}.spool")
        view = following.advance()
    except AlloctraceError:
        return 2
    rates = Rates.between(None, view)
    write_view(view, rates, str(trace), following.header, Screen(Console()))
    print(json.dumps(view_json(view, rates, str(trace), following.header)))
    return 0


def _open_and_call(trace: Path, call: Callable[[Any], None]) -> int:
    """Open the trace and call a function with it; return 2 if the trace is rejected."""
    from pytorch_alloctrace.errors import AlloctraceError
    from pytorch_alloctrace.trace import Trace

    try:
        call(Trace(trace))
    except AlloctraceError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _serve(trace: Any) -> None:
    from pytorch_alloctrace.report.page.server import ReportServer

    server = ReportServer(trace._recorded)
    server.page  # noqa: B018
    path = server.address.partition("//")[2].partition("/")[2]
    end = trace._recorded.end_seq
    for seq in {0, end // 2, max(end - 1, 0)}:
        status, _, _ = server.answer("localhost", f"{path}snapshot?seq={seq}")
        assert status in (200, 404)
    server.release_port()


def _finish(trace: Path, folder: Path) -> int:
    from pytorch_alloctrace.__main__ import main

    copy = folder / "finished.alloctrace"
    copy.write_bytes(trace.read_bytes())
    return main(["finish", str(copy)])


def _call_api(trace: Any) -> None:
    from pytorch_alloctrace.errors import AlloctraceError

    for call in (
        lambda: repr(trace),
        trace.events,
        trace.live,
        lambda: trace.live("peak"),
        lambda: trace.live("step:1"),
        lambda: trace.usage(by="file"),
        lambda: trace.usage(by="module"),
        lambda: trace.usage("end", by="call"),
        lambda: trace.timeline(50, by="role"),
        lambda: trace.timeline(7000),
        trace.driver_memory,
        trace.garbage,
        trace.steps,
        trace.marks,
        trace.threads,
        trace.hardware,
        trace.holders,
        trace.children,
        lambda: trace._recorded.failed_allocations,
        lambda: trace._recorded.first_event_after("0.5s"),
    ):
        # Each returns an answer or raises AlloctraceError.
        with contextlib.suppress(AlloctraceError):
            call()


def _run_output(output: str, run: Callable[[], int], folder: Path, outcome: Outcome) -> None:
    out, error = folder / "out", folder / "error"
    child = os.fork()
    if child == 0:
        _run_in_child(run, out, error)
    _, status, used = os.wait4(child, 0)
    seconds, peak = used.ru_utime + used.ru_stime, used.ru_maxrss * 1024
    if seconds > outcome.seconds:
        outcome.seconds, outcome.slowest = seconds, output
    if peak > outcome.peak_bytes:
        outcome.peak_bytes, outcome.largest = peak, output
    code = os.waitstatus_to_exitcode(status)
    outcome.outcomes[output] = code
    text, errors = (path.read_text(errors="backslashreplace") for path in (out, error))
    if code < 0:
        outcome.faults.append(f"{output}: ended by {signal.Signals(-code).name}")
    elif code not in (0, 1, 2, 3):
        place = [line.strip() for line in errors.splitlines() if line.startswith('  File "')][-1:]
        outcome.faults.append(f"{output}: {errors.strip().splitlines()[-1] if errors.strip() else code} at {place}")
    elif code == 2 and len(errors.strip().splitlines()) != 1:
        outcome.faults.append(f"{output}: not one line, but {errors!r}")
    if match := _CONTROL_CHARACTER.search(text + errors):
        outcome.faults.append(f"{output}: prints {match.group()!r} raw")


def _run_in_child(run: Callable[[], int], out: Path, error: Path) -> NoReturn:
    try:
        for path, stream in ((out, 1), (error, 2)):
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.dup2(file, stream)
        sys.stdout = io.TextIOWrapper(os.fdopen(1, "wb", closefd=False), encoding="utf-8")
        sys.stderr = io.TextIOWrapper(os.fdopen(2, "wb", closefd=False), encoding="utf-8", errors="backslashreplace")
        virtual = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (virtual + MAX_MEMORY_BYTES, virtual + MAX_MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (MAX_SECONDS, MAX_SECONDS))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.alarm(5 * MAX_SECONDS)  # ends a blocked output
        code = run()
        sys.stdout.flush()
        sys.stderr.flush()
    except SystemExit as system_exit:
        sys.stderr.flush()
        code = system_exit.code if isinstance(system_exit.code, int) else _FAULT
    except BaseException:
        import traceback

        code = _TRACEBACK
        with contextlib.suppress(BaseException):
            traceback.print_exc()
            sys.stderr.flush()
    os._exit(code)


def main() -> None:
    prepare()
    for argument in sys.argv[1:] or map(str.rstrip, sys.stdin):
        name, _, outputs = argument.partition("@")
        print(json.dumps(vars(run_outputs(Path(name), outputs.split(",") if outputs else None))), flush=True)


if __name__ == "__main__":
    main()
