"""What memory consisted of, at positions of one run and of two side by side; and the commands peak, diff and sites.

The oracles are the program's own account of its tensors, torch's statistics and the events."""

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
def test_shifted_lines_are_the_same(traces: Traces, by: str) -> None:
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
            # Two lines of one function have the same text: their order tells them apart.
            kept = own[own["function"] == "keep"].sort_values("line_before")
            shift = line_of("shifted", "EDITED") - line_of("base", "EDITED")
            assert [*kept["line_after"] - kept["line_before"]] == [shift] * 3


@pytest.mark.parametrize("by", COMPOSITION_BY)
def test_sums_of_a_comparison_are_those_of_live_blocks(traces: Traces, by: str) -> None:
    before, after = traces["base", "cuda"], traces["changed", "cuda"]
    for at in ("end", "peak"):
        table = alloctrace.compare(before, after, at=at, by=by)
        assert table["live_bytes_before"].sum() == before.live(at)["requested_bytes"].sum()
        assert table["live_bytes_after"].sum() == after.live(at)["requested_bytes"].sum()
        assert table["live_blocks_after"].sum() == len(after.live(at))
    assert table["change_bytes"].sum() == (11 - 5 + 7 - 2) * MIB


def test_what_changed_is_named(traces: Traces) -> None:
    for device in DEVICES:
        table = alloctrace.compare(traces["base", device], traces["changed", device])
        moved = table[table["change_bytes"] != 0].fillna({"line_before": 0, "line_after": 0})
        rows = moved[["match", "line_before", "line_after", "change_bytes"]].itertuples(index=False, name=None)
        assert [*rows] == [
            ("new", 0, line_of("changed", "NEW"), 7 * MIB),
            ("near", line_of("base", "EDITED"), line_of("changed", "EDITED"), 6 * MIB),
            ("gone", line_of("base", "GONE"), 0, -2 * MIB),
        ]
        near = moved.iloc[1]
        assert "5 * MIB" in near["source_before"] and "11 * MIB" in near["source_after"]


def test_devices_that_only_one_run_has(traces: Traces) -> None:
    cuda, cpu = traces["base", "cuda"], traces["base", "cpu"]
    table = alloctrace.compare(cuda, cpu, device="cpu")
    assert set(table["match"]) == {"new"} and table["live_bytes_before"].sum() == 0
    assert table["live_bytes_after"].sum() == cpu.live("peak")["requested_bytes"].sum()


def of_line(table: pd.DataFrame, line: int) -> Any:
    [row] = table[table["line"] == line].to_dict("records")
    return row


@pytest.mark.parametrize("by", COMPOSITION_BY)
def test_composition_sums_to_what_is_live_and_diff_to_its_change(base: Base, by: str) -> None:
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
    """Every call, last, with those above it, outermost first."""
    found = [(call,) for call in tree.calls]
    for path in found:
        found += [(*path, call) for call in path[-1].calls]
    return found


@pytest.mark.parametrize("all_frames", [False, True])
def test_the_tree_agrees_with_the_frames_of_each_block(base: Base, all_frames: bool) -> None:
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
            found = {
                tuple((call.site.filename, call.site.line) for call in path): path[-1].bytes
                for path in calls_with_callers(tree)
                if path[0].site.filename and (all_frames or path[0].site.user)
            }
            assert found == dict(expected)
            for *_, call in calls_with_callers(tree):
                assert call.bytes == call.own_bytes + sum(one.bytes for one in call.calls)


def test_backward_is_under_the_line_of_forward(base: Base) -> None:
    tree, line = tree_at(base["cuda"]._recorded, "mark:stepped"), line_of("base", "FORWARD")
    [forward] = [path[-1] for path in calls_with_callers(tree) if path[-1].site.line == line]
    of_lines = base["cuda"].usage("mark:stepped")
    assert forward.backward_bytes >= of_line(of_lines, line)["live_backward_bytes"] > 0


def test_composition_by_phase_is_what_the_program_knows(folder: Path, base: Base) -> None:
    for name, trace in base.items():
        known = json.loads((folder / f"base/{name}.json").read_text())
        found = trace.usage("mark:stepped", by="phase").set_index("phase")["live_bytes"]
        # The file was written in the last step, the mark set in the first: all steps hold the same.
        assert found["backward"] == known["backward"]
        assert found["optimizer"] == known["optimizer"]
        # On the CPU nothing distinguishes a product outside of any module from other work.
        assert found["forward"] == known["in_module"] + (known["in_backward_of_line"] if name == "cuda" else 0)


