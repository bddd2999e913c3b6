"""Referrers that object scans find in a running program, and their encoding in the trace."""

from __future__ import annotations

import functools
import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import extreme_traces
import numpy as np
import pandas as pd
import pytest
from format_reader import TraceFile, delta, varint
from hostile_traces import record, text
from marked_programs import run_analyze
from running import needs_cuda_build, run_python
from shared_recordings import run_source

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.analysis.leaks.leak import Leak, NoHolder
from pytorch_alloctrace.reading.recorded import FinalScan, RecordedTrace
from pytorch_alloctrace.report.leaks import leak_data

TRAINER = """
import os, signal, sys, time, torch
import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.recording import object_scans

object_scans.MAX_FINAL_SCAN_S = object_scans.FREE_SCAN_S = object_scans.MAX_SCAN_S = 60.0

class Trainer:
    def __init__(self):
        self.net = torch.nn.Linear(64, 64)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.predictions = []

    def step(self):
        output = self.net(torch.randn(8, 64))
        output.square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.predictions.append(output.detach())

def main(end):
    trainer = Trainer()
    for number in range(400):
        trainer.step()
    if end == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if end == "error":
        raise RuntimeError("no more")
    if end == "disabled":
        alloctrace.disable()

alloctrace.enable("run.alloctrace", devices=("cpu",))
main(sys.argv[1])
"""

RecordTrainer = Callable[[str], Path]


@pytest.fixture(scope="module")
def record_trainer(tmp_path_factory: pytest.TempPathFactory) -> RecordTrainer:
    """Return a function that records TRAINER once per program end and returns the folder."""

    @functools.cache
    def train(end: str) -> Path:
        folder = tmp_path_factory.mktemp("trainer")
        (folder / "program.py").write_text(TRAINER)
        command = [sys.executable, str(folder / "program.py"), end]
        process = run_python(folder, command, False, 600, {})
        assert process.returncode == {"error": 1, "killed": -signal.SIGKILL}.get(end, 0), process.stderr
        return folder

    return train


def first_leak(trace: alloctrace.Trace) -> Leak:
    return next(finding.leak for finding in trace.diagnose() if finding.leak is not None)


def sentences_of(trace: alloctrace.Trace) -> str:
    return " ".join(sentence for finding in trace.diagnose() for sentence in finding.sentences)


def load(folder: Path) -> alloctrace.Trace:
    return alloctrace.load(folder / "run.alloctrace")


@pytest.mark.parametrize("end", ["returned", "disabled", "error", "killed"])
def test_leak_names_its_referrer_after_each_program_end(record_trainer: RecordTrainer, end: str) -> None:
    trace = load(record_trainer(end))

    referrer = first_leak(trace).holder
    (name,) = referrer.names
    assert name.startswith("trainer.predictions (list of "), name
    assert "local of main() at program.py:" in name
    assert Path(referrer.filename).name == "program.py" and referrer.line > 0
    assert referrer.path == "trainer.predictions[...]" and referrer.share > 0.9
    if end == "disabled":  # main() has not returned yet, so all tensors are alive
        assert name.startswith("trainer.predictions (list of 400), local of main() at")
        data = json.loads(json.dumps(leak_data(first_leak(trace))))["holder"]
        assert data["path"] == referrer.path and data["line"] > 0 and data["step"] is None
        assert data["names"] == [name]
    assert "Held by trainer.predictions (list of " in " ".join(
        sentence for finding in trace.diagnose() for sentence in finding.sentences
    )


@pytest.mark.parametrize(
    ("setting", "result", "sentence"),
    [
        ("", "complete", "Held by trainer.predictions"),
        ("object_scans.MAX_FINAL_SCAN_S = 0.0", "truncated", "Holder not found: the final scan ended after "),
        ("object_scans.ObjectScans._write_group = len", "failed", "Holder not found: no object scan ran."),
    ],
    ids=["time", "no time", "error"],
)
def test_verdict_reports_how_the_final_scan_ended(
    run_program, tmp_path: Path, setting: str, result: str, sentence: str
) -> None:
    set_up = f"object_scans.FREE_SCAN_S = object_scans.MAX_SCAN_SHARE = 0.0\n{setting}\nclass Trainer:"
    program = TRAINER.replace("class Trainer:", set_up, 1)

    run_program(program, "disabled")

    trace = load(tmp_path)
    final_scan = trace._recorded.final_scan
    assert final_scan is not None and final_scan.result == result
    assert (final_scan.event > 0) == (final_scan.objects > 0) == (result != "failed")
    leak = first_leak(trace)
    assert (leak.holder is None) == (leak.no_holder is not None) == (result != "complete")
    (row,) = trace.leaks().to_frame().to_dict("records")
    assert row["no_holder"] == ("" if leak.no_holder is None else leak.no_holder.value)
    assert leak_data(leak)["no_holder"] == (row["no_holder"] or None)
    assert sentence in sentences_of(trace)
    markdown = run_analyze(tmp_path, "leaks", "run.alloctrace", "--markdown")
    assert "| held by |" in markdown and sentence.removeprefix("Held by ") in markdown


