"""Object scans under tracers, profilers and coverage tools, and interrupted by the program's own exceptions."""

from __future__ import annotations

import json
from pathlib import Path

from running import how_it_ended

import pytorch_alloctrace as alloctrace

# Every scan is due at once, and any number of them is allowed, each of at most 4 ms.
ALWAYS_DUE = """
import faulthandler
faulthandler.dump_traceback_later(300, exit=True)
import gc, json, signal, sys, threading, time, torch
import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.objects import look as scanning
from pytorch_alloctrace.recording import looks
looks.FIRST, looks.LATER, looks.FREE, looks.POLL, looks.POLL_SHARE = 1, 0.0, 1e9, 0.001, 0.0
looks.LONGEST = 0.004

session = alloctrace.enable("run.alloctrace", devices=("cpu",))
"""

TOOLS = (
    ALWAYS_DUE
    + """
import coverage, cProfile, memray
from torch.profiler import ProfilerActivity, profile

layer = torch.nn.Linear(4, 4)
look, scans = scanning.look, 0

def count_scans(seconds, more):
    global scans
    scans += 1
    return look(seconds, more)

scanning.look = count_scans

def work():
    held = layer(torch.zeros(4))

def run_until_scanned():
    target = scans + 5
    while scans < target:
        work()

def under_cprofile():
    cProfile.Profile().runcall(run_until_scanned)

def under_settrace():
    def trace(*_): return trace
    sys.settrace(trace)
    run_until_scanned()
    sys.settrace(None)

def under_coverage():
    measured = coverage.Coverage(data_file=None)
    measured.start()
    run_until_scanned()
    measured.stop()

def under_memray():
    with memray.Tracker("memray.bin", native_traces=False):
        run_until_scanned()

def under_torch_profiler():
    with profile(activities=[ProfilerActivity.CPU], with_stack=True):
        run_until_scanned()

for tool in (under_cprofile, under_settrace, under_coverage, under_memray, under_torch_profiler):
    tool()
    print(tool.__name__, flush=True)
"""
)

INTERRUPTED = (
    ALWAYS_DUE
    + """
import ctypes, functools, io, os

class Stop(Exception): pass
class Limit:
    def __call__(self, number, frame): raise RuntimeError("time limit")
def on_alarm(number, frame): raise RuntimeError("time limit")
def on_alarm_once(number, frame):
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    raise RuntimeError("time limit")
def alarm_in_storage():
    # The handler runs where storage_of calls torch.
    class Storage(torch.UntypedStorage):
        @property
        def device(self):
            alarm(on_alarm)
    from pytorch_alloctrace.objects.storages import storage_of
    storage_of(Storage(8))
def raise_asynchronously():
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(threading.get_ident()), ctypes.py_object(Stop))
def alarm(handler):
    signal.signal(signal.SIGALRM, handler)
    signal.raise_signal(signal.SIGALRM)

CASES = {
    "Ctrl-C": lambda: os.kill(os.getpid(), signal.SIGINT),
    "function": lambda: alarm(on_alarm),
    "object": lambda: alarm(Limit()),
    "partial": lambda: alarm(functools.partial(on_alarm)),
    "C function": lambda: alarm(signal.default_int_handler),
    "asynchronous": raise_asynchronously,
    "function in torch's code": alarm_in_storage,
    "handler that resets itself": lambda: alarm(on_alarm_once),
    "no memory": lambda: [0] * (1 << 60),
    "recursion": lambda: recurse(),
}

def recurse(): recurse()

def scan_once(interrupt):
    ended = False
    def scan(seconds, more):
        nonlocal ended
        if ended:
            return before(seconds, more)
        ended = True
        interrupt()
        for _ in range(100): str(0)  # the interpreter raises what is pending
        return before(seconds, more)
    scanning.look = scan
    while not ended:
        torch.empty(10)
    for _ in range(100): str(0)

before = scanning.look
outcomes = {}
for name, interrupt in CASES.items():
    try:
        scan_once(interrupt)
        outcomes[name] = "nothing"
    except BaseException as error:
        outcomes[name] = type(error).__name__
    assert gc.isenabled(), name
scanning.look = before
members, scanning._members, spent = scanning._members, len, session._looks._spent  # len raises TypeError
sys.stderr = io.StringIO()
while session._looks._spent == spent:
    torch.empty(10)
outcomes["own error"], sys.stderr = sys.stderr.getvalue() or "nothing", sys.__stderr__
scanning._members = members
alloctrace.disable()
print(json.dumps(outcomes))
"""
)


def load(folder: Path) -> alloctrace.Trace:
    return alloctrace.load(folder / "run.alloctrace")


def test_scans_run_and_modules_are_named_under_tools_that_trace(run_program, tmp_path: Path) -> None:
    process = run_program(TOOLS)
    assert len(process.stdout.split()) == 5, "not every tool came to its end"

    trace = load(tmp_path)
    assert trace.integrity.state == "complete"
    named = {trace.stacks.modules.name(stack) for stack in trace.events()["stack_id"].unique() if stack}
    assert "Linear" in named, "modules called under a tracer have no name"


def test_exceptions_of_the_program_reach_it_through_a_scan_and_errors_of_a_scan_do_not(
    run_program, tmp_path: Path
) -> None:
    process = run_program(INTERRUPTED)

    assert how_it_ended(load(tmp_path).ending) == {"reason": "disable"}
    assert json.loads(process.stdout.splitlines()[-1]) == {
        "Ctrl-C": "KeyboardInterrupt",
        "function": "RuntimeError",
        "object": "RuntimeError",
        "partial": "RuntimeError",
        "C function": "KeyboardInterrupt",
        "asynchronous": "Stop",
        "function in torch's code": "RuntimeError",
        "handler that resets itself": "RuntimeError",
        "no memory": "nothing",
        "recursion": "nothing",
        "own error": "nothing",
    }
