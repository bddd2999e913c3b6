"""Documentation: the site builds without warnings, and its links and commands exist."""

from __future__ import annotations

import contextlib
import json
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


def test_scores_of_readme_are_sums_of_the_table_of_programs() -> None:
    table = (ROOT / "tests/corpus/README.md").read_text()
    rows = re.findall(r"\| (killed|whole) \|.*\| (\d+) (?:first|clear), (\d+) (missed|accused) of (\d+) \|\n", table)

    def sum_rows(run: str, opposite: str) -> tuple[int, ...]:
        """Return the numbers of right answers, of missed leaks or accused programs, and of runs."""
        counts = [(int(row[1]), int(row[2]), int(row[4])) for row in rows if (row[0], row[3]) == (run, opposite)]
        return tuple(map(sum, zip(*counts, strict=True)))

    (right, _, leaking), (right_killed, _, leaking_killed) = sum_rows("whole", "missed"), sum_rows("killed", "missed")
    (_, accused, healthy), (_, accused_killed, healthy_killed) = (
        sum_rows("whole", "accused"),
        sum_rows("killed", "accused"),
    )

    readme = (ROOT / "README.md").read_text()
    assert f"in {right} of {leaking} runs to the end and {right_killed} of {leaking_killed} killed midway" in readme
    assert f"{accused} of {healthy} complete and {accused_killed} of {healthy_killed} killed runs are accused" in readme
    assert f"Of {leaking // 2} leaking programs" in readme and f"of {healthy // 2} healthy ones" in readme


def test_cost_of_the_hook_is_the_measured_one_on_each_page() -> None:
    measured = json.loads((ROOT / "benchmarks/results/cuda.json").read_text())
    on_gpu = json.loads((ROOT / "benchmarks/results/gpu-h100.json").read_text())["bench"]["pairs"]
    names = {
        "pytorch_alloctrace, Python stacks, streaming to disk": "alloctrace",
        'torch\'s history, stacks="python"': "torch history, stacks='python'",
        'torch\'s history, stacks="all"': "torch history, stacks='all'",
    }

    for page in ("README.md", "docs/measurements.md"):
        text = (ROOT / page).read_text()
        for name, key in names.items():
            added = measured["pairs"][key]["added_wall"]
            percent = measured["training_step"][key]["added_percent_of_process_cpu"]
            assert f"| {name} | {added:,.0f} ns | {percent:.0f} % |" in text, page
            assert f"{on_gpu[key]['added_wall']:,.0f}" in text, page


@pytest.mark.parametrize("page", ["questions", "faq"])
def test_page_names_holders_and_fit(page: str) -> None:
    text = (ROOT / f"docs/{page}.md").read_text()

    assert "`alloctrace.holders(tensor)`" in text and "`alloctrace fit run.alloctrace`" in text
