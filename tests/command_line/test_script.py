"""The command as a user starts it: the installed script, the modules, Ctrl-C, pipes that close."""

from __future__ import annotations

import os
import re
import shlex
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from running import ROOT, program_environment, restore_signals, run_python, start_python
from shared_recordings import run_source

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace import command

PROGRAM = """
import torch, pytorch_alloctrace as alloctrace
with alloctrace.enable("t.alloctrace"):
    held = [torch.empty(1000) for _ in range(10)]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Has a trace, and the script as pip installs it, next to a Python of the same folder."""
    made = tmp_path_factory.mktemp("script")
    run_source(made, PROGRAM)
    (entry,) = re.findall(r'^alloctrace = "(.+):(.+)"$', (ROOT / "pyproject.toml").read_text(), flags=re.MULTILINE)
    (made / "bin").mkdir()
    # A shim, not a link: a link would find the packages of its own folder.
    _make(made / "bin/python3", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    text = f"#!{sys.executable}\nimport sys\nfrom {entry[0]} import {entry[1]}\n"
    _make(made / "bin/alloctrace", text + f"if __name__ == '__main__':\n    sys.exit({entry[1]}())\n")
    return made


def _make(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


MODULE = [sys.executable, "-m", "pytorch_alloctrace"]


def run(
    folder: Path, words: list[str], stdout: Any = subprocess.PIPE, stderr: Any = subprocess.PIPE, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words,
        cwd=folder,
        env=program_environment(**environment),
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        text=True,
        timeout=600,
        preexec_fn=restore_signals,
    )


@pytest.mark.parametrize("arguments", [["peak", "t.alloctrace"], ["leeks"], []], ids=" ".join)
def test_script_and_both_modules_are_the_same_command(folder: Path, arguments: list[str]) -> None:
    commands = (MODULE, ["bin/alloctrace"], [sys.executable, "-m", "pytorch_alloctrace.analyze"])
    module, script, analyze = (run(folder, [*command, *arguments]) for command in commands)
    for other in (script, analyze):
        assert (other.returncode, other.stdout, other.stderr) == (module.returncode, module.stdout, module.stderr)
    assert "Traceback" not in module.stderr


def test_a_recorded_program_finds_what_it_finds_under_python(folder: Path) -> None:
    (folder / "mirror.py").write_text("import json, sys; print(json.dumps([sys.argv, sys.path, __spec__ is None]))")
    plain = run(folder, [sys.executable, "mirror.py", "-x"])
    ours = run(folder, ["bin/alloctrace", "run", "--output", "m.alloctrace", "mirror.py", "-x"], PATH="/usr/bin")
    assert (ours.returncode, ours.stdout) == (0, plain.stdout), ours.stderr
    hint = ours.stderr.strip().partition("read it with: ")[2]
    assert hint == f"{sys.executable} -m pytorch_alloctrace m.alloctrace"


def test_a_module_keeps_its_name(folder: Path) -> None:
    (folder / "test_one.py").write_text("import torch\ndef test_one(): torch.empty(10)")
    words = [*MODULE, "run", "--output", "p.alloctrace", "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_one.py"]
    done = run_python(folder, words, check=False, timeout=600, environment={})
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr
    trace = alloctrace.load(folder / "p.alloctrace")
    assert trace.header["program"] == "-m pytest"
    assert "-m pytest -q -p no:cacheprovider test_one.py" in str(trace.diagnose())


def test_the_environment_does_not_record_the_script(folder: Path) -> None:
    done = run(folder, ["bin/alloctrace", "t.alloctrace"], ALLOCTRACE=str(folder / "stray.alloctrace"))
    assert done.returncode == 0 and not (folder / "stray.alloctrace").exists()


def test_hints_have_the_shortest_spelling_that_works(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(folder / "bin"))
    monkeypatch.setattr(sys, "executable", str(folder / "bin/python3"))
    assert command.spelled() == "alloctrace"


@pytest.mark.parametrize(
    ("arguments", "closed"), [(["t.alloctrace"], "stdout"), (["t.alloctrace"], "both"), (["run", "--help"], "both")]
)
def test_a_closed_pipe_is_no_error(folder: Path, arguments: list[str], closed: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as output:
        errors = subprocess.PIPE if closed == "stdout" else output
        # Buffered: else argparse, which prints the help, swallows the error itself.
        done = run(folder, [*MODULE, *arguments], output, errors, PYTHONUNBUFFERED="")
    assert done.returncode == 141 and not done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no device that is always full")
def test_a_full_device_is_one_line(folder: Path) -> None:
    with open("/dev/full", "wb") as full:
        done = run(folder, [*MODULE, "sites", "t.alloctrace", "--json"], full)
    assert done.returncode == 2
    assert done.stderr == "alloctrace: error: cannot write the output: No space left on device\n"


def test_a_process_that_runs_the_command_goes_on(folder: Path) -> None:
    code = "import sys; sys.argv = ['alloctrace', 't.alloctrace']; "
    code += "from pytorch_alloctrace.__main__ import script; print('status', script())"
    assert run(folder, [sys.executable, "-c", code]).stdout.endswith("status 0\n")
    done = run(folder, [sys.executable, "-m", "cProfile", "-o", "profile", *MODULE[1:], "t.alloctrace"])
    assert done.returncode == 0 and (folder / "profile").stat().st_size


# A recorded program has no stdout either.
@pytest.mark.parametrize(
    ("arguments", "closed", "status"),
    [
        (["t.alloctrace"], "2>&-", 0),
        (["t.alloctrace"], ">&-", 0),
        (["--help"], ">&-", 0),
        (["run", "--output", "stdout.alloctrace", "stdout.py"], ">&-", 3),
    ],
)
def test_nobody_needs_a_stream(folder: Path, arguments: list[str], closed: str, status: int) -> None:
    (folder / "stdout.py").write_text("import sys; sys.exit(3 if sys.stdout is None else 4)")
    done = run(folder, ["sh", "-c", f"{shlex.join([*MODULE, *arguments])} {closed}"])
    assert (done.returncode, bool(done.stdout)) == (status, closed == "2>&-"), done.stderr
    assert status or not done.stderr


INTERRUPTER = """
import os, signal, sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["INTERRUPT_AT"]:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
"""


# With typing the package begins, after `command`; with torch.nn, what `run` needs before the program begins.
@pytest.mark.parametrize(
    ("moment", "words"),
    [
        ("typing", ["peak", "t.alloctrace"]),
        ("pytorch_alloctrace.reading.recorded", ["peak", "t.alloctrace"]),
        ("torch.nn", ["run", "--output", "interrupted.alloctrace", "program.py"]),
    ],
)
def test_an_interrupt_during_an_import_is_one_line(folder: Path, moment: str, words: list[str]) -> None:
    """The import of a module sends the command SIGINT."""
    (folder / "site").mkdir(exist_ok=True)
    (folder / "site/sitecustomize.py").write_text(INTERRUPTER)
    path = os.pathsep.join([str(folder / "site"), program_environment()["PYTHONPATH"]])
    done = run(folder, [*MODULE, *words], INTERRUPT_AT=moment, PYTHONPATH=path)
    assert (done.returncode, done.stderr) == (130, "alloctrace: interrupted\n")
    assert not list(folder.glob("interrupted*"))


def test_an_interrupt_at_any_time_is_one_line(folder: Path) -> None:
    statuses = set()
    for number in range(4):
        with start_python(folder, *MODULE[1:], "t.alloctrace") as started:
            # From where the package is loaded: before, Python itself is starting.
            while started.poll() is None and "_replay" not in Path(f"/proc/{started.pid}/maps").read_text():
                time.sleep(0.01)
            time.sleep(0.15 * number)
            started.send_signal(signal.SIGINT)
            _, error = started.communicate(timeout=600)
        statuses.add(started.returncode)
        assert (started.returncode, error) in ((130, "alloctrace: interrupted\n"), (0, "")), error
    assert 130 in statuses
