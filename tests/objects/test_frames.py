"""Variables of frames, read without a trace function under every installed Python."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from running import ROOT

PROGRAM = """
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("frames", sys.argv[1])
frames = importlib.util.module_from_spec(spec)
spec.loader.exec_module(frames)

def suspended():
    inside = [1]
    yield
    yield inside

def function(first, *more, keyword=3, **named):
    def inner():
        return both, first
    both = first + 1
    many = [first]
    if keyword == 99:
        unset = 1
    return frames.variables(sys._getframe()), inner

def with_its_own(first):
    mine = locals()
    frames.variables(sys._getframe())
    later = 1
    frames.variables(sys._getframe())
    return sorted(mine)

found, inner = function(1, 2, other=5)
names = {name: value for name, value in found if name != "inner"}
generator = suspended()
next(generator)
try:
    (lambda argument: 1 / 0)(7)
except ZeroDivisionError as error:
    of_error = frames.variables(error.__traceback__.tb_next.tb_frame)
of_generator = dict(frames.variables(generator.gi_frame))
print(json.dumps([frames.can_read_frames(), names, of_generator, dict(of_error), with_its_own(1)]))
"""
PYENV = Path.home() / ".pyenv/versions"
PYTHONS = [sys.executable, *(str(path) for path in sorted(PYENV.glob("3.1[0-3].*/bin/python")))]


@pytest.mark.parametrize("python", PYTHONS)
def test_variables_have_their_values_under_each_python(python: str) -> None:
    path = ROOT / "pytorch_alloctrace/objects/frames.py"
    process = subprocess.run([python, "-c", PROGRAM, str(path)], capture_output=True, text=True, timeout=600)
    assert process.returncode == 0, process.stderr

    can_read, variables, generator_variables, error_variables, names_from_locals = json.loads(process.stdout)
    assert can_read
    assert variables == {"first": 1, "keyword": 3, "more": [2], "named": {"other": 5}, "many": [1], "both": 2}
    assert generator_variables == {"inside": [1]} and error_variables == {"argument": 7}
    assert names_from_locals == ["first"]  # the dict from locals() did not change


# Each call lasts only as long as a few instructions of the reader.
RETURNING_THREADS = """
import sys, threading
from pytorch_alloctrace.objects import roots
from pytorch_alloctrace.recording.loading import load_recorder

load_recorder()
sys.setswitchinterval(1e-5)
def called(a, b):
    c, d, e, f, g, h = (a, b), [a], {"b": b}, str(a), object(), lambda: a
    return c, d, e, f, g, h

def work():
    while True:
        called(called(1, 2), called(3, called(4, 5)))

for _ in range(3): threading.Thread(target=work, daemon=True).start()
seen = set()
for _ in range(800):
    calls = [root for root in roots.frames() if isinstance(root, roots.FrameRoot) and root.function == "called"]
    seen.update(name for call in calls for name, _ in call.variables)
print(*sorted(seen))
"""


def test_variables_are_read_while_other_threads_return(run_program) -> None:  # type: ignore[no-untyped-def]
    """Variables were read after their frame had ended: a crash, or an error."""
    assert run_program(RETURNING_THREADS).stdout.split() == list("abcdefgh")
