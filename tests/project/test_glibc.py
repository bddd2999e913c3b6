"""Minimum glibc of the modules, 2.28: torch's wheels support RHEL, Rocky and Alma 8."""

from __future__ import annotations

import subprocess

import pytest
from running import ROOT, SUPPORT

from pytorch_alloctrace import _replay
from pytorch_alloctrace.recording.loading import load_recorder

HEADER_SYMBOLS = {
    "__libc_single_threaded": "libstdc++'s headers use it where glibc has it",
    "pthread_cond_clockwait": "libstdc++'s headers use it where glibc has it",
    **dict.fromkeys(["stat", "fstat", "lstat"], "older headers have it as an inline function"),
    **dict.fromkeys(["__isoc23_strtol", "__isoc23_strtoul", "__isoc23_strtoull"], "newer headers redirect calls to it"),
}
"""Symbols from the headers of this machine; modules compiled with an older glibc do not need them."""


@pytest.mark.parametrize("name", ["record", "replay"])
def test_module_needs_no_symbol_newer_than_glibc_2_28(name: str) -> None:
    path = load_recorder().__file__ if name == "record" else _replay.__file__
    newer = set((SUPPORT / "glibc_after_2_28.txt").read_text().partition("\n")[2].split())
    command = ["nm", "-D", "--undefined-only", path]
    process = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    names = {line.split()[-1].partition("@")[0] for line in process.stdout.splitlines()}

    assert "sem_clockwait" in newer and "clock_gettime" in names
    assert names & newer - HEADER_SYMBOLS.keys() == set()
