"""Allocator settings in a trace, including changes by the program."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from format_reader import TraceFile
from running import ROOT

import pytorch_alloctrace as alloctrace

CONFIG = 18
MIB = 1 << 20
PROGRAM = """
    import sys, torch, pytorch_alloctrace as alloctrace
    with alloctrace.enable("t.alloctrace"):
        tensors = [torch.ones(5_000_000, device="cuda")]
        for settings in sys.argv[1:]:
            torch.cuda.memory._set_allocator_settings(settings)
            tensors.append(torch.ones(5_000_000, device="cuda"))
    """


def read_settings(path: Path) -> list[dict[str, Any]]:
    trace = TraceFile(path)
    return [json.loads(trace.names.strings[event.size]) for _, event in trace.events() if event.kind == CONFIG]


def test_expandable_segments_are_recorded_without_a_warning(run_cuda_program: Callable, tmp_path: Path) -> None:
    """Check that torch's inlined function is not called: it returns False, and its warning takes the GIL."""
    process = run_cuda_program(PROGRAM, PYTORCH_ALLOC_CONF="expandable_segments:True")

    assert [settings["expandable_segments"] for settings in read_settings(tmp_path / "t.alloctrace")] == [True]
    assert alloctrace.load(tmp_path / "t.alloctrace")._recorded.kind_counts["segment_map"] > 0
    assert "Warning" not in process.stderr, process.stderr


def test_settings_are_recorded_again_when_they_change(run_cuda_program: Callable, tmp_path: Path) -> None:
    steps = ("max_split_size_mb:64", "max_split_size_mb:64", "roundup_power2_divisions:4,max_split_size_mb:128")
    # The first library to use this setting creates its object: ours would only read the environment.
    run_cuda_program(PROGRAM, *steps, "graph_capture_record_stream_reuse:True")

    *reported, last = read_settings(tmp_path / "t.alloctrace")
    reuse = [settings["graph_capture_record_stream_reuse"] for settings in (*reported, last)]
    assert reuse == [False, False, False, True]
    assert [settings["max_split_size"] for settings in reported] == [(1 << 64) - 1, 64 * MIB, 128 * MIB]
    assert [settings["roundup_power2_divisions"] for settings in reported] == [[0] * 16, [0] * 16, [4] * 16]
    assert not any(settings["expandable_segments"] for settings in reported)


def test_settings_are_recorded_before_a_failed_allocation(run_cuda_program: Callable, tmp_path: Path) -> None:
    """Change settings that affect no small block but explain a failed allocation."""
    run_cuda_program("""
        import torch, pytorch_alloctrace as alloctrace
        with alloctrace.enable("t.alloctrace"):
            torch.ones(10, device="cuda")
            torch.cuda.memory._set_allocator_settings("max_split_size_mb:64")
            tensor = torch.ones(10, device="cuda")
            try:
                torch.empty(1 << 50, device="cuda")
            except torch.OutOfMemoryError:
                pass
        """)
    recorded_settings = read_settings(tmp_path / "t.alloctrace")
    assert [settings["max_split_size"] for settings in recorded_settings] == [(1 << 64) - 1, 64 * MIB]


ROUNDING = ([0] * 16, [4] * 16, [8, *[4] * 15], *([8, 4, 4, 16, *[4] * 11, last] for last in (4, 2, 2)))
"""Rounding divisions that rounding_divisions_probe.cpp sets, in order."""


@pytest.mark.parametrize("option", [(), ("-DBY_VALUE",)], ids=["by reference", "by value"])
def test_change_of_rounding_is_detected_by_reference_and_by_value(tmp_path: Path, option: tuple[str, ...]) -> None:
    """Check both ways, since torch 2.9 returns a copy. The hook compares at every allocation and must not allocate."""
    probe = tmp_path / "probe"
    source = ROOT / "tests/support/rounding_divisions_probe.cpp"
    subprocess.run(["g++", "-std=c++20", "-Wall", "-Wextra", "-Werror", *option, source, "-o", probe], check=True)
    printed = subprocess.run([probe], capture_output=True, text=True, check=True).stdout

    lines = [[int(field) for field in line.split()] for line in printed.splitlines()]
    assert [line[2:-1] for line in lines] == list(ROUNDING)
    assert [line[0] for line in lines] == [0, 1, 1, 1, 1, 0], "detected changes"
    assert [line[1] for line in lines] == [1] * 6, "a change was reported though nothing changed"
    assert [line[-1] for line in lines] == [0] * 6, "memory was allocated"
