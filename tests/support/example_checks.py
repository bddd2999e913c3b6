"""What examples/formula.py must show, on the CPU as on a GPU: its trace FOLDER/formula.alloctrace, and what it printed,
FOLDER/formula.txt, against figures that follow from the shapes."""

from __future__ import annotations

import re
from pathlib import Path

import pytorch_alloctrace as alloctrace


def check_formula(folder: Path, device: str) -> None:
    printed = (folder / "formula.txt").read_text().rpartition("paper")[2]
    rows = re.findall(r"^([a-z ]+?) +([\d,]+) +([\d,]+) +([\d,]+)$", printed, re.M)
    found = {role: [int(size.replace(",", "")) for size in sizes] for role, *sizes in rows}
    images, numbers = 64, (16 * 3 * 9 + 16) + (32 * 16 * 9 + 32) + (10 * 32 * 64 + 10)
    steps = 4 * 6 if device == "cpu" else 0
    expected = {
        "parameter": 4 * numbers,
        "gradient": 4 * numbers,
        "optimizer state": 8 * numbers + steps,
        "input": images * (4 * 3 * 32 * 32 + 8),
        "activation": images * (4 * (16 * 32**2 + 32 * 16**2) + 12 * (16 * 16**2 + 32 * 8**2) + 4 * 10) + 4,
    }
    assert {role: paper for role, (paper, _, _) in found.items()} == expected
    assert {role: requested for role, (_, requested, _) in found.items()} == expected
    trace = alloctrace.load(folder / "formula.alloctrace")
    by_role = trace.composition("mark:forward-2", device=device, by="role").set_index("role")["bytes"].to_dict()
    assert {role: size for role, size in by_role.items() if role in expected} == {
        role: size for role, size in expected.items() if role != "gradient"
    }
    # What is not in the table: the loss, and what cuBLAS keeps.
    assert by_role["other"] == 4 and set(by_role) - set(expected) <= {"other", "library workspace"}
    blocks = {"parameter": 6, "gradient": 6, "optimizer state": 12, "input": 2, "activation": 8}
    for role, (_, requested, allocated) in found.items():
        rounding = 0 if device == "cpu" else 512 * blocks[role]
        assert requested <= allocated <= requested + rounding, role
        assert device == "cpu" or allocated % 512 == 0, role
