"""That a trace may be written by anyone: whatever its checksums vouch for, each face answers, or says in one line that
it cannot, within bounded memory, and prints nothing raw."""

from __future__ import annotations

import functools
import json
import os
import random
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import core_probe
import every_output
import extreme_traces
import fuzz_outputs
import hostile_traces
import numpy as np
import pytest
from extreme_traces import location, string
from format_reader import DEFINITIONS, END, EVENTS, FILE_HEADER, HEADER, block
from running import SUPPORT, WITH_SUPPORT, program_environment, start_python
from test_damage import some_events

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace import _replay

TRACES = sorted(hostile_traces.CORPUS.glob("*.alloctrace"))
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": WITH_SUPPORT}


@functools.cache
def _process_that_shows() -> subprocess.Popen[str]:
    """A process of its own, since it forks for each face. It ends with this one."""
    return subprocess.Popen(
        [sys.executable, SUPPORT / "every_output.py"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**program_environment(), **ONE_THREAD},
    )  # fmt: skip


def show_to_faces(faces: dict[Path, list[str]]) -> list[dict[str, Any]]:
    """Show each trace to its faces. A trace that brings one down fails."""
    showing, shown = _process_that_shows(), []
    assert showing.stdin is not None and showing.stdout is not None
    for trace, names in faces.items():
        print(f"{trace}@{','.join(names)}", file=showing.stdin, flush=True)
        shown.append(json.loads(showing.stdout.readline()))
    assert [(Path(one["trace"]), one["faults"]) for one in shown] == [(trace, []) for trace in faces]
    assert [set(one["outcomes"]) for one in shown] == [set(names) for names in faces.values()]
    return shown


@pytest.mark.parametrize("share", [len(TRACES), pytest.param(1, marks=pytest.mark.slow("extremes"))])
def test_faces_answer_on_the_corpus_within_their_memory(share: int) -> None:
    """Each face is shown one trace of the corpus; in the slow tests all of them, and three in the costly ones."""
    pages = dict.fromkeys(("sites52", "memory68", "replay211"), every_output.COSTLY) if share == 1 else {}
    cheap = every_output.cheap_faces()
    faces = {
        trace: [*cheap[number % share :: share], *pages.get(trace.stem, ())] for number, trace in enumerate(TRACES)
    }
    for shown in show_to_faces(faces):
        assert shown["peak_bytes"] < every_output.MEMORY, shown["trace"]


def test_faces_answer_on_a_trace_of_the_fuzzer(tmp_path: Path) -> None:
    """Show the trace of one seed: the same trace and the same faces in each run."""
    show_to_faces({fuzz_outputs.write_trace(tmp_path, 9000): fuzz_outputs.chosen_faces(9000)})
    assert hostile_traces.made_up(1) == hostile_traces.made_up(1) != hostile_traces.made_up(2)


def trace_of(tmp_path: Path, events: list[dict[str, int]], definitions: bytes = b"", first: int = 0) -> Path:
    """A trace of these events."""
    path, anchor = tmp_path / "t.alloctrace", [10**6, 10**6, 10**18]
    later = [part + 10**9 for part in anchor]
    names = block(DEFINITIONS, definitions, 0, 0, anchor, anchor)
    rows = block(EVENTS, hostile_traces.event_payload(events, 0), first, len(events), anchor, later)
    path.write_bytes(hostile_traces.file_header() + names + rows)
    return path


def test_numbers_beyond_the_bounds_are_damage(tmp_path: Path) -> None:
    """Those of docs/trace-format.md, each read and one beyond refused."""
    alloc = [{"kind": 1, "address": 4096, "size": 100, "location": 1}]
    cpu = location(1, 0, 0)

    def state(definitions: bytes = cpu, first: int = 0) -> str:
        return alloctrace.load(trace_of(tmp_path, alloc, definitions, first)).integrity.state

    assert state() == "truncated"
    assert state(first=1 << 62) == "gaps" and state(first=(1 << 62) + 1) == "corrupt"
    devices = [location(number, 1, number) for number in range(1, 82)]
    assert state(b"".join(devices[:80])) == "truncated" and state(b"".join(devices)) == "corrupt"
    assert state(cpu + string(1 << 16)) == "truncated" and state(cpu + string((1 << 16) + 1000)) == "corrupt"


def test_of_a_name_that_is_longer_than_any_path_the_beginning_is_read(tmp_path: Path) -> None:
    names = ["x" * 4096, "x" * 4097, "x" + "é" * 3000]  # the last: not within a character
    marks = [{"kind": 11, "size": number} for number in range(1, 4)]
    path = trace_of(tmp_path, marks, b"".join(string(number, name) for number, name in enumerate(names, 1)))
    assert list(alloctrace.load(path).marks()["name"]) == ["x" * 4096, "x" * 4096 + "…", "x" + "é" * 2047 + "…"]


