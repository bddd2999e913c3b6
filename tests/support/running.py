"""Runner of programs, each in its own process, as a user runs them."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from warm_python import run_warm

ROOT = Path(__file__).resolve().parents[2]
SUPPORT = ROOT / "tests/support"
WITH_SUPPORT = os.pathsep.join([str(ROOT), str(SUPPORT)])
"""PYTHONPATH of programs that import modules of tests/support."""


def program_environment(**extra: str) -> dict[str, str]:
    """Return the environment of a traced program: torch uses one thread, since the tests occupy every core."""
    excluded = ("ALLOCTRACE", "TORCHINDUCTOR")  # torch sets the second when a test has imported all of torch
    environment = {name: value for name, value in os.environ.items() if not name.startswith(excluded)}
    environment.setdefault("OMP_NUM_THREADS", "1")
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    # The test process's preloaded library must come first: a sanitizer does not start after another library.
    if preloaded := " ".join(filter(None, (variables.get("LD_PRELOAD") for variables in (environment, extra)))):
        extra["LD_PRELOAD"] = preloaded
    return {**environment, **extra}


def ending_without_scan(ending: dict[str, Any]) -> dict[str, Any]:
    """Return the object of an end block without the final scan, which depends on the machine's load."""
    return {name: value for name, value in ending.items() if name != "final_scan"}


def gpu_count() -> int:
    return len([*Path("/dev").glob("nvidia[0-9]*")])


def has_nvidia_gpu() -> bool:
    """Return whether CUDA programs run on a GPU instead of the simulated device."""
    return gpu_count() > 0 and os.environ.get("ALLOCTRACE_TEST_DEVICE") != "simulated"


def torch_has_cuda() -> bool:
    """Return whether the installed torch is built with CUDA, without importing it."""
    torch = importlib.util.find_spec("torch")
    return torch is not None and (Path(str(torch.origin)).parent / "lib" / "libc10_cuda.so").exists()


needs_cuda_build = pytest.mark.skipif(not torch_has_cuda(), reason="the installed torch is built without CUDA")


@contextlib.contextmanager
def hold_lock(lock: Path) -> Iterator[None]:
    """Hold a lock file; other processes wait."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def run_compiler(command: Sequence[str], folder: Path | None = None) -> None:
    process = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr


@functools.cache
def build_simulated_device() -> None:
    """Build the simulated device before any program runs: the build takes longer than the timeouts of programs."""
    process = subprocess.run([ROOT / "tools/simcuda/run", "true"], capture_output=True, text=True, timeout=600)
    assert process.returncode == 0, process.stdout + process.stderr


def run_python(
    directory: Path,
    command: list[str],
    check: bool,
    timeout: float,
    environment: dict[str, str],
    fresh: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder; fork a Python program from a process that has imported torch, unless `fresh`."""
    full_environment = program_environment(**environment)
    launcher, settings, arguments = _split_launcher(command)
    process: subprocess.CompletedProcess[str] | None = None
    if not fresh and len(arguments) > 1 and arguments[0] == sys.executable and _is_program(arguments[1]):
        process = run_warm(directory, launcher, arguments[1:], {**full_environment, **settings}, timeout)
    if process is None:
        process = subprocess.run(
            command,
            cwd=directory,
            env=full_environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
        )
    if check:
        assert process.returncode == 0, f"exit status {process.returncode}\n{process.stdout}{process.stderr}"
    return process


def _is_program(argument: str) -> bool:
    return argument.endswith(".py") or argument in ("-c", "-m")


def _split_launcher(command: list[str]) -> tuple[list[str], dict[str, str], list[str]]:
    """Split a command into with_cuda's launcher, the launcher's options as environment variables, and the program."""
    is_simulated = command[0] == str(ROOT / "tools/simcuda/run") and sys.executable in command
    start = command.index(sys.executable) if is_simulated else 0
    launcher, settings = command[:start], {}
    while launcher[1:] and launcher[1].startswith("--"):
        option, _, value = launcher.pop(1)[2:].partition("=")
        settings[f"SIMCUDA_{option.upper()}"] = value or launcher.pop(1)
    return launcher, settings, command[start:]


def with_cuda(command: list[str], memory: str = "80GiB", devices: int = 1) -> list[str]:
    """Return the command, on the simulated device if there is no GPU. Skip the test if torch is built without CUDA."""
    if not torch_has_cuda():
        pytest.skip("the installed torch is built without CUDA")
    if has_nvidia_gpu():
        return command
    build_simulated_device()
    return [str(ROOT / "tools/simcuda/run"), "--memory", memory, "--devices", str(devices), *command]


def restore_signals() -> None:
    """Restore signal handlers in a child process: a shell's background job ignores SIGINT, nohup ignores SIGHUP."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@contextlib.contextmanager
def start_python(folder: Path, *arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Start `python ARGUMENTS` in a folder, with pipes; kill the process at the end if it still runs."""
    with subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder,
        env=program_environment(**environment),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=restore_signals,
    ) as process:
        try:
            yield process
        finally:
            process.kill()
