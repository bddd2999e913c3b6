"""What the memory consisted of: composition, peak, differences between positions, lifetimes; on CUDA and on the CPU.
The oracles are the program's own account of its tensors, torch's statistics and the events."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from peak_programs import line_of, record
from running import needs_cuda_build
from shared_recordings import record_once

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.analysis.usage.composition import COMPOSITION_BY
from pytorch_alloctrace.analysis.usage.last_steps import LastSteps
from pytorch_alloctrace.analysis.usage.tree import Call, Tree

pytestmark = needs_cuda_build
MIB = 2**20
DEVICES = {"cuda": "cuda:0", "cpu": "cpu"}
POSITIONS = ("end", "peak", "step:3", "mark:stepped", 40, 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record_once(tmp_path_factory, "peak_programs", record) / "base"


@pytest.fixture(scope="module")
def traces(folder: Path) -> dict[str, alloctrace.Trace]:
    return {name: alloctrace.load(folder / f"{name}.alloctrace") for name in DEVICES}


def of_line(table: pd.DataFrame, line: int) -> pd.Series:
    [row] = table[table["line"] == line].to_dict("records")
    return pd.Series(row)


@pytest.mark.parametrize("by", COMPOSITION_BY)
def test_composition_sums_to_what_is_live(traces: dict[str, alloctrace.Trace], by: str) -> None:
    for trace in traces.values():
        for at in POSITIONS:
            live, table = trace.live(at), trace.composition(at, by=by)
            assert table["bytes"].sum() == live["nbytes"].sum(), at
            assert table["blocks"].sum() == len(live)
            assert table["backward_bytes"].sum() == live.loc[live["backward"].astype(bool), "nbytes"].sum()
            if len(live):
                assert table["largest"].max() == live["nbytes"].max()
                assert table["share"].sum() == pytest.approx(1)


def calls_with_callers(tree: Tree) -> list[tuple[Call, ...]]:
    """Every call, last, with those above it, outermost first."""
    found = [(call,) for call in tree.calls]
    for path in found:
        found += [(*path, call) for call in path[-1].calls]
    return found


@pytest.mark.parametrize("all_frames", [False, True])
def test_the_tree_agrees_with_the_frames_of_each_block(traces: dict[str, alloctrace.Trace], all_frames: bool) -> None:
    for trace in traces.values():
        for at in ("peak", "mark:stepped", "end"):
            tree, live = trace.tree(at, all_frames=all_frames), trace.live(at)
            assert (tree.bytes, tree.blocks) == (live["nbytes"].sum(), len(live))
            expected: dict[tuple[tuple[str, int], ...], int] = defaultdict(int)
            for stack, size in live.groupby("stack_id")["nbytes"].sum().items():
                path: list[tuple[str, int]] = []
                while stack:
                    frame = trace.stacks.frame(stack)
                    if trace.stacks.is_user[stack] or (all_frames and frame.filename):
                        path.insert(0, (frame.filename, frame.line))
                    stack = int(trace.stacks.parent[stack])
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


def test_backward_is_under_the_line_of_forward(traces: dict[str, alloctrace.Trace]) -> None:
    tree, line = traces["cuda"].tree("mark:stepped"), line_of("base", "FORWARD")
    [forward] = [path[-1] for path in calls_with_callers(tree) if path[-1].site.line == line]
    of_lines = traces["cuda"].composition("mark:stepped")
    assert forward.backward_bytes >= of_line(of_lines, line)["backward_bytes"] > 0


def test_composition_by_phase_is_what_the_program_knows(folder: Path, traces: dict[str, alloctrace.Trace]) -> None:
    for name, trace in traces.items():
        known = json.loads((folder / f"{name}.json").read_text())
        found = trace.composition("mark:stepped", by="phase").set_index("phase")["bytes"]
        # The file was written in the last step, the mark set in the first: all steps hold the same.
        assert found["backward"] == known["backward"]
        assert found["optimizer"] == known["optimizer"]
        # On the CPU nothing distinguishes a product outside of any module from other work.
        assert found["forward"] == known["in_module"] + (known["in_backward_of_line"] if name == "cuda" else 0)


def test_composition_by_age(folder: Path, traces: dict[str, alloctrace.Trace]) -> None:
    for trace in traces.values():
        live = trace.live("step:5")
        expected: dict[str, int] = defaultdict(int)
        for size, born in zip(live["nbytes"], live["step"], strict=True):
            if pd.isna(born):
                expected["before the recording"] += int(size)
                continue
            age = 5 - int(born)
            label = {0: "this step", 1: "1 step"}.get(age, "2 to 3 steps" if age < 4 else "4 to 7 steps")
            expected[label] += int(size)
        table = trace.composition("step:5", by="age")
        assert dict(zip(table["age"], table["bytes"], strict=True)) == expected
        assert len(expected) >= 2
        known = table[table["age"] != "before the recording"]
        assert (known["from_age"] < known["to_age"]).all()
    trace = alloctrace.load(folder.parent / "no_steps/cpu.alloctrace")
    # After the last allocation, not at the end: how long it takes to end a recording depends on the machine.
    table = trace.composition(int(trace.events(kinds=("alloc",))["seq"].iloc[-1]), by="age")
    assert [*table["unit"].unique()] == ["second"]
    # Youngest first; the older one was allocated before the program slept for 50 ms.
    assert [*table["bytes"]] == [20_000, 4_000]
    assert table["to_age"].iloc[-1] >= 0.05


def test_peak_is_what_torch_says(folder: Path, traces: dict[str, alloctrace.Trace]) -> None:
    known = json.loads((folder / "cuda.json").read_text())
    trace = traces["cuda"]
    peak = trace.peak()
    assert (peak.device, peak.bytes) == ("cuda:0", known["allocated"])
    assert trace.peak("reserved").bytes == known["reserved"] == trace.peak("reserved").reserved
    for device, found in ((DEVICES[name], trace.peak()) for name, trace in traces.items()):
        assert found.device == device
        trace = traces["cpu" if device == "cpu" else "cuda"]
        assert found.requested == found.composition["bytes"].sum() == trace.live(found.seq)["nbytes"].sum()
        assert found.requested > trace.live(found.seq - 1)["nbytes"].sum()
        assert of_line(found.composition, line_of("base", "LARGE"))["bytes"] == 20 * MIB
        assert found.phases["bytes"].sum() == found.ages["bytes"].sum() == found.requested
        assert found.step == 2  # before it the optimizer has no state yet
    assert traces["cpu"].peak().reserved is None


def test_bad_arguments_are_refused(traces: dict[str, alloctrace.Trace]) -> None:
    trace = traces["cpu"]
    with pytest.raises(alloctrace.PositionError, match="no peak"):
        trace.peak("reserved")
    with pytest.raises(ValueError, match="measure"):
        trace.peak("active")
    with pytest.raises(ValueError, match="use one of"):
        trace.composition(by="moon")
    with pytest.raises(ValueError, match="use one of"):
        trace.lifetimes(by="phase")


@pytest.mark.parametrize("by", COMPOSITION_BY)
def test_diff_sums_to_the_change_of_what_is_live(traces: dict[str, alloctrace.Trace], by: str) -> None:
    for trace in traces.values():
        for a, b in (("step:1", "peak"), ("peak", "end"), (0, "mark:stepped"), ("end", 30)):
            live_a, live_b = trace.live(a), trace.live(b)
            table = trace.diff(a, b, by=by)
            assert table["change"].sum() == int(live_b["nbytes"].sum()) - int(live_a["nbytes"].sum()), (a, b)
            assert table["bytes_before"].sum() == live_a["nbytes"].sum()
            assert table["blocks_after"].sum() == len(live_b)
            assert table["change"].abs().is_monotonic_decreasing
            back = trace.diff(b, a, by=by)
            assert sorted(back["change"]) == sorted(-table["change"])
        assert (trace.diff("peak", "peak", by=by)["change"] == 0).all()


def test_diff_names_the_line(traces: dict[str, alloctrace.Trace]) -> None:
    for trace in traces.values():
        first = trace.diff("mark:kept", "peak").iloc[0]
        assert (first["line"], first["change"]) == (line_of("base", "LARGE"), 20 * MIB)


def in_plain_python(trace: alloctrace.Trace) -> dict[str, dict[int, int]]:
    """The measured steps by line, from the events: bytes, churn, and what backward freed of what forward allocated."""
    window = LastSteps.before(trace, trace.end_seq)
    columns = ["seq", "kind", "address", "nbytes", "stack_id", "node_type"]
    ends = [int(end) for end in window.step_ends]
    held: dict[int, tuple[int, int, int, bool]] = {}
    sums: dict[str, dict[int, int]] = {name: defaultdict(int) for name in ("bytes", "churn", "retained")}
    for event in trace.events(since=window.first - 1, until=window.end - 1, columns=columns).to_dict("records"):
        address = event["address"]
        if event["kind"] == "alloc":
            line = int(trace.stacks.describe(int(event["stack_id"]), "line")["line"])
            held[address] = (line, int(event["nbytes"]), int(event["seq"]), event["node_type"] == "")
            sums["bytes"][line] += int(event["nbytes"])
        elif event["kind"] in ("free_requested", "free_completed") and address in held:
            line, size, born, in_forward = held.pop(address)
            ends_between = [end for end in ends if born <= end < event["seq"]]
            sums["churn"][line] += 0 if ends_between else size
            sums["retained"][line] += size if in_forward and event["node_type"] else 0
    return sums


def test_lifetimes_are_those_of_the_events(traces: dict[str, alloctrace.Trace]) -> None:
    """On the CPU, where backward has its own stacks, line by line; on CUDA in sum."""
    for name, trace in traces.items():
        steps = len(LastSteps.before(trace, trace.end_seq).step_ends)
        assert steps == 6
        table, expected = trace.lifetimes(), in_plain_python(trace)
        for measure, by_line in expected.items():
            found = (table.set_index("line")[f"{measure}_per_step"] * steps).astype(float)
            assert found.sum() == pytest.approx(sum(by_line.values()))
            assert sum(by_line.values()) > 0
            if name == "cpu":
                assert {line: round(value) for line, value in found.items() if value} == {
                    line: value for line, value in by_line.items() if value
                }
        pd.testing.assert_frame_equal(table[trace.sites().columns], trace.sites(), check_dtype=False)


def test_lifetimes_tell_temporaries_and_activations(traces: dict[str, alloctrace.Trace]) -> None:
    large, forward = line_of("base", "LARGE"), line_of("base", "FORWARD")
    for name, trace in traces.items():
        table = trace.lifetimes(device=DEVICES[name])
        row = of_line(table, large)
        assert row["temporary"] and row["churn_per_step"] == row["bytes_per_step"] == 20 * MIB
        assert row["allocations_per_step"] == 1
        kept = of_line(table, line_of("base", "EDITED"))
        assert not kept["temporary"] and kept["churn_per_step"] == 0
        # What the module allocates last is saved for the product's backward, and nothing else holds it.
        last = table[table["source"].str.contains("self.last(self.seen)", regex=False).fillna(False)].iloc[0]
        assert last["retained_per_step"] == 64 * 256 * 4
    product = of_line(traces["cuda"].lifetimes(), forward)
    # The gradients of both its factors in backward, and its result in forward.
    assert product["backward_per_step"] == (256 * 256 + 64 * 256) * 4
    assert product["bytes_per_step"] == product["backward_per_step"] + 64 * 256 * 4
    halfway = traces["cuda"].lifetimes(until="step:3")
    assert of_line(halfway, large)["allocations"] == 3


def test_lifetimes_without_steps(folder: Path) -> None:
    table = alloctrace.load(folder.parent / "no_steps/cpu.alloctrace").lifetimes()
    assert table["churn_per_step"].isna().all() and not table["temporary"].any()
    assert table["live_bytes"].sum() == 24_000


def test_slow_calls_are_those_in_the_events(traces: dict[str, alloctrace.Trace]) -> None:
    trace = traces["cuda"]
    reported = trace.events(kinds=("latency",))
    for by in ("line", "function", "stack"):
        table = trace.lifetimes(by=by)
        assert table["slow_calls"].sum() == len(reported) > 0
        assert table["slow_ns"].sum() == reported["nbytes"].sum()
        assert table["slowest_ns"].max() == reported["nbytes"].max()
    events = trace.events(columns=["seq", "stack_id", "forward_stack_id"]).set_index("seq")
    live = trace.live()
    for_libraries = live.loc[live["site"].str.endswith(" workspace"), "birth_seq"].dropna()
    called = events[~events.index.isin(for_libraries)].reindex(reported["address"]).max(axis=1).to_numpy()
    sums = reported.groupby(called)["nbytes"].sum().astype(np.int64).to_dict()
    by_stack = trace.lifetimes(by="stack").set_index("stack_id")["slow_ns"]
    # What autograd's threads asked for has the line of forward, or no line.
    assert {stack: value for stack, value in by_stack.items() if value and trace.frames(stack)} == {
        stack: value for stack, value in sums.items() if stack > 0
    }
    assert traces["cpu"].lifetimes()["slow_calls"].sum() == 0
