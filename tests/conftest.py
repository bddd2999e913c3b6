"""Shared by all tests: programs run as a user runs them, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def program_environment(**extra: str) -> dict[str, str]:
    """The environment of a traced program: this package importable, nothing of ours switched on."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ALLOCTRACE")}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**environment, **extra}


@pytest.fixture
def run_program(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a Python program given as text in tmp_path, as `program.py`; its output is text. Fails when it fails, unless
    check=False."""

    def run(
        source: str, *arguments: str, check: bool = True, timeout: float = 120, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        script = tmp_path / "program.py"
        script.write_text(textwrap.dedent(source))
        done = subprocess.run(
            [sys.executable, str(script), *arguments],
            cwd=tmp_path,
            env=program_environment(**environment),
            capture_output=True,
            text=True,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
        )
        if check:
            assert done.returncode == 0, done.stdout + done.stderr
        return done

    return run
