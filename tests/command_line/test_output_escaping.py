"""No text of a trace becomes a formula in CSV, a link or HTML in Markdown, or an invisible character anywhere.

Data stay as they are: JSON and the DataFrames have the texts of the trace.
"""

from __future__ import annotations

import csv
import html
import io
import json
import re
import unicodedata
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from markdown_it import MarkdownIt
from marked_programs import run_analyze
from text_traces import TextTrace

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.reading.recorded import RecordedTrace
from pytorch_alloctrace.report.page.columns import unpack
from pytorch_alloctrace.report.page.data import build_page_data, build_snapshot_data
from pytorch_alloctrace.report.tables import csv_text

PAYLOAD = (
    "=1+1 ![i](http://evil.example/i.png) [l](javascript:alert(1)) <img src=x onerror=alert(1)> <https://evil.example>"
    " https://evil.example WWW.evil.example a@evil.example @everyone \\[x](y) \\<b> `code` ``` | --- | **b** ~~s~~ $x$"
    " \u202egnp.\u2066\u200b\ufeff\x1b[31m\r\n# heading\n\n| a | b |\n| - | - |\n```\n[r]: http://evil.example"
)
FUNCTIONS = ("main", "weights", "forward", "keep", "small", "batch")
CSV = {
    "sites": ("sites",),
    "sites-function": ("sites", "--by", "function"),
    "sites-module": ("sites", "--by", "module"),
    "peak": ("peak",),
    "peak-tree": ("peak", "--tree"),
    "peak-module": ("peak", "--by", "module"),
    "peak-age": ("peak", "--by", "age"),
    "leaks": ("leaks",),
    "blocks": ("blocks",),
    "segments": ("segments",),
    "fragmentation": ("fragmentation",),
    "oom": ("oom",),
    "diff": ("diff", "--since", "step:4"),
    "timeline": ("timeline", "--points", "20"),
    "timeline-role": ("timeline", "--points", "20", "--by", "role"),
    "annotate": ("annotate", f"{PAYLOAD}keep"),
}
MARKDOWN = {
    "diagnose": ("diagnose",),
    "leaks": ("leaks",),
    "leaks-fail-above": ("leaks", "--fail-above", "1TiB"),
    "diff": ("diff", "--since", "step:4"),
    "diff-stack": ("diff", "--since", "step:4", "--by", "stack"),
    "diff-module": ("diff", "--since", "step:4", "--by", "module"),
    "diff-mark": ("diff", "--since", f"mark:{PAYLOAD}#2"),
    "leaks-region": ("leaks", "--in", PAYLOAD),
}


