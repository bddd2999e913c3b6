"""Hostile traces with valid checksums: every output answers or refuses in one line, in bounded memory, and prints no
raw control characters."""

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
from test_corrupt_traces import build_events

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace import _replay

TRACES = sorted(hostile_traces.CORPUS.glob("*.alloctrace"))
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": WITH_SUPPORT}


@functools.cache
def _output_process() -> subprocess.Popen[str]:
    """Start every_output.py in its own process, because it forks for each output. It ends with this process."""
    return subprocess.Popen(
        [sys.executable, SUPPORT / "every_output.py"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**program_environment(), **ONE_THREAD},
    )  # fmt: skip


def check_outputs(outputs: dict[Path, list[str]]) -> list[dict[str, Any]]:
    """Produce the named outputs of each trace, and fail if one crashes."""
    process, reports = _output_process(), []
    assert process.stdin is not None and process.stdout is not None
    for trace, names in outputs.items():
        print(f"{trace}@{','.join(names)}", file=process.stdin, flush=True)
        reports.append(json.loads(process.stdout.readline()))
    assert [(Path(report["trace"]), report["faults"]) for report in reports] == [(trace, []) for trace in outputs]
    assert [set(report["outcomes"]) for report in reports] == [set(names) for names in outputs.values()]
    return reports


@pytest.mark.parametrize("share", [len(TRACES), pytest.param(1, marks=pytest.mark.slow("extremes"))])
def test_outputs_of_corpus_stay_within_memory_limit(share: int) -> None:
    """Each output reads one trace of the corpus; in the slow tests all, but the costly outputs only three."""
    costly = dict.fromkeys(("sites52", "memory68", "replay211"), every_output.COSTLY) if share == 1 else {}
    cheap = every_output.cheap_outputs()
    outputs = {
        trace: [*cheap[number % share :: share], *costly.get(trace.stem, ())] for number, trace in enumerate(TRACES)
    }
    for report in check_outputs(outputs):
        assert report["peak_bytes"] < every_output.MAX_MEMORY_BYTES, report["trace"]


def test_made_up_trace_is_deterministic_and_outputs_answer(tmp_path: Path) -> None:
    check_outputs({fuzz_outputs.write_trace(tmp_path, 9000): fuzz_outputs.choose_outputs(9000)})
    assert hostile_traces.make_absurd(1) == hostile_traces.make_absurd(1) != hostile_traces.make_absurd(2)


def write_trace(tmp_path: Path, events: list[dict[str, int]], definitions: bytes = b"", first: int = 0) -> Path:
    """Write a trace of these events."""
    path, anchor = tmp_path / "t.alloctrace", [10**6, 10**6, 10**18]
    later = [part + 10**9 for part in anchor]
    names = block(DEFINITIONS, definitions, 0, 0, anchor, anchor)
    rows = block(EVENTS, hostile_traces.event_payload(events, 0), first, len(events), anchor, later)
    path.write_bytes(hostile_traces.file_header() + names + rows)
    return path


def test_trace_is_corrupt_when_a_number_exceeds_its_bound(tmp_path: Path) -> None:
    """The bounds are those of docs/trace-format.md: a number at the bound is read, a larger one refused."""
    alloc = [{"kind": 1, "address": 4096, "size": 100, "location": 1}]
    cpu = location(1, 0, 0)

    def state(definitions: bytes = cpu, first: int = 0) -> str:
        return alloctrace.load(write_trace(tmp_path, alloc, definitions, first)).integrity.state

    assert state() == "truncated"
    assert state(first=1 << 62) == "gaps" and state(first=(1 << 62) + 1) == "corrupt"
    devices = [location(number, 1, number) for number in range(1, 82)]
    assert state(b"".join(devices[:80])) == "truncated" and state(b"".join(devices)) == "corrupt"
    assert state(cpu + string(1 << 16)) == "truncated" and state(cpu + string((1 << 16) + 1000)) == "corrupt"


def test_name_longer_than_4096_bytes_is_truncated(tmp_path: Path) -> None:
    names = ["x" * 4096, "x" * 4097, "x" + "é" * 3000]  # the last is truncated between characters
    marks = [{"kind": 11, "size": number} for number in range(1, 4)]
    path = write_trace(tmp_path, marks, b"".join(string(number, name) for number, name in enumerate(names, 1)))
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
    path = write_trace(tmp_path, [{**event, "location": 1} for event in events], location(1, 1, 0))
    verified = alloctrace.load(path).verify()
    assert [item.sentence for item in verified.contradiction_list] == [sentence] and not verified.ok


