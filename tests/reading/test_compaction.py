"""Compacted traces: exact sums equal those of the original trace; other queries fail or are labelled coarse."""

from __future__ import annotations

import itertools
import json
import re
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from command_line import run_command
from compaction_comparison import differences
from extreme_traces import events, failed_allocations, steps_of_many_devices
from extreme_traces import trace as hostile_trace
from format_reader import BLOCK_HEADER
from hostile_traces import blocks_of, repair_checksums
from hypothesis import given, settings
from hypothesis import strategies as st
from marked_programs import run_analyze
from running import ROOT, run_python, with_cuda

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace import _replay
from pytorch_alloctrace.reading.following import Following
from pytorch_alloctrace.reading.names import KINDS

COMPACTED_PART = 6
"""Type of the block that has the compacted part."""
CASES = ("loss_kept_with_its_graph", "plain_training", "sessions_that_come_and_go")
"""Cases of leak_corpus, recorded on a device with segments. The made-up traces below compact CPU memory."""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded")
    command = [sys.executable, str(ROOT / "tests/support/leak_corpus.py"), "cuda", str(folder), *CASES]
    run_python(folder, with_cuda(command, memory="8GiB"), check=True, timeout=600, environment={})
    return folder


@pytest.mark.parametrize("name", CASES)
def test_exact_sums_match_the_original_trace(recorded: Path, tmp_path: Path, name: str) -> None:
    original = alloctrace.load(recorded / f"{name}.alloctrace")
    previous = Path(original.path)

    for share in (0.3, 0.9):  # the second compacts the first further
        until = int(original.integrity.events * share)
        compaction = alloctrace.compact(previous, tmp_path / f"{share}.alloctrace", until=until - 1)
        compacted = alloctrace.load(compaction.trace)
        assert compaction.until == until == compacted.integrity.compacted_until and compaction.events == until
        assert compacted.integrity.state == "complete" and len(compacted.events()) == original.integrity.events - until
        assert differences(original, compacted) == []
        previous = compaction.trace


def compact_bytes(folder: Path, data: bytes, until: int | str = "end") -> tuple[alloctrace.Trace, alloctrace.Trace]:
    """Write a trace as whole.alloctrace, compact it as f.alloctrace, and return both."""
    (folder / "whole.alloctrace").write_bytes(data)
    compaction = alloctrace.compact(folder / "whole.alloctrace", folder / "f.alloctrace", until=until)
    return alloctrace.load(folder / "whole.alloctrace"), alloctrace.load(compaction.trace)


def test_events_of_compacted_part_end_at_until(tmp_path: Path) -> None:
    original, compacted = compact_bytes(tmp_path, failed_allocations(5))
    seqs = original.events(kinds=["oom"])["seq"].tolist()

    for number, seq in enumerate(seqs, 1):
        assert compacted.events(until=seq, kinds=["oom"])["seq"].tolist() == seqs[:number]