def hostile(word: str, path: Path) -> Path:
    """Write a trace in which every text is the word."""
    names = dict.fromkeys(FUNCTIONS, word)
    # Otherwise all functions would be one file, and all lines one line.
    files = {name: f"{word}{name}" for name in FUNCTIONS}
    header = {"arguments": [word], "torch": word, "host": word, "working_directory": "/elsewhere"}
    return TextTrace(files, word, names, word, (word,), header).write(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    hostile(PAYLOAD, folder / "run.alloctrace")
    return folder


def invisible(text: str) -> set[str]:
    """Return the characters of a text that show nothing, or change the order in which others are shown."""
    return {one for one in text if unicodedata.category(one) in ("Cc", "Cf", "Zl", "Zp") and one not in "\n\t"}


@pytest.mark.parametrize("verb", CSV)
def test_csv_has_no_formula_and_no_invisible_character(folder: Path, verb: str) -> None:
    printed = run_analyze(folder, *CSV[verb], "run.alloctrace", "--csv")

    assert not invisible(printed)
    header, *rows = csv.reader(io.StringIO(printed))
    for row in rows:
        assert len(row) == len(header)
        for cell in row:
            assert re.fullmatch(r"-?[\d.]+(e[+-]\d+)?", cell) or not re.match(r"[=+\-@\t\r\n]", cell), cell


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20"])
def test_csv_of_text_begins_with_an_apostrophe(tmp_path: Path, start: str) -> None:
    hostile(f"{start}cmd", tmp_path / "run.alloctrace")

    table = pd.read_csv(io.StringIO(run_analyze(tmp_path, "sites", "run.alloctrace", "--csv")))

    assert len(table) > 3
    assert table["filename"].str.startswith(f"'{start}cmd").all() and (table["function"] == f"'{start}cmd").all()


def test_csv_keeps_numbers_and_table() -> None:
    table = pd.DataFrame({"text": ["-5", "=a", "plain", None], "count": pd.array([-5, 1, None, 2], dtype="Int64")})
    table["mixed"] = pd.Series([-5, -0.5, "-5", None], dtype=object)
    table["rate"] = [-1.5, np.inf, 2.0, np.nan]
    before = table.copy()

    text = csv_text(table)

    assert text.splitlines() == ["text,count,mixed,rate", "'-5,-5,-5,-1.5", "'=a,1,-0.5,inf", "plain,,'-5,2.0", ",2,,"]
    pd.testing.assert_frame_equal(table, before)


def test_csv_of_ranks_has_no_formula(tmp_path: Path) -> None:
    for rank in ("0", "1"):
        TextTrace(dict.fromkeys(FUNCTIONS, "=x"), header={"rank": rank, "world_size": 2, "host": "=\u202ehost"}).write(
            tmp_path / f"{rank}.alloctrace"
        )

    printed = run_analyze(tmp_path, "ranks", ".", "--csv", "--jobs", "1")

    assert "'=\\u202ehost" in printed and not invisible(printed)


@pytest.mark.parametrize("verb", MARKDOWN)
def test_markdown_has_no_link_no_image_and_no_html_of_a_trace(folder: Path, verb: str) -> None:
    printed = run_analyze(folder, *MARKDOWN[verb], "run.alloctrace", "--markdown")

    assert not invisible(printed)
    tags, shown = Rendered.of(printed)
    assert tags <= {"h3", "p", "strong", "table", "thead", "tbody", "tr", "th", "td", "br", "code", "sub", "blockquote"}
    assert tags >= {"h3", "p"}
    # GitHub makes links of these, in text that it has decoded.
    assert not re.search(r"(?:https?|ftp):/|\bwww\.|@\w", shown, re.IGNORECASE)
    for table in re.findall(r"(?:^\|.*\n)+", printed, re.MULTILINE):
        assert len({line.count("|") for line in table.splitlines()}) == 1


def test_markdown_shows_what_a_trace_has(folder: Path) -> None:
    _, shown = Rendered.of(run_analyze(folder, "leaks", "run.alloctrace", "--markdown"))

    visible = PAYLOAD.encode("unicode_escape").decode().replace("\\\\", "\\")
    assert visible in shown.replace("\u200b", "")


class Rendered(HTMLParser):
    """The tags and the text that Markdown becomes, with the extensions of GitHub."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text = ""

    @classmethod
    def of(cls, markdown: str) -> tuple[set[str], str]:
        parser = cls()
        parser.feed(MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(markdown))
        return parser.tags, parser.text

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        assert all(name == "style" for name, _ in attrs), attrs

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize(
    "words", [("diagnose",), ("leaks", "--all-frames"), ("peak", "--tree"), CSV["annotate"], ("oom",)]
)
def test_text_has_no_invisible_character(folder: Path, words: tuple[str, ...]) -> None:
    assert not invisible(run_analyze(folder, *words, "run.alloctrace"))


def test_html_of_a_notebook_has_no_tag_and_no_invisible_character_of_a_trace(folder: Path) -> None:
    trace = alloctrace.load(folder / "run.alloctrace")

    for shown in (trace._repr_html_(), *(finding._repr_html_() for finding in trace.diagnose())):
        assert not invisible(shown)
        assert set(re.findall(r"<(\w+)", shown)) <= {"pre", "span"}


def test_page_has_no_invisible_character_of_a_trace(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytorch_alloctrace.report.page.what_if.MOST_WORK", 5_000)
    trace = RecordedTrace(folder / "run.alloctrace")

    title, data = build_page_data(trace)

    for text in (title, *texts_in(unpack(data)[0]), *texts_in(unpack(build_snapshot_data(trace, 100))[0])):
        assert not invisible(text) and "\n" not in text


def texts_in(data: object) -> list[str]:
    """Return all texts in plain values."""
    if isinstance(data, str):
        return [data]
    parts = [*data, *data.values()] if isinstance(data, dict) else data if isinstance(data, list) else []
    return [text for part in parts for text in texts_in(part)]


def test_json_and_tables_have_the_texts_of_the_trace(folder: Path) -> None:
    rows = json.loads(run_analyze(folder, "sites", "run.alloctrace", "--json"))["rows"]
    table = alloctrace.load(folder / "run.alloctrace").usage()

    assert rows[0]["function"] == table["function"].iloc[0] == PAYLOAD
    assert rows[0]["filename"].startswith(PAYLOAD) and table["filename"].iloc[0].startswith(PAYLOAD)


@pytest.mark.parametrize("to", ["speedscope", "perfetto"])
def test_export_to_json_has_the_texts_of_the_trace(folder: Path, tmp_path: Path, to: str) -> None:
    written = alloctrace.load(folder / "run.alloctrace").export(tmp_path / "out", to)

    assert written.read_bytes().isascii() and PAYLOAD in texts_in(json.loads(written.read_text()))


def test_collapsed_stacks_have_no_invisible_character(folder: Path, tmp_path: Path) -> None:
    written = alloctrace.load(folder / "run.alloctrace").export(tmp_path / "out", "collapsed")

    assert not invisible(written.read_text())
    assert "\\u202egnp" in html.unescape(written.read_text())
