"""Corrupt and truncated traces: all intact blocks are read, losses are reported, and no reader crashes."""

from __future__ import annotations

import os
import random
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import core_probe
import pandas as pd
import pytest
from core_probe import make_events
from format_reader import BLOCK_HEADER, DEFINITIONS, DICTIONARY, END, EVENTS, FILE_HEADER, Block, TraceFile
from made_up_events import write_trace

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace import _replay
from pytorch_alloctrace.errors import TraceError

Row = tuple[int, ...]
COLUMNS = (
    *("seq", "time_ns", "kind", "address", "requested_bytes", "stack_id", "thread", "location", "autograd_seq"),
    "node_type",
)


def build_events(count: int) -> core_probe.Events:
    return make_events(
        [
            {"kind": 3 if n % 3 == 2 else 1, "address": n % 7 * 512, "size": n % 5 * 100, "stack": n % 4,
             "location": n % 3, "thread": n % 2 + 1,
             "time": 1000 * n, "sequence": n, "node_type": n % 3}
            for n in range(count)
        ]
    )  # fmt: skip


def rows_of(reader: _replay.TraceReader) -> list[Row]:
    rows: list[Row] = []
    stream = reader.events()
    while (raw := stream.next(1)) is not None:
        rows += zip(*(raw[name].tolist() for name in COLUMNS), strict=True)
    return rows


@dataclass
class Sample:
    """Small trace, its blocks and rows, and a file for its corrupt copies."""

    data: bytes
    blocks: list[Block]
    rows: list[Row]
    file: int
    """A file in memory, rewritten for each corrupt copy: a disk would be slower than the reader."""

    def events_of(self, index: int) -> range:
        """Return the sequence numbers of the events of a block."""
        block = self.blocks[index]
        return range(block.first, block.first + block.count)

    def end_of(self, index: int) -> int:
        return self.blocks[index].offset + BLOCK_HEADER + len(self.blocks[index].payload)

    def block_at(self, offset: int) -> int:
        """Return the index of the block that contains a byte, or -1 for the file header."""
        return max((i for i, block in enumerate(self.blocks) if block.offset <= offset), default=-1)

    def read(self, data: bytes) -> tuple[_replay.Integrity, list[Row]]:
        """Return integrity and events of a file with these bytes."""
        os.ftruncate(self.file, 0)
        os.pwrite(self.file, data, 0)
        reader = _replay.TraceReader(f"/proc/self/fd/{self.file}")
        _replay.Replay(reader, 50)
        return reader.integrity, rows_of(reader)

    def without(self, lost: Iterable[int]) -> list[Row]:
        """Return the rows without those of some blocks."""
        lost_numbers = {number for index in lost for number in self.events_of(index)}
        return [row for row in self.rows if row[0] not in lost_numbers]


def comparable(rows: list[Row]) -> list[Row]:
    """Return the rows without times and without sizes of frees: both may depend on lost blocks."""
    kind, size = COLUMNS.index("kind"), COLUMNS.index("requested_bytes")
    return [(row[0], *row[2:size], 0 if row[kind] == 3 else row[size], *row[size + 1 :]) for row in rows]


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sample]:
    path = tmp_path_factory.mktemp("damage") / "t.alloctrace"
    write_trace(path, build_events(36), block_events=12)
    reader = _replay.TraceReader(str(path))
    file = os.memfd_create("damaged")
    sample = Sample(path.read_bytes(), TraceFile(path).blocks, rows_of(reader), file)
    assert len(sample.rows) == 36 and reader.integrity.state == "complete"
    assert [block.type for block in sample.blocks].count(EVENTS) == 3
    yield sample
    os.close(file)