@pytest.mark.parametrize(
    ("events", "sentence"),
    [
        ([{"kind": 1, "address": 4096, "size": 1 << 63}], "an allocation larger than any memory"),
        ([{"kind": 4, "address": 4096, "size": 0}], "a new segment of an impossible size"),
        ([{"kind": 4, "address": (1 << 64) - 512, "size": 1024}], "a new segment of an impossible size"),
        ([{"kind": 6, "address": 4096, "size": 0}], "a mapping of an impossible size"),
        (
            [{"kind": 6, "address": 4096, "size": 1 << 21}, {"kind": 7, "address": 4096, "size": 0}],
            "an unmapping of an impossible size",
        ),
    ],
)
def test_impossible_sizes_are_contradictions(tmp_path: Path, events: list[dict[str, int]], sentence: str) -> None:
    path = trace_of(tmp_path, [{**event, "location": 1} for event in events], location(1, 1, 0))
    found = alloctrace.load(path).verify()
    assert [item.sentence for item in found.contradiction_list] == [sentence] and not found.ok


def read_corpus(name: str) -> _replay.TraceReader:
    return _replay.TraceReader(str(hostile_traces.CORPUS / f"{name}.alloctrace"))


@pytest.mark.parametrize("name", ["fold_after_events", "fold_after_empty_block"])
def test_a_fold_after_events_is_damage_while_the_recording_runs_too(name: str) -> None:
    """One with fewer devices than were known led beyond their end; behind an empty block, events came twice."""
    assert read_corpus(name).integrity.corrupt_blocks == 1
    following = _replay.Following(str(hostile_traces.CORPUS / f"{name}.alloctrace"))
    following.advance()
    latest = following.latest()
    assert (latest.damaged, [device.allocated for device in latest.devices]) == (1, [4096])


def test_a_trace_of_an_unknown_version_is_one_only_if_its_header_is_whole(tmp_path: Path) -> None:
    """A damaged version was taken for a newer one while the recording ran."""
    path, header = tmp_path / "t.alloctrace", bytearray(hostile_traces.file_header())
    header[8] = 9
    path.write_bytes(header)
    with pytest.raises(_replay.FormatError, match="its beginning is damaged"):
        _replay.Following(str(path))
    header[12:16] = bytes(4)
    path.write_bytes(header[:12] + zlib.crc32(header).to_bytes(4, "little") + header[16:])
    for read in (_replay.Following, _replay.TraceReader):
        with pytest.raises(_replay.FormatError, match="of trace format 9, newer than"):
            read(str(path))


@pytest.mark.parametrize("name", ["neighbours_without_segment", "unmapped_without_segment", "segment_in_three_chains"])
def test_a_fold_whose_blocks_would_lead_in_circles_is_refused(name: str) -> None:
    """A block was dropped that its neighbours still pointed to, or a number was given out twice: the replay never
    ended, and took all memory."""
    with pytest.raises(_replay.FormatError, match="not next to each other"):
        _replay.Replay(read_corpus(name), 0)


@pytest.mark.parametrize("order", ["lowest", "highest", "random"])
def test_a_model_refuses_what_no_driver_has_addresses_for(order: str) -> None:
    """Random addresses were tried for ever."""
    options = [_replay.SimulationOptions(order=order)]
    (simulation,) = _replay.predict(read_corpus("larger_than_the_driver"), 1, 0, (2, 11), options).simulations
    assert simulation.peak_reserved == simulation.peak_used == 0 and simulation.refusal is not None


def test_requests_are_found_again_after_a_cache_that_was_emptied_twice() -> None:
    """Numbers of requests were used after those before them had moved."""
    prediction = _replay.predict(read_corpus("emptied_twice"), 1, 0, (2, 11), [_replay.SimulationOptions()])
    assert prediction.requests == 7 and prediction.simulations[0].served == [7]


def test_the_memory_of_a_replay_is_in_proportion_to_the_trace(tmp_path: Path) -> None:
    """Events far from each other took 32 KiB each."""
    path, anchor = tmp_path / "t.alloctrace", [10**6, 10**6, 10**18]
    ends = [{"kind": kind, "address": 4096, "size": 100, "location": 1} for kind in (1, 3)]
    pair = hostile_traces.event_payload(ends, 0)
    blocks = [block(DEFINITIONS, location(1), 0, 0, anchor, anchor)]
    blocks += [block(EVENTS, pair, number << 16, 2, anchor, anchor) for number in range(6000)]
    path.write_bytes(hostile_traces.file_header() + b"".join(blocks))
    trace = _replay.TraceReader(str(path))
    before = resident_bytes()
    replay = _replay.Replay(trace, 0)
    assert resident_bytes() - before < 20 * path.stat().st_size
    assert replay.findings.contradictions == 0


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_addresses_cannot_be_chosen_to_collide(tmp_path: Path) -> None:
    """Half a megabyte took minutes where the factor of the hash was known. What takes a thousand times as long here
    may take twenty times on a busy machine."""
    count, inverse = 30_000, np.uint64(pow(0x9E3779B97F4A7C15, -1, 1 << 64))
    number = np.arange(1, count + 1, dtype=np.uint64)
    seconds = []
    for addresses in (number * np.uint64(512), (number << np.uint64(32) | number) * inverse >> np.uint64(1)):
        path = tmp_path / f"{len(seconds)}.alloctrace"
        path.write_bytes(extreme_traces.trace(made=extreme_traces.events(count, kind=1, address=addresses, size=512)))
        trace = _replay.TraceReader(str(path))
        begin = time.process_time()
        _replay.Replay(trace, 0)
        seconds.append(time.process_time() - begin)
    assert seconds[1] < 20 * seconds[0]


