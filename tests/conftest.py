"""Fixtures of all tests. What they are made of is in tests/support."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from running import run_python, with_cuda


@pytest.fixture
def run_program(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a Python program given as text in tmp_path, as `program.py`; its output is text. Fails when it fails, unless
    check=False."""

    def run(
        source: str, *arguments: str, check: bool = True, timeout: float = 120, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        script = tmp_path / "program.py"
        script.write_text(textwrap.dedent(source))
        return run_python(tmp_path, [sys.executable, str(script), *arguments], check, timeout, environment)

    return run


@pytest.fixture
def run_cuda_program(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """As run_program, with a CUDA device: under tools/simcuda/run, or without it where the machine has a GPU (`memory`
    and `devices` are then those of the machine). Skips where torch is built without CUDA."""

    def run(
        source: str,
        *arguments: str,
        memory: str = "80GiB",
        devices: int = 1,
        check: bool = True,
        timeout: float = 120,
        **environment: str,
    ) -> subprocess.CompletedProcess[str]:
        script = tmp_path / "program.py"
        script.write_text(textwrap.dedent(source))
        command = with_cuda([sys.executable, str(script), *arguments], memory, devices)
        return run_python(tmp_path, command, check, timeout, environment)

    return run
