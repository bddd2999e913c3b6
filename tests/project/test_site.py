"""The documentation: it builds as a site without a warning, its links lead somewhere, and its commands exist."""

from __future__ import annotations

import contextlib
import re
import shlex
import sys
from pathlib import Path

import pytest
from running import ROOT, run_python

from pytorch_alloctrace import parser

PAGES = sorted(path for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "examples/README.md"])
_COMMAND = re.compile(r"(?:^    (?:\$ )?|`)(alloctrace [^`\n]*)", re.MULTILINE)


@pytest.mark.slow("docs")
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    run_python(ROOT, command, True, 600, {"NO_MKDOCS_2_WARNING": "1"}, fresh=True)
    made = {page.stem for page in (tmp_path / "site").glob("*.html")}
    assert {page.stem for page in (ROOT / "docs").glob("*.md")} == made - {"404"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_commands_of_a_page_exist(page: Path) -> None:
    # Links between pages of the site are checked, with their anchors, when it is built.
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target
    for command in _COMMAND.findall(page.read_text()):
        words = shlex.split(command, comments=True)[1:]
        if not words or words[0] in ("run", "build") or "COMMAND" in words:
            continue
        if ">" in words:
            words = words[: words.index(">")]
        with contextlib.suppress(SystemExit) if "--help" in words or "--version" in words else contextlib.nullcontext():
            try:
                parser.parse(words)
            except SystemExit as refused:
                if refused.code:
                    pytest.fail(f"not a command: {command}")
                raise
