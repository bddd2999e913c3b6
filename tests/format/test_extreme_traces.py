"""Traces of just under a megabyte that have as much as can be of one thing: every face answers within the bounds, for
no work grows with the product of two things of which there may be many."""

from __future__ import annotations

import json
from pathlib import Path

import every_face
import extreme_traces
import pytest
from test_hostile_traces import run_support

SECONDS = 60
"""Of the processor, for each face: on a machine that is busy with something else too, what takes 20 alone."""

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
    "refused_requests": ("oom-json",),
    "settings": ("verify",),
    "states_that_agree": ("verify",),
    "states_without_sense": ("verify", "api"),
    "steps_of_many_devices": ("leaks-json",),
    "streams": ("fit",),
}
"""Those that took minutes or gigabytes, and the faces that showed it first."""

SHOWN_TO_ALL = (
    "broad_stacks",
    "deep_stacks",
    "free_sizes",
    "free_sizes_that_change",
    "line_table",
    "live_blocks",
    "marks",
    "pools",
    "states_that_agree",
    "states_that_differ",
    "states_without_sense",
)
"""Those that every face is shown in the slow tests. For the others that is done by hand, with every_face.py: together
they take half an hour."""


def assert_faces_answer(tmp_path: Path, name: str, faces: tuple[str, ...]) -> None:
    path = tmp_path / f"{name}.alloctrace"
    path.write_bytes(extreme_traces.largest(name))
    assert 900_000 < path.stat().st_size <= extreme_traces.MOST_BYTES
    shown = json.loads(run_support("every_face.py", path, FACES=",".join(faces)))
    assert shown["faults"] == [] and set(shown["outcomes"]) == set(faces)
    assert shown["peak_bytes"] < every_face.MEMORY + (300 << 20)  # with the libraries
    assert shown["seconds"] < SECONDS


@pytest.mark.parametrize("name", FOUND)
def test_what_was_found(tmp_path: Path, name: str) -> None:
    assert_faces_answer(tmp_path, name, FOUND[name])


@pytest.mark.slow("extremes")
@pytest.mark.parametrize("name", SHOWN_TO_ALL)
def test_every_face_of_every_extreme(tmp_path: Path, name: str) -> None:
    faces = [face for face in every_face.all_faces(tmp_path, tmp_path) if face != "serve"]
    assert_faces_answer(tmp_path, name, tuple(faces))
