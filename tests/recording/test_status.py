"""status(): numbers equal to torch's and the trace's, growing lines, and no side effects."""

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


def test_numbers_equal_those_of_the_trace_at_any_moment(tmp_path: Path) -> None:
    chance = random.Random(5)
    kept: list[torch.Tensor] = []
    with alloctrace.enable(tmp_path / "t.alloctrace", devices="cpu") as session:
        for number in range(200):
            if kept and chance.random() < 0.4:
                kept.pop(chance.randrange(len(kept)))
            else:
                kept.append(torch.empty(chance.randrange(1, 5000), dtype=torch.uint8))
            alloctrace.step()
            if number % 40 == 17:
                found = alloctrace.status(fresh=True)
                trace = session.load()
                sums = trace.timeline(1, device="cpu").iloc[-1]
                assert found["cpu/requested_bytes"] == sums["requested_bytes"] == trace.live()["requested_bytes"].sum()
                assert found["cpu/allocated_bytes"] == sums["allocated_bytes"]
                assert found["cpu/peak_allocated_bytes"] == trace.peak().bytes
                assert found["steps"] == len(trace.steps()) and found["step"] == number
                assert found["events_read"] <= found["events"] and found["read_age_seconds"] >= 0
                assert found["events_lost"] == trace.integrity.lost == 0
        assert all(type(value) in (int, float) and math.isfinite(value) for value in alloctrace.status().values())
    assert alloctrace.status() == {"recording": 0}


def test_the_line_that_grows_is_named_with_its_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "train.py"
    program.write_text(
        "import torch\n"
        "kept, cache = [], []\n"
        "def step(n):\n"
        "    kept.append(torch.empty(1000, dtype=torch.uint8))\n"
        "    if n < 20: cache.append(torch.empty(500, dtype=torch.uint8))\n"
        "    passing = torch.empty(100 + n % 7, dtype=torch.uint8)\n"
        "    return passing\n"
    )
    names: dict[str, Callable[[int], torch.Tensor]] = {}
    exec(compile(program.read_text(), str(program), "exec"), names)
    with alloctrace.enable("t.alloctrace", devices="cpu"):
        last = []
        for number in range(100):
            last[:] = [names["step"](number)]
            alloctrace.step()
        found = alloctrace.status(fresh=True)
    growing = {name: value for name, value in found.items() if name.startswith("growth_bytes_per_step/")}
    # The cache was full before the later half began, and what passes holds now more, now less.
    assert growing == {"growth_bytes_per_step/train.py:4": 1000.0}
    assert found["growing_sites"] == 1
    assert found["cpu/growth_bytes_per_step"] == pytest.approx(1000, rel=0.01)


def test_without_steps_growth_is_by_the_second(tmp_path: Path) -> None:
    kept = []
    with alloctrace.enable(tmp_path / "t.alloctrace", devices="cpu"):
        ends = time.monotonic() + 60
        while time.monotonic() < ends:
            kept.append(torch.empty(1000, dtype=torch.uint8))
            time.sleep(0.02)
            if len(kept) % 50 == 0 and alloctrace.status(fresh=True)["growing_sites"]:
                break
        found = alloctrace.status()
    assert [name for name in found if name.startswith("growth_bytes_per_second/")]


def test_fork_and_exit_work_during_a_reading(run_program) -> None:
    """Fork and exit while a reading is under way."""
    process = run_program(
        """
        import os, sys, torch
        import pytorch_alloctrace as alloctrace
        alloctrace.enable("parent.alloctrace")
        assert "pandas" not in sys.modules
        kept = [torch.empty(100) for _ in range(20_000)]
        alloctrace.step()
        alloctrace.status()
        assert "pandas" not in sys.modules, "too much for a program that is only watched"
        if os.fork() == 0:
            assert alloctrace.status() == {"recording": 0}
            alloctrace.enable("child.alloctrace")
            kept += [torch.empty(100) for _ in range(20_000)]
            found = alloctrace.status(fresh=True)
            assert found["events"] >= 20_000 and found["steps"] == 0, found
            alloctrace.disable()
            alloctrace.enable("again.alloctrace")
            kept += [torch.empty(100) for _ in range(20_000)]
            alloctrace.status()
            sys.exit()
        assert os.wait()[1] == 0
        print("ended")
        """,
        fresh=True,
    )
    assert process.stdout == "ended\n" and process.stderr == ""


@pytest.mark.parametrize("is_removed", [False, True])
def test_status_works_in_many_threads_and_without_its_file(tmp_path: Path, is_removed: bool) -> None:
    with alloctrace.enable(tmp_path / "t.alloctrace", devices="cpu") as session, ThreadPoolExecutor(8) as pool:
        if is_removed:
            session.path.unlink()

        def ask(number: int) -> float:
            torch.empty(100)
            return alloctrace.status(fresh=number % 10 == 0)["events"]

        assert max(pool.map(ask, range(400))) >= 400
        assert alloctrace.status()["recording"] == 1


