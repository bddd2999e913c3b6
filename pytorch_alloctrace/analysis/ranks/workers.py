"""Worker processes on this machine. Each reads one trace at a time.

Workers receive tasks and return summaries as lines of JSON over pipes. Processes of multiprocessing would import the
program's main module and fail without `if __name__ == "__main__"`. If a worker dies, for example out of memory, the
other workers go on and the summary of its trace contains the reason.
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
    path: str
    user_paths: tuple[str, ...]
    keep: bool


def available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Workers:
    """Worker processes, each started at its first task. A context manager that ends the processes."""

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
        """Kill the processes. Later calls of `summarize` raise CancelledError."""
        with self._starting:
            self._ended = True
        for process in self._started:
            process.kill()
        for process in self._started:
            with contextlib.suppress(BrokenPipeError), process:  # closes the pipes and waits
                pass

    def summarize(self, task: Task) -> RankSummary:
        """Read a trace in the first idle process, on any thread. Raise CancelledError if `end` was called."""
        process = self._idle.get()
        try:
            with self._starting:
                if self._ended:
                    raise CancelledError
                if process is None:
                    process = _start_worker()
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
            reason = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
            return RankSummary.of_unreadable(task.path, f"the process that read it {reason}")
        finally:
            self._idle.put(process)


def _start_worker() -> subprocess.Popen[bytes]:
    # Do not record the worker: only the user's program is to be recorded.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ALLOCTRACE")}
    package = str(Path(__file__).resolve().parents[3])
    environment["PYTHONPATH"] = os.pathsep.join([package, *filter(None, [environment.get("PYTHONPATH")])])
    return subprocess.Popen(
        [sys.executable, "-c", _PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        start_new_session=True,  # Ctrl-C must reach only the parent, which ends the workers
    )


def serve() -> None:
    """Answer tasks until the parent closes the pipe or ends. The main function of a worker process."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output that a library prints must not be read as an answer
    with contextlib.suppress(BrokenPipeError):
        while (line := sys.stdin.buffer.readline()).endswith(b"\n"):
            task = decode(Task, line)
            answers.write(encode(summarize_rank(task.path, task.user_paths, task.keep)) + b"\n")
            answers.flush()
