"""Encoding and decoding of any events, through ring, writer and file; losses from a full ring or disk are reported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import core_probe
import format_reader
import numpy as np
import pytest
from core_probe import FIELDS, Recorder, decode, encode, fields_of, make_events
from hypothesis import given, settings
from hypothesis import strategies as st
from running import WITH_SUPPORT, run_python

import pytorch_alloctrace as alloctrace

BITS = {name: 8 * core_probe.EVENT[name].itemsize for name in FIELDS}


def values(bits: int) -> st.SearchStrategy[int]:
    """Draw few distinct values, so that predictions hit, and every extreme."""
    extremes = [0, 1, 127, 128, (1 << bits) - 1, 1 << (bits - 1), (1 << (bits - 1)) - 1]
    return st.one_of(
        st.integers(0, 5), st.sampled_from([value % (1 << bits) for value in extremes]), st.integers(0, (1 << bits) - 1)
    )


EVENTS = st.lists(st.fixed_dictionaries({name: values(bits) for name, bits in BITS.items()}), max_size=25).map(
    make_events
)


@settings(max_examples=200)
@given(EVENTS, st.integers(0, 25), values(64))
def test_decoded_block_equals_encoded_events(events: core_probe.Events, split: int, begin: int) -> None:
    payload = encode(events, min(split, len(events)), begin)
    decoded = decode(payload, len(events), begin)
    assert decoded is not None and fields_of(decoded) == fields_of(events)
    independent = format_reader.decode_events(payload, len(events), begin)
    assert [tuple(getattr(event, name) for name in FIELDS) for event in independent] == fields_of(events)


@settings(max_examples=100)
@given(EVENTS, st.data())
def test_block_is_refused_when_truncated_or_with_wrong_count(events: core_probe.Events, data: st.DataObject) -> None:
    payload = encode(events, 0, 0)
    size = data.draw(st.integers(0, len(payload) - 1))
    assert decode(payload[:size], len(events), 0) is None
    assert decode(payload, len(events) + 1, 0) is None


def test_repeated_events_take_less_than_4_bytes_each() -> None:
    """A repeated event takes one byte for its tag and those of its time."""
    events = make_events(10_000)
    number = np.arange(len(events))
    block = number % 100
    events["kind"] = np.where(number // 100 % 2, 3, 1)
    events["address"], events["size"] = 4096 * block, 1000 * block * (events["kind"] == 1)
    events["stack"], events["thread"], events["location"] = block + 10, 1, 1
    events["time"] = 300 * number
    assert len(encode(events, 0, 0)) < 3.5 * len(events)


@settings(max_examples=60)
@given(st.lists(st.tuples(EVENTS, st.booleans()), max_size=6), st.sampled_from([4, 16, 64, 1024]))
def test_recording_reads_as_the_pushed_events(
    tmp_path: Path, batches: list[tuple[core_probe.Events, bool]], ring: int
) -> None:
    """Small rings wrap many times, and each flush ends a block."""
    path = tmp_path / "t.alloctrace"
    path.unlink(missing_ok=True)
    with Recorder(path, ring_events=ring, wait_ns=10_000_000_000) as recorder:
        for events, flushes in batches:
            assert recorder.push(events) == len(events)
            assert not flushes or recorder.flush()
    emitted = [row for events, _ in batches for row in fields_of(events)]
    independent = format_reader.TraceFile(path).events()
    assert [tuple(getattr(event, name) for name in FIELDS) for _, event in independent] == emitted
    trace = alloctrace.load(path)
    assert trace.integrity.state == "complete" and trace.integrity.events == len(emitted)
    columns = {"autograd_seq": "sequence", "node_seq": "node_sequence"}
    columns |= {name: name for name in ("node_thread", "thread")}
    # Columns are signed: addresses keep their bits, larger numbers are clamped. Thread ids have 32 bits.
    largest = {"thread": 2**31 - 1}
    read = trace.events(columns=["seq", "address", *columns])
    assert read["seq"].tolist() == [*range(len(emitted))]
    assert [address % 2**64 for address in read["address"].tolist()] == [
        row[FIELDS.index("address")] for row in emitted
    ]
    for column, field in columns.items():
        index, limit = FIELDS.index(field), largest.get(field, 2**63 - 1)
        assert read[column].tolist() == [min(row[index], limit) for row in emitted], column


def test_full_ring_loses_only_reported_events(tmp_path: Path) -> None:
    path, threads, per_thread = tmp_path / "t.alloctrace", 4, 50_000
    with Recorder(path, ring_events=64, wait_ns=0) as recorder:
        accepted = recorder.push_from_threads(threads, per_thread)
    trace = alloctrace.load(path)
    events = trace.events(columns=["kind", "thread", "address", "requested_bytes"])
    losses = events[events["kind"] == "lost"]
    assert 0 < accepted < threads * per_thread, "the ring never filled up: nothing was tested"
    assert len(events) - len(losses) == accepted
    lost = threads * per_thread - accepted
    assert losses["requested_bytes"].sum() == trace.integrity.lost == trace.integrity.lost_by_cause["ring_full"] == lost
    assert trace.integrity.state == "gaps" and trace.integrity.missing_events == 0
    for number in range(1, threads + 1):
        assert (np.diff(events["address"][events["thread"] == number].astype(np.int64)) > 0).all()


FULL_DISK = """
import json, os, resource, sys, time
import numpy as np
from pathlib import Path
from core_probe import Recorder, make_events
how, ending, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
trace, spool, ballast = folder / "full" / "t.alloctrace", folder / "t.spool", folder / "full" / "ballast"
recorder = Recorder(trace, ring_events=256, wait_ns=1_000_000, spool=spool)

