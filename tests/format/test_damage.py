"""That damage costs what it touches and nothing else, that the trace says so, and that nothing brings a reader down."""

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


def some_events(count: int) -> core_probe.Events:
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
    """A small trace, what it holds, and a file to damage it in."""

    data: bytes
    blocks: list[Block]
    rows: list[Row]
    file: int
    """A file in memory, rewritten for each kind of damage: a disk would take longer than the reading."""

    def events_of(self, index: int) -> range:
        """Return the sequence numbers of the events of a block."""
        block = self.blocks[index]
        return range(block.first, block.first + block.count)

    def end_of(self, index: int) -> int:
        return self.blocks[index].offset + BLOCK_HEADER + len(self.blocks[index].payload)

    def block_at(self, offset: int) -> int:
        """The block that a byte belongs to; -1 for the file header."""
        return max((i for i, block in enumerate(self.blocks) if block.offset <= offset), default=-1)

    def read(self, data: bytes) -> tuple[_replay.Integrity, list[Row]]:
        """Integrity and events of a file with these bytes."""
        os.ftruncate(self.file, 0)
        os.pwrite(self.file, data, 0)
        reader = _replay.TraceReader(f"/proc/self/fd/{self.file}")
        _replay.Replay(reader, 50)
        return reader.integrity, rows_of(reader)

    def without(self, lost: Iterable[int]) -> list[Row]:
        """The rows but for those of some blocks."""
        gone = {number for index in lost for number in self.events_of(index)}
        return [row for row in self.rows if row[0] not in gone]


def fields(rows: list[Row]) -> list[Row]:
    """Rows without their time, which rests on anchors that damage may take, and sizes of frees, which rest on their
    allocs."""
    kind, size = COLUMNS.index("kind"), COLUMNS.index("requested_bytes")
    return [(row[0], *row[2:size], 0 if row[kind] == 3 else row[size], *row[size + 1 :]) for row in rows]


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sample]:
    path = tmp_path_factory.mktemp("damage") / "t.alloctrace"
    write_trace(path, some_events(36), block_events=12)
    reader = _replay.TraceReader(str(path))
    file = os.memfd_create("damaged")
    made = Sample(path.read_bytes(), TraceFile(path).blocks, rows_of(reader), file)
    assert len(made.rows) == 36 and reader.integrity.state == "complete"
    assert [block.type for block in made.blocks].count(EVENTS) == 3
    yield made
    os.close(file)


def test_cut_at_every_byte(sample: Sample) -> None:
    for size in range(len(sample.data)):
        integrity, rows = sample.read(sample.data[:size])
        whole = [index for index in range(len(sample.blocks)) if sample.end_of(index) <= size]
        event_count = sum(sample.blocks[index].count for index in whole)
        assert fields(rows) == fields(sample.rows[:event_count]) and integrity.events == event_count, size
        end = sample.end_of(whole[-1]) if whole else FILE_HEADER if size >= FILE_HEADER else 0
        reported = (integrity.state, integrity.truncated_bytes, integrity.corrupt_blocks, integrity.missing_events)
        assert reported == ("truncated", size - end, 0, 0), size
        assert not integrity.ended


def test_every_bit_of_headers_and_a_bit_of_every_other_byte_flipped(sample: Sample) -> None:
    lost: list[int]
    for offset in range(len(sample.data)):
        index = sample.block_at(offset)
        lost = [] if index < 0 else [index]
        gone = 0 if index < 0 else sample.blocks[index].count
        size = FILE_HEADER if index < 0 else sample.end_of(index) - sample.blocks[index].offset
        expected = sample.without(lost)
        # Behind the checksums of a payload, one bit is as good as another.
        for bit in range(8) if index < 0 or offset < sample.blocks[index].offset + BLOCK_HEADER else [offset % 8]:
            data = bytearray(sample.data)
            data[offset] ^= 1 << bit
            integrity, rows = sample.read(bytes(data))
            assert fields(rows) == fields(expected), (offset, bit)
            assert integrity.state == "corrupt" and integrity.corrupt_blocks == 1, (offset, bit)
            assert integrity.corrupt_bytes == size and integrity.truncated_bytes == 0, (offset, bit)
            assert integrity.events == 36 - gone and integrity.missing_events == gone, (offset, bit)
            assert integrity.ended == (index < 0 or sample.blocks[index].type != END), (offset, bit)


def test_blocks_removed(sample: Sample) -> None:
    """All ways to take blocks out: events are missing by number, an absent end is a truncated trace."""
    count = len(sample.blocks)
    for pattern in range(1 << count):
        gone = [index for index in range(count) if pattern >> index & 1]
        remaining = [index for index in range(count) if index not in gone]
        parts = [sample.data[sample.blocks[index].offset : sample.end_of(index)] for index in remaining]
        integrity, rows = sample.read(sample.data[:FILE_HEADER] + b"".join(parts))
        # Blocks know the number of the next event: what is missing before the last block that is there shows.
        last = max(remaining, default=-1)
        missing = sum(sample.blocks[index].count for index in gone if index < last)
        assert [row[0] for row in rows] == [row[0] for row in sample.without(gone)]
        assert integrity.missing_events == missing and integrity.corrupt_blocks == 0
        ended = last == count - 1
        assert integrity.state == ("gaps" if missing else "complete" if ended else "truncated"), gone
        if any(sample.blocks[index].type in (DEFINITIONS, DICTIONARY) for index in remaining):
            # Sizes of frees rest on their allocs; all else is as it was.
            assert fields(rows) == fields(sample.without(gone))


