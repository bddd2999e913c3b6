"""Answers about states of the replay that are prefetched in one walk."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.reading.recorded import RecordedTrace


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A program that keeps a part of what it makes."""
    file = tmp_path_factory.mktemp("prefetch") / "run.alloctrace"
    kept = []
    with alloctrace.enable(file, devices=("cpu",)):
        for number in range(300):
            blocks = [torch.empty(1000 + number % 7, dtype=torch.uint8) for _ in range(20)]
            kept.append(blocks[number % 20])
            alloctrace.step()
    assert len(kept) == 300
    return str(file)


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
