"""Fragmentation: in programs with a planted pinner, it is named first. What it strands is compared with what torch
returns once it is gone; sums and tables with torch's snapshot and with the native replay's own sums."""

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
    pytest.mark.skipif(has_nvidia_gpu(), reason="the sizes are made for a device of which nobody else takes memory"),
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
    return record_once("fragmentation", lambda made: run_marked(PROGRAM, made, *PLANTED, *RANDOM, memory="16GiB"))


def from_torch(folder: Path, case: str) -> Any:
    return json.loads((folder / f"{case}.json").read_text())


def found_in(folder: Path, case: str) -> Fragmentation:
    return alloctrace.load(folder / f"{case}.alloctrace").fragmentation()


@pytest.mark.parametrize("case", PLANTED)
def test_planted_pinner_comes_first_and_what_it_strands_comes_back_when_it_goes(folder: Path, case: str) -> None:
    found, reported = found_in(folder, case), from_torch(folder, case)
    line = marked_line(PROGRAM, case, "PIN")
    first, planted = found.pinners.rows()[0], found.pinners_by_line.rows()[0]
    for row in (first, planted):
        assert (Path(row["filename"]).name, row["line"], row["user"]) == (PROGRAM, line, True)
        assert "PIN" in row["source"]
    assert first["backward"] == (case == "gradient")
    assert first["state"] == (PENDING_FREE if case == "awaited_by_a_stream" else ALLOCATED)
    if case == "private_pool":
        assert reported["given_back"] == 0 and planted["alone_bytes"] == 3 * 770 * MIB
        return
    if case == "awaited_by_a_stream":
        # empty_cache() waits for the stream, so the block is returned together with what it stranded.
        assert (
            found.releasable_bytes == 0
            and planted["alone_bytes"] + planted["allocated_bytes"] == reported["given_back"]
        )
        return
    assert found.releasable_bytes == reported["given_back"]
    assert planted["alone_bytes"] + planted["allocated_bytes"] == reported["given_back_without_planted"]
    assert found.pinners_by_line["stranded_bytes"].sum() == found.stranded_bytes


@pytest.mark.parametrize("case", PLANTED + RANDOM)
def test_tables_are_those_of_torch_and_sums_those_of_the_timeline(folder: Path, case: str) -> None:
    found, reported = found_in(folder, case), from_torch(folder, case)
    segments = {segment["address"]: segment for segment in reported["segments"]}
    assert list(found.segments["address"]) == sorted(segments)
    for row in found.segments.rows():
        segment = segments[row["address"]]
        free = [block["size"] for block in segment["blocks"] if block["state"] == "inactive"]
        assert (row["free_bytes"], row["largest_free_bytes"]) == (sum(free), max(free, default=0))
        assert row["live_blocks"] == len(segment["blocks"]) - len(free)
        assert row["total_bytes"] == segment["total_size"] and row["stream"] == segment["stream"]
        assert list(row["segment_pool_id"]) == segment["segment_pool_id"]
    pieces = sorted(b["size"] for s in reported["segments"] for b in s["blocks"] if b["state"] == "inactive")
    assert (
        list(found.sizes) == pieces and found.free_bytes == sum(pieces) == found.releasable_bytes + found.stranded_bytes
    )
    for size in (1, 512, 3 * MIB, *pieces[::7], found.largest_free_bytes + 1):
        too_small = sum(piece for piece in pieces if piece < size)
        assert found.index(size) == pytest.approx(too_small / sum(pieces))
    assert found.free_pieces["free_bytes"].sum() == found.free_bytes and found.free_pieces["pieces"].sum() == len(
        pieces
    )
    for row in found.free_pieces.rows():
        within = [piece for piece in pieces if row["from_bytes"] <= piece < row["to_bytes"]]
        assert (row["pieces"], row["free_bytes"]) == (len(within), sum(within))
    pools = found.pools
    assert (
        pools["free_bytes"].sum() == found.free_bytes and pools["largest_free_bytes"].max() == found.largest_free_bytes
    )
    end = alloctrace.load(folder / f"{case}.alloctrace").timeline().iloc[-1]
    for name in ("reserved", "active", "releasable", "stranded", "largest_free"):
        assert getattr(found, f"{name}_bytes") == end[f"{name}_bytes"], name
    assert found.external_fragmentation == pytest.approx(end["external_fragmentation"])


