"""Inefficiencies: each planted one is found with its line; a healthy program has none."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from marked_programs import marked_line, run_analyze, run_marked
from running import has_nvidia_gpu, needs_cuda_build
from shared_recordings import record_once, run_source

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.analysis.free_memory.inefficiencies import find_inefficiencies
from pytorch_alloctrace.analysis.free_memory.inefficiency import Cause
from pytorch_alloctrace.analysis.leaks.garbage_collections import list_collections
from pytorch_alloctrace.reading.recorded import RecordedTrace
from pytorch_alloctrace.reading.table import Table

pytestmark = [
    needs_cuda_build,
    pytest.mark.skipif(has_nvidia_gpu(), reason="the sizes need a device of 8 GiB that no other process uses"),
]
MIB = 1 << 20
PROGRAM = "inefficiency_programs.py"
NAMES = ("healthy", "graphs_in_one_pool", "fragmentation", "cache", "rounding", "pending", "churn")
HEALTHY = NAMES[:2]


@pytest.fixture(scope="module")
def traces() -> Path:
    return record_once("inefficiencies", lambda path: run_marked(PROGRAM, path, memory="8GiB"))


@pytest.mark.parametrize("name", NAMES)
def test_planted_inefficiency_is_found_with_line_and_sentences(traces: Path, name: str) -> None:
    trace = alloctrace.load(traces / f"{name}.alloctrace")
    findings = trace.diagnose()
    assert [finding.kind for finding in findings if finding.kind != "note"][1:] == ([] if name in HEALTHY else [name])
    assert all(finding.title and (finding.sentences or finding.kind == "no_leak") for finding in findings)
    inefficiencies = find_inefficiencies(trace._recorded, "cuda:0")
    if name in HEALTHY:
        assert not inefficiencies
        return
    assert [inefficiency.kind for inefficiency in inefficiencies] == [name]
    (inefficiency,) = inefficiencies
    if name in ("fragmentation", "cache", "rounding", "pending"):
        assert inefficiency.site is not None and inefficiency.site.line == marked_line(PROGRAM, name, "LINE")
        assert 0 < inefficiency.site_bytes <= inefficiency.total_bytes
    blocks = trace.blocks("peak" if name == "rounding" else "end")
    if name == "fragmentation":
        assert inefficiency.bytes == 20 * 15 * MIB and inefficiency.site_bytes == inefficiency.bytes
    elif name == "cache":
        assert inefficiency.bytes == 3 * 100 * MIB and inefficiency.figures["is_warmup"] == 1
    elif name == "rounding":
        live = blocks[blocks["state"] == "active_allocated"]
        assert inefficiency.bytes == int(live["block_bytes"].sum()) - int(live["requested_bytes"].sum())
    elif name == "pending":
        assert inefficiency.bytes == 150 * MIB
    else:
        assert inefficiency.total_bytes == 200 * MIB and inefficiency.figures["times"] >= 3


@pytest.mark.parametrize(
    ("name", "cause", "sentences"),
    [
        ("pinned", Cause.PINNED, ("1 block of 4.00 MiB", "keeps 896 MiB", "clone()", "expandable_segments:True")),
        ("pinned_in_step", Cause.PINNED, ("1 block of 4.00 MiB", "of the same step, keeps 896 MiB", "final size")),
        ("pinned_in_step_and_later", Cause.PINNED, ("2 blocks (8.00 MiB)", "keep 892 MiB", "clone()")),
        ("sizes", Cause.SIZES, ("free segments, each too small for the 580 MiB requested", "final size")),
        ("streams", Cause.STREAMS, ("500 MiB of the 600 MiB", "for 5 other streams", "fewer streams")),
        (
            "graphs",
            Cause.GRAPHS,
            ("12 pools captured at", "60.0 MiB each", "is full after", "share one pool", "returns nothing of it"),
        ),
        ("mempools", Cause.POOLS, ("11 pools first used at", "60.0 MiB each", "returns nothing of it")),
        ("split_limit", Cause.SPLIT_LIMIT, ("set PYTORCH_ALLOC_CONF=max_split_size_mb:128 (without expandable",)),
    ],
)
def test_fragmentation_at_peak_names_line_cause_and_cure(
    traces: Path, name: str, cause: Cause, sentences: tuple[str, ...]
) -> None:
    trace = alloctrace.load(traces / f"{name}.alloctrace")
    peaks = json.loads((traces / f"{name}.json").read_text())

    [inefficiency] = find_inefficiencies(trace._recorded, "cuda:0")

    # The memory that live graphs need is not lost.
    needed = peaks["active"] + (60 * MIB if name == "graphs" else 0)
    assert (inefficiency.total_bytes, inefficiency.bytes) == (peaks["reserved"], peaks["reserved"] - needed)
    assert inefficiency.kind == "fragmentation" and inefficiency.unusable[0].cause == cause
    assert inefficiency.site is not None and inefficiency.site.line == marked_line(PROGRAM, name, "LINE")
    [finding] = [finding for finding in trace.diagnose() if finding.kind == "fragmentation"]
    text = " ".join(finding.sentences)
    assert all(part in text for part in sentences) and "empty_cache() after that returns it" not in text, text
    outlives_step = name in ("pinned", "pinned_in_step_and_later")
    assert ("clone()" in text) == outlives_step, "only blocks that outlive the step can be allocated earlier"


@pytest.mark.parametrize(
    ("name", "cure"),
    [
        ("rounding", "What helps: a finer roundup_power2_divisions, or no max_split_size_mb, whichever is set in"),
        ("remainders", "What helps: tensors of a multiple of 2 MiB"),
        ("tiny_requests", "What helps: one large tensor in place of many small ones."),
    ],
)
def test_cure_of_rounding_depends_on_sizes(traces: Path, name: str, cure: str) -> None:
    trace = alloctrace.load(traces / f"{name}.alloctrace")

    [finding] = [finding for finding in trace.diagnose() if finding.kind == "rounding"]

    assert finding.sentences[-1].startswith(cure) and finding.site is not None
    assert finding.site.line == marked_line(PROGRAM, name, "LINE")


def test_garbage_of_reference_cycles_is_found_with_its_line(traces: Path) -> None:
    [finding] = [
        finding
        for finding in alloctrace.load(traces / "garbage.alloctrace").diagnose()
        if finding.kind not in ("no_leak", "note")
    ]
    assert finding.kind == "garbage" and finding.site is not None
    assert finding.site.line == marked_line(PROGRAM, "garbage", "LINE")
    assert "gc.collect()" in " ".join(finding.sentences)
    assert finding.bytes == 12 * 20 * MIB


def test_fragmentation_names_the_large_request_before_small_ones_at_the_peak(traces: Path) -> None:
    trace = RecordedTrace(traces / "small_requests.alloctrace")

    [fragmentation] = find_inefficiencies(trace, "cuda:0")

    assert fragmentation.kind == "fragmentation" and fragmentation.request is not None
    assert fragmentation.request.requested_bytes == 95 * MIB
    assert fragmentation.request.site.line == marked_line(PROGRAM, "small_requests", "LINE")


def test_copies_of_a_long_autocast_region_are_found_with_its_line(traces: Path) -> None:
    trace = alloctrace.load(traces / "autocast.alloctrace")

    findings = trace.diagnose()

    [finding] = [finding for finding in findings if finding.kind == "autocast"]
    assert finding.site is not None and finding.site.line == marked_line(PROGRAM, "autocast", "LINE")
    # The copies of 12 models, and the models.
    assert finding.bytes >= 12 * 4 * (2 + 4) * MIB
    assert "96.1 MiB of copies" in finding.sentences[0] and "weights to which only the copies" in finding.sentences[0]
    assert "cache_enabled=False" in finding.sentences[-1]
    [growth] = [finding for finding in findings if finding.kind in ("leak", "inconclusive")]
    assert "autocast's cache" in " ".join((growth.title, *growth.sentences))
    assert finding.sentences[-1] in growth.sentences


def test_autocast_in_each_step_is_no_finding(traces: Path) -> None:
    findings = alloctrace.load(traces / "autocast_in_each_step.alloctrace").diagnose()

    assert [finding.kind for finding in findings] == ["no_leak"]


def test_cache_is_not_judged_in_recording_without_repeated_work(tmp_path: Path) -> None:
    program = """
