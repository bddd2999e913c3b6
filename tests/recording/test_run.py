"""`python -m pytorch_alloctrace run`: a program behaves as without recording, and is recorded."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import zipapp
from collections.abc import Sequence
from pathlib import Path

import pytest
from running import ROOT, run_python

import pytorch_alloctrace as alloctrace

PREFIX = "pytorch_alloctrace: "
CLOSING_LINE = f"{PREFIX}the trace is "

# Prints what a program can find out about its start.
MIRROR = """
import json, os, subprocess, sys
main = sys.modules["__main__"]
environments = [f"{name}={value}" for name, value in os.environ.items()], subprocess.getoutput("env").splitlines()
start = {
    "names": sorted(vars(main)),
    "is_main": vars(main) is globals(),
    "name": __name__,
    "file": __file__,
    "cached": vars(main).get("__cached__"),
    "package": __package__,
    "spec": __spec__ and [__spec__.name, __spec__.origin, __spec__.parent],
    "loader": type(__loader__).__name__,
    "builtins": type(__builtins__).__name__,
    "code": (lambda: 0).__code__.co_filename,
    "argv": sys.argv,
    "path": sys.path,
    "flags": str(sys.flags),
    # An import of torch sets others, and the unrecorded program does not import torch.
    "environments": [sorted(line for line in lines if "ALLOCTRACE" in line or line.startswith("PYTHON"))
                     for lines in environments],
}
print(json.dumps(start, indent=1))
"""


def run_unrecorded(arguments: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return run_python(folder, [sys.executable, *arguments], False, 600, {}, fresh=True)


def run_recorded(
    arguments: Sequence[str],
    folder: Path,
    options: Sequence[str] = ("-q",),
    flags: Sequence[str] = (),
    fresh: bool = False,
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *flags, "-m", "pytorch_alloctrace", "run", "--output", "run.alloctrace", *options]
    return run_python(folder, [*command, *arguments], False, 600, environment, fresh)


def check_closing_line(stderr: str) -> None:
    lines = stderr.splitlines()
    closing = [line for line in lines if line.startswith(CLOSING_LINE)]
    assert len(closing) == 1, stderr
    assert lines[-1] == closing[0], "the closing line comes last"
    assert "python" in closing[0] and "-m pytorch_alloctrace run.alloctrace" in closing[0]


def load_traces(folder: Path, pattern: str = "run-*.alloctrace") -> list[alloctrace.Trace]:
    return [alloctrace.load(path) for path in sorted(folder.glob(pattern))]


def allocating_functions(trace: alloctrace.Trace) -> set[str]:
    stacks = trace.events(columns=["kind", "stack_id"]).query("kind == 'alloc'")["stack_id"].unique()
    return {frame.function for stack in stacks for frame in trace.frames(int(stack))}


def write_file(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("flags", "command"),
    [
        ([], ["scripts/../link.py", "--out", "-m", "x"]),
        ([], ["archive.pyz", "-h"]),
        ([], ["-m", "package", "--follow"]),
        pytest.param(
            ["-P"],
            ["scripts/mirror.py"],
            marks=pytest.mark.skipif(sys.version_info < (3, 11), reason="python -P is new in 3.11"),
        ),
    ],
    ids=" ".join,
)
def test_program_starts_as_without_recording(flags: list[str], command: list[str], tmp_path: Path) -> None:
    write_file(tmp_path, "scripts/mirror.py", MIRROR)
    write_file(tmp_path, "scripts/__main__.py", MIRROR)
    write_file(tmp_path, "package/__init__.py", "")
    write_file(tmp_path, "package/__main__.py", "from . import __name__ as name\n" + MIRROR)
    (tmp_path / "link.py").symlink_to("scripts/mirror.py")
    zipapp.create_archive(tmp_path / "scripts", tmp_path / "archive.pyz")
    unrecorded = run_unrecorded([*flags, *command], tmp_path)
    assert unrecorded.returncode == 0, unrecorded.stderr

    recorded = run_recorded(command, tmp_path, flags=flags, fresh=True)

    assert (recorded.returncode, recorded.stdout) == (0, unrecorded.stdout), recorded.stderr
    assert recorded.stderr == unrecorded.stderr == ""


ENDINGS = {
    # The encoding of the source is not that of the output.
    "exit text": "# coding: latin-1\nraise SystemExit(ascii('é'))",
    "error in a function": "def outer():\n    inner()\n\ndef inner():\n    1 / 0\n\nouter()",
    "own excepthook": (
        "import sys, traceback\n"
        "def hook(kind, value, tb):\n    print('hook', kind.__name__, [f.name for f in traceback.extract_tb(tb)])\n"
        "sys.excepthook = hook\n"
        "def fail():\n    raise RuntimeError\nfail()"
    ),
    "our own error class": "import pytorch_alloctrace\nraise pytorch_alloctrace.SessionError('text')",
    "syntax error": "x = (1,\n",
    # With its own handler: a shell starts background programs with the signal ignored.
    "keyboard interrupt": "import os, signal, time\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    "os.kill(os.getpid(), signal.SIGINT)\ntime.sleep(10)",
    # The interpreter destroys the object last.
    "thread, exit handler, open file and live object": (
        "import atexit, os, threading\natexit.register(print, 'at exit')\n"
        "class Last:\n    def __del__(self):\n        print('finalised')\n"
        "file = open(f'{os.getpid()}.txt', 'w')\nfile.write('results')\nlast = Last()\n"
        "threading.Thread(target=lambda: print('thread')).start()"
    ),
}

IN_FRESH_INTERPRETER = ("keyboard interrupt", "thread, exit handler, open file and live object")


@pytest.mark.parametrize("ending", ENDINGS)
def test_program_ends_as_without_recording(ending: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(ENDINGS[ending], encoding="utf-8")
    unrecorded = run_unrecorded(["program.py"], tmp_path)

    recorded = run_recorded(["program.py"], tmp_path, fresh=ending in IN_FRESH_INTERPRETER)

    assert (recorded.returncode, recorded.stdout) == (unrecorded.returncode, unrecorded.stdout), recorded.stderr
    assert recorded.stderr == unrecorded.stderr
    if ending == "syntax error":
        assert not (tmp_path / "run.alloctrace").exists(), "nothing ran, but a trace exists"
    else:
        assert str(alloctrace.load(tmp_path / "run.alloctrace").integrity).startswith("complete")
    results = [path.read_text() for path in tmp_path.glob("*.txt")]  # of the unrecorded and the recorded program
    assert results == ["results"] * (2 if "'results'" in ENDINGS[ending] else 0), "the open file was not flushed"
    if ending == "keyboard interrupt":
        assert recorded.returncode == -signal.SIGINT, "a shell loop around the program ends only if it sees SIGINT"


def test_traceback_of_a_module_begins_with_its_own_frames(tmp_path: Path) -> None:
    write_file(tmp_path, "package/__init__.py", "")
    write_file(tmp_path, "package/__main__.py", "def fail():\n    raise ValueError('text')\nfail()")
    write_file(tmp_path, "broken/__init__.py", "import a_module_that_is_not_there")
    write_file(tmp_path, "broken/__main__.py", "")
    for name in ("package", "broken"):
        unrecorded = run_unrecorded(["-m", name], tmp_path)
        recorded = run_recorded(["-m", name], tmp_path, ["--overwrite", "--quiet"])
        assert recorded.returncode == unrecorded.returncode == 1
        frames = [line for line in recorded.stderr.splitlines() if line.startswith("  File ")]
        assert frames and str(tmp_path) in frames[0], recorded.stderr
        if name == "package":
            # Without recording, there are two more frames, of runpy.
            expected = [
                line for line in unrecorded.stderr.splitlines() if line.startswith("  File ") and "runpy" not in line
            ]
            assert frames == expected
        assert "recording/run.py" not in recorded.stderr


LEAKING = """
import sys, torch
held = []
def work():
    for _ in range(100):
        held.append(torch.empty(1000))
        torch.empty(4000)