def test_complete_blocks_are_read_when_trace_is_truncated_at_any_byte(sample: Sample) -> None:
    for size in range(len(sample.data)):
        integrity, rows = sample.read(sample.data[:size])
        complete = [index for index in range(len(sample.blocks)) if sample.end_of(index) <= size]
        event_count = sum(sample.blocks[index].count for index in complete)
        assert comparable(rows) == comparable(sample.rows[:event_count]) and integrity.events == event_count, size
        end = sample.end_of(complete[-1]) if complete else FILE_HEADER if size >= FILE_HEADER else 0
        reported = (integrity.state, integrity.truncated_bytes, integrity.corrupt_blocks, integrity.missing_events)
        assert reported == ("truncated", size - end, 0, 0), size
        assert not integrity.ended


def test_only_the_block_of_a_flipped_bit_is_lost(sample: Sample) -> None:
    lost: list[int]
    for offset in range(len(sample.data)):
        index = sample.block_at(offset)
        lost = [] if index < 0 else [index]
        missing = 0 if index < 0 else sample.blocks[index].count
        size = FILE_HEADER if index < 0 else sample.end_of(index) - sample.blocks[index].offset
        expected = sample.without(lost)
        # One bit of each payload byte is enough: a checksum covers the payload.
        for bit in range(8) if index < 0 or offset < sample.blocks[index].offset + BLOCK_HEADER else [offset % 8]:
            data = bytearray(sample.data)
            data[offset] ^= 1 << bit
            integrity, rows = sample.read(bytes(data))
            assert comparable(rows) == comparable(expected), (offset, bit)
            assert integrity.state == "corrupt" and integrity.corrupt_blocks == 1, (offset, bit)
            assert integrity.corrupt_bytes == size and integrity.truncated_bytes == 0, (offset, bit)
            assert integrity.events == 36 - missing and integrity.missing_events == missing, (offset, bit)
            assert integrity.ended == (index < 0 or sample.blocks[index].type != END), (offset, bit)


def test_remaining_blocks_are_read_when_blocks_are_removed(sample: Sample) -> None:
    """Every subset of blocks: missing events are counted, and without its end a trace is truncated."""
    count = len(sample.blocks)
    for pattern in range(1 << count):
        removed = [index for index in range(count) if pattern >> index & 1]
        remaining = [index for index in range(count) if index not in removed]
        parts = [sample.data[sample.blocks[index].offset : sample.end_of(index)] for index in remaining]
        integrity, rows = sample.read(sample.data[:FILE_HEADER] + b"".join(parts))
        # Every block has the number of the next event: events missing before the last block are detected.
        last = max(remaining, default=-1)
        missing = sum(sample.blocks[index].count for index in removed if index < last)
        assert [row[0] for row in rows] == [row[0] for row in sample.without(removed)]
        assert integrity.missing_events == missing and integrity.corrupt_blocks == 0
        ended = last == count - 1
        assert integrity.state == ("gaps" if missing else "complete" if ended else "truncated"), removed
        if any(sample.blocks[index].type in (DEFINITIONS, DICTIONARY) for index in remaining):
            assert comparable(rows) == comparable(sample.without(removed))


def test_repeated_block_is_read_once(sample: Sample) -> None:
    for index in range(len(sample.blocks)):
        block = sample.data[sample.blocks[index].offset : sample.end_of(index)]
        at = sample.end_of(index)
        integrity, rows = sample.read(sample.data[:at] + block + sample.data[at:])
        assert rows == sample.rows and integrity.missing_events == 0
        assert integrity.state == ("corrupt" if sample.blocks[index].type == EVENTS else "complete")


