"""Traces that consist of one kind of record: every output stays within bounds of time and memory, since no cost grows
with the product of two counts. The slow tests have traces of 1 MB, on which a quadratic cost would be 64 times as high
as on the 125 KB of the others."""

from __future__ import annotations

from pathlib import Path

import every_output
import extreme_traces
import pytest
from test_hostile_traces import check_outputs

FULL_SIZE = (extreme_traces.MAX_BYTES, 60.0, every_output.MAX_MEMORY_BYTES + (300 << 20))
"""Bounds: bytes of the trace; CPU seconds of each output, 3 times those on an idle machine; bytes of memory with the
libraries."""
SMALL_SIZE = (extreme_traces.MAX_BYTES // 8, 10.0, 900 << 20)

SLOW_OUTPUTS = {
    "deep_stacks": ("verify", "export-collapsed"),
    "far_apart": ("verify", "export-parquet"),
    "free_sizes": ("verify",),
    "header_json": ("diagnose",),
    "library_blocks": ("diagnose-json",),
    "line_table": ("sites-json",),
    "modules": ("peak-module",),
    "names": ("leaks-json", "blocks"),
    "node_names": ("sites-json",),
    "nodes_of_threads": ("verify",),
    "failed_allocations": ("oom-json",),
    "settings": ("verify",),
    "empty_states": ("verify",),
    "contradictory_states": ("verify", "api"),
    "steps_of_many_devices": ("leaks-json",),
    "streams": ("fit",),
}
"""Traces that once took minutes or gigabytes, with the outputs that did."""

CHECKED_WITH_ALL_OUTPUTS = (
    *("broad_stacks", "deep_stacks", "free_sizes", "changing_free_sizes", "line_table", "live_blocks", "marks"),
    *("pools", "empty_states", "alternating_states", "contradictory_states"),
)
"""Traces for which the slow tests check every output. The others take half an hour; check them with every_output.py."""


def assert_within_bounds(
    tmp_path: Path, outputs: dict[str, tuple[str, ...]], size: int, seconds: float, memory: int
) -> None:
    paths = {tmp_path / f"{name}.alloctrace": [*names] for name, names in outputs.items()}
    for path in paths:
        path.write_bytes(extreme_traces.largest(path.stem, size))
        assert 0.9 * size < path.stat().st_size <= size, path.stem
    for report in check_outputs(paths):
        assert report["seconds"] < seconds, (report["trace"], report["slowest"])
        assert report["peak_bytes"] < memory, (report["trace"], report["largest"])


@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("bounds", [SMALL_SIZE, pytest.param(FULL_SIZE, marks=pytest.mark.slow("extremes"))])
def test_outputs_that_were_once_slow_stay_within_bounds(
    tmp_path: Path, part: int, bounds: tuple[int, float, int]
) -> None:
    # Explaining failed allocations takes up to a fixed time limit, which is above the small bounds.
    names = [name for name in SLOW_OUTPUTS if bounds == FULL_SIZE or name != "failed_allocations"]
    assert_within_bounds(tmp_path, {name: SLOW_OUTPUTS[name] for name in names[part::4]}, *bounds)


@pytest.mark.slow("extremes")
@pytest.mark.parametrize("name", CHECKED_WITH_ALL_OUTPUTS)
def test_every_output_of_extreme_trace_stays_within_bounds(tmp_path: Path, name: str) -> None:
    outputs = [output for output in every_output.all_outputs(tmp_path, tmp_path) if output != "serve"]
    assert_within_bounds(tmp_path, {name: tuple(outputs)}, *FULL_SIZE)
