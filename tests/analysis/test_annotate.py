"""A source file annotated with its allocations: figures, file lookup and the origin of the text."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path

import pandas as pd
import pytest
from marked_programs import line_with, run_analyze
from running import run_python

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.errors import TraceError

MODEL = """\
import torch


def leaf(size):
    return torch.empty(size, dtype=torch.uint8)  # LEAF


class Part:
    # A comment.
    # Another one.
    # And a third.
    # And a fourth.

    def both(self, size):
        first = leaf(size)  # FIRST
        return first, leaf(size)  # SECOND

    def descend(self, depth):
        return self.descend(depth - 1) if depth else leaf(1000)  # DESCEND


def nothing():
    return 1
"""
PROGRAM = """
import os, sys, torch, pytorch_alloctrace as alloctrace
sys.path.insert(0, os.path.abspath("models"))
import model, one.model, two.model

with alloctrace.enable("t.alloctrace", devices=("cpu",)):
    kept = model.Part().both(4096)  # KEPT
    alloctrace.mark("kept")
    temporary = model.Part().both(1 << 20)  # TEMPORARY
    del temporary
    kept += (model.Part().descend(30),)
    alloctrace.mark("descended")
with alloctrace.enable("twins.alloctrace", devices=("cpu",)):
    twins = one.model.make(), two.model.make(), two.model.make()
"""
COLUMNS = ["allocations", "total_bytes", "peak_bytes", "net_bytes"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("annotate")
    twin = "import torch\ndef make(): return torch.empty(10)\n"
    for name, text in (("models", MODEL), ("one", twin), ("two", twin)):
        (path / name).mkdir()
        (path / name / "model.py").write_text(text)
    (path / "program.py").write_text(PROGRAM)
    run_python(path, [sys.executable, "program.py"], True, 600, {})
    return path


def figures(table: pd.DataFrame) -> dict[int, list[int]]:
    rows = table.set_index("line")[COLUMNS]
    return {int(line): row.tolist() for line, row in rows[rows.any(axis=1)].iterrows()}


def test_annotate_counts_allocations_of_each_line_in_run_and_range(folder: Path) -> None:
    trace = alloctrace.load(folder / "t.alloctrace")
    table = trace.annotate("model.py")
    assert list(table.columns) == ["line", "source", *COLUMNS]
    assert table["source"].tolist() == MODEL.splitlines(), "all lines of the file"
    large = 1 << 20
    assert figures(table) == {
        line_with("# FIRST", MODEL): [2, 4096 + large, 4096 + large, 4096],
        line_with("# SECOND", MODEL): [2, 4096 + large, 4096 + large, 4096],
        line_with("# DESCEND", MODEL): [1, 1000, 0, 1000],  # once, though the line is on the stack 31 times
        line_with("# LEAF", MODEL): [5, 2 * (4096 + large) + 1000, 2 * (4096 + large), 2 * 4096 + 1000],
    }
    by_caller = figures(trace.annotate("program.py"))
    assert by_caller[line_with("# KEPT", PROGRAM)] == [2, 8192, 8192, 8192]
    assert by_caller[line_with("# TEMPORARY", PROGRAM)] == [2, 2 * large, 2 * large, 0]

    in_range = figures(trace.annotate("model.py", since="mark:kept", until="mark:descended"))
    assert in_range[line_with("# FIRST", MODEL)] == [1, large, 4096 + large, 0]
    assert in_range[line_with("# LEAF", MODEL)] == [3, 2 * large + 1000, 2 * (4096 + large), 1000]
    assert "+1000 B" in run_analyze(folder, "annotate", "t.alloctrace", "model.py", "--since", "mark:kept")


def test_annotate_text_shows_context_and_json_and_csv_show_all_lines(folder: Path) -> None:
    text = run_analyze(folder, "annotate", "t.alloctrace", "model.py")
    assert "class Part" in text and "def both" in text and "# LEAF" in text
    assert sum(line.strip() == "..." for line in text.splitlines()) == 1 and "Another" not in text
    assert "def nothing" not in text and "The file" not in text
    narrow = run_analyze(folder, "annotate", "t.alloctrace", "model.py", "--width", "60")
    assert max(map(len, narrow.splitlines())) == 60

    table = alloctrace.load(folder / "t.alloctrace").annotate("model.py")
    rows = json.loads(run_analyze(folder, "annotate", "t.alloctrace", "model.py", "--json"))["rows"]
    assert [row["line"] for row in rows] == table["line"].tolist()
    from_csv = pd.read_csv(io.StringIO(run_analyze(folder, "annotate", "model.py", "t.alloctrace", "--csv")))
    pd.testing.assert_frame_equal(from_csv[["line", *COLUMNS]], table[["line", *COLUMNS]])


def test_annotate_shows_recorded_lines_when_file_changed_or_is_gone(folder: Path) -> None:
    model = folder / "models/model.py"
    before = figures(alloctrace.load(folder / "t.alloctrace").annotate("model.py"))
    for text, message in ((MODEL.replace("first = leaf", "a = leaf"), "has changed since"), (None, "was not found")):
        model.unlink()  # restored at the end: all tests share the folder
        if text is not None:
            model.write_text(text)
        table = alloctrace.load(folder / "t.alloctrace").annotate("model.py")
        assert figures(table) == before and sorted(table["line"]) == sorted(before)
        assert table["source"].tolist() == [MODEL.splitlines()[line - 1] for line in table["line"]]
        output = run_analyze(folder, "annotate", "t.alloctrace", "model.py")
        assert message in output and "only lines in the trace" in output
    # Lines added below the recorded ones are shown; a pipe is not read.
    model.write_text(MODEL + "\n# More.\n")
    assert alloctrace.load(folder / "t.alloctrace").annotate("model.py")["line"].max() == MODEL.count("\n") + 2
    model.unlink()
    os.mkfifo(model)
    assert sorted(alloctrace.load(folder / "t.alloctrace").annotate("model.py")["line"]) == sorted(before)
    model.unlink()
    model.write_text(MODEL)
    # A file that moved is found relative to the working directory.
    (folder / "models").rename(folder / "elsewhere")
    text = run_analyze(folder / "elsewhere", "annotate", "../t.alloctrace", "model.py")
    (folder / "elsewhere").rename(folder / "models")
    assert "The file" not in text and "def both" in text


def test_annotate_of_unknown_or_ambiguous_file_lists_candidates(folder: Path) -> None:
    trace = alloctrace.load(folder / "t.alloctrace")
    for name in ("other.py", "odel.py", ""):
        with pytest.raises(TraceError, match=r"models/model\.py and program\.py$"):
            trace.annotate(name)
    for name in ("models/model.py", "./models/model.py", str(folder / "models/model.py")):
        assert len(trace.annotate(name)) == MODEL.count("\n")
    assert "name a file: the trace has" in run_analyze(folder, "annotate", "t.alloctrace", status=2)
    assert "one file" in run_analyze(folder, "annotate", "t.alloctrace", "model.py", "program.py", status=2)
    trace = alloctrace.load(folder / "twins.alloctrace")
    with pytest.raises(
        TraceError, match=r"2 files of the trace match .model\.py.: name one of one/model\.py or two/model\.py"
    ):
        trace.annotate("model.py")
    assert figures(trace.annotate("two/model.py"))[2][0] == 2
