"""Python's garbage collections in a trace, and the blocks that they freed."""

from __future__ import annotations

from pathlib import Path

import pytest
from shared_recordings import run_source

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.analysis.usage.garbage import collected_blocks
from pytorch_alloctrace.reading.positions import Range

CYCLE = """
import gc, os, threading, torch, pytorch_alloctrace as alloctrace

class Node:
    def __init__(self, size):
        self.itself = self
        self.data = torch.empty(size, dtype=torch.uint8)

class Finalized(Node):
    def __del__(self):
        temporary = torch.empty(70_000, dtype=torch.uint8)

def make(size, kind=Node):
    kind(size)

gc.collect()
gc.disable()
"""
PROGRAM = (
    CYCLE
    + """
callbacks = [*gc.callbacks]
alloctrace.enable("t.alloctrace", devices=("cpu",))
for size in (20_000, 30_000):
    make(size)
survivor = Node(40_000)
freed_by_count = torch.empty(50_000, dtype=torch.uint8)
del freed_by_count
for generation in (*[0] * 100, 2):
    gc.collect(generation)
alloctrace.mark("finalizer")
make(60_000, Finalized)
gc.collect()
alloctrace.mark("thread")
make(80_000)
collector = threading.Thread(target=gc.collect, name="collector")
collector.start()
collector.join()
alloctrace.mark("automatic")
gc.set_threshold(50)
gc.enable()
for _ in range(200):
    make(90_000)
gc.disable()
alloctrace.mark("arguments")
record = gc.callbacks[-1]
results = [record(), record("stop", {}), record("start", None), record("stop", 3), record("stop", {"generation": "2"}),
           record("start", {}), record("stop", {"generation": -1, "collected": 1 << 200})]
assert results == [None] * len(results)
alloctrace.disable()
assert gc.callbacks == callbacks
"""
)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> alloctrace.Trace:
    return alloctrace.load(run_source(tmp_path_factory.mktemp("garbage"), PROGRAM) / "t.alloctrace")


def collected_sizes(trace: alloctrace.Trace, since: str | None, until: str) -> list[int]:
    recorded = trace._recorded
    first = 0 if since is None else recorded.first_event_after(since)
    return sorted(collected_blocks(recorded, Range(first, recorded.first_event_after(until)))["requested_bytes"])


def test_only_blocks_freed_by_a_collection_are_garbage(trace: alloctrace.Trace) -> None:
    assert collected_sizes(trace, None, "mark:finalizer") == [20_000, 30_000]
    assert collected_sizes(trace, "mark:thread", "mark:automatic") == [80_000], "collected by another thread"


def test_blocks_allocated_by_a_finalizer_are_no_garbage(trace: alloctrace.Trace) -> None:
    assert collected_sizes(trace, "mark:finalizer", "mark:thread") == [60_000]


def test_automatic_collections_are_recorded(trace: alloctrace.Trace) -> None:
    sizes = collected_sizes(trace, "mark:automatic", "mark:arguments")
    assert len(sizes) > 100 and {*sizes} == {90_000}


def test_table_has_garbage_by_stack_of_its_allocation(trace: alloctrace.Trace) -> None:
    table = trace.garbage(until="mark:automatic")
    assert list(table["garbage_bytes"]) == [80_000, 60_000, 30_000 + 20_000]
    assert list(table["garbage_blocks"]) == [1, 1, 2]
    assert {frame.function for frame in trace.frames(int(table["stack_id"].iloc[2]))} >= {"make", "Node.__init__"}
    assert trace.garbage(until="mark:automatic", since="mark:thread")["garbage_bytes"].sum() == 80_000
    assert trace.garbage(device="cpu").equals(trace.garbage())


def test_events_have_generation_and_objects(trace: alloctrace.Trace) -> None:
    columns = ("seq", "address", "kind", "requested_bytes", "thread", "stack_id", "node_seq", "node_thread", "device")
    events = trace.events(until="mark:thread", columns=columns)
    collections = events[events["kind"] == "garbage_collection"]
    # The first is the only collection of the young generation that freed something. A memory sample may add others.
    assert list(collections["node_seq"])[:1] == [0] and list(collections["node_seq"])[-2:] == [2, 2]
    assert len(collections) < 50
    assert (collections["requested_bytes"].iloc[[0, -1]] >= 2).all(), "the objects of the cycles"
    assert (collections["address"] <= collections["seq"]).all()
    assert (collections["node_thread"] == 0).all() and (collections["device"] == "").all()
    later = trace.events(since="mark:thread", until="mark:automatic", kinds=("garbage_collection",))
    assert len(later) == 1 and later["thread"].iloc[0] not in {0, *collections["thread"]}


INTERFERENCE = {
    "the program removes the callback": """
alloctrace.enable("t.alloctrace", devices=("cpu",))
gc.callbacks.clear()
make(20_000)
gc.collect()
alloctrace.disable()
assert gc.callbacks == []
with alloctrace.enable("t.alloctrace", devices=("cpu",), overwrite=True):
    make(20_000)
    gc.collect()
""",
    "a forked child": """
session = alloctrace.enable("t.alloctrace", devices=("cpu",))
child = os.fork()
if child == 0:
    make(20_000)
    gc.collect()
    with alloctrace.enable("child.alloctrace", devices=("cpu",)):
        assert len(gc.callbacks) == 1
        make(20_000)
        gc.collect()
    os._exit(len(gc.callbacks))
assert os.waitpid(child, 0)[1] == 0
make(20_000)
gc.collect()
alloctrace.disable()
""",
    "a finalizer ends and starts a recording": """
class Restart(Node):
    def __del__(self):
        alloctrace.disable()
        alloctrace.enable("t.alloctrace", devices=("cpu",))
alloctrace.enable("first.alloctrace", devices=("cpu",))
make(30_000, Restart)
gc.collect()
make(20_000)
gc.collect()
alloctrace.disable()
""",
    "a callback of the program raises": """
def fail(phase, info):
    raise KeyError(phase)
import sys
sys.unraisablehook = lambda error: None
gc.callbacks.append(fail)
alloctrace.enable("t.alloctrace", devices=("cpu",))
make(20_000)
gc.collect()
alloctrace.disable()
assert gc.callbacks == [fail]
""",
    "a module in the place of gc": """
import sys, types
sys.modules["gc"] = types.SimpleNamespace()
with alloctrace.enable("other.alloctrace", devices=("cpu",)):
    make(30_000)
    gc.collect()
sys.modules["gc"] = gc
with alloctrace.enable("t.alloctrace", devices=("cpu",)):
    make(20_000)
    gc.collect()
""",
    "the interpreter exits": """
session = alloctrace.enable("t.alloctrace", devices=("cpu",))
make(20_000)
gc.collect()
last = Node(30_000)
""",
}


@pytest.mark.parametrize("case", INTERFERENCE)
def test_program_and_recorder_do_not_disturb_each_other(run_program, tmp_path: Path, case: str) -> None:
    run_program(CYCLE + INTERFERENCE[case], fresh=case == "the interpreter exits")

    trace = alloctrace.load(tmp_path / "t.alloctrace")
    assert trace.integrity.state == "complete" and trace.integrity.lost == 0
    assert 20_000 in collected_sizes(trace, None, "end")
    if case == "a forked child":
        assert collected_sizes(alloctrace.load(tmp_path / "child.alloctrace"), None, "end") == [20_000]
