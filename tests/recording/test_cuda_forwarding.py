"""Forwarding of all allocator methods, and equal answers of torch with and without tracing."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from cuda_virtual_methods import find_forwarding_errors, parse_release, select_release, virtual_methods
from running import ROOT, needs_cuda_build, run_python, with_cuda

import pytorch_alloctrace as alloctrace

HEADERS = (
    "c10/core/Allocator.h",
    "c10/core/CachingDeviceAllocator.h",
    "c10/cuda/CUDACachingAllocator.h",
    "ATen/core/CachingHostAllocator.h",
)
# torch's class; our source and class; minimum number of methods over the supported releases of torch.
FORWARDED = [
    ("CUDAAllocator", "csrc/torch/cuda/allocator.cpp", "ForwardingAllocator", 40),
    ("HostAllocator", "csrc/torch/cuda/pinned_allocator.cpp", "PinnedAllocator", 10),
]


def installed_headers() -> list[str]:
    torch = importlib.util.find_spec("torch")
    include = Path(str(torch.origin)).parent / "include"
    return [(include / name).read_text() for name in HEADERS]


def our_source(path: str) -> str:
    """Return torch_release.h, preprocessed for the installed torch, and one of our sources."""
    release = parse_release(importlib.metadata.version("torch"))
    return select_release((ROOT / "csrc/torch/cuda/torch_release.h").read_text(), release) + (ROOT / path).read_text()


@needs_cuda_build
@pytest.mark.parametrize(("base", "source", "our_class", "min_methods"), FORWARDED)
def test_every_virtual_method_is_forwarded(base: str, source: str, our_class: str, min_methods: int) -> None:
    methods = virtual_methods(installed_headers(), base)
    assert len(methods) >= min_methods, sorted(methods)
    problems = find_forwarding_errors(installed_headers(), base, our_source(source), our_class)
    assert not problems, "\n".join(problems)


SETTINGS = {
    "expandable": {"PYTORCH_ALLOC_CONF": "expandable_segments:True"},
    "cudaMallocAsync": {"PYTORCH_ALLOC_CONF": "backend:cudaMallocAsync"},
    "without caching": {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
}


def run_observed(directory: Path, mode: str, environment: dict[str, str]) -> list[tuple[str, Any]]:
    """Return the answers that cuda_memory_queries.py prints, by subject."""
    program = [sys.executable, str(ROOT / "tests/support/cuda_memory_queries.py"), mode, "t.alloctrace"]
    process = run_python(directory, with_cuda(program, "8GiB", 2), True, 600, environment)
    fields = [line.split("\t") for line in process.stdout.splitlines()]
    return [(subject, json.loads(answer)) for subject, answer in fields]


@needs_cuda_build
@pytest.mark.parametrize("name", SETTINGS)
def test_program_gets_the_same_answers_when_traced(tmp_path: Path, name: str) -> None:
    # "late" traces two ranges in the middle of the run.
    modes = ("traced", "late") if name == "expandable" else ("traced",)
    untraced, *answers = (run_observed(tmp_path, mode, SETTINGS[name]) for mode in ("plain", *modes))

    # Most subjects must succeed: otherwise, the comparison would be of error messages.
    failed = [name for name, answer in untraced if isinstance(answer, list) and str(answer[:1]).endswith("Error']")]
    assert len(untraced) == 17 and len(failed) <= 5, failed
    for mode, traced in zip(modes, answers, strict=True):
        assert traced == untraced, mode
    traces = [alloctrace.load(path) for path in sorted(tmp_path.glob("*.alloctrace"))]
    assert len(traces) == 1 + 2 * ("late" in modes)
    for trace in traces:
        assert trace.integrity.state == "complete" and trace.integrity.lost == 0
        assert trace.verify().missed_frees == 0 and trace._recorded.kind_counts["alloc"] > 100


def test_cuda_stays_uninitialised_when_tracing_starts_and_ends(run_cuda_program, tmp_path: Path) -> None:
    """Check that a program may fork after enable(), and that its children may use CUDA."""
    process = run_cuda_program(
        """
        import os, sys, torch, pytorch_alloctrace as alloctrace
        from torch.utils.data import DataLoader, TensorDataset
        def untouched():
            log = os.environ.get("SIMCUDA_LOG")
            return (not torch.cuda.is_initialized() and not torch.cuda._is_in_bad_fork()
                    and not (log and os.path.exists(log) and open(log).read()))
        def in_child(use):
            process = os.fork()
            if process == 0:
                try:
                    use()
                    os._exit(0)
                except RuntimeError as error:
                    os._exit(7 if "Cannot re-initialize CUDA in forked subprocess" in str(error) else 8)
            return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        def use_cuda():
            assert torch.ones(1000, device="cuda").cpu().sum() >= 0 and not alloctrace.is_enabled()
        def trace_own():
            with alloctrace.enable("child.alloctrace"): use_cuda.__globals__["torch"].ones(1000, device="cuda")
        assert untouched()
        session = alloctrace.enable("t.alloctrace")
        alloctrace.step(); alloctrace.mark("here"); session.flush(); torch.cuda.memory_stats()
        assert session.snapshot() is False
        import torch.distributed, torch.utils.checkpoint
        assert untouched(), "enable() or a later call initialised CUDA"
        data = TensorDataset(torch.arange(64.0))
        assert sum(batch[0].sum().item() for batch in DataLoader(data, batch_size=8, num_workers=2)) == 2016
        assert untouched()
        assert in_child(use_cuda) == 0 and in_child(trace_own) == 0
        log = os.environ.get("SIMCUDA_LOG")
        if log and os.path.exists(log): os.remove(log)  # written by the children; a real driver has no log
        alloctrace.disable()
        assert untouched(), "disable() initialised CUDA"
        session = alloctrace.enable("u.alloctrace")
        assert untouched()
        for batch in DataLoader(data, batch_size=8, num_workers=2): batch[0].cuda()
        tensor = torch.ones(5000, device="cuda")
        assert torch.cuda.is_initialized() and session.snapshot()
        for batch in DataLoader(data, batch_size=8, num_workers=2, pin_memory=True): batch[0].cuda()
        # As without tracing, a child of a process that uses CUDA cannot use it; its end leaves the trace intact.
        assert in_child(use_cuda) == 7 and in_child(lambda: tensor.__class__) == 0
        alloctrace.disable()
        """,
        SIMCUDA_LOG=str(tmp_path / "driver.log"),
    )

    assert "simcuda" not in process.stderr, process.stderr
    first, second, child = (alloctrace.load(tmp_path / f"{name}.alloctrace") for name in ("t", "u", "child"))
    assert not any(device.startswith("cuda") for device in first.devices)
    assert {"cuda:0", "cpu"} <= set(second.devices) and "cuda:0" in child.devices
    for trace in (first, second, child):
        assert trace.integrity.state == "complete" and trace.verify().missed_frees == 0
