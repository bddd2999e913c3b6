"""The command `alloctrace cost`: costs of recording on this machine, compared with other tools."""

from __future__ import annotations

PLAIN = "the program alone"
ALLOCTRACE, NO_STACKS = "alloctrace", "alloctrace, stacks='none'"
HISTORY, HISTORY_ALL = "torch history, stacks='python'", "torch history, stacks='all'"
TRACKER = "a tracker that does nothing"
PROFILER, MEMRAY = "torch.profiler", "memray"
RECORDERS = {
    "cuda": (PLAIN, ALLOCTRACE, NO_STACKS, HISTORY, HISTORY_ALL),
    "cpu": (PLAIN, ALLOCTRACE, NO_STACKS, PROFILER, MEMRAY),
}
"""Recorders by device: first the program alone, then alloctrace, then other tools."""