def test_composition_by_age(folder: Path, base: Base) -> None:
    for trace in base.values():
        live = trace.live("step:5")
        expected: dict[str, int] = defaultdict(int)
        for size, born in zip(live["requested_bytes"], live["step"], strict=True):
            if pd.isna(born):
                expected["before the recording"] += int(size)
                continue
            age = 5 - int(born)
            label = {0: "this step", 1: "1 step"}.get(age, "2 to 3 steps" if age < 4 else "4 to 7 steps")
            expected[label] += int(size)
        table = trace.usage("step:5", by="age")
        assert dict(zip(table["age"], table["live_bytes"], strict=True)) == expected
        assert len(expected) >= 2
        known = table[table["age"] != "before the recording"]
        assert (known["from_age"] < known["to_age"]).all()
    trace = alloctrace.load(folder / "no_steps/cpu.alloctrace")
    # After the last allocation, not at the end: how long it takes to end a recording depends on the machine.
    table = trace.usage(int(trace.events(kinds=("alloc",))["seq"].iloc[-1]), by="age")
    assert [*table["unit"].unique()] == ["second"]
    # Youngest first; the older one was allocated before the program slept for 50 ms.
    assert [*table["live_bytes"]] == [20_000, 4_000]
    assert table["to_age"].iloc[-1] >= 0.05


def test_peak_is_what_torch_says(folder: Path, base: Base) -> None:
    known = json.loads((folder / "base/cuda.json").read_text())
    trace = base["cuda"]
    peak = trace.peak()
    assert (peak.device, peak.bytes) == ("cuda:0", known["allocated"])
    assert trace.peak("reserved").bytes == known["reserved"] == trace.peak("reserved").reserved_bytes
    for name, trace in base.items():
        peak = trace.peak()
        assert peak.device == DEVICES[name]
        assert peak.requested_bytes == trace.live(peak.seq)["requested_bytes"].sum()
        assert peak.requested_bytes > trace.live(peak.seq - 1)["requested_bytes"].sum()
        assert of_line(peak.usage(), line_of("base", "LARGE"))["live_bytes"] == 20 * MIB
        assert {peak.usage(by)["live_bytes"].sum() for by in COMPOSITION_BY} == {peak.requested_bytes}
        assert peak.step == 2  # before it the optimizer has no state yet
    assert base["cpu"].peak().reserved_bytes is None


def test_unknown_measures_and_groupings_are_refused(base: Base) -> None:
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


def in_plain_python(trace: alloctrace.Trace) -> dict[str, dict[int, int]]:
    """The measured steps by line, from the events: bytes, churn, and what backward freed of what forward allocated."""
    recorded = trace._recorded
    window = LastSteps.before(recorded, recorded.end_seq)
    columns = ["seq", "kind", "address", "requested_bytes", "stack_id", "node_type"]
    ends = [int(end) for end in window.step_ends]
    held: dict[int, tuple[int, int, int, bool]] = {}
    sums: dict[str, dict[int, int]] = {name: defaultdict(int) for name in ("bytes", "churn_bytes", "retained_bytes")}
    for event in trace.events(since=window.first - 1, until=window.end - 1, columns=columns).to_dict("records"):
        address = event["address"]
        if event["kind"] == "alloc":
            line = int(Site.of_stack(recorded.stacks, int(event["stack_id"])).line)
            held[address] = (line, int(event["requested_bytes"]), int(event["seq"]), event["node_type"] == "")
            sums["bytes"][line] += int(event["requested_bytes"])
        elif event["kind"] in ("free_requested", "free_completed") and address in held:
            line, size, born, in_forward = held.pop(address)
            ends_between = [end for end in ends if born <= end < event["seq"]]
            sums["churn_bytes"][line] += 0 if ends_between else size
            sums["retained_bytes"][line] += size if in_forward and event["node_type"] else 0
    return sums


def test_lifetimes_are_those_of_the_events(base: Base) -> None:
    """On the CPU, where backward has its own stacks, line by line; on CUDA in sum."""
    for name, trace in base.items():
        steps = len(LastSteps.before(trace._recorded, trace._recorded.end_seq).step_ends)
        assert steps == 6
        table, expected = trace.usage(), in_plain_python(trace)
        for measure, by_line in expected.items():
            found = (table.set_index("line")[f"{measure}_per_step"] * steps).astype(float)
            assert found.sum() == pytest.approx(sum(by_line.values()))
            assert sum(by_line.values()) > 0
            if name == "cpu":
                assert {line: round(value) for line, value in found.items() if value} == {
                    line: value for line, value in by_line.items() if value
                }
        sites = tables.named_sites(trace._recorded.stacks, trace._recorded.sites(), "line")
        pd.testing.assert_frame_equal(table[sites.columns], sites, check_dtype=False)


