"""Positions and numbers that no one should write: each is refused in a sentence on stderr, with exit status 2."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import run_command
from shared_recordings import run_source

PROGRAM = """
import torch, pytorch_alloctrace as alloctrace
with alloctrace.enable("run.alloctrace", devices=("cpu",)):
    for _ in range(3):
        torch.empty(5_000)
        alloctrace.step()
"""
LONG = "9" * 400
POSITIONS = [
    "step:--5",
    "step:-",
    "step:²",
    "step:1.0",
    "step:99999999999999999999",
    f"step:{LONG}",
    f"{LONG}s",
    f"{LONG}.{LONG}s",
    "²s",
    "1e400s",
    "nans",
    "9" * 5_000,
    "",
]
COUNTS = [
    *(("--points", count) for count in ("1e30", "10000000000000", "0", "-1", "²", "1.5", "nan", LONG, "9" * 5_000, "")),
    *((option, count) for option in ("--width", "--top") for count in ("10000000000000", "-1", "²", "9" * 5_000)),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_source(tmp_path_factory.mktemp("odd_values"), PROGRAM)


def refusal(folder: Path, *arguments: str) -> str:
    """The sentence: the only line on stderr, or the one below the usage."""
    done = run_command(folder, list(arguments), {})
    assert (done.returncode, done.stdout) == (2, ""), (arguments, done.stderr)
    *usage, sentence = done.stderr.splitlines()
    assert "error: " in sentence and "Traceback" not in done.stderr, done.stderr
    assert not usage or usage[0].startswith("usage: "), done.stderr
    return sentence


@pytest.mark.parametrize("position", POSITIONS, ids=lambda text: text[:12])
def test_positions(folder: Path, position: str) -> None:
    for words in (("peak", "--at"), ("timeline", "--since")):
        sentence = refusal(folder, words[0], "run.alloctrace", f"{words[1]}={position}")
        assert "position" in sentence or "the trace has no step" in sentence, sentence


@pytest.mark.parametrize(("option", "count"), COUNTS, ids=lambda text: text[:12])
def test_counts(folder: Path, option: str, count: str) -> None:
    verb = "peak" if option == "--top" else "timeline"
    assert option in refusal(folder, verb, "run.alloctrace", f"{option}={count}")


def test_more_points_than_there_is_memory_for(folder: Path) -> None:
    assert "--points" in refusal(folder, "timeline", "run.alloctrace", "--points", "999999999")
