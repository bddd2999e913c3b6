"""Fragmentation in programs with a planted pinner, compared with torch's snapshot and empty_cache()."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from marked_programs import marked_line, run_analyze, run_marked
from running import has_nvidia_gpu, needs_cuda_build
from shared_recordings import record_once

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.analysis.free_memory.fragmentation import Fragmentation
from pytorch_alloctrace.reading.table import ALLOCATED, PENDING_FREE

pytestmark = [
    needs_cuda_build,
    pytest.mark.skipif(has_nvidia_gpu(), reason="the sizes need a device that no other process uses"),
]
MIB = 2**20
PROGRAM = "fragmentation_programs.py"
PLANTED = [
    "result_of_each_batch",
    "one_among_many",
    "small_tensors",
    "units_of_an_expandable_segment",
    "private_pool",
    "gradient",
    "awaited_by_a_stream",
]
RANDOM = ["random_sizes", "random_sizes_expandable"]


@pytest.fixture(scope="module")
def folder() -> Path:
    return record_once("fragmentation", lambda path: run_marked(PROGRAM, path, *PLANTED, *RANDOM, memory="16GiB"))


def torch_report(folder: Path, case: str) -> Any:
    return json.loads((folder / f"{case}.json").read_text())


def load_fragmentation(folder: Path, case: str) -> Fragmentation:
    return alloctrace.load(folder / f"{case}.alloctrace").fragmentation()


@pytest.mark.parametrize("case", PLANTED)
def test_planted_pinner_is_first_and_strands_what_torch_returns_without_it(folder: Path, case: str) -> None:
    frag, expected = load_fragmentation(folder, case), torch_report(folder, case)
    line = marked_line(PROGRAM, case, "PIN")
    first, by_line = frag.pinners.rows()[0], frag.pinners_by_line.rows()[0]
    for row in (first, by_line):
        assert (Path(row["filename"]).name, row["line"], row["user"]) == (PROGRAM, line, True)
        assert "PIN" in row["source"]
    assert first["backward"] == (case == "gradient")
    assert first["state"] == (PENDING_FREE if case == "awaited_by_a_stream" else ALLOCATED)
    if case == "private_pool":
        assert expected["given_back"] == 0 and by_line["alone_bytes"] == 3 * 770 * MIB
        return
    if case == "awaited_by_a_stream":
        # empty_cache() waits for the stream, then returns the block and the memory that it stranded.
        assert (
            frag.releasable_bytes == 0 and by_line["alone_bytes"] + by_line["allocated_bytes"] == expected["given_back"]
        )
        return
    assert frag.releasable_bytes == expected["given_back"]
    assert by_line["alone_bytes"] + by_line["allocated_bytes"] == expected["given_back_without_planted"]
    assert frag.pinners_by_line["stranded_bytes"].sum() == frag.stranded_bytes


@pytest.mark.parametrize("case", PLANTED + RANDOM)
def test_fragmentation_tables_match_torch_and_sums_match_timeline(folder: Path, case: str) -> None:
    frag, expected = load_fragmentation(folder, case), torch_report(folder, case)
    segments = {segment["address"]: segment for segment in expected["segments"]}
    assert list(frag.segments["address"]) == sorted(segments)
    for row in frag.segments.rows():
        segment = segments[row["address"]]
        free = [block["size"] for block in segment["blocks"] if block["state"] == "inactive"]
        assert (row["free_bytes"], row["largest_free_bytes"]) == (sum(free), max(free, default=0))
        assert row["live_blocks"] == len(segment["blocks"]) - len(free)
        assert row["total_bytes"] == segment["total_size"] and row["stream"] == segment["stream"]
        assert list(row["segment_pool_id"]) == segment["segment_pool_id"]
    pieces = sorted(b["size"] for s in expected["segments"] for b in s["blocks"] if b["state"] == "inactive")
    assert list(frag.sizes) == pieces and frag.free_bytes == sum(pieces) == frag.releasable_bytes + frag.stranded_bytes
    for size in (1, 512, 3 * MIB, *pieces[::7], frag.largest_free_bytes + 1):
        too_small = sum(piece for piece in pieces if piece < size)
        assert frag.index(size) == pytest.approx(too_small / sum(pieces))
    assert frag.free_pieces["free_bytes"].sum() == frag.free_bytes and frag.free_pieces["pieces"].sum() == len(pieces)
    for row in frag.free_pieces.rows():
        sizes_in_range = [piece for piece in pieces if row["from_bytes"] <= piece < row["to_bytes"]]
        assert (row["pieces"], row["free_bytes"]) == (len(sizes_in_range), sum(sizes_in_range))
    pools = frag.pools
    assert pools["free_bytes"].sum() == frag.free_bytes and pools["largest_free_bytes"].max() == frag.largest_free_bytes
    end = alloctrace.load(folder / f"{case}.alloctrace").timeline().iloc[-1]
    for name in ("reserved", "active", "releasable", "stranded", "largest_free"):
        assert getattr(frag, f"{name}_bytes") == end[f"{name}_bytes"], name
    assert frag.external_fragmentation == pytest.approx(end["external_fragmentation"])


@pytest.mark.parametrize("case", RANDOM)
def test_fragmentation_sums_are_consistent_for_random_sizes(folder: Path, case: str) -> None:
    frag, expected = load_fragmentation(folder, case), torch_report(folder, case)
    assert frag.releasable_bytes == expected["given_back"]
    pinners = frag.pinners
    assert len(pinners) > 10 and (pinners["range_free_bytes"] > 0.5 * pinners["range_bytes"]).all()
    assert (pinners["range_blocks"] > 1).any() and (pinners["alone_bytes"] <= pinners["stranded_bytes"]).all()
    assert pinners["stranded_bytes"].sum() == frag.pinners_by_line["stranded_bytes"].sum() <= frag.stranded_bytes
    # One line allocates everything, so all stranded bytes are its alone, although its blocks share segments.
    [line] = frag.pinners_by_line.rows()
    assert line["alone_bytes"] == line["stranded_bytes"] and line["blocks"] == len(pinners)
    sizes = pinners["block_bytes"]
    assert line["allocated_bytes"] == sizes.sum() and line["largest_bytes"] == sizes.max()
    # Each block strands its share of the free bytes of its segment in torch's snapshot.
    if case == "random_sizes":
        segments = frag.segments.to_frame().set_index("address")
        shared = segments.loc[pinners["segment"], ["free_bytes", "live_blocks"]].to_numpy(np.int64)
        assert (abs(pinners["stranded_bytes"] - shared[:, 0] / shared[:, 1]) < 1).all()


def test_fragmentation_at_position_includes_only_earlier_blocks(folder: Path) -> None:
    trace = alloctrace.load(folder / "one_among_many.alloctrace")
    before, after = trace.fragmentation("step:0"), trace.fragmentation("step:1")
    line = marked_line(PROGRAM, "one_among_many", "PIN")

    assert line not in before.pinners["line"] and after.pinners["line"][0] == line
    assert before.releasable_bytes == 1200 * MIB and after.releasable_bytes == 0
    assert after.pinners["stranded_bytes"][0] == 1187 * MIB and after.pinners["step"][0] == 1
    assert trace.fragmentation("peak").free_bytes < before.free_bytes
    assert trace.fragmentation(0).free_bytes == 0
    assert (
        after.device == "cuda:0" and trace.fragmentation("end", device="cuda:0").stranded_bytes == after.stranded_bytes
    )


def test_fragmentation_command_names_pinner_and_worse_position(folder: Path) -> None:
    # The text is joined because its line breaks depend on the lengths of times.
    arguments = ("fragmentation", "one_among_many.alloctrace")
    at_end = " ".join(run_analyze(folder, *arguments).split())
    at_step_0 = " ".join(run_analyze(folder, *arguments, "--at", "step:0").split())
    assert "This 13.0 MiB block from" in at_end and "keeps 1.16 GiB" in at_end and "13.0 MiB block" not in at_step_0

    hint = re.search(r"stranded at [\d.]+ \w+: ([\d.]+ GiB) \(--at ([\d.]+s)", at_step_0)
    assert f"{hint[1]} stranded" in run_analyze(folder, *arguments, "--at", hint[2], "--width", "200")

    [data] = json.loads(run_analyze(folder, *arguments, "--json"))["rows"]
    assert (
        data["pinners"][0]["stranded_bytes"] == 1187 * MIB
        and data["free_bytes"] == data["releasable_bytes"] + data["stranded_bytes"]
    )
    rows = list(csv.DictReader(io.StringIO(run_analyze(folder, "fragmentation", "gradient.alloctrace", "--csv"))))
    top_rows = run_analyze(folder, "fragmentation", "random_sizes.alloctrace", "--csv", "--top", "3")
    assert len(top_rows.splitlines()) == 4
    assert int(rows[0]["line"]) == marked_line(PROGRAM, "gradient", "PIN") and rows[0]["backward"] == "True"


def test_fragmentation_is_empty_without_segments_and_without_allocations(run_program: Any, tmp_path: Path) -> None:
    run_program(
        """
        import torch, pytorch_alloctrace as alloctrace
        with alloctrace.enable("empty.alloctrace", devices=("cpu",)):
            pass
        with alloctrace.enable("run.alloctrace", devices=("cpu",)):
            kept = torch.empty(5_000_000)
        """
    )
    frag = load_fragmentation(tmp_path, "run")
    assert (frag.device, frag.reserved_bytes, frag.free_bytes, frag.index(1)) == ("cpu", 0, 0, 0.0)
    assert all(len(table) == 0 for table in (frag.pinners, frag.pinners_by_line, frag.segments, frag.free_pieces))
    for name, text, devices in (("run", "reports no segments", 1), ("empty", "Nothing was allocated", 0)):
        arguments = ("fragmentation", f"{name}.alloctrace")
        assert text in run_analyze(tmp_path, *arguments)
        rows = json.loads(run_analyze(tmp_path, *arguments, "--json"))["rows"]
        assert [row["pinners"] for row in rows] == [[]] * devices
        table = pd.read_csv(io.StringIO(run_analyze(tmp_path, *arguments, "--csv")))
        assert table.empty and {"site", "stranded_bytes", "device"} <= {*table.columns}