work()
print("done")
sys.exit(3)
"""


def test_peak_and_first_finding_are_printed_at_the_end(tmp_path: Path) -> None:
    write_file(tmp_path, "program.py", LEAKING)

    recorded = run_recorded(["program.py"], tmp_path, [])

    assert (recorded.returncode, recorded.stdout) == (3, "done\n")
    check_closing_line(recorded.stderr)
    peak, finding, _ = recorded.stderr.splitlines()
    assert peak == f"{PREFIX}cpu: peak {(100 * 4000 + 16000) / 1024:.0f} KiB allocated"
    assert finding.startswith(f"{PREFIX}LEAK  program.py:6 in work: +3.91 KiB per ")


def test_summary_is_printed_to_a_stderr_of_the_program_that_has_only_write_and_flush(tmp_path: Path) -> None:
    log = (
        "import sys\nclass Log:\n    def write(self, text): open('log', 'a').write(text)\n"
        "    def flush(self): pass\nsys.stderr = Log()\n"
    )
    write_file(tmp_path, "program.py", LEAKING.replace("import ", f"{log}import ", 1))

    run_recorded(["program.py"], tmp_path, [])

    assert (tmp_path / "log").read_text().count(PREFIX) == 3


def test_other_ranks_print_only_the_closing_line(tmp_path: Path) -> None:
    write_file(tmp_path, "program.py", LEAKING)

    recorded = run_recorded(["program.py"], tmp_path, [], RANK="1", WORLD_SIZE="2")

    assert recorded.stderr.count("\n") == 1 and recorded.stderr.startswith(CLOSING_LINE), recorded.stderr


# The interpreter of the analysis is replaced by a script that affects the program.
FAILING_ANALYSES = {
    "error": ("exit 1", 3),
    "no output": ("exit 0", 3),
    "too slow": ("exec sleep 1000", 3),
    "interrupt of the program": ("kill -INT $PPID; exec sleep 1000", 3),
    "kill of the program": ("kill -KILL $PPID", -signal.SIGKILL),
}


@pytest.mark.parametrize("case", FAILING_ANALYSES)
def test_failing_analysis_affects_only_the_summary(case: str, tmp_path: Path) -> None:
    script, status = FAILING_ANALYSES[case]
    write_file(tmp_path, "python", f"#!/bin/sh\n{script}\n")
    (tmp_path / "python").chmod(0o755)
    limit = "from pytorch_alloctrace.recording import run\nrun.SUMMARY_SECONDS = 0.1\n" if case == "too slow" else ""
    write_file(tmp_path, "program.py", f"{limit}import os, sys\nsys.executable = os.path.abspath('python')\n{LEAKING}")

    recorded = run_recorded(["program.py"], tmp_path, [])

    assert (recorded.returncode, recorded.stdout) == (status, "done\n"), recorded.stderr
    if status == 3:
        assert recorded.stderr.count("\n") == 1 and recorded.stderr.startswith(CLOSING_LINE), recorded.stderr


CLOSED_PIPE = "read, write = os.pipe(); os.dup2(write, 2); os.close(read); os.close(write)"


@pytest.mark.parametrize("close", ["os.close(2)", "sys.stderr.close()", CLOSED_PIPE])
def test_nothing_is_analysed_without_a_reader_of_stderr(close: str, tmp_path: Path) -> None:
    write_file(tmp_path, "python", f"#!/bin/sh\ntouch {tmp_path}/analysed\n")
    (tmp_path / "python").chmod(0o755)
    restore = "import signal; signal.signal(signal.SIGPIPE, signal.SIG_DFL)"
    source = f"import os, sys\nsys.executable = os.path.abspath('python')\n{restore}\n{close}\n{LEAKING}"
    write_file(tmp_path, "program.py", source)

    recorded = run_recorded(["program.py"], tmp_path, [], fresh=True)

    assert (recorded.returncode, recorded.stdout) == (3, "done\n")
    assert not (tmp_path / "analysed").exists() and CLOSING_LINE not in recorded.stderr


PROCESSES = """
import multiprocessing, os, pickle, sys
import torch