def set_full(full):
    if how == "file size limit":
        limit = trace.stat().st_size + 3000 if full else resource.RLIM_INFINITY
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    elif full:
        with open(ballast, "wb", buffering=0) as file:
            try:
                while file.write(bytes(4096)):
                    pass
            except OSError:
                pass
    else:
        ballast.unlink()

taken, number = [], 0
def push(count):
    global number
    events = make_events(count)
    events["kind"], events["address"] = 1, range(number + 1, number + count + 1)
    events["size"] = events["address"] * 7919 % 100_003   # too irregular to predict: the file must grow
    number += count
    pushed = [int(event["address"][0]) for event in np.split(events, count) if recorder.push(event)]
    taken.extend(pushed)
    return len(pushed) == count

# At most one ring of events at once: none may be lost here because the writer's thread did not run.
for _ in range(5):
    assert push(100) and recorder.flush()
set_full(True)
while recorder.flush():
    assert push(100) and number < 1_000_000
push(3000)
assert len(taken) < number - 1500
assert not recorder.flush()
if ending != "stays full":
    set_full(False)
if ending == "goes on":
    while not recorder.flush():
        time.sleep(0.01)
    assert push(100) and recorder.flush() and push(100)
stopped = recorder.stop()
if ending == "stays full":
    set_full(False)
print(json.dumps({"taken": taken, "emitted": number, "stopped": stopped}))
"""


@pytest.fixture(scope="module")
def small_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path | None]:
    """Yield a folder with a file system of 256 KiB at `full`, or None without permission to mount."""
    folder = tmp_path_factory.mktemp("disk")
    (folder / "full").mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder / "full")]
    mounted = os.geteuid() == 0 and subprocess.run(command, capture_output=True).returncode == 0
    yield folder if mounted else None
    if mounted:
        subprocess.run(["umount", str(folder / "full")], check=True)


@pytest.mark.parametrize(
    ("how", "ending"),
    [
        ("file size limit", "goes on"),
        ("full file system", "goes on"),
        ("file size limit", "has room at the end"),
        ("full file system", "stays full"),
    ],
)
def test_full_disk_loses_only_reported_events(tmp_path: Path, small_disk: Path | None, how: str, ending: str) -> None:
    folder = tmp_path
    if how == "full file system":
        if small_disk is None:
            pytest.skip("mounting a small file system needs root; the file size limit is tested instead")
        folder = small_disk
        for path in (folder / "full").iterdir():
            path.unlink()
    (folder / "full").mkdir(exist_ok=True)
    core_probe.library()  # built here: under the size limit the compiler could not write it
    command = [sys.executable, "-c", FULL_DISK, how, ending, str(folder)]
    process = run_python(tmp_path, command, True, 600, {"PYTHONPATH": WITH_SUPPORT}, fresh=True)
    run: dict[str, Any] = json.loads(process.stdout)
    spool = folder / "t.spool"
    trace = alloctrace.load(folder / "full" / "t.alloctrace", spool=spool if spool.exists() else None)
    integrity = trace.integrity
    events = trace.events(columns=["kind", "address", "requested_bytes"])
    assert events["address"][events["kind"] == "alloc"].tolist() == run["taken"]
    assert integrity.lost == sum(integrity.lost_by_cause.values()) == run["emitted"] - len(run["taken"]) > 1500
    assert integrity.state == "gaps" and integrity.missing_events == 0 and integrity.corrupt_blocks == 0
    assert run["stopped"] == integrity.ended == (ending != "stays full")
    assert integrity.spool_read == (ending == "stays full")
    if ending == "stays full":
        return  # the ring had no room for loss events; the counters have the loss
    # Each loss event has exactly the number of events lost at its position.
    is_lost = events["kind"] == "lost"
    emitted = events["requested_bytes"].where(is_lost, 1).cumsum()
    assert (events["address"] == emitted)[~is_lost].all() and emitted.iloc[-1] == run["emitted"]
