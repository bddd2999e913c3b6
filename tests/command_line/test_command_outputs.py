"""Text, JSON, CSV and exit statuses of `leaks` and of commands on replayed memory, on a CUDA device of known capacity,
compared with the tables of the Python API and with torch's snapshot."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pandas as pd
import pytest
from marked_programs import run_analyze

import pytorch_alloctrace as alloctrace

LEAKING_PROGRAM = """
import time, torch, pytorch_alloctrace as alloctrace
device = "cuda"
with alloctrace.enable("cuda.alloctrace", devices=(device,)):
    kept, tokens = [], torch.zeros(0, 1000, device=device)
    for number in range(60):
        kept.append(torch.ones(50_000, device=device))  # kept
        tokens = torch.cat([tokens, torch.zeros(1, 1000, device=device)])  # grows
        time.sleep(0.002)
        alloctrace.step()
"""
MIB = 2**20
COLUMNS = (
    *("device", "filename", "line", "function", "source", "leak_kind", "bytes_per_unit", "unit", "confidence"),
    *("allocated_bytes", "blocks", "allocated_bytes_at_end", "minor", "oldest_age", "forecast_seconds", "stack_id"),
    *("holder", "holder_path", "no_holder", "sites"),
)


def test_leaks_on_cuda_match_in_table_text_json_and_csv(run_cuda_program, tmp_path: Path) -> None:
    run_cuda_program(LEAKING_PROGRAM, memory="2GiB")
    trace = alloctrace.load(tmp_path / "cuda.alloctrace")
    leaks = trace.leaks().to_frame()
    assert tuple(leaks.columns) == COLUMNS
    assert list(leaks["leak_kind"]) == ["survivors", "growing"]
    assert [source.partition("  # ")[2] for source in leaks["source"]] == ["kept", "grows"]
    # Allocated bytes: torch rounds up to multiples of 512.
    assert leaks["bytes_per_unit"][0] == 200_192 and leaks["bytes_per_unit"][1] == pytest.approx(4_000, abs=11)
    assert set(leaks["unit"]) == {"step"}
    sizes = leaks["allocated_bytes"]
    assert (leaks["blocks"][0], sizes[0], leaks["allocated_bytes_at_end"][0]) == (55, 55 * 200_192, 55 * 200_192)
    assert (leaks["blocks"][1], sizes[1], leaks["oldest_age"][1]) == (1, 240_128, 1)
    for row in leaks.to_dict("records"):
        assert row["line"] in [frame.line for frame in trace.frames(row["stack_id"])]
        assert [site["line"] for site in row["sites"]] == [row["line"]] and 0.8 < row["confidence"] <= 1
    # The driver had used less than 1 GiB of 2 GiB; a step adds 200,192 bytes. The duration of a step is bounded by the
    # shortest step and by the recording's duration divided by 60: the first step loads libraries and is the longest.
    seconds = trace.steps()["time_ns"].diff() / 1e9
    shortest, average = seconds.min(), (trace.end_ns - trace.begin_ns) / 1e9 / 60
    assert 2**30 / 200_192 * shortest < leaks["forecast_seconds"][0] < 2**31 / 200_192 * average
    # 4,000 bytes a step, twice while the buffer is copied; the two forecasts time steps in different parts of the run.
    ratio = leaks["forecast_seconds"][1] / leaks["forecast_seconds"][0] / (200_192 / 4_000 / 2)
    longest = max(average, seconds.max())
    assert 0.99 * shortest / average < ratio < 1.01 * longest / shortest

    text = run_analyze(tmp_path, "leaks", "cuda.alloctrace", "--top", "1", "--fail", status=1)
    assert "cuda:0 is full in about" in " ".join(text.split()) and "and 1 more leak" in text
    text = run_analyze(tmp_path, "leaks", "cuda.alloctrace", "--fail", status=1)
    assert "cuda:0 is full at the latest in about" in " ".join(text.split())  # the buffer

    rows = json.loads(run_analyze(tmp_path, "leaks", "cuda.alloctrace", "--json"))["rows"]
    assert [row["line"] for row in rows] == list(leaks["line"]) and rows[0]["sites"][0][
        "allocated_bytes"
    ] == 55 * 200_192
    table = pd.read_csv(io.StringIO(run_analyze(tmp_path, "leaks", "cuda.alloctrace", "--csv", "--fail", status=1)))
    assert table["bytes_per_unit"][0] == 200_192 and table["sites"][0].endswith(f"program.py:7 {55 * 200_192}")

    verdict = json.loads(run_analyze(tmp_path, "cuda.alloctrace", "--json"))
    assert [finding["leak_kind"] for finding in verdict["findings"]] == ["survivors", "growing"]
    assert verdict["findings"][0]["forecast_seconds"] == pytest.approx(leaks["forecast_seconds"][0])


MEMORY_PROGRAM = """
import json, torch, pytorch_alloctrace as alloctrace
session = alloctrace.enable("run.alloctrace", devices=("cuda",))
kept = [torch.empty(n * 1_000_000, dtype=torch.uint8, device="cuda") for n in (1, 3, 15)]
alloctrace.mark("kept")
with open("kept.json", "w") as file:
    json.dump(torch.cuda.memory_snapshot(), file)
