"""docs/api.md, compared with signatures and docstrings."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest
from running import ROOT

import pytorch_alloctrace as alloctrace


@pytest.fixture(scope="module")
def api_docs() -> ModuleType:
    spec = importlib.util.spec_from_file_location("api_docs", ROOT / "tools/api_docs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_api_page_is_up_to_date(api_docs: ModuleType) -> None:
    assert api_docs.PAGE.read_text() == api_docs.page(), "out of date: run tools/api_docs"


def test_every_public_name_is_documented(api_docs: ModuleType) -> None:
    assert api_docs.undocumented() == set()
    page = api_docs.PAGE.read_text()
    for name in dir(alloctrace.Trace):
        assert name.startswith("_") or f"- `{name}" in page, name
    entries = page.split("\n- `")[1:]
    assert [entry.splitlines()[0] for entry in entries if not entry.split("\n")[1].strip()] == []
