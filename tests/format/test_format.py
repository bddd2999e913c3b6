"""Conformance with docs/trace-format.md: a reader written from it alone reads the same from files as the package."""

from __future__ import annotations

import re
import struct
import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import core_probe
import format_reader
import numpy as np
import pandas as pd
import pytest
from core_probe import Recorder, make_events
from format_reader import BLOCK_HEADER, COMPLETED, DEFINITIONS, DICTIONARY, END, EVENTS, TAKEN, TraceFile
from made_up_events import write_trace
from running import ROOT, ending_without_scan

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.reading.following import Following
from pytorch_alloctrace.reading.names import KINDS, ROLES, ROLES_SHOWN

DOCUMENT = (ROOT / "docs" / "trace-format.md").read_text()
DEVICES = {0: "cpu", 1: "cuda"}
ALLOC, FREE_REQUESTED, FREE_COMPLETED, STEP = 1, 2, 3, 10
ALLOCATOR_STATE = 25
SEGMENTS_AND_STATES = (4, 5, 6, 7, 20, 21)


def set_commits(spool: Path, commits: dict[int, int]) -> None:
    """Write commit words of ring slots."""
    data = bytearray(spool.read_bytes())
    for slot, commit in commits.items():
        struct.pack_into("<I", data, 4096 + slot * 64, commit)
    spool.write_bytes(data)


def decode(text: bytes) -> str:
    return text.decode("utf-8", "replace")


def demangle(name: bytes) -> str:
    return subprocess.run(["c++filt", "-t", name.decode()], capture_output=True, text=True, check=True).stdout.strip()


def sizes_of(oracle: TraceFile) -> list[int]:
    """Return the sizes of the events. A free without a size has that of the block at its address, as documented."""
    allocated: dict[tuple[Any, ...], int] = {}
    pending: dict[tuple[Any, ...], int] = {}
    sizes = []
    for _, event in oracle.events():
        key = (*oracle.names.locations.get(event.location, (0, 0))[:2], event.address)
        size = event.size
        if event.kind == ALLOC:
            allocated[key] = size
            pending.pop(key, None)  # address reused: the completed free was lost
        elif event.kind == FREE_REQUESTED and key in allocated:
            pending[key] = allocated.pop(key)
            size = size or pending[key]
        elif event.kind == FREE_COMPLETED and (key in allocated or key in pending):
            requested = pending.pop(key) if key in pending else allocated.pop(key)
            size = size or requested
        sizes.append(size)
    return sizes


def steps_of(oracle: TraceFile) -> list[int | None]:
    """Return the step of each event: the number of the next step that ends, or the last number + 1. Steps derived from
    optimizers do not count before the first explicit step."""
    steps = [(number, event.size, event.address) for number, event in oracle.events() if event.kind == STEP]
    first_explicit = next((number for number, _, is_explicit in steps if is_explicit), -1)
    ends = [(number, step) for number, step, is_explicit in steps if is_explicit or number > first_explicit]
    step_numbers: list[int | None] = []
    for number, _ in oracle.events():
        while ends and len(ends) > 1 and ends[0][0] < number:
            ends.pop(0)
        step_numbers.append((ends[0][1] if ends[0][0] >= number else ends[0][1] + 1) if ends else None)
    return step_numbers


