"""The loops of a program are found in its stacks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.analysis.leaks.judge import find_leaks


def block() -> torch.Tensor:
    return torch.empty(10_000, dtype=torch.uint8)


def two_blocks() -> None:
    first = block()
    second = block()
    del first, second


def plain_loop(rounds: int) -> None:
    for _ in range(rounds):
        two_blocks()


def nested_loops(rounds: int) -> None:
    for _ in range(rounds):
        first = block()
        for _ in range(5):
            two_blocks()
        del first


def recursive(depth: int) -> None:
    held = block()
    if depth:
        recursive(depth - 1)
    del held


def thread_pool(rounds: int) -> None:
    with ThreadPoolExecutor(1) as pool:
        for _ in range(rounds):
            pool.submit(two_blocks).result()


def event_loop(rounds: int) -> None:
    async def handle() -> None:
        two_blocks()

    async def serve() -> None:
        for _ in range(rounds):
            await asyncio.create_task(handle())

    asyncio.run(serve())


@pytest.fixture
def record(tmp_path: Path) -> Callable[..., alloctrace.Trace]:
    def run(program: Callable[..., Any], *arguments: Any) -> alloctrace.Trace:
        with alloctrace.enable(tmp_path / "program.alloctrace", devices=("cpu",)) as session:
            program(*arguments)
        return session.load()

    return run


def rounds_in(trace: alloctrace.Trace, function: str) -> list[int]:
    """How often the user's function of this name began again, the most first."""
    stacks = trace.stacks
    found = [
        loop.rounds
        for loop in trace.replay.loops
        if stacks.is_user[loop.function] and stacks.frame(loop.function).function.split(".")[-1] == function
    ]
    return sorted(found, reverse=True)


@pytest.mark.parametrize("rounds", [30, 1500, 5000])
def test_a_loop_is_counted(record: Callable[..., alloctrace.Trace], rounds: int) -> None:
    trace = record(plain_loop, rounds)
    # The first round does not begin again.
    assert rounds_in(trace, "plain_loop") + rounds_in(trace, "two_blocks") == [rounds - 1]
    loop = max(trace.replay.loops, key=lambda one: one.rounds)
    assert len(loop.begins) == -(-loop.rounds // loop.stride) <= 1024
    assert (loop.begins[1:] > loop.begins[:-1]).all()
    verdict = find_leaks(trace, "cpu")
    assert verdict.judged and verdict.unit == "iteration" and not verdict.leaks
    assert abs(verdict.units - rounds) <= loop.stride


def test_the_outermost_of_nested_loops_counts(record: Callable[..., alloctrace.Trace]) -> None:
    verdict = find_leaks(record(nested_loops, 60), "cpu")
    assert verdict.loop is not None and verdict.loop.function == "nested_loops"
    assert (verdict.unit, verdict.units) == ("iteration", 60)


@pytest.mark.parametrize("program", [thread_pool, event_loop])
def test_handlers_called_again_and_again_count(
    record: Callable[..., alloctrace.Trace], program: Callable[[int], None]
) -> None:
    verdict = find_leaks(record(program, 80), "cpu")
    assert verdict.loop is not None and (verdict.unit, verdict.units) == ("iteration", 80)


def test_recursion_is_no_loop_and_allocations_count(record: Callable[..., alloctrace.Trace]) -> None:
    trace = record(recursive, 200)
    assert rounds_in(trace, "recursive") == []
    verdict = find_leaks(trace, "cpu")
    assert verdict.judged and verdict.unit == "second" and verdict.loop is None


def test_too_few_rounds_are_no_loop(record: Callable[..., alloctrace.Trace]) -> None:
    assert find_leaks(record(plain_loop, 15), "cpu").loop is None


class Server:
    """Keeps what it has answered, and is gone when serve() has returned."""

    def __init__(self) -> None:
        self.answers: list[torch.Tensor] = []

    def serve(self, rounds: int) -> None:
        for _ in range(rounds):
            two_blocks()
            self.answers.append(block())


def serves_and_says_goodbye(rounds: int) -> None:
    Server().serve(rounds)
    for _ in range(3):
        block()


def test_what_a_loop_kept_is_judged_before_its_function_returned(record: Callable[..., alloctrace.Trace]) -> None:
    verdict = find_leaks(record(serves_and_says_goodbye, 60), "cpu")
    assert verdict.loop is not None and verdict.loop.function == "Server.serve"
    assert [leak.line.function for leak in verdict.leaks] == ["block"] and verdict.units == 60
