"""Corrupt, truncated and foreign spools: the trace's events are read, and no reader crashes."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import core_probe
import pytest
from format_reader import EVENTS, TraceFile
from test_corrupt_traces import Row, build_events, comparable, rows_of

from pytorch_alloctrace import _replay

SPOOL_EVENTS, SPOOL_RING = 150, 64


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, list[Row], int]:
    """Return the trace of a killed recording, its spool, all events and the number of events in the trace."""
    path = tmp_path_factory.mktemp("killed") / "t.alloctrace"
    spool = core_probe.write_killed(path, build_events(SPOOL_EVENTS), ring_events=SPOOL_RING, definitions_bytes=512)
    reader = _replay.TraceReader(str(path))
    rows, integrity = rows_of(reader), reader.integrity
    assert len(rows) == SPOOL_EVENTS and integrity.state == "complete" and not integrity.ended
    return path, spool, rows, SPOOL_EVENTS - integrity.recovered


Killed = tuple[Path, Path, list[Row], int]
ReadWithSpool = Callable[[bytes], tuple[_replay.Integrity, list[Row]]]


@pytest.fixture
def read_with_spool(killed: Killed) -> Iterator[ReadWithSpool]:
    def read(data: bytes) -> tuple[_replay.Integrity, list[Row]]:
        os.ftruncate(file, 0)
        os.pwrite(file, data, 0)
        reader = _replay.TraceReader(str(killed[0]), f"/proc/self/fd/{file}")
        _replay.Replay(reader, 50)
        _replay.States(_replay.Replay(reader, 10)).blocks_before(1)
        reader.stack_table()
        return reader.integrity, rows_of(reader)

    file = os.memfd_create("spool")
    yield read
    os.close(file)


def test_invalid_spool_is_ignored(killed: Killed, read_with_spool: ReadWithSpool, tmp_path: Path) -> None:
    """Truncated, empty, foreign or random spools: only the trace is read, and is reported as truncated."""
    _, spool, rows, in_trace = killed
    data = spool.read_bytes()
    other = core_probe.write_killed(
        tmp_path / "b.alloctrace", build_events(90), ring_events=SPOOL_RING, definitions_bytes=512
    )
    bad = [data[:size] for size in (0, 1, 31, 383, 384, 4095, 4096, 5000, len(data) - 9)]
    bad += [other.read_bytes(), random.Random(3).randbytes(len(data)), bytes(len(data)), b"ALLOCTRC" + data[8:]]
    for content in bad:
        integrity, read = read_with_spool(content)
        assert [row[0] for row in read] == list(range(in_trace)) and not integrity.spool_read
        assert integrity.state == "truncated" and integrity.recovered == 0
    assert comparable(read_with_spool(data)[1]) == comparable(rows)


def test_events_between_truncated_trace_and_spool_are_missing(killed: Killed, tmp_path: Path) -> None:
    """The spool starts after the end of the trace: the events between are missing."""
    path, spool, rows, in_trace = killed
    data, blocks = path.read_bytes(), [block for block in TraceFile(path).blocks if block.type == EVENTS]
    truncated = tmp_path / "cut.alloctrace"
    truncated.write_bytes(data[: blocks[-1].offset + 50])

    reader = _replay.TraceReader(str(truncated), str(spool))
    integrity, read = reader.integrity, rows_of(reader)

    missing = range(blocks[-1].first, in_trace)
    assert len(missing) > 0 and comparable(read) == comparable([row for row in rows if row[0] not in missing])
    assert integrity.state == "gaps" and integrity.missing_events == len(missing)


def test_corrupt_spool_changes_no_other_event(killed: Killed, read_with_spool: ReadWithSpool) -> None:
    """A spool has no checksums: a corrupt event must not change other events or those of the trace."""
    _, spool, rows, in_trace = killed
    data, dice = spool.read_bytes(), random.Random(9)
    ring, log = 4096, 4096 + SPOOL_RING * 64
    for offset in range(384):
        for value in {data[offset] ^ 1 << dice.randrange(8), data[offset] ^ 0x80, 0xFF}:
            corrupt = bytearray(data)
            corrupt[offset] = value
            integrity, read = read_with_spool(bytes(corrupt))
            assert [row[0] for row in read[:in_trace]] == list(range(in_trace)), offset
            assert integrity.events == len(read), offset
    for offset in range(ring, log, 3):
        corrupt = bytearray(data)
        corrupt[offset] ^= 1 << dice.randrange(8)
        slot = (offset - ring) // 64
        integrity, read = read_with_spool(bytes(corrupt))
        others = [row for row in rows if row[0] < in_trace or row[0] % SPOOL_RING != slot]
        assert comparable([row for row in read if row[0] < in_trace or row[0] % SPOOL_RING != slot]) == comparable(
            others
        )
        assert len(read) + integrity.uncommitted == len(rows) and integrity.missing_events == 0
    for offset in range(log, len(data)):
        corrupt = bytearray(data)
        corrupt[offset] ^= 1 << dice.randrange(8)
        integrity, read = read_with_spool(bytes(corrupt))
        assert [row[0] for row in read] == list(range(len(rows)))
