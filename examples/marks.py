"""Shared by the examples: where the trace goes, and what torch and the driver report of the GPU memory at a mark."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import pytorch_alloctrace as alloctrace

MIB, GIB = 2**20, 2**30
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
"""For the examples that show the same on both."""


def trace_path(program: str) -> str:
    """The first argument, else the program's name with .alloctrace, in the working directory."""
    return sys.argv[1] if len(sys.argv) > 1 else f"{Path(program).stem}.alloctrace"


def mark(name: str, *, set_aside: int = 0) -> None:
    """Sets a mark in the trace, for `--at mark:NAME`, and prints torch's own figures, in MiB, to compare with.

    set_aside: bytes that are allocated and do not belong to what is shown.
    """
    alloctrace.mark(name)
    if not torch.cuda.is_available():
        return
    figures = {
        "allocated": torch.cuda.memory_allocated() - set_aside,
        "peak": torch.cuda.max_memory_allocated() - set_aside,
        "reserved": torch.cuda.memory_reserved(),
    }
    if torch.cuda.is_initialized():  # asking the driver would initialise CUDA
        free, total = torch.cuda.mem_get_info()
        figures["driver"] = total - free
    # 15 digits: enough that nothing is rounded.
    print(f"{name:16}", *[f"{word} {size / MIB:<9.15g}" for word, size in figures.items()])
