"""Modules that count as the program's own, wherever libraries are installed."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import numpy as np
from running import ROOT

PROGRAM = """
import {library}
from pytorch_alloctrace.objects.roots import WAITING, modules
print(*(root.name for root in modules()[0] if root.name not in WAITING))
"""
PACKAGES = os.path.dirname(os.path.dirname(np.__file__))


def own_modules(environment: Path, library: str, **variables: str) -> list[str]:
    """Return the modules that count as the program's own."""
    command = [environment / "bin" / "python", "-c", PROGRAM.format(library=library)]
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    process = subprocess.run(command, capture_output=True, text=True, check=True, env=clean | variables, timeout=600)
    return process.stdout.split()


def test_packages_from_pythonpath_or_pth_file_are_not_own_modules(tmp_path: Path) -> None:
    venv.create(tmp_path, symlinks=True)
    site_packages = tmp_path / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"

    by_variable = own_modules(tmp_path, "torch", PYTHONPATH=os.pathsep.join((PACKAGES, str(ROOT))))
    (site_packages / "elsewhere.pth").write_text(f"{PACKAGES}\n{ROOT}\n")
    by_file = own_modules(tmp_path, "numpy")

    assert by_variable == by_file == ["__main__"]
