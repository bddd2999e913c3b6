"""Concurrent builds in one folder: the second waits and does not build again."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from running import ROOT, hold_lock
from test_building import CXX, write_script
from test_install import copy_sources


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    """Kill the processes in this list after the test."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()


def start(command: list[str | Path], folder: Path, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_setup_waits_for_another_build(tmp_path: Path, started: list[subprocess.Popen[str]]) -> None:
    checkout = copy_sources(tmp_path / "checkout")
    with hold_lock(checkout / "build" / "setup.lock"):
        command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
        started.append(start(command, checkout, ALLOCTRACE_READER_ONLY="1", CXX="false"))
        assert any("waiting for another build in this folder" in line for line in started[0].stderr)
        assert started[0].poll() is None

    # The build continues until the failing compiler, and ends in one sentence.
    remaining_output = started[0].stderr.read()

    assert started[0].wait(timeout=600) != 0 and "Traceback" not in remaining_output
    assert remaining_output.splitlines()[-1] == "pytorch_alloctrace: false failed without a message"


def test_environment_waits_for_another(tmp_path: Path, started: list[subprocess.Popen[str]]) -> None:
    """Replace the parts of the script that take minutes with a stub."""
    (tmp_path / "tools").mkdir()
    text = (ROOT / "tools" / "environment").read_text()
    end = text.index("if [ -e .venv/unfinished ]")
    tool = tmp_path / "tools" / "environment"
    tool.write_text(text[:end] + 'echo "$python"\n')
    tool.chmod(0o755)
    with hold_lock(tmp_path / "build" / "environment.lock"):
        started.append(start([tool], tmp_path))
        assert "waiting for another tools/environment in this folder" in started[0].stderr.readline()
        assert started[0].poll() is None

    output, _ = started[0].communicate(timeout=600)

    assert output == f"{tmp_path}/.venv/bin/python\n"


def test_simulated_device_is_built_once(tmp_path: Path, started: list[subprocess.Popen[str]]) -> None:
    """Start three programs at once while the library is missing."""
    folder = tmp_path / "tools" / "simcuda"
    folder.mkdir(parents=True)
    shutil.copy(ROOT / "tools" / "simcuda" / "run", folder)
    output = tmp_path / "build" / "simcuda"
    compile_nothing = f"{CXX} -shared -o {output}/libsimcuda.so -x c /dev/null"
    wait = f"echo built >> {tmp_path}/builds\nread goes_on < {tmp_path}/pipe"
    write_script(folder / "build", f"{wait}\n{compile_nothing}")
    os.mkfifo(tmp_path / "pipe")
    started += [start([folder / "run", "echo", "ran"], tmp_path) for _ in range(3)]
    with open(tmp_path / "pipe", "w"):  # blocks until a build opens the pipe
        assert (tmp_path / "builds").exists()

    results = [process.communicate(timeout=600) for process in started]
    assert [output for output, _ in results] == ["ran\n"] * 3, results
    assert (tmp_path / "builds").read_text() == "built\n"
