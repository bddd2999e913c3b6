"""Which code is not the user's, wherever it is installed."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest
import torch
from running import ROOT

PROGRAM = """
import torch
from pytorch_alloctrace.objects.roots import WAITING, modules
print(*(root.name for root in modules()[0] if root.name not in WAITING))
"""
INSTALLED = os.path.dirname(os.path.dirname(torch.__file__))


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment in which nothing is installed."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    return folder


def own_modules(environment: Path, **variables: str) -> list[str]:
    """The modules that count as the program's own."""
    command = [environment / "bin" / "python", "-c", PROGRAM]
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=clean | variables, timeout=600)
    return done.stdout.split()


def test_by_pythonpath(environment: Path) -> None:
    assert own_modules(environment, PYTHONPATH=os.pathsep.join((INSTALLED, str(ROOT)))) == ["__main__"]


def test_by_pth_file(environment: Path) -> None:
    folder = environment / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    (folder / "elsewhere.pth").write_text(f"{INSTALLED}\n{ROOT}\n")
    assert own_modules(environment) == ["__main__"]
