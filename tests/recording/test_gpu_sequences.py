"""Events on the simulated device, compared with those of real GPUs (tools/gpu_check, benchmarks/results/gpu-*.json)."""

from __future__ import annotations

import difflib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from gpu_programs import PROGRAMS, format_events, record_sequence
from running import ROOT, build_simulated_device, needs_cuda_build

RESULTS = sorted((ROOT / "benchmarks" / "results").glob("gpu-*.json"))


@needs_cuda_build
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_simulated_sequence_equals_that_of_real_gpu(path: Path, program: str, tmp_path: Path) -> None:
    import torch

    result = json.loads(path.read_text())
    assert not result["simulated"], "this file was recorded on the simulated device"
    if result["device"]["torch"].split(".")[:2] != torch.__version__.split(".")[:2]:
        pytest.skip(f"recorded with torch {result['device']['torch']}, this is {torch.__version__}")
    build_simulated_device()

    simulated = format_events(record_sequence(program, tmp_path, [str(ROOT / "tools/simcuda/run")]))
    changes = list(difflib.unified_diff(result["sequences"][program], simulated, "GPU", "simulated", lineterm="", n=1))

    assert not changes, "\n".join(changes[:30])


@needs_cuda_build
@pytest.mark.slow("simcuda")  # the test above records the same sequences, without the tool
def test_gpu_check_records_all_programs(tmp_path: Path) -> None:
    build_simulated_device()
    output = tmp_path / "gpu-simulated.json"
    command = [sys.executable, "tools/gpu_check.py", "--simulated", "--only", "device", "sequences", "--out", output]

    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400, check=False)

    assert process.returncode == 0, process.stderr
    simulated = json.loads(output.read_text())
    assert not simulated["failed"] and simulated["simulated"] and set(simulated["seconds"]) == {"device", "sequences"}
    assert simulated["device"]["name"] and simulated["device"]["torch"]
    assert simulated["device"]["driver"] == "simulated"
    events = {name: [line.split() for line in lines] for name, lines in simulated["sequences"].items()}
    assert set(events) == set(PROGRAMS)
    common = {"alloc", "free_requested", "free_completed", "segment_alloc", "segment_free"}
    assert all(common <= {kind for kind, _, _ in sequence} for sequence in events.values())
    assert ["oom", str(1 << 45)] in [event[:2] for event in events["out_of_memory"]]
    assert max(int(stream) for _, _, stream in events["graphs"]) >= 2, "no stream of a capture"
