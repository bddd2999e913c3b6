"""Processes that a recorded program starts."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from child_programs import program_with_child
from marked_programs import run_analyze
from running import run_python
from shared_recordings import record_once

import pytorch_alloctrace as alloctrace

PROGRAM = r"""
import ctypes, json, os, signal, subprocess, time, torch
import pytorch_alloctrace as alloctrace

alloctrace.enable("killed.alloctrace", devices=("cpu",))

def wait_for(**fields):
    while True:  # until the test's timeout; unlike the session's load, this reads the spool
        for row in alloctrace.load("killed.alloctrace").children().to_dict("records"):
            if all(str(value) in str(row[name]) for name, value in fields.items()):
                return row["process"]
        time.sleep(0.05)

popen = subprocess.Popen(["sleep", "1000"], env={**os.environ, "SECRET": "of the environment"})
wait_for(process=popen.pid, command="sleep 1000")
popen.kill()
popen.wait()
alloctrace.mark("the first has ended")

shell = subprocess.Popen(["sh", "-c", "sleep 2000; true"])
grandchild = wait_for(parent_process=shell.pid, command="sleep 2000")

read, write = os.pipe()
forked = os.fork()
if forked == 0:
    os.read(read, 1)
    os.execvp("sh", ["sh", "-c", "sleep 3000; true " + "x" * 2000])
wait_for(process=forked, command="python")
os.write(write, b"1")
wait_for(process=forked, command="sleep 3000")

native = ctypes.c_int()
arguments = (ctypes.c_char_p * 5)(b"sh", b"-c", b"sleep 4000; true", b"\xff it's", None)
assert ctypes.CDLL(None).posix_spawnp(ctypes.byref(native), b"sh", None, None, arguments, None) == 0
wait_for(process=native.value, command="4000")

pids = {"popen": popen.pid, "shell": shell.pid, "grandchild": grandchild, "forked": forked, "native": native.value}
with open("pids.json", "w") as file:
    json.dump({"own": os.getpid(), **pids}, file)
for row in alloctrace.load("killed.alloctrace").children().to_dict("records"):
    if row["process"] != popen.pid:
        os.kill(row["process"], signal.SIGKILL)
os.kill(os.getpid(), signal.SIGKILL)
"""


def record(folder: Path) -> None:
    (folder / "program.py").write_text(PROGRAM)
    run_python(folder, [sys.executable, "program.py"], False, 600, {})


@pytest.fixture(scope="module")
def folder() -> Path:
    return record_once("children", record)


def test_children_of_killed_program_are_listed(folder: Path) -> None:
    trace = alloctrace.load(folder / "killed.alloctrace")
    pids = json.loads((folder / "pids.json").read_text())

    children = trace.children().set_index("process")

    parents = {name: children.loc[pids[name], "parent_process"] for name in pids if name != "own"}
    assert parents == {
        **dict.fromkeys(("popen", "shell", "forked", "native"), pids["own"]),
        "grandchild": pids["shell"],
    }
    commands = {name: children.loc[pids[name], "command"] for name in parents}
    assert commands["popen"] == "sleep 1000" and commands["shell"] == "sh -c 'sleep 2000; true'"
    assert commands["grandchild"] == "sleep 2000"
    assert commands["native"].startswith("sh -c 'sleep 4000; true' ") and "it" in commands["native"]
    assert commands["forked"].startswith("sh -c 'sleep 3000; true xxx") and len(commands["forked"]) < 1100
    mark = trace.marks()["begin_seq"].iloc[0]
    assert children.loc[pids["popen"], "seq"] <= mark < children.loc[pids["shell"], "seq"]
    assert set(children["trace"]) == {""}
    data = (folder / "killed.alloctrace").read_bytes() + (folder / "killed.alloctrace.spool").read_bytes()
    assert b"of the environment" not in data


def test_children_remain_in_finished_trace(folder: Path, tmp_path: Path) -> None:
    for path in folder.glob("killed.alloctrace*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    expected = alloctrace.load(folder / "killed.alloctrace").children()

    alloctrace.finish(tmp_path / "killed.alloctrace", spool=tmp_path / "killed.alloctrace.spool")

    assert alloctrace.load(tmp_path / "killed.alloctrace").children().equals(expected)


@pytest.mark.parametrize("options", [["--follow"], []])
def test_trace_of_child_is_named_if_it_has_one(tmp_path: Path, options: list[str]) -> None:
    (tmp_path / "program.py").write_text(program_with_child("block = torch.zeros(1000)"))
    command = [sys.executable, "-m", "pytorch_alloctrace", "run", *options, "--output", "run.alloctrace", "program.py"]

    process = run_python(tmp_path, command, True, 600, {})

    worker = int(process.stdout)
    children = alloctrace.load(tmp_path / "run.alloctrace").children().set_index("process")
    expected = str(tmp_path / f"run-{worker}.alloctrace") if options else ""
    assert children.loc[worker, "trace"] == expected
    screen = run_analyze(tmp_path, "run.alloctrace")
    said = f"CHILD process {worker}" if options else "1 child process ran and was not recorded"
    assert said in " ".join(screen.split())
    compacted = alloctrace.compact(tmp_path / "run.alloctrace", tmp_path / "small.alloctrace", until=0)
    assert alloctrace.load(compacted.trace).children().set_index("process").equals(children)
