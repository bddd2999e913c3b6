"""How tests run programs: as a user does, each in its own process."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from warm_python import run_warm

ROOT = Path(__file__).resolve().parents[2]


def program_environment(**extra: str) -> dict[str, str]:
    """The environment of a traced program: this package importable, nothing of ours switched on. One thread computes,
    since the tests themselves occupy every core."""
    ours = ("ALLOCTRACE", "TORCHINDUCTOR")  # the second is set by torch, where a test has imported all of it
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    environment.setdefault("OMP_NUM_THREADS", "1")
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    # Behind what the tests themselves run under, a sanitizer perhaps, which has to be first.
    if preloaded := " ".join(filter(None, (one.get("LD_PRELOAD") for one in (environment, extra)))):
        extra["LD_PRELOAD"] = preloaded
    return {**environment, **extra}


def how_it_ended(ending: dict[str, Any]) -> dict[str, Any]:
    """The object of an end block, without what depends on how much time the machine left for the last look."""
    return {name: value for name, value in ending.items() if name != "last_look"}


def gpu_count() -> int:
    return len([*Path("/dev").glob("nvidia[0-9]*")])


def has_nvidia_gpu() -> bool:
    """Whether CUDA programs run on the machine's own GPU. Without a GPU, or with ALLOCTRACE_TEST_DEVICE=simulated, they
    run on the simulated device."""
    return gpu_count() > 0 and os.environ.get("ALLOCTRACE_TEST_DEVICE") != "simulated"


def torch_has_cuda() -> bool:
    """Whether the installed torch is built with CUDA, without importing it."""
    torch = importlib.util.find_spec("torch")
    return torch is not None and (Path(str(torch.origin)).parent / "lib" / "libc10_cuda.so").exists()


needs_cuda_build = pytest.mark.skipif(not torch_has_cuda(), reason="the installed torch is built without CUDA")


@contextlib.contextmanager
def only_one(lock: Path) -> Iterator[None]:
    """What one process makes under the lock, the others, which wait for it, find made."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@functools.cache
def build_simulated_device() -> None:
    """Before the programs: the build takes longer than their timeouts allow."""
    done = subprocess.run([ROOT / "tools/simcuda/run", "true"], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


def run_python(
    directory: Path,
    command: list[str],
    check: bool,
    timeout: float,
    environment: dict[str, str],
    fresh: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder. A Python program runs in a fork of a process that has imported torch, unless `fresh`:
    for tests of what a process is when it starts."""
    full_environment = program_environment(**environment)
    launcher, settings, words = _split_launcher(command)
    done: subprocess.CompletedProcess[str] | None = None
    if not fresh and len(words) > 1 and words[0] == sys.executable and _is_program(words[1]):
        done = run_warm(directory, launcher, words[1:], {**full_environment, **settings}, timeout)
    if done is None:
        done = subprocess.run(
            command,
            cwd=directory,
            env=full_environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
        )
    if check:
        assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}{done.stderr}"
    return done


def _is_program(word: str) -> bool:
    return word.endswith(".py") or word in ("-c", "-m")


def _split_launcher(command: list[str]) -> tuple[list[str], dict[str, str], list[str]]:
    """Split what with_cuda puts before a command, its options as variables, from the command."""
    is_simulated = command[0] == str(ROOT / "tools/simcuda/run") and sys.executable in command
    start = command.index(sys.executable) if is_simulated else 0
    launcher, settings = command[:start], {}
    while launcher[1:] and launcher[1].startswith("--"):
        option, _, value = launcher.pop(1)[2:].partition("=")
        settings[f"SIMCUDA_{option.upper()}"] = value or launcher.pop(1)
    return launcher, settings, command[start:]


def with_cuda(command: list[str], memory: str = "80GiB", devices: int = 1) -> list[str]:
    """The command with a CUDA device: under tools/simcuda/run, or unchanged on a machine with a GPU. Skips the test if
    torch is built without CUDA."""
    if not torch_has_cuda():
        pytest.skip("the installed torch is built without CUDA")
    if has_nvidia_gpu():
        return command
    build_simulated_device()
    return [str(ROOT / "tools/simcuda/run"), "--memory", memory, "--devices", str(devices), *command]
