"""Composition of memory at positions of one run and of two runs; and the commands peak, diff and sites."""

from __future__ import annotations

import argparse
import io
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from marked_programs import run_analyze
from peak_programs import VERSIONS, line_of, record
from shared_recordings import record_once

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.analysis.usage.composition import COMPOSITION_BY
from pytorch_alloctrace.analysis.usage.lifetimes import LastSteps
from pytorch_alloctrace.analysis.usage.matching import NEAR, SAME, CodeLine, match_files, match_lines
from pytorch_alloctrace.analysis.usage.tree import Call, Tree, tree_at
from pytorch_alloctrace.analyze.arguments import parse_byte_count
from pytorch_alloctrace.reading import tables
from pytorch_alloctrace.reading.sites import Site

MIB = 2**20
DEVICES = {"cuda": "cuda:0", "cpu": "cpu"}
POSITIONS = ("end", "peak", "step:3", "mark:stepped", 40, 0)


@pytest.fixture(scope="module")
def folder() -> Path:
    return record_once("usage", record)


@pytest.fixture(scope="module")
def traces(folder: Path) -> dict[tuple[str, str], alloctrace.Trace]:
    return {
        (version, device): alloctrace.load(folder / version / f"{device}.alloctrace")
        for version in VERSIONS
        for device in DEVICES
    }


Traces = dict[tuple[str, str], alloctrace.Trace]
Base = dict[str, alloctrace.Trace]


@pytest.fixture(scope="module")
def base(traces: Traces) -> Base:
    return {device: traces["base", device] for device in DEVICES}


@pytest.mark.parametrize("by", COMPOSITION_BY)
def test_compare_matches_shifted_lines(traces: Traces, by: str) -> None:
    for device in DEVICES:
        table = alloctrace.compare(traces["base", device], traces["shifted", device], by=by)
        assert (table["change_bytes"] == 0).all()
        live = traces["shifted", device].live("peak")
        assert table["live_bytes_after"].sum() == live["requested_bytes"].sum() > 0
        if by == "line":
            assert set(table["match"]) == {SAME}
            own = table[table["user"]]
            assert (own["line_after"] > own["line_before"]).all()
            assert (own["source_before"].str.strip() == own["source_after"].str.strip()).all()
            # Two lines of one function have the same text and are matched in order.
            lines_of_keep = own[own["function"] == "keep"].sort_values("line_before")
            shift = line_of("shifted", "EDITED") - line_of("base", "EDITED")
            assert [*lines_of_keep["line_after"] - lines_of_keep["line_before"]] == [shift] * 3


@pytest.mark.parametrize("by", COMPOSITION_BY)
def test_compare_sums_match_live_blocks(traces: Traces, by: str) -> None:
    before, after = traces["base", "cuda"], traces["changed", "cuda"]
    for at in ("end", "peak"):
        table = alloctrace.compare(before, after, at=at, by=by)
        assert table["live_bytes_before"].sum() == before.live(at)["requested_bytes"].sum()
        assert table["live_bytes_after"].sum() == after.live(at)["requested_bytes"].sum()
        assert table["live_blocks_after"].sum() == len(after.live(at))
    assert table["change_bytes"].sum() == (11 - 5 + 7 - 2) * MIB


def test_compare_lists_new_near_and_gone_lines(traces: Traces) -> None:
    for device in DEVICES:
        table = alloctrace.compare(traces["base", device], traces["changed", device])
        changed = table[table["change_bytes"] != 0].fillna({"line_before": 0, "line_after": 0})
        rows = changed[["match", "line_before", "line_after", "change_bytes"]].itertuples(index=False, name=None)
        assert [*rows] == [
            ("new", 0, line_of("changed", "NEW"), 7 * MIB),
            ("near", line_of("base", "EDITED"), line_of("changed", "EDITED"), 6 * MIB),
            ("gone", line_of("base", "GONE"), 0, -2 * MIB),
        ]
        near = changed.iloc[1]
        assert "5 * MIB" in near["source_before"] and "11 * MIB" in near["source_after"]


