"""Leaks from the outside: the verb and the table, on a CUDA device whose capacity is known and on the CPU."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pandas as pd
import pytest
from marked_programs import run_analyze
from running import needs_cuda_build

import pytorch_alloctrace as alloctrace

PROGRAM = """
import sys, time, torch, pytorch_alloctrace as alloctrace
device = sys.argv[1]
with alloctrace.enable(f"{device}.alloctrace", devices=(device,)):
    kept, tokens = [], torch.zeros(0, 1000, device=device)
    for number in range(60):
        kept.append(torch.ones(50_000, device=device))  # kept
        tokens = torch.cat([tokens, torch.zeros(1, 1000, device=device)])  # grows
        time.sleep(0.002)
        alloctrace.step()
with alloctrace.enable("healthy.alloctrace", devices=("cpu",)):
    for number in range(60):
        torch.ones(50_000)
        alloctrace.step()
"""
COLUMNS = (
    *("device", "filename", "line", "function", "source", "kind", "rate", "unit", "confidence", "bytes", "blocks"),
    *("bytes_at_end", "minor", "oldest_age", "forecast", "stack_id", "sites"),
)


@needs_cuda_build
def test_the_verb_and_the_table_on_cuda(run_cuda_program, tmp_path: Path) -> None:
    run_cuda_program(PROGRAM, "cuda", memory="2GiB")
    trace = alloctrace.load(tmp_path / "cuda.alloctrace")
    leaks = trace.leaks()
    assert tuple(leaks.columns) == COLUMNS
    assert list(leaks["kind"]) == ["survivors", "growing"]
    assert [source.partition("  # ")[2] for source in leaks["source"]] == ["kept", "grows"]
    # Allocated bytes: torch hands out multiples of 512.
    assert leaks["rate"][0] == 200_192 and leaks["rate"][1] == pytest.approx(4_000, abs=11)
    assert set(leaks["unit"]) == {"step"}
    assert (leaks["blocks"][0], leaks["bytes"][0], leaks["bytes_at_end"][0]) == (55, 55 * 200_192, 55 * 200_192)
    assert (leaks["blocks"][1], leaks["bytes"][1], leaks["oldest_age"][1]) == (1, 240_128, 1)
    for row in leaks.to_dict("records"):
        assert row["line"] in [frame.line for frame in trace.frames(row["stack_id"])]
        assert [site["line"] for site in row["sites"]] == [row["line"]] and 0.8 < row["confidence"] <= 1
    # The driver had used less than 1 GiB of 2 GiB; 200,192 bytes a step. A step takes no less than the shortest, and on
    # average no more than the whole recording shared among the 60: the first, which loads what torch needs, is longest.
    seconds = trace.steps()["time_ns"].diff() / 1e9
    shortest, average = seconds.min(), (trace.end_ns - trace.begin_ns) / 1e9 / 60
    assert 2**30 / 200_192 * shortest < leaks["forecast"][0] < 2**31 / 200_192 * average
    # 4,000 bytes a step; the steps of each are timed over other parts of the run.
    ratio = leaks["forecast"][1] / leaks["forecast"][0] / (200_192 / 4_000)
    longest = max(average, seconds.max())
    assert 0.99 * shortest / average < ratio < 1.01 * longest / shortest

    text = " ".join(run_analyze(tmp_path, "leaks", "cuda.alloctrace", "--fail", status=1).split())
    assert "LEAK program.py:7: +196 KiB per step" in text and "LEAK program.py:8: +3.9" in text
    assert "This buffer is replaced again and again by a larger one, never by a smaller one: 234 KiB" in text
    assert "cuda:0 is full in about" in text and "PEAK" not in text
    assert "and 1 more leak" in run_analyze(tmp_path, "leaks", "cuda.alloctrace", "--top", "1")

    rows = json.loads(run_analyze(tmp_path, "leaks", "cuda.alloctrace", "--json"))
    assert [row["line"] for row in rows] == list(leaks["line"]) and rows[0]["sites"][0]["bytes"] == 55 * 200_192
    table = pd.read_csv(io.StringIO(run_analyze(tmp_path, "leaks", "cuda.alloctrace", "--csv", "--fail", status=1)))
    assert table["rate"][0] == 200_192 and table["sites"][0].endswith(f"program.py:7 {55 * 200_192}")

    verdict = json.loads(run_analyze(tmp_path, "cuda.alloctrace", "--json"))
    assert [finding["leak_kind"] for finding in verdict["findings"]] == ["survivors", "growing"]
    assert verdict["findings"][0]["forecast_seconds"] == pytest.approx(leaks["forecast"][0])


def test_the_verb_on_the_cpu_and_without_a_leak(run_program, tmp_path: Path) -> None:
    run_program(PROGRAM, "cpu")
    leaks = alloctrace.load(tmp_path / "cpu.alloctrace").leaks(device="cpu")
    assert list(leaks["rate"]) == [200_000, 4_000]
    assert leaks["forecast"].notna().all()
    assert "is full after" not in run_analyze(tmp_path, "leaks", "cpu.alloctrace"), (
        "of the machine others take their part"
    )

    healthy = alloctrace.load(tmp_path / "healthy.alloctrace").leaks()
    assert healthy.empty and tuple(healthy.columns) == COLUMNS
    assert "OK  No leak found on cpu" in run_analyze(tmp_path, "leaks", "healthy.alloctrace", "--fail")
    assert json.loads(run_analyze(tmp_path, "leaks", "healthy.alloctrace", "--json", "--fail")) == []
    assert run_analyze(tmp_path, "leaks", "healthy.alloctrace", "--csv").split() == [",".join(COLUMNS)]
