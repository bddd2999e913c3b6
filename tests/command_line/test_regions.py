"""Regions as ranges, numbered marks, growth limits and Markdown on the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from made_up_ranks import Rank
from marked_programs import run_analyze
from shared_recordings import run_source

import pytorch_alloctrace as alloctrace

KIB = 1024
DIFF = ("diff", "--since", "step:0")
PROGRAM = """
import torch, pytorch_alloctrace as alloctrace

KIB = 1024
kept = []

def allocate(kib):
    return torch.empty(kib * KIB, dtype=torch.uint8)

with alloctrace.enable("run.alloctrace", devices=("cpu",)):
    weights = allocate(1000)
    for number in range(12):
        alloctrace.mark("eval")
        with alloctrace.region("training"):
            allocate(100 + number)
            kept.append(allocate(10))  # LEAK
        if number % 4 == 3:
            with alloctrace.region("validation"):
                allocate(500 + 10 * number)
                with alloctrace.region("validation"):
                    inner = allocate(1)
                kept.append(allocate(3))
            del inner
        alloctrace.step()
    alloctrace.mark("odd#2")
    with alloctrace.region("ends: all:end"):
        allocate(2)
    cut = alloctrace.region("cut")
    cut.__enter__()
    last = allocate(7)
with alloctrace.enable("leak.alloctrace", devices=("cpu",)):
    weights = allocate(1000)
    for number in range(30):
        allocate(100)
        kept.append(allocate(10))  # LEAK
        alloctrace.step()
with alloctrace.enable("no_steps.alloctrace", devices=("cpu",)):
    allocate(1)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_source(tmp_path_factory.mktemp("regions"), PROGRAM)


@pytest.fixture(scope="module")
def trace(folder: Path) -> alloctrace.Trace:
    return alloctrace.load(folder / "run.alloctrace")


def test_marks_table_lists_regions_with_peaks(trace: alloctrace.Trace) -> None:
    marks = trace.marks(peaks=True)
    assert marks["begin_seq"].is_monotonic_increasing
    table = marks[marks["kind"] == "region"]
    events = trace.events().set_index("seq")
    counts = {"training": 12, "validation": 6, "ends: all:end": 1, "cut": 1}
    assert table["name"].value_counts().to_dict() == counts
    validation = table[table["name"] == "validation"]
    assert list(validation["number"]) == [1, 2, 3, 4, 5, 6] and list(validation["step"]) == [3, 3, 7, 7, 11, 11]
    for row in table.to_dict("records"):
        assert events["kind"][row["begin_seq"]] == "region_begin"
        assert events["time_ns"][row["begin_seq"]] == row["begin_ns"]
        is_cut = row["name"] == "cut"
        assert pd.isna(row["end_seq"]) == pd.isna(row["end_ns"]) == is_cut
        end = trace._recorded.end_seq - 1 if is_cut else int(row["end_seq"])
        if not is_cut:
            assert events["kind"][end] == "region_end" and events["time_ns"][end] == row["end_ns"]
        region_events = events.loc[row["begin_seq"] + 1 : end]
        sign = region_events["kind"].astype(str).map({"alloc": 1, "free_completed": -1}).fillna(0)
        highest = max((sign * region_events["requested_bytes"]).cumsum().max(), 0)
        assert row["peak_bytes"] == trace.live(row["begin_seq"])["requested_bytes"].sum() + highest
    # Of two nested regions of one name the inner ends first.
    outer, inner = validation.iloc[0], validation.iloc[1]
    assert outer["begin_seq"] < inner["begin_seq"] < inner["end_seq"] < outer["end_seq"]
    of_marks = marks[marks["kind"] == "mark"]
    assert (of_marks["begin_seq"] == of_marks["end_seq"]).all() and of_marks["peak_bytes"].isna().all()
    assert trace.marks().equals(marks.drop(columns="peak_bytes"))


def test_positions_of_regions_and_marks_resolve_to_events(trace: alloctrace.Trace) -> None:
    regions = dict(iter(trace.marks().groupby("name")))
    evals = regions["eval"]["begin_seq"].tolist()
    begins, ends = regions["training"]["begin_seq"].tolist(), regions["training"]["end_seq"].tolist()
    odd = regions["ends: all:end"].iloc[0]
    expected = {
        "region:training": begins[0],
        "region:training:end": ends[0],
        "region:training#3": begins[2],
        "region:training#3:end": ends[2],
        "region:training#-1:end": ends[-1],
        "region:ends: all:end": odd["begin_seq"],
        "region:ends: all:end:end": odd["end_seq"],
        "region:cut:end": trace._recorded.end_seq - 1,
        "mark:eval": evals[0],
        "mark:eval#1": evals[0],
        "mark:eval#3": evals[2],
        "mark:eval#-1": evals[-1],
        "mark:odd#2": regions["odd#2"]["begin_seq"].iloc[0],
        "mark:training": begins[0],
    }
    for position, seq in expected.items():
        assert trace._recorded.first_event_after(position) == seq + 1, position
    since, until = "region:training#2", "region:training#2:end"
    assert trace.events(since=since, until=until)["requested_bytes"].max() == 101 * KIB
    assert trace.peak(since=since, until=until).requested_bytes == (1000 + 10 + 101) * KIB


