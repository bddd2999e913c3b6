"""`enable(report_oom=True)`: the verdict on stderr when torch.OutOfMemoryError is raised.

torch makes the exception where its error reaches Python: on the thread that asked, or, where autograd's thread ran out
of memory, on the one that called backward. No lock of the allocator is held there, and what torch tries and catches
itself never comes so far. That is where we look, whether or not the program catches it.

The verdict is made by a process of its own, so that nothing is allocated through torch and no bug of ours, no lack of
memory and no long trace can do more to the program than make it wait, for a limited time.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .own_errors import is_from_signal_handler

FLUSH_SECONDS = 10.0
SECONDS = 60.0
"""What the program waits at most for the verdict."""
_PACKAGES = Path(__file__).resolve().parents[2]


class OomReport:
    """Says it once, between `start` and `stop`."""

    def __init__(self, trace: Path, spool: Path, flush: Callable[[], object]) -> None:
        self._trace = trace
        self._spool = spool
        self._flush = flush
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._is_said = False
        self._error: Any = None
        self._init: Any = None

    def start(self) -> None:
        import torch

        error: Any = torch.OutOfMemoryError
        report = self

        def init(self: Any, *arguments: Any, **names: Any) -> None:
            before(self, *arguments, **names)
            report.say()

        before = error.__init__
        error.__init__ = init
        self._error, self._init = error, init

    def stop(self) -> None:
        """May be called more than once."""
        error, self._error = self._error, None
        # What somebody else has put in its place is theirs: ours, below it, is silent from now on.
        if error is not None and error.__dict__.get("__init__") is self._init:
            del error.__init__

    def say(self) -> None:
        """Print the verdict, the first time. Raises nothing but what a signal handler of the program raises."""
        if self._error is None or os.getpid() != self._process:
            return
        with self._lock:
            is_first, self._is_said = not self._is_said, True
        if not is_first:
            return
        try:
            text = self._verdict()
        except Exception as error:
            if is_from_signal_handler(error):
                raise
            text = f"no verdict could be made ({error})\n"
        try:
            sys.stderr.write(f"alloctrace: out of memory. {text}")
            sys.stderr.flush()
        except Exception as error:  # closed, or none
            if is_from_signal_handler(error):
                raise

    def _verdict(self) -> str:
        flushing = threading.Thread(target=self._flushed, name="alloctrace flush", daemon=True)
        flushing.start()
        flushing.join(FLUSH_SECONDS)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ALLOCTRACE")}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_PACKAGES), environment.get("PYTHONPATH")]))
        command = [sys.executable, "-m", "pytorch_alloctrace", str(self._trace), "--spool", str(self._spool)]
        later = f"Its verdict: alloctrace {self._trace}\n"
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, stdin=subprocess.DEVNULL, timeout=SECONDS, cwd="/"
            )
        except subprocess.TimeoutExpired:
            return f"The trace is too long to judge in {SECONDS:.0f} s. {later}"
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip().splitlines()
            return f"No verdict could be made ({said[-1] if said else f'exit status {done.returncode}'}). {later}"
        return f"From {self._trace}, up to here:\n\n{done.stdout.decode(errors='replace')}"

    def _flushed(self) -> None:
        try:
            self._flush()
        except Exception:  # the disk is full: the spool has it
            return
