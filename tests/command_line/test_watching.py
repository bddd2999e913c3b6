"""`alloctrace live`, and every other command, on the trace of a program that runs."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from command_line import run_command
from marked_programs import run_analyze
from running import program_environment, restore_signals, start_python
from test_never_misread import FIRST

from pytorch_alloctrace.analyze.trace_command import Exit

PROGRAM = """
import sys, torch
import pytorch_alloctrace as alloctrace
alloctrace.enable("run.alloctrace", devices="cpu")
kept = []
def train():
    kept.append(torch.empty(50_000, dtype=torch.uint8))  # the leak
    return torch.empty(1000)
for line in sys.stdin:
    for _ in range(int(line)):
        with alloctrace.region("round"):
            train()
        alloctrace.step()
    alloctrace.mark("told")
    print(len(kept), flush=True)
"""
COMMAND = [sys.executable, "-m", "pytorch_alloctrace"]


@contextmanager
def running(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A program that takes as many steps as it is told, and waits."""
    (folder / "train.py").write_text(PROGRAM)
    with start_python(folder, "train.py") as program:
        tell(program, 60)
        yield program


def tell(program: subprocess.Popen[str], steps: int) -> None:
    print(steps, file=program.stdin, flush=True)
    assert program.stdout.readline()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Of a program that runs."""
    made = tmp_path_factory.mktemp("watched")
    with running(made) as program:
        (made / "pid").write_text(str(program.pid))
        yield made


def test_a_look(folder: Path) -> None:
    pid = (folder / "pid").read_text()
    ends = time.monotonic() + 300
    while "# the leak" not in (by_path := run_analyze(folder, "live", "run.alloctrace")) and time.monotonic() < ends:
        time.sleep(0.1)  # the text of a line is read from its file a moment after the event
    # Exactly: 60 blocks are there, though nothing was flushed.
    assert "+48.8 KiB per step  train.py:7 in train, 2.86 MiB in 60 blocks" in by_path.partition("GROWS")[2]
    assert "train.py:7 in train" in run_analyze(folder, "live", pid, "--once")
    data = json.loads(run_analyze(folder, "live", "run.alloctrace", "--json"))
    assert (data["process"], data["steps"], data["unit"], data["events_lost"]) == (int(pid), 60, "step", 0)
    (device,) = data["devices"]
    assert device["device"] == "cpu" and device["requested_bytes"] == 60 * 50_000 and device["bytes_per_unit"] == 50_000
    assert [site["site"] for site in data["sites"] if site["grows"]] == ["train.py:7"]


@pytest.mark.parametrize("name", ["diagnose", "leaks", "annotate", "blocks", "timeline", "export", "verify"])
def test_verb_of_a_running_recording_answers_and_says_that_the_program_runs(folder: Path, name: str) -> None:
    words = [word.replace("program.py", "train.py") for word in FIRST[name]]
    done = run_command(folder, [name, "run.alloctrace", *words])
    assert done.returncode in (Exit.OK, Exit.FOUND), done.stderr
    assert "INCOMPLETE" not in done.stdout + done.stderr and "killed" not in done.stderr
    assert "The program is still running: this is the trace so far." in done.stderr


def test_what_is_no_recording_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no trace")
    with subprocess.Popen(["sleep", "1000"]) as sleeper:
        try:
            for what, why in (
                (str(sleeper.pid), f"process {sleeper.pid} records nothing"),
                ("99999999", "there is no process 99999999"),
                ("missing.alloctrace", "No such file"),
                ("text", "is not an alloctrace trace"),
            ):
                error = run_analyze(tmp_path, "live", what, status=Exit.BAD_INPUT)
                assert why in error and error.count("\n") == 1
        finally:
            sleeper.kill()
    for options, why in ((["--every", "0"], "is not a number of seconds"), (["other"], "give one trace")):
        assert why in run_analyze(tmp_path, "live", "text", *options, status=Exit.BAD_INPUT)


BACK = "<back to the first screen>"


def plain(read: bytes) -> str:
    text = read.decode(errors="replace").replace("\x1b[?1049l", BACK)
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text).replace("\r", "")


class Terminal:
    """A command in a terminal of 100 columns."""

    def __init__(self, folder: Path, *words: str, **environment: str) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 45, 100, 0, 0))
        environment = program_environment(TERM="xterm-256color", **environment)
        self.process = subprocess.Popen(
            [*COMMAND, *words],
            cwd=folder,
            env=environment,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            preexec_fn=restore_signals,
        )
        os.close(slave)
        self.output = b""

    @property
    def text(self) -> str:
        return plain(self.output)

    def _read(self) -> bool:
        """Reads what comes next. False: the command has ended."""
        try:
            read = os.read(self._master, 65536)
        except OSError:
            return False
        self.output += read
        return bool(read)

    def until(self, wanted: str) -> None:
        ends = time.monotonic() + 300
        while wanted not in self.text:
            assert time.monotonic() < ends and self._read(), self.text[-3000:]

    def rest(self) -> tuple[int, str]:
        """Its exit status, and what is on the screen when the other one is gone."""
        while self._read():
            pass
        os.close(self._master)
        return self.process.wait(600), self.text.rpartition(BACK)[2]


def test_ctrl_c_leaves_the_last_look_and_else_a_terminal_is_refreshed_until_the_program_ends(tmp_path: Path) -> None:
    with running(tmp_path) as program:
        terminal = Terminal(tmp_path, "live", "run.alloctrace")
        terminal.until("GROWS")
        terminal.process.send_signal(signal.SIGINT)
        status, shown = terminal.rest()
        assert status == Exit.OK and "GROWS" in shown and "Traceback" not in shown
        terminal = Terminal(tmp_path, "live", "run.alloctrace", "--every", "0.2")
        terminal.until("60 steps")
        tell(program, 20)
        terminal.until("80 steps")
        program.communicate(timeout=600)
        assert program.returncode == 0
        status, shown = terminal.rest()
    assert status == Exit.OK
    assert "The recording has ended. The verdict:" in shown and "LEAK" in shown and "train.py:7" in shown
    assert "GROWS" not in shown
    # Afterwards, the verdict; as JSON, the same as before.
    assert "The recording has ended. The verdict:" in run_analyze(tmp_path, "live", "run.alloctrace")
    data = json.loads(run_analyze(tmp_path, "live", "run.alloctrace", "--json", "--top", "1"))
    assert (data["running"], data["steps"], len(data["devices"]), len(data["sites"])) == (False, 80, 1, 1)


def test_a_killed_program_ends_with_its_verdict_too(tmp_path: Path) -> None:
    with running(tmp_path) as program:
        terminal = Terminal(tmp_path, "live", str(program.pid), "--every", "0.2")
        terminal.until("GROWS")
        program.kill()
        program.wait()
        status, shown = terminal.rest()
    assert status == Exit.OK
    assert "LEAK" in shown and "The recording was killed" in shown
