"""Two runs side by side: lines that moved are matched, what changed is named; and the verbs peak, diff and sites."""

from __future__ import annotations

import argparse
import io
import json
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from marked_programs import run_analyze
from peak_programs import VERSIONS, line_of, record
from running import needs_cuda_build
from shared_recordings import record_once

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.analysis.usage.composition import COMPOSITION_BY
from pytorch_alloctrace.analysis.usage.matching import NEAR, SAME, CodeLine, match_files, match_lines
from pytorch_alloctrace.analyze.arguments import byte_count

MIB = 2**20
DEVICES = ("cuda", "cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record_once(tmp_path_factory, "peak_programs", record)


@pytest.fixture(scope="module")
def traces(folder: Path) -> dict[tuple[str, str], alloctrace.Trace]:
    return {
        (version, device): alloctrace.load(folder / version / f"{device}.alloctrace")
        for version in VERSIONS
        for device in DEVICES
    }


Traces = dict[tuple[str, str], alloctrace.Trace]


@needs_cuda_build
@pytest.mark.parametrize("by", COMPOSITION_BY)
def test_a_run_equals_itself(traces: Traces, by: str) -> None:
    for device in DEVICES:
        trace = traces["base", device]
        for at in ("peak", "end", "mark:stepped"):
            table = alloctrace.compare(trace, trace, at=at, by=by)
            assert (table["change"] == 0).all()
            assert table["bytes_after"].sum() == trace.live(at)["nbytes"].sum()
            if "match" in table:
                assert set(table["match"]) == {SAME}
                assert (table["line_before"] == table["line_after"]).all()


@needs_cuda_build
@pytest.mark.parametrize("by", COMPOSITION_BY)
def test_shifted_lines_are_the_same(traces: Traces, by: str) -> None:
    for device in DEVICES:
        table = alloctrace.compare(traces["base", device], traces["shifted", device], by=by)
        assert (table["change"] == 0).all()
        assert table["bytes_after"].sum() == traces["shifted", device].live("peak")["nbytes"].sum() > 0
        if by == "line":
            assert set(table["match"]) == {SAME}
            own = table[table["user"]]
            assert (own["line_after"] > own["line_before"]).all()
            assert (own["source_before"].str.strip() == own["source_after"].str.strip()).all()
            # Two lines of one function have the same text: their order tells them apart.
            kept = own[own["function"] == "keep"].sort_values("line_before")
            assert [*kept["line_after"] - kept["line_before"]] == [
                line_of("shifted", "EDITED") - line_of("base", "EDITED")
            ] * 3


@needs_cuda_build
@pytest.mark.parametrize("by", COMPOSITION_BY)
def test_sums_of_a_comparison(traces: Traces, by: str) -> None:
    for device in DEVICES:
        before, after = traces["base", device], traces["changed", device]
        table = alloctrace.compare(before, after, by=by)
        assert table["bytes_before"].sum() == before.live("peak")["nbytes"].sum()
        assert table["bytes_after"].sum() == after.live("peak")["nbytes"].sum()
        assert table["blocks_after"].sum() == len(after.live("peak"))
        assert table["change"].sum() == (11 - 5 + 7 - 2) * MIB


@needs_cuda_build
def test_what_changed_is_named(traces: Traces) -> None:
    for device in DEVICES:
        table = alloctrace.compare(traces["base", device], traces["changed", device])
        moved = table[table["change"] != 0].fillna({"line_before": 0, "line_after": 0})
        rows = [
            (row["match"], int(row["line_before"]), int(row["line_after"]), row["change"])
            for row in moved.to_dict("records")
        ]
        assert rows == [
            ("new", 0, line_of("changed", "NEW"), 7 * MIB),
            ("near", line_of("base", "EDITED"), line_of("changed", "EDITED"), 6 * MIB),
            ("gone", line_of("base", "GONE"), 0, -2 * MIB),
        ]
        near = moved.iloc[1]
        assert "5 * MIB" in near["source_before"] and "11 * MIB" in near["source_after"]
        back = alloctrace.compare(traces["changed", device], traces["base", device])
        assert sorted(back["change"]) == sorted(-table["change"])


@needs_cuda_build
def test_devices_that_only_one_run_has(traces: Traces) -> None:
    cuda, cpu = traces["base", "cuda"], traces["base", "cpu"]
    table = alloctrace.compare(cuda, cpu, device="cpu")
    assert set(table["match"]) == {"new"} and table["bytes_before"].sum() == 0
    assert table["bytes_after"].sum() == cpu.live("peak")["nbytes"].sum()


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
    assert {(match.before, match.after, match.kind) for match in found} == {
        (index, index, SAME) for index in range(len(sources))
    }


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


def test_what_came_in_elsewhere_is_not_what_was_taken_out() -> None:
    before = code_lines(["gone = 1", "a", "b"], [0, 0, 0])
    after = code_lines(["a", "b", "new = 2"], [0, 0, 0])
    found = match_lines(before, after, {"/here/train.py": "/here/train.py"})
    assert {(match.before, match.after) for match in found} == {(1, 0), (2, 1)}


def test_lines_without_text_are_matched_by_number() -> None:
    before = [CodeLine("a", "f", number, None) for number in (3, 9)]
    after = [CodeLine("a", "f", number, None) for number in (9, 30)]
    found = {(match.before, match.after, match.kind) for match in match_lines(before, after, {"a": "a"})}
    assert found == {(1, 0, SAME)}


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


@needs_cuda_build
def test_verb_diff_of_two_runs(folder: Path) -> None:
    two = ("diff", "base/cuda.alloctrace", "changed/cuda.alloctrace")
    [found] = json.loads(run_analyze(folder, *two, "--json"))
    assert found["change"] == 11 * MIB == found["bytes_after"] - found["bytes_before"]
    assert [row["match"] for row in found["changes"][:3]] == ["new", "near", "gone"]
    table = pd.read_csv(io.StringIO(run_analyze(folder, *two, "--csv", "--by", "function")))
    assert table["change"].sum() == 11 * MIB and set(table["device"]) == {"cuda:0"}
    text = run_analyze(folder, *two, "--top", "2")
    assert text.startswith("MORE  cuda:0: +11.0 MiB") and "(--top 0 shows all)" in text
    assert f"train.py:{line_of('changed', 'EDITED')} in keep, was line {line_of('base', 'EDITED')}" in " ".join(
        text.split()
    )
    run_analyze(folder, *two, "--fail-above", "11MiB")
    run_analyze(folder, *two, "--fail-above", "10.5MiB", status=1)
    same = run_analyze(folder, "diff", "base/cuda.alloctrace", "shifted/cuda.alloctrace", "--fail-above", "0")
    assert same.startswith("SAME")
    assert "needs a second trace" in run_analyze(folder, *two[:2], status=2)
    # CUDA in one, the CPU in the other: each device is compared by itself.
    other = run_analyze(folder, "diff", "base/cuda.alloctrace", "base/cpu.alloctrace", "--device", "cuda:0")
    assert other.startswith("LESS  cuda:0")


@needs_cuda_build
def test_verb_diff_of_two_positions(folder: Path, traces: Traces) -> None:
    arguments = ("diff", "base/cuda.alloctrace", "--since", "mark:kept", "--until", "peak")
    [found] = json.loads(run_analyze(folder, *arguments, "--json"))
    expected = traces["base", "cuda"].diff("mark:kept", "peak")
    assert [row["change"] for row in found["changes"]] == [*expected["change"]]
    assert f"train.py:{line_of('base', 'LARGE')} in step (0 B to 20.0 MiB)" in run_analyze(folder, *arguments)
    assert run_analyze(folder, *arguments[:4], "--by", "phase").startswith("MORE")


@needs_cuda_build
def test_verb_peak(folder: Path, traces: Traces) -> None:
    peak = traces["base", "cuda"].peak()
    found = json.loads(run_analyze(folder, "peak", "base/cuda.alloctrace", "--json"))
    assert (found["bytes"], found["seq"], found["reserved"]) == (peak.bytes, peak.seq, peak.reserved)
    assert sum(row["bytes"] for row in found["composition"]) == peak.requested
    text = run_analyze(folder, "peak", "base/cuda.alloctrace", NO_COLOR="1")
    assert text.startswith("PEAK  cuda:0: 105 MiB allocated") and "BY PHASE" in text and "\x1b" not in text
    table = pd.read_csv(io.StringIO(run_analyze(folder, "peak", "base/cpu.alloctrace", "--at", "step:3", "--csv")))
    assert table["bytes"].sum() == traces["base", "cpu"].live("step:3")["nbytes"].sum()
    assert run_analyze(folder, "peak", "base/cpu.alloctrace", "--at", "step:3").startswith("LIVE  cpu: 20.0 MiB")


@needs_cuda_build
def test_verb_sites(folder: Path, traces: Traces) -> None:
    table = pd.read_csv(io.StringIO(run_analyze(folder, "sites", "base/cuda.alloctrace", "--csv")))
    expected = traces["base", "cuda"].lifetimes()
    assert [*table["churn_per_step"]] == pytest.approx([*expected["churn_per_step"].astype(float)])
    rows = json.loads(run_analyze(folder, "sites", "base/cpu.alloctrace", "--json", "--at", "step:2", "--top", "3"))
    assert len(rows) == 3 and rows[0]["live_bytes"] == 5 * MIB
    text = run_analyze(folder, "sites", "base/cuda.alloctrace")
    for label in ("LIVE", "CHURN", "KEPT FOR BACKWARD", "LARGE TEMPORARIES", "SLOW CALLS"):
        assert f"\n{label}  " in text
    without = run_analyze(folder, "sites", "no_steps/cpu.alloctrace", "--by", "function")
    assert "CHURN" not in without and "LIVE" in without


@pytest.mark.parametrize(
    ("text", "size"), [("4096", 4096), ("2GiB", 2 << 30), ("1.5 KiB", 1536), ("2GB", 2 * 10**9), ("3m", 3 * MIB)]
)
def test_sizes_of_the_command_line(text: str, size: int) -> None:
    assert byte_count(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "-5", "5 XiB", "1e9", "12 GiB per step"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not a size"):
        byte_count(text)
