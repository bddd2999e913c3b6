"""How tests run programs: as a user does, in processes of their own."""

from __future__ import annotations

import functools
import importlib.util
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def program_environment(**extra: str) -> dict[str, str]:
    """The environment of a traced program: this package importable, nothing of ours switched on."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ALLOCTRACE")}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**environment, **extra}


def gpu_count() -> int:
    return len([*Path("/dev").glob("nvidia[0-9]*")])


def has_nvidia_gpu() -> bool:
    """Whether CUDA programs run on the machine's own GPU here, and not on the simulated device, which
    ALLOCTRACE_TEST_DEVICE=simulated asks for where there is a GPU."""
    return gpu_count() > 0 and os.environ.get("ALLOCTRACE_TEST_DEVICE") != "simulated"


def torch_has_cuda() -> bool:
    """Whether the installed torch is built with CUDA; torch is not imported for it."""
    torch = importlib.util.find_spec("torch")
    return torch is not None and (Path(str(torch.origin)).parent / "lib" / "libc10_cuda.so").exists()


needs_cuda_build = pytest.mark.skipif(not torch_has_cuda(), reason="the installed torch is built without CUDA")


@functools.cache
def build_simulated_device() -> None:
    """Apart from the programs: it takes longer than they may."""
    done = subprocess.run([ROOT / "tools/simcuda/run", "true"], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


def run_python(
    directory: Path, command: list[str], check: bool, timeout: float, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command,
        cwd=directory,
        env=program_environment(**environment),
        capture_output=True,
        text=True,
        timeout=timeout,
        stdin=subprocess.DEVNULL,
    )
    if check:
        assert done.returncode == 0, done.stdout + done.stderr
    return done


def with_cuda(command: list[str], memory: str = "80GiB", devices: int = 1) -> list[str]:
    """The command with a CUDA device: under tools/simcuda/run, or as it is where the machine has a GPU. Skips where
    torch is built without CUDA."""
    if not torch_has_cuda():
        pytest.skip("the installed torch is built without CUDA")
    if has_nvidia_gpu():
        return command
    build_simulated_device()
    return [str(ROOT / "tools/simcuda/run"), "--memory", memory, "--devices", str(devices), *command]