def test_compare_of_device_missing_in_first_run_lists_all_lines_as_empty_before(traces: Traces) -> None:
    cuda, cpu = traces["base", "cuda"], traces["base", "cpu"]
    table = alloctrace.compare(cuda, cpu, device="cpu")
    assert set(table["match"]) == {SAME} and table["live_bytes_before"].sum() == 0
    assert (table["line_before"] == table["line_after"]).all() and table["stack_id_before"].isna().all()
    assert table["live_bytes_after"].sum() == cpu.live("peak")["requested_bytes"].sum()


def row_of_line(table: pd.DataFrame, line: int) -> Any:
    [row] = table[table["line"] == line].to_dict("records")
    return row


@pytest.mark.parametrize("by", COMPOSITION_BY)
def test_usage_sums_match_live_blocks_and_diff_sums_their_change(base: Base, by: str) -> None:
    for trace in base.values():
        for at in POSITIONS:
            live, table = trace.live(at), trace.usage(at, by=by)
            sizes = live["requested_bytes"]
            assert table["live_bytes"].sum() == sizes.sum(), at
            assert table["live_blocks"].sum() == len(live)
            assert table["live_backward_bytes"].sum() == sizes[live["backward"].astype(bool)].sum()
            if len(live):
                assert table["largest_bytes"].max() == sizes.max()
                assert table["share"].sum() == pytest.approx(1)
        for a, b in ((0, "mark:stepped"), ("end", 30)):
            live_a, live_b = trace.live(a)["requested_bytes"], trace.live(b)["requested_bytes"]
            table = trace.diff(a, b, by=by)
            assert table["change_bytes"].sum() == live_b.sum() - live_a.sum(), (a, b)
            assert table["live_bytes_before"].sum() == live_a.sum()
            assert table["live_blocks_after"].sum() == len(live_b)
            assert table["change_bytes"].abs().is_monotonic_decreasing
            back = trace.diff(b, a, by=by)
            assert sorted(back["change_bytes"]) == sorted(-table["change_bytes"])
        assert (trace.diff("peak", "peak", by=by)["change_bytes"] == 0).all()


def calls_with_callers(tree: Tree) -> list[tuple[Call, ...]]:
    """Return the path to every call, from the outermost caller to the call itself."""
    paths = [(call,) for call in tree.calls]
    for path in paths:
        paths += [(*path, call) for call in path[-1].calls]
    return paths


@pytest.mark.parametrize("all_frames", [False, True])
def test_tree_matches_frames_of_live_blocks(base: Base, all_frames: bool) -> None:
    for trace in base.values():
        for at in ("peak", "mark:stepped", "end"):
            tree, live = tree_at(trace._recorded, at, all_frames=all_frames), trace.live(at)
            assert (tree.bytes, tree.blocks) == (live["requested_bytes"].sum(), len(live))
            stacks = trace._recorded.stacks
            expected: dict[tuple[tuple[str, int], ...], int] = defaultdict(int)
            for stack, size in live.groupby("stack_id")["requested_bytes"].sum().items():
                path: list[tuple[str, int]] = []
                while stack:
                    frame = stacks.frame(stack)
                    if stacks.is_user[stack] or (all_frames and frame.filename):
                        path.insert(0, (frame.filename, frame.line))
                    stack = int(stacks.parent[stack])
                for length in range(1, len(path) + 1):
                    expected[tuple(path[:length])] += size
            actual = {
                tuple((call.site.filename, call.site.line) for call in path): path[-1].bytes
                for path in calls_with_callers(tree)
                if path[0].site.filename and (all_frames or path[0].site.user)
            }
            assert actual == dict(expected)
            for *_, call in calls_with_callers(tree):
                assert call.bytes == call.own_bytes + sum(callee.bytes for callee in call.calls)


def test_tree_has_backward_bytes_at_line_of_forward(base: Base) -> None:
    tree, line = tree_at(base["cuda"]._recorded, "mark:stepped"), line_of("base", "FORWARD")
    [forward] = [path[-1] for path in calls_with_callers(tree) if path[-1].site.line == line]
    of_lines = base["cuda"].usage("mark:stepped")
    assert forward.backward_bytes >= row_of_line(of_lines, line)["live_backward_bytes"] > 0


def test_usage_by_phase_matches_program_account(folder: Path, base: Base) -> None:
    for name, trace in base.items():
        expected = json.loads((folder / f"base/{name}.json").read_text())
        actual = trace.usage("mark:stepped", by="phase").set_index("phase")["live_bytes"]
        # The file is of the last step and the mark of the first, but all steps hold the same bytes.
        assert actual["backward"] == expected["backward"]
        assert actual["optimizer"] == expected["optimizer"]
        # On the CPU a product outside of any module is not attributed to forward.
        assert actual["forward"] == expected["in_module"] + (expected["in_backward_of_line"] if name == "cuda" else 0)


