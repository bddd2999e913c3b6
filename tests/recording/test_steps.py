"""Steps from torch's optimizers in programs that do not call step()."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import pytorch_alloctrace as alloctrace


@pytest.fixture
def session(tmp_path: Path):
    with alloctrace.enable(tmp_path / "t.alloctrace") as session:
        yield session


def make_optimizer(kind: type[torch.optim.Optimizer] = torch.optim.SGD, **options: float) -> torch.optim.Optimizer:
    weight = torch.ones(4, requires_grad=True)
    weight.grad = torch.ones(4)
    return kind([weight], lr=0.1, **options)


def steps(session: alloctrace.Session) -> list[int]:
    alloctrace.disable()
    return list(session.load().steps()["step"])


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.LBFGS])
def test_each_step_of_one_optimizer_is_recorded(session: alloctrace.Session, kind: type[torch.optim.Optimizer]) -> None:
    """Include LBFGS, which calls its closure many times in a step."""
    optimizer = make_optimizer(kind)

    for _ in range(5):
        optimizer.step(lambda: torch.tensor(1.0, requires_grad=True))

    assert steps(session) == [0, 1, 2, 3, 4]


def test_first_optimizer_counts_when_the_second_steps_more_often(session: alloctrace.Session) -> None:
    generator, critic = make_optimizer(), make_optimizer()

    for _ in range(4):
        generator.step()
        for _ in range(5):
            critic.step()

    assert steps(session) == [0, 1, 2, 3]


def test_optimizers_of_single_parameters_make_one_step_together(session: alloctrace.Session) -> None:
    optimizers = [make_optimizer() for _ in range(30)]

    for _ in range(3):
        for optimizer in optimizers:
            optimizer.step()

    assert steps(session) == [0, 1, 2]


def test_second_optimizer_counts_when_the_first_stops(session: alloctrace.Session) -> None:
    pretraining = make_optimizer()
    for _ in range(3):
        pretraining.step()

    finetuning = make_optimizer()
    for _ in range(40):
        finetuning.step()

    assert len(steps(session)) > 20


def test_second_optimizer_counts_when_the_first_is_deleted(session: alloctrace.Session) -> None:
    optimizer = make_optimizer()
    optimizer.step()
    del optimizer

    other = make_optimizer()
    for _ in range(3):
        other.step()

    assert steps(session) == [0, 1, 2, 3]


def test_optimizer_steps_are_ignored_after_a_call_of_step(session: alloctrace.Session) -> None:
    optimizer = make_optimizer()
    optimizer.step()
    alloctrace.step()

    for _ in range(10):
        optimizer.step()
    alloctrace.step(100)
    tensor = torch.empty(40)

    # The step that the optimizer ended before the first call of step() is dropped.
    assert steps(session) == [0, 100]
    live = session.load().live().set_index("address")["step"]
    assert live[tensor.data_ptr()] == 101
