"""The examples that run on every device, on the CPU. test_examples.py has them on a simulated GPU."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from example_checks import check_between_lines, check_formula, check_saved_by_module, check_views
from running import ROOT, run_python

CPU = "cpu"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run as a user does, one after another."""
    made = tmp_path_factory.mktemp("examples_on_cpu")
    for name in ("between_lines", "formula", "saved_by_module", "views"):
        command = [sys.executable, str(ROOT / f"examples/{name}.py")]
        done = run_python(made, command, True, 600, {"CUDA_VISIBLE_DEVICES": ""})
        (made / f"{name}.txt").write_text(done.stdout)
    return made


def test_what_came_and_went_between_two_lines(folder: Path) -> None:
    check_between_lines(folder, CPU)


def test_roles_are_what_the_formula_says(folder: Path) -> None:
    check_formula(folder, CPU)


def test_what_saves_activations_by_module(folder: Path) -> None:
    check_saved_by_module(folder, CPU)


def test_views_are_tensors_of_one_block(folder: Path) -> None:
    check_views(folder)
