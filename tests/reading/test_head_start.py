"""The pass that begins while the rest is imported: it gives what an ordinary one does, once, and ends when it is not
needed."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.analysis.summary import summarize
from pytorch_alloctrace.analyze.early import trace_to_replay
from pytorch_alloctrace.reading.head_start import begun, head_start
from pytorch_alloctrace.reading.recorded import RecordedTrace
from pytorch_alloctrace.report.verdict import verdict_json


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A program that keeps a part of what it makes."""
    file = tmp_path_factory.mktemp("head_start") / "run.alloctrace"
    kept = []
    with alloctrace.enable(file, devices=("cpu",)):
        for number in range(300):
            blocks = [torch.empty(1000 + number % 7, dtype=torch.uint8) for _ in range(20)]
            kept.append(blocks[number % 20])
            alloctrace.step()
    assert len(kept) == 300
    return str(file)


def test_needs_no_pandas() -> None:
    program = "import sys, pytorch_alloctrace.reading.head_start; sys.exit('pandas' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_says_the_same(path: str) -> None:
    ordinary = RecordedTrace(path)
    with head_start(path):
        early = RecordedTrace(path)
        assert begun(path) is None  # it is for one trace
        assert verdict_json(summarize(early), None) == verdict_json(summarize(ordinary), None)
        assert early.timeline(100).equals(ordinary.timeline(100))


def test_of_another_file_or_other_paths_is_not_taken(path: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy.alloctrace"
    copy.write_bytes(Path(path).read_bytes())
    threads = threading.active_count()
    with head_start(path):
        RecordedTrace(copy)
        RecordedTrace(path, user_paths=[__file__])
        assert begun(path) is not None
    assert begun(path) is None and threading.active_count() == threads


def test_failure_is_left_to_whoever_opens_it(tmp_path: Path) -> None:
    file = tmp_path / "not.alloctrace"
    file.write_bytes(b"not a trace at all" * 100)
    with head_start(str(file)), pytest.raises(alloctrace.TraceError, match="not"):
        RecordedTrace(file)


def test_which_trace(path: str) -> None:
    for arguments in ([path], ["leaks", path, "--fail"], [path, "--top", "3"], [path, "peak"], ["--json", path]):
        assert trace_to_replay(arguments) == path
    others = [["--help"], [path, path], ["diff", path, path], ["finish", path], [path + ".missing"], []]
    others += [[path, *options] for options in (["--user-path", "torch"], ["--spool=x"], ["--at", "mark:x"])]
    for arguments in others:
        assert trace_to_replay(arguments) is None


@pytest.mark.parametrize("small", [0, 1_000_000], ids=["by whoever asks", "meanwhile"])
def test_answers_that_were_prefetched_are_those_of_the_replay(
    path: str, monkeypatch: pytest.MonkeyPatch, small: int
) -> None:
    trace = RecordedTrace(path)
    replay, middle = trace.replay, trace.end_seq // 2

    def answers() -> list[Any]:
        return [
            [table.to_dict("list") for table in replay.stacks(middle, "cpu")],
            {name: values.tolist() for name, values in replay.lives(middle, "cpu").items()},
            replay.role_bytes(middle, "cpu"),
        ]

    expected = answers()
    _, lives, roles = expected
    live = replay.live(middle, "cpu")
    assert lives == {name: live[name].tolist() for name in lives}
    assert sum(blocks for _, _, blocks in roles.values()) == len(live)
    bytes_of_roles = live.groupby("role", observed=True)["nbytes"].sum().to_dict()
    assert {role: size for role, (size, _, _) in roles.items()} == bytes_of_roles
    asks = [(kind, at, "cpu") for at in (middle, middle // 2) for kind in ("stacks", "roles", "lives")]
    with monkeypatch.context() as patched:
        patched.setattr("pytorch_alloctrace.reading.replay._SMALL", small)
        with replay.asked_ahead(asks):
            replay.blocks(middle // 3)  # the state is another one now
            for _ in range(2):  # kept the first time, made again the second
                assert answers() == expected
            replay.forget("cpu")
            assert replay.role_bytes(middle, "cpu") == roles
    assert replay.role_bytes(middle, "cpu") == roles


@pytest.mark.parametrize("small", [0, 1_000_000], ids=["by whoever asks", "meanwhile"])
def test_what_goes_wrong_ahead_is_told_to_whoever_asks(path: str, monkeypatch: pytest.MonkeyPatch, small: int) -> None:
    replay = RecordedTrace(path).replay
    monkeypatch.setattr("pytorch_alloctrace.reading.replay._SMALL", small)
    answer, wrong = type(replay)._answer, "no memory for the first"

    def fail(self: object, states: object, ask: tuple[str, int, str]) -> object:
        if ask[1] == 10:
            raise MemoryError(wrong)
        return answer(self, states, ask)  # type: ignore[arg-type]

    monkeypatch.setattr(type(replay), "_answer", fail)
    with replay.asked_ahead([("stacks", 10, "cpu"), ("roles", 20, "cpu")]):
        assert replay.role_bytes(20, "cpu")
        with pytest.raises(MemoryError, match=wrong):
            replay.stacks(10, "cpu")
    with pytest.raises(KeyError), replay.asked_ahead([("roles", at, "cpu") for at in range(1000)]):
        raise KeyError  # the walk ends, whatever is left of it
    assert replay.role_bytes(20, "cpu")