def open_corpus_trace(name: str) -> _replay.TraceReader:
    return _replay.TraceReader(str(hostile_traces.CORPUS / f"{name}.alloctrace"))


@pytest.mark.parametrize("name", ["fold_after_events", "fold_after_empty_block"])
def test_compacted_block_after_events_is_corrupt_also_while_recording(name: str) -> None:
    """A compacted block with fewer devices caused an access out of bounds; after an empty block, events came twice."""
    assert open_corpus_trace(name).integrity.corrupt_blocks == 1
    following = _replay.Following(str(hostile_traces.CORPUS / f"{name}.alloctrace"))
    following.advance()
    latest = following.latest()
    assert (latest.corrupt_blocks, [device.allocated for device in latest.devices]) == (1, [4096])


def test_newer_version_is_reported_only_when_header_is_intact(tmp_path: Path) -> None:
    """While recording, a corrupt version number was reported as a newer one."""
    path, header = tmp_path / "t.alloctrace", bytearray(hostile_traces.file_header())
    header[8] = 9
    path.write_bytes(header)
    with pytest.raises(_replay.FormatError, match="its beginning is corrupt"):
        _replay.Following(str(path))
    header[12:16] = bytes(4)
    path.write_bytes(header[:12] + zlib.crc32(header).to_bytes(4, "little") + header[16:])
    for read in (_replay.Following, _replay.TraceReader):
        with pytest.raises(_replay.FormatError, match="of trace format 9, newer than"):
            read(str(path))


@pytest.mark.parametrize("name", ["neighbours_without_segment", "unmapped_without_segment", "segment_in_three_chains"])
def test_compacted_block_with_inconsistent_neighbours_is_refused(name: str) -> None:
    """Neighbours pointed to a dropped block, or two blocks had one number: the replay looped and exhausted memory."""
    with pytest.raises(_replay.FormatError, match="not next to each other"):
        _replay.Replay(open_corpus_trace(name), 0)


@pytest.mark.parametrize("order", ["lowest", "highest", "random"])
def test_simulation_fails_request_beyond_address_space(order: str) -> None:
    """The search for random addresses never ended."""
    options = [_replay.SimulationOptions(order=order)]
    (simulation,) = _replay.predict(open_corpus_trace("larger_than_the_driver"), 1, 0, (2, 11), options).simulations
    assert simulation.peak_reserved == simulation.peak_used == 0 and simulation.failure is not None


def test_requests_are_served_after_cache_was_emptied_twice() -> None:
    """Indices of requests were used after earlier requests had moved."""
    prediction = _replay.predict(open_corpus_trace("emptied_twice"), 1, 0, (2, 11), [_replay.SimulationOptions()])
    assert prediction.requests == 7 and prediction.simulations[0].served == [7]


def test_memory_of_replay_is_proportional_to_trace(tmp_path: Path) -> None:
    """Events with distant sequence numbers took 32 KiB each."""
    path, anchor = tmp_path / "t.alloctrace", [10**6, 10**6, 10**18]
    alloc_and_free = [{"kind": kind, "address": 4096, "size": 100, "location": 1} for kind in (1, 3)]
    pair = hostile_traces.event_payload(alloc_and_free, 0)
    blocks = [block(DEFINITIONS, location(1), 0, 0, anchor, anchor)]
    blocks += [block(EVENTS, pair, number << 16, 2, anchor, anchor) for number in range(6000)]
    path.write_bytes(hostile_traces.file_header() + b"".join(blocks))
    trace = _replay.TraceReader(str(path))
    before = read_resident_bytes()
    replay = _replay.Replay(trace, 0)

    assert read_resident_bytes() - before < 20 * path.stat().st_size
    assert replay.findings.contradictions == 0


def read_resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_replay_time_is_bounded_for_colliding_addresses(tmp_path: Path) -> None:
    """Addresses chosen for a known hash factor took 1,000 times as long. The limit of 20 allows for a busy machine."""
    count, inverse = 30_000, np.uint64(pow(0x9E3779B97F4A7C15, -1, 1 << 64))
    number = np.arange(1, count + 1, dtype=np.uint64)
    seconds = []
    for addresses in (number * np.uint64(512), (number << np.uint64(32) | number) * inverse >> np.uint64(1)):
        path = tmp_path / f"{len(seconds)}.alloctrace"
        path.write_bytes(extreme_traces.trace(rows=extreme_traces.events(count, kind=1, address=addresses, size=512)))
        trace = _replay.TraceReader(str(path))
        begin = time.process_time()
        _replay.Replay(trace, 0)
        seconds.append(time.process_time() - begin)
    assert seconds[1] < 20 * seconds[0]