def assert_readers_agree(path: Path, *, spool: Path | None = None) -> tuple[TraceFile, alloctrace.Trace]:
    """Compare all events, fields, stacks, names and counts of both readers."""
    oracle, trace = TraceFile(path, spool), alloctrace.load(path, spool=spool)
    rows = oracle.events()
    columns = [*alloctrace.trace.EVENT_COLUMNS, *alloctrace.trace.AUTOGRAD_COLUMNS]
    read = trace.events(columns=columns)
    names = oracle.names
    assert read["seq"].tolist() == [number for number, _ in rows]
    assert read["kind"].tolist() == [KINDS[e.kind] if e.kind < len(KINDS) else f"kind_{e.kind}" for _, e in rows]
    for column, field in (
        ("address", "address"), ("thread", "thread"), ("autograd_seq", "sequence"), ("node_seq", "node_sequence"),
        ("node_thread", "node_thread"),
    ):  # fmt: skip
        assert read[column].tolist() == [getattr(event, field) for _, event in rows], column
    assert read["stack_id"].tolist() == [event.stack if event.stack in names.frames else 0 for _, event in rows]
    assert read["requested_bytes"].tolist() == sizes_of(oracle)
    # A processor with fused multiply-add may round differently.
    assert np.abs(read["time_ns"].to_numpy() - np.array(oracle.times_ns(), dtype=np.int64)).max(initial=0) <= 1
    assert [None if value is pd.NA else value for value in read["step"]] == steps_of(oracle)

    nowhere = ("", 0, (0, 0))
    locations = {0: nowhere}
    for number, (kind, index, stream, first, second) in names.locations.items():
        locations[number] = (DEVICES[kind] if kind == 0 else f"{DEVICES[kind]}:{index}", stream, (first, second))
    expected_locations = [locations.get(event.location, nowhere) for _, event in rows]
    assert list(zip(read["device"], read["stream"], read["pool"], strict=True)) == expected_locations
    types = {0: ""} | {
        key: demangle(name) if mangled else decode(name) for key, (mangled, name) in names.node_types.items()
    }
    assert read["node_type"].tolist() == [types.get(event.node_type, "") for _, event in rows]

    for stack in names.frames:
        expected = [(decode(name), decode(file), line, source) for name, file, line, source in names.stack(stack)]
        frames = [(f.function, f.filename, f.line, f.source) for f in trace.frames(stack)]
        assert frames == [(*frame[:3], None if frame[3] is None else decode(frame[3])) for frame in expected]
    threads = [
        (number, native, decode(names.thread_names.get(number, b"") or name), autograd)
        for number, (native, autograd, name) in sorted(names.threads.items())
    ]
    assert list(trace.threads().itertuples(index=False, name=None)) == threads

    children = [(process, parent, seq) for (process, _), (seq, parent, _) in names.children.items()]
    assert list(trace.children()[["process", "parent_process", "seq"]].itertuples(index=False, name=None)) == children

    integrity = trace.integrity
    assert integrity.events == len(rows)
    others = (integrity.empty_allocations, integrity.reentered, integrity.unknown_stacks)
    assert (*integrity.lost_by_cause.values(), *others) == oracle.counters
    assert integrity.uncommitted == oracle.uncommitted and integrity.ended == (oracle.end is not None)
    assert trace.header == oracle.header and trace.begin_ns == oracle.first.wall
    # Events in the spool of a killed recording are later than the last time written to the trace.
    written_ns = oracle.latest.monotonic - oracle.first.monotonic
    spool_ns = int(read["time_ns"].max()) - trace.begin_ns if spool is not None else 0
    assert trace.end_ns - trace.begin_ns == max(written_ns, spool_ns)
    return oracle, trace


PROGRAM = """
import sys, threading, time, torch, pytorch_alloctrace as alloctrace
def work(width):
    model = torch.nn.Sequential(torch.nn.Linear(16, width), torch.nn.ReLU(), torch.nn.Linear(width, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(15):
        optimizer.zero_grad()
        (model(torch.randn(8, 16)) ** 2).mean().backward()
        optimizer.step()
    named.wait()
session, named = alloctrace.enable("t.alloctrace"), threading.Event()
threads = [threading.Thread(target=work, args=(32 + n,), name=f"wörker-{n}") for n in range(3)]
for thread in threads: thread.start()
time.sleep(0.5)  # the recorder reads the name of a running thread only
named.set()
for thread in threads: thread.join()
session.flush()
with alloctrace.region("übung"):
    held = [torch.empty(n) for n in range(20)]
    alloctrace.mark("held")
alloctrace.step(7); work(8); alloctrace.step(); work(9); alloctrace.step()
deep = lambda n: deep(n - 1) if n else torch.empty(10)
list(deep(n) for n in range(60))
"""