ON_CUDA = """
import json, random, torch
import pytorch_alloctrace as alloctrace

chance = random.Random(3)
streams = [torch.cuda.Stream() for _ in range(2)]
before = torch.empty(3000, device="cuda")  # CUDA is in use already
session = alloctrace.enable("t.alloctrace")
kept = []

def compare():
    found = alloctrace.status(fresh=chance.random() < 0.3)
    for index in range(torch.cuda.device_count()):
        stats = torch.cuda.memory_stats(index)
        if f"cuda:{index}/allocated_bytes" not in found:
            assert stats["reserved_bytes.all.current"] == 0, index
            continue
        for ours, theirs in [("requested", "requested_bytes"), ("allocated", "allocated_bytes"),
                             ("active", "active_bytes"), ("reserved", "reserved_bytes")]:
            assert found[f"cuda:{index}/{ours}_bytes"] == stats[f"{theirs}.all.current"], (ours, index)
        assert found[f"cuda:{index}/cached_bytes"] == (
            stats["reserved_bytes.all.current"] - stats["active_bytes.all.current"])
    return found

for number in range(300):
    device = f"cuda:{chance.randrange(torch.cuda.device_count())}"
    if kept and chance.random() < 0.45:
        kept.pop(chance.randrange(len(kept)))
    else:
        size = chance.choice([100, 5000, 2**20, 3 * 2**20, 12 * 2**20])
        if device == "cuda:0":
            with torch.cuda.stream(chance.choice(streams)):
                kept.append(torch.empty(chance.randrange(1, size), dtype=torch.uint8, device=device))
                if chance.random() < 0.3:
                    kept[-1].record_stream(torch.cuda.default_stream())
        else:
            kept.append(torch.empty(chance.randrange(1, size), dtype=torch.uint8, device=device))
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
found = compare()
session.flush()
view = alloctrace.live.status._watches[session].following.advance()
followed = {memory.device: [memory.counts.requested, memory.counts.allocated, memory.counts.active,
                            memory.counts.reserved] for memory in view.devices}
alloctrace.disable()
print(json.dumps([found, followed]))
"""


@needs_cuda_build
def test_numbers_equal_those_of_torch(run_cuda_program, tmp_path: Path) -> None:
    process = run_cuda_program(ON_CUDA, devices=2)
    found, followed = json.loads(process.stdout)
    trace = alloctrace.load(tmp_path / "t.alloctrace")
    for index in (0, 1):
        device = f"cuda:{index}"
        assert found[f"{device}/peak_allocated_bytes"] == trace.peak(device=device).bytes
        assert found[f"{device}/peak_reserved_bytes"] == trace.peak("reserved", device=device).bytes
        # What the trace says is what torch says, too: it is all there is where an allocator keeps no account.
        assert followed[device] == [
            found[f"{device}/{name}_bytes"] for name in ("requested", "allocated", "active", "reserved")
        ]
    assert found["failed_allocations"] == len(trace.ooms()) == 1


@needs_cuda_build
def test_an_allocator_without_an_account_is_read_from_the_trace(run_cuda_program) -> None:
    process = run_cuda_program(
        """
        import json, torch
        import pytorch_alloctrace as alloctrace
        pair = torch.cuda.memory.CUDAPluggableAllocator(
            alloctrace.pluggable_library(), "alloctrace_malloc", "alloctrace_free")
        torch.cuda.memory.change_current_allocator(pair)
        alloctrace.enable("t.alloctrace")
        kept = torch.empty(1000, dtype=torch.uint8, device="cuda")
        print(json.dumps(alloctrace.status(fresh=True)))
        """
    )
    found = json.loads(process.stdout)
    assert found["cuda:0/requested_bytes"] == 1000
    assert "cuda:0/reserved_bytes" not in found


def test_a_trace_is_followed_from_another_process(tmp_path: Path) -> None:
    """Follow a trace and its spool to the last event before a kill."""
    program = (
        "import sys, torch\nimport pytorch_alloctrace as alloctrace\n"
        "alloctrace.enable('t.alloctrace', devices='cpu')\nkept = []\n"
        "print('ready', flush=True)\n"
        "for line in sys.stdin:\n"
        "    kept += [torch.empty(number + 1, dtype=torch.uint8) for number in range(int(line))]\n"
        "    alloctrace.step()\n    print(len(kept), flush=True)\n"
    )
    with start_python(tmp_path, "-c", program) as running:
        assert running.stdout.readline() == "ready\n"
        following = Following(tmp_path / "t.alloctrace")
        following.read_spool_at(tmp_path / "t.alloctrace.spool")
        wanted = 0
        for count in (10, 1, 70_000, 5):
            print(count, file=running.stdin, flush=True)
            running.stdout.readline()
            wanted += count * (count + 1) // 2
            view = following.advance()  # nothing was flushed
            assert [memory.counts.requested for memory in view.devices] == [wanted]
    trace = alloctrace.load(tmp_path / "t.alloctrace")
    view = following.advance()
    assert view.seen.events == trace._recorded.end_seq and not view.seen.ended
    assert view.seen.steps == 4 and view.seen.missing_events == view.seen.damaged == 0
    sites, top = trace.usage(), view.sites[0]
    assert (top.bytes, top.blocks) == (sites["live_bytes"][0], sites["live_blocks"][0])
    assert top.name == f"<string>:{sites['line'][0]}"


def test_following_continues_in_a_copy_of_the_trace(tmp_path: Path) -> None:
    path = tmp_path / "t.alloctrace"
    with alloctrace.enable(path, devices="cpu") as session:
        kept = [torch.empty(10)]
        session.flush()
        following = Following(path)
        before = following.advance()
        copy = tmp_path / "copy"
        kept.append(torch.empty(20))
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


def test_following_skips_damage(tmp_path: Path) -> None:
    path = tmp_path / "t.alloctrace"
    with alloctrace.enable(path, devices="cpu") as session:
        kept = [torch.empty(10)]
        session.flush()
        begins = path.stat().st_size
        kept.append(torch.empty(20))
        session.flush()
        kept.append(torch.empty(30))
        session.flush()
        content = bytearray(path.read_bytes())
    content[begins : begins + 8] = bytes(8)
    path.write_bytes(content)
    view = Following(path).advance()
    assert view.seen.damaged >= 1
    with pytest.warns(alloctrace.IncompleteTraceWarning):
        assert view.seen.events == alloctrace.load(path)._recorded.end_seq
