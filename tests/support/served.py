"""`alloctrace serve` as a user runs it, until Ctrl-C."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from running import program_environment


@contextlib.contextmanager
def served(folder: Path, *arguments: str) -> Iterator[SplitResult]:
    """The address that it says. At the end it is interrupted, and must end in good order and say so in one line."""
    started = subprocess.Popen(
        [sys.executable, "-m", "pytorch_alloctrace", *arguments],
        cwd=folder,
        env=program_environment(BROWSER="true"),  # --open shows nothing
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Tests that run in the background of a shell would hand down that it is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        assert started.stderr is not None
        yield urlsplit(started.stderr.readline().split()[-1])
        started.send_signal(signal.SIGINT)
        out, error = started.communicate(timeout=600)
        assert (started.returncode, out, error) == (0, "", "Stopped.\n")
    finally:
        started.kill()
        started.wait()
