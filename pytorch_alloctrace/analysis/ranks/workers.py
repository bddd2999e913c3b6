"""Processes of this machine that read traces: one reads one trace at a time.

They are plain Python processes that get tasks and return summaries as lines of JSON over pipes: not those of
multiprocessing, which begin with the main module of the program that started them, and fail where that has no
`if __name__ == "__main__"`. One that dies, because memory ran out perhaps, takes no other with it, and it is known
which trace it was reading.
"""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
import threading
from concurrent.futures import CancelledError
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from .rank_summary import RankSummary
from .summary_file import summarize_rank
from .typed_json import decode, encode

_PROGRAM = "from pytorch_alloctrace.analysis.ranks.workers import serve; serve()"


@dataclass(frozen=True)
class Task:
    """The arguments of `summarize_rank`."""

    path: str
    user_paths: tuple[str, ...]
    keep: bool


def available_cores() -> int:
    """How many processes of this machine run at once."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Workers:
    """Worker processes, each started when it is first needed. A context manager that ends them."""

    def __init__(self, count: int) -> None:
        self._idle: queue.SimpleQueue[subprocess.Popen[bytes] | None] = queue.SimpleQueue()
        self._started: list[subprocess.Popen[bytes]] = []
        self._starting = threading.Lock()
        self._ended = False
        for _ in range(count):
            self._idle.put(None)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.end()

    def end(self) -> None:
        """Ends the processes, whatever they are reading: summaries that are asked for raise CancelledError."""
        with self._starting:
            self._ended = True
        for process in self._started:
            process.kill()
        for process in self._started:
            with contextlib.suppress(BrokenPipeError), process:  # closes its pipes, and waits
                pass

    def summarize(self, task: Task) -> RankSummary:
        """Return the summary of a trace, read by the first process that is idle. May be called on any thread."""
        process = self._idle.get()
        try:
            with self._starting:
                if self._ended:
                    raise CancelledError
                if process is None:
                    process = _start()
                    self._started.append(process)
            assert process.stdin is not None and process.stdout is not None
            try:
                process.stdin.write(encode(task) + b"\n")
                process.stdin.flush()
                answer = process.stdout.readline()
            except BrokenPipeError:
                answer = b""
            if answer.endswith(b"\n"):
                return decode(RankSummary, answer)
            status, process = process.wait(), None
            died = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
            return RankSummary.of_unreadable(task.path, f"the process that read it {died}")
        finally:
            self._idle.put(process)


def _start() -> subprocess.Popen[bytes]:
    # What is recorded is the user's program, not this.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ALLOCTRACE")}
    package = str(Path(__file__).resolve().parents[3])
    environment["PYTHONPATH"] = os.pathsep.join([package, *filter(None, [environment.get("PYTHONPATH")])])
    return subprocess.Popen(
        [sys.executable, "-c", _PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        start_new_session=True,  # Ctrl-C is for the parent, which ends it
    )


def serve() -> None:
    """Answer tasks until the parent closes the pipe or has ended. The main function of a worker process."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library may print is no answer
    with contextlib.suppress(BrokenPipeError):
        while (line := sys.stdin.buffer.readline()).endswith(b"\n"):
            task = decode(Task, line)
            answers.write(encode(summarize_rank(task.path, task.user_paths, task.keep)) + b"\n")
            answers.flush()
