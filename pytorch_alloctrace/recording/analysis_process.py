"""Analysis of a trace by a separate process, for the program that recorded it.

Nothing is allocated through torch in the program. A bug of the analysis, a lack of memory or a long trace can only
delay the program, by the given time.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_PACKAGE_PARENT = Path(__file__).resolve().parents[2]


class AnalysisError(Exception):
    """The analysis failed. The message is the reason."""


def run_analysis(arguments: Sequence[str], timeout_s: float) -> str:
    """Return what the command `alloctrace` prints. Ctrl-C and errors of the program's signal handlers pass through.

    Raises:
        AnalysisError: The command failed, or wrote nothing.
        subprocess.TimeoutExpired: It took more than `timeout_s`, and was killed.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ALLOCTRACE")}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_PACKAGE_PARENT), environment.get("PYTHONPATH")]))
    process = subprocess.run(
        [sys.executable, "-m", "pytorch_alloctrace", *arguments],
        env=environment,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=timeout_s,
        cwd="/",  # -m searches the working directory first, which may contain another numpy.py
        check=False,
    )
    output = process.stdout.decode(errors="replace")
    if process.returncode or not output:  # 0 without output: the program's handler of SIGCHLD took the exit status
        error_lines = process.stderr.decode(errors="replace").strip().splitlines()
        raise AnalysisError(error_lines[-1] if error_lines else f"exit status {process.returncode}")
    return output
