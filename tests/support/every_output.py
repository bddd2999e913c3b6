"""Shows a trace that may be hostile to every face that reads traces, each in a process of its own under limits.

    python every_output.py TRACE[@FACE,FACE...]...

prints a line of JSON for each trace: the faults that were found, and the most memory and processor time that a face
took. Without arguments it reads them from standard input, one a line. Imports everything once and forks for each face:
what a face does stays in its own process, and what it takes is its own.
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

MEMORY = 1 << 30
"""Bytes that a face may have besides those of the imported libraries."""
SECONDS = 60
"""Of the processor, and no more than a guard against what never ends."""

_FAULT, _TRACEBACK = 98, 99
_RAW = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""What must not reach a terminal: a control character other than the newline and the tab."""

COMMANDS: dict[str, tuple[str, ...]] = {
    "diagnose": ("diagnose",),
    "diagnose-json": ("diagnose", "--json"),
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
"""Faces that take seconds whatever they show."""
EXPORTS = ("speedscope", "collapsed", "perfetto", "memory-viz", "parquet")


@dataclass
class Shown:
    """What became of a trace in the hands of all faces."""

    trace: str
    faults: list[str] = field(default_factory=list)
    """Face, and what it did that no face may do."""
    outcomes: dict[str, int] = field(default_factory=dict)
    """Exit status by face."""
    seconds: float = 0
    """Of the processor, by the face that took most."""
    slowest: str = ""
    peak_bytes: int = 0
    """Resident, of the face that took most, libraries included."""
    largest: str = ""


def prepare() -> None:
    """Import what the faces need before any is forked."""
    os.environ["COLUMNS"] = "100"
    import matplotlib.pyplot  # noqa: F401
    import pyarrow.parquet  # noqa: F401

    import pytorch_alloctrace.analyze.trace_command
    import pytorch_alloctrace.report.page.server
    import pytorch_alloctrace.trace  # noqa: F401


def show(trace: Path, faces: Sequence[str] | None = None) -> Shown:
    """Run all faces, or these, on a trace."""
    outcome = Shown(str(trace))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for face, run in all_faces(trace, folder).items():
            if faces is None or face in faces:
                _show_one(face, run, folder, outcome)
    return outcome


def all_faces(trace: Path, folder: Path) -> dict[str, Callable[[], int]]:
    """Return a function for each face that returns its exit status. folder: for the files that faces write."""

    def command(*arguments: str) -> Callable[[], int]:
        def run() -> int:
            from pytorch_alloctrace.__main__ import main

            return main([*arguments, str(trace)])

        return run

    faces = {name: command(*arguments) for name, arguments in COMMANDS.items()}
    faces["diff"] = command("diff", str(trace))
    faces["report"] = command("report", "-o", str(folder / "report.html"))
    faces |= {f"export-{to}": command("export", "--to", to, "-o", str(folder / to)) for to in EXPORTS}
    faces["serve"] = lambda: _ask(trace, _serve)
    faces["ranks"] = lambda: _compare_with_itself(trace)
    faces["follow"] = lambda: _follow(trace)
    faces["finish"] = lambda: _finish(trace, folder)
    faces["api"] = lambda: _ask(trace, _call_api)
    return faces


def cheap_faces() -> list[str]:
    return [name for name in all_faces(Path(), Path()) if name not in COSTLY]


def _compare_with_itself(trace: Path) -> int:
    """Compare the trace as two ranks, in this process, which has the limits."""
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
        compare_ranks(summaries, lambda requested: dict.fromkeys((of.path for of in requested), summary.detail))
    )
    print(ranks.verdict().rstrip())
    print(json.dumps(ranks_data(ranks._comparison, 10), allow_nan=False))
    if summary.unreadable:
        print(summary.unreadable, file=sys.stderr)
    return 2 if summary.unreadable else 0


def _follow(trace: Path) -> int:
    """Follow the trace as `live` and `status()` follow a trace that is still written."""
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


