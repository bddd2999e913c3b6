"""Processes of this machine that read traces: one reads one trace at a time.

They are plain Python processes that are told over a pipe what to do: not those of multiprocessing, which begin with the
main module of the program that started them, and fail where that has no `if __name__ == "__main__"`. One that dies,
because memory ran out perhaps, takes no other with it, and it is known which trace it was reading.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import struct
import subprocess
import sys
import threading
from concurrent.futures import CancelledError
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from .figures import Card, Detail, RankSummary
from .kept import summary_of

_LENGTH = struct.Struct("<Q")
_PROGRAM = "from pytorch_alloctrace.analysis.ranks.workers import serve; serve()"
_Task = tuple[str, tuple[str, ...], bool]
"""The path, the user paths, and whether summaries are kept."""


def available_cores() -> int:
    """How many processes of this machine run at once."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Workers:
    """So many processes, each started when it is first needed. A context manager that ends them."""

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

    def summary(self, task: _Task) -> RankSummary:
        """From any thread; waits until a process is idle."""
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
                _write(process.stdin, task)
                answer = _read(process.stdout)
            except BrokenPipeError:
                answer = None
            if isinstance(answer, RankSummary):
                return answer
            status, process = process.wait(), None
            died = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
            return RankSummary(Card.of_unreadable(task[0], f"the process that read it {died}"), Detail((), ()))
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
    """What a process does: answers until its parent closes the pipe, or is gone."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library may print is no answer
    with contextlib.suppress(BrokenPipeError):
        while (task := _read(sys.stdin.buffer)) is not None:
            _write(answers, summary_of(*task))


def _write(pipe: BinaryIO | Any, value: object) -> None:
    data = pickle.dumps(value)
    pipe.write(_LENGTH.pack(len(data)) + data)
    pipe.flush()


def _read(pipe: BinaryIO | Any) -> Any:
    """None at its end."""
    size = pipe.read(_LENGTH.size)
    if len(size) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(size)
    data = pipe.read(length)
    return pickle.loads(data) if len(data) == length else None