@pytest.mark.parametrize("case", RANDOM)
def test_random_sizes(folder: Path, case: str) -> None:
    found, reported = found_in(folder, case), from_torch(folder, case)
    assert found.releasable_bytes == reported["given_back"]
    pinners = found.pinners
    assert len(pinners) > 10 and (pinners["range_free_bytes"] > 0.5 * pinners["range_bytes"]).all()
    assert (pinners["range_blocks"] > 1).any() and (pinners["alone_bytes"] <= pinners["stranded_bytes"]).all()
    assert pinners["stranded_bytes"].sum() == found.pinners_by_line["stranded_bytes"].sum() <= found.stranded_bytes
    # Here one line allocates everything: what it pins it pins alone, although single blocks share segments.
    [line] = found.pinners_by_line.rows()
    assert line["alone_bytes"] == line["stranded_bytes"] and line["blocks"] == len(pinners)
    sizes = pinners["block_bytes"]
    assert line["allocated_bytes"] == sizes.sum() and line["largest_bytes"] == sizes.max()
    # For each block: what torch's snapshot has around it in its segment.
    if case == "random_sizes":
        segments = found.segments.to_frame().set_index("address")
        shared = segments.loc[pinners["segment"], ["free_bytes", "live_blocks"]].to_numpy(np.int64)
        assert (abs(pinners["stranded_bytes"] - shared[:, 0] / shared[:, 1]) < 1).all()


def test_of_a_position(folder: Path) -> None:
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


def test_verb_fragmentation_names_the_pinner_and_a_worse_position(folder: Path) -> None:
    # The text contains times, and where it breaks depends on how long they are.
    words = ("fragmentation", "one_among_many.alloctrace")
    shown = " ".join(run_analyze(folder, *words).split())
    early = " ".join(run_analyze(folder, *words, "--at", "step:0").split())
    assert "This 13.0 MiB block from" in shown and "keeps 1.16 GiB" in shown and "13.0 MiB block" not in early

    hint = re.search(r"stranded at [\d.]+ \w+: ([\d.]+ GiB) \(--at ([\d.]+s)", early)
    assert f"{hint[1]} stranded" in run_analyze(folder, *words, "--at", hint[2], "--width", "200")

    [data] = json.loads(run_analyze(folder, *words, "--json"))["rows"]
    assert (
        data["pinners"][0]["stranded_bytes"] == 1187 * MIB
        and data["free_bytes"] == data["releasable_bytes"] + data["stranded_bytes"]
    )
    rows = list(csv.DictReader(io.StringIO(run_analyze(folder, "fragmentation", "gradient.alloctrace", "--csv"))))
    few = run_analyze(folder, "fragmentation", "random_sizes.alloctrace", "--csv", "--top", "3")
    assert len(few.splitlines()) == 4
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
    found = found_in(tmp_path, "run")
    assert (found.device, found.reserved_bytes, found.free_bytes, found.index(1)) == ("cpu", 0, 0, 0.0)
    assert all(len(table) == 0 for table in (found.pinners, found.pinners_by_line, found.segments, found.free_pieces))
    for name, text, devices in (("run", "reports no segments", 1), ("empty", "Nothing was allocated", 0)):
        words = ("fragmentation", f"{name}.alloctrace")
        assert text in run_analyze(tmp_path, *words)
        rows = json.loads(run_analyze(tmp_path, *words, "--json"))["rows"]
        assert [row["pinners"] for row in rows] == [[]] * devices
        table = pd.read_csv(io.StringIO(run_analyze(tmp_path, *words, "--csv")))
        assert table.empty and {"site", "stranded_bytes", "device"} <= {*table.columns}