def test_usage_by_age_groups_live_blocks_by_steps_or_seconds(folder: Path, base: Base) -> None:
    for trace in base.values():
        live = trace.live("step:5")
        expected: dict[str, int] = defaultdict(int)
        for size, allocated_at in zip(live["requested_bytes"], live["step"], strict=True):
            if pd.isna(allocated_at):
                expected["before the recording"] += int(size)
                continue
            age = 5 - int(allocated_at)
            label = {0: "this step", 1: "1 step"}.get(age, "2 to 3 steps" if age < 4 else "4 to 7 steps")
            expected[label] += int(size)
        table = trace.usage("step:5", by="age")
        assert dict(zip(table["age"], table["live_bytes"], strict=True)) == expected
        assert len(expected) >= 2
        during_recording = table[table["age"] != "before the recording"]
        assert (during_recording["from_age"] < during_recording["to_age"]).all()
    trace = alloctrace.load(folder / "no_steps/cpu.alloctrace")
    # At the last allocation, because the time between it and the end of the recording varies.
    table = trace.usage(int(trace.events(kinds=("alloc",))["seq"].iloc[-1]), by="age")
    assert [*table["unit"].unique()] == ["second"]
    # The older block was allocated before the program slept for 50 ms.
    assert [*table["live_bytes"]] == [20_000, 4_000]
    assert table["to_age"].iloc[-1] >= 0.05


def test_peak_matches_torch_statistics(folder: Path, base: Base) -> None:
    expected = json.loads((folder / "base/cuda.json").read_text())
    trace = base["cuda"]
    peak = trace.peak()
    assert (peak.device, peak.bytes) == ("cuda:0", expected["allocated"])
    assert trace.peak("reserved").bytes == expected["reserved"] == trace.peak("reserved").reserved_bytes
    for name, trace in base.items():
        peak = trace.peak()
        assert peak.device == DEVICES[name]
        assert peak.requested_bytes == trace.live(peak.seq)["requested_bytes"].sum()
        assert peak.requested_bytes > trace.live(peak.seq - 1)["requested_bytes"].sum()
        assert row_of_line(peak.usage(), line_of("base", "LARGE"))["live_bytes"] == 20 * MIB
        assert {peak.usage(by)["live_bytes"].sum() for by in COMPOSITION_BY} == {peak.requested_bytes}
        assert peak.step == 2  # earlier steps have no optimizer state
    assert base["cpu"].peak().reserved_bytes is None


def test_usage_and_peak_raise_for_unknown_arguments(base: Base) -> None:
    trace = base["cpu"]
    with pytest.raises(alloctrace.PositionError, match="no peak"):
        trace.peak("reserved")
    with pytest.raises(ValueError, match="measure"):
        trace.peak("active")
    with pytest.raises(ValueError, match="use one of"):
        trace.usage("end", by="moon")
    with pytest.raises(ValueError, match="needs a position"):
        trace.usage(by="phase")
    with pytest.raises(ValueError, match="cannot be combined"):
        trace.usage("end", since="step:3")


def sums_of_events(trace: alloctrace.Trace) -> dict[str, dict[int, int]]:
    """Return bytes, churn and bytes that backward freed of forward, by line, in the measured steps."""
    recorded = trace._recorded
    window = LastSteps.before(recorded, recorded.end_seq)
    columns = ["seq", "kind", "address", "requested_bytes", "stack_id", "node_type"]
    ends = [int(end) for end in window.step_ends]
    live: dict[int, tuple[int, int, int, bool]] = {}
    sums: dict[str, dict[int, int]] = {name: defaultdict(int) for name in ("bytes", "churn_bytes", "retained_bytes")}
    for event in trace.events(since=window.first - 1, until=window.end - 1, columns=columns).to_dict("records"):
        address = event["address"]
        if event["kind"] == "alloc":
            line = int(Site.of_stack(recorded.stacks, int(event["stack_id"])).line)
            live[address] = (line, int(event["requested_bytes"]), int(event["seq"]), event["node_type"] == "")
            sums["bytes"][line] += int(event["requested_bytes"])
        elif event["kind"] in ("free_requested", "free_completed") and address in live:
            line, size, allocated_at, in_forward = live.pop(address)
            ends_between = [end for end in ends if allocated_at <= end < event["seq"]]
            sums["churn_bytes"][line] += 0 if ends_between else size
            sums["retained_bytes"][line] += size if in_forward and event["node_type"] else 0
    return sums


