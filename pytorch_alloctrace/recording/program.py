"""The recorded program: what the trace's header says about it, and whether this build can record it."""

from __future__ import annotations

import importlib
import importlib.machinery
import os
import site
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import RecorderUnavailableError

REBUILD = "run `pip install --no-build-isolation --force-reinstall --no-deps .` in its source folder"
"""How to build the recorder for the torch of this environment."""

main_module: str | None = None
"""The module that `run -m` is about to run: nothing else knows its name yet."""

ENVIRONMENT_ALLOWED = (
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_LAUNCH_BLOCKING",
    "OMP_NUM_THREADS",
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "SLURM_JOB_ID",
    "SLURM_PROCID",
)
"""The environment variables that go into the trace. Others may hold secrets."""


def load_recorder() -> ModuleType:
    """The recording module, if it was built for this very torch, CUDA and Python.

    One built for another torch would call the wrong methods of its classes, so it is refused before it is loaded.
    Raises RecorderUnavailableError.
    """
    try:
        from .. import _build_info as built
    except ImportError:
        raise RecorderUnavailableError(f"pytorch_alloctrace is not built: {REBUILD}") from None
    if not built.RECORDER:
        raise RecorderUnavailableError(
            f"this build of pytorch_alloctrace only reads traces ({built.NO_RECORDER_REASON}): "
            f"to record, {REBUILD}, where torch is installed"
        )
    suffixes = importlib.machinery.EXTENSION_SUFFIXES
    if f".{built.PYTHON_ABI}.so" not in suffixes:
        raise RecorderUnavailableError(
            f"pytorch_alloctrace was built for Python {built.PYTHON_ABI}, and this one loads {suffixes[0]}: {REBUILD}"
        )
    try:
        import torch
    except ImportError as error:
        raise RecorderUnavailableError(
            f"torch cannot be imported ({error}): recording needs torch, so install it first"
        ) from None
    if torch.__version__ != built.TORCH_VERSION or torch.version.cuda != built.CUDA_VERSION:
        raise RecorderUnavailableError(
            f"pytorch_alloctrace was built for torch {_with_cuda(built.TORCH_VERSION, built.CUDA_VERSION)}, "
            f"this is torch {_with_cuda(torch.__version__, torch.version.cuda)}: {REBUILD}"
        )
    try:
        return importlib.import_module("pytorch_alloctrace._record")
    except ImportError as error:
        raise RecorderUnavailableError(f"the recorder cannot be loaded ({error}): {REBUILD}") from None


def _with_cuda(version: str, cuda: str | None) -> str:
    return f"{version} (CUDA {cuda})" if cuda else f"{version} (no CUDA)"


def cuda_is_initialised() -> bool:
    """Whether torch has initialised CUDA in this process. Asking does not."""
    import torch

    return bool(torch.cuda.is_initialized())


def rank() -> str:
    """This process's rank in a distributed run; "0" if unknown."""
    return os.environ.get("RANK", "0")


def library_prefixes() -> list[str]:
    """Folders whose code is not the user's: the standard library, installed packages, torch and this package."""
    # Not from sysconfig: it would load all of the interpreter's build settings into the program.
    folders = {os.path.dirname(os.__file__), *site.getsitepackages()}
    if site.ENABLE_USER_SITE:
        folders.add(site.getusersitepackages())
    folders.update(entry for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages"))
    torch = sys.modules.get("torch")
    if torch is not None and torch.__file__:
        folders.add(os.path.dirname(torch.__file__))
    folders.add(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    folders.update([os.path.realpath(folder) for folder in folders])
    return sorted(folder.rstrip(os.sep) + os.sep for folder in folders)


def describe(trace: Path, spool: Path, devices: tuple[str, ...], options: dict[str, Any]) -> dict[str, Any]:
    """The header of a trace: the program, its versions and folders. Strings, numbers and lists only."""
    import torch

    main = sys.modules.get("__main__")
    return {
        "program": _main_script(main),
        "arguments": sys.argv[1:],
        "working_directory": os.getcwd(),
        "host": os.uname().nodename,
        "process": os.getpid(),
        "rank": rank(),
        "started": time.time(),
        "python": sys.version.split()[0],
        "platform": _platform(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "devices": list(devices),
        "options": options,
        "trace": str(trace),
        "spool": str(spool),
        "library_prefixes": library_prefixes(),
        "prefix": sys.prefix,
        "environment": {name: os.environ[name] for name in ENVIRONMENT_ALLOWED if name in os.environ},
    }


def _platform() -> str:
    """As platform.platform() says it, which starts a process to find out."""
    system = os.uname()
    try:
        library = (os.confstr("CS_GNU_LIBC_VERSION") or "").replace(" ", "")
    except (ValueError, OSError):  # another C library
        library = ""
    return "-".join([system.sysname, system.release, system.machine, *(["with", library] if library else [])])


def _main_script(main: ModuleType | None) -> str:
    if main_module is not None:
        return f"-m {main_module}"
    path = getattr(main, "__file__", None)
    if isinstance(path, str):
        return os.path.abspath(path)
    return sys.argv[0] if sys.argv and sys.argv[0] else "interactive"