CAPSULES = """
from torch.utils.dlpack import to_dlpack

exported = []

def main():
    for number in range(200):
        exported.append(to_dlpack(torch.ones(1000)))
        alloctrace.step()

alloctrace.enable("run.alloctrace", devices=("cpu",))
main()
"""


def test_finding_reports_blocks_that_only_cpp_holds(tmp_path: Path) -> None:
    """Check capsules: Python objects whose tensors only C++ code can read."""
    trace = load(run_source(tmp_path, SET_UP + CAPSULES))

    leak = first_leak(trace)
    assert (leak.holder, leak.no_holder) == (None, NoHolder.CPP)
    verdict = sentences_of(trace)
    assert "Holder not found after a complete scan of all Python objects: nothing in Python refers to them" in verdict
    assert "Clear or cap the cache of the extension or library" in verdict


MANY_HOLDERS = """
class Part: pass

parts = {f"part{number}": Part() for number in range(100)}
for part in parts.values():
    part.kept = []
globals().update(parts)
del parts, part

def main():
    for number in range(1000):
        globals()[f"part{number % 100}"].kept.append(torch.ones(1000))
        alloctrace.step()

alloctrace.enable("run.alloctrace", devices=("cpu",))
main()
"""


def test_finding_reports_blocks_of_many_holders(tmp_path: Path) -> None:
    trace = load(run_source(tmp_path, SET_UP + MANY_HOLDERS))

    leak = first_leak(trace)
    assert (leak.holder, leak.no_holder) == (None, NoHolder.MANY)
    assert "Holder not found: no object holds most of the blocks." in sentences_of(trace)


def test_finding_reports_blocks_that_were_freed_before_the_final_scan(run_program, tmp_path: Path) -> None:
    set_up = "object_scans.FREE_SCAN_S = object_scans.MAX_SCAN_SHARE = 0.0\nclass Trainer:"

    run_program(TRAINER.replace("class Trainer:", set_up, 1), "returned")

    trace = load(tmp_path)
    leak = first_leak(trace)
    assert trace._recorded.final_scan.result == "complete"
    assert (leak.holder, leak.no_holder) == (None, NoHolder.NOT_LIVE)
    assert "or freed before it" in sentences_of(trace)


@pytest.mark.parametrize(
    ("ending", "result"),
    [
        ({}, None),
        ({"reason": "SIGTERM"}, None),
        ({"reason": "exit"}, "unknown"),
        ({"reason": "exit", "last_look": "cut"}, "truncated"),
        ({"reason": "exit", "final_scan": {"event": "x", "objects": -7}}, "None"),
        ({"reason": "exit", "final_scan": []}, "unknown"),
    ],
)
def test_final_scan_is_read_from_older_and_corrupt_traces(ending: dict[str, Any], result: str | None) -> None:
    scan = FinalScan.from_ending(ending)

    assert (None if scan is None else scan.result) == result
    assert scan is None or (scan.event, scan.objects, scan.unlisted) == (-1, 0, 0)


SLOW_CONSUMER = """
import queue, threading, time, torch
import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.recording import object_scans

object_scans.FREE_SCAN_S, object_scans.BLOCKED_S = 60.0, 0.05

def produce(batches, ended):
    for number in range(600):
        batches.put(torch.full((64,), float(number)))
        time.sleep(0.002)
    ended.set()

def serve():
    batches, ended = queue.Queue(), threading.Event()
    threading.Thread(target=produce, args=(batches, ended)).start()
    while not ended.is_set():
        torch.relu(batches.get())
        time.sleep(0.006)

alloctrace.enable("run.alloctrace", devices=("cpu",))
server = threading.Thread(target=serve)
server.start()
server.join()
"""