def test_usage_per_step_matches_events(base: Base) -> None:
    """Compare each line on the CPU, where backward has its own stacks, and only the sums on CUDA."""
    for name, trace in base.items():
        steps = len(LastSteps.before(trace._recorded, trace._recorded.end_seq).step_ends)
        assert steps == 6
        table, expected = trace.usage(), sums_of_events(trace)
        for measure, by_line in expected.items():
            actual = (table.set_index("line")[f"{measure}_per_step"] * steps).astype(float)
            assert actual.sum() == pytest.approx(sum(by_line.values()))
            assert sum(by_line.values()) > 0
            if name == "cpu":
                assert {line: round(value) for line, value in actual.items() if value} == {
                    line: value for line, value in by_line.items() if value
                }
        sites = tables.named_sites(trace._recorded.stacks, trace._recorded.sites(), "line")
        pd.testing.assert_frame_equal(table[sites.columns], sites, check_dtype=False)


def test_usage_distinguishes_temporaries_and_activations(folder: Path, base: Base) -> None:
    without_steps = alloctrace.load(folder / "no_steps/cpu.alloctrace").usage()
    assert without_steps["churn_bytes_per_step"].isna().all() and not without_steps["temporary"].any()
    large, forward = line_of("base", "LARGE"), line_of("base", "FORWARD")
    for name, trace in base.items():
        table = trace.usage(device=DEVICES[name])
        row = row_of_line(table, large)
        assert row["temporary"] and row["churn_bytes_per_step"] == row["bytes_per_step"] == 20 * MIB
        assert row["allocations_per_step"] == 1
        persistent = row_of_line(table, line_of("base", "EDITED"))
        assert not persistent["temporary"] and persistent["churn_bytes_per_step"] == 0
        # The module's last result is held only by the graph of the product.
        last = table[table["source"].str.contains("self.last(self.seen)", regex=False).fillna(False)].iloc[0]
        assert last["retained_bytes_per_step"] == 64 * 256 * 4
    product = row_of_line(base["cuda"].usage(), forward)
    # Backward allocates the gradients of both factors, forward the result.
    assert product["backward_bytes_per_step"] == (256 * 256 + 64 * 256) * 4
    assert product["bytes_per_step"] == product["backward_bytes_per_step"] + 64 * 256 * 4
    halfway = base["cuda"].usage(until="step:3")
    assert row_of_line(halfway, large)["allocations"] == 3


def test_slow_calls_match_latency_events(base: Base) -> None:
    trace = base["cuda"]
    reported = trace.events(kinds=("latency",))
    for by in ("line", "function", "stack"):
        table = trace.usage(by=by)
        assert table["slow_calls"].sum() == len(reported) > 0
        assert table["slow_ns"].sum() == reported["requested_bytes"].sum()
        assert table["slowest_ns"].max() == reported["requested_bytes"].max()
    events = trace.events(columns=["seq", "stack_id", "forward_stack_id"]).set_index("seq")
    live = trace.live()
    for_libraries = live.loc[live["site"].str.endswith(" workspace"), "alloc_seq"].dropna()
    stacks = events[~events.index.isin(for_libraries)].reindex(reported["address"]).max(axis=1).to_numpy()
    sums = reported.groupby(stacks)["requested_bytes"].sum().astype(np.int64).to_dict()
    by_stack = trace.usage(by="stack").set_index("stack_id")["slow_ns"]
    # Calls of autograd's threads have the line of forward, or no line.
    actual = {stack: value for stack, value in by_stack.items() if value and trace.frames(stack)}
    assert actual == {stack: value for stack, value in sums.items() if stack > 0}
    assert base["cpu"].usage()["slow_calls"].sum() == 0


texts = st.sampled_from(["x = f(x)", "y = g(x)", "x = x + 1", "z = x @ y", "kept.append(z)", "w = h(z)"])
functions = st.lists(texts, min_size=1, max_size=12)


