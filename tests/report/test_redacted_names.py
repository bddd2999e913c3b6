"""A page redacted with names contains no identifier of the program, also not in its compressed data."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest
from marked_programs import run_analyze
from shared_recordings import run_source

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.report.page.columns import unpack
from pytorch_alloctrace.report.page.names import NeutralNames

PROGRAM = """
import threading
import torch
from torch import nn
import pytorch_alloctrace as alloctrace

class Zebra(torch.autograd.Function):
    @staticmethod
    def forward(ctx, walrus):
        return walrus * 2.0
    @staticmethod
    def backward(ctx, ostrich):
        return ostrich.repeat(1) * torch.ones(1000)

class Giraffe(nn.Module):
    def __init__(self):
        super().__init__()
        self.okapi = nn.Sequential(nn.Linear(100, 100), nn.ReLU())
        self.panther = {"lemur of the park": []}
        self.heron = []
        self.toucans = nn.ModuleDict({"pelican pond": nn.Linear(100, 100)})
    def __gnaw(self, walrus):
        return self.toucans["pelican pond"](self.okapi(walrus))
    def forward(self, walrus):
        badger = self.__gnaw(walrus)
        self.panther["lemur of the park"].append(badger.detach().exp())
        return badger

def ferret(giraffe_count):
    def weasel(otter):
        return lambda: otter.sum()
    meerkats = []
    zoo = [Giraffe() for _ in range(giraffe_count)]
    for lynx in range(40):
        with alloctrace.region("feeding time"):
            for jackal in zoo:
                marmot = jackal(torch.ones(64, 100))
                meerkats.append(weasel(marmot.detach() * 2))
        turtle = torch.ones(1000, requires_grad=True)
        Zebra.apply(turtle).sum().backward()
        alloctrace.mark("lynx pause")
        alloctrace.step()
    return meerkats, zoo

def puffin():
    yield torch.ones(3000)

with alloctrace.enable("aardvark.alloctrace", devices="cpu"):
    hyenas = []
    def narwhal():
        for _ in range(5):
            suspended = puffin()
            hyenas.append((next(suspended), suspended))
    thread = threading.Thread(target=narwhal, name="mongoose")
    thread.start()
    thread.join()
    marsupials = ferret(2)
"""
LIST_IN_MODULE_PY = """
import sys
from pathlib import Path
import torch
import pytorch_alloctrace as alloctrace

Path("module.py").write_text("value = []\\ndef append(x): value.append(torch.nn.functional.relu(x))\\nimport torch")
sys.path.insert(0, ".")
import module

layer = torch.nn.Linear(10, 1000)
with alloctrace.enable("program.alloctrace", devices="cpu"):
    for _ in range(40):
        module.append(layer(torch.ones(100, 10)).detach())
        alloctrace.step()
"""
TORCH_NAMES = {"forward", "backward", "ctx", "self", "thread", "suspended"}
"""Names that the page contains for every program."""


def identifiers(source: str) -> set[str]:
    """Return the names that a program defines, and the words of its texts."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name):
                names.add(name)
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                names.add(name)
            case ast.Constant(value=str(text)) if " " in text:
                names.add(text)
    return {name for name in names if not name.endswith("_")} - TORCH_NAMES


def page_of(trace: Path, redact: bool | str) -> str:
    """Return the text of a page, with its data decoded."""
    html = alloctrace.load(trace).report(redact=redact).html  # type: ignore[arg-type]
    match = re.search(r'id="data">([^<]*)</script>', html)
    assert match is not None
    manifest, columns = unpack(match[1])
    return html.replace(match[1], json.dumps(manifest, ensure_ascii=False)) + columns.decode("latin-1")


def count_names(page: str, names: set[str]) -> set[str]:
    return {name for name in names if re.search(rf"\b{re.escape(name)}(?:Backward)?\b", page)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_source(tmp_path_factory.mktemp("names"), PROGRAM)


def test_page_redacted_with_names_has_no_identifier_of_the_program(folder: Path) -> None:
    names = {*identifiers(PROGRAM), "mongoose", "aardvark", "program.py"}

    page = page_of(folder / "aardvark.alloctrace", "names")

    assert count_names(page, names) == set()
    assert "lemur" not in page and "feeding" not in page
    # The kinds of names that the page has without the option.
    assert {"Zebra", "Giraffe", "ferret", "okapi", "panther", "feeding time", "lynx pause"} <= count_names(
        page_of(folder / "aardvark.alloctrace", True), names
    )


def test_replaced_names_are_consistent_and_keep_lines_and_libraries(folder: Path) -> None:
    page = page_of(folder / "aardvark.alloctrace", "names")

    lines = PROGRAM.splitlines()
    line = next(number for number, text in enumerate(lines, 1) if "badger.detach().exp()" in text)
    holder = (
        r'Held by (?:several: )?variable_\d+[\[\]\d]*\.variable_\d+\[\\"key_1\\"\] \(list of 40\), global of file_1\.py'
    )
    assert re.search(rf"file_1\.py:{line} in class_\d+\.function_\d+", page) and re.search(holder, page)
    assert "Linear.forward" in page and "Sequential.forward" in page and "mark_1" in page


@pytest.mark.parametrize(
    ("text", "renamed"),
    [
        ("kept.items of the suspended serve()", "variable_1.variable_2 of the suspended function_1()"),
        (
            'run.keywords["a b"] (Pool of 3), local of run() at keep.py:7 in thread Loader-1',
            'variable_1.keywords["key_1"] (class_1 of 3), local of variable_1() at file_1.py:7 in thread class_2-1',
        ),
        (
            "value in the closure of step(), a hook of net",
            "variable_1 in the closure of function_1(), a hook of variable_2",
        ),
        ("more (list of 40), global of __main__", "variable_1 (list of 40), global of __main__"),
        ("a reference cycle: garbage", "a reference cycle: garbage"),
        ("__queue[0], global of __main__", "variable_1[0], global of __main__"),
        ("value.list[0], class attribute in a.b", "variable_1.variable_2[0], class attribute in (module)"),
        ("out.grad_fn, global of __main__", "variable_1.grad_fn, global of __main__"),
        ("Linear.weight, local of run() at module.py:7", "Linear.variable_1, local of function_1() at module.py:7"),
    ],
)
def test_words_of_referrer_paths_stay_and_names_are_replaced(folder: Path, text: str, renamed: str) -> None:
    stacks = alloctrace.load(folder / "aardvark.alloctrace")._recorded.stacks

    assert NeutralNames("", lambda filename: "site-packages" not in filename, stacks).referrer(text) == renamed


def test_report_names_what_redact_leaves(folder: Path, tmp_path: Path) -> None:
    arguments = "report", "aardvark.alloctrace", "--overwrite", "-o", str(tmp_path / "shared.html")

    plain, redacted, nameless = (
        run_analyze(folder, *arguments, *option) for option in ((), ("--redact",), ("--redact=names",))
    )

    sentence = (
        "The page still names files, functions, modules and variables of the program: --redact=names replaces them."
    )
    assert sentence in " ".join(redacted.split())
    assert "--redact" not in plain + nameless
    assert run_analyze(folder, "report", "--redact", "aardvark.alloctrace", "--overwrite")


def test_file_and_global_named_like_those_of_torch_are_replaced(tmp_path: Path) -> None:
    run_source(tmp_path, LIST_IN_MODULE_PY)

    page = page_of(tmp_path / "program.alloctrace", "names")

    assert "Held by variable_1 (list of 40), global of file_2.py" in page
