"""Summary files: made again when the trace or the options changed, limited in size, and optional."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import stat
from pathlib import Path

import numpy as np
import pytest
from made_up_ranks import MIB, Rank, write_ranks

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.analysis.ranks import summary_file
from pytorch_alloctrace.analysis.ranks.rank_summary import Detail, Levels, PeakLine
from pytorch_alloctrace.analysis.ranks.summary_file import (
    MAX_BYTES,
    Source,
    encode_file,
    load_summary,
    summarize_rank,
    summary_path,
)
from pytorch_alloctrace.reading.sites import Site


@pytest.fixture
def trace(tmp_path: Path) -> str:
    return str(Rank(1, 4, leaks_from=10).write(tmp_path))


def test_summary_file_equals_summary_and_is_reused(trace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = summarize_rank(trace)
    loaded = load_summary(trace)
    assert loaded is not None and loaded == summary and loaded.detail is not None and summary.detail is not None
    assert loaded.detail.lines == summary.detail.lines
    for actual, expected in zip(loaded.detail.levels, summary.detail.levels, strict=True):
        assert actual.kind == expected.kind
        assert np.array_equal(actual.steps, expected.steps) and np.array_equal(actual.live, expected.live)
    assert stat.S_IMODE(os.stat(summary_path(trace)).st_mode) & 0o077 & ~os.stat(trace).st_mode == 0
    levels = json.loads(Path(summary_path(trace)).read_bytes())["content"]["summary"]["detail"]["levels"][0]
    assert levels["kind"] == "cuda" and sum(levels["steps"]) == 39, "not the differences of the steps"
    assert sum(levels["live"]) == summary.devices[0].live
    monkeypatch.setattr(summary_file, "summarize_trace", lambda *_: pytest.fail("made again"))
    assert summarize_rank(trace) == summary


def test_summary_is_made_again_when_trace_changed(trace: str) -> None:
    summarize_rank(trace)
    Rank(1, 4).write(Path(trace).parent)
    assert load_summary(trace) is None
    assert summarize_rank(trace).of_kind("cuda").leaks == ()  # type: ignore[union-attr]
    # A different trace of the same size and time.
    Rank(1, 4, leaks_from=10, leak=13 * MIB).write(Path(trace).parent)
    assert summarize_rank(trace).of_kind("cuda").leak_bytes_per_unit == 13 * MIB  # type: ignore[union-attr]
    times, size = os.stat(trace), os.path.getsize(trace)
    Rank(1, 4, leaks_from=10, leak=14 * MIB).write(Path(trace).parent)
    assert os.path.getsize(trace) == size
    os.utime(trace, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert summarize_rank(trace).of_kind("cuda").leak_bytes_per_unit == 14 * MIB  # type: ignore[union-attr]


def test_truncated_trace_gets_no_summary_file(trace: str) -> None:
    """On the machine that has the spool, a summary file would hide the last events."""
    complete = Path(trace).read_bytes()
    Path(trace).write_bytes(complete[: len(complete) * 7 // 10])
    assert summarize_rank(trace).is_truncated and load_summary(trace) is None


def test_summary_of_other_version_or_user_paths_is_not_loaded(trace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    summarize_rank(trace)
    assert load_summary(trace) is not None and load_summary(trace, ["transformers"]) is None
    summarize_rank(trace, ["transformers"])
    assert load_summary(trace, ["transformers"]) is not None and load_summary(trace) is None
    monkeypatch.setattr(summary_file, "VERSION", summary_file.VERSION + 1)
    assert load_summary(trace, ["transformers"]) is None


def test_corrupt_summary_is_made_again(trace: str) -> None:
    expected = summarize_rank(trace)
    complete = Path(summary_path(trace)).read_bytes()
    for size in (0, 1, 100, len(complete) // 2, len(complete) - 1):
        Path(summary_path(trace)).write_bytes(complete[:size])
        assert load_summary(trace) is None and summarize_rank(trace) == expected
    random = np.random.default_rng(3)
    for place in random.integers(0, len(complete), 200).tolist():
        flipped = bytearray(complete)
        flipped[place] ^= 1 << int(random.integers(8))
        Path(summary_path(trace)).write_bytes(flipped)
        loaded = load_summary(trace)
        assert loaded is None or loaded == expected
    Path(summary_path(trace)).write_bytes(b"x" * (MAX_BYTES + 1))
    assert load_summary(trace) is None


def test_summary_with_invalid_content_is_not_loaded(trace: str) -> None:
    summarize_rank(trace)
    content = json.loads(Path(summary_path(trace)).read_bytes())["content"]

    def is_used(text: bytes) -> bool:
        Path(summary_path(trace)).write_bytes(
            b'{"sha256":"%s","content":%s}' % (hashlib.sha256(text).hexdigest().encode(), text)
        )
        return load_summary(trace) is not None

    def is_used_with(value: object, *names: str | int) -> bool:
        changed = json.loads(json.dumps(content))
        parent = changed
        for name in names[:-1]:
            parent = parent[name]
        parent[names[-1]] = value
        return is_used(json.dumps(changed).encode())

    assert is_used(json.dumps(content).encode())
    for text in (b"", b"null", b"[" * 900_000, b'{"source":' * 90_000, b"[" * 900 + b"]" * 900, b"\xff", b"1" * 5000):
        assert not is_used(text)
    assert is_used_with(4, "summary", "rank")
    for rank in ("1", 1.0, True, 1 << 64, [1], {}):
        assert not is_used_with(rank, "summary", "rank")
    assert not is_used_with(10**7, "summary", "world_size"), "all missing ranks would be listed"
    level = ("summary", "detail", "levels", 0)
    for name in ("steps", "live"):
        for numbers in ([], [1 << 63], [1.5], "12", None):
            assert not is_used_with(numbers, *level, name)
    assert not is_used_with([], "summary", "unknown field")


def test_summary_is_loaded_after_folder_was_moved(tmp_path: Path) -> None:
    [path] = write_ranks(tmp_path / "a", 1)
    summarize_rank(str(path))
    (tmp_path / "a").rename(tmp_path / "b")

    summary = load_summary(str(tmp_path / "b" / path.name))

    assert summary is not None and summary.path == str(tmp_path / "b" / path.name)


def test_load_ranks_works_when_summaries_cannot_be_written(tmp_path: Path) -> None:
    paths = write_ranks(tmp_path / "a", 3, rank1=Rank(1, 3, leaks_from=10))
    for path in paths:
        Path(summary_path(str(path))).mkdir()  # the superuser can write into any folder
    before = sorted((tmp_path / "a").iterdir())
    ranks = alloctrace.load_ranks(tmp_path / "a")
    assert [finding.ranks[0] for finding in ranks.findings()] == [1]
    assert sorted((tmp_path / "a").iterdir()) == before, "a partly written file is left"


def test_summary_size_is_limited(trace: str) -> None:
    summary = summarize_rank(trace)
    random = np.random.default_rng(5)
    site = Site("ü" * 400 + ".py", 1 << 40, "f" * 400, "\u20ac" * 400, True)
    levels = tuple(
        Levels(f"cuda:{n}", np.arange(1000, dtype=np.int64), *random.integers(0, 1 << 62, (2, 1000))) for n in range(16)
    )
    lines = tuple((f"cuda:{n}", (PeakLine(site, 1, ""),) * 100) for n in range(16))
    source = Source.of_trace(trace, ())
    data = encode_file(dataclasses.replace(summary, detail=Detail(levels, lines)), source)
    assert data is not None and 100_000 < len(data) <= MAX_BYTES
    long_lines = tuple(
        (f"cuda:{n}", tuple(PeakLine(Site(random.bytes(400).hex(), 1, "", None, True), 1, "") for _ in range(100)))
        for n in range(16)
    )
    data = encode_file(dataclasses.replace(summary, detail=Detail(levels * 12, long_lines)), source)
    assert data is not None and len(data) <= MAX_BYTES
    too_long = dataclasses.replace(summary, program="x" * MAX_BYTES)
    assert encode_file(too_long, source) is None


def test_summary_size_does_not_grow_with_steps(tmp_path: Path) -> None:
    sizes = {}
    for steps in (1_000, 30_000):
        path = str(Rank(0, 1, steps=steps).write(tmp_path))
        summary = summarize_rank(path)
        sizes[steps] = os.path.getsize(summary_path(path))
        levels = summary.detail and summary.detail.levels_of("cuda")
        assert levels is not None and 500 < len(levels.steps) <= 1000 and levels.steps[-1] > 0.98 * steps
    assert max(sizes.values()) < 2 * min(sizes.values()) < 200_000


def test_compacted_copy_of_rank_is_left_out(tmp_path: Path) -> None:
    [first, second] = map(str, write_ranks(tmp_path, 2))
    copy = str(tmp_path / "a-smaller.alloctrace")
    alloctrace.compact(first, copy, until="step:3")

    ranks = alloctrace.load_ranks(tmp_path)

    assert ranks.left_out == {copy: "copy"} and list(ranks.table()["path"]) == [first, second]
    assert "of the same recording as another trace" in " ".join(str(ranks).split())
