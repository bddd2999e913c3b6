"""The error for a file that is not a trace."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import pickle
import re
from pathlib import Path

import pytest
from marked_programs import run_analyze
from running import ROOT

from pytorch_alloctrace.reading.other_files import TRACE_MAGIC

FILES = {
    "snapshot.pickle": (pickle.dumps({"segments": []}), "a pickle", "`alloctrace convert`"),
    "run.alloctrace.spool": (b"ALLOCSPL" + bytes(5000), "the spool of a recording", "without .spool"),
    "leaks.json": (json.dumps({"format": "pytorch_alloctrace.leaks"}, indent=1).encode(), "--json", "give the trace"),
    "report.html": (b'<!DOCTYPE html>\n<html lang="en">', "an HTML page", "give the trace"),
    "model.pt": (b"PK\x03\x04" + bytes(100), "torch.save", "unpack"),
    "run.alloctrace.gz": (gzip.compress(TRACE_MAGIC), "a compressed file", "unpack"),
    "run.alloctrace.xz": (lzma.compress(TRACE_MAGIC), "a compressed file", "unpack"),
    "run.alloctrace.bz2": (bz2.compress(TRACE_MAGIC), "a compressed file", "unpack"),
    "train.py": (b"import torch\n", "a Python program", "`alloctrace run`"),
}
"""Contents of a file, its kind and the next step."""


@pytest.mark.parametrize("command", ["diagnose", "live", "finish"])
@pytest.mark.parametrize("name", FILES)
def test_error_names_kind_of_file_and_next_step(tmp_path: Path, name: str, command: str) -> None:
    content, kind, next_step = FILES[name]
    (tmp_path / name).write_bytes(content)

    error = run_analyze(tmp_path, command, name, status=2)

    sentence = f"{re.escape(name)} is not an alloctrace trace: it seems to be .*{kind}.*{next_step}"
    assert error.count("\n") == 1 and re.search(sentence, error)


@pytest.mark.parametrize(
    ("name", "content"), [("file", b"\x7fELF" + bytes(5000)), ("trace.py", TRACE_MAGIC + bytes(100))]
)
def test_error_names_no_kind_of_unknown_file_and_corrupt_trace(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)

    error = run_analyze(tmp_path, "live", name, status=2)

    assert error.endswith(f"error: {name} is not an alloctrace trace, or its beginning is corrupt\n")


def test_magic_is_that_of_the_format() -> None:
    header = (ROOT / "csrc/core/format/format.h").read_text()
    characters = re.search(r"kFileMagic\[8\] = \{(.*)\};", header)[1]

    assert "".join(re.findall(r"'(.)'", characters)).encode() == TRACE_MAGIC