def read_with_sanitizers(sanitizers: str, inputs: list[Path]) -> None:
    """Read and replay inputs of the fuzzer with the fuzz target, built with these sanitizers by any compiler."""
    options = ["-O1", "-g1", f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all"]
    program = core_probe.build("fuzz_target.cpp", core_probe.READING, options)
    process = subprocess.run(
        ["setarch", os.uname().machine, "-R", program, *inputs], capture_output=True, text=True, timeout=600,
        env={**os.environ, "ASAN_OPTIONS": "detect_leaks=1:max_allocation_size_mb=2048"},
    )  # fmt: skip
    assert process.returncode == 0, process.stderr[-4000:]
    assert process.stderr.splitlines() == [str(path) for path in inputs]


def mark_unrepaired(data: bytes) -> bytes:
    """Return the trace with a session id for which the fuzz target repairs no blocks."""
    header = bytearray(data[:FILE_HEADER])
    header[16] |= 0x80
    header[12:16] = bytes(4)
    header[12:16] = zlib.crc32(header).to_bytes(4, "little")
    return bytes(header) + data[FILE_HEADER:]


def corrupt_randomly(data: bytes, dice: random.Random) -> bytes:
    """Return the data with bits flipped and bytes overwritten, removed or inserted."""
    corrupt = bytearray(data)
    for _ in range(dice.randrange(1, 4)):
        at, size = dice.randrange(len(corrupt)), dice.choice([1, 1, 8, 40, 400])
        other = dice.choice([dice.randbytes(size), bytes(size), b"\xff" * size])
        match dice.randrange(5):
            case 0:
                corrupt[at] ^= 1 << dice.randrange(8)
            case 1:
                corrupt[at : at + size] = other
            case 2:
                corrupt[at:at] = other
            case 3 if at:
                del corrupt[at : at + size]
            case _ if at:
                del corrupt[at:]
    return bytes(corrupt)


def test_sanitizers_find_no_fault_on_corrupt_traces_and_spools(tmp_path: Path) -> None:
    """Half of the traces have valid checksums."""
    path, inputs = tmp_path / "t.alloctrace", []
    spool = core_probe.write_killed(path, build_events(300), ring_events=128, definitions_bytes=512).read_bytes()
    traces = [path.read_bytes(), *(trace.read_bytes() for trace in TRACES if trace.stat().st_size < 40_000)]
    for seed in range(500):
        dice = random.Random(seed)
        data = traces[0] if dice.random() < 0.5 else dice.choice(traces)
        trace = hostile_traces.mutate(data, seed) if seed % 2 else corrupt_randomly(mark_unrepaired(data), dice)
        inputs.append(tmp_path / f"{seed:03}")
        inputs[-1].write_bytes(trace + (corrupt_randomly(spool, dice) if dice.random() < 0.6 else spool))
    read_with_sanitizers("address,undefined", inputs)


@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
def test_sanitizers_find_no_fault_on_fuzzer_corpus(sanitizers: str) -> None:
    """The corpus consists of the inputs of tools/fuzz that reached new code."""
    inputs = sorted((hostile_traces.CORPUS.parent / "reader").iterdir())
    assert len(inputs) > 50 and sum(path.stat().st_size for path in inputs) < 250_000
    inputs += [path for path in TRACES if path.stat().st_size < 2000]
    # The thread sanitizer reads a quarter: all inputs run the same threads.
    read_with_sanitizers(sanitizers, inputs[::4] if sanitizers == "thread" else inputs)


@pytest.mark.parametrize("part", ["header", "member", "end"])
def test_deeply_nested_json_is_ignored(tmp_path: Path, part: str) -> None:
    """Nested JSON raised a RecursionError in every command, and one such trace stopped the comparison of ranks."""
    nested = b"[" * 5000 + b"]" * 5000
    json_text = b'{"program": ' + (nested if part == "member" else b"[" * 40 + b"]" * 40) + b"}"
    kind, payload = (END, nested) if part == "end" else (HEADER, nested if part == "header" else json_text)
    path, anchor = tmp_path / "t.alloctrace", [1, 1, 1]
    path.write_bytes(hostile_traces.file_header() + block(kind, payload, 0, 0, anchor, anchor))
    check_outputs({path: ["diagnose", "diagnose-json", "live", "ranks", "oom"]})
    trace = alloctrace.load(path)
    assert (trace.header, trace._recorded.ending) == ({}, {})


def test_named_spool_is_opened_only_when_it_is_a_file(tmp_path: Path) -> None:
    """Opening the pipe would unblock its writer."""
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
