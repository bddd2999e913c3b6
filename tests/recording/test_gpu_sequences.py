"""Events on the simulated device, compared with those of real GPUs (tools/gpu_check, benchmarks/results/gpu-*.json)."""

from __future__ import annotations

import difflib
import json
from pathlib import Path

import pytest
from gpu_programs import PROGRAMS, as_text, recorded
from running import ROOT, build_simulated_device, needs_cuda_build

RESULTS = sorted((ROOT / "benchmarks" / "results").glob("gpu-*.json"))


@needs_cuda_build
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_sequence_of_a_real_gpu_equals_the_simulated_one(path: Path, program: str, tmp_path: Path) -> None:
    import torch

    result = json.loads(path.read_text())
    assert not result["simulated"], "this file was made on the simulated device"
    if result["device"]["torch"].split(".")[:2] != torch.__version__.split(".")[:2]:
        pytest.skip(f"recorded with torch {result['device']['torch']}, this is {torch.__version__}")
    build_simulated_device()
    ours = as_text(recorded(program, tmp_path, [str(ROOT / "tools/simcuda/run")]))
    different = list(difflib.unified_diff(result["sequences"][program], ours, "GPU", "simulated", lineterm="", n=1))
    assert not different, "\n".join(different[:30])
