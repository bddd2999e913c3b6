"""Live memory by call, and the frames in which stacks differ. The oracles are the frames of each live block."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from marked_programs import line_with, run_analyze
from shared_recordings import run_source

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.analysis.usage.differing_frames import differing_frames
from pytorch_alloctrace.analysis.usage.tree import DEEPEST, Call, Tree, tree_at

KIB = 1024
PROGRAM = """
import torch, pytorch_alloctrace as alloctrace

def leaf(size):
    return torch.empty(size, dtype=torch.uint8)  # in leaf

def two(size):
    first = leaf(size)
    return first, torch.empty(size, dtype=torch.uint8), leaf(size)

def descend(depth, size):
    if depth:
        return torch.empty(size, dtype=torch.uint8), descend(depth - 1, size)
    return leaf(size)

def even(depth, size):
    return odd(depth - 1, size)

def odd(depth, size):
    return even(depth - 1, size) if depth > 0 else leaf(size)

def main():
    kept = two(1024), two(4096)
    kept += (descend(400, 16),)
    kept += (even(3, 1 << 20),)
    kept += (even(399, 1 << 16),)  # DEEP
    kept += ([leaf(10) for _ in range(3)],)
    alloctrace.mark("kept")
    return kept

with alloctrace.enable("t.alloctrace", devices=("cpu",)):
    alloctrace.mark("before")
    kept = main()
    del kept
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_source(tmp_path_factory.mktemp("tree"), PROGRAM)


@pytest.fixture(scope="module")
def trace(folder: Path) -> alloctrace.Trace:
    return alloctrace.load(folder / "t.alloctrace")


def callee_at(call: Call, text: str) -> Call:
    [callee] = [callee for callee in call.calls if callee.site.line == line_with(text, PROGRAM)]
    return callee


def test_tree_has_bytes_of_each_call_and_its_callees(trace: alloctrace.Trace) -> None:
    tree = tree_at(trace._recorded, "mark:kept")
    live_bytes = 3 * KIB + 12 * KIB + 401 * 16 + KIB * KIB + 64 * KIB + 30
    assert (tree.bytes, tree.blocks) == (live_bytes, 3 + 3 + 401 + 1 + 1 + 3)
    [outermost] = tree.calls
    assert (outermost.site.function, outermost.bytes, outermost.own_bytes) == ("<module>", live_bytes, 0)
    assert {call.site.function for call in outermost.calls} == {"main"}
    sizes = [call.bytes for call in outermost.calls]
    assert len(sizes) == 5 and sizes == sorted(sizes, reverse=True)
    two = callee_at(outermost, "kept = two(1024)")
    assert (two.bytes, two.own_bytes, two.blocks) == (15 * KIB, 0, 6), "two calls from one line are not merged"
    assert sorted(call.bytes for call in two.calls) == [5 * KIB, 10 * KIB]
    both = callee_at(two, "return first")
    assert (both.bytes, both.own_bytes, both.share) == (10 * KIB, 5 * KIB, pytest.approx(10 * KIB / live_bytes))
    assert [call.site.function for call in both.calls] == ["leaf"] and both.calls[0].bytes == 5 * KIB
    assert tree_at(trace._recorded, "mark:before") == Tree(0, 0, ())
    pd.testing.assert_frame_equal(trace.peak().usage(by="call"), trace.usage("peak", by="call"))


def test_tree_merges_direct_recursion(trace: alloctrace.Trace) -> None:
    [main] = tree_at(trace._recorded, "mark:kept").calls
    descend = callee_at(main, "descend(400")
    assert (descend.bytes, descend.own_bytes) == (401 * 16, 0)
    [recursive] = descend.calls
    assert (recursive.bytes, recursive.own_bytes, recursive.blocks) == (401 * 16, 400 * 16, 401)
    assert {call.site.function: call.bytes for call in recursive.calls} == {"descend": 16}
    # Calls of mutually recursive functions are not merged.
    even = callee_at(main, "even(3,")
    assert [call.site.function for call in even.chain[1:]] == ["even", "odd", "even", "odd", "leaf"]
    assert {call.bytes for call in even.chain} == {KIB * KIB}
    deep = callee_at(main, "# DEEP")
    assert len(deep.chain) == DEEPEST - 1
    assert {call.bytes for call in deep.chain} == {64 * KIB} and deep.chain[-1].own_bytes == 64 * KIB


