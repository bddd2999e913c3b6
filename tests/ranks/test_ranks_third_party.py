"""Third-party programs of several ranks, recorded with the run command under torchrun."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from command_line import run_command
from running import ROOT, run_python

PROGRAMS = ROOT / "tests" / "corpus" / "ranks"
EXPECTED = json.loads((PROGRAMS / "expected.json").read_text())
KINDS = {"one_leaks": "leak", "all_leak": "leak", "one_peaks": "differs"}


@pytest.mark.slow("third_party")
@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_third_party_program_of_several_ranks_has_expected_finding(tmp_path: Path, name: str) -> None:
    expected = EXPECTED[name]
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(expected["ranks"]))
    recorder = ("-m", "pytorch_alloctrace", "run", "--devices", "cpu", "--output", "traces/", str(PROGRAMS / name))
    command = [sys.executable, *torchrun, "--no-python", sys.executable, *recorder]
    # On a busy machine torch's threads sometimes abort at the exit, with or without recording.
    run_python(tmp_path, command, check=False, timeout=600, environment={})
    verdict = json.loads(run_command(tmp_path, ["traces", "--json"]).stdout)
    assert verdict["run"]["traces"] == expected["ranks"] and not verdict["run"]["missing"]
    findings = verdict["findings"]
    if expected["truth"] == "healthy":
        assert not {"leak", "oom"} & {row["kind"] for row in findings}, findings
        return
    (row,) = findings
    assert row["kind"] == KINDS[expected["truth"]], row
    assert row["site"]["filename"].endswith(name) and row["site"]["line"] == expected["line"], row
    assert sorted(row["ranks"]) == (list(range(expected["ranks"])) if expected["rank"] is None else [expected["rank"]])
    if expected["from_step"] and row["since_step"] is not None:
        assert abs(row["since_step"] - expected["from_step"]) <= 1
