"""SIGTERM: the trace is ended and its spool removed, and the program dies of the signal as it would without us."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from running import program_environment, with_cuda

import pytorch_alloctrace as alloctrace

BEGIN = """
import ctypes, os, signal, subprocess, sys, threading, time
import torch
import pytorch_alloctrace as alloctrace
def ready():
    print("ready", flush=True)
"""


def start(folder: Path, source: str, *launcher: str, cuda: bool = False, **environment: str) -> subprocess.Popen[str]:
    """Starts BEGIN and `source`, and returns when the program says that it is ready."""
    (folder / "program.py").write_text(BEGIN + textwrap.dedent(source))
    command = [sys.executable, *launcher, "program.py"]
    started = subprocess.Popen(
        with_cuda(command) if cuda else command,
        cwd=folder,
        env=program_environment(**environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert started.stdout is not None
    line = started.stdout.readline()
    assert line == "ready\n", (line, started.communicate(timeout=300))
    return started


def terminated(started: subprocess.Popen[str]) -> tuple[int, str, str]:
    """The exit status, and what the program printed after a SIGTERM."""
    os.kill(started.pid, signal.SIGTERM)
    out, error = started.communicate(timeout=300)
    return started.returncode, out, error


def ended(path: Path) -> alloctrace.Trace:
    """A trace that must have come to its end by SIGTERM, without a spool."""
    trace = alloctrace.load(path)
    assert trace.integrity.ended and trace.integrity.state == "complete" and not trace.integrity.spool_read
    assert trace.ending == {"reason": "SIGTERM"}
    assert not path.with_name(path.name + ".spool").exists()
    return trace


CALLS = {
    "sleep": "time.sleep(1000)",
    "pause": "signal.pause(); print('woken')",
    "C call": "ctypes.PyDLL(None).sleep(1000)",  # with the GIL held, so that no Python code runs
    "busy": "\nwhile True: [torch.empty(100) for _ in range(100)]",
    "malloc": "\nwhile True: sum(len(bytes(n)) for n in range(513, 4096))",
    "lock": "lock = threading.Lock(); lock.acquire(); lock.acquire()",
    "thread": "\nthreading.Thread(target=lambda: time.sleep(1000)).start()",
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("launcher", [(), ("-m", "pytorch_alloctrace", "run", "--out", "t.alloctrace")], ids=str)
def test_a_program_dies_by_the_signal_and_its_trace_is_whole(tmp_path: Path, call: str, launcher: tuple[str, ...]) -> None:
    enable = "" if launcher else 'alloctrace.enable("t.alloctrace")'
    source = f"""
        {enable}
        held = [torch.empty(777) for _ in range(1000)]
        ready()
        """
    status, out, error = terminated(start(tmp_path, textwrap.dedent(source) + CALLS[call], *launcher))
    assert (status, out, error) == (-signal.SIGTERM, "", "")
    trace = ended(tmp_path / "t.alloctrace")
    live = trace.live()
    mine = live[live["nbytes"] == 777 * 4]
    assert len(mine) == 1000 and set(mine["line"]) == {9 if not launcher else 9}
    assert trace.frames(int(mine["stack_id"].iloc[0]))[0].source == "held = [torch.empty(777) for _ in range(1000)]"
