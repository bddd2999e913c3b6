"""Programs that tests record, some of them once for all test processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from running import ROOT, only_one, run_python, with_cuda


def record_once(factory: pytest.TempPathFactory, name: str, record: Callable[[Path], None]) -> Path:
    """Return the folder that `record` has filled, in this process of pytest-xdist or in another. Tests only read it."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / f"shared_{name}"
    with only_one(folder.with_suffix(".lock")):
        if not (folder / "complete").exists():
            folder.mkdir(exist_ok=True)
            record(folder)
            (folder / "complete").touch()
    return folder


def run_source(folder: Path, source: str, *arguments: str, cuda: bool = False, devices: int = 1) -> Path:
    """Run a program given as text as program.py of the folder; return the folder."""
    (folder / "program.py").write_text(source)
    command = [sys.executable, "program.py", *arguments]
    run_python(folder, with_cuda(command, devices=devices) if cuda else command, True, 600, {})
    return folder


def record_report(folder: Path) -> None:
    """Record report_program.py, on two devices, into run.alloctrace."""
    command = [sys.executable, str(ROOT / "tests/support/report_program.py"), "run.alloctrace"]
    run_python(folder, with_cuda(command, "4GiB", 2), True, 600, {})
