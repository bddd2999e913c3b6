"""status(): equality with torch and the trace, growing lines, and absence of side effects."""

from __future__ import annotations

import json
import math
import os
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from running import needs_cuda_build, start_python

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.errors import TraceError
from pytorch_alloctrace.reading.following import Following


def test_status_equals_the_trace_at_any_time(tmp_path: Path) -> None:
    rng = random.Random(5)
    tensors: list[torch.Tensor] = []
    with alloctrace.enable(tmp_path / "t.alloctrace", devices="cpu") as session:
        for number in range(200):
            if tensors and rng.random() < 0.4:
                tensors.pop(rng.randrange(len(tensors)))
            else:
                tensors.append(torch.empty(rng.randrange(1, 5000), dtype=torch.uint8))
            alloctrace.step()
            if number % 40 == 17:
                status = alloctrace.status(fresh=True)
                trace = session.load()
                sums = trace.timeline(1, device="cpu").iloc[-1]
                assert status["cpu/requested_bytes"] == sums["requested_bytes"] == trace.live()["requested_bytes"].sum()
                assert status["cpu/allocated_bytes"] == sums["allocated_bytes"]
                assert status["cpu/peak_allocated_bytes"] == trace.peak().bytes
                assert status["steps"] == len(trace.steps()) and status["step"] == number
                assert status["events_read"] <= status["events"] and status["read_age_seconds"] >= 0
                assert status["events_lost"] == trace.integrity.lost == 0
        assert all(type(value) in (int, float) and math.isfinite(value) for value in alloctrace.status().values())
    assert alloctrace.status() == {"recording": 0}


def test_growing_line_is_named_with_its_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "train.py"
    program.write_text(
        "import torch\n"
        "tensors, cache = [], []\n"
        "def step(n):\n"
        "    tensors.append(torch.empty(1000, dtype=torch.uint8))\n"
        "    if n < 20: cache.append(torch.empty(500, dtype=torch.uint8))\n"
        "    temporary = torch.empty(100 + n % 7, dtype=torch.uint8)\n"
        "    return temporary\n"
    )
    names: dict[str, Callable[[int], torch.Tensor]] = {}
    exec(compile(program.read_text(), str(program), "exec"), names)

    with alloctrace.enable("t.alloctrace", devices="cpu"):
        last = []
        for number in range(100):
            last[:] = [names["step"](number)]
            alloctrace.step()
        status = alloctrace.status(fresh=True)

    growing = {name: value for name, value in status.items() if name.startswith("growth_bytes_per_step/")}
    # The cache stops growing before the second half, and the temporary tensor's size varies.
    assert growing == {"growth_bytes_per_step/train.py:4": 1000.0}
    assert status["growing_sites"] == 1
    assert status["cpu/growth_bytes_per_step"] == pytest.approx(1000, rel=0.01)


def test_growth_is_per_second_when_there_are_no_steps(tmp_path: Path) -> None:
    tensors = []

    with alloctrace.enable(tmp_path / "t.alloctrace", devices="cpu"):
        ends = time.monotonic() + 60
        while time.monotonic() < ends:
            tensors.append(torch.empty(1000, dtype=torch.uint8))
            time.sleep(0.02)
            if len(tensors) % 50 == 0 and alloctrace.status(fresh=True)["growing_sites"]:
                break
        status = alloctrace.status()

    assert [name for name in status if name.startswith("growth_bytes_per_second/")]


def test_fork_and_exit_work_while_status_reads_the_trace(run_program) -> None:
    process = run_program(
        """
        import os, sys, torch
        import pytorch_alloctrace as alloctrace
        alloctrace.enable("parent.alloctrace")
        assert "pandas" not in sys.modules
        tensors = [torch.empty(100) for _ in range(20_000)]
        alloctrace.step()
        alloctrace.status()
        assert "pandas" not in sys.modules, "status() must not import pandas"
        if os.fork() == 0:
            assert alloctrace.status() == {"recording": 0}
            alloctrace.enable("child.alloctrace")
            tensors += [torch.empty(100) for _ in range(20_000)]
            status = alloctrace.status(fresh=True)
            assert status["events"] >= 20_000 and status["steps"] == 0, status
            alloctrace.disable()
            alloctrace.enable("again.alloctrace")
            tensors += [torch.empty(100) for _ in range(20_000)]
            alloctrace.status()
            sys.exit()
        assert os.wait()[1] == 0
        print("ended")
        """,
        fresh=True,
    )
    assert process.stdout == "ended\n" and process.stderr == ""