def test_queue_is_named_while_the_main_thread_waits(run_program, tmp_path: Path) -> None:
    """Guard against a main thread in `join()`, which executes no requested scan."""
    run_program(SLOW_CONSUMER)

    holders = load(tmp_path).holders()
    assert holders["holder"].str.startswith("batches.queue (deque of ").any()


def test_leak_names_its_referrer_when_main_left_it_in_a_cycle(run_program, tmp_path: Path) -> None:
    """Check objects that a variable of main() referred to, and that are garbage after main() has returned."""
    program = TRAINER.replace("self.predictions = []", "self.predictions = []\n        self.cycle = self")

    run_program("import gc\ngc.disable()\n" + program, "returned")

    trace = load(tmp_path)
    assert trace._recorded.held[-1].is_garbage
    referrer = first_leak(trace).holder
    assert referrer.names[0].startswith("trainer.predictions (list of ")
    assert ", local of main()" in str(referrer)


def test_leak_names_its_referrer_when_the_program_has_no_steps(run_program, tmp_path: Path) -> None:
    program = TRAINER.replace("self.optimizer.step()", "time.sleep(0.0005)")

    assert run_program(program, "killed", check=False).returncode == -signal.SIGKILL

    trace = load(tmp_path)
    referrer = first_leak(trace).holder
    assert referrer.names[0].startswith("trainer.predictions (list of ")
    assert ", local of main()" in str(referrer)
    assert trace.steps().empty and referrer.step is None


def test_diagnose_names_the_referrer_after_a_fork(run_program, tmp_path: Path) -> None:
    # With more threads of OpenMP, a forked child hangs even without a recording.
    program = TRAINER.replace("alloctrace.enable(", "torch.set_num_threads(1)\nsession = alloctrace.enable(").replace(
        '    if end == "killed":',
        "    if os.fork() == 0:\n"
        "        for _ in range(50): trainer.step()\n"
        "        alloctrace.step()\n"
        "        os._exit(0)\n"
        "    assert os.wait()[1] == 0\n"
        "    print(*(sentence for finding in session.diagnose() for sentence in finding.sentences))\n"
        '    if end == "killed":',
    )

    verdict = " ".join(run_program(program, "disabled").stdout.split())

    assert "Held by trainer.predictions (list of 400), local of main() at program.py:" in verdict
    assert first_leak(load(tmp_path)).holder is not None


SET_UP = """
import torch
import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.objects import object_scan
from pytorch_alloctrace.recording import object_scans

object_scans.MAX_FINAL_SCAN_S = object_scans.FREE_SCAN_S = object_scans.MAX_SCAN_S = 60.0

"""

FAILURES = """
def check(x):
    features = x @ x.T
    raise ValueError("bad batch")

def main():
    failures = {}
    for number in range(200):
        try:
            check(torch.randn(32, 64))
        except ValueError as error:
            failures[number] = error
        alloctrace.step()
    alloctrace.disable()

alloctrace.enable("run.alloctrace", devices=("cpu",))
main()
"""


def test_leaks_of_one_referrer_are_one_finding(tmp_path: Path) -> None:
    trace = load(run_source(tmp_path, SET_UP + FAILURES))

    (leak,) = (finding.leak for finding in trace.diagnose() if finding.leak is not None)
    assert [site.site.source.strip() for site in leak.sites] == [
        "check(torch.randn(32, 64))",
        "features = x @ x.T",
    ]
    assert leak.allocated_bytes == sum(site.allocated_bytes for site in leak.sites)
    assert leak.blocks == sum(site.blocks for site in leak.sites) > 350
    holder = leak.holder
    assert (holder.name, holder.scope, holder.function, holder.through) == ("failures", "local", "main", "exception")
    assert [(row.type, row.length, row.bound) for row in holder.containers] == [("dict", 200, None)]
    (name,) = holder.names
    assert name.startswith("failures (dict of 200), local of main() at program.py:")
    assert name.endswith(", through the traceback of an exception")
    (row,) = trace.leaks().to_frame().to_dict("records")
    assert (row["holder"], row["holder_path"]) == (name, holder.path)


GRAPH = """
def main():
    weight = torch.ones(8, 8, requires_grad=True)
    total = torch.zeros(())
    for _ in range(2000):
        loss = (torch.ones(8, 8) @ weight).exp().mean()
        total = total + loss
        alloctrace.step()
    alloctrace.disable()

object_scan.MAX_OBJECTS = 4000
alloctrace.enable("run.alloctrace", devices=("cpu",))
main()
"""