def test_following_begins_with_compacted_part(tmp_path: Path) -> None:
    """Record without stacks, so that blocks have an autograd node but no line."""
    weight = torch.ones(200, 200, requires_grad=True)
    tensors = []
    with alloctrace.enable(tmp_path / "whole.alloctrace", devices="cpu", stacks="none"):
        for _ in range(20):
            (weight @ weight).sum().backward()
            tensors.append(torch.empty(1000))
    original = alloctrace.load(tmp_path / "whole.alloctrace")
    assert original.usage()["stack_id"].gt(0).any()

    alloctrace.compact(original.path, tmp_path / "f.alloctrace", until=original.integrity.events // 2)
    (device,) = Following(tmp_path / "f.alloctrace").advance().devices
    assert device.counts.requested == original.live()["requested_bytes"].sum() > 20 * 4000
    assert device.counts.peak_allocated == original.peak().bytes


def test_blocks_match_when_sizes_exceed_numbered_kinds(tmp_path: Path) -> None:
    sizes = 512 * np.tile(np.arange(1, 20_000), 2)
    addresses = 0x7F0000000000 + np.cumsum(sizes) - sizes
    allocations = events(len(sizes), kind=1, address=addresses, size=sizes, location=1)
    original, compacted = compact_bytes(tmp_path, hostile_trace(rows=np.concatenate([allocations, events(1, kind=10)])))

    assert len(compacted.blocks()) == len(sizes)
    pd.testing.assert_frame_equal(original.blocks(), compacted.blocks())


def test_steps_omitted_by_compaction_are_counted(tmp_path: Path) -> None:
    _, compacted = compact_bytes(tmp_path, steps_of_many_devices(70_000))
    assert len(compacted.steps()) < 40_000 and compacted._recorded.positions.step_count == 70_000
    assert "70,000 steps" in run_analyze(tmp_path, "diagnose", "f.alloctrace", "--device", "cuda:3")


def test_last_failed_allocation_is_explained_after_compaction(tmp_path: Path) -> None:
    previous = tmp_path / "whole.alloctrace"
    previous.write_bytes(failed_allocations(12))
    original = alloctrace.load(previous)
    requests = sorted(original._recorded.failed_allocations)
    for name, until in (("once", requests[-5]), ("twice", requests[-1])):  # the second compacts the compacted part
        alloctrace.compact(previous, tmp_path / f"{name}.alloctrace", until=until)
        previous = tmp_path / f"{name}.alloctrace"
        compacted = alloctrace.load(previous)
        expected = next(oom for oom in original.ooms() if oom.request.seq == until)
        oom = next(oom for oom in compacted.ooms() if oom.request.seq == until)
        assert oom.verdict == expected.verdict
        assert (oom.allocated_bytes, oom.limit_bytes) == (expected.allocated_bytes, expected.limit_bytes)
        assert oom.request.outcome == "ended"
        assert str(oom.top_sites) == str(expected.top_sites)
        assert "OUT OF MEMORY" in run_analyze(tmp_path, "diagnose", previous.name)

    process = run_command(tmp_path, ["oom", previous.name])
    assert process.returncode == 0
    assert "10 requests of the compacted part ran out of memory" in " ".join(process.stderr.split())


def test_failed_allocations_omitted_by_compaction_are_counted(tmp_path: Path) -> None:
    _, compacted = compact_bytes(tmp_path, failed_allocations(600))
    assert len(compacted._recorded.failed_allocations) == 512
    process = run_command(tmp_path, ["oom", "f.alloctrace"])
    assert process.returncode == 0
    assert "598 requests of the compacted part ran out of memory" in " ".join(process.stderr.split())


def find_compacted_part(data: bytearray) -> tuple[int, int]:
    """Return the begin and the end of the block with the compacted part."""
    return next(
        (at, end) for at, end in blocks_of(data) if int.from_bytes(data[at + 12 : at + 14], "little") == COMPACTED_PART
    )


def test_compacted_part_of_other_version_raises_trace_error(tmp_path: Path) -> None:
    """The trace is not reported as corrupt."""
    _, compacted = compact_bytes(tmp_path, failed_allocations(50), until=60)
    data = bytearray(Path(compacted.path).read_bytes())
    at, end = find_compacted_part(data)

    current = data[at + BLOCK_HEADER]
    for version in (current - 1, current + 1):
        data[at + BLOCK_HEADER] = version
        data[at:end] = repair_checksums(data[at:end])
        path = tmp_path / f"{version}.alloctrace"
        path.write_bytes(data)
        other = alloctrace.load(path)
        assert (other.integrity.state, other.integrity.compacted_until) == ("complete", 61)
        part = f"its compacted part is of version {version}, this one"
        sentence = f"was compacted by another version of pytorch_alloctrace .{part}"
        with pytest.raises(alloctrace.TraceError, match=sentence):
            other.live()
        with pytest.raises(alloctrace.TraceError, match=sentence):
            Following(other.path).advance()
        assert re.search(sentence, run_analyze(tmp_path, "diagnose", f"{version}.alloctrace", status=2))


def test_queries_of_compacted_events_raise_compacted_error(recorded: Path, tmp_path: Path) -> None:
    original = alloctrace.load(recorded / "plain_training.alloctrace")
    until = original.integrity.events // 2
    compacted = alloctrace.load(alloctrace.compact(original.path, tmp_path / "f.alloctrace", until=until - 1).trace)
    step = int(original.steps()["step"].iloc[2])
    peak = compacted.peak().seq
    for query in (
        lambda: compacted.events(since=until // 2),
        lambda: compacted.live(until // 2 if until // 2 != peak else peak - 1),
        lambda: compacted.live(f"step:{step}"),
        lambda: compacted.peak(since=f"step:{step}", until=f"step:{step + 1}"),
        lambda: compacted.usage(since=f"step:{step}"),
    ):
        with pytest.raises(alloctrace.CompactedError, match=f"{until - 1:,}|{until - 1}|{until:,}"):
            query()
    for command in ("diagnose", "leaks", "peak", "sites", "verify", "segments"):
        assert f"COMPACTED  compacted up to event {until - 1:,}" in run_analyze(tmp_path, command, "f.alloctrace")
    assert json.loads(run_analyze(tmp_path, "leaks", "f.alloctrace", "--json")) is not None

    error = run_analyze(tmp_path, "leaks", "f.alloctrace", "--since", f"step:{step}", "--until", "end", status=2)
    assert error.count("\n") == 1 and "compacted" in error
    run_analyze(tmp_path, "what-if", "f.alloctrace", status=2)


def test_compact_command_requires_later_position_and_output(recorded: Path, tmp_path: Path) -> None:
    trace = recorded / "plain_training.alloctrace"
    output = run_analyze(tmp_path, "compact", str(trace), "--until", "step:20", "-o", "small.alloctrace")
    assert "are compacted into sums" in output
    for until in ("step:10", "step:20"):
        error = run_analyze(tmp_path, "compact", "small.alloctrace", "--until", until, "-o", "x.alloctrace", status=2)
        assert "compacted up to event" in error and "already: give a later position" in error
    assert not (tmp_path / "x.alloctrace").exists()

    without_output = run_analyze(tmp_path, "compact", str(trace), "--until", "step:20", status=2)
    assert "--output is missing" in without_output


def test_corruption_of_compacted_trace_is_reported(recorded: Path, tmp_path: Path) -> None:
    """Corrupt a trace before its compaction, and the compacted part itself."""
    path = recorded / "loss_kept_with_its_graph.alloctrace"
    data = bytearray(path.read_bytes())
    first = data.index(b"ATBK", data.index(b"ATBK") + 4)
    data[first + 200] ^= 0xFF
    (tmp_path / "damaged.alloctrace").write_bytes(data)
    with pytest.warns(alloctrace.IncompleteTraceWarning):
        corrupt = alloctrace.load(tmp_path / "damaged.alloctrace")
    end = corrupt._recorded.end_seq
    assert corrupt.integrity.state == "corrupt" and end > 100

    compaction = alloctrace.compact(corrupt.path, tmp_path / "f.alloctrace", until=end - 10)
    with pytest.warns(alloctrace.IncompleteTraceWarning):
        compacted = alloctrace.load(compaction.trace)
    assert compacted.integrity.state == "corrupt"
    assert compacted.integrity.corrupt_bytes == corrupt.integrity.corrupt_bytes

    intact_path = alloctrace.compact(path, tmp_path / "good.alloctrace", until=end - 10).trace
    data = bytearray(intact_path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    (tmp_path / "bad.alloctrace").write_bytes(data)
    with pytest.warns(alloctrace.IncompleteTraceWarning):
        corrupt_part = alloctrace.load(tmp_path / "bad.alloctrace")
    assert corrupt_part.integrity.state == "corrupt" and corrupt_part.integrity.missing_events >= end - 10


# Made-up traces


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["alloc"] * 5 + ["free"] * 4 + ["step", "mark", "oom", "wrong", "segment"]),
        st.integers(0, 40),
        st.integers(1, 5000),
        st.integers(0, 6),
    ),
    min_size=10,
    max_size=400,
)


def write_trace(path: Path, operations: list[tuple[str, int, int, int]]) -> int:
    """Write a trace of two devices in which some events contradict others; return its number of events."""
    writer = _replay.TraceWriter(bytes(path), True, 10**18, "{}")
    code = writer.code("f", "train.py", 1, b"")
    outer = writer.frame(0, code, 0)
    stacks = [0, *(writer.frame(outer, code, 2 * number) for number in range(1, 7))]
    thread, text = writer.thread("main"), writer.string("here")
    cpu, cuda = writer.location(0, 0, 0, (0, 0)), writer.location(1, 0, 0, (0, 0))
    rows = []

    def push(kind: str, address: int, size: int, stack: int = 0, location: int = 0) -> None:
        time = 10**18 + 1000 * len(rows) ** 2
        rows.append((KINDS.index(kind), time, address, size, stack, thread, location, 0, 0))

    live: set[int] = set()
    segments, steps = itertools.count(), itertools.count(1)
    for kind, number, size, which in operations:
        address = 0x10000 + 0x10000 * number
        if kind == "alloc" and address not in live:
            live.add(address)
            push("alloc", address, size, stacks[which], cpu)
        elif kind == "free" and address in live:
            live.remove(address)
            push("free_completed", address, 0, stacks[which], cpu)
        elif kind == "wrong":
            push("free_completed", address, 0, stacks[which], cpu)
        elif kind == "segment":
            begin = 0x7F0000000000 + 0x2000000 * next(segments)
            push("segment_alloc", begin, 2 << 20, 0, cuda)
            push("alloc", begin, size, stacks[which], cuda)
            if number % 2:
                push("free_requested", begin, size, 0, cuda)
                push("free_completed", begin, size, 0, cuda)
        elif kind == "oom":
            push("oom", 100, size, stacks[which], cuda)
        elif kind == "step":
            push("step", 1, next(steps))
        elif kind == "mark":
            push("mark", 0, text)
    if rows:
        writer.push(*(np.array(column, dtype=np.uint64) for column in zip(*rows, strict=True)))
    writer.finish('{"reason": "converted"}')
    return len(rows)


@settings(max_examples=4)
@given(operations=OPERATIONS, shares=st.tuples(st.floats(0.05, 0.95), st.floats(0.05, 1)))
def test_compacting_twice_equals_compacting_once(
    tmp_path: Path, operations: list[tuple[str, int, int, int]], shares: tuple[float, float]
) -> None:
    count = write_trace(tmp_path / "whole.alloctrace", operations)
    first = max(1, int(count * min(shares)))
    second = max(first + 1, int(count * max(shares)))
    if second > count:
        return
    original = alloctrace.load(tmp_path / "whole.alloctrace")

    alloctrace.compact(original.path, tmp_path / "1.alloctrace", until=first - 1, overwrite=True)
    twice = alloctrace.compact(tmp_path / "1.alloctrace", tmp_path / "2.alloctrace", until=second - 1, overwrite=True)
    once = alloctrace.compact(original.path, tmp_path / "3.alloctrace", until=second - 1, overwrite=True)

    assert differences(original, alloctrace.load(once.trace)) == []
    assert differences(original, alloctrace.load(twice.trace)) == []


@pytest.mark.filterwarnings("ignore::pytorch_alloctrace.IncompleteTraceWarning")
@settings(max_examples=60)
@given(data=st.data())
def test_hostile_compacted_part_raises_or_is_read(tmp_path: Path, data: st.DataObject) -> None:
    """Change bytes of the compacted part and correct its checksum."""
    path = tmp_path / "f.alloctrace"
    if not path.exists():
        rows = [("alloc", number % 30, 100 + number, number % 7) for number in range(60)]
        rows += [("free", number % 30, 1, 0) for number in range(0, 60, 2)]
        rows += [("step", 0, 1, 0), ("segment", 1, 5000, 2), ("segment", 2, 5000, 2), ("oom", 1, 1, 1)]
        count = write_trace(tmp_path / "whole.alloctrace", rows * 4)
        alloctrace.compact(tmp_path / "whole.alloctrace", path, until=count - 20)
    content = bytearray(path.read_bytes())
    at, end = find_compacted_part(content)
    for _ in range(data.draw(st.integers(1, 4))):
        content[at + BLOCK_HEADER + data.draw(st.integers(0, end - at - BLOCK_HEADER - 1))] = data.draw(
            st.integers(0, 255)
        )
    content[at:end] = repair_checksums(content[at:end])
    changed = tmp_path / "changed.alloctrace"
    changed.write_bytes(content)
    try:
        trace = alloctrace.load(changed)
        trace.usage()
        trace.live()
        trace.timeline(10)
        trace.leaks()
        trace.peak().usage()
    except alloctrace.AlloctraceError:
        pass
