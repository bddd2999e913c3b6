"""Runner of programs whose expected lines are marked with comments, and of the command line."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from command_line import run_command
from running import SUPPORT, run_python, with_cuda


def marked_line(program: str, function: str, marker: str) -> int:
    """Return the number of the only line of a function in tests/support/PROGRAM whose comment contains the marker."""
    before, _, after = (SUPPORT / program).read_text().partition(f"\ndef {function}(")
    lines = enumerate(after.partition("\n\n\n")[0].splitlines(), before.count("\n") + 2)
    numbers = [number for number, line in lines if re.search(rf"#[A-Z ]*\b{marker}\b", line)]
    assert len(numbers) == 1, f"{function} has {marker} in lines {numbers}"
    return numbers[0]


def line_with(text: str, source: str) -> int:
    """Return the number of the only line of the source that contains the text."""
    [line] = [number for number, line in enumerate(source.splitlines(), 1) if text in line]
    return line


def run_marked(program: str, folder: Path, *cases: str, memory: str, devices: int = 1, **environment: str) -> None:
    """Run tests/support/PROGRAM FOLDER CASE... on simulated devices."""
    command = with_cuda([sys.executable, str(SUPPORT / program), str(folder), *cases], memory, devices)
    run_python(folder, command, check=True, timeout=600, environment=environment)


def run_analyze(folder: Path, *arguments: str, status: int = 0, encoding: str = "utf-8") -> str:
    """Run the command line in a folder; return its stdout, or its stderr for status 2 (bad input)."""
    process = run_command(folder, list(arguments), encoding)
    assert process.returncode == status, process.stderr
    assert status != 2 or not process.stdout
    return process.stdout if status != 2 else process.stderr
