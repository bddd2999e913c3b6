"""The recorded program: what the trace's header says about it."""

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
"""The module that `run -m` is about to run: nothing else knows its name yet."""

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
"""The environment variables that go into the trace. Others may hold secrets."""

LAUNCHERS = (
    ("RANK", "WORLD_SIZE"),  # torchrun, and whoever does as torch.distributed's env:// wants it
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),  # srun; a batch script alone has no number of tasks of a step
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
)
"""The environment variables with the rank and the number of ranks, by launcher; the first that has both counts."""


def cuda_is_initialised() -> bool:
    """Whether torch has initialised CUDA in this process. Asking does not."""
    import torch

    return bool(torch.cuda.is_initialized())


def other_gpu_platform() -> str | None:
    """The platform that torch was built for, if its GPUs are not recorded. Their users call them "cuda" too."""
    import torch

    return "ROCm" if torch.version.hip else "XPU" if getattr(torch.version, "xpu", None) else None


def rank() -> str:
    """This process's rank in a distributed run; "0" if unknown."""
    return os.environ.get(_launcher()[0], os.environ.get("RANK", "0"))


def world_size() -> int | None:
    """How many ranks the distributed run has that this process belongs to; None if it belongs to none."""
    size = os.environ.get(_launcher()[1], "")
    return int(size) if size else None


def _launcher() -> tuple[str, str]:
    """The variables of the launcher that started this process; those of torchrun if none did."""
    numbers = [pair for pair in LAUNCHERS if all(os.environ.get(name, "").isdecimal() for name in pair)]
    return numbers[0] if numbers else ("RANK", "")


def cell_name(filename: str) -> str | None:
    """What IPython calls the notebook cell that it compiled under this file name: "In[3]"; None for anything else."""
    try:
        named: tuple[str, str] | None = sys.modules["IPython"].get_ipython().compile.format_code_name(filename)
        return named[1] if named and named[0] == "Cell" else None
    except Exception:  # no IPython, an older one, or one whose compiler was replaced
        return None


def describe(trace: Path, spool: Path, devices: tuple[str, ...], options: dict[str, Any]) -> dict[str, Any]:
    """The header of a trace: the program, its versions and folders. Strings, numbers and lists only."""
    import torch

    main = sys.modules.get("__main__")
    nodes_made = getattr(torch._C._autograd, "_get_sequence_nr", int)()
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
        # Of this thread: nodes of a forward before the recording.
        "autograd_nodes": [threading.get_native_id(), nodes_made],
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


def _working_directory() -> str:
    """Return the working directory; "" if it was removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


def _main_script(main: ModuleType | None) -> str:
    if main_module is not None:
        return f"-m {main_module}"
    path = getattr(main, "__file__", None)
    if isinstance(path, str):
        return os.path.abspath(path)
    return sys.argv[0] if sys.argv and sys.argv[0] else "interactive"
