"""`alloctrace serve` as a user runs it, until Ctrl-C, and its server in the tests' own process."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from running import start_python

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.report.page.server import ReportServer


@contextlib.contextmanager
def running_server(trace: alloctrace.Trace) -> Iterator[ReportServer]:
    """Serve a report on a thread, which must end when the server is closed."""
    server = ReportServer(trace._recorded)
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        yield server
    finally:
        server.close()
        thread.join(timeout=10)
    assert not thread.is_alive()


@contextlib.contextmanager
def served(
    folder: Path, *arguments: str, stop: signal.Signals = signal.SIGINT, **environment: str
) -> Iterator[SplitResult]:
    """Serve, and yield the address that is printed. The signal at the end must stop the server in good order."""
    words = ("-m", "pytorch_alloctrace", *arguments)
    with start_python(folder, *words, **{"BROWSER": "true", **environment}) as process:  # --open shows nothing
        yield urlsplit(process.stderr.readline().split()[-1])
        process.send_signal(stop)
        out, error = process.communicate(timeout=600)
        assert (process.returncode, out, error) == (0, "", "Stopped.\n")
