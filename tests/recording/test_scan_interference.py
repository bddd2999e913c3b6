"""Object scans under tracers, profilers and coverage tools, and interrupted by the program's own exceptions."""

from __future__ import annotations

from pathlib import Path

from running import ending_without_scan

import pytorch_alloctrace as alloctrace

# Scans are always due and unlimited in number, each of at most 4 ms.
ALWAYS_DUE = """
import faulthandler
faulthandler.dump_traceback_later(300, exit=True)
import gc, signal, sys, threading, time, torch
import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.objects import object_scan as scanning
from pytorch_alloctrace.recording import object_scans
object_scans.FIRST_SCAN_EVENTS, object_scans.FREE_SCAN_S = 1, 1e9
object_scans.MIN_SCAN_GROWTH = object_scans.TRUNCATED_SCAN_GROWTH = object_scans.MAX_SCAN_GROWTH = 0.0
object_scans.MIN_POLL_S, object_scans.POLL_TIME_SHARE = 0.001, 0.0
object_scans.MAX_SCAN_S = 0.004

session = alloctrace.enable("run.alloctrace", devices=("cpu",))
"""

TOOLS = (
    ALWAYS_DUE
    + """
import coverage, cProfile, memray
from torch.profiler import ProfilerActivity, profile

layer = torch.nn.Linear(4, 4)
scan_objects, scans = scanning.scan_objects, 0

def count_scans(seconds, search_unreached, **options):
    global scans
    scans += 1
    return scan_objects(seconds, search_unreached, **options)

scanning.scan_objects = count_scans

def allocate():
    output = layer(torch.zeros(4))

def run_until_scanned():
    target = scans + 5
    while scans < target:
        allocate()

def under_cprofile():
    cProfile.Profile().runcall(run_until_scanned)

def under_settrace():
    def trace(*_): return trace
    sys.settrace(trace)
    run_until_scanned()
    sys.settrace(None)

def under_coverage():
    measurement = coverage.Coverage(data_file=None)
    measurement.start()
    run_until_scanned()
    measurement.stop()

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

class AsyncError(Exception): pass
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
    from pytorch_alloctrace.objects.inventory import storage_of
    storage_of(Storage(8))
def raise_asynchronously():
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(threading.get_ident()), ctypes.py_object(AsyncError))
def alarm(handler):
    signal.signal(signal.SIGALRM, handler)
    signal.raise_signal(signal.SIGALRM)

CASES = {
    "Ctrl-C": (lambda: os.kill(os.getpid(), signal.SIGINT), KeyboardInterrupt),
    "function": (lambda: alarm(on_alarm), RuntimeError),
    "object": (lambda: alarm(Limit()), RuntimeError),
    "partial": (lambda: alarm(functools.partial(on_alarm)), RuntimeError),
    "C function": (lambda: alarm(signal.default_int_handler), KeyboardInterrupt),
    "asynchronous": (raise_asynchronously, AsyncError),
    "function in torch's code": (alarm_in_storage, RuntimeError),
    "handler that resets itself": (lambda: alarm(on_alarm_once), RuntimeError),
    "no memory": (lambda: [0] * (1 << 60), None),
    "recursion": (lambda: recurse(), None),
}

def recurse(): recurse()

def scan_once(interrupt):
    ended = False
    def scan(seconds, search_unreached, **options):
        nonlocal ended
        if ended:
            return scan_objects(seconds, search_unreached, **options)
        ended = True
        interrupt()
        for _ in range(100): str(0)  # the interpreter raises pending exceptions
        return scan_objects(seconds, search_unreached, **options)
    scanning.scan_objects = scan
    while not ended:
        torch.empty(10)
    for _ in range(100): str(0)

scan_objects = scanning.scan_objects
for name, (interrupt, expected) in CASES.items():
    raised = None
    try:
        scan_once(interrupt)
    except BaseException as error:
        raised = type(error)
    assert raised is expected and gc.isenabled(), (name, raised)
scanning.scan_objects = scan_objects
group, scanning._group_by_holder, spent_s = scanning._group_by_holder, len, session._object_scans._spent_s  # TypeError
sys.stderr = io.StringIO()
while session._object_scans._spent_s == spent_s:
    torch.empty(10)
written, sys.stderr = sys.stderr.getvalue(), sys.__stderr__
scanning._group_by_holder = group
alloctrace.disable()
assert not written, written
"""
)


def test_scans_run_and_modules_are_named_under_tracing_tools(run_program, tmp_path: Path) -> None:
    process = run_program(TOOLS)
    assert len(process.stdout.split()) == 5, "a tool did not finish"

    trace = alloctrace.load(tmp_path / "run.alloctrace")
    assert trace.integrity.state == "complete"
    named = {trace._recorded.stacks.modules.name(stack) for stack in trace.events()["stack_id"].unique() if stack}
    assert "Linear" in named, "modules called under a tracer have no name"


def test_scan_propagates_exceptions_of_the_program_only(run_program, tmp_path: Path) -> None:
    run_program(INTERRUPTED)

    assert ending_without_scan(alloctrace.load(tmp_path / "run.alloctrace")._recorded.ending) == {"reason": "disable"}


METACLASS = """
import torch
import pytorch_alloctrace as alloctrace

class Meta(type):
    __eq__ = lambda cls, other: cls.key == other.key

class Config(metaclass=Meta):
    key = "a"

config = Config()
alloctrace.enable("run.alloctrace", devices=("cpu",))
kept = [torch.ones(1000) for _ in range(50)]
alloctrace.disable()
"""


def test_scan_calls_no_metaclass_of_the_program(run_program, tmp_path: Path) -> None:
    run_program(METACLASS)

    ending = alloctrace.load(tmp_path / "run.alloctrace")._recorded.ending
    assert ending["final_scan"]["result"] != "failed", ending
