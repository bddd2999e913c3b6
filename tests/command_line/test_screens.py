"""Golden screens: the complete text output of each command, in screens/. This command rewrites them:

ALLOCTRACE_WRITE_SCREENS=1 tools/test tests/command_line/test_screens.py
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from command_line import TRACE_COMMANDS
from made_up_ranks import Rank, write_ranks
from marked_programs import run_analyze

SCREENS = Path(__file__).with_name("screens")
HEALTHY, TRACE = "ranks/alloctrace-0-1000.alloctrace", "ranks/alloctrace-1-1001.alloctrace"
ARGUMENTS = {
    **{
        name: (name, TRACE)
        for name in TRACE_COMMANDS
        if name not in ("ranks", "report", "serve", "live", "export", "convert")
    },
    "annotate": ("annotate", "train.py", TRACE),
    "diagnose-verbose": ("diagnose", TRACE, "--verbose"),
    "diagnose-healthy": ("diagnose", HEALTHY),
    "leaks-healthy": ("leaks", HEALTHY),
    "oom-healthy": ("oom", HEALTHY),
    "diagnose-brief": ("diagnose", TRACE, "--brief"),
    "diagnose-markdown": ("diagnose", TRACE, "--markdown"),
    "diff": ("diff", TRACE, "--since", "step:4"),
    "diff-markdown": ("diff", TRACE, "--since", "step:4", "--by", "stack", "--top", "1", "--markdown"),
    "finish": ("finish", TRACE),
    "compact": ("compact", TRACE, "--until", "step:30", "-o", "compacted.alloctrace"),
    "leaks-markdown": ("leaks", TRACE, "--markdown"),
    "ranks": ("ranks", "ranks"),
    "sites-by-role": ("sites", TRACE, "--by", "role"),
    "timeline-by-role": ("timeline", TRACE, "--by", "role"),
}
"""Arguments of the commands that print a report on a trace or on a change to it."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write a run of three ranks, of which rank 1 keeps a block in each step and has a failed allocation."""
    write_ranks(tmp_path / "ranks", 3, rank1=Rank(1, 3, leaks_from=5, larger_from=10, oom_at=20))
    return tmp_path


@pytest.mark.parametrize("name", ARGUMENTS)
def test_command_prints_its_golden_screen(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The length of a spelling with the interpreter's path would decide how many lines fit on a screen.
    monkeypatch.setattr(shutil, "which", lambda script: os.path.join(os.path.dirname(sys.executable), script))
    screen = run_analyze(folder, *ARGUMENTS[name])

    if os.environ.get("ALLOCTRACE_WRITE_SCREENS"):
        SCREENS.mkdir(exist_ok=True)
        (SCREENS / f"{name}.txt").write_text(screen)
    assert screen == (SCREENS / f"{name}.txt").read_text()
