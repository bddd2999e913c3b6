"""Statements on the lines of two versions of a program, each checked by hand; and laws of the matching."""

from __future__ import annotations

import dataclasses
import html
import re
import sys
from collections import Counter
from pathlib import Path

import compared_programs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from marked_programs import run_analyze
from running import needs_cuda_build, run_python, with_cuda
from shared_recordings import record_once

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.analysis.usage.comparison import compare
from pytorch_alloctrace.analysis.usage.matching import SAME, CodeLine, match_by_text, match_lines
from pytorch_alloctrace.analysis.usage.peak_move import find_peak_move
from pytorch_alloctrace.reading.recorded import RecordedTrace


@pytest.mark.parametrize("place", ["elsewhere", "in_place"])
@pytest.mark.parametrize("name", compared_programs.PAIRS)
def test_compare_matches_lines_of_edited_program(name: str, place: str) -> None:
    folder = record_once("compared", compared_programs.record) / name / place
    before, after, expected = compared_programs.PAIRS[name]

    table = alloctrace.compare(
        alloctrace.load(folder / "before.alloctrace"), alloctrace.load(folder / "after.alloctrace")
    )

    lines = table[["line_before", "line_after"]].fillna(1) - 1
    own = table["user"] & (table["line_before"].fillna(2) > 1) & (table["line_after"].fillna(2) > 1)
    kinds = table["match"].where(~table["moved"], table["match"] + " moved")
    rows = zip(kinds[own], lines["line_before"][own], lines["line_after"][own], strict=True)
    assert {*rows} == expected
    for row in table[own].itertuples():
        for text, filename, line, source in (
            (before, row.filename_before, row.line_before, row.source_before),
            (after, row.filename, row.line_after, row.source_after),
        ):
            if str(line) != "<NA>":
                assert (
                    source.strip()
                    == compared_programs.files_of(text)[Path(filename).name].splitlines()[line - 1].strip()
                )


def test_diff_shows_line_that_stands_but_holds_nothing() -> None:
    folder = record_once("compared", compared_programs.record) / "peak_elsewhere" / "in_place"

    text = run_analyze(folder, "diff", "before.alloctrace", "after.alloctrace")

    assert "train.py:3 in f (4.00 MiB to 0 B; at most 4.00 MiB in both)" in " ".join(text.split())
    assert "gone" not in text and "h = " not in "".join(line for line in text.splitlines() if "was line" in line)


def test_no_maximum_is_equal_in_both_runs_if_the_beginning_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = record_once("compared", compared_programs.record) / "peak_elsewhere" / "in_place"
    traces = [alloctrace.load(folder / f"{name}.alloctrace")._recorded for name in ("before", "after")]
    complete = find_peak_move(*traces, "cpu")
    monkeypatch.setattr(RecordedTrace, "lacks_beginning", True)

    incomplete = find_peak_move(*traces, "cpu")

    assert complete is not None and complete.equal_maxima
    assert incomplete is not None and not incomplete.equal_maxima


def test_diff_states_that_the_peak_moved_to_another_line() -> None:
    folder = record_once("compared", compared_programs.record) / "peak_elsewhere" / "in_place"

    text, markdown = (
        run_analyze(folder, "diff", "before.alloctrace", "after.alloctrace", *options)
        for options in (("--width", "200"), ("--markdown",))
    )

    sentence = "before it was in train.py:4 in f, now in train.py:8 in f. Lines are compared at these two moments."
    for output in (text, markdown):
        assert f"The peak moved: {sentence}" in html.unescape(output).replace("peak_elsewhere/in_place/", "")


@needs_cuda_build
def test_diff_states_that_the_peak_moved_to_the_backward_of_a_line() -> None:
    folder = record_once("peak_in_backward", record_peak_in_backward)

    text = run_analyze(folder, "diff", "before.alloctrace", "after.alloctrace", "--width", "200")

    sentence = "The peak moved: before it was in before.py:8 in forward, now in the backward of after.py:7 in forward."
    assert f"\n{sentence} Lines are compared at these two moments.\n" in text
    by_role = run_analyze(folder, "diff", "before.alloctrace", "after.alloctrace", "--by", "role", "--width", "200")
    assert f"\n{sentence} Roles are compared at these two moments.\n" in by_role and "at most" not in by_role
    # The backward of line 7 needs as much in both, but the peak before the change preceded it.
    assert re.search(r"after.py:7 in forward \(4 B to ([\d.]+ MiB); at most \1 in both\)", text)


def test_diff_states_the_source_of_two_lines_with_one_number_that_allocate_the_peaks() -> None:
    folder = record_once("compared", compared_programs.record) / "removed" / "in_place"

    text = " ".join(run_analyze(folder, "diff", "before.alloctrace", "after.alloctrace").split())

    assert re.search(r"before it was in \S+train.py:4: .+, now in \S+train.py:4: .+\. Lines are compared", text)


def test_diff_does_not_mention_the_peak_if_the_same_line_allocates_it() -> None:
    folder = record_once("compared", compared_programs.record)

    for name in ("edited", "moved"):
        text = run_analyze(folder / name / "in_place", "diff", "before.alloctrace", "after.alloctrace")
        assert "to peak of after" in text and "The peak moved" not in text


