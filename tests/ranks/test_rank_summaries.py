"""Summary files are of the trace as it is now, or are made anew; they stay small, and need not be written."""

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


def test_what_is_kept_is_what_was_found_and_not_made_again(trace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = summarize_rank(trace)
    known = load_summary(trace)
    assert known is not None and known == made and known.detail is not None and made.detail is not None
    assert known.detail.lines == made.detail.lines
    for here, there in zip(known.detail.levels, made.detail.levels, strict=True):
        assert here.kind == there.kind
        assert np.array_equal(here.steps, there.steps) and np.array_equal(here.live, there.live)
    assert stat.S_IMODE(os.stat(summary_path(trace)).st_mode) & 0o077 & ~os.stat(trace).st_mode == 0
    levels = json.loads(Path(summary_path(trace)).read_bytes())["content"]["summary"]["detail"]["levels"][0]
    assert levels["kind"] == "cuda" and sum(levels["steps"]) == 39, "the differences of the steps"
    assert sum(levels["live"]) == made.devices[0].live
    monkeypatch.setattr(summary_file, "summarize_trace", lambda *_: pytest.fail("made again"))
    assert summarize_rank(trace) == made


def test_a_stale_one_is_made_anew(trace: str) -> None:
    summarize_rank(trace)
    Rank(1, 4).write(Path(trace).parent)
    assert load_summary(trace) is None
    assert summarize_rank(trace).of_kind("cuda").leaks == ()  # type: ignore[union-attr]
    # Of the same size and time, but another trace.
    Rank(1, 4, leaks_from=10, leak=13 * MIB).write(Path(trace).parent)
    assert summarize_rank(trace).of_kind("cuda").leak_bytes_per_unit == 13 * MIB  # type: ignore[union-attr]
    times, size = os.stat(trace), os.path.getsize(trace)
    Rank(1, 4, leaks_from=10, leak=14 * MIB).write(Path(trace).parent)
    assert os.path.getsize(trace) == size
    os.utime(trace, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert summarize_rank(trace).of_kind("cuda").leak_bytes_per_unit == 14 * MIB  # type: ignore[union-attr]


def test_that_of_a_trace_which_is_cut_off_is_not_kept(trace: str) -> None:
    """Its spool may only be out of reach: on the machine that has it, the summary would hide the last events."""
    whole = Path(trace).read_bytes()
    Path(trace).write_bytes(whole[: len(whole) * 7 // 10])
    assert summarize_rank(trace).is_truncated and load_summary(trace) is None


def test_another_version_and_other_user_paths_make_it_anew(trace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    summarize_rank(trace)
    assert load_summary(trace) is not None and load_summary(trace, ["transformers"]) is None
    summarize_rank(trace, ["transformers"])
    assert load_summary(trace, ["transformers"]) is not None and load_summary(trace) is None
    monkeypatch.setattr(summary_file, "VERSION", summary_file.VERSION + 1)
    assert load_summary(trace, ["transformers"]) is None


def test_a_damaged_one_is_made_anew(trace: str) -> None:
    right = summarize_rank(trace)
    whole = Path(summary_path(trace)).read_bytes()
    for size in (0, 1, 100, len(whole) // 2, len(whole) - 1):
        Path(summary_path(trace)).write_bytes(whole[:size])
        assert load_summary(trace) is None and summarize_rank(trace) == right
    random = np.random.default_rng(3)
    for place in random.integers(0, len(whole), 200).tolist():
        flipped = bytearray(whole)
        flipped[place] ^= 1 << int(random.integers(8))
        Path(summary_path(trace)).write_bytes(flipped)
        known = load_summary(trace)
        assert known is None or known == right
    Path(summary_path(trace)).write_bytes(b"x" * (MAX_BYTES + 1))
    assert load_summary(trace) is None


def test_file_with_right_checksum_and_other_content_is_not_used(trace: str) -> None:
    summarize_rank(trace)
    content = json.loads(Path(summary_path(trace)).read_bytes())["content"]

    def is_used(text: bytes) -> bool:
        Path(summary_path(trace)).write_bytes(
            b'{"sha256":"%s","content":%s}' % (hashlib.sha256(text).hexdigest().encode(), text)
        )
        return load_summary(trace) is not None

    def is_used_with(value: object, *names: str | int) -> bool:
        changed = json.loads(json.dumps(content))
        place = changed
        for name in names[:-1]:
            place = place[name]
        place[names[-1]] = value
        return is_used(json.dumps(changed).encode())

    assert is_used(json.dumps(content).encode())
    for text in (b"", b"null", b"[" * 900_000, b'{"source":' * 90_000, b"[" * 900 + b"]" * 900, b"\xff", b"1" * 5000):
        assert not is_used(text)
    assert is_used_with(4, "summary", "rank")
    for rank in ("1", 1.0, True, 1 << 64, [1], {}):
        assert not is_used_with(rank, "summary", "rank")
    assert not is_used_with(10**7, "summary", "world_size"), "missing ranks are listed"
    level = ("summary", "detail", "levels", 0)
    for name in ("steps", "live"):
        for numbers in ([], [1 << 63], [1.5], "12", None):
            assert not is_used_with(numbers, *level, name)
    assert not is_used_with([], "summary", "unknown field")


def test_a_folder_may_be_moved(tmp_path: Path) -> None:
    [path] = write_ranks(tmp_path / "a", 1)
    summarize_rank(str(path))
    (tmp_path / "a").rename(tmp_path / "b")
    known = load_summary(str(tmp_path / "b" / path.name))
    assert known is not None and known.path == str(tmp_path / "b" / path.name)


def test_a_folder_that_cannot_be_written_is_borne(tmp_path: Path) -> None:
    paths = write_ranks(tmp_path / "a", 3, rank1=Rank(1, 3, leaks_from=10))
    for path in paths:
        Path(summary_path(str(path))).mkdir()  # the superuser, who may run this test, writes into any folder
    before = sorted((tmp_path / "a").iterdir())
    ranks = alloctrace.load_ranks(tmp_path / "a")
    assert [one.ranks[0] for one in ranks.findings()] == [1]
    assert sorted((tmp_path / "a").iterdir()) == before, "nothing half written is left"


def test_a_summary_is_at_most_a_megabyte(trace: str) -> None:
    made = summarize_rank(trace)
    random = np.random.default_rng(5)
    site = Site("ü" * 400 + ".py", 1 << 40, "f" * 400, "\u20ac" * 400, True)
    levels = tuple(
        Levels(f"cuda:{n}", np.arange(1000, dtype=np.int64), random.integers(0, 1 << 62, 1000)) for n in range(16)
    )
    lines = tuple((f"cuda:{n}", (PeakLine(site, 1),) * 100) for n in range(16))
    source = Source.of_trace(trace, ())
    data = encode_file(dataclasses.replace(made, detail=Detail(levels, lines)), source)
    assert data is not None and 100_000 < len(data) <= MAX_BYTES
    many = tuple(
        (f"cuda:{n}", tuple(PeakLine(Site(random.bytes(400).hex(), 1, "", None, True), 1) for _ in range(100)))
        for n in range(16)
    )
    data = encode_file(dataclasses.replace(made, detail=Detail(levels * 12, many)), source)
    assert data is not None and len(data) <= MAX_BYTES
    long = dataclasses.replace(made, program="x" * MAX_BYTES)
    assert encode_file(long, source) is None


def test_a_long_run_has_a_summary_of_the_same_size(tmp_path: Path) -> None:
    sizes = {}
    for steps in (1_000, 30_000):
        path = str(Rank(0, 1, steps=steps).write(tmp_path))
        summary = summarize_rank(path)
        sizes[steps] = os.path.getsize(summary_path(path))
        levels = summary.detail and summary.detail.levels_of("cuda")
        assert levels is not None and 500 < len(levels.steps) <= 1000 and levels.steps[-1] > 0.98 * steps
    assert max(sizes.values()) < 2 * min(sizes.values()) < 200_000


def test_folded_copy_of_a_rank_is_left_out(tmp_path: Path) -> None:
    [first, second] = map(str, write_ranks(tmp_path, 2))
    copy = str(tmp_path / "a-smaller.alloctrace")
    alloctrace.compact(first, copy, until="step:3")

    ranks = alloctrace.load_ranks(tmp_path)

    assert ranks.left_out == {copy: "copy"} and list(ranks.table()["path"]) == [first, second]
    assert "of the same recording as another trace" in " ".join(str(ranks).split())