def test_referrer_of_long_graph_is_named_when_the_scan_is_truncated(tmp_path: Path) -> None:
    trace = load(run_source(tmp_path, SET_UP + GRAPH))

    last = trace._recorded.held[-1]
    assert not last.has_all_nodes
    holder = first_leak(trace).holder
    assert (holder.name, holder.through) == ("total", "autograd graph")
    assert holder.path == "total.grad_fn"


GRADIENT_PENALTY = """
def main():
    layer = torch.nn.Linear(64, 32)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)
    for _ in range(60):
        images = torch.randn(16, 64, requires_grad=True)
        layer(images).tanh().sum().backward(create_graph=True)
        penalty = images.grad.pow(2).sum()
        optimizer.zero_grad()
        penalty.backward()
        optimizer.step()
        if not is_kept:
            images.grad = None
    alloctrace.disable()

alloctrace.enable("run.alloctrace", devices=("cpu",))
main()
"""


@pytest.mark.parametrize("has_scan", [True, False])
def test_gradients_with_graphs_are_the_cause_of_a_leak(tmp_path: Path, has_scan: bool) -> None:
    scan = "" if has_scan else "object_scans.MAX_FINAL_SCAN_S = object_scans.FREE_SCAN_S = 0.0\n"

    trace = load(run_source(tmp_path, SET_UP + scan + "is_kept = True\n" + GRADIENT_PENALTY))

    leak = first_leak(trace)
    backward = leak.gradient_graph if leak.holder is None else leak.holder.store
    assert backward is not None and backward.source is not None
    assert backward.source.strip() == "layer(images).tanh().sum().backward(create_graph=True)"
    assert (leak.holder is not None) == has_scan
    if leak.holder is not None:
        assert (leak.holder.through, leak.holder.store_kind) == ("gradient", "backward")
    assert "`.grad = None`" in sentences_of(trace)


def test_gradients_with_graphs_that_are_released_are_no_leak(tmp_path: Path) -> None:
    trace = load(run_source(tmp_path, SET_UP + "is_kept = False\n" + GRADIENT_PENALTY))

    assert not any(finding.leak for finding in trace.diagnose())


TABLES = """
import functools

@functools.lru_cache(maxsize=None)
def make_table(length):
    return torch.ones(length, 4).cos()

def main():
    layer = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64))
    losses = []
    for number in range(400):
        features = torch.randn(16, 64)
        table = make_table(32 + number)
        loss = layer(features).square().mean() * table.sum()
        losses.append(loss)
        alloctrace.step()

alloctrace.enable("run.alloctrace", devices=("cpu",))
main()
"""


def test_line_beside_a_leak_has_its_own_holder(tmp_path: Path) -> None:
    trace = load(run_source(tmp_path, SET_UP + TABLES))

    leak = first_leak(trace)
    holders = {site.site.function: site.holder and site.holder.name for site in leak.sites}
    assert leak.holder is not None and leak.holder.name == "losses"  # main() freed the list before the final scan
    assert holders == {"main": "losses", "make_table": "make_table"}
    text = run_analyze(tmp_path, "leaks", "run.alloctrace")
    assert "Held by make_table (lru_cache of 400)" in text and "held by the same object" not in text


FEW_BLOCKS = """
def main():
    best = []
    for number in range(60):
        torch.randn(64, 64).sum()
        if number in (40, 47, 52, 55):
            best.append(torch.randn(512, 64))
        alloctrace.step()
    alloctrace.disable()

alloctrace.enable("run.alloctrace", devices=("cpu",))
main()
"""


def test_inconclusive_finding_names_the_referrer(tmp_path: Path) -> None:
    trace = load(run_source(tmp_path, SET_UP + FEW_BLOCKS))

    (finding,) = (finding for finding in trace.diagnose() if finding.kind == "inconclusive")
    assert any("Held by best (list of 4), local of main() at program.py:" in text for text in finding.sentences)


def test_referrer_addresses_are_those_of_live_blocks(record_trainer: RecordTrainer) -> None:
    trace = load(record_trainer("killed"))

    referrers = [referrer for referrer in trace._recorded.held if referrer.path == "trainer.predictions[...]"]
    assert referrers
    for referrer in referrers:
        live = trace.live(referrer.event - 1)
        assert np.isin(referrer.addresses, live["address"]).mean() > 0.95
        assert referrer.count == len(referrer.addresses) or referrer.count > 128


