"""Backlogs, and leaks that begin late or after the last step."""

from __future__ import annotations

import collections
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.analysis.leaks.judge import LeakVerdict, find_leaks
from pytorch_alloctrace.analysis.summary import summarize
from pytorch_alloctrace.report.leaks import leak_findings

SIZE = 10_000


def block() -> torch.Tensor:
    return torch.empty(SIZE, dtype=torch.uint8)


def work() -> None:
    for _ in range(3):
        block()


@pytest.fixture
def record(tmp_path: Path) -> Callable[..., alloctrace.Trace]:
    def run(program: Callable[..., Any], *arguments: Any) -> alloctrace.Trace:
        with alloctrace.enable(tmp_path / "program.alloctrace", devices=("cpu",)) as session:
            kept = program(*arguments)
        del kept
        return session.load()

    return run


def judge(trace: alloctrace.Trace) -> LeakVerdict:
    verdict = find_leaks(trace, "cpu")
    assert verdict.judged
    return verdict


# Ever more at once


def slow_consumer(steps: int, tail: int) -> object:
    """Each step puts three blocks into a queue, and takes two out."""
    queue: collections.deque[torch.Tensor] = collections.deque()
    for _ in range(steps):
        work()
        for _ in range(3):
            queue.append(block_of_queue())
        queue.popleft()
        queue.popleft()
        alloctrace.step()
    for _ in range(tail):
        work()
    return queue


def block_of_queue() -> torch.Tensor:
    return torch.empty(SIZE, dtype=torch.uint8)


# A tail of work after the last step ends the judged part within a cell, wherever that is.
@pytest.mark.parametrize("tail", [0, 7])
def test_ever_more_at_once_is_found(record: Callable[..., alloctrace.Trace], tail: int) -> None:
    trace = record(slow_consumer, 160, tail)
    verdict = judge(trace)
    assert [leak.kind for leak in verdict.leaks] == ["rising"], verdict
    (leak,) = verdict.leaks
    assert leak.unit == "step" and leak.line.function == "block_of_queue"
    assert leak.rate == pytest.approx(leak.bytes / leak.blocks, rel=0.05)  # a block more each step
    (finding,) = leak_findings(summarize(trace))
    assert finding.kind == "growth"


# When it begins


def late_leak(steps: int) -> object:
    """A list that is let go of as a whole early on, and then never again."""
    held: list[torch.Tensor] = []
    for number in range(steps):
        work()
        held.append(kept_block())
        if number == steps // 5:
            held.clear()
        alloctrace.step()
    return held


def kept_block() -> torch.Tensor:
    return torch.empty(SIZE, dtype=torch.uint8)


def test_a_leak_that_begins_after_a_line_let_go_of_all(record: Callable[..., alloctrace.Trace]) -> None:
    (leak,) = judge(record(late_leak, 120)).leaks
    assert leak.line.function == "kept_block" and leak.onset >= 24


def train_then_serve(steps: int, requests: int) -> object:
    for _ in range(steps):
        work()
        alloctrace.step()
    sessions: list[torch.Tensor] = []
    for _ in range(requests):
        serve_one(sessions)
    return sessions


def serve_one(sessions: list[torch.Tensor]) -> None:
    work()
    sessions.append(kept_block())


def test_what_follows_the_last_step_is_judged_too(record: Callable[..., alloctrace.Trace]) -> None:
    (leak,) = judge(record(train_then_serve, 60, 80)).leaks
    assert leak.line.function == "kept_block" and leak.unit == "iteration" and leak.never_died


# Not decided


def too_late(steps: int) -> object:
    held: list[torch.Tensor] = []
    for number in range(steps):
        work()
        if number > 0.87 * steps:
            held.append(torch.empty(100 * SIZE, dtype=torch.uint8))
        alloctrace.step()
    return held


def test_what_begins_too_late_is_not_decided(record: Callable[..., alloctrace.Trace]) -> None:
    trace = record(too_late, 150)
    verdict = judge(trace)
    assert not verdict.leaks and not verdict.decided and verdict.unexplained
    (finding,) = leak_findings(summarize(trace))
    assert finding.kind == "undecided" and "no longer young" in finding.sentences[0]