def test_lifetimes_tell_temporaries_and_activations(folder: Path, base: Base) -> None:
    without_steps = alloctrace.load(folder / "no_steps/cpu.alloctrace").usage()
    assert without_steps["churn_bytes_per_step"].isna().all() and not without_steps["temporary"].any()
    large, forward = line_of("base", "LARGE"), line_of("base", "FORWARD")
    for name, trace in base.items():
        table = trace.usage(device=DEVICES[name])
        row = of_line(table, large)
        assert row["temporary"] and row["churn_bytes_per_step"] == row["bytes_per_step"] == 20 * MIB
        assert row["allocations_per_step"] == 1
        kept = of_line(table, line_of("base", "EDITED"))
        assert not kept["temporary"] and kept["churn_bytes_per_step"] == 0
        # What the module allocates last is saved for the product's backward, and nothing else holds it.
        last = table[table["source"].str.contains("self.last(self.seen)", regex=False).fillna(False)].iloc[0]
        assert last["retained_bytes_per_step"] == 64 * 256 * 4
    product = of_line(base["cuda"].usage(), forward)
    # The gradients of both its factors in backward, and its result in forward.
    assert product["backward_bytes_per_step"] == (256 * 256 + 64 * 256) * 4
    assert product["bytes_per_step"] == product["backward_bytes_per_step"] + 64 * 256 * 4
    halfway = base["cuda"].usage(until="step:3")
    assert of_line(halfway, large)["allocations"] == 3


def test_slow_calls_are_those_in_the_events(base: Base) -> None:
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
    called = events[~events.index.isin(for_libraries)].reindex(reported["address"]).max(axis=1).to_numpy()
    sums = reported.groupby(called)["requested_bytes"].sum().astype(np.int64).to_dict()
    by_stack = trace.usage(by="stack").set_index("stack_id")["slow_ns"]
    # What autograd's threads asked for has the line of forward, or no line.
    shown = {stack: value for stack, value in by_stack.items() if value and trace.frames(stack)}
    assert shown == {stack: value for stack, value in sums.items() if stack > 0}
    assert base["cpu"].usage()["slow_calls"].sum() == 0


texts = st.sampled_from(["x = f(x)", "y = g(x)", "x = x + 1", "z = x @ y", "kept.append(z)", "w = h(z)"])
functions = st.lists(texts, min_size=1, max_size=12)


def code_lines(sources: list[str], gaps: list[int], filename: str = "/here/train.py") -> list[CodeLine]:
    """One function, with as many lines before each line as its gap says."""
    numbers = [sum(gaps[: index + 1]) + index + 1 for index in range(len(sources))]
    return [CodeLine(filename, "f", number, text) for number, text in zip(numbers, sources, strict=True)]


@given(functions, st.data())
def test_lines_of_a_function_that_moved_are_matched_in_order(sources: list[str], data: st.DataObject) -> None:
    gaps = st.lists(st.integers(0, 9), min_size=len(sources), max_size=len(sources))
    before, after = code_lines(sources, data.draw(gaps)), code_lines(sources, data.draw(gaps), "/there/train.py")
    files = match_files(["/here/train.py"], ["/there/train.py"])
    found = match_lines(before, after, files)
    matches = {(match.before, match.after, match.kind) for match in found}
    assert matches == {(index, index, SAME) for index in range(len(sources))}


@given(functions, functions, st.data())
def test_matches_are_one_to_one(one: list[str], other: list[str], data: st.DataObject) -> None:
    def drawn(sources: list[str]) -> list[CodeLine]:
        return code_lines(sources, data.draw(st.lists(st.integers(0, 9), min_size=len(sources), max_size=len(sources))))

    before, after = drawn(one), drawn(other)
    found = match_lines(before, after, {"/here/train.py": "/here/train.py"})
    assert len({match.before for match in found}) == len({match.after for match in found}) == len(found)
    # A text that both have is not left unmatched on both sides.
    left = {before[index].text for index in range(len(before)) if index not in {match.before for match in found}}
    right = {after[index].text for index in range(len(after)) if index not in {match.after for match in found}}
    assert not left & right
    for match in found:
        assert (before[match.before].text == after[match.after].text) == (match.kind == SAME)


@given(st.lists(texts, min_size=2, max_size=6, unique=True), st.data())
def test_a_line_that_was_edited_is_matched_with_its_neighbourhood(sources: list[str], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(sources) - 1))
    shift = data.draw(st.integers(0, 40))
    edited = [*sources[:index], "edited = True", *sources[index + 1 :]]
    before = code_lines(sources, [0] * len(sources))
    after = code_lines(edited, [shift, *[0] * (len(sources) - 1)])
    found = {match.before: match for match in match_lines(before, after, {"/here/train.py": "/here/train.py"})}
    assert (found[index].after, found[index].kind) == (index, NEAR)


