"""Documentation: the site builds without warnings, and its links and commands exist."""

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
def test_site_builds_without_warnings(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    run_python(ROOT, command, True, 600, {"NO_MKDOCS_2_WARNING": "1"}, fresh=True)
    built = {page.stem for page in (tmp_path / "site").glob("*.html")}

    assert {page.stem for page in (ROOT / "docs").glob("*.md")} == built - {"404"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_commands_of_page_exist(page: Path) -> None:
    # The build of the site checks links between its pages, with their anchors.
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target
    for command in _COMMAND.findall(page.read_text()):
        arguments = shlex.split(command, comments=True)[1:]
        if not arguments or arguments[0] in ("run", "build") or "COMMAND" in arguments:
            continue
        if ">" in arguments:
            arguments = arguments[: arguments.index(">")]
        exits = "--help" in arguments or "--version" in arguments
        with contextlib.suppress(SystemExit) if exits else contextlib.nullcontext():
            try:
                parser.parse(arguments)
            except SystemExit as error:
                if error.code:
                    pytest.fail(f"not a command: {command}")
                raise