def test_kinds_have_names_of_event_header() -> None:
    header = (ROOT / "csrc/core/format/event.h").read_text().partition("enum class EventKind")[2].partition("};")[0]
    written = {int(number): name for name, number in re.findall(r"^  k(\w+) = (\d+),", header, re.MULTILINE)}
    assert len(written) > 20
    named = {number: KINDS[number].title().replace("_", "") for number in written}
    assert named == written and {*range(len(KINDS))} - {*written} == {KINDS.index("none")}


def test_documented_kinds_have_names_of_reader() -> None:
    section = DOCUMENT.partition("| kind | name | address | size |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| (\d[\d, ]*) \| (\w[\w, ]*) \|", section, re.MULTILINE)
    numbers, names = (", ".join(column).split(", ") for column in zip(*rows, strict=True))

    assert dict(zip(map(int, numbers), names, strict=True)) == dict(enumerate(KINDS[1:], 1))


def test_roles_have_names_of_event_header() -> None:
    header = (ROOT / "csrc/core/format/event.h").read_text().partition("enum class Role")[2].partition("};")[0]
    names = re.findall(r"^  k(\w+) = \d+,", header, re.MULTILINE)

    assert names == [role.title().replace(" ", "") for role in ROLES] and {*ROLES_SHOWN} == {*ROLES}


def test_readers_agree_on_program(run_program: Callable[..., Any], tmp_path: Path) -> None:
    run_program(PROGRAM + "alloctrace.disable()\n")
    oracle, trace = assert_readers_agree(tmp_path / "t.alloctrace")
    kinds = set(trace._recorded.kind_counts)
    assert {"alloc", "free_completed", "step", "mark", "region_begin", "region_end"} <= kinds
    assert len(trace.events()) > 3000 and len(oracle.names.frames) > 100 and len(trace.threads()) >= 4
    assert {"wörker-0", "wörker-1", "wörker-2"} <= set(trace.threads()["name"])
    assert ending_without_scan(oracle.end) == {"reason": "disable"} and trace.integrity.state == "complete"
    assert [block.type for block in oracle.blocks][-3:] == [1, DICTIONARY, END]
    stacks = [[name for name, *_ in oracle.names.stack(stack)] for stack in oracle.names.frames]
    assert max(stack.count(b"<lambda>") for stack in stacks) == 60


@pytest.mark.parametrize("folder", [None, "spööl 日本 😀 \\ \" 'q'"])
def test_readers_agree_on_killed_program(run_program: Callable[..., Any], tmp_path: Path, folder: str | None) -> None:
    """The spool is next to the trace or in the folder that the header names."""
    program = PROGRAM
    if folder is not None:
        (tmp_path / folder).mkdir()
        program = program.replace('enable("t.alloctrace"', f'enable("t.alloctrace", spool_dir={folder!r}')
    run_program(program + "import os, signal; os.kill(os.getpid(), signal.SIGKILL)\n", check=False)
    (spool,) = tmp_path.rglob("*.spool")
    _, trace = assert_readers_agree(tmp_path / "t.alloctrace", spool=spool)
    assert trace.integrity.recovered > 0 and trace.integrity.state == "complete" and not trace.integrity.ended
    integrity = alloctrace.load(tmp_path / "t.alloctrace").integrity
    assert integrity == trace.integrity, "the spool was not read without its path"


