"""`alloctrace live` and other commands on the trace of a running program."""

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
from test_incomplete_traces import EVENT_COMMANDS

from pytorch_alloctrace.analyze.trace_command import Exit
from pytorch_alloctrace.reading.following import Following

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
def running_program(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Yield a program that has run 60 steps and waits for `run_steps`."""
    (folder / "train.py").write_text(PROGRAM)
    with start_python(folder, "train.py") as program:
        run_steps(program, 60)
        yield program


def run_steps(program: subprocess.Popen[str], steps: int) -> None:
    print(steps, file=program.stdin, flush=True)
    assert program.stdout.readline()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield the folder of a running program, with its process id in `pid`."""
    folder = tmp_path_factory.mktemp("watched")
    with running_program(folder) as program:
        (folder / "pid").write_text(str(program.pid))
        yield folder


def test_live_reports_growth_of_running_program(folder: Path) -> None:
    pid = (folder / "pid").read_text()
    deadline = time.monotonic() + 300
    while "# the leak" not in (text := run_analyze(folder, "live", "run.alloctrace")) and time.monotonic() < deadline:
        time.sleep(0.1)  # source lines are read from their file after the event
    # All 60 blocks are read although nothing was flushed.
    assert "+48.8 KiB per step  train.py:7 in train, 2.86 MiB in 60 blocks" in text.partition("GROWS")[2]
    assert "train.py:7 in train" in run_analyze(folder, "live", pid, "--once")
    data = json.loads(run_analyze(folder, "live", "run.alloctrace", "--json"))
    assert (data["process"], data["steps"], data["unit"], data["events_lost"]) == (int(pid), 60, "step", 0)
    (device,) = data["devices"]
    assert device["device"] == "cpu" and device["requested_bytes"] == 60 * 50_000 and device["bytes_per_unit"] == 50_000
    assert [site["site"] for site in data["sites"] if site["grows"]] == ["train.py:7"]


@pytest.mark.parametrize("name", ["diagnose", "leaks", "annotate", "blocks", "timeline", "export", "verify"])
def test_command_reports_that_the_program_is_still_running(folder: Path, name: str) -> None:
    arguments = [word.replace("program.py", "train.py") for word in EVENT_COMMANDS[name]]
    process = run_command(folder, [name, "run.alloctrace", *arguments])
    assert process.returncode in (Exit.OK, Exit.FOUND), process.stderr
    assert "INCOMPLETE" not in process.stdout + process.stderr and "killed" not in process.stderr
    assert "The program is still running: this is the trace so far." in process.stderr


HOLDERS = """
import sys, torch
import pytorch_alloctrace as alloctrace

def main():
    alloctrace.enable("held.alloctrace", devices=("cpu",))
    words = {name: torch.ones(size) for name, size in (("small", 60), ("large", 1_000_000), ("tiny", 10))}
    large, rest = words.pop("large"), [*words.values()]
    halves = {number: torch.ones(500_000) for number in range(3)}
    parts = [halves.pop(number) for number in range(3)]
    one, two, three = parts
    del parts
    alloctrace.mark("scan")
    print("ready", flush=True)
    sys.stdin.read()

main()
"""


def test_live_names_the_object_that_holds_most_of_a_line(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(HOLDERS)
    with start_python(tmp_path, "program.py") as program:
        assert program.stdout.readline()
        data = json.loads(run_analyze(tmp_path, "live", "held.alloctrace", "--json"))

    holders = {site["site"]: site["holder"] for site in data["sites"]}
    assert holders["program.py:7"].startswith("large, local of main()")
    assert holders["program.py:9"] is None  # three variables hold a third each


PAUSE = """
import time, torch
import pytorch_alloctrace as alloctrace

with alloctrace.enable("t.alloctrace", devices=("cpu",)):
    tensor = torch.empty(25 * 2**20)
    time.sleep(1)
    del tensor
"""


def test_curve_keeps_its_level_during_a_pause(run_program, tmp_path: Path) -> None:
    run_program(PAUSE)

    (device,) = Following(str(tmp_path / "t.alloctrace")).advance().devices

    full_intervals = [level for level in device.counts.curve_allocated if level >= 100 * 2**20]
    assert len(full_intervals) > 10  # of 50 ms


def test_live_refuses_invalid_recording_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no trace")
    with subprocess.Popen(["sleep", "1000"]) as sleeper:
        try:
            for recording, reason in (
                (str(sleeper.pid), f"process {sleeper.pid} records nothing"),
                ("99999999", "there is no process 99999999"),
                ("missing.alloctrace", "No such file"),
                ("text", "is not an alloctrace trace"),
            ):
                error = run_analyze(tmp_path, "live", recording, status=Exit.BAD_INPUT)
                assert reason in error and error.count("\n") == 1
        finally:
            sleeper.kill()
    for options, reason in ((["--every", "0"], "is not a number of seconds"), (["other"], "give one trace")):
        assert reason in run_analyze(tmp_path, "live", "text", *options, status=Exit.BAD_INPUT)


MAIN_SCREEN = "<main screen>"


def strip_escapes(output: bytes) -> str:
    text = output.decode(errors="replace").replace("\x1b[?1049l", MAIN_SCREEN)
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text).replace("\r", "")


class Terminal:
    """A command in a terminal of 100 columns."""

    def __init__(self, folder: Path, *arguments: str, **environment: str) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 45, 100, 0, 0))
        environment = program_environment(TERM="xterm-256color", **environment)
        self.process = subprocess.Popen(
            [*COMMAND, *arguments],
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
        return strip_escapes(self.output)

    def _read(self) -> bool:
        """Read the next output and return whether the command is still running."""
        try:
            output = os.read(self._master, 65536)
        except OSError:
            return False
        self.output += output
        return bool(output)

    def read_until(self, text: str) -> None:
        deadline = time.monotonic() + 300
        while text not in self.text:
            assert time.monotonic() < deadline and self._read(), self.text[-3000:]

    def read_to_end(self) -> tuple[int, str]:
        """Return the exit status and the text of the main screen."""
        while self._read():
            pass
        os.close(self._master)
        return self.process.wait(600), self.text.rpartition(MAIN_SCREEN)[2]


def test_live_refreshes_terminal_until_interrupt_or_end_of_program(tmp_path: Path) -> None:
    with running_program(tmp_path) as program:
        terminal = Terminal(tmp_path, "live", "run.alloctrace")
        terminal.read_until("GROWS")
        terminal.process.send_signal(signal.SIGINT)
        status, screen = terminal.read_to_end()
        assert status == Exit.OK and "GROWS" in screen and "Traceback" not in screen
        terminal = Terminal(tmp_path, "live", "run.alloctrace", "--every", "0.2")
        terminal.read_until("60 steps")
        run_steps(program, 20)
        terminal.read_until("80 steps")
        program.communicate(timeout=600)
        assert program.returncode == 0
        status, screen = terminal.read_to_end()
    assert status == Exit.OK
    assert "The recording has ended. The verdict:" in screen and "LEAK" in screen and "train.py:7" in screen
    assert "GROWS" not in screen
    # After the end, text has the verdict; JSON has the status as before.
    assert "The recording has ended. The verdict:" in run_analyze(tmp_path, "live", "run.alloctrace")
    data = json.loads(run_analyze(tmp_path, "live", "run.alloctrace", "--json", "--top", "1"))
    assert (data["running"], data["steps"], len(data["devices"]), len(data["sites"])) == (False, 80, 1, 1)


def test_live_prints_verdict_when_program_is_killed(tmp_path: Path) -> None:
    with running_program(tmp_path) as program:
        terminal = Terminal(tmp_path, "live", str(program.pid), "--every", "0.2")
        terminal.read_until("GROWS")
        program.kill()
        program.wait()
        status, screen = terminal.read_to_end()
    assert status == Exit.OK
    assert "LEAK" in screen and "The recording was killed" in screen
