"""Which code is not the user's."""

from __future__ import annotations

import os
import site
import sys
from pathlib import Path

GENERATED_CODE = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
"""The environment variables that name folders of generated code."""
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
"""This package's folder."""


def library_prefixes() -> list[str]:
    """Folders whose code is not the user's: the standard library, installed packages, torch and this package. They end
    with a separator."""
    # Not from sysconfig: it would load all of the interpreter's build settings into the program, and knows neither the
    # folders that a .pth file adds nor those of PYTHONPATH.
    folders = {os.path.dirname(os.__file__), *site.getsitepackages()}
    if site.ENABLE_USER_SITE:
        folders.add(site.getusersitepackages())
    folders.update(entry for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages"))
    torch = sys.modules.get("torch")
    if torch is not None and torch.__file__:
        folders.add(os.path.dirname(torch.__file__))
    folders.add(PACKAGE)
    # Where torch.compile and triton write what they generate, if the program chose the folder.
    folders.update(os.path.abspath(os.environ[name]) for name in GENERATED_CODE if os.environ.get(name))
    folders.update([os.path.realpath(folder) for folder in folders])
    return sorted(folder.rstrip(os.sep) + os.sep for folder in folders)