def test_diff_names_previous_place_of_moved_lines_and_omits_those_without_change() -> None:
    folder = record_once("compared", compared_programs.record)

    traces = "diff", "before.alloctrace", "after.alloctrace", "--width", "200"
    names = ("to_method", "to_class", "to_file", "renamed_file")
    method, cancelling, file, renamed = (run_analyze(folder / name / "elsewhere", *traces) for name in names)

    assert "train.py:4 in Net.normalise, moved from to_method/elsewhere/before/train.py:5 in Net.forward (" in method
    assert cancelling.startswith("SAME") and "new" not in cancelling
    assert (
        "losses.py:4 in pairwise, moved and changed from to_file/elsewhere/before/train.py:4 in pairwise: mask = "
        in file
    )
    assert "gone" not in file and "new" not in file
    assert "v2.py:4 in features (2.00 MiB to 4.00 MiB)" in renamed and "gone" not in renamed


@pytest.mark.parametrize(
    ("name", "by"), [("to_file", "function"), ("renamed_file", "function"), ("renamed_file", "file")]
)
def test_compare_matches_renamed_functions_and_files(name: str, by: str) -> None:
    folder = record_once("compared", compared_programs.record) / name / "elsewhere"
    before, after = (alloctrace.load(folder / f"{version}.alloctrace") for version in ("before", "after"))

    table = alloctrace.compare(before, after, by=by)

    own = table[table["user"]]
    assert set(own["match"]) == {"same"}
    assert list(own["function"][own["moved"]]) == (["pairwise"] if name == "to_file" else [])


@pytest.mark.parametrize("by", ["function", "file", "stack"])
def test_compare_of_code_that_holds_nothing_at_the_peak_is_not_gone(by: str) -> None:
    folder = record_once("compared", compared_programs.record) / "freed_earlier" / "in_place"
    before, after = (alloctrace.load(folder / f"{name}.alloctrace")._recorded for name in ("before", "after"))

    table = compare(before, after, by=by)

    own = table[table["user"]]
    assert set(own["match"]) == ({"same", "new"} if by == "stack" else {"same"})


_texts = st.lists(st.sampled_from(["x = f(x)", "y = g(x)", "x = x + 1", "kept.append(z)"]), min_size=1, max_size=12)


@given(_texts, _texts)
def test_line_with_unchanged_text_and_neighbours_matches_itself(first: list[str], second: list[str]) -> None:
    before, after = ([CodeLine("a", "f", line, text) for line, text in enumerate(texts)] for texts in (first, second))

    matches = {match.before: match for match in match_lines(before, after, {"a": "a"})}

    contexts = [[*zip(["", *texts], texts, [*texts[1:], ""], strict=False)] for texts in (first, second)]
    counts = [Counter(side) for side in contexts]
    for index, context in enumerate(contexts[0]):
        if counts[0][context] == counts[1][context] == 1:
            assert (matches[index].after, matches[index].kind) == (contexts[1].index(context), SAME)


def test_text_that_fits_several_functions_equally_well_is_unmatched() -> None:
    before = [CodeLine("a", "f", 1, "loss = model(x).sum()")]
    after = [CodeLine("a", function, line, "loss = model(x).sum()") for line, function in enumerate("gh")]

    matches = match_lines(before, after, {"a": "a"})
    by_bytes = match_lines(
        [dataclasses.replace(before[0], live_bytes=8)],
        [after[0], dataclasses.replace(after[1], live_bytes=8)],
        {"a": "a"},
    )

    assert matches == []
    assert [(match.before, match.after) for match in by_bytes] == [(0, 1)]


def test_layer_of_new_class_is_no_edited_layer_of_removed_class() -> None:
    before = [
        CodeLine("a", "Block.__init__", line, f"self.{name} = nn.Linear(512, 512)") for line, name in enumerate("ab")
    ]
    after = [
        CodeLine("a", "Block.__init__", 0, before[0].source),
        CodeLine("a", "Head.__init__", 9, "self.c = nn.Linear(512, 512)"),
    ]

    matches = match_lines(before, after, {"a": "a"})

    assert [(match.before, match.after, match.kind) for match in matches] == [(0, 0, SAME)]


@given(_texts, st.data())
def test_line_in_no_stack_is_no_edited_version(texts: list[str], data: st.DataObject) -> None:
    recorded = data.draw(st.lists(st.booleans(), min_size=len(texts), max_size=len(texts)))
    before = [CodeLine("a", "f", line, f"{text} # before") for line, text in enumerate(texts)]
    after = [
        CodeLine("a", "f", line, text, is_recorded=is_recorded)
        for line, (text, is_recorded) in enumerate(zip(texts, recorded, strict=True))
    ]

    matches = match_lines(before, after, {"a": "a"})

    assert {match.after for match in matches} <= {line for line, is_recorded in enumerate(recorded) if is_recorded}


