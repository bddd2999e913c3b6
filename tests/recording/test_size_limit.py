"""Recordings with max_bytes: file sizes, kills, stacks and leaks."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import core_probe
import pytest
from command_line import run_command
from running import ROOT, run_python

import pytorch_alloctrace as alloctrace

PROGRAM = ROOT / "tests/support/size_limit_programs.py"
MAX_MIB = 16
"""Size limit in MiB, below the package's minimum so that a trace is compacted within seconds."""


def record(folder: Path, *arguments: object, max_mib: int = MAX_MIB) -> tuple[Any, alloctrace.Trace]:
    """Run the program in a mode; return its own counts and its trace."""
    command = [sys.executable, str(PROGRAM), *map(str, arguments), str(max_mib)]
    run_python(folder, command, check=True, timeout=900, environment={})
    return json.loads((folder / "witness.json").read_text()), alloctrace.load(folder / "run.alloctrace")


def test_files_stay_within_limit_and_leak_is_found_when_compacted(tmp_path: Path) -> None:
    witness, trace = record(tmp_path, "run", 3_000_000)

    assert witness["compacted"] >= 2 and trace.integrity.compacted_until
    assert witness["largest"] <= MAX_MIB << 20 and not trace.integrity.bound_exceeded
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.alloctrace", "witness.json"]
    assert trace.integrity.state == "complete" and trace.integrity.lost == 0
    assert trace.integrity.compacted_events + trace.integrity.events == trace._recorded.end_seq
    allocations = trace.usage(by="function").set_index("function")["allocations"]
    assert allocations["allocate"] == 1000 * witness["steps"] and allocations["allocate_leak"] == witness["leaked"]
    assert len(trace.steps()) == witness["steps"]
    leaks = trace.leaks().to_frame()
    # Blocks of the last steps are not counted: they may still be freed.
    assert leaks["function"].tolist() == ["allocate_leak"] and 0.9 < leaks["blocks"].iloc[0] / witness["leaked"] <= 1
    assert trace.verify().ok
    # status() started before the first compaction.
    live = int(trace.live()["requested_bytes"].sum())
    assert witness["followed"] == {"cpu/requested_bytes": live, "steps": witness["steps"]}


def test_recording_stops_without_waiting_for_compaction(tmp_path: Path) -> None:
    """Stop during a compaction: disable() and SIGTERM, which has two seconds, waited for its end."""
    paths = [os.fsencode(tmp_path / name) for name in ("t.alloctrace", "t.alloctrace.spool")]
    assert core_probe.library().probe_stop_while_compacting(*paths) == 1


@pytest.mark.parametrize("kills", [4, pytest.param(60, marks=pytest.mark.slow("recording"))])
def test_committed_events_are_read_when_recording_with_limit_is_killed(tmp_path: Path, kills: int) -> None:
    command = [sys.executable, str(PROGRAM), "kill", str(kills), "20261123", str(MAX_MIB)]
    run_python(tmp_path, command, check=True, timeout=3000, environment={})

    witnesses = json.loads((tmp_path / "witness.json").read_text())
    compacted = in_compaction = 0
    for number, (count, was_compacting, size) in enumerate(witnesses):
        path = tmp_path / f"kill-{number}.alloctrace"
        trace = alloctrace.load(path)
        integrity = trace.integrity
        note = f"kill {number}: {count} counted, {integrity}"
        assert integrity.state == "complete" and integrity.lost == 0 and integrity.missing_events == 0, note
        assert integrity.spool_read and not integrity.ended and size <= MAX_MIB << 20, note
        allocations = trace.usage(by="function").set_index("function")["allocations"].get("allocate", 0)
        assert count <= allocations <= count + 1, f"{note}; {allocations} in the trace"
        assert integrity.compacted_events + integrity.events + integrity.uncommitted >= trace._recorded.end_seq, note
        compacted += integrity.compacted_until > 0
        in_compaction += was_compacting
        # finish() changes no count and leaves no other file.
        alloctrace.finish(path)
        assert sorted(file.name for file in tmp_path.glob(f"kill-{number}.*")) == [path.name]
        finished = alloctrace.load(path)
        assert finished.integrity.ended and finished._recorded.end_seq == trace._recorded.end_seq
        assert finished.usage(by="function").set_index("function")["allocations"].get("allocate", 0) == allocations
        path.unlink()
    assert compacted and in_compaction


def output_of(folder: Path, command: str) -> str:
    """Return a command's output for the trace as one line."""
    return " ".join(run_command(folder, [command, "run.alloctrace"]).stdout.split())


def test_live_blocks_are_recorded_when_they_exceed_max_bytes(tmp_path: Path) -> None:
    witness, trace = record(tmp_path, "live", 300_000, max_mib=10)

    assert trace.integrity.compacted_until and trace.integrity.bound_exceeded, trace.integrity
    assert trace.integrity.is_complete and trace.integrity.max_bytes == 10 << 20 and trace.integrity.lost == 0
    live = trace.live(at="end")
    assert len(live) >= witness["live"] and (live["requested_bytes"] == 256).sum() == witness["live"] * 15 // 16
    assert trace.verify().ok and "larger than max_bytes=10,485,760" in str(trace.integrity)
    assert "Its files are larger than max_bytes=10,485,760" in output_of(tmp_path, "leaks")


def test_new_stacks_keep_only_outer_frames_when_limit_is_reached(tmp_path: Path) -> None:
    count = 40_000
    witness, trace = record(tmp_path, "stacks", count)

    integrity = trace.integrity
    assert integrity.is_complete and integrity.lost == 0 and not integrity.bound_exceeded, integrity
    # Each of the count + made stacks has a frame of its own, and the limit has room for max_frames.
    max_frames = (MAX_MIB << 20) // 1024
    assert integrity.unknown_stacks > 0 and count + witness["made"] - max_frames < integrity.unknown_stacks
    sites = trace.usage(by="function").set_index("function")["allocations"]
    # No allocation is lost: those of truncated stacks count for the innermost recorded caller.
    assert sites.sum() == witness["tree"] + witness["made"] and sites["way"] + sites["stacks"] > witness["tree"]
    assert 0 < sites.filter(like="made_").sum() < witness["made"]
    assert trace.marks()["name"].tolist() in (["a name that comes late"], ["(one of too many names)"])
    assert "or its outer frames alone" in output_of(tmp_path, "verify")


@pytest.mark.parametrize(("keep", "pace", "fits"), [("1s", 300, True), ("1h", 5000, False)])
def test_single_events_of_keep_period_remain_when_they_fit(tmp_path: Path, keep: str, pace: int, fits: bool) -> None:
    witness, trace = record(tmp_path, "keep", keep, pace)

    integrity = trace.integrity
    assert integrity.compacted_until and integrity.is_complete and not integrity.bound_exceeded, integrity
    assert integrity.keep_ns == (1_000_000_000 if fits else 3_600_000_000_000) and integrity.keeps_less is not fits
    retained_ns = trace.end_ns - integrity.compacted_until_ns
    assert (retained_ns >= integrity.keep_ns) == fits, retained_ns
    allocations = trace.usage(by="function").set_index("function")["allocations"]
    assert 0 < len(trace.events(kinds=["alloc"])) < allocations["allocate"] == witness["allocations"]
    assert ("no room for the single events of the last" in output_of(tmp_path, "peak")) is not fits
