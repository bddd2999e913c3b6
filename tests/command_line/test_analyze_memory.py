"""The verbs that show replayed memory, from the outside: text, JSON, CSV, exit statuses, on CUDA and on the CPU."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pandas as pd
from marked_programs import run_analyze
from running import needs_cuda_build

PROGRAM = """
import json, torch, pytorch_alloctrace as alloctrace
session = alloctrace.enable("run.alloctrace", devices=("cuda",))
kept = [torch.empty(n * 1_000_000, dtype=torch.uint8, device="cuda") for n in (1, 3, 15)]
alloctrace.mark("kept")
with open("kept.json", "w") as file:
    json.dump(torch.cuda.memory_snapshot(), file)
del kept[1]
torch.empty(40_000_000, dtype=torch.uint8, device="cuda")
alloctrace.step()
session.snapshot()
alloctrace.disable()
"""


@needs_cuda_build
def test_verbs_on_cuda(run_cuda_program, tmp_path: Path) -> None:
    run_cuda_program(PROGRAM)
    snapshot = json.loads((tmp_path / "kept.json").read_text())
    segments = json.loads(run_analyze(tmp_path, "segments", "run.alloctrace", "--at", "mark:kept", "--json"))
    assert [(row["address"], row["total_size"], row["requested_size"]) for row in segments] == [
        (row["address"], row["total_size"], row["requested_size"])
        for row in sorted(snapshot, key=lambda row: row["address"])
    ]
    # Options may stand anywhere.
    blocks = pd.read_csv(io.StringIO(run_analyze(tmp_path, "--at", "mark:kept", "blocks", "--csv", "run.alloctrace")))
    assert sorted(blocks[blocks["state"] == "active_allocated"]["requested_size"]) == [1_000_000, 3_000_000, 15_000_000]
    assert len(blocks) == sum(len(row["blocks"]) for row in snapshot)
    text = run_analyze(tmp_path, "blocks", "run.alloctrace", "--at", "mark:kept", "--top", "1")
    assert text.startswith("cuda:0  "), "the fullest device is the first"
    assert "14.3 MiB" in text and "kept = [torch.empty" in text and "2 more blocks" in text
    assert "14.3 MiB" not in run_analyze(tmp_path, "blocks", "run.alloctrace", "--at", "0")
    assert "40.0 MiB" in run_analyze(tmp_path, "segments", "run.alloctrace", "--at", "peak")

    # --top means the same in every format: the largest ones of each device, here of one.
    for verb, size, all_of in (("segments", "total_size", segments), ("blocks", "nbytes", blocks.to_dict("records"))):
        words = (verb, "run.alloctrace", "--at", "mark:kept")
        shown = [
            json.loads(run_analyze(tmp_path, *words, "--json", "--top", "2")),
            pd.read_csv(io.StringIO(run_analyze(tmp_path, *words, "--csv", "--top", "2"))).to_dict("records"),
        ]
        used = [row for row in all_of if row.get("state") != "inactive"]
        expected = sorted(sorted(used, key=lambda row: -row[size])[:2], key=lambda row: row["address"])
        for rows in shown:
            assert [row["address"] for row in rows] == [row["address"] for row in expected], verb
        assert run_analyze(tmp_path, *words, "--json", "--top", "0") == run_analyze(tmp_path, *words, "--json")

    timeline = pd.DataFrame(json.loads(run_analyze(tmp_path, "timeline", "run.alloctrace", "--points", "50", "--json")))
    assert timeline["reserved_max"].max() == sum(row["total_size"] for row in snapshot) + 40 * 2**20
    assert timeline["allocated"].iloc[-1] < timeline["allocated_max"].max()
    shown = run_analyze(tmp_path, "timeline", "run.alloctrace")
    assert "reserved" in shown and "external fragmentation" in shown
    later = json.loads(run_analyze(tmp_path, "timeline", "run.alloctrace", "--since", "mark:kept", "--json"))
    assert 0 < len(later) < 2000

    verified = json.loads(run_analyze(tmp_path, "verify", "run.alloctrace", "--json"))
    assert verified["ok"] and verified["states"] == verified["agreeing"] == 2
    assert run_analyze(tmp_path, "verify", "run.alloctrace").startswith("OK")
    whole = (tmp_path / "run.alloctrace").read_bytes()
    (tmp_path / "cut.alloctrace").write_bytes(whole[: len(whole) // 2])
    text = run_analyze(tmp_path, "verify", "cut.alloctrace", status=1)
    assert text.startswith("INCOMPLETE  truncated") and "FOUND" in text


def test_verbs_on_the_cpu(run_program, tmp_path: Path) -> None:
    run_program(
        """
        import torch, pytorch_alloctrace as alloctrace
        alloctrace.enable("run.alloctrace", devices=("cpu",))
        kept = torch.empty(5_000_000, dtype=torch.uint8)
        alloctrace.disable()
        """
    )
    assert "reports none" in run_analyze(tmp_path, "segments", "run.alloctrace")
    assert "4.77 MiB" in run_analyze(tmp_path, "blocks", "run.alloctrace")
    assert "reserved" not in run_analyze(tmp_path, "timeline", "run.alloctrace")
    assert run_analyze(tmp_path, "verify", "run.alloctrace").startswith("OK")