def test_referrers_are_encoded_as_the_format_describes(record_trainer: RecordTrainer) -> None:
    folder = record_trainer("disabled")

    names = TraceFile(folder / "run.alloctrace").names
    expected = {
        (referrer.event, referrer.holder.encode(), referrer.path.encode()): (
            *(referrer.filename.encode(), referrer.line, referrer.count, referrer.bytes),
            *(referrer.addresses.tolist(), referrer.is_garbage),
            [(row["type"].encode(), *list(row.values())[1:]) for row in referrer.containers],
            *(referrer.nodes, referrer.has_all_nodes, referrer.foreign_bytes),
            *(text.encode() for text in (referrer.name, referrer.scope, referrer.function, referrer.through)),
            (*(text.encode() for text in referrer.store[:3]), referrer.store[3]),
            *(referrer.tensor_bytes, referrer.back_reference.encode(), referrer.dtype.encode()),
        )
        for referrer in load(folder)._recorded.held
    }
    assert names.holders == expected and {fields[-1] for fields in expected.values()} >= {b"float32"}


def test_scan_adds_no_events(run_program, record_trainer: RecordTrainer, tmp_path: Path) -> None:
    without_scans = (
        "import pytorch_alloctrace as alloctrace\nfrom pytorch_alloctrace.recording import object_scans\n"
        "object_scans.FIRST_SCAN_EVENTS = 1e18"
    )

    run_program(TRAINER.replace("import pytorch_alloctrace as alloctrace", without_scans, 1), "returned")

    traces = [RecordedTrace(folder / "run.alloctrace") for folder in (record_trainer("returned"), tmp_path)]
    counts = [(trace.kind_counts, len(trace.held)) for trace in traces]
    kinds = [{kind: n for kind, n in row.items() if kind in ("alloc", "free_completed", "step")} for row, _ in counts]
    assert kinds[0] == kinds[1] and kinds[0]["alloc"] > 400
    assert counts[0][1] > counts[1][1]


def test_scan_does_not_move_the_next_collection(run_program) -> None:
    """Guard against a changed order in which tensors in cycles are freed."""
    run_program(
        """
import gc, torch
from pytorch_alloctrace.objects.object_scan import scan_objects
from pytorch_alloctrace.recording.object_scans import Collector
tensors = [torch.zeros(10) for _ in range(5000)]
collector = Collector()
for _ in range(3):
    gc.collect()  # empties CPython's lists of free objects
    lists = [[] for _ in range(300)]
    before = gc.get_count()
    collector.run_paused(lambda: scan_objects(5.0))
    after = gc.get_count()
    print(before, after)
    assert gc.isenabled() and abs(after[0] - before[0]) <= 20 and after[1:] == before[1:]
gc.disable()
collector.run_paused(lambda: None)
assert not gc.isenabled()
""",
        fresh=True,
    )


def test_first_scan_keeps_no_object_alive(run_program) -> None:
    """Guard against a frame of the recorder that refers to itself: all variables above it would stay alive."""
    run_program(
        """
import gc, weakref, torch
from pytorch_alloctrace.objects.object_scan import scan_objects
from pytorch_alloctrace.recording.object_scans import Collector
collector = Collector()
gc.collect()
gc.disable()
def program():
    outputs = [torch.nn.Linear(10, 10)(torch.zeros(10)) for _ in range(20)]
    assert collector.run_paused(lambda: scan_objects(5.0)).groups
    return [weakref.ref(output) for output in outputs]
assert not any(reference() is not None for reference in program())
gc.set_debug(gc.DEBUG_SAVEALL)
gc.collect()
gc.garbage.clear()
collector.run_paused(lambda: scan_objects(5.0))
assert not gc.collect(), gc.garbage
"""
    )


CONTAINERS = """
import collections, functools, queue, torch
import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.recording import object_scans

object_scans.MAX_FINAL_SCAN_S = object_scans.FREE_SCAN_S = object_scans.MAX_SCAN_S = 60.0

class Lists:  # more holders of blocks than a scan reports
    def __init__(self):
        for number in range(40):
            setattr(self, f"list_{number}", [torch.ones(1) for _ in range(3)])

@functools.lru_cache(maxsize=128)
def mask(size):
    return torch.zeros(size)

def main():
    recent, waiting, ring = collections.deque(maxlen=50), queue.Queue(900), [None] * 800
    lists, pairs, total = Lists(), [], torch.zeros((), requires_grad=True).clone()
    for number in range(400):
        recent.append(torch.ones(10))
        waiting.put(torch.ones(10))
        ring[number] = torch.ones(10)
        pairs.append((torch.ones(10), torch.ones(10)))
        mask(number + 1)
        total = total + 1.0
        alloctrace.step()
    alloctrace.disable()

alloctrace.enable("run.alloctrace", devices=("cpu",))
main()
"""