class Item:
    def __init__(self, count): self.count = count

def allocate_in_child(item):
    tensor = torch.ones(item.count)
    return type(item).__module__, float(tensor.sum())

if __name__ == "__main__":
    assert type(pickle.loads(pickle.dumps(Item(1)))) is Item
    with multiprocessing.get_context(sys.argv[1]).Pool(1) as pool:
        print(pool.map(allocate_in_child, [Item(10), Item(20)]))
        pool.close()
        pool.join()
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_multiprocessing_children_have_their_own_traces(method: str, tmp_path: Path) -> None:
    write_file(tmp_path, "program.py", PROCESSES)

    recorded = run_recorded(["program.py", method], tmp_path, ["--follow"])

    assert (recorded.returncode, recorded.stdout) == (0, f"{[('__mp_main__', 10.0), ('__mp_main__', 20.0)]}\n"), (
        recorded.stderr
    )
    assert "run-{pid}.alloctrace" in recorded.stderr
    (child,) = [trace for trace in load_traces(tmp_path) if "allocate_in_child" in allocating_functions(trace)]
    assert str(child.integrity).startswith("complete"), "multiprocessing ends its children with os._exit"
    assert "allocate_in_child" not in allocating_functions(alloctrace.load(tmp_path / "run.alloctrace"))