@pytest.mark.parametrize("seed", range(2))
def test_only_blocks_with_garbage_or_removed_bytes_are_lost(sample: Sample, seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(150):
        at, size = dice.randrange(FILE_HEADER, len(sample.data) + 1), dice.randrange(1, 600)
        index = sample.block_at(at)
        headless = sample.data[FILE_HEADER + 1 : FILE_HEADER + BLOCK_HEADER] if index < len(sample.blocks) - 1 else b"?"
        garbage = dice.choice([dice.randbytes(size), bytes(size), b"ATBK" * (size // 4 + 1), headless[:size]])
        hit = [] if at == len(sample.data) or at in (FILE_HEADER, sample.blocks[index].offset) else [index]
        integrity, rows = sample.read(sample.data[:at] + garbage + sample.data[at:])
        assert comparable(rows) == comparable(sample.without(hit)), (at, garbage)
        assert integrity.state == "corrupt" and integrity.corrupt_blocks == 1
        lost = sum(sample.end_of(i) - sample.blocks[i].offset for i in hit)
        assert integrity.corrupt_bytes == len(garbage) + lost and integrity.truncated_bytes == 0
        assert integrity.missing_events == 36 - len(rows)

        end = min(at + size, len(sample.data))
        touched = [i for i, b in enumerate(sample.blocks) if b.offset < end and sample.end_of(i) > at]
        if not touched:
            continue
        rest = sample.data[:at] + sample.data[end:]
        # Without the first bytes of a block up to the same bytes of a later one, the later one is whole.
        touched = [i for i in touched if sample.data[sample.blocks[i].offset : sample.end_of(i)] not in rest]
        integrity, rows = sample.read(rest)
        assert comparable(rows) == comparable(sample.without(touched)), (at, end)
        if touched[-1] + 1 < len(sample.blocks):
            assert integrity.missing_events == 36 - len(rows)
        assert integrity.state != "complete" or sum(sample.blocks[i].count for i in touched) == 0


def test_block_at_border_of_search_window_is_read(sample: Sample) -> None:
    at, searched_at_once = sample.blocks[1].offset, 1 << 20
    for size in range(searched_at_once - 6, searched_at_once + 6):
        integrity, rows = sample.read(sample.data[:at] + bytes(size) + sample.data[at:])
        assert rows == sample.rows and integrity.corrupt_bytes == size


def test_garbage_that_contains_a_header_is_one_gap(sample: Sample) -> None:
    header = sample.data[FILE_HEADER : FILE_HEADER + BLOCK_HEADER]
    # In the last block, a header with an incomplete payload is a truncated trace.
    for index, block in enumerate(sample.blocks[:-1]):
        at = (block.offset + BLOCK_HEADER + sample.end_of(index)) // 2
        integrity, rows = sample.read(sample.data[:at] + b"12345" + header + b"67890" + sample.data[at:])
        assert comparable(rows) == comparable(sample.without([index]))
        assert integrity.state == "corrupt" and integrity.corrupt_blocks == 1
        assert integrity.corrupt_bytes == sample.end_of(index) - block.offset + BLOCK_HEADER + 10


def test_header_in_the_last_block_truncates_the_trace_where_its_payload_is_incomplete(sample: Sample) -> None:
    last = sample.blocks[-1]
    largest = max(sample.blocks, key=lambda block: len(block.payload))
    headless = sample.data[largest.offset + 1 : largest.offset + BLOCK_HEADER]
    integrity, rows = sample.read(sample.data[: last.offset + 1] + headless + sample.data[last.offset + 1 :])
    assert comparable(rows) == comparable(sample.rows) and integrity.state == "truncated" and not integrity.ended
    assert integrity.corrupt_bytes == 0
    assert integrity.truncated_bytes == len(headless) + len(sample.data) - last.offset


def test_only_blocks_in_zeroed_pages_are_lost(sample: Sample) -> None:
    """A power failure can leave a file of the correct size with holes of zeros."""
    for at in range(0, len(sample.data), 97):
        end = min(at + 256, len(sample.data))
        touched = [i for i, b in enumerate(sample.blocks) if b.offset < end and sample.end_of(i) > at]
        integrity, rows = sample.read(sample.data[:at] + bytes(end - at) + sample.data[end:])
        assert comparable(rows) == comparable(sample.without(touched)) and integrity.state == "corrupt"


def test_other_files_are_refused_and_empty_file_is_truncated_trace(sample: Sample, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name, content in {
        "text": b"This is a text, and no trace. " * 50,
        "letter": b"x",
        "zeros": bytes(5000),
        "random": random.Random(1).randbytes(5000),
        "png": b"\x89PNG\r\n\x1a\n" + bytes(3000),
        "magic": b"ALLOCTRC" + bytes(3000),
        "spool": b"ALLOCSPL" + bytes(3000),
    }.items():
        (tmp_path / name).write_bytes(content)
    for path in [*tmp_path.iterdir(), tmp_path / "absent", Path("/dev/null"), Path("/dev/zero")]:
        with pytest.raises(TraceError) as error:
            alloctrace.load(path)
        assert str(path) in str(error.value) and "\n" not in str(error.value)

    empty = tmp_path / "empty"
    empty.touch()
    trace = alloctrace.load(empty)
    assert trace.integrity.state == "truncated" and trace.integrity.events == 0 and trace.header == {}
    tables = (trace.events(), trace.live(), trace.usage(), trace.timeline(5), trace.steps(), trace.marks())
    assert [len(table) for table in (*tables, trace.threads())] == [0] * 7
    assert trace.frames(0) == []
    with pytest.raises(alloctrace.PositionError, match="nothing was allocated"):
        trace.peak()


def test_newer_format_is_refused_but_corrupt_version_is_read(sample: Sample, tmp_path: Path) -> None:
    newer = bytearray(sample.data)
    newer[8] = 5
    corrupt = bytes(newer)
    newer[12:16] = zlib.crc32(newer[:12] + bytes(4) + newer[16:32]).to_bytes(4, "little")
    path = tmp_path / "newer.alloctrace"
    path.write_bytes(newer)
    with pytest.raises(TraceError, match="newer"):
        alloctrace.load(path)
    integrity, rows = sample.read(corrupt)
    assert integrity.state == "corrupt" and rows == sample.rows


def test_queries_raise_while_the_loaded_file_is_truncated(tmp_path: Path) -> None:
    path = tmp_path / "t.alloctrace"
    write_trace(path, build_events(1000), block_events=100)
    complete, seq = path.read_bytes(), 980
    unread, replayed = alloctrace.load(path), alloctrace.load(path)
    replayed.blocks(at=50)

    path.write_bytes(complete[: len(complete) * 2 // 3])
    for trace in (unread, replayed):
        internals = trace._recorded
        for ask in (trace.blocks, trace.segments, trace.live, internals.time_ns, internals.stack_totals):
            with pytest.raises(TraceError, match=r"t\.alloctrace"):
                ask(at=seq)
        with pytest.raises(TraceError, match=r"t\.alloctrace"):
            trace.events(until=seq)

    path.write_bytes(complete)
    expected = alloctrace.load(path)
    pd.testing.assert_frame_equal(replayed.blocks(at=seq), expected.blocks(at=seq))
    assert replayed._recorded.time_ns(seq) == expected._recorded.time_ns(seq)


def test_extreme_values_of_every_field_are_read(tmp_path: Path) -> None:
    """The interface computes with every field at its extremes and still returns tables."""
    path, high = tmp_path / "t.alloctrace", (1 << 64) - 1
    events = make_events(
        [
            {"kind": kind, "address": high, "size": size, "stack": stack, "location": stack, "thread": stack,
             "time": time, "sequence": high, "node_sequence": high, "node_thread": (1 << 32) - 1, "node_type": 65535}
            for kind in (*range(24), 255) for size in (0, high) for stack in (0, (1 << 32) - 1) for time in (0, high,
            high >> 1)
        ]
    )  # fmt: skip
    write_trace(path, events)
    trace = alloctrace.load(path)
    read = trace.events(columns=[*alloctrace.trace.EVENT_COLUMNS, *alloctrace.trace.AUTOGRAD_COLUMNS])
    assert len(read) == len(events) and (read["address"] == -1).all() and set(read["stack_id"]) == {0}
    assert set(read["node_type"]) == {""} and set(read["device"]) == {""}
    counts = trace._recorded.kind_counts
    assert sum(counts.values()) == len(events) and counts["kind_255"] == 12
    for table in (trace.usage(), trace.live(), trace.timeline(10), trace.steps(), trace.marks(), trace.live(at="peak")):
        assert list(table.columns)
    assert all(trace.frames(stack) == [] for stack in set(read["stack_id"]))