def code_lines(sources: list[str], gaps: list[int], filename: str = "/here/train.py") -> list[CodeLine]:
    """Return the lines of one function, each after a gap of other lines."""
    numbers = [sum(gaps[: index + 1]) + index + 1 for index in range(len(sources))]
    return [CodeLine(filename, "f", number, text) for number, text in zip(numbers, sources, strict=True)]


@given(functions, st.data())
def test_lines_of_moved_function_are_matched_in_order(sources: list[str], data: st.DataObject) -> None:
    gaps = st.lists(st.integers(0, 9), min_size=len(sources), max_size=len(sources))
    before, after = code_lines(sources, data.draw(gaps)), code_lines(sources, data.draw(gaps), "/there/train.py")
    files = match_files(["/here/train.py"], ["/there/train.py"])

    result = match_lines(before, after, files)
    matches = {(match.before, match.after, match.kind) for match in result}

    assert matches == {(index, index, SAME) for index in range(len(sources))}


@given(functions, functions, st.data())
def test_line_matches_are_one_to_one(first: list[str], second: list[str], data: st.DataObject) -> None:
    def draw_lines(sources: list[str]) -> list[CodeLine]:
        return code_lines(sources, data.draw(st.lists(st.integers(0, 9), min_size=len(sources), max_size=len(sources))))

    before, after = draw_lines(first), draw_lines(second)
    matches = match_lines(before, after, {"/here/train.py": "/here/train.py"})
    assert len({match.before for match in matches}) == len({match.after for match in matches}) == len(matches)
    # No text is unmatched on both sides.
    left = {before[index].text for index in range(len(before)) if index not in {match.before for match in matches}}
    right = {after[index].text for index in range(len(after)) if index not in {match.after for match in matches}}
    assert not left & right
    for match in matches:
        assert (before[match.before].text == after[match.after].text) == (match.kind == SAME)


@given(st.lists(texts, min_size=2, max_size=6, unique=True), st.data())
def test_edited_line_is_matched_by_its_neighbours(sources: list[str], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(sources) - 1))
    shift = data.draw(st.integers(0, 40))
    edited = [*sources[:index], "edited = True", *sources[index + 1 :]]
    before = code_lines(sources, [0] * len(sources))
    after = code_lines(edited, [shift, *[0] * (len(sources) - 1)])

    matches = {match.before: match for match in match_lines(before, after, {"/here/train.py": "/here/train.py"})}

    assert (matches[index].after, matches[index].kind) == (index, NEAR)


def test_inserted_lines_do_not_match_removed_lines() -> None:
    before = code_lines(["gone = 1", "a", "b"], [0, 0, 0])
    after = code_lines(["a", "b", "new = 2"], [0, 0, 0])
    moved = match_lines(before, after, {"/here/train.py": "/here/train.py"})
    assert {(match.before, match.after) for match in moved} == {(1, 0), (2, 1)}
    before = [CodeLine("a", "f", number, None) for number in (3, 9)]
    after = [CodeLine("a", "f", number, None) for number in (9, 30)]
    matches = match_lines(before, after, {"a": "a"})
    assert [(match.before, match.after, match.kind) for match in matches] == [(1, 0, SAME)]


def test_files_are_matched_by_common_path_parts() -> None:
    paths = {"/a/train.py": "/a/train.py", "/a/model/layers.py": "/a/model/layers.py"}
    assert match_files(paths, paths) == paths
    matches = match_files(
        ["/home/one/run/train.py", "/home/one/run/model/util.py", "/home/one/run/data/util.py", "/gone.py"],
        ["/srv/two/train.py", "/srv/two/data/util.py", "/srv/two/model/util.py", "/new.py"],
        ("/home/one/run", "/srv/two"),
    )
    assert matches == {
        "/home/one/run/train.py": "/srv/two/train.py",
        "/home/one/run/model/util.py": "/srv/two/model/util.py",
        "/home/one/run/data/util.py": "/srv/two/data/util.py",
    }
    # Without the working directories, the last parts of the paths decide.
    assert match_files(["/x/model/util.py", "/x/data/util.py"], ["/y/data/util.py", "/y/model/util.py"]) == {
        "/x/model/util.py": "/y/model/util.py",
        "/x/data/util.py": "/y/data/util.py",
    }


