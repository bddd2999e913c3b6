"""The allocator's settings in a trace are those that the program set, also when it changes them while it runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from format_reader import TraceFile

import pytorch_alloctrace as alloctrace

CONFIG = 18
MIB = 1 << 20
PROGRAM = """
    import sys, torch, pytorch_alloctrace as alloctrace
    with alloctrace.enable("t.alloctrace"):
        kept = [torch.ones(5_000_000, device="cuda")]
        for settings in sys.argv[1:]:
            torch.cuda.memory._set_allocator_settings(settings)
            kept.append(torch.ones(5_000_000, device="cuda"))
    """


def settings_in(path: Path) -> list[dict[str, Any]]:
    trace = TraceFile(path)
    return [json.loads(trace.names.strings[event.size]) for _, event in trace.events() if event.kind == CONFIG]


def test_expandable_segments_are_told_without_a_warning(run_cuda_program: Callable, tmp_path: Path) -> None:
    """Inlined into other libraries, torch's own function for this setting says false and warns, which takes the GIL
    under the allocator's lock."""
    done = run_cuda_program(PROGRAM, PYTORCH_ALLOC_CONF="expandable_segments:True")
    assert [settings["expandable_segments"] for settings in settings_in(tmp_path / "t.alloctrace")] == [True]
    assert alloctrace.load(tmp_path / "t.alloctrace").kind_counts["segment_map"] > 0
    assert "Warning" not in done.stderr, done.stderr


def test_settings_are_told_again_when_they_change(run_cuda_program: Callable, tmp_path: Path) -> None:
    steps = ("max_split_size_mb:64", "max_split_size_mb:64", "roundup_power2_divisions:4,max_split_size_mb:128")
    run_cuda_program(PROGRAM, *steps)
    told = settings_in(tmp_path / "t.alloctrace")
    assert [settings["max_split_size"] for settings in told] == [(1 << 64) - 1, 64 * MIB, 128 * MIB]
    assert [settings["roundup_power2_divisions"] for settings in told] == [[0] * 16, [0] * 16, [4] * 16]
    assert not any(settings["expandable_segments"] for settings in told)
