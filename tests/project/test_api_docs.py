"""docs/api.md: comparison with signatures and docstrings, and its examples."""

from __future__ import annotations

import ast
import importlib.util
import pickle
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from made_up_snapshots import snapshot, training
from running import ROOT, run_python, torch_has_cuda, with_cuda

import pytorch_alloctrace as alloctrace


def load_generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("api_docs", ROOT / "tools/api_docs.py")
    api_docs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(api_docs)
    return api_docs


def test_api_page_is_up_to_date_and_has_every_public_name() -> None:
    api_docs = load_generator()
    page = api_docs.PAGE.read_text()
    assert page == api_docs.page(), "out of date: run tools/api_docs"
    assert api_docs.undocumented() == set()
    for name in dir(alloctrace.Trace):
        assert name.startswith("_") or f"- `{name}" in page, name

    entries = page.split("\n- `")[1:]
    assert [entry.splitlines()[0] for entry in entries if not entry.split("\n")[1].strip()] == []


def read_sections() -> Iterator[tuple[str, str, set[str]]]:
    """Yield the title of each section of the page, its example ("" if it has none), and the names that it lists."""
    page = (ROOT / "docs/api.md").read_text()
    for section in re.split(r"^##+ ", page, flags=re.MULTILINE)[1:]:
        example = "\n".join(re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL))
        yield section.splitlines()[0], example, {*re.findall(r"^- `(?:alloctrace\.)?(\w+)", section, re.MULTILINE)}


def test_every_public_name_occurs_in_an_example() -> None:
    values = {kind.__name__ for kind, _ in load_generator().VALUES}
    from_package = set()

    for title, example, names in read_sections():
        attributes = [node for node in ast.walk(ast.parse(example)) if isinstance(node, ast.Attribute)]
        if example or title not in values:
            assert names - {node.attr for node in attributes} == set(), f"{title}: without an example"
        from_package |= {node.attr for node in attributes if getattr(node.value, "id", "") == "alloctrace"}
    assert {*alloctrace.__all__} - from_package == set(), "without an example"


def test_examples_of_page_run_as_one_program(tmp_path: Path) -> None:
    (tmp_path / "snapshot.pickle").write_bytes(pickle.dumps(snapshot("2.11", training("2.11"))))
    template = "import sys\nprint('EXAMPLE', {!r}, file=sys.stderr)\n{}"
    parts = [template.format(title, example) for title, example, _ in read_sections() if example]
    (tmp_path / "train.py").write_text("\n".join(parts))
    command = [sys.executable, "train.py"]

    process = run_python(tmp_path, with_cuda(command) if torch_has_cuda() else command, False, 600, {})

    assert process.returncode == 0, process.stderr.rpartition("EXAMPLE ")[2]