def test_options_reach_the_recorder(tmp_path: Path) -> None:
    write_file(tmp_path, "program.py", "import torch\ntensors = [torch.ones(12345) for _ in range(7)]\n")
    (tmp_path / "spools").mkdir()
    options = ["--stacks", "none", "--devices", "cpu", "--no-sources", "--no-modules", "--spool-dir", "spools"]
    options += ["--max-bytes", "64MiB", "--keep", "10min"]
    stray = str(tmp_path / "stray-{pid}")  # ALLOCTRACE does not apply to the command itself

    assert run_recorded(["program.py"], tmp_path, options, fresh=True, ALLOCTRACE=stray).returncode == 0
    assert not list(tmp_path.glob("stray-*"))
    trace = alloctrace.load(tmp_path / "run.alloctrace")
    assert allocating_functions(trace) == set()
    assert list(trace.live("end")["requested_bytes"]).count(4 * 12345) == 7, "blocks alive at the exit are missing"
    assert trace.header["options"]["modules"] is False and trace.header["options"]["max_bytes"] == 64 << 20
    assert trace.header["options"]["keep_ns"] == 600 * 10**9
    assert os.listdir(tmp_path / "spools") == [], "the spool was not removed"


INVALID_COMMANDS = {
    "no program": (["run"], "name a script"),
    "no module name": (["run", "-m"], "-m needs"),
    "unknown option": (["run", "--frames", "x.py"], "unrecognized arguments: --frames (see "),
    "missing script": (["run", "missing.py", "x"], "no such file: missing.py\n"),
    "missing module": (["run", "-m", "missing.sub"], "no module named 'missing'\n"),
    "folder without main": (["run", "empty"], "no __main__.py in empty\n"),
    "no folder": (["run", "--output", "no/such/folder/x", "program.py"], "no/such/folder"),
    "missing submodule": (["run", "--output", "a", "-m", "json.missing"], "no module named 'json.missing'\n"),
}


@pytest.mark.parametrize("case", INVALID_COMMANDS)
def test_invalid_command_is_refused_before_the_program_runs(case: str, tmp_path: Path) -> None:
    arguments, message = INVALID_COMMANDS[case]
    write_file(tmp_path, "program.py", "print('the program ran')")
    (tmp_path / "empty").mkdir()

    recorded = run_python(tmp_path, [sys.executable, "-m", "pytorch_alloctrace", *arguments], False, 600, {})

    assert recorded.returncode == 2, recorded.stderr
    assert "the program ran" not in recorded.stdout
    assert message in recorded.stderr and "Traceback" not in recorded.stderr
    if message.endswith("\n") or case == "no folder":
        assert recorded.stderr.startswith("pytorch_alloctrace: ") and recorded.stderr.count("\n") == 1, "not one line"
    assert not list(tmp_path.glob("*alloctrace*")) and not (tmp_path / "a").exists(), "a file was created"


