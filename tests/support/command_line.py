"""Runs of `python -m pytorch_alloctrace.analyze` in the tests' own process.

Tests of encodings, environments, signals, pipes and imports start the command itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import subprocess
from pathlib import Path
from unittest import mock

from pytorch_alloctrace.__main__ import main
from pytorch_alloctrace.parser import COMMANDS, load
from pytorch_alloctrace.report.page import snapshots as bounds

# Loaded here: modules imported after the collection of tests would make object scans longer.
TRACE_COMMANDS = {name: load(name) for name, (target, _) in COMMANDS.items() if target.startswith("analyze.")}
"""Commands that read traces, by name."""


def run_command(folder: Path, arguments: list[str], encoding: str = "utf-8") -> subprocess.CompletedProcess[str]:
    """Run the command in a folder. A report gets at most 8 memory maps, which take 0.1 s each."""
    streams = [io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="") for _ in range(2)]
    small = dataclasses.replace(bounds._SMALL, maps=min(bounds._SMALL.maps, 8))
    previous_folder = os.getcwd()
    os.chdir(folder)
    try:
        with (
            contextlib.redirect_stdout(streams[0]),
            contextlib.redirect_stderr(streams[1]),
            mock.patch.object(bounds, "_SMALL", small),
        ):
            status = main(arguments)
    except SystemExit as error:
        status = error.code
    finally:
        os.chdir(previous_folder)
    for stream in streams:
        stream.flush()
    return subprocess.CompletedProcess(arguments, status, *(stream.buffer.getvalue().decode() for stream in streams))