def read_under(sanitizers: str, inputs: list[Path]) -> None:
    """Read and replay inputs of the fuzzer by code that checks every access and operation, with any compiler."""
    options = ["-O1", "-g1", f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all"]
    program = core_probe.build("fuzz_target.cpp", core_probe.READING, options)
    done = subprocess.run(
        ["setarch", os.uname().machine, "-R", program, *inputs], capture_output=True, text=True, timeout=600,
        env={**os.environ, "ASAN_OPTIONS": "detect_leaks=1:max_allocation_size_mb=2048"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stderr.splitlines() == [str(path) for path in inputs]


def as_it_is(data: bytes) -> bytes:
    """The trace, of a session whose blocks the fuzzer's target does not put right."""
    header = bytearray(data[:FILE_HEADER])
    header[16] |= 0x80
    header[12:16] = bytes(4)
    header[12:16] = zlib.crc32(header).to_bytes(4, "little")
    return bytes(header) + data[FILE_HEADER:]


def damaged(data: bytes, dice: random.Random) -> bytes:
    """The data with bits flipped, and bytes overwritten, taken out or put in."""
    made = bytearray(data)
    for _ in range(dice.randrange(1, 4)):
        at, size = dice.randrange(len(made)), dice.choice([1, 1, 8, 40, 400])
        other = dice.choice([dice.randbytes(size), bytes(size), b"\xff" * size])
        match dice.randrange(5):
            case 0:
                made[at] ^= 1 << dice.randrange(8)
            case 1:
                made[at : at + size] = other
            case 2:
                made[at:at] = other
            case 3 if at:
                del made[at : at + size]
            case _ if at:
                del made[at:]
    return bytes(made)


def test_damaged_traces_and_spools_are_read_without_a_finding_of_sanitizers(tmp_path: Path) -> None:
    """Half of the traces have checksums that fit."""
    path, inputs = tmp_path / "t.alloctrace", []
    spool = core_probe.killed(path, some_events(300), ring_events=128, definitions_bytes=512).read_bytes()
    traces = [path.read_bytes(), *(trace.read_bytes() for trace in TRACES if trace.stat().st_size < 40_000)]
    for seed in range(500):
        dice = random.Random(seed)
        data = traces[0] if dice.random() < 0.5 else dice.choice(traces)
        trace = hostile_traces.mutated(data, seed) if seed % 2 else damaged(as_it_is(data), dice)
        inputs.append(tmp_path / f"{seed:03}")
        inputs[-1].write_bytes(trace + (damaged(spool, dice) if dice.random() < 0.6 else spool))
    read_under("address,undefined", inputs)


@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
def test_the_corpus_of_the_fuzzer(sanitizers: str) -> None:
    """What tools/fuzz has made that reached something new."""
    inputs = sorted((hostile_traces.CORPUS.parent / "reader").iterdir())
    assert len(inputs) > 50 and sum(path.stat().st_size for path in inputs) < 250_000
    inputs += [path for path in TRACES if path.stat().st_size < 2000]
    # What runs at once is the same for all of them.
    read_under(sanitizers, inputs[::4] if sanitizers == "thread" else inputs)


@pytest.mark.parametrize("deep", ["header", "member", "end"])
def test_nested_json_is_damage(tmp_path: Path, deep: str) -> None:
    """It raised a RecursionError in every command; one such trace was enough to compare no ranks."""
    nested = b"[" * 5000 + b"]" * 5000
    json_text = b'{"program": ' + (nested if deep == "member" else b"[" * 40 + b"]" * 40) + b"}"
    kind, payload = (END, nested) if deep == "end" else (HEADER, nested if deep == "header" else json_text)
    path, anchor = tmp_path / "t.alloctrace", [1, 1, 1]
    path.write_bytes(hostile_traces.file_header() + block(kind, payload, 0, 0, anchor, anchor))
    show_to_faces({path: ["diagnose", "diagnose-json", "follow", "ranks", "oom"]})
    trace = alloctrace.load(path)
    assert (trace.header, trace._recorded.ending) == ({}, {})


def test_a_spool_that_a_trace_names_is_not_opened_unless_it_is_a_file(tmp_path: Path) -> None:
    """Opening a pipe lets its writer go on: here nobody may."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    path, anchor = tmp_path / "t.alloctrace", [1, 1, 1]
    header = json.dumps({"spool": str(pipe)}).encode()
    path.write_bytes(hostile_traces.file_header() + block(HEADER, header, 0, 0, anchor, anchor))
    with start_python(tmp_path, "-c", f"open({str(pipe)!r}, 'w')") as writer:
        for _ in range(20):
            assert _replay.TraceReader(str(path)).integrity.spool_read is False
        with pytest.raises(subprocess.TimeoutExpired):
            writer.wait(1)
