"""Summaries that are kept are of the trace as it is now, or are made anew; they stay small, and need not be kept."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from made_up_ranks import MIB, Rank, write_ranks

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.analysis.ranks import kept
from pytorch_alloctrace.analysis.ranks.figures import Detail, HeldLine, Levels, RankSummary
from pytorch_alloctrace.analysis.ranks.kept import MOST_BYTES, encode, kept_at, kept_summary, summary_of
from pytorch_alloctrace.reading.sites import Site


@pytest.fixture
def trace(tmp_path: Path) -> str:
    return str(Rank(1, 4, leaks_from=10).write(tmp_path))


def test_what_is_kept_is_what_was_found_and_not_made_again(trace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = summary_of(trace)
    known = kept_summary(trace)
    assert known is not None and known.card == made.card and known.detail.lines == made.detail.lines
    for here, there in zip(known.detail.levels, made.detail.levels, strict=True):
        assert here.kind == there.kind
        assert np.array_equal(here.steps, there.steps) and np.array_equal(here.live, there.live)
    assert stat.S_IMODE(os.stat(kept_at(trace)).st_mode) & 0o077 & ~os.stat(trace).st_mode == 0
    rows = pd.read_parquet(kept_at(trace))
    assert rows[(rows["device"] == "cuda") & (rows["step"] == 39)]["live_bytes"].item() == made.card.devices[0].live
    monkeypatch.setattr(kept, "summarize_trace", lambda *_: pytest.fail("made again"))
    assert summary_of(trace).card == made.card


def test_a_stale_one_is_made_anew(trace: str) -> None:
    summary_of(trace)
    Rank(1, 4).write(Path(trace).parent)
    assert kept_summary(trace) is None
    assert summary_of(trace).card.of_kind("cuda").leaks == ()  # type: ignore[union-attr]
    # Of the same size and time, but another trace.
    Rank(1, 4, leaks_from=10, leak=13 * MIB).write(Path(trace).parent)
    assert summary_of(trace).card.of_kind("cuda").leak_rate == 13 * MIB  # type: ignore[union-attr]
    times, size = os.stat(trace), os.path.getsize(trace)
    Rank(1, 4, leaks_from=10, leak=14 * MIB).write(Path(trace).parent)
    assert os.path.getsize(trace) == size
    os.utime(trace, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert summary_of(trace).card.of_kind("cuda").leak_rate == 14 * MIB  # type: ignore[union-attr]


def test_that_of_a_trace_which_is_cut_off_is_not_kept(trace: str) -> None:
    """Its spool may only be out of reach: on the machine that has it, the summary would hide the last events."""
    whole = Path(trace).read_bytes()
    Path(trace).write_bytes(whole[: len(whole) * 7 // 10])
    assert summary_of(trace).card.cut and kept_summary(trace) is None


def test_another_version_and_other_user_paths_make_it_anew(trace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    summary_of(trace)
    assert kept_summary(trace) is not None and kept_summary(trace, ["transformers"]) is None
    summary_of(trace, ["transformers"])
    assert kept_summary(trace, ["transformers"]) is not None and kept_summary(trace) is None
    monkeypatch.setattr(kept, "VERSION", kept.VERSION + 1)
    assert kept_summary(trace, ["transformers"]) is None


def test_a_damaged_one_is_made_anew(trace: str) -> None:
    right = summary_of(trace).card
    whole = Path(kept_at(trace)).read_bytes()
    for size in (0, 1, 100, len(whole) // 2, len(whole) - 1):
        Path(kept_at(trace)).write_bytes(whole[:size])
        assert kept_summary(trace) is None and summary_of(trace).card == right
    random = np.random.default_rng(3)
    for place in random.integers(0, len(whole), 200).tolist():
        flipped = bytearray(whole)
        flipped[place] ^= 1 << int(random.integers(8))
        Path(kept_at(trace)).write_bytes(flipped)
        known = kept_summary(trace)
        assert known is None or known.card == right
    Path(kept_at(trace)).write_bytes(b"x" * (MOST_BYTES + 1))
    assert kept_summary(trace) is None


def test_a_folder_may_be_moved(tmp_path: Path) -> None:
    [path] = write_ranks(tmp_path / "a", 1)
    summary_of(str(path))
    (tmp_path / "a").rename(tmp_path / "b")
    known = kept_summary(str(tmp_path / "b" / path.name))
    assert known is not None and known.card.path == str(tmp_path / "b" / path.name)


def test_a_folder_that_cannot_be_written_is_borne(tmp_path: Path) -> None:
    paths = write_ranks(tmp_path / "a", 3, rank1=Rank(1, 3, leaks_from=10))
    for path in paths:
        Path(kept_at(str(path))).mkdir()  # the superuser, who may run this test, writes into any folder
    before = sorted((tmp_path / "a").iterdir())
    ranks = alloctrace.load_ranks(tmp_path / "a")
    assert [one.finding.ranks[0].rank for one in ranks.findings()] == [1]
    assert sorted((tmp_path / "a").iterdir()) == before, "nothing half written is left"


def test_a_summary_is_at_most_a_megabyte(trace: str) -> None:
    made = summary_of(trace)
    random = np.random.default_rng(5)
    site = Site("ü" * 400 + ".py", 1 << 40, "f" * 400, "\u20ac" * 400, True)
    levels = tuple(
        Levels(f"cuda:{n}", np.arange(1000, dtype=np.int64), random.integers(0, 1 << 62, 1000)) for n in range(16)
    )
    lines = tuple((f"cuda:{n}", (HeldLine(site, 1),) * 100) for n in range(16))
    assert 100_000 < len(encode(RankSummary(made.card, Detail(levels, lines)), {})) <= MOST_BYTES
    many = tuple(
        (f"cuda:{n}", tuple(HeldLine(Site(random.bytes(400).hex(), 1, "", None, True), 1) for _ in range(100)))
        for n in range(16)
    )
    assert len(encode(RankSummary(made.card, Detail(levels * 12, many)), {})) <= MOST_BYTES


def test_a_long_run_has_a_summary_of_the_same_size(tmp_path: Path) -> None:
    sizes = {}
    for steps in (1_000, 30_000):
        path = str(Rank(0, 1, steps=steps).write(tmp_path))
        summary = summary_of(path)
        sizes[steps] = os.path.getsize(kept_at(path))
        levels = summary.detail.levels_of("cuda")
        assert levels is not None and 500 < len(levels.steps) <= 1000 and levels.steps[-1] > 0.98 * steps
    assert max(sizes.values()) < 2 * min(sizes.values()) < 200_000
