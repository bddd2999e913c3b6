"""Programs of several ranks by people who had not read how ranks are compared, recorded from outside under torchrun:
what is wrong on one rank is named with its line, and no healthy program is accused of a leak.

When they were first judged, five of the six that have something wrong were right, and one leak was missed: into what a
function held that had returned before the program's last allocation.
"""

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
def test_programs_of_several_ranks(tmp_path: Path, name: str) -> None:
    expected = EXPECTED[name]
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(expected["ranks"]))
    run = ("-m", "pytorch_alloctrace", "run", "--devices", "cpu", "--output", "traces/", str(PROGRAMS / name))
    command = [sys.executable, *torchrun, "--no-python", sys.executable, *run]
    # torch's own threads abort at the exit now and then, on a busy machine, recorded or not.
    run_python(tmp_path, command, check=False, timeout=600, environment={})
    verdict = json.loads(run_command(tmp_path, ["traces", "--json"]).stdout)
    assert verdict["run"]["traces"] == expected["ranks"] and not verdict["run"]["missing"]
    findings = verdict["findings"]
    if expected["truth"] == "healthy":
        assert not {"leak", "oom"} & {one["kind"] for one in findings}, findings
        return
    (one,) = findings
    assert one["kind"] == KINDS[expected["truth"]], one
    assert one["site"]["filename"].endswith(name) and one["site"]["line"] == expected["line"], one
    assert sorted(one["ranks"]) == (list(range(expected["ranks"])) if expected["rank"] is None else [expected["rank"]])
    if expected["from_step"] and one["since_step"] is not None:
        assert abs(one["since_step"] - expected["from_step"]) <= 1