SUBPROCESSES = """
import subprocess, sys
no_torch = "import sys; m = sys.modules; print('torch' in m, 'pytorch_alloctrace' in m, sys.path, m['sitecustomize'])"
with_torch = "import torch\\ndef allocate_in_child(): return torch.ones(10)\\ntensor = allocate_in_child()"
records_itself = "import pytorch_alloctrace as a; a.enable('own.alloctrace')"
for code in (no_torch, records_itself):
    subprocess.run([sys.executable, "-c", code], check=True, preexec_fn=lambda: None)
subprocess.run([sys.executable, "-c", with_torch], check=True, cwd="elsewhere")
nested = ["-m", "pytorch_alloctrace", "run", "--output", "nested.alloctrace", "child.py"]
subprocess.run([sys.executable, *nested], check=True)
"""


def test_follow_records_only_processes_that_import_torch(tmp_path: Path) -> None:
    write_file(tmp_path, "program.py", SUBPROCESSES)
    write_file(tmp_path, "child.py", "import torch\ntensor = torch.ones(5)\n")
    write_file(tmp_path, "site/sitecustomize.py", "import sys\nprint('shadowed', file=sys.stderr)\n")
    (tmp_path / "elsewhere").mkdir()
    path = os.pathsep.join([str(ROOT), str(tmp_path / "site")])

    recorded = run_recorded(["program.py"], tmp_path, ["--follow"], fresh=True, PYTHONPATH=path)

    assert recorded.returncode == 0, recorded.stderr
    assert recorded.stderr.count("shadowed") == 5, "the next sitecustomize on the path must run in each process"
    assert "not recorded" not in recorded.stderr
    first = recorded.stdout.splitlines()[0]
    # A child without torch runs unchanged.
    assert first.startswith("False False ") and "pytorch_alloctrace/_follow" not in first
    assert "site/sitecustomize.py" in first
    [trace] = load_traces(tmp_path)  # of the child that imports torch and does not record itself
    assert "allocate_in_child" in allocating_functions(trace) and str(trace.integrity).startswith("complete")
    assert (tmp_path / "own.alloctrace").exists() and (tmp_path / "nested.alloctrace").exists()
    assert list((tmp_path / "elsewhere").iterdir()) == []


FORKS = """
import os, sys
import torch

class Numbers(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, index): return torch.ones(100) * index

def allocate_in_child():
    return torch.ones(10)

print(sum(float(batch.sum()) for batch in torch.utils.data.DataLoader(Numbers(), num_workers=2)), flush=True)
child = os.fork()
if child == 0:
    tensor = allocate_in_child()
    sys.exit(7)  # runs the inherited exit handlers
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_forked_children_are_recorded_only_with_follow(tmp_path: Path) -> None:
    write_file(tmp_path, "program.py", FORKS)
    recorded = run_recorded(["program.py"], tmp_path, [])
    assert (recorded.returncode, recorded.stdout) == (0, "2800.0\n7\n"), recorded.stderr
    check_closing_line(recorded.stderr)
    assert recorded.stderr.count(f"{PREFIX}cpu: peak") == 1, "a forked child must not print the summary"
    (trace,) = load_traces(tmp_path, "*.alloctrace")
    assert str(trace.integrity).startswith("complete")
    assert not {"Numbers.__getitem__", "allocate_in_child"} & allocating_functions(trace)

    following = run_recorded(["program.py"], tmp_path, ["--follow", "--overwrite"])
    assert (following.returncode, following.stdout) == (0, "2800.0\n7\n"), following.stderr
    children = load_traces(tmp_path)
    assert len(children) == 3, "two workers and one os.fork"
    assert all(str(trace.integrity).startswith("complete") for trace in children)
    assert sum("Numbers.__getitem__" in allocating_functions(trace) for trace in children) == 2
    assert sum("allocate_in_child" in allocating_functions(trace) for trace in children) == 1
