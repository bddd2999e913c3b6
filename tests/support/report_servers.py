"""`alloctrace serve` in its own process until Ctrl-C, and the report server in the test process."""

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
    """Serve a report on a thread; assert that closing the server ends the thread."""
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
def serve_trace(
    folder: Path, *arguments: str, stop: signal.Signals = signal.SIGINT, **environment: str
) -> Iterator[SplitResult]:
    """Run the command and yield the printed address; assert that the signal at the end stops the server cleanly."""
    command = ("-m", "pytorch_alloctrace", *arguments)
    with start_python(folder, *command, **{"BROWSER": "true", **environment}) as process:  # --open starts no browser
        yield urlsplit(process.stderr.readline().split()[-1])
        process.send_signal(stop)
        out, error = process.communicate(timeout=600)
        assert (process.returncode, out, error) == (0, "", "Stopped.\n")
