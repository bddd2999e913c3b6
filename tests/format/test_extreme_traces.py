"""Traces that have as much as can be of one thing: every face answers within the bounds, for no work grows with the
product of two things of which there may be many. The slow tests have a megabyte of it, which takes a product sixty-four
times as long as the eighth of the others."""

from __future__ import annotations

from pathlib import Path

import every_output
import extreme_traces
import pytest
from test_hostile_traces import show_to_faces

WHOLE = (extreme_traces.MOST_BYTES, 60.0, every_output.MEMORY + (300 << 20))
"""Bytes of a trace; of the processor's seconds, for each face, and on a busy machine, what takes 20 alone; bytes of
memory, with the libraries."""
EIGHTH = (extreme_traces.MOST_BYTES // 8, 10.0, 900 << 20)

FOUND = {
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
    "states_that_agree": ("verify",),
    "states_without_sense": ("verify", "api"),
    "steps_of_many_devices": ("leaks-json",),
    "streams": ("fit",),
}
"""Those that took minutes or gigabytes, and the faces that showed it first."""

SHOWN_TO_ALL = (
    *("broad_stacks", "deep_stacks", "free_sizes", "free_sizes_that_change", "line_table", "live_blocks", "marks"),
    *("pools", "states_that_agree", "states_that_differ", "states_without_sense"),
)
"""Those that every face is shown in the slow tests. For the others that is done by hand, with every_output.py: together
they take half an hour."""


def assert_faces_answer(
    tmp_path: Path, faces: dict[str, tuple[str, ...]], size: int, seconds: float, memory: int
) -> None:
    paths = {tmp_path / f"{name}.alloctrace": [*names] for name, names in faces.items()}
    for path in paths:
        path.write_bytes(extreme_traces.largest(path.stem, size))
        assert 0.9 * size < path.stat().st_size <= size, path.stem
    for shown in show_to_faces(paths):
        assert shown["seconds"] < seconds, (shown["trace"], shown["slowest"])
        assert shown["peak_bytes"] < memory, (shown["trace"], shown["largest"])


@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("bounds", [EIGHTH, pytest.param(WHOLE, marks=pytest.mark.slow("extremes"))])
def test_faces_that_took_minutes_or_gigabytes_answer_within_the_bounds(
    tmp_path: Path, part: int, bounds: tuple[int, float, int]
) -> None:
    # As many failed allocations are explained as there is time for: as long for any number of them.
    names = [name for name in FOUND if bounds == WHOLE or name != "failed_allocations"]
    assert_faces_answer(tmp_path, {name: FOUND[name] for name in names[part::4]}, *bounds)


@pytest.mark.slow("extremes")
@pytest.mark.parametrize("name", SHOWN_TO_ALL)
def test_every_face_of_every_extreme(tmp_path: Path, name: str) -> None:
    faces = [face for face in every_output.all_faces(tmp_path, tmp_path) if face != "serve"]
    assert_faces_answer(tmp_path, {name: tuple(faces)}, *WHOLE)