def random_events(count: int, seed: int) -> core_probe.Events:
    """Return random events of every kind but ALLOCATOR_STATE, with ids that core_probe defines and repeated addresses.

    The effect of an allocator state on the blocks is tested with the replay.
    """
    random = np.random.default_rng(seed)
    events = make_events(count)
    kinds = [number for number in range(len(KINDS)) if number != ALLOCATOR_STATE]
    events["kind"] = random.choice([1, 1, 1, 2, 3, 3, *kinds, 77, 255], count)
    limits = {"stack": 4, "location": 3, "node_type": 3, "thread": 3, "size": 9, "node_thread": 3}
    for name, limit in limits.items():
        events[name] = random.integers(0, limit, count)
    # The size of a mark is the id of its name: core_probe defines one.
    events["size"][np.isin(events["kind"], [11, 12, 13])] = 4
    events["address"] = random.integers(0, 12, count) * 512
    # Segments are at other addresses: their effect on blocks is tested with the replay.
    events["address"][np.isin(events["kind"], SEGMENTS_AND_STATES)] += 1 << 40
    events["sequence"] = random.integers(0, 1 << 40, count)
    events["node_sequence"] = random.integers(0, 5, count)
    return events


@pytest.mark.parametrize("seed", range(2))
def test_readers_agree_on_random_events(tmp_path: Path, seed: int) -> None:
    path, random = tmp_path / "t.alloctrace", np.random.default_rng(seed)
    with Recorder(path, ring_events=512) as recorder:
        for count in random.integers(1, 400, 6):
            events = random_events(int(count), seed)
            events["time"] = TraceFile(path).latest.counter + np.sort(random.integers(0, 10_000_000, count))
            assert recorder.push(events) == count and recorder.flush()
    oracle, _ = assert_readers_agree(path)
    assert sum(block.type == EVENTS for block in oracle.blocks) >= 6


@pytest.mark.parametrize(("count", "ring"), [(150, 64), (64, 64), (5, 8), (0, 8), (1000, 256)])
def test_readers_agree_on_spool(tmp_path: Path, count: int, ring: int) -> None:
    """Full, wrapped and empty rings; a wrapped log of definitions; an event whose hook never ended."""
    path = tmp_path / "t.alloctrace"
    spool = core_probe.write_killed(path, random_events(count, 1), ring_events=ring, definitions_bytes=256)
    oracle, trace = assert_readers_agree(path)
    assert len(oracle.events()) == count and trace.integrity.recovered == len(oracle.runs[-1].events) if count else True
    if count:
        set_commits(spool, {(count - 2) % ring: count - 1 - ring & 0xFFFFFFFF})  # value of the ring's previous lap
        oracle, trace = assert_readers_agree(path)
        assert oracle.uncommitted == 1 and len(oracle.events()) == count - 1
        assert trace.integrity.state == "complete" and trace.integrity.missing_events == 0


def test_readers_agree_when_free_completes_in_slot_of_its_request(tmp_path: Path) -> None:
    path = tmp_path / "t.alloctrace"
    spool = core_probe.write_killed(path, make_events([{"kind": FREE_REQUESTED}] * 4), ring_events=8)
    set_commits(spool, {1: 2 ^ COMPLETED, 2: 3 ^ TAKEN, 3: 4 ^ 1 << 29})
    oracle, trace = assert_readers_agree(path)
    assert [event.kind for _, event in oracle.events()] == [FREE_REQUESTED, FREE_COMPLETED, FREE_REQUESTED]
    assert trace.integrity.uncommitted == 1


