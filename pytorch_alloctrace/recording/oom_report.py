"""`enable(report_oom=True)`: the verdict on stderr when torch.OutOfMemoryError is raised.

The report is printed when torch creates the exception, even if the program catches it. The exception is created on the
thread that requested the memory or, if autograd's thread ran out of memory, on the thread that called backward. That
thread holds no lock of the allocator. Errors that torch handles itself create no exception.

A separate process computes the verdict (`analysis_process`); the program waits at most FLUSH_SECONDS + SECONDS for it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..objects.own_errors import is_from_signal_handler
from .analysis_process import AnalysisError, run_analysis

FLUSH_SECONDS = 10.0
SECONDS = 60.0
"""Maximum wait of the program for the verdict, in seconds."""


class OomReport:
    def __init__(self, trace: Path, spool: Path, flush: Callable[[], object]) -> None:
        self._trace = trace
        self._spool = spool
        self._flush = flush
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._is_printed = False
        self._error_class: Any = None
        self._own_init: Any = None

    def start(self) -> None:
        import torch

        error_class: Any = torch.OutOfMemoryError
        report = self

        def init(self: Any, *arguments: Any, **keywords: Any) -> None:
            original_init(self, *arguments, **keywords)
            report.print_once()

        original_init = error_class.__init__
        error_class.__init__ = init
        self._error_class, self._own_init = error_class, init

    def stop(self) -> None:
        error_class, self._error_class = self._error_class, None
        # If third-party code has wrapped our __init__, both stay in place; ours prints nothing from now on.
        if error_class is not None and error_class.__dict__.get("__init__") is self._own_init:
            del error_class.__init__

    def print_once(self) -> None:
        """Print the verdict, the first time only. Raises only errors of the program's signal handlers."""
        if self._error_class is None or os.getpid() != self._process:
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
        next_command = f"For the verdict, run: alloctrace {self._trace}\n"
        try:
            verdict = run_analysis([str(self._trace), "--spool", str(self._spool)], SECONDS)
        except subprocess.TimeoutExpired:
            return f"The trace is too long to judge in {SECONDS:.0f} s. {next_command}"
        except AnalysisError as error:
            return f"No verdict could be made ({error}). {next_command}"
        return f"From {self._trace}, up to here:\n\n{verdict}"

    def _flush_trace(self) -> None:
        try:
            self._flush()
        except Exception:  # the disk is full: the events are still in the spool
            return
