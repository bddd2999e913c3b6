"""The command started by a user: the installed script, the modules, Ctrl-C, closed pipes."""

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
    """Return the folder with a trace, and with the script and Python as pip installs them."""
    folder = tmp_path_factory.mktemp("script")
    run_source(folder, PROGRAM)
    (entry,) = re.findall(r'^alloctrace = "(.+):(.+)"$', (ROOT / "pyproject.toml").read_text(), flags=re.MULTILINE)
    (folder / "bin").mkdir()
    # A shim, not a link: Python would look for packages next to a link.
    _write_executable(folder / "bin/python3", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    text = f"#!{sys.executable}\nimport sys\nfrom {entry[0]} import {entry[1]}\n"
    _write_executable(folder / "bin/alloctrace", text + f"if __name__ == '__main__':\n    sys.exit({entry[1]}())\n")
    return folder


def _write_executable(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


MODULE = [sys.executable, "-m", "pytorch_alloctrace"]


def run(
    folder: Path,
    argv: list[str],
    stdout: Any = subprocess.PIPE,
    stderr: Any = subprocess.PIPE,
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv,
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
def test_script_and_both_modules_print_the_same(folder: Path, arguments: list[str]) -> None:
    commands = (MODULE, ["bin/alloctrace"], [sys.executable, "-m", "pytorch_alloctrace.analyze"])
    module, script, analyze = (run(folder, [*command, *arguments]) for command in commands)
    for other in (script, analyze):
        assert (other.returncode, other.stdout, other.stderr) == (module.returncode, module.stdout, module.stderr)
    assert "Traceback" not in module.stderr


def test_run_gives_program_the_arguments_and_path_of_python(folder: Path) -> None:
    (folder / "mirror.py").write_text("import json, sys; print(json.dumps([sys.argv, sys.path, __spec__ is None]))")
    unrecorded = run(folder, [sys.executable, "mirror.py", "-x"])
    recorded = run(folder, ["bin/alloctrace", "run", "--output", "m.alloctrace", "mirror.py", "-x"], PATH="/usr/bin")
    assert (recorded.returncode, recorded.stdout) == (0, unrecorded.stdout), recorded.stderr
    hint = recorded.stderr.strip().partition("read it with: ")[2]
    assert hint == f"{sys.executable} -m pytorch_alloctrace m.alloctrace"


def test_run_records_module_under_its_own_name(folder: Path) -> None:
    (folder / "test_one.py").write_text("import torch\ndef test_one(): torch.empty(10)")
    argv = [*MODULE, "run", "--output", "p.alloctrace", "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_one.py"]

    process = run_python(folder, argv, check=False, timeout=600, environment={})

    assert process.returncode == 0 and "1 passed" in process.stdout, process.stdout + process.stderr
    trace = alloctrace.load(folder / "p.alloctrace")
    assert trace.header["program"] == "-m pytest"
    assert "-m pytest -q -p no:cacheprovider test_one.py" in str(trace.diagnose())


def test_alloctrace_variable_does_not_record_the_script(folder: Path) -> None:
    process = run(folder, ["bin/alloctrace", "t.alloctrace"], ALLOCTRACE=str(folder / "stray.alloctrace"))
    assert process.returncode == 0 and not (folder / "stray.alloctrace").exists()


def test_hint_is_alloctrace_when_script_is_on_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(folder / "bin"))
    monkeypatch.setattr(sys, "executable", str(folder / "bin/python3"))
    assert command.spelled() == "alloctrace"


@pytest.mark.parametrize(
    ("arguments", "closed"), [(["t.alloctrace"], "stdout"), (["t.alloctrace"], "both"), (["run", "--help"], "both")]
)
def test_closed_pipe_exits_141_without_error(folder: Path, arguments: list[str], closed: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as output:
        errors = subprocess.PIPE if closed == "stdout" else output
        # Buffered: otherwise argparse, which prints the help, swallows the error.
        process = run(folder, [*MODULE, *arguments], output, errors, PYTHONUNBUFFERED="")
    assert process.returncode == 141 and not process.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no device that is always full")
def test_full_device_exits_2_with_one_line(folder: Path) -> None:
    with open("/dev/full", "wb") as full:
        process = run(folder, [*MODULE, "sites", "t.alloctrace", "--json"], full)
    assert process.returncode == 2
    assert process.stderr == "alloctrace: error: cannot write the output: No space left on device\n"


def test_process_continues_after_running_the_command(folder: Path) -> None:
    code = "import sys; sys.argv = ['alloctrace', 't.alloctrace']; "
    code += "from pytorch_alloctrace.__main__ import script; print('status', script())"
    assert run(folder, [sys.executable, "-c", code]).stdout.endswith("status 0\n")
    process = run(folder, [sys.executable, "-m", "cProfile", "-o", "profile", *MODULE[1:], "t.alloctrace"])
    assert process.returncode == 0 and (folder / "profile").stat().st_size


# The recorded program also runs without stdout.
@pytest.mark.parametrize(
    ("arguments", "closed", "status"),
    [
        (["t.alloctrace"], "2>&-", 0),
        (["t.alloctrace"], ">&-", 0),
        (["--help"], ">&-", 0),
        (["run", "--output", "stdout.alloctrace", "stdout.py"], ">&-", 3),
    ],
)
def test_command_runs_when_a_stream_is_closed(folder: Path, arguments: list[str], closed: str, status: int) -> None:
    (folder / "stdout.py").write_text("import sys; sys.exit(3 if sys.stdout is None else 4)")
    process = run(folder, ["sh", "-c", f"{shlex.join([*MODULE, *arguments])} {closed}"])
    assert (process.returncode, bool(process.stdout)) == (status, closed == "2>&-"), process.stderr
    assert status or not process.stderr


INTERRUPTER = """
import os, signal, sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["INTERRUPT_AT"]:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
"""


# The package imports typing after `command`; `run` imports torch.nn before it starts the program.
@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("typing", ["peak", "t.alloctrace"]),
        ("pytorch_alloctrace.reading.recorded", ["peak", "t.alloctrace"]),
        ("torch.nn", ["run", "--output", "interrupted.alloctrace", "program.py"]),
    ],
)
def test_interrupt_during_import_exits_130_with_one_line(folder: Path, module: str, arguments: list[str]) -> None:
    (folder / "site").mkdir(exist_ok=True)
    (folder / "site/sitecustomize.py").write_text(INTERRUPTER)
    path = os.pathsep.join([str(folder / "site"), program_environment()["PYTHONPATH"]])
    process = run(folder, [*MODULE, *arguments], INTERRUPT_AT=module, PYTHONPATH=path)
    assert (process.returncode, process.stderr) == (130, "alloctrace: interrupted\n")
    assert not list(folder.glob("interrupted*"))


def test_interrupt_at_any_time_exits_130_with_one_line(folder: Path) -> None:
    statuses = set()
    for number in range(4):
        with start_python(folder, *MODULE[1:], "t.alloctrace") as process:
            # Not earlier, while Python itself is starting.
            while process.poll() is None and "_replay" not in Path(f"/proc/{process.pid}/maps").read_text():
                time.sleep(0.01)
            time.sleep(0.15 * number)
            process.send_signal(signal.SIGINT)
            _, error = process.communicate(timeout=600)
        statuses.add(process.returncode)
        assert (process.returncode, error) in ((130, "alloctrace: interrupted\n"), (0, "")), error
    assert 130 in statuses