WRONG = {
    "mark:evil": "no mark named 'evil': it has eval (12), odd#2",
    "mark:eval#13": "no mark 'eval#13': it has eval#1 to eval#12",
    "mark:eval#0": "it has eval#1 to eval#12",
    "mark:eval#x": "no mark named 'eval#x': it has eval (12)",
    "region:validatoin": "no region named 'validatoin': it has validation (6), training (12)",
    "region:validation#7:end": "it has validation#1 to validation#6",
}


@pytest.mark.parametrize("position", WRONG)
def test_unknown_position_error_lists_existing_names(trace: alloctrace.Trace, position: str) -> None:
    with pytest.raises(alloctrace.PositionError, match=re.escape(WRONG[position])):
        trace.live(position)


def read_rows(folder: Path, *arguments: str) -> Any:
    data = json.loads(run_analyze(folder, *arguments, "run.alloctrace", "--json"))
    return data.get("rows", data)


def test_commands_with_in_count_only_events_of_the_region(folder: Path, trace: alloctrace.Trace) -> None:
    peaks = trace.marks(peaks=True).query("name == 'validation'")["peak_bytes"]
    assert read_rows(folder, "peak", "--in", "validation")["bytes"] == peaks.max()
    assert read_rows(folder, "peak", "--in", "validation#1")["bytes"] == peaks.iloc[0]
    assert read_rows(folder, "diff", "--in", "validation#1")[0]["change_bytes"] == 4 * KIB
    # Three of the six regions of this name are nested in the other three and count once.
    assert read_rows(folder, "diff", "--in", "validation")[0]["change_bytes"] == 3 * 4 * KIB
    assert read_rows(folder, "diff", "--in", "training")[0]["change_bytes"] == 12 * 10 * KIB
    assert read_rows(folder, *DIFF)[0]["change_bytes"] == (11 * 10 + 3 * 3 + 7) * KIB
    assert "in all 12 regions 'training'" in run_analyze(folder, "sites", "run.alloctrace", "--in", "training")
    assert sum(row["total_bytes"] for row in read_rows(folder, "sites", "--in", "training#4")) == (103 + 10) * KIB
    rows, all_rows = (read_rows(folder, "timeline", *option, "--points", "50") for option in (("--in", "training"), ()))
    assert 0 < len(rows) <= len(all_rows) and all(row in all_rows for row in rows)


@pytest.mark.parametrize(
    ("name", "allocated", "change", "largest"),
    [
        ("training", sum(100 + number + 10 for number in range(12)), 120, 111),
        ("validation", sum(500 + 10 * number + 1 + 3 for number in (3, 7, 11)), 12, 610),
        ("validation#2", 1, 1, 1),
    ],
)
def test_in_sums_all_regions_of_a_name(folder: Path, name: str, allocated: int, change: int, largest: int) -> None:
    (sites,) = read_rows(folder, "sites", "--in", name)
    sums = [sites[column] for column in ("total_bytes", "live_bytes_change", "largest_bytes")]
    assert sums == [allocated * KIB, change * KIB, largest * KIB]
    last = f"region:{name}:end" if "#" in name else f"region:{name}#{12 if name == 'training' else 5}:end"
    (end,) = read_rows(folder, "sites", "--at", last)
    assert [sites[key] for key in ("live_bytes", "live_blocks")] == [end[key] for key in ("live_bytes", "live_blocks")]
    lines = read_rows(folder, "annotate", "program.py", "--in", name)
    line = next(row for row in lines if "return torch.empty" in (row["source"] or ""))
    assert (line["total_bytes"], line["net_bytes"]) == (allocated * KIB, change * KIB)
    assert line["peak_bytes"] == read_rows(folder, "peak", "--in", name)["requested_bytes"]


EPOCHS = """
import torch, pytorch_alloctrace as alloctrace
kept = []
with alloctrace.enable("run.alloctrace", devices=("cpu",)):
    for epoch in range(4):
        with alloctrace.region("epoch"):
            for step in range(30 if epoch < 3 else 2):
                torch.empty(5000)
                if epoch == 1:
                    kept.append(torch.empty(50_000))  # LEAK
                alloctrace.step()
        with alloctrace.region("validation"):
            kept.append(torch.empty(100))
"""


