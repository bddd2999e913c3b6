"""Runner of programs on the simulated CUDA device, without the recorder."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

from running import ROOT, run_python

RUN = ROOT / "tools" / "simcuda" / "run"
KIB, MIB, GIB = 2**10, 2**20, 2**30

PRELUDE = """
import ctypes, os, sys
cuda = ctypes.CDLL(None)
NOT_READY, NOT_PERMITTED_IN_CAPTURE = 600, 900
def pointer(value): return ctypes.c_void_p(value)
"""
"""Beginning of a program that calls the simulated runtime through ctypes."""

Simulate = Callable[..., "subprocess.CompletedProcess[str]"]


def run_simulated(
    folder: Path, source: str, *options: str, prelude: str = "", check: bool = True, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run prelude and source as one program in a folder, through `tools/simcuda/run OPTIONS`."""
    script = folder / "program.py"
    script.write_text(prelude + textwrap.dedent(source))
    command = [str(RUN), *options, sys.executable, str(script)]
    return run_python(folder, command, check, 600, environment)