@pytest.fixture(scope="module")
def containers_trace(tmp_path_factory: pytest.TempPathFactory) -> alloctrace.Trace:
    folder = tmp_path_factory.mktemp("containers")
    (folder / "program.py").write_text(CONTAINERS)
    process = run_python(folder, [sys.executable, str(folder / "program.py")], False, 600, {})
    assert process.returncode == 0, process.stderr
    return load(folder)


def test_trace_has_length_bound_and_nones_of_containers(containers_trace: alloctrace.Trace) -> None:
    table = containers_trace.holders()

    scans = [scan.set_index("path")["containers"] for _, scan in table.groupby("seq")]
    assert len(scans) > 1
    for scan in scans:
        recent, mask, waiting, ring = (
            scan[path][0] for path in ("recent[...]", "mask(...)", "waiting.queue[...]", "ring[...]")
        )
        length = recent["length"]
        assert recent == {"type": "deque", "length": length, "size": length, "bound": 50, "nones": 0}
        assert (mask["type"], mask["bound"]) == ("lru_cache", 128)
        assert (waiting["type"], waiting["bound"]) == ("deque", 900)
        assert (ring["type"], ring["length"], ring["bound"]) == ("list", 800, 0)
        assert ring["nones"] == 800 - waiting["length"]
        pairs = next(containers for path, containers in scan.items() if path.startswith("pairs[...]"))
        assert [container["type"] for container in pairs] == ["list", "tuple"]
    last = {path: scans[-1][path][0] for path in ("recent[...]", "mask(...)", "ring[...]")}
    assert [container["length"] for container in last.values()] == [50, 128, 800]
    assert last["ring[...]"]["nones"] == 400


def test_trace_has_the_variable_that_keeps_a_growing_graph(containers_trace: alloctrace.Trace) -> None:
    table = containers_trace.holders()

    graphs = table[table["holder"].str.startswith("total, local of main() at program.py:")]
    assert len(graphs) == table["seq"].nunique() > 1
    assert graphs["nodes"].is_monotonic_increasing and graphs["has_all_nodes"].all()
    assert graphs["nodes"].iloc[-1] == 402  # the additions, the clone and the gradient of the leaf
    assert (graphs["blocks"] == 2).all()  # its own and the leaf: the additions keep no tensor
    held = [held for held in containers_trace._recorded.held if held.holder in set(graphs["holder"])]
    assert not any(len(referrer.addresses) for referrer in held)  # so that no leak is attributed to them
    assert (table.loc[~table.index.isin(graphs.index), "nodes"] == 0).all()


def test_compaction_keeps_containers_and_nodes(containers_trace: alloctrace.Trace, tmp_path: Path) -> None:
    until = containers_trace.integrity.events - 1

    compacted = alloctrace.compact(containers_trace.path, tmp_path / "compacted.alloctrace", until=until).trace

    kept, recorded = alloctrace.load(compacted).holders(), containers_trace.holders()
    last_scans = recorded["seq"].unique()[-10:]
    pd.testing.assert_frame_equal(
        kept[kept["seq"].isin(last_scans)].reset_index(drop=True),
        recorded[recorded["seq"].isin(last_scans)].reset_index(drop=True),
    )


LEAKING = """
import torch
import pytorch_alloctrace as alloctrace

class Trainer:
    def __init__(self):
        self.history = []

def main():
    trainer = Trainer()
    for number in range(3000):
        trainer.history.append(torch.ones(1000))
        torch.ones(10)
        alloctrace.step()

with alloctrace.enable("run.alloctrace", devices=("cpu",)):
    main()
"""


@pytest.mark.parametrize("share", [0.4, 0.9])
def test_verdict_names_holder_in_compacted_trace(run_program, tmp_path: Path, share: float) -> None:
    run_program(LEAKING)
    trace = alloctrace.load(tmp_path / "run.alloctrace")
    compacted = alloctrace.compact(
        trace.path, tmp_path / "compacted.alloctrace", until=round(share * trace.integrity.events)
    ).trace

    for path in (trace.path, compacted):
        (leak,) = alloctrace.load(path).leaks().leaks
        assert leak.holder is not None and leak.holder.names[0].startswith("trainer.history (list of"), path