import torch, pytorch_alloctrace as alloctrace
blocks = [torch.empty(64 << 20, dtype=torch.uint8, device="cuda") for _ in range(10)]
del blocks[2:6]
with alloctrace.enable("run.alloctrace", devices=("cuda",)):
    blocks.append(torch.empty(8 << 20, dtype=torch.uint8, device="cuda"))
"""

    trace = alloctrace.load(run_source(tmp_path, program, cuda=True) / "run.alloctrace")

    assert find_inefficiencies(trace._recorded, "cuda:0") == ()


def test_fragmentation_command_returns_nothing_of_live_graphs(traces: Path) -> None:
    text = " ".join(run_analyze(traces, "fragmentation", "graphs.alloctrace", "--at", "peak:reserved").split())

    assert "720 MiB wholly free (empty_cache() returns 0 B of it: the rest is in private pools" in text


def test_pending_is_not_found_when_last_interval_ends_within_free(
    traces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = RecordedTrace(traces / "healthy.alloctrace")
    timeline = trace.timeline

    def timeline_with_free(points: int, device: str) -> Table:
        """Return the timeline with a free between its two events at the end of the last interval."""
        table = timeline(points, device)
        allocated = np.where(np.arange(len(table)) < len(table) - 1, table["allocated_bytes"], 0)
        return table.assign(allocated_bytes=allocated, active_bytes=table["reserved_bytes"])

    monkeypatch.setattr(trace, "timeline", timeline_with_free)
    assert "pending" not in {inefficiency.kind for inefficiency in find_inefficiencies(trace, "cuda:0")}


@pytest.mark.parametrize("name", ["pending", "fragmentation"])
@pytest.mark.parametrize("share", [0.5, 0.98])
def test_inefficiency_is_reported_when_its_worst_position_is_compacted(
    traces: Path, name: str, share: float, tmp_path: Path
) -> None:
    complete = alloctrace.load(traces / f"{name}.alloctrace")
    alloctrace.compact(complete.path, tmp_path / "f.alloctrace", until=int(complete.integrity.events * share))
    compacted = alloctrace.load(tmp_path / "f.alloctrace")
    assert "compacted" in str(compacted.diagnose()).lower()
    [before], [after] = (
        [finding for finding in trace.diagnose() if finding.kind == name and finding.device == "cuda:0"]
        for trace in (complete, compacted)
    )
    assert after.bytes >= 0.9 * before.bytes
    assert after.site == before.site or (after.site is None and "compacted into sums" in " ".join(after.sentences))


def test_collections_of_corrupt_events_are_ignored(traces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = RecordedTrace(traces / "garbage.alloctrace")
    events = {"address": [-5, 3, 90], "seq": [10, 20, 80], "thread": [1, 1, 1]}
    table = Table({name: np.array(values, np.int64) for name, values in events.items()})
    monkeypatch.setattr(trace, "iter_events", lambda *arguments, **options: iter([table]))

    assert list_collections(trace) == [(3, 20, 1)]


MOSAIC = """
import torch
import pytorch_alloctrace as alloctrace

MIB = 1 << 20

def main():
    tiles = []
    for _ in range(40):
        image = torch.empty(60 * MIB, dtype=torch.uint8, device="cuda")
        del image
        tiles.append(torch.empty(37 * MIB, dtype=torch.uint8, device="cuda"))  # KEPT
        alloctrace.step()

with alloctrace.enable("t.alloctrace", devices=("cuda",)):
    main()
"""


def test_line_that_strands_memory_in_segments_mostly_in_use_is_named(tmp_path: Path) -> None:
    trace = alloctrace.load(run_source(tmp_path, MOSAIC, cuda=True) / "t.alloctrace")

    [finding] = [
        finding for finding in find_inefficiencies(trace._recorded, "cuda:0") if finding.kind == "fragmentation"
    ]

    assert finding.site is not None and "KEPT" in (finding.site.source or "")
    assert [part.cause for part in finding.unusable] == [Cause.PINNED]