def _ask(trace: Path, ask: Callable[[Any], None]) -> int:
    """Open the trace and ask it; a trace that is refused gives 2."""
    from pytorch_alloctrace.errors import AlloctraceError
    from pytorch_alloctrace.trace import Trace

    try:
        ask(Trace(trace))
    except AlloctraceError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _serve(opened: Any) -> None:
    from pytorch_alloctrace.report.page.server import ReportServer

    server = ReportServer(opened._recorded)
    server.page  # noqa: B018
    path = server.address.partition("//")[2].partition("/")[2]
    end = opened._recorded.end_seq
    for seq in {0, end // 2, max(end - 1, 0)}:
        status, _, _ = server.answer("localhost", f"{path}snapshot?seq={seq}")
        assert status in (200, 404)
    server.release_port()


def _finish(trace: Path, folder: Path) -> int:
    from pytorch_alloctrace.__main__ import main

    copy = folder / "finished.alloctrace"
    copy.write_bytes(trace.read_bytes())
    return main(["finish", str(copy)])


def _call_api(opened: Any) -> None:
    from pytorch_alloctrace.errors import AlloctraceError

    for call in (
        lambda: repr(opened),
        opened.events,
        opened.live,
        lambda: opened.live("peak"),
        lambda: opened.live("step:1"),
        lambda: opened.usage(by="file"),
        lambda: opened.usage(by="module"),
        lambda: opened.usage("end", by="call"),
        lambda: opened.timeline(50, by="role"),
        lambda: opened.timeline(7000),
        opened.driver_memory,
        opened.steps,
        opened.marks,
        opened.threads,
        opened.hardware,
        lambda: opened._recorded.held,
        lambda: opened._recorded.failed_allocations,
        lambda: opened._recorded.first_event_after("0.5s"),
    ):
        # Each says that it cannot, or answers.
        with contextlib.suppress(AlloctraceError):
            call()


def _show_one(face: str, run: Callable[[], int], folder: Path, outcome: Shown) -> None:
    out, error = folder / "out", folder / "error"
    child = os.fork()
    if child == 0:
        _become(run, out, error)
    _, status, used = os.wait4(child, 0)
    seconds, peak = used.ru_utime + used.ru_stime, used.ru_maxrss * 1024
    if seconds > outcome.seconds:
        outcome.seconds, outcome.slowest = seconds, face
    if peak > outcome.peak_bytes:
        outcome.peak_bytes, outcome.largest = peak, face
    code = os.waitstatus_to_exitcode(status)
    outcome.outcomes[face] = code
    text, said = (path.read_text(errors="backslashreplace") for path in (out, error))
    if code < 0:
        outcome.faults.append(f"{face}: ended by {signal.Signals(-code).name}")
    elif code not in (0, 1, 2, 3):
        place = [line.strip() for line in said.splitlines() if line.startswith('  File "')][-1:]
        outcome.faults.append(f"{face}: {said.strip().splitlines()[-1] if said.strip() else code} at {place}")
    elif code == 2 and len(said.strip().splitlines()) != 1:
        outcome.faults.append(f"{face}: not one line, but {said!r}")
    if found := _RAW.search(text + said):
        outcome.faults.append(f"{face}: prints {found.group()!r} raw")


def _become(run: Callable[[], int], out: Path, error: Path) -> NoReturn:
    try:
        for path, stream in ((out, 1), (error, 2)):
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.dup2(file, stream)
        sys.stdout = io.TextIOWrapper(os.fdopen(1, "wb", closefd=False), encoding="utf-8")
        sys.stderr = io.TextIOWrapper(os.fdopen(2, "wb", closefd=False), encoding="utf-8", errors="backslashreplace")
        virtual = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (virtual + MEMORY, virtual + MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.alarm(5 * SECONDS)  # ends what waits for ever
        code = run()
        sys.stdout.flush()
        sys.stderr.flush()
    except SystemExit as ended:
        sys.stderr.flush()
        code = ended.code if isinstance(ended.code, int) else _FAULT
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
        name, _, faces = argument.partition("@")
        print(json.dumps(vars(show(Path(name), faces.split(",") if faces else None))), flush=True)


if __name__ == "__main__":
    main()