def test_leaks_judges_each_region_separately(tmp_path: Path) -> None:
    run_source(tmp_path, EPOCHS)
    arguments = ("leaks", "run.alloctrace", "--in", "epoch", "--fail")
    text = run_analyze(tmp_path, *arguments, status=1)
    assert "\nIN epoch#2\n" in f"\n{text}" and "IN epoch#1" not in text and "program.py:10" in text
    assert "No leak in 2 of 4 regions 'epoch': epoch#1, epoch#3.\n" in text
    assert "Too short to judge: 1 of 4 regions 'epoch': epoch#4.\n" in text
    (row,) = json.loads(run_analyze(tmp_path, *arguments, "--json", status=1))["rows"]
    assert (row["line"], row["region"]) == (10, "epoch#2")
    (single,) = json.loads(run_analyze(tmp_path, "leaks", "run.alloctrace", "--in", "epoch#2", "--json"))["rows"]
    assert {**single, "region": "epoch#2"} == row
    assert "**In epoch#2**" in run_analyze(tmp_path, *arguments, "--markdown", status=1)
    # Only epoch#2 leaks: 200,000 bytes per step.
    for limit, status in (("150KB/step", 1), ("250KB/step", 3)):
        run_analyze(tmp_path, "leaks", "run.alloctrace", "--in", "epoch", "--fail-above", limit, status=status)
    error = run_analyze(tmp_path, "leaks", "run.alloctrace", "--in", "validation", status=2)
    assert "no whole step lies in any of the 4 regions 'validation'" in error
    command = re.search(r"`.*(diff .*)`", error)
    assert command is not None and "+1.56 KiB" in run_analyze(tmp_path, *command[1].split())


def trace_for(command: tuple[str, ...]) -> str:
    return "leak.alloctrace" if command == ("leaks",) else "run.alloctrace"


# diff covers 11 steps: 10 KiB in each, 3 KiB more in 3 of them, and 7 KiB at the end.
@pytest.mark.parametrize(
    ("command", "limit", "status"),
    [
        *((DIFF, limit, 1) for limit in ("120KiB", "0", "9KiB/step", "1%")),
        *((DIFF, limit, 0) for limit in ("1MiB", "13KiB/step", "90%")),
        *((("leaks",), limit, 1) for limit in ("1KiB", "9KiB/step", "1%")),
        *((("leaks",), limit, 0) for limit in ("1MiB", "13KiB/step", "50%")),
    ],
)
def test_fail_above_exits_1_above_limit(folder: Path, command: tuple[str, ...], limit: str, status: int) -> None:
    text = " ".join(run_analyze(folder, *command, trace_for(command), "--fail-above", limit, status=status).split())
    assert (f"more than {limit} (--fail-above)" in text) == bool(status)


@pytest.mark.parametrize("output_format", ["--json", "--csv", "--markdown"])
@pytest.mark.parametrize("command", [DIFF, ("leaks",)])
def test_fail_above_exits_1_in_every_output_format(folder: Path, command: tuple[str, ...], output_format: str) -> None:
    run_analyze(folder, *command, trace_for(command), "--fail-above", "1KiB", output_format, status=1)
    run_analyze(folder, *command, trace_for(command), "--fail-above", "1MiB", output_format)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("leaks", "run.alloctrace", "--fail-above", "5 apples"), "use one such as 512MiB, 1MiB/step or 5%"),
        (("leaks", "run.alloctrace", "--fail-above", "5MiB/second"), "not a limit"),
        (("diff", "run.alloctrace", "run.alloctrace", "--fail-above", "1MiB/step"), "two positions of one run"),
        (("diff", "run.alloctrace", "--in", "training#1", "--fail-above", "1MiB/step"), "no step ends between"),
        (("peak", "run.alloctrace", "--device", "cuda"), "no device 'cuda' was recorded, only cpu"),
        (("peak", "run.alloctrace", "--in", "validatoin"), WRONG["region:validatoin"]),
        (("blocks", "run.alloctrace", "--at", "mark:evil"), WRONG["mark:evil"]),
    ],
)
def test_invalid_region_arguments_are_refused_in_one_line(folder: Path, arguments: tuple[str, ...], part: str) -> None:
    assert part in run_analyze(folder, *arguments, status=2).splitlines()[-1]


def test_leaks_markdown_has_source_lines_and_reports_missing_data(folder: Path) -> None:
    assert "return torch.empty(kib" in run_analyze(folder, "leaks", "leak.alloctrace", "--markdown")
    assert "not judged" in run_analyze(folder, "leaks", "no_steps.alloctrace", "--markdown")
    (folder / "cut.alloctrace").write_bytes((folder / "run.alloctrace").read_bytes()[:-200])
    assert "> **INCOMPLETE**" in run_analyze(folder, "leaks", "cut.alloctrace", "--markdown")


def test_device_cuda_is_refused_when_command_needs_one_of_two(tmp_path: Path) -> None:
    """Runs on one device are in tests/analysis/test_roles.py."""
    name = Rank(0, 1, also_on=1).write(tmp_path).name
    verdict = json.loads(run_analyze(tmp_path, name, "--device", "cuda", "--json"))
    assert sorted(device["device"] for device in verdict["devices"]) == ["cuda:0", "cuda:1"]
    error = run_analyze(tmp_path, "peak", name, "--device", "cuda", "--json", status=2)
    assert "'cuda' matches 2 devices: name one of cuda:0, cuda:1" in error
