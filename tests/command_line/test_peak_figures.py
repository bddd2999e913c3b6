"""The peak of one trace in all outputs: the allocated bytes, torch's max_memory_allocated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from marked_programs import run_analyze

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.analysis.range_summary import summarize_range
from pytorch_alloctrace.report import units
from pytorch_alloctrace.report.diagnosis import RangeVerdict

PROGRAM = """\
import json
import torch
import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.callbacks.training import Training

training = Training("run.alloctrace", 3, {})
training.begin()
for number in range(8):
    kept = [torch.empty(3_000_000 + 700_001 * i, dtype=torch.uint8, device="cuda") for i in range(20)]
    kept += [torch.empty(77 + 13 * i, dtype=torch.uint8, device="cuda") for i in range(300)]
    training.end_step()
kept = kept[:5]
figures = {
    "peak": torch.cuda.max_memory_allocated(),
    "end": torch.cuda.memory_allocated(),
    "logged": training.numbers()["alloctrace/cuda:0/peak_allocated_bytes"],
}
training.end()
open("figures.json", "w").write(json.dumps(figures))
"""
TRACE = "run.alloctrace"


def test_all_outputs_have_the_same_peak_and_name_its_bytes(tmp_path: Path, run_cuda_program: Any) -> None:
    folder = tmp_path
    run_cuda_program(PROGRAM)
    figures = json.loads((folder / "figures.json").read_text())
    trace = alloctrace.load(folder / TRACE)
    recorded = trace._recorded
    size = f"{units.size(figures['peak'])} allocated"
    run_analyze(folder, "compact", TRACE, "--until", "end", "-o", "compacted.alloctrace")

    texts = {
        "diagnose": run_analyze(folder, TRACE),
        "markdown": run_analyze(folder, TRACE, "--markdown"),
        "peak": run_analyze(folder, "peak", TRACE),
        "annotate": run_analyze(folder, "annotate", "program.py", TRACE),
        "compacted": run_analyze(folder, "compacted.alloctrace"),
        "notebook": str(trace.diagnose()),
        "region": str(RangeVerdict("part", summarize_range(recorded, recorded.range(0, "end")))),
    }
    timeline = run_analyze(folder, "timeline", TRACE)
    data = json.loads(run_analyze(folder, TRACE, "--json"))
    ranks = json.loads(run_analyze(folder, "ranks", TRACE, "--json", "--device", "cuda"))

    requested = units.size(trace.peak().requested_bytes)
    assert requested != units.size(figures["peak"]), "the program's requests are rounded"
    assert {name for name, text in texts.items() if size not in " ".join(text.split())} == set()
    [line] = [line for line in timeline.splitlines() if line.split()[:1] == ["allocated"]]
    assert units.size(figures["peak"]) in line
    [device] = [device for device in data["devices"] if device["device"] == "cuda:0"]
    assert device["peak"]["allocated_bytes"] == max(device["live_bytes_over_time"]) == figures["peak"]
    assert device["end"]["allocated_bytes"] == figures["end"]
    assert [row["peak_bytes"] for row in ranks["ranks"]] == [figures["peak"]]
    assert figures["logged"] == trace.peak().bytes == figures["peak"]
    # Sums over lines are requested bytes.
    change = run_analyze(folder, "diff", TRACE, "--since", "0", "--until", "peak", "--device", "cuda:0")
    assert change.startswith(f"MORE  cuda:0: +{requested} requested")
