"""Hostile texts of a trace in all outputs: no formula in CSV, no link or HTML in Markdown, no invisible character.

JSON and DataFrames have the texts unchanged.
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


def write_hostile_trace(text: str, path: Path) -> Path:
    """Write a trace with the same text as every name, path and mark."""
    names = dict.fromkeys(FUNCTIONS, text)
    # With equal file names all lines of the report would be one.
    files = {name: f"{text}{name}" for name in FUNCTIONS}
    header = {"arguments": [text], "torch": text, "host": text, "working_directory": "/elsewhere"}
    return TextTrace(files, text, names, text, (text,), header).write(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    write_hostile_trace(PAYLOAD, folder / "run.alloctrace")
    return folder


def find_invisible(text: str) -> set[str]:
    """Return the characters of a text that are invisible or change the writing direction."""
    return {c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp") and c not in "\n\t"}


@pytest.mark.parametrize("name", CSV)
def test_csv_has_no_formula_and_no_invisible_character(folder: Path, name: str) -> None:
    printed = run_analyze(folder, *CSV[name], "run.alloctrace", "--csv")

    assert not find_invisible(printed)
    header, *rows = csv.reader(io.StringIO(printed))
    for row in rows:
        assert len(row) == len(header)
        for cell in row:
            assert re.fullmatch(r"-?[\d.]+(e[+-]\d+)?", cell) or not re.match(r"[=+\-@\t\r\n]", cell), cell


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20"])
def test_csv_escapes_start_of_formula_with_apostrophe(tmp_path: Path, start: str) -> None:
    write_hostile_trace(f"{start}cmd", tmp_path / "run.alloctrace")

    table = pd.read_csv(io.StringIO(run_analyze(tmp_path, "sites", "run.alloctrace", "--csv")))

    assert len(table) > 3
    assert table["filename"].str.startswith(f"'{start}cmd").all() and (table["function"] == f"'{start}cmd").all()


def test_csv_text_leaves_numbers_and_table_unchanged() -> None:
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

    assert "'=\\u202ehost" in printed and not find_invisible(printed)


@pytest.mark.parametrize("name", MARKDOWN)
def test_markdown_has_no_link_image_or_html_from_trace(folder: Path, name: str) -> None:
    printed = run_analyze(folder, *MARKDOWN[name], "run.alloctrace", "--markdown")

    assert not find_invisible(printed)
    tags, text = Rendered.parse(printed)
    assert tags <= {"h3", "p", "strong", "table", "thead", "tbody", "tr", "th", "td", "br", "code", "sub", "blockquote"}
    assert tags >= {"h3", "p"}
    # GitHub turns these into links after decoding the text.
    assert not re.search(r"(?:https?|ftp):/|\bwww\.|@\w", text, re.IGNORECASE)
    for table in re.findall(r"(?:^\|.*\n)+", printed, re.MULTILINE):
        assert len({line.count("|") for line in table.splitlines()}) == 1


def test_markdown_contains_escaped_texts_of_trace(folder: Path) -> None:
    _, text = Rendered.parse(run_analyze(folder, "leaks", "run.alloctrace", "--markdown"))

    visible = PAYLOAD.encode("unicode_escape").decode().replace("\\\\", "\\")
    assert visible in text.replace("\u200b", "")


class Rendered(HTMLParser):
    """Tags and text of Markdown rendered with GitHub's extensions."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text = ""

    @classmethod
    def parse(cls, markdown: str) -> tuple[set[str], str]:
        parser = cls()
        parser.feed(MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(markdown))
        return parser.tags, parser.text

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        assert all(name == "style" for name, _ in attrs), attrs

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize(
    "arguments", [("diagnose",), ("leaks", "--all-frames"), ("peak", "--tree"), CSV["annotate"], ("oom",)]
)
def test_text_has_no_invisible_character(folder: Path, arguments: tuple[str, ...]) -> None:
    assert not find_invisible(run_analyze(folder, *arguments, "run.alloctrace"))


def test_notebook_html_has_no_tag_or_invisible_character_from_trace(folder: Path) -> None:
    trace = alloctrace.load(folder / "run.alloctrace")

    for markup in (trace._repr_html_(), *(finding._repr_html_() for finding in trace.diagnose())):
        assert not find_invisible(markup)
        assert set(re.findall(r"<(\w+)", markup)) <= {"pre", "span"}


def test_page_has_no_invisible_character_from_trace(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytorch_alloctrace.report.page.what_if.MOST_WORK", 5_000)
    trace = RecordedTrace(folder / "run.alloctrace")

    title, data, _ = build_page_data(trace)

    for text in (title, *find_texts(unpack(data)[0]), *find_texts(unpack(build_snapshot_data(trace, 100))[0])):
        assert not find_invisible(text) and "\n" not in text


def find_texts(data: object) -> list[str]:
    """Return all texts in JSON data."""
    if isinstance(data, str):
        return [data]
    parts = [*data, *data.values()] if isinstance(data, dict) else data if isinstance(data, list) else []
    return [text for part in parts for text in find_texts(part)]


def test_json_and_tables_contain_texts_unchanged(folder: Path) -> None:
    rows = json.loads(run_analyze(folder, "sites", "run.alloctrace", "--json"))["rows"]
    table = alloctrace.load(folder / "run.alloctrace").usage()

    assert rows[0]["function"] == table["function"].iloc[0] == PAYLOAD
    assert rows[0]["filename"].startswith(PAYLOAD) and table["filename"].iloc[0].startswith(PAYLOAD)


@pytest.mark.parametrize("to", ["speedscope", "perfetto"])
def test_json_export_contains_texts_unchanged(folder: Path, tmp_path: Path, to: str) -> None:
    exported = alloctrace.load(folder / "run.alloctrace").export(tmp_path / "out", to)

    assert exported.read_bytes().isascii() and PAYLOAD in find_texts(json.loads(exported.read_text()))


def test_collapsed_stacks_have_no_invisible_character(folder: Path, tmp_path: Path) -> None:
    exported = alloctrace.load(folder / "run.alloctrace").export(tmp_path / "out", "collapsed")

    assert not find_invisible(exported.read_text())
    assert "\\u202egnp" in html.unescape(exported.read_text())
