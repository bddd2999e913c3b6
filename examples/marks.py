"""Helpers of the examples: the trace path, and marks that print the GPU memory that torch and the driver report."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import pytorch_alloctrace as alloctrace

MIB, GIB = 2**20, 2**30
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
"""Device of the examples that show the same on GPU and CPU."""


def trace_path(program: str) -> str:
    """Return the first argument, else the program's name with .alloctrace, in the working directory."""
    return sys.argv[1] if len(sys.argv) > 1 else f"{Path(program).stem}.alloctrace"


def mark(name: str, *, set_aside: int = 0) -> None:
    """Set a mark in the trace, for `--at mark:NAME`, and print torch's own figures, in MiB, for comparison.

    Args:
        name: Name of the mark.
        set_aside: Bytes to subtract from allocated memory and its peak.
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
    # With 15 digits nothing is rounded.
    print(f"{name:16}", *[f"{figure} {size / MIB:<9.15g}" for figure, size in figures.items()])