@pytest.mark.parametrize("is_removed", [False, True])
def test_status_works_in_many_threads_and_without_its_trace(tmp_path: Path, is_removed: bool) -> None:
    with alloctrace.enable(tmp_path / "t.alloctrace", devices="cpu") as session, ThreadPoolExecutor(8) as pool:
        if is_removed:
            session.path.unlink()

        def read_event_count(number: int) -> float:
            torch.empty(100)
            return alloctrace.status(fresh=number % 10 == 0)["events"]

        assert max(pool.map(read_event_count, range(400))) >= 400
        assert alloctrace.status()["recording"] == 1


CUDA_PROGRAM = """
import json, random, torch
import pytorch_alloctrace as alloctrace

rng = random.Random(3)
streams = [torch.cuda.Stream() for _ in range(2)]
before = torch.empty(3000, device="cuda")  # CUDA is initialized before the recording
session = alloctrace.enable("t.alloctrace")
tensors = []

def compare():
    status = alloctrace.status(fresh=rng.random() < 0.3)
    for index in range(torch.cuda.device_count()):
        stats = torch.cuda.memory_stats(index)
        if f"cuda:{index}/allocated_bytes" not in status:
            assert stats["reserved_bytes.all.current"] == 0, index
            continue
        for name, stat in [("requested", "requested_bytes"), ("allocated", "allocated_bytes"),
                           ("active", "active_bytes"), ("reserved", "reserved_bytes")]:
            assert status[f"cuda:{index}/{name}_bytes"] == stats[f"{stat}.all.current"], (name, index)
        assert status[f"cuda:{index}/cached_bytes"] == (
            stats["reserved_bytes.all.current"] - stats["active_bytes.all.current"])
    return status

for number in range(300):
    device = f"cuda:{rng.randrange(torch.cuda.device_count())}"
    if tensors and rng.random() < 0.45:
        tensors.pop(rng.randrange(len(tensors)))
    else:
        size = rng.choice([100, 5000, 2**20, 3 * 2**20, 12 * 2**20])
        if device == "cuda:0":
            with torch.cuda.stream(rng.choice(streams)):
                tensors.append(torch.empty(rng.randrange(1, size), dtype=torch.uint8, device=device))
                if rng.random() < 0.3:
                    tensors[-1].record_stream(torch.cuda.default_stream())
        else:
            tensors.append(torch.empty(rng.randrange(1, size), dtype=torch.uint8, device=device))
    if number % 50 == 20:
        torch.cuda.empty_cache()
    if number % 7 == 0:
        compare()
    alloctrace.step()
try:
    torch.empty(2**50, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError:
    pass
alloctrace.status(fresh=True)
torch.cuda.reset_peak_memory_stats()
status = compare()
session.flush()
view = alloctrace.live.status._watches[session].following.advance()
trace_numbers = {memory.device: [memory.counts.requested, memory.counts.allocated, memory.counts.active,
                                 memory.counts.reserved] for memory in view.devices}
alloctrace.disable()
print(json.dumps([status, trace_numbers]))
"""


@needs_cuda_build
def test_status_equals_the_memory_stats_of_torch(run_cuda_program, tmp_path: Path) -> None:
    process = run_cuda_program(CUDA_PROGRAM, devices=2)

    status, trace_numbers = json.loads(process.stdout)
    trace = alloctrace.load(tmp_path / "t.alloctrace")
    for index in (0, 1):
        device = f"cuda:{index}"
        assert status[f"{device}/peak_allocated_bytes"] == trace.peak(device=device).bytes
        assert status[f"{device}/peak_reserved_bytes"] == trace.peak("reserved", device=device).bytes
        # The trace's numbers must equal torch's: status() uses them for allocators without statistics.
        assert trace_numbers[device] == [
            status[f"{device}/{name}_bytes"] for name in ("requested", "allocated", "active", "reserved")
        ]
    assert status["failed_allocations"] == len(trace.ooms()) == 1


