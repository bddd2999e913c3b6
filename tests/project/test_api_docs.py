"""docs/api.md, compared with signatures and docstrings."""

from __future__ import annotations

import importlib.util

from running import ROOT

import pytorch_alloctrace as alloctrace


def test_api_page_is_up_to_date_and_has_every_public_name() -> None:
    spec = importlib.util.spec_from_file_location("api_docs", ROOT / "tools/api_docs.py")
    api_docs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(api_docs)
    page = api_docs.PAGE.read_text()
    assert page == api_docs.page(), "out of date: run tools/api_docs"
    assert api_docs.undocumented() == set()
    for name in dir(alloctrace.Trace):
        assert name.startswith("_") or f"- `{name}" in page, name
    entries = page.split("\n- `")[1:]
    assert [entry.splitlines()[0] for entry in entries if not entry.split("\n")[1].strip()] == []
