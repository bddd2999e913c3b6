"""Leaks of recorded children in the verdict on their parent, and in its exit status."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from child_programs import program_with_child
from command_line import run_command
from running import needs_cuda_build, run_python, with_cuda
from shared_recordings import record_once

from pytorch_alloctrace.analysis import child_runs

ITERATIONS = """kept = []
    for _ in range({count}):
        block = torch.zeros(1000)
        {keep}
        alloctrace.step()"""
WORK = {
    "leaking": ITERATIONS.format(count=60, keep="kept.append(block)"),
    "healthy": ITERATIONS.format(count=60, keep="block = None"),
    "without steps": "for _ in range(60):\n        torch.zeros(1000)",
    "short": ITERATIONS.format(count=3, keep="kept.append(block)"),
}


PARENT_ON_CUDA = """weight = torch.ones(100_000, device="cuda")
    for _ in range(60):
        weight * 2
        alloctrace.step()
    """


def folder_of(work: str, parent: str = "") -> Path:
    """Return a folder with the trace run.alloctrace of a program, and that of its child.

    parent: statements of the program before its child begins, which need CUDA.
    """

    def record(folder: Path) -> None:
        source = program_with_child(WORK[work]).replace("method = ", f"{parent}method = ", 1)
        (folder / "program.py").write_text(source)
        command = [sys.executable, "-m", "pytorch_alloctrace", "run", "--follow", "--output", "run.alloctrace"]
        command += ["--quiet", "program.py"]
        run_python(folder, with_cuda(command) if parent else command, True, 600, {})

    return record_once(f"{'cuda_' if parent else ''}child_{work.replace(' ', '_')}", record)


@pytest.mark.parametrize(("work", "status"), [("leaking", 1), ("healthy", 0), ("short", 3)])
def test_leak_of_child_decides_exit_status(work: str, status: int) -> None:
    process = run_command(folder_of(work), ["leaks", "run.alloctrace", "--fail"])

    assert process.returncode == status
    assert "CHILD  process" in process.stdout, process.stdout


@pytest.mark.parametrize("output", [[], ["--json"], ["--csv"], ["--markdown"]])
def test_every_output_names_leak_of_child(output: list[str]) -> None:
    process = run_command(folder_of("leaking"), ["leaks", "run.alloctrace", "--fail", *output])

    shown = " ".join((process.stderr if output in (["--json"], ["--csv"]) else process.stdout).split())
    assert process.returncode == 1
    assert "LEAK program.py:8 in work: +3.91 KiB per step" in shown.replace("\u200b", ""), shown


@pytest.mark.parametrize(("limit", "status"), [("1KiB/step", 1), ("1MiB/step", 0), ("1KiB", 1), ("5%", 1)])
def test_growth_limit_applies_to_children(limit: str, status: int) -> None:
    process = run_command(folder_of("leaking"), ["leaks", "run.alloctrace", "--fail-above", limit])

    assert process.returncode == status, process.stdout + process.stderr
    assert ("FAIL  cpu in child process" in process.stdout) == bool(status)


def test_first_screen_and_its_brief_form_name_leak_of_child() -> None:
    screen = run_command(folder_of("leaking"), ["run.alloctrace"]).stdout
    brief = run_command(folder_of("leaking"), ["diagnose", "run.alloctrace", "--brief"]).stdout

    assert "program.py:8 in work" in " ".join(screen.split()).partition("LEAK child process ")[2]
    assert brief.splitlines()[1].startswith("LEAK  child process ")


def test_leaks_are_unknown_when_traces_of_children_exceed_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_runs, "MAX_BYTES", child_runs.MIN_CHARGED_BYTES - 1)

    process = run_command(folder_of("healthy"), ["leaks", "run.alloctrace", "--fail"])

    assert process.returncode == 3
    assert "CHILD 1 trace was not judged" in " ".join(process.stdout.split()), process.stdout


@needs_cuda_build
def test_blocks_that_a_forked_child_has_from_its_parent_are_not_judged() -> None:
    process = run_command(folder_of("without steps", PARENT_ON_CUDA), ["leaks", "run.alloctrace", "--fail"])

    assert process.returncode == 0, process.stdout
    assert " on cuda:0 and " not in process.stdout.partition("CHILD")[2]