def test_older_trace_has_neither_containers_nor_nodes(tmp_path: Path) -> None:
    texts = [text("kept (list of 2), global of train.py"), text("kept[...]"), text("train.py")]
    addresses = [varint(1), delta(4096, 0)]
    older = record(13, *map(varint, (0, 7, 2, 8)), *texts, *addresses, varint(0))
    (tmp_path / "run.alloctrace").write_bytes(extreme_traces.trace(older))

    (row,) = load(tmp_path).holders().to_dict("records")

    assert (row["holder"], row["blocks"], row["is_garbage"]) == ("kept (list of 2), global of train.py", 2, False)
    assert (row["containers"], row["nodes"], row["has_all_nodes"]) == ([], 0, False)


FORKED = """
import gc, os, threading
from pytorch_alloctrace.recording.object_scans import Collector

collector, paused, ended = Collector(), threading.Event(), threading.Event()

def scan():
    paused.set()
    ended.wait()

thread = threading.Thread(target=collector.run_paused, args=(scan,))
thread.start()
paused.wait()
child = os.fork()
if child == 0:
    collector.resume_in_child()
    os._exit(gc.isenabled())
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
ended.set()
thread.join()
collector.resume_in_child()
assert gc.isenabled()
"""


def test_child_forked_during_a_scan_of_another_thread_collects_garbage(run_program) -> None:
    run_program(FORKED)


CYCLES = """
import gc, torch
import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.recording import object_scans

object_scans.MAX_FINAL_SCAN_S, object_scans.FREE_SCAN_S, object_scans.MAX_SCAN_S = 0.0, 60.0, 20.0

class Request:
    def __init__(self, number):
        self.output = torch.full((1000,), float(number))
        self.me = self

def main():
    gc.disable()
    for number in range(1000):
        Request(number)
    alloctrace.step()  # an ordinary scan, which comes first
    gc.collect()

callbacks = gc.callbacks[:]
alloctrace.enable("run.alloctrace", devices=("cpu",))
main()
alloctrace.disable()
assert gc.callbacks == callbacks
"""


def test_scan_before_a_collection_names_the_cycles_that_it_frees(run_program, tmp_path: Path) -> None:
    run_program(CYCLES)

    trace = load(tmp_path)
    holders = trace.holders()
    (garbage,) = holders[holders["is_garbage"]].itertuples()
    assert garbage.holder.startswith("Request.output, a reference cycle") and garbage.blocks == 1000
    # The collection frees them right after the scan.
    assert (trace.events(since=garbage.seq - 1)["kind"] == "free_completed").sum() >= 1000


@needs_cuda_build
@pytest.mark.parametrize("thread", ["main", "autograd"])
def test_scan_at_out_of_memory_names_variables_of_the_failed_call(
    run_cuda_program, tmp_path: Path, thread: str
) -> None:
    run_cuda_program(
        """
import sys, torch
import pytorch_alloctrace as alloctrace

def fill(hoard):
    while True:
        hoard.append(torch.empty(64 << 20, dtype=torch.uint8, device="cuda"))

class Fill(torch.autograd.Function):
    @staticmethod
    def forward(context, x): return x * 1
    @staticmethod
    def backward(context, gradient): fill([])

def main():
    x = torch.ones(10, device="cuda", requires_grad=True)
    for _ in range(3):
        try:
            fill([]) if sys.argv[1] == "main" else Fill.apply(x).sum().backward()
        except torch.OutOfMemoryError:
            pass
    return x

alloctrace.enable("run.alloctrace")
main()
""",
        thread,
        memory="2GiB",
    )

    trace = load(tmp_path)
    events = trace.events()
    failed = events.loc[events["kind"] == "oom", "seq"].tolist()
    holders = trace.holders()
    hoards = holders[holders["path"].str.startswith("hoard")]
    assert len(failed) >= 3 and len(hoards) == 2  # at the first two errors
    for hoard in hoards.itertuples():
        assert hoard.holder.startswith("hoard (list of ") and " local of fill() at program.py:" in hoard.holder
        assert hoard.requested_bytes > 1 << 30 and any(0 < hoard.seq - seq <= 4 for seq in failed)