def test_lines_put_in_elsewhere_are_not_those_taken_out_and_lines_without_text_go_by_number() -> None:
    before = code_lines(["gone = 1", "a", "b"], [0, 0, 0])
    after = code_lines(["a", "b", "new = 2"], [0, 0, 0])
    found = match_lines(before, after, {"/here/train.py": "/here/train.py"})
    assert {(match.before, match.after) for match in found} == {(1, 0), (2, 1)}
    before = [CodeLine("a", "f", number, None) for number in (3, 9)]
    after = [CodeLine("a", "f", number, None) for number in (9, 30)]
    matches = match_lines(before, after, {"a": "a"})
    assert [(match.before, match.after, match.kind) for match in matches] == [(1, 0, SAME)]


def test_files_are_matched_by_what_their_paths_share() -> None:
    same = {"/a/train.py": "/a/train.py", "/a/model/layers.py": "/a/model/layers.py"}
    assert match_files(same, same) == same
    found = match_files(
        ["/home/one/run/train.py", "/home/one/run/model/util.py", "/home/one/run/data/util.py", "/gone.py"],
        ["/srv/two/train.py", "/srv/two/data/util.py", "/srv/two/model/util.py", "/new.py"],
        ("/home/one/run", "/srv/two"),
    )
    assert found == {
        "/home/one/run/train.py": "/srv/two/train.py",
        "/home/one/run/model/util.py": "/srv/two/model/util.py",
        "/home/one/run/data/util.py": "/srv/two/data/util.py",
    }
    # Without the working directories, the last parts of the paths decide.
    assert match_files(["/x/model/util.py", "/x/data/util.py"], ["/y/data/util.py", "/y/model/util.py"]) == {
        "/x/model/util.py": "/y/model/util.py",
        "/x/data/util.py": "/y/data/util.py",
    }


def test_verb_diff_of_two_runs_and_of_two_positions(folder: Path, traces: Traces) -> None:
    two = ("diff", "base/cuda.alloctrace", "changed/cuda.alloctrace")
    [found] = json.loads(run_analyze(folder, *two, "--json"))["rows"]
    assert found["change_bytes"] == 11 * MIB == found["live_bytes_after"] - found["live_bytes_before"]
    assert [row["match"] for row in found["changes"][:3]] == ["new", "near", "gone"]
    table = pd.read_csv(io.StringIO(run_analyze(folder, *two, "--csv", "--by", "function")))
    assert table["change_bytes"].sum() == 11 * MIB and set(table["device"]) == {"cuda:0"}
    edited = f"train.py:{line_of('changed', 'EDITED')} in keep, was line {line_of('base', 'EDITED')}"
    assert edited in " ".join(run_analyze(folder, *two, "--top", "2").split())
    run_analyze(folder, *two, "--fail-above", "11MiB")
    run_analyze(folder, *two, "--fail-above", "10.5MiB", status=1)
    run_analyze(folder, "diff", "base/cuda.alloctrace", "shifted/cuda.alloctrace", "--fail-above", "0")
    assert "needs a second trace" in run_analyze(folder, *two[:2], status=2)
    # CUDA in one, the CPU in the other: each device is compared by itself.
    other = run_analyze(folder, "diff", "base/cuda.alloctrace", "base/cpu.alloctrace", "--device", "cuda:0")
    assert other.startswith("LESS  cuda:0")
    [found] = json.loads(run_analyze(folder, *two[:2], "--since", "mark:kept", "--until", "peak", "--json"))["rows"]
    expected = traces["base", "cuda"].diff("mark:kept", "peak")
    assert [row["change_bytes"] for row in found["changes"]] == [*expected["change_bytes"]]


def test_verb_peak(folder: Path, traces: Traces) -> None:
    peak = traces["base", "cuda"].peak()
    found = json.loads(run_analyze(folder, "peak", "base/cuda.alloctrace", "--json"))
    assert (found["bytes"], found["seq"], found["reserved_bytes"]) == (peak.bytes, peak.seq, peak.reserved_bytes)
    assert sum(row["live_bytes"] for row in found["composition"]) == peak.requested_bytes
    table = pd.read_csv(io.StringIO(run_analyze(folder, "peak", "base/cpu.alloctrace", "--at", "step:3", "--csv")))
    assert table["live_bytes"].sum() == traces["base", "cpu"].live("step:3")["requested_bytes"].sum()
    assert run_analyze(folder, "peak", "base/cpu.alloctrace", "--at", "step:3").startswith("LIVE  cpu: 20.0 MiB")


def test_verb_sites(folder: Path, traces: Traces) -> None:
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
    [("4096", 4096), ("2GiB", 2 << 30), ("1.5 KiB", 1536), ("2GB", 2 * 10**9), ("3m", 3 * MIB), ("1.5Ki", 1536)],
)
def test_sizes_have_one_meaning(text: str, size: int) -> None:
    """K, M and G are binary as KiB, MiB and GiB are; of decimal ones, the B is written."""
    assert parse_byte_count(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "-5", "5 XiB", "1e9", "12 GiB per step"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not a size"):
        parse_byte_count(text)
