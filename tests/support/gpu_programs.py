"""Five programs with the same events on every run, recorded by tools/gpu_check on a real GPU and by tests on the
simulated device. `python gpu_programs.py NAME TRACE` records one.

Seeds are fixed, and no shape depends on a computed value or on free memory. Switched off are cuDNN, which the simulated
device lacks; the thread of backward, which frees its last tensors while the program continues; and autocast's cache,
which is freed in the order of its addresses.
"""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import cuda_programs
import numpy as np
import pandas as pd
import torch
from frees import split_frees
from running import run_python

import pytorch_alloctrace as alloctrace

Event = tuple[str, int, int]
"""Kind, size, stream: streams are numbered in the order in which they first appear."""

KINDS = (
    *("alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap"),
    "oom",
)
MIB = 2**20
MAX_BYTES = 2048 * MIB
"""Bytes that out_of_memory may allocate. A complete device would also do, but devices differ in size."""


def transformer(steps: int) -> None:
    # bfloat16 needs no loss scaling, which skips a step whose gradient overflows.
    cuda_programs.transformer(steps, torch.bfloat16, cache_enabled=False)


def graphs(steps: int) -> None:
    # Captured matrix products need a cuBLAS handle, which cannot be created during a capture.
    torch.mm(torch.ones(8, 8, device="cuda"), torch.ones(8, 8, device="cuda"))
    cuda_programs.graphs(steps, checkpoints=False)


def out_of_memory(steps: int) -> None:
    """Fail at torch's limit, then in the driver with a size beyond any device; continue with the remaining memory."""
    _, total = torch.cuda.mem_get_info()
    # Half a MiB more: the limit is computed from a fraction, and must not coincide with a segment's end.
    torch.cuda.set_per_process_memory_fraction((MAX_BYTES + MIB // 2) / total)
    tensors: list[torch.Tensor] = []
    for step in range(steps):
        cuda_programs.exhaust(MAX_BYTES // (9 + step % 23) // 512 * 512, tensors)
        del tensors[step % 2 :: 2]
        tensors += [torch.empty(1000 + step, device="cuda") for _ in range(10)]
        if step % 4 == 3:
            tensors.clear()
    tensors.clear()
    torch.cuda.set_per_process_memory_fraction(1.0)
    for _ in range(2):
        tensors.append(torch.empty(30 * MIB, dtype=torch.uint8, device="cuda"))
        cuda_programs.exhaust(1 << 45, tensors)


PROGRAMS = {"mlp": 10, "transformer": 3, "convnet": 6, "graphs": 6, "out_of_memory": 12}
"""Programs and their steps: some hundred to two thousand events each, the size of the stored sequences."""


def run(name: str) -> None:
    torch.manual_seed(0)
    torch.backends.cudnn.enabled = False
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.autograd.set_multithreading_enabled(False)
    own = {"transformer": transformer, "graphs": graphs, "out_of_memory": out_of_memory}
    gc.disable()  # its timing depends on which modules were compiled before
    (own.get(name) or cuda_programs.PROGRAMS[name].run)(PROGRAMS[name])
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def sequence_of(events: pd.DataFrame) -> list[Event]:
    chosen = events[events["kind"].isin(KINDS) & (events["device"].astype(str) == "cuda:0")]
    streams = pd.factorize(chosen["stream"].to_numpy(dtype=np.uint64))[0]
    rows = zip(chosen["kind"].astype(str), chosen["requested_bytes"].astype(int), streams, strict=True)
    return [(kind, size, int(stream)) for kind, size, stream in rows]


def record_sequence(name: str, folder: Path, launcher: Sequence[str | Path] = (), timeout: float = 600) -> list[Event]:
    """Record a program in a separate process, started by `launcher` (tools/simcuda/run); return the sequence."""
    trace_path = (folder / f"{name}.alloctrace").resolve()
    command = [*map(str, launcher), sys.executable, str(Path(__file__).resolve()), name, str(trace_path)]
    process = run_python(folder, command, False, timeout, {})
    if process.returncode != 0:
        raise RuntimeError(f"{name} ended with status {process.returncode}:\n{process.stderr[-3000:]}")
    trace = alloctrace.load(trace_path)
    if trace.integrity.state != "complete" or trace.integrity.lost:
        raise RuntimeError(f"{name}: the trace is {trace.integrity}")
    return sequence_of(
        split_frees(trace.events(columns=("seq", "kind", "device", "address", "requested_bytes", "stream", "node_seq")))
    )


def format_events(sequence: Sequence[Event]) -> list[str]:
    """Return one string per event, as in a result file."""
    return [f"{kind} {size} {stream}" for kind, size, stream in sequence]


if __name__ == "__main__":
    name, trace = sys.argv[1:]
    warnings.simplefilter("ignore")
    with alloctrace.enable(trace, devices=("cuda",)):
        run(name)
