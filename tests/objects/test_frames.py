"""The variables of frames are read without a trace, under every Python that is installed."""

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
print(json.dumps([frames.can_read(), names, of_generator, dict(of_error), with_its_own(1)]))
"""
HOME = Path.home() / ".pyenv/versions"
PYTHONS = [sys.executable, *(str(path) for path in sorted(HOME.glob("3.1[0-3].*/bin/python")))]


@pytest.mark.parametrize("python", PYTHONS)
def test_variables(python: str) -> None:
    path = ROOT / "pytorch_alloctrace/objects/frames.py"
    done = subprocess.run([python, "-c", PROGRAM, str(path)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    can_read, names, of_generator, of_error, mine = json.loads(done.stdout)
    assert can_read
    assert names == {"first": 1, "keyword": 3, "more": [2], "named": {"other": 5}, "many": [1], "both": 2}
    assert of_generator == {"inside": [1]} and of_error == {"argument": 7}
    assert mine == ["first"]  # what the program had from locals() is as it was


# Each call of a thread goes on for as long as a few instructions of the reader.
THREADS_THAT_RETURN = """
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


def test_variables_of_functions_that_other_threads_return_from(run_program) -> None:  # type: ignore[no-untyped-def]
    """They were read when they were gone: a crash, or an error."""
    assert run_program(THREADS_THAT_RETURN).stdout.split() == list("abcdefgh")