def test_interrupt_during_a_scan_of_a_collection_reaches_the_program(run_program) -> None:
    """Guard against errors in callbacks of the collector, which Python prints and drops."""
    process = run_program(
        CYCLES.replace("    gc.collect()\n", "    interrupted()\n").replace(
            "def main():",
            """def interrupted():
    import os, signal
    from pytorch_alloctrace.objects import object_scan
    scan = object_scan.scan_objects
    def interrupt(seconds, search_unreached, **options):
        object_scan.scan_objects = scan  # another may be due at once
        os.kill(os.getpid(), signal.SIGINT)
        return scan(seconds, search_unreached, **options)
    object_scan.scan_objects = interrupt
    try:
        gc.collect()
        for _ in range(100): str(0)
        print("lost")
    except KeyboardInterrupt:
        print("interrupted")

def main():""",
        )
    )
    assert process.stdout == "interrupted\n" and not process.stderr


def test_events_without_a_scan_are_less_than_a_tenth(record_trainer: RecordTrainer) -> None:
    trace = load(record_trainer("killed"))

    scans = trace.holders()["seq"].unique()
    events = len(trace.events())
    gaps = np.diff([*scans[scans > events // 10], events])
    assert gaps.max() < events / 10


def test_scans_distinguish_holder_of_old_blocks_from_overwritten_variable(run_program, tmp_path: Path) -> None:
    program = TRAINER.replace(
        "self.predictions.append(",
        "self.last = [output.detach() * 1, output.detach() * 2]\n        self.predictions.append(",
    )

    run_program(program, "killed", check=False)

    trace = load(tmp_path)
    steps = trace.events(kinds=["step"])["seq"]
    for path, is_old in (("trainer.predictions[...]", True), ("trainer.last[...]", False)):
        scans = [held for held in trace._recorded.held if held.path == path]
        assert len(scans) >= 2
        for held in scans[-2:]:
            live = trace.live(held.event - 1)
            ages = live.loc[live["address"].isin(held.addresses), "alloc_seq"]
            step_begin = steps[steps < held.event].iloc[-2]
            assert len(ages) and (ages < step_begin).any() == is_old


MODULES = """
import os, signal, torch
import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.recording import object_scans

object_scans.FREE_SCAN_S = object_scans.MAX_SCAN_S = 60.0  # complete on a busy machine, too

class Served(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8))
        self.register_buffer("scale", torch.ones(8))

    def __getattribute__(self, name):
        assert not scanning
        return super().__getattribute__(name)

    def named_parameters(self, *_): raise AssertionError
    named_buffers = parameters = named_modules = named_parameters

def main():
    model = Served().eval()
    layer = model.layers[0]
    for number in range(400):
        with torch.no_grad():
            model.layers(torch.randn(4, 8)) * model.scale
        alloctrace.step()
    os.kill(os.getpid(), signal.SIGKILL)

scanning = False
from pytorch_alloctrace.objects import object_scan
scan = object_scan.scan_objects
def watched(*arguments, **options):
    global scanning
    scanning = True
    try: return scan(*arguments, **options)
    finally: scanning = False
object_scan.scan_objects = watched
alloctrace.enable("run.alloctrace", devices=("cpu",))
main()
"""


def test_scan_names_parameters_and_buffers_of_a_model_without_optimizer(run_program, tmp_path: Path) -> None:
    run_program(MODULES, check=False)

    trace = load(tmp_path)
    live = trace.live()
    live = live[live["name"] != ""]
    roles = dict(zip(live["name"], live["role"].astype(str), strict=True))
    assert roles == {
        **dict.fromkeys([f"layers.{n}.{name}" for n in (0, 1) for name in ("weight", "bias")], "parameter"),
        **dict.fromkeys(
            ["scale", *(f"layers.1.{n}" for n in ("running_mean", "running_var", "num_batches_tracked"))], "buffer"
        ),
    }
    assert live["role_is_exact"].all()
    assert (trace.events()["kind"] == "role").sum() == len(roles)  # each scan writes only what is new


def test_mark_causes_a_scan_in_a_short_program(run_program, tmp_path: Path) -> None:
    run_program(
        """
        import torch, pytorch_alloctrace as alloctrace

        def main():
            cache = {number: torch.ones(1000) for number in range(100)}
            for _ in range(3):
                alloctrace.mark("filled")  # hardly anything is recorded between these
            cache.clear()

        alloctrace.enable("t.alloctrace", devices=("cpu",))
        main()
        """
    )
    trace = alloctrace.load(tmp_path / "t.alloctrace")

    rows = run_analyze(tmp_path, "holders", "t.alloctrace", "--at", "mark:filled", "--json")

    assert [row["holder"]["name"] for row in json.loads(rows)["rows"]] == ["cache"]
    assert trace.holders()["seq"].nunique() == 1