del kept[1]
torch.empty(40_000_000, dtype=torch.uint8, device="cuda")
alloctrace.step()
session.snapshot()
alloctrace.disable()
"""


def test_memory_commands_on_cuda_match_torch_snapshot(run_cuda_program, tmp_path: Path) -> None:
    run_cuda_program(MEMORY_PROGRAM)
    snapshot = json.loads((tmp_path / "kept.json").read_text())
    segments = json.loads(run_analyze(tmp_path, "segments", "run.alloctrace", "--at", "mark:kept", "--json"))["rows"]
    assert [(row["address"], row["total_bytes"], row["requested_bytes"]) for row in segments] == [
        (row["address"], row["total_size"], row["requested_size"])
        for row in sorted(snapshot, key=lambda row: row["address"])
    ]
    # Options may also precede the trace.
    blocks = pd.read_csv(io.StringIO(run_analyze(tmp_path, "blocks", "--at", "mark:kept", "--csv", "run.alloctrace")))
    used = blocks[blocks["state"] == "active_allocated"]
    assert sorted(used["requested_bytes"]) == [1_000_000, 3_000_000, 15_000_000]
    assert len(blocks) == sum(len(row["blocks"]) for row in snapshot)
    assert "kept = [torch.empty" in run_analyze(tmp_path, "blocks", "run.alloctrace", "--at", "mark:kept")
    first_rows = json.loads(run_analyze(tmp_path, "blocks", "run.alloctrace", "--at", "0", "--json"))["rows"]
    assert 15_000_000 not in [row["requested_bytes"] for row in first_rows]
    peak_rows = json.loads(run_analyze(tmp_path, "segments", "run.alloctrace", "--at", "peak", "--json"))["rows"]
    assert max(row["total_bytes"] for row in peak_rows) == 40 * MIB

    # In every output format --top selects the largest rows of each device.
    block_rows = blocks.to_dict("records")
    for command, size, table in (("segments", "total_bytes", segments), ("blocks", "block_bytes", block_rows)):
        options = (command, "run.alloctrace", "--at", "mark:kept")
        outputs = [
            json.loads(run_analyze(tmp_path, *options, "--json", "--top", "2"))["rows"],
            pd.read_csv(io.StringIO(run_analyze(tmp_path, *options, "--csv", "--top", "2"))).to_dict("records"),
        ]
        used = [row for row in table if row.get("state") != "inactive"]
        expected = sorted(sorted(used, key=lambda row: -row[size])[:2], key=lambda row: row["address"])
        for rows in outputs:
            assert [row["address"] for row in rows] == [row["address"] for row in expected], command
        assert run_analyze(tmp_path, *options, "--json", "--top", "0") == run_analyze(tmp_path, *options, "--json")

    timeline = pd.DataFrame(
        json.loads(run_analyze(tmp_path, "timeline", "run.alloctrace", "--points", "50", "--json"))["rows"]
    )
    assert timeline["reserved_bytes_max"].max() == sum(row["total_size"] for row in snapshot) + 40 * MIB
    assert timeline["allocated_bytes"].iloc[-1] < timeline["allocated_bytes_max"].max()
    later = json.loads(run_analyze(tmp_path, "timeline", "run.alloctrace", "--since", "mark:kept", "--json"))["rows"]
    assert 0 < len(later) < 2000

    verified = json.loads(run_analyze(tmp_path, "verify", "run.alloctrace", "--json"))
    assert verified["ok"] and verified["states"] == verified["agreeing"] == 2
    data = (tmp_path / "run.alloctrace").read_bytes()
    (tmp_path / "cut.alloctrace").write_bytes(data[: len(data) // 2])
    text = run_analyze(tmp_path, "verify", "cut.alloctrace", status=1)
    assert text.startswith("INCOMPLETE  truncated") and "FOUND" in text


PEAKS = """
import torch, pytorch_alloctrace as alloctrace
torch.save(torch.zeros(25 << 20), "weights.pt")
with alloctrace.enable("loaded.alloctrace", devices=("cuda",)):
    weights = torch.load("weights.pt", map_location="cuda")  # loads
del weights
with alloctrace.enable("trained.alloctrace", devices=("cuda",)):
    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(24))).cuda()
    for _ in range(3):
        model(torch.zeros(32768, 256, device="cuda")).square().mean().backward()
"""


def test_first_screen_says_what_lowers_a_peak_of_loaded_tensors_or_activations(
    run_cuda_program, tmp_path: Path
) -> None:
    run_cuda_program(PEAKS, memory="2GiB")
    loaded, trained = (" ".join(run_analyze(tmp_path, f"{name}.alloctrace").split()) for name in ("loaded", "trained"))
    assert "100 MiB of it was loaded from files at" in loaded and "Activations" not in loaded
    assert "Activations make this peak." in trained and "loaded from files" not in trained