@needs_cuda_build
def test_status_uses_the_trace_when_the_allocator_has_no_statistics(run_cuda_program) -> None:
    process = run_cuda_program(
        """
        import json, torch
        import pytorch_alloctrace as alloctrace
        pair = torch.cuda.memory.CUDAPluggableAllocator(
            alloctrace.pluggable_library(), "alloctrace_malloc", "alloctrace_free")
        torch.cuda.memory.change_current_allocator(pair)
        alloctrace.enable("t.alloctrace")
        tensor = torch.empty(1000, dtype=torch.uint8, device="cuda")
        print(json.dumps(alloctrace.status(fresh=True)))
        """
    )

    status = json.loads(process.stdout)
    assert status["cuda:0/requested_bytes"] == 1000
    assert "cuda:0/reserved_bytes" not in status


def test_following_reads_the_last_event_before_a_kill(tmp_path: Path) -> None:
    program = (
        "import sys, torch\nimport pytorch_alloctrace as alloctrace\n"
        "alloctrace.enable('t.alloctrace', devices='cpu')\ntensors = []\n"
        "print('ready', flush=True)\n"
        "for line in sys.stdin:\n"
        "    tensors += [torch.empty(number + 1, dtype=torch.uint8) for number in range(int(line))]\n"
        "    alloctrace.step()\n    print(len(tensors), flush=True)\n"
    )

    with start_python(tmp_path, "-c", program) as running:
        assert running.stdout.readline() == "ready\n"
        following = Following(tmp_path / "t.alloctrace")
        following.read_spool_at(tmp_path / "t.alloctrace.spool")
        expected_bytes = 0
        for count in (10, 1, 70_000, 5):
            print(count, file=running.stdin, flush=True)
            running.stdout.readline()
            expected_bytes += count * (count + 1) // 2
            view = following.advance()  # nothing was flushed
            assert [memory.counts.requested for memory in view.devices] == [expected_bytes]

    trace = alloctrace.load(tmp_path / "t.alloctrace")
    view = following.advance()
    assert view.seen.events == trace._recorded.end_seq and not view.seen.ended
    assert view.seen.steps == 4 and view.seen.missing_events == view.seen.corrupt_blocks == 0
    sites, top = trace.usage(), view.sites[0]
    assert (top.bytes, top.blocks) == (sites["live_bytes"][0], sites["live_blocks"][0])
    assert top.name == f"<string>:{sites['line'][0]}"


def test_following_continues_in_a_copy_of_the_trace(tmp_path: Path) -> None:
    path = tmp_path / "t.alloctrace"
    with alloctrace.enable(path, devices="cpu") as session:
        tensors = [torch.empty(10)]
        session.flush()
        following = Following(path)
        before = following.advance()
        copy = tmp_path / "copy"
        tensors.append(torch.empty(20))
        session.flush()
        copy.write_bytes(path.read_bytes())

    os.replace(copy, path)
    view = following.advance()

    assert view.seen.events > before.seen.events
    assert view.devices[0].counts.requested == 120

    with alloctrace.enable(path, devices="cpu", overwrite=True) as session:
        session.flush()
        with pytest.raises(TraceError, match="another recording"):
            following.advance()


def test_following_skips_corrupt_blocks(tmp_path: Path) -> None:
    path = tmp_path / "t.alloctrace"
    with alloctrace.enable(path, devices="cpu") as session:
        tensors = [torch.empty(10)]
        session.flush()
        second_block_at = path.stat().st_size
        tensors.append(torch.empty(20))
        session.flush()
        tensors.append(torch.empty(30))
        session.flush()
        content = bytearray(path.read_bytes())
    content[second_block_at : second_block_at + 8] = bytes(8)
    path.write_bytes(content)

    view = Following(path).advance()

    assert view.seen.corrupt_blocks >= 1
    with pytest.warns(alloctrace.IncompleteTraceWarning):
        assert view.seen.events == alloctrace.load(path)._recorded.end_seq
