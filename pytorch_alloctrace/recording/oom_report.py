"""`enable(report_oom=True)`: the verdict on stderr when torch.OutOfMemoryError is raised.

torch creates the exception where its error reaches Python: on the requesting thread, or, if autograd's thread ran out
of memory, on the thread that called backward. No lock of the allocator is held there, and errors that torch catches
itself do not get that far. The report is printed there, even if the program catches the exception.

A child process computes the verdict, so that nothing is allocated through torch. A bug of ours, a lack of memory or a
long trace can only make the program wait, for a limited time.
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
"""Maximum wait of the program for the verdict, in seconds."""
_PACKAGES = Path(__file__).resolve().parents[2]


class OomReport:
    """Prints the verdict once, between `start` and `stop`."""

    def __init__(self, trace: Path, spool: Path, flush: Callable[[], object]) -> None:
        self._trace = trace
        self._spool = spool
        self._flush = flush
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._is_printed = False
        self._error: Any = None
        self._init: Any = None

    def start(self) -> None:
        import torch

        error: Any = torch.OutOfMemoryError
        report = self

        def init(self: Any, *arguments: Any, **names: Any) -> None:
            original_init(self, *arguments, **names)
            report.print_once()

        original_init = error.__init__
        error.__init__ = init
        self._error, self._init = error, init

    def stop(self) -> None:
        """Restore torch's exception. May be called more than once."""
        error, self._error = self._error, None
        # A replacement by third-party code stays in place; our function below it prints nothing from now on.
        if error is not None and error.__dict__.get("__init__") is self._init:
            del error.__init__

    def print_once(self) -> None:
        """Print the verdict, the first time only. Raises only what a signal handler of the program raises."""
        if self._error is None or os.getpid() != self._process:
            return
        with self._lock:
            is_first, self._is_printed = not self._is_printed, True
        if not is_first:
            return
        try:
            text = self._compute_verdict()
        except Exception as error:
            if is_from_signal_handler(error):
                raise
            text = f"no verdict could be made ({error})\n"
        try:
            sys.stderr.write(f"alloctrace: out of memory. {text}")
            sys.stderr.flush()
        except Exception as error:  # stderr is closed or None
            if is_from_signal_handler(error):
                raise

    def _compute_verdict(self) -> str:
        flushing = threading.Thread(target=self._flush_trace, name="alloctrace flush", daemon=True)
        flushing.start()
        flushing.join(FLUSH_SECONDS)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ALLOCTRACE")}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_PACKAGES), environment.get("PYTHONPATH")]))
        command = [sys.executable, "-m", "pytorch_alloctrace", str(self._trace), "--spool", str(self._spool)]
        next_command = f"For the verdict, run: alloctrace {self._trace}\n"
        try:
            process = subprocess.run(
                command,
                env=environment,
                capture_output=True,
                stdin=subprocess.DEVNULL,
                timeout=SECONDS,
                cwd="/",
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"The trace is too long to judge in {SECONDS:.0f} s. {next_command}"
        if process.returncode:
            error_lines = process.stderr.decode(errors="replace").strip().splitlines()
            reason = error_lines[-1] if error_lines else f"exit status {process.returncode}"
            return f"No verdict could be made ({reason}). {next_command}"
        return f"From {self._trace}, up to here:\n\n{process.stdout.decode(errors='replace')}"

    def _flush_trace(self) -> None:
        try:
            self._flush()
        except Exception:  # the disk is full: the events are still in the spool
            return