@pytest.mark.parametrize("is_written", [False, True])
def test_follower_counts_free_that_completes_after_its_request_was_read(tmp_path: Path, is_written: bool) -> None:
    """The follower read the spool between the request and the completion, and must apply the changed event."""
    path, size = tmp_path / "t.alloctrace", 1 << 20
    rows = [{"kind": 4, "address": size, "size": 20 * size}]
    rows += [{"kind": ALLOC, "address": (1 + part) * size, "size": size} for part in range(2)]
    rows += [{"kind": FREE_REQUESTED, "address": (1 + part) * size} for part in range(2)]
    events = make_events([{**row, "location": 2, "time": 1000 + number} for number, row in enumerate(rows)])
    spool = core_probe.write_killed(path, events, ring_events=8)
    following = Following(path)
    following.read_spool_at(spool)
    for _ in range(2):
        assert following.advance().devices[0].counts.active == 2 * size
    set_commits(spool, {3: 4 ^ COMPLETED, 4: 5 ^ TAKEN})
    if is_written:
        alloctrace.finish(path, spool=spool)
    for _ in range(2):
        view = following.advance()
        assert (view.devices[0].counts.active, view.devices[0].counts.requested) == (size, 0)
    assert view.seen.events == 5 and alloctrace.load(path).blocks()["state"].tolist().count("active_pending_free") == 1


def test_readers_skip_unknown_blocks_definitions_and_columns(tmp_path: Path) -> None:
    """A later writer of this version may add block types, definition types, longer records and an eighth column."""
    path = tmp_path / "t.alloctrace"
    write_trace(path, random_events(100, 2))
    before = alloctrace.load(path)
    events, threads = before.events(), before.threads()
    parts = [path.read_bytes()[: format_reader.FILE_HEADER]]
    for block in TraceFile(path).blocks:
        payload = block.payload
        if block.type == DEFINITIONS:
            payload += bytes([3, 99, 1, 2]) + bytes([7, 1, 0x85, 1, 2]) + b"new" + bytes([1, 200])
        if block.type == EVENTS:
            payload += bytes([3, 1, 2, 3])
        times = (block.begin, block.end, block.counters)
        parts.append(format_reader.block(block.type, payload, block.first, block.count, *times))
        unknown = (block.first + block.count, 0, block.end, block.end, block.counters)
        parts.append(format_reader.block(60, b"anything", *unknown))
    path.write_bytes(b"".join(parts))
    oracle, after = assert_readers_agree(path)
    assert after.integrity.state == "complete" and oracle.names.strings[133] == b"ne"
    assert after.events().equals(events) and after.threads().equals(threads)


def read_example(name: str) -> bytes:
    """Return the bytes of an example in the document."""
    match = re.search(rf"```hex {name}\n(.*?)```", DOCUMENT, re.DOTALL)
    assert match, name
    return bytes.fromhex(match[1])


def test_example_of_document_decodes_to_its_table() -> None:
    header = read_example("file header")
    assert struct.unpack_from("<I", header, 12)[0] == zlib.crc32(header[:12] + bytes(4) + header[16:]) == 0x586CD104
    names = format_reader.Names()
    names.add(read_example("definitions"))
    assert names.stack(1) == [(b"outer", b"/home/user/train.py", 10, None)]
    assert names.locations == {1: (0, 0, 0, 0, 0)} and names.threads == {2: (4243, 2, b"pt_worker")}
    header, payload = read_example("events header"), read_example("events payload")
    assert len(header) == BLOCK_HEADER and struct.unpack_from("<IIHHQQQQ", header, 4) == (
        zlib.crc32(header[8:]), zlib.crc32(payload), EVENTS, 0, len(payload), 0, 8, 0x000909BC0138A2,
    )  # fmt: skip
    begin = struct.unpack_from("<Q", header, 40)[0]
    table = [
        [int(cell, 0) for cell in row.split("|")[1:-1]]
        for row in re.findall(r"^\| [0-7] \| \d+ \|.*0x.*$", DOCUMENT, re.M)
    ]
    assert len(table) == 8
    events = format_reader.decode_events(payload, 8, begin)
    assert [[i, e.kind, e.time - begin, *list(vars(e).values())[2:]] for i, e in enumerate(events)] == table
    decoded = core_probe.decode(payload, 8, begin)
    assert decoded is not None
    assert core_probe.fields_of(decoded) == [tuple(getattr(e, name) for name in core_probe.FIELDS) for e in events]
    assert core_probe.encode(decoded, 3, begin) == payload
