"""`alloctrace serve` as a user runs it, until Ctrl-C."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from running import start_python


@contextlib.contextmanager
def served(folder: Path, *arguments: str) -> Iterator[SplitResult]:
    """Serve, and yield the address that is printed. An interrupt at the end must stop the server in good order."""
    words = ("-m", "pytorch_alloctrace", *arguments)
    with start_python(folder, *words, BROWSER="true") as process:  # --open shows nothing
        yield urlsplit(process.stderr.readline().split()[-1])
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=600)
        assert (process.returncode, out, error) == (0, "", "Stopped.\n")
