"""A redacted page contains no folder above or below the working directory, source, argument, host or environment."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest
from text_traces import TextTrace

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.report.page import snapshots, what_if
from pytorch_alloctrace.report.page.columns import unpack
from pytorch_alloctrace.report.page.names import RedactedNames, Redaction

FOLDER = "/home/SECRET_USER/SECRET_ABOVE"
FILES = {
    "main": f"{FOLDER}/train.py",
    "weights": "<attrs generated init SECRET_PACKAGE.SECRET_MODULE.Model>",
    "forward": f"{FOLDER}/SECRET_BELOW/SECRET BLANK/net.py",
    "keep": f"{FOLDER}/SECRET_BELOW/SECRET_DEEP/keep.py",
    "small": f"{FOLDER}/SECRET_VENV/lib/python3.11/site-packages/SECRET_INSTALLED/cache.py",
    "batch": "/data/SECRET_BESIDE/batch.py",
}
HEADER = {
    "arguments": ["--token", "SECRET_ARGUMENT", "--out=SECRET_BELOW/x"],
    "host": "SECRET_HOST",
    "environment": {"MASTER_ADDR": "SECRET_ADDRESS"},
    "spool": f"{FOLDER}/SECRET_SPOOL/x.spool",
    "prefix": f"{FOLDER}/SECRET_VENV",
}
HOLDERS = (
    'Trainer.kept["SECRET_BELOW/SECRET BLANK/key.pt"] (list of 40) in trainer, local of run() at keep.py:7',
    "Pool.blocks (dict of 40), global of SECRET_PACKAGE.SECRET_MODULE",
    "Store.items (dict of 40), class attribute in SECRET_PACKAGE.store, through an autograd graph",
)


def redacted_page(trace: Path) -> str:
    """Return the text of a redacted page, with its data decoded."""
    html = alloctrace.load(trace).report(redact=True).html
    match = re.search(r'id="data">([^<]*)</script>', html)
    assert match is not None
    manifest, columns = unpack(match[1])
    return html.replace(match[1], json.dumps(manifest, ensure_ascii=False)) + columns.decode("latin-1")


@pytest.fixture(autouse=True)
def _small_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(what_if, "MOST_WORK", 5_000)  # only some settings
    monkeypatch.setattr(snapshots, "_SMALL", dataclasses.replace(snapshots._SMALL, maps=2))


@pytest.mark.parametrize(
    ("holders", "program"),
    [
        (HOLDERS[:1], FILES["main"]),
        (HOLDERS[1:2], "-m SECRET_PACKAGE.SECRET_MODULE"),
        (HOLDERS[1:], "SECRET_BELOW/start"),
    ],
)
def test_redacted_page_contains_no_folder(tmp_path: Path, holders: tuple[str, ...], program: str) -> None:
    folder = tmp_path / "SECRET_TRACES"
    folder.mkdir()
    header = {**HEADER, "program": program}
    mark = f"saved in {FOLDER} as {FOLDER}/SECRET_BELOW/step.pt"
    trace = TextTrace(FILES, label=mark, source="SECRET_SOURCE", holders=holders, header=header)

    page = redacted_page(trace.write(folder / "run.alloctrace"))

    assert "SECRET" not in page
    for text in (
        "keep.py:20 in keep and 1 more line: +13.0 MiB per step",
        "which refused 4.00 GiB at net.py:12 in forward",
        "cache.py:30",
    ):
        assert text in page
    assert "Held by" in page and "saved in  as step.pt" in page


def test_redacted_page_keeps_names_of_files_functions_and_marks(tmp_path: Path) -> None:
    trace = TextTrace(FILES, label="warm-up", functions={"keep": "Trainer.keep"}, holders=HOLDERS[:1])

    page = redacted_page(trace.write(tmp_path / "run.alloctrace"))

    for text in ("warm-up", "Trainer.keep", "keep.py", "Trainer.kept", "run.alloctrace"):
        assert text in page


@pytest.mark.parametrize(
    ("filename", "name"),
    [
        (f"{FOLDER}/a/b.py", "b.py"),
        ("a/b.py", "b.py"),
        ("-m package.module", "(module)"),
        ("<eval_with_key>.4 from /a/b.py:3 in f", "b.py:3 in f"),
        ("<attrs generated init package.module.Class>", "<attrs generated init Class>"),
        ("In[3]", "In[3]"),
        ("a\u202e/b\u202e.py", "b\\u202e.py"),
    ],
)
def test_redacted_name_of_file_has_no_folder(filename: str, name: str) -> None:
    assert RedactedNames(FOLDER).file(filename) == name


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("kept, global of train.py", "kept, global of train.py"),
        ("kept, global of __main__", "kept, global of __main__"),
        ("kept, global of module a.b, garbage", "kept, global of (module), garbage"),
        ("Cache.all, class attribute in a.b", "Cache.all, class attribute in (module)"),
        ("kept['a b/c.pt'] in it, local of f() at a/t.py:3", "kept['c.pt'] in it, local of f() at t.py:3"),
    ],
)
def test_redacted_referrer_has_no_folder(text: str, redacted: str) -> None:
    assert RedactedNames("").referrer(text) == redacted


def test_redaction_removes_every_part_of_the_folder() -> None:
    redaction = Redaction([], "/home/me/secret")

    assert redaction.text("started in /home/me/secret, at /home/me/secret/a/b.py") == "started in , at b.py"
    assert redaction.text("/home/me/secrets/a.py") == "a.py"


def test_redaction_of_long_texts_takes_linear_time() -> None:
    for part in ("a", "a.", "'", "a/", "global of ", "/"):
        text = part * (400_000 // len(part))

        assert len(RedactedNames("").referrer(text)) <= len(text) + 8