def test_blocks_repeated(sample: Sample) -> None:
    """No event is read twice."""
    for index in range(len(sample.blocks)):
        block = sample.data[sample.blocks[index].offset : sample.end_of(index)]
        at = sample.end_of(index)
        integrity, rows = sample.read(sample.data[:at] + block + sample.data[at:])
        assert rows == sample.rows and integrity.missing_events == 0
        assert integrity.state == ("corrupt" if sample.blocks[index].type == EVENTS else "complete")


@pytest.mark.parametrize("seed", range(2))
def test_garbage_inserted_and_bytes_taken_out(sample: Sample, seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(150):
        at, size = dice.randrange(FILE_HEADER, len(sample.data) + 1), dice.randrange(1, 600)
        headless = sample.data[FILE_HEADER + 1 : FILE_HEADER + BLOCK_HEADER]
        garbage = dice.choice([dice.randbytes(size), bytes(size), b"ATBK" * (size // 4 + 1), headless[:size]])
        index = sample.block_at(at)
        hit = [] if at == len(sample.data) or at in (FILE_HEADER, sample.blocks[index].offset) else [index]
        integrity, rows = sample.read(sample.data[:at] + garbage + sample.data[at:])
        assert fields(rows) == fields(sample.without(hit)), (at, garbage)
        assert integrity.state == "corrupt" and integrity.corrupt_blocks == 1
        lost = sum(sample.end_of(i) - sample.blocks[i].offset for i in hit)
        assert integrity.corrupt_bytes == len(garbage) + lost and integrity.truncated_bytes == 0
        assert integrity.missing_events == 36 - len(rows)

        end = min(at + size, len(sample.data))
        touched = [i for i, b in enumerate(sample.blocks) if b.offset < end and sample.end_of(i) > at]
        if not touched:
            continue
        integrity, rows = sample.read(sample.data[:at] + sample.data[end:])
        assert fields(rows) == fields(sample.without(touched)), (at, end)
        if touched[-1] + 1 < len(sample.blocks):
            assert integrity.missing_events == 36 - len(rows)
        assert integrity.state != "complete" or sum(sample.blocks[i].count for i in touched) == 0


def test_a_block_on_the_border_of_what_is_searched_at_once_is_found(sample: Sample) -> None:
    at, searched_at_once = sample.blocks[1].offset, 1 << 20
    for size in range(searched_at_once - 6, searched_at_once + 6):
        integrity, rows = sample.read(sample.data[:at] + bytes(size) + sample.data[at:])
        assert rows == sample.rows and integrity.corrupt_bytes == size


def test_garbage_with_a_header_in_it_is_one_gap(sample: Sample) -> None:
    header = sample.data[FILE_HEADER : FILE_HEADER + BLOCK_HEADER]
    # Not in the last block: there a header whose payload is not whole is what a cut leaves.
    for index, block in enumerate(sample.blocks[:-1]):
        at = (block.offset + BLOCK_HEADER + sample.end_of(index)) // 2
        integrity, rows = sample.read(sample.data[:at] + b"12345" + header + b"67890" + sample.data[at:])
        assert fields(rows) == fields(sample.without([index]))
        assert integrity.state == "corrupt" and integrity.corrupt_blocks == 1
        assert integrity.corrupt_bytes == sample.end_of(index) - block.offset + BLOCK_HEADER + 10


def test_zeroed_pages(sample: Sample) -> None:
    """What a file system leaves after a power failure: right size, holes of zeros."""
    for at in range(0, len(sample.data), 97):
        end = min(at + 256, len(sample.data))
        touched = [i for i, b in enumerate(sample.blocks) if b.offset < end and sample.end_of(i) > at]
        integrity, rows = sample.read(sample.data[:at] + bytes(end - at) + sample.data[end:])
        assert fields(rows) == fields(sample.without(touched)) and integrity.state == "corrupt"


def test_what_is_no_trace(sample: Sample, tmp_path: Path) -> None:
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


def test_a_newer_format_is_refused_and_a_damaged_number_is_not(sample: Sample, tmp_path: Path) -> None:
    newer = bytearray(sample.data)
    newer[8] = 5
    damaged = bytes(newer)
    newer[12:16] = zlib.crc32(newer[:12] + bytes(4) + newer[16:32]).to_bytes(4, "little")
    path = tmp_path / "newer.alloctrace"
    path.write_bytes(newer)
    with pytest.raises(TraceError, match="newer"):
        alloctrace.load(path)
    integrity, rows = sample.read(damaged)
    assert integrity.state == "corrupt" and rows == sample.rows


def test_every_question_fails_while_the_file_is_shorter_than_it_was(tmp_path: Path) -> None:
    path = tmp_path / "t.alloctrace"
    write_trace(path, some_events(1000), block_events=100)
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


def test_values_that_make_no_sense(tmp_path: Path) -> None:
    """Every field at its extremes, where the interface computes with it: nothing but a table comes out."""
    path, most = tmp_path / "t.alloctrace", (1 << 64) - 1
    events = make_events(
        [
            {"kind": kind, "address": most, "size": size, "stack": stack, "location": stack, "thread": stack,
             "time": time, "sequence": most, "node_sequence": most, "node_thread": (1 << 32) - 1, "node_type": 65535}
            for kind in (*range(24), 255) for size in (0, most) for stack in (0, (1 << 32) - 1) for time in (0, most,
            most >> 1)
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
        assert len(table) >= 0
    assert all(trace.frames(stack) == [] for stack in set(read["stack_id"]))