def test_function_with_the_text_of_two_removed_functions_matches_neither() -> None:
    before, after = (
        [CodeLine("a", function, line, "kept.append(encode(x))") for line, function in enumerate(functions)]
        for functions in ("fg", "h")
    )

    assert match_by_text(before, after, lambda line: line.place) == {}
    assert match_by_text(before[:1], after, lambda line: line.place) == {("a", "f"): ("a", "h")}


def test_lines_of_a_function_that_was_divided_match_in_both_parts() -> None:
    texts = [f"x{number} = layers[{number}](x{number - 1})" for number in range(5)]
    before = [CodeLine("a", "f", line, text) for line, text in enumerate(texts)]
    after = [CodeLine("a", "g" if line < 3 else "h", line, text) for line, text in enumerate(texts)]

    matches = match_lines(before, after, {"a": "a"})

    assert {(match.before, match.after) for match in matches} == {(line, line) for line in range(5)}


@pytest.mark.parametrize(
    ("texts", "functions", "expected"),
    [
        (("return x",), ("helper",), set()),  # may be in any function
        (("x = self.norm(x)",), ("helper",), {(0, 0)}),
        (("x = self.norm(x)",), ("Block.forward", "helper"), set()),
        (("x = self.norm(x)", "y = self.proj(x)"), ("helper", "other"), set()),
        (("x = self.norm(x)", "y = self.proj(x)"), ("helper", "Block.forward"), {(0, 2), (1, 3)}),  # of equal name
    ],
)
def test_line_moved_to_another_function_matches_only_with_evidence(
    texts: tuple[str, ...], functions: tuple[str, ...], expected: set[tuple[int, int]]
) -> None:
    before = [CodeLine("a", "Net.forward", line, text) for line, text in enumerate(texts)]
    after = [CodeLine("b", function, line, text) for function in functions for line, text in enumerate(texts)]

    matches = match_lines(before, after, {})

    assert {(match.before, match.after) for match in matches} == expected


@pytest.mark.parametrize(
    ("text", "others", "sizes", "match"),
    [
        ("h = h * w", ("return h * w",), (8, 8), 0),
        (
            "att = softmax(q @ q.transpose(-1, -2), dim=-1)",
            ("return softmax(q @ q.transpose(-1, -2) / 8, dim=-1)",),
            (8, 8),
            0,
        ),
        ("h = h * w", ("return h + w", "return h * w"), (8, 8), 1),
        ("h = h * w", ("return h * w", "out = h * w"), (8, 8), None),
        ("h = h * w", ("return h / w", "return h + w"), (8, 8), None),
        ("h = h * w", ("return h * w",), (8, 80), None),  # the bytes differ too much
        ("h = h * w", ("return h * w",), (8, 0), None),
        ("h = h * w", ("return h + w",), (8, 8), None),
        ("y = x", ("return x",), (8, 8), None),  # may be in any function
        ("self.a = Linear(512, 512)", ("self.last = Linear(512, 10)",), (8, 8), None),
    ],
)
def test_line_that_moved_and_changed_matches_only_if_its_expression_and_bytes_fit_one_line(
    text: str, others: tuple[str, ...], sizes: tuple[int, int], match: int | None
) -> None:
    rest = [CodeLine("a", "f", line, f"{name} = call_{name}(x)") for line, name in ((1, "first"), (9, "last"))]
    before = [*rest, CodeLine("a", "f", 5, text, live_bytes=sizes[0])]
    after = [
        *(CodeLine("a", f"helper{n}", 20 + n, other, live_bytes=sizes[1]) for n, other in enumerate(others)),
        *rest,
    ]

    matches = match_lines(before, after, {"a": "a"})

    assert [found.after for found in matches if found.before == 2] == ([] if match is None else [match])


@pytest.mark.parametrize(("common", "is_match"), [(1, False), (2, True)])
def test_function_matches_another_if_half_of_its_texts_are_equal(common: int, is_match: bool) -> None:
    texts = [f"x = f{line}(x)" for line in range(4)]
    before = [CodeLine("a", "g", line, text) for line, text in enumerate(texts)]
    after = [CodeLine("a", "h", line, text if line < common else f"{text} + 1") for line, text in enumerate(texts)]

    matches = match_by_text(before, after, lambda line: line.place)

    assert matches == ({("a", "g"): ("a", "h")} if is_match else {})


_PEAK_IN_BACKWARD = """\
import sys, torch, pytorch_alloctrace as alloctrace
alloctrace.enable(sys.argv[1], devices=("cuda",))
MIB = 2**18
weight = torch.ones(MIB, device="cuda", requires_grad=True)
def forward():
    x = weight * 2
    y = x.std(0)
    LARGEST
    return y
for _ in range(3):
    forward().backward()
    weight.grad = None
"""


def record_peak_in_backward(folder: Path) -> None:
    for name, line in (("before", "torch.ones(16 * MIB, device='cuda')"), ("after", "")):
        (folder / f"{name}.py").write_text(_PEAK_IN_BACKWARD.replace("LARGEST", line))
        run_python(folder, with_cuda([sys.executable, f"{name}.py", f"{name}.alloctrace"]), True, 600, {})
