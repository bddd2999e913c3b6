"""The simulated device makes torch allocate as a real GPU does: the same events, of the same kind, size and stream.

benchmarks/results/gpu-*.json is what tools/gpu_check recorded on real GPUs.
"""

from __future__ import annotations

import difflib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gpu_programs import PROGRAMS, from_text
from running import ROOT, build_simulated_device, needs_cuda_build

RESULTS = sorted((ROOT / "benchmarks" / "results").glob("gpu-*.json"))

pytestmark = needs_cuda_build


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The result of gpu_check on the simulated device."""
    build_simulated_device()
    out = tmp_path_factory.mktemp("simulated") / "gpu-simulated.json"
    command = [sys.executable, "tools/gpu_check.py", "--simulated", "--only", "device", "sequences", "--out", out]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(out.read_text())
    return result


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_a_real_gpu_allocates_as_the_simulated_one(path: Path, simulated: dict[str, Any]) -> None:
    import torch

    result = json.loads(path.read_text())
    assert not result["simulated"], "this file was made on the simulated device"
    if result["device"]["torch"].split(".")[:2] != torch.__version__.split(".")[:2]:
        pytest.skip(f"recorded with torch {result['device']['torch']}, this is {torch.__version__}")
    for name in PROGRAMS:
        gpu, ours = result["sequences"][name], simulated["sequences"][name]
        different = list(difflib.unified_diff(gpu, ours, "GPU", "simulated", lineterm="", n=1))
        assert not different, "\n".join([f"{name}:", *different[:30]])


def test_gpu_check_records_all_programs(simulated: dict[str, Any]) -> None:
    assert not simulated["failed"] and simulated["simulated"] and set(simulated["seconds"]) == {"device", "sequences"}
    assert simulated["device"]["name"] and simulated["device"]["torch"]
    assert simulated["device"]["driver"] == "simulated"
    events = {name: from_text(lines) for name, lines in simulated["sequences"].items()}
    assert set(events) == set(PROGRAMS)
    kinds = {name: {kind for kind, _, _ in found} for name, found in events.items()}
    common = {"alloc", "free_requested", "free_completed", "segment_alloc", "segment_free"}
    assert all(common <= found for found in kinds.values()), kinds
    assert "oom" in kinds["out_of_memory"] and (1 << 45) in {size for _, size, _ in events["out_of_memory"]}
    assert max(stream for _, _, stream in events["graphs"]) >= 2, "captures have a stream of their own"
