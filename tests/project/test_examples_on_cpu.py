"""An example on the CPU. test_examples.py has it, and the others, on a simulated GPU."""

from __future__ import annotations

import sys
from pathlib import Path

from example_checks import check_formula
from running import ROOT, run_python


def test_roles_are_what_the_formula_says(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples/formula.py")]
    done = run_python(tmp_path, command, True, 600, {"CUDA_VISIBLE_DEVICES": ""})
    (tmp_path / "formula.txt").write_text(done.stdout)
    check_formula(tmp_path, "cpu")