def test_diff_command_compares_two_runs_or_two_positions(folder: Path, traces: Traces) -> None:
    command = ("diff", "base/cuda.alloctrace", "changed/cuda.alloctrace")
    [data] = json.loads(run_analyze(folder, *command, "--json"))["rows"]
    assert data["change_bytes"] == 11 * MIB == data["live_bytes_after"] - data["live_bytes_before"]
    assert [row["match"] for row in data["changes"][:3]] == ["new", "near", "gone"]
    table = pd.read_csv(io.StringIO(run_analyze(folder, *command, "--csv", "--by", "function")))
    assert table["change_bytes"].sum() == 11 * MIB and set(table["device"]) == {"cuda:0"}
    edited = f"train.py:{line_of('changed', 'EDITED')} in keep, was line {line_of('base', 'EDITED')}"
    assert edited in " ".join(run_analyze(folder, *command, "--top", "2").split())
    run_analyze(folder, *command, "--fail-above", "11MiB")
    run_analyze(folder, *command, "--fail-above", "10.5MiB", status=1)
    run_analyze(folder, "diff", "base/cuda.alloctrace", "shifted/cuda.alloctrace", "--fail-above", "0")
    assert "needs a second trace" in run_analyze(folder, *command[:2], status=2)
    # Each device is compared by itself.
    other = run_analyze(folder, "diff", "base/cuda.alloctrace", "base/cpu.alloctrace", "--device", "cuda:0")
    assert other.startswith("LESS  cuda:0")
    [data] = json.loads(run_analyze(folder, *command[:2], "--since", "mark:kept", "--until", "peak", "--json"))["rows"]
    expected = traces["base", "cuda"].diff("mark:kept", "peak")
    assert [row["change_bytes"] for row in data["changes"]] == [*expected["change_bytes"]]


def test_peak_command_shows_composition_at_peak_or_position(folder: Path, traces: Traces) -> None:
    peak = traces["base", "cuda"].peak()
    data = json.loads(run_analyze(folder, "peak", "base/cuda.alloctrace", "--json"))
    assert (data["bytes"], data["seq"], data["reserved_bytes"]) == (peak.bytes, peak.seq, peak.reserved_bytes)
    assert sum(row["live_bytes"] for row in data["composition"]) == peak.requested_bytes
    table = pd.read_csv(io.StringIO(run_analyze(folder, "peak", "base/cpu.alloctrace", "--at", "step:3", "--csv")))
    assert table["live_bytes"].sum() == traces["base", "cpu"].live("step:3")["requested_bytes"].sum()
    assert run_analyze(folder, "peak", "base/cpu.alloctrace", "--at", "step:3").startswith("LIVE  cpu: 20.0 MiB")


def test_sites_command_shows_usage_and_limits_rows(folder: Path, traces: Traces) -> None:
    table = pd.read_csv(io.StringIO(run_analyze(folder, "sites", "base/cuda.alloctrace", "--csv")))
    expected = traces["base", "cuda"].usage()
    assert [*table["churn_bytes_per_step"]] == pytest.approx([*expected["churn_bytes_per_step"].astype(float)])
    text = run_analyze(folder, "sites", "base/cpu.alloctrace", "--json", "--at", "step:2", "--top", "3")
    rows = json.loads(text)["rows"]
    assert len(rows) == 3 and rows[0]["live_bytes"] == 5 * MIB
    text = run_analyze(folder, "sites", "base/cuda.alloctrace")
    assert "KEPT FOR BACKWARD" in text and "SLOW CALLS" in text


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096B", 4096),
        ("0", 0),
        ("2GiB", 2 << 30),
        ("1.5 KiB", 1536),
        ("2GB", 2 * 10**9),
        ("3m", 3 * MIB),
        ("1.5Ki", 1536),
    ],
)
def test_byte_count_has_binary_and_decimal_units(text: str, size: int) -> None:
    assert parse_byte_count(text) == size


def test_size_without_unit_is_an_error() -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="'24' has no unit: write 24GiB, 24MiB, or 24B for bytes"):
        parse_byte_count("24")


@pytest.mark.parametrize("text", ["", "MiB", "-5", "5 XiB", "1e9", "12 GiB per step"])
def test_invalid_byte_count_is_an_error(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not a size"):
        parse_byte_count(text)