def test_tree_text_shows_chain_of_calls_as_one_line(folder: Path) -> None:
    text = run_analyze(folder, "peak", "t.alloctrace", "--tree", "--at", "mark:kept")
    even, odd, leaf = (line_with(line, PROGRAM) for line in ("return odd", "else leaf", "# in leaf"))
    chain = [f":{even} in even", f":{odd} in odd"] * 2
    calls = [f":{line_with('even(3,', PROGRAM)} in main", *chain, f":{leaf} in leaf"]
    joined = " ".join(text.replace("│", " ").split())
    assert " → ".join(calls) in joined
    assert f"... {DEEPEST - 11} calls ..." in joined, "a long chain shows more than its ends"
    assert max(map(len, text.splitlines())) <= 80
    assert "more calls" in text, "the call with 30 bytes is shown"
    assert "more call" not in run_analyze(folder, "peak", "t.alloctrace", "--tree", "--at", "mark:kept", "--top", "0")
    ascii_text = run_analyze(folder, "peak", "t.alloctrace", "--tree", encoding="ascii")
    assert ascii_text.isascii() and "`- " in ascii_text and " > " in ascii_text


def test_tree_json_and_csv_have_every_call(trace: alloctrace.Trace, folder: Path) -> None:
    tree = tree_at(trace._recorded, "mark:kept")
    data = json.loads(run_analyze(folder, "peak", "t.alloctrace", "--tree", "--at", "mark:kept", "--json"))
    assert data["requested_bytes"] == tree.bytes
    calls = [(call, row) for call, row in zip(tree.calls, data["calls"], strict=True)]
    for call, row in calls:
        assert (row["line"], row["function"], row["live_bytes"]) == (call.site.line, call.site.function, call.bytes)
        assert row["stack_id"] == call.stack_id and trace.frames(call.stack_id)
        calls += zip(call.calls, row["calls"], strict=True)
    assert len(calls) == len(tree.table) == len(trace.usage("mark:kept", by="call"))
    rows = run_analyze(folder, "peak", "t.alloctrace", "--tree", "--at", "mark:kept", "--csv").splitlines()
    assert len(rows) == len(tree.table) + 1 and rows[0].startswith("depth,function,filename,line")
    widest = json.loads(run_analyze(folder, "peak", "t.alloctrace", "--tree", "--json", "--top", "1"))
    assert len(widest["calls"][0]["calls"]) == 1


def test_peak_by_stack_shows_frames_in_which_stacks_differ(run_program, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    run_program("""
        import torch, pytorch_alloctrace as alloctrace
        def make(size): return torch.empty(size, dtype=torch.uint8)
        def first(): return make(3000)
        def second(): return make(2000)
        layer = torch.nn.Sequential(torch.nn.Linear(50, 60), torch.nn.GELU())
        with alloctrace.enable("t.alloctrace", devices=("cpu",)):
            kept = [first(), second(), torch.empty(500), layer(torch.zeros(20, 50))]
            alloctrace.mark("kept")
    """)
    trace = alloctrace.load(tmp_path / "t.alloctrace")
    stacks = trace.usage("mark:kept", by="stack")
    differing = differing_frames(trace._recorded.stacks, stacks["stack_id"])
    of_make = stacks.loc[stacks["function"] == "make", "stack_id"]
    assert [[frame.function for frame in differing[stack]] for stack in of_make] == [["first"], ["second"]]
    text = run_analyze(tmp_path, "peak", "t.alloctrace", "--by", "stack", "--at", "mark:kept")
    assert text.count("def make(size): return torch.empty") == 1
    assert "via program.py:4 in first" in text and "via program.py:5 in second" in text
    assert "linear.py" in text and "activation.py" in text
    all_frames = run_analyze(tmp_path, "peak", "t.alloctrace", "--by", "stack", "--at", "mark:kept", "--all-frames")
    assert "via " not in all_frames
