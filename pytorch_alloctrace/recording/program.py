"""The recorded program, as the header of a trace describes it."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from ..objects.libraries import library_prefixes

main_module: str | None = None
"""Name of the module that `run -m` is about to run and has not imported yet."""

ENVIRONMENT_ALLOWED = (
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_LAUNCH_BLOCKING",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUBLASLT_WORKSPACE_SIZE",
    "TORCH_CUBLASLT_UNIFIED_WORKSPACE",
    "OMP_NUM_THREADS",
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_PROCID",
    "SLURM_STEP_NUM_TASKS",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
)
"""Environment variables that are stored in the trace. Others may contain secrets."""

LAUNCHERS = (
    ("RANK", "WORLD_SIZE"),  # torchrun, and every launcher for torch.distributed's env://
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),  # srun; a batch script alone lacks the second
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
)
"""Environment variables with the rank and the number of ranks, one pair per launcher. The first pair set is used."""


def cuda_is_initialised() -> bool:
    import torch

    return bool(torch.cuda.is_initialized())


def other_gpu_platform() -> str | None:
    """Return the GPU platform of this torch if it is not recorded: "ROCm" or "XPU", else None."""
    import torch

    return "ROCm" if torch.version.hip else "XPU" if getattr(torch.version, "xpu", None) else None


def rank() -> str:
    return os.environ.get(_launcher()[0], os.environ.get("RANK", "0"))


def world_size() -> int | None:
    size = os.environ.get(_launcher()[1], "")
    return int(size) if size else None


def _launcher() -> tuple[str, str]:
    """Return the pair of LAUNCHERS that is set; without one, ("RANK", "")."""
    usable_pairs = [pair for pair in LAUNCHERS if all(os.environ.get(name, "").isdecimal() for name in pair)]
    return usable_pairs[0] if usable_pairs else ("RANK", "")


def cell_name(filename: str) -> str | None:
    """Return IPython's name of the notebook cell compiled under this file name, such as "In[3]", or None."""
    try:
        kind_and_name: tuple[str, str] | None = sys.modules["IPython"].get_ipython().compile.format_code_name(filename)
        return kind_and_name[1] if kind_and_name and kind_and_name[0] == "Cell" else None
    except Exception:  # no IPython, an old release, or a replaced compiler
        return None


def describe(trace: Path, spool: Path, devices: tuple[str, ...], options: dict[str, Any]) -> dict[str, Any]:
    """Return the header of a trace: the program, its versions and folders."""
    import torch

    main = sys.modules.get("__main__")
    node_count = getattr(torch._C._autograd, "_get_sequence_nr", int)()
    return {
        "program": _main_script(main),
        "arguments": sys.argv[1:],
        "working_directory": _working_directory(),
        "host": os.uname().nodename,
        "process": os.getpid(),
        "parent_process": os.getppid(),
        "rank": rank(),
        "world_size": world_size(),
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
        # Thread id, and number of autograd nodes that the thread created before the recording.
        "autograd_nodes": [threading.get_native_id(), node_count],
        "environment": {name: os.environ[name] for name in ENVIRONMENT_ALLOWED if name in os.environ},
    }


def _platform() -> str:
    """Return the value of platform.platform(), which would start a child process."""
    system = os.uname()
    try:
        library = (os.confstr("CS_GNU_LIBC_VERSION") or "").replace(" ", "")
    except (ValueError, OSError):  # another C library
        library = ""
    return "-".join([system.sysname, system.release, system.machine, *(["with", library] if library else [])])


def _working_directory() -> str:
    try:
        return str(Path.cwd())
    except FileNotFoundError:  # it was removed
        return ""


def _main_script(main: ModuleType | None) -> str:
    if main_module is not None:
        return f"-m {main_module}"
    path = getattr(main, "__file__", None)
    if isinstance(path, str):
        return os.path.abspath(path)
    return sys.argv[0] if sys.argv and sys.argv[0] else "interactive"
