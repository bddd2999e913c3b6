"""The defects of tools/mutants.json, which the gate does not apply."""

from __future__ import annotations

import json

from running import ROOT


def test_text_to_replace_occurs_once() -> None:
    defects = json.loads((ROOT / "tools/mutants.json").read_text())
    counts = {defect["name"]: (ROOT / defect["file"]).read_text().count(defect["old"]) for defect in defects}

    assert counts == dict.fromkeys(counts, 1)
    assert len(counts) == len(defects) > 20
