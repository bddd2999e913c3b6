"""Runs of `python -m pytorch_alloctrace.analyze` in forks of a process that has imported the command line.

Importing pandas and rich takes a second. Tests of encodings, signals, pipes and imports start the command itself.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from running import program_environment
from warm_python import run_warm

IMPORTS = """
import pytorch_alloctrace.__main__, small_reports
from pytorch_alloctrace.analyze import command_line, verbs
list(verbs.VERBS.values())  # which imports them
small_reports.make_reports_small()
"""


def run_command(folder: Path, arguments: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run the command in a folder, with `environment` added to that of a program. Its output goes to pipes."""
    words = ["-m", "pytorch_alloctrace.analyze", *arguments]
    full_environment = program_environment(**environment)
    process = run_warm(folder, [], words, full_environment, 600, IMPORTS)
    return process or subprocess.run(
        [sys.executable, *words], cwd=folder, env=full_environment, capture_output=True, text=True, timeout=600
    )
