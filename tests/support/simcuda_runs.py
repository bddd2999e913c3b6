"""Runs programs on the simulated CUDA device, without this project's recorder."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

from running import ROOT, run_python

RUN = ROOT / "tools" / "simcuda" / "run"
KIB, MIB, GIB = 2**10, 2**20, 2**30

# Gives a program the simulated runtime through ctypes.
PRELUDE = """
import ctypes, os, sys
cuda = ctypes.CDLL(None)
NOT_READY, NOT_PERMITTED_IN_CAPTURE = 600, 900
def pointer(value): return ctypes.c_void_p(value)
"""

Simulate = Callable[..., "subprocess.CompletedProcess[str]"]


def run_simulated(
    folder: Path, source: str, *options: str, prelude: str = "", check: bool = True, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run prelude and source as a program in a folder through tools/simcuda/run, with its options."""
    script = folder / "program.py"
    script.write_text(prelude + textwrap.dedent(source))
    command = [str(RUN), *options, sys.executable, str(script)]
    return run_python(folder, command, check, 600, environment)
