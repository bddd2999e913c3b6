"""Leaks, growth and loops in small programs: with a planted leak, and healthy ones that resemble a leak."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import random
import types
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from marked_programs import run_analyze
from shared_recordings import run_source
from steady_clock import make_steady, tick

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.analysis.evidence import collect_evidence
from pytorch_alloctrace.analysis.free_memory.failed_allocations import ENDED
from pytorch_alloctrace.analysis.leaks import doubts
from pytorch_alloctrace.analysis.leaks.growth import growing_sites, median_slope, step_growth
from pytorch_alloctrace.analysis.leaks.judge import find_leaks
from pytorch_alloctrace.analysis.leaks.leak import CERTAIN, Leak, LeakVerdict
from pytorch_alloctrace.analysis.summary import summarize
from pytorch_alloctrace.reading.recorded import RecordedTrace
from pytorch_alloctrace.recording import object_scans
from pytorch_alloctrace.report.leaks import leak_findings

SIZE = 10_000
"""Bytes of one planted block."""

Record = Callable[..., RecordedTrace]


def block(size: int = SIZE) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8)


@pytest.fixture
def record(tmp_path: Path) -> Record:
    """Return a function that records a program; the program's result stays live until the recording ends."""

    def run(program: Callable[..., Any], *arguments: Any, **options: Any) -> RecordedTrace:
        with alloctrace.enable(tmp_path / "program.alloctrace", devices=("cpu",), **options) as session:
            result = program(*arguments)
        del result
        if program is without_steps:
            make_steady(session.path)
        trace = RecordedTrace(session.path)
        assert trace.integrity.state == "complete"
        return trace

    return run


def judge(trace: RecordedTrace) -> LeakVerdict:
    verdict = find_leaks(trace, "cpu")
    assert verdict.judged
    return verdict


def only_leak(trace: RecordedTrace) -> Leak:
    leaks = judge(trace).leaks
    assert len(leaks) == 1, leaks
    return leaks[0]


def every_step(steps: int, body: Callable[[int], Any]) -> None:
    for number in range(steps):
        block(50_000)  # freed before the step ends
        body(number)
        alloctrace.step()


def append_every_step(steps: int) -> list[torch.Tensor]:
    history: list[torch.Tensor] = []

    def body(number: int) -> None:
        history.append(block())  # planted

    every_step(steps, body)
    return history


def test_block_appended_every_step_is_leak_with_line_rate_and_growth(record: Record) -> None:
    trace = record(append_every_step, 60)
    leak = only_leak(trace)
    site = leak.sites[0].site
    # block() is user code: the innermost line is the site, its callers are the path.
    assert site.source is not None and "torch.empty" in site.source and site.function == "block"
    functions = [frame.function.rpartition(".")[2] for frame in leak.path[:3]]
    assert functions == ["body", "every_step", "append_every_step"]
    assert leak.path[0].source is not None and "# planted" in leak.path[0].source
    # Steps 0 to 59: the first two are warm-up, the last three are too young (a 24th of 59 is 2.5).
    assert (leak.unit, leak.units_judged, leak.units_with_survivors) == ("step", 55, 55)
    assert (leak.onset, leak.reached, leak.died) == (2, 57, 0)
    assert (leak.bytes_per_unit, leak.allocated_bytes, leak.blocks, leak.allocated_bytes_at_end) == (
        SIZE,
        55 * SIZE,
        55,
        55 * SIZE,
    )
    assert leak.oldest_age == 57 and leak.forecast_seconds is not None
    # block() also allocates memory that is freed.
    assert not leak.never_died and leak.confidence == pytest.approx(24 / 25, abs=0.02)

    growth = step_growth(trace, "cpu")
    assert (growth.steps, growth.warmup, growth.first_bytes, growth.last_bytes) == (60, 12, SIZE, 60 * SIZE)
    assert (growth.lowest_bytes, growth.highest_bytes, growth.median_bytes) == (SIZE, 60 * SIZE, int(30.5 * SIZE))
    assert growth.bytes_per_step == SIZE
    (grown,) = growing_sites(collect_evidence(trace, "cpu"), top=5)
    assert (grown.before_bytes, grown.after_bytes, grown.grown_bytes, grown.bytes_per_unit) == (
        12 * SIZE,
        60 * SIZE,
        48 * SIZE,
        SIZE,
    )


@pytest.mark.parametrize("steps", [3, 60])
def test_leaks_of_healthy_program_are_conclusive_when_long_enough(record: Record, steps: int) -> None:
    trace = record(every_step, steps, lambda number: block())
    report = alloctrace.load(trace.path).leaks()
    assert report.to_frame().empty and report.conclusive == (steps == 60)
    kind = "no_leak" if steps == 60 else "not_judged"
    assert [finding.kind for finding in leak_findings(summarize(trace))] == [kind]


# At 110 only the last few steps distinguish the cache from a leak.
@pytest.mark.parametrize("bound", [30, 110])
def test_bounded_cache_is_no_leak(record: Record, bound: int) -> None:
    cache: collections.deque[torch.Tensor] = collections.deque(maxlen=bound)
    assert judge(record(every_step, 120, lambda number: cache.append(block()))).leaks == ()


def test_full_cache_that_replaces_blocks_of_random_age_is_no_leak(record: Record) -> None:
    chance, cache = random.Random(3), [torch.empty(0)] * 100

    def body(number: int) -> None:
        cache[number if number < 100 else chance.randrange(100)] = block()

    assert judge(record(every_step, 125, body)).leaks == ()


def test_leak_that_may_be_partly_filled_buffer_is_not_certain(record: Record) -> None:
    buffer: list[torch.Tensor] = []
    leak = only_leak(record(every_step, 120, lambda number: buffer.append(torch.empty(SIZE, dtype=torch.uint8))))
    assert leak.never_died and leak.confidence < CERTAIN


@pytest.mark.parametrize(("epoch", "is_cleared"), [(25, True), (10, False)])
def test_list_leaks_unless_each_epoch_clears_it_when_step_numbers_restart(
    record: Record, epoch: int, is_cleared: bool
) -> None:
    def program() -> list[torch.Tensor]:
        losses: list[torch.Tensor] = []
        for number in range(100):
            if is_cleared and number % epoch == 0:
                losses.clear()
            losses.append(block())
            alloctrace.step(number % epoch)
        return losses

    trace = record(program)
    growth = step_growth(trace, "cpu")
    assert growth is not None and growth.steps == 100
    if is_cleared:
        assert judge(trace).leaks == ()
    else:
        leak = only_leak(trace)
        assert leak.bytes_per_unit == SIZE and leak.units_with_survivors == leak.units_judged


def test_losses_with_their_graphs_are_one_leak(record: Record) -> None:
    losses: list[torch.Tensor] = []
    leak = only_leak(record(train, 40, losses))
    functions = {site.site.function for site in leak.sites}

    # The largest site allocates the activation, which is held by the graph of the appended loss.
    assert leak.sites[0].site.source is not None and "# activation" in leak.sites[0].site.source
    assert {"forward", "train"} <= {function.rpartition(".")[2] for function in functions}
    assert leak.sites == tuple(sorted(leak.sites, key=lambda site: -site.allocated_bytes))
    assert leak.path[0].function == "train" and leak.path_share > 0.95
    assert leak.bytes_per_unit == pytest.approx(sum(site.bytes_per_unit for site in leak.sites))


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(64, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = (x @ self.weight).exp().repeat(4, 4)  # activation
        return hidden.sin().sum(dim=1)


def train(steps: int, losses: list[torch.Tensor]) -> object:
    model = Model()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        loss = model(torch.randn(16, 64) / 100).mean()
        losses.append(loss * 2)
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        optimizer.step()
    return model, optimizer


def test_two_leaks_of_different_rates_are_ordered_by_rate(record: Record) -> None:
    small_blocks, large_blocks = [], []

    def body(number: int) -> None:
        small_blocks.append(torch.empty(2_000, dtype=torch.uint8))
        if number % 3 == 0:
            large_blocks.append(torch.empty(30_000, dtype=torch.uint8))

    leaks = judge(record(every_step, 120, body)).leaks
    assert [round(leak.bytes_per_unit / 1000) for leak in leaks] == [10, 2]


def test_leak_into_local_list_is_found_after_function_returned(record: Record) -> None:
    def program() -> None:
        append_every_step(60)

    trace = record(program)
    assert alloctrace.load(trace.path).live().empty
    leak = only_leak(trace)
    assert (leak.bytes_per_unit, leak.allocated_bytes_at_end) == (SIZE, 0)
    assert "freed after the last step" in " ".join(leak_findings(summarize(trace))[0].sentences)


@pytest.mark.parametrize(
    ("steps", "kind"), [(6, "not_judged"), (7, "inconclusive"), (19, "inconclusive"), (20, "leak")]
)
def test_growth_is_a_leak_from_20_steps_on(record: Record, steps: int, kind: str) -> None:
    trace = record(append_every_step, steps)
    assert [finding.kind for finding in leak_findings(summarize(trace))] == [kind]


def test_growth_that_ends_in_out_of_memory_is_a_possible_leak_at_any_length(
    record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = record(append_every_step, 10)
    failure = types.SimpleNamespace(outcome=ENDED, seq=trace.end_seq)
    monkeypatch.setattr(doubts, "find_failed_allocations", lambda *arguments, **options: [failure])
    assert only_leak(trace).confidence < 0.7


def test_buffer_replaced_by_larger_one_each_step_is_growing_leak(record: Record) -> None:
    buffer = torch.empty(0, dtype=torch.uint8)

    def body(number: int) -> None:
        nonlocal buffer
        buffer = torch.cat([buffer, block(1000)])  # grows

    leak = only_leak(record(every_step, 24, body))
    assert leak.kind == "growing" and leak.line.source is not None and "# grows" in leak.line.source
    assert (leak.bytes_per_unit, leak.allocated_bytes, leak.blocks, leak.allocated_bytes_at_end) == (
        1000,
        24_000,
        1,
        24_000,
    )
    assert leak.units_with_survivors == leak.units_judged and leak.oldest_age == 1


def without_steps(body: Callable[[int], Any], rounds: int = 300) -> None:
    for number in range(rounds):
        block(50_000)
        body(number)
        tick()


def test_leak_rate_is_per_iteration_without_steps(record: Record) -> None:
    blocks = []
    trace = record(without_steps, lambda number: blocks.append(block()))
    verdict = judge(trace)
    assert verdict.loop is not None and verdict.loop.function == "without_steps"
    assert verdict.units in (299, 300)  # the first of 300 rounds may not be counted
    (leak,) = verdict.leaks
    assert (leak.unit, leak.bytes_per_unit) == ("iteration", SIZE)
    assert leak.units_with_survivors == leak.units_judged > 270


def test_growth_without_steps_and_stacks_is_no_leak(record: Record) -> None:
    blocks = []
    trace = record(without_steps, lambda number: blocks.append(block()), stacks="none")
    verdict = find_leaks(trace, "cpu")
    assert verdict.is_one_pass and not verdict.leaks and verdict.loop is None and not verdict.decided
    assert "one pass is not a loop" in leak_findings(summarize(trace))[0].title


def test_minor_leak_is_listed_last_and_does_not_fail(
    record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The forecast of this machine, from its memory and speed, may be less than 30 days.
    forecast = "pytorch_alloctrace.analysis.leaks.survivor_leaks.LeakBuilder._seconds_until_full"
    monkeypatch.setattr(forecast, lambda builder, rate, seconds: 31 * 86400.0)
    blocks = []
    trace = record(every_step, 50, lambda number: blocks.append(block(1)))
    assert [finding.kind for finding in leak_findings(summarize(trace))] == ["no_leak", "minor_leak"]
    loaded = alloctrace.load(trace.path)
    assert loaded.leaks().to_frame()[["minor", "bytes_per_unit"]].to_numpy().tolist() == [[True, 1]]
    text = run_analyze(tmp_path, "program.alloctrace", "--verbose")
    assert "LEAK" not in text and "GROWTH" in text.partition("NOTE")[0]
    assert "NOTE" not in run_analyze(tmp_path, "program.alloctrace"), "Notes below 1 MiB are left out."
    run_analyze(tmp_path, "leaks", "program.alloctrace", "--fail")
    # A leak is not minor if it fills the device within 30 days, or holds 64 KiB.
    leak, day, peak = only_leak(trace), 86400.0, loaded.peak().bytes
    for seconds, allocated_bytes, is_minor in (
        (31 * day, 1000, True),
        (29 * day, 1000, False),
        (31 * day, 65536, False),
    ):
        changed = dataclasses.replace(leak, forecast_seconds=seconds, allocated_bytes=allocated_bytes)
        assert changed.is_minor(peak) is is_minor, (seconds, allocated_bytes)


def test_median_slope_ignores_jump() -> None:
    levels = np.arange(100, dtype=np.int64) * 7
    assert median_slope(np.where(np.arange(100) == 50, 10**9, levels)) == 7
    assert median_slope(np.array([5])) == 0 and median_slope(np.array([5, 5])) == 0
    assert median_slope(np.where(levels < 70, 0, 1_000_000)) == 0


def retained_block() -> torch.Tensor:
    return torch.empty(SIZE, dtype=torch.uint8)


# Allocations after the last step end the judged part within a cell.
@pytest.mark.parametrize("tail", [0, 7])
def test_queue_filled_faster_than_emptied_is_backlog(
    record: Record, tail: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Two object scans must find the queue, also next to the large heap of a test process.
    monkeypatch.setattr(object_scans, "FREE_SCAN_S", 4.0)
    monkeypatch.setattr(object_scans, "MAX_SCAN_S", 4.0)

    def program() -> object:
        queue: collections.deque[torch.Tensor] = collections.deque()

        def body(number: int) -> None:
            for _ in range(3):
                queue.append(retained_block())
            queue.popleft()
            queue.popleft()

        every_step(480, body)  # enough events for several object scans
        for _ in range(tail):
            two_blocks()
        return queue

    trace = record(program)
    leak = only_leak(trace)
    assert (leak.kind, leak.unit, leak.line.function) == ("backlog", "step", "retained_block")
    assert leak.bytes_per_unit == pytest.approx(leak.allocated_bytes / leak.blocks, rel=0.05)  # one more block per step
    assert [finding.kind for finding in leak_findings(summarize(trace))] == ["growth"]


def test_leak_that_begins_after_list_was_cleared_is_found(record: Record) -> None:
    blocks: list[torch.Tensor] = []

    def body(number: int) -> None:
        blocks.append(retained_block())
        if number == 24:
            blocks.clear()

    leak = only_leak(record(every_step, 120, body))
    assert leak.line.function == "retained_block" and leak.onset >= 24


def test_leak_after_last_step_is_found(record: Record) -> None:
    sessions: list[torch.Tensor] = []

    def serve_request() -> None:
        two_blocks()
        sessions.append(retained_block())

    def train_then_serve() -> None:
        every_step(60, lambda number: None)
        for _ in range(80):
            serve_request()

    leak = only_leak(record(train_then_serve))
    assert leak.line.function == "retained_block" and leak.unit == "iteration" and leak.never_died


def test_leak_that_begins_late_is_inconclusive(record: Record) -> None:
    blocks: list[torch.Tensor] = []
    trace = record(every_step, 150, lambda number: blocks.append(block(100 * SIZE)) if number > 130 else None)
    verdict = judge(trace)
    assert not verdict.leaks and not verdict.decided and verdict.undecided
    (finding,) = leak_findings(summarize(trace))
    assert finding.kind == "inconclusive" and "too late to tell" in finding.title


def two_blocks() -> None:
    first = block()
    second = block()
    del first, second


def single_loop(rounds: int) -> None:
    for _ in range(rounds):
        two_blocks()


def nested_loops(rounds: int) -> None:
    for _ in range(rounds):
        first = block()
        for _ in range(5):
            two_blocks()
        del first


def recursive(depth: int) -> None:
    allocated = block()
    if depth:
        recursive(depth - 1)
    del allocated


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


def rounds_in(trace: RecordedTrace, function: str) -> list[int]:
    """Return the numbers of rounds of the loops in the user's function of this name, in descending order."""
    stacks = trace.stacks
    rounds = [
        loop.rounds
        for loop in trace.replay.loops
        if stacks.is_user[loop.function] and stacks.frame(loop.function).function.split(".")[-1] == function
    ]
    return sorted(rounds, reverse=True)


@pytest.mark.parametrize("rounds", [30, 5000])
def test_loop_rounds_are_counted(record: Record, rounds: int) -> None:
    trace = record(single_loop, rounds)
    # The first round is not counted.
    assert rounds_in(trace, "single_loop") + rounds_in(trace, "two_blocks") == [rounds - 1]
    loop = max(trace.replay.loops, key=lambda loop: loop.rounds)
    assert len(loop.begins) == -(-loop.rounds // loop.stride) <= 1024
    assert (loop.begins[1:] > loop.begins[:-1]).all()
    verdict = find_leaks(trace, "cpu")
    assert verdict.judged and verdict.unit == "iteration" and not verdict.leaks
    assert abs(verdict.units - rounds) <= loop.stride


@pytest.mark.parametrize("program", [nested_loops, thread_pool, event_loop])
def test_loop_that_calls_handlers_is_unit_of_verdict(record: Record, program: Callable[[int], None]) -> None:
    verdict = find_leaks(record(program, 80), "cpu")
    assert verdict.loop is not None and (verdict.unit, verdict.units) == ("iteration", 80)
    assert program is not nested_loops or verdict.loop.function == "nested_loops", "not the outermost loop"


def test_recursion_is_no_loop_and_unit_is_second(record: Record) -> None:
    trace = record(recursive, 200)
    assert rounds_in(trace, "recursive") == []
    verdict = find_leaks(trace, "cpu")
    assert verdict.is_one_pass and verdict.unit == "second" and verdict.loop is None


def test_15_rounds_are_no_loop(record: Record) -> None:
    assert find_leaks(record(single_loop, 15), "cpu").loop is None


class Server:
    """A server that holds its answers and is freed when serve() returns."""

    def __init__(self) -> None:
        self.answers: list[torch.Tensor] = []

    def serve(self, rounds: int) -> None:
        for _ in range(rounds):
            two_blocks()
            self.answers.append(block())


def serve_then_allocate(rounds: int) -> None:
    Server().serve(rounds)
    for _ in range(3):
        block()


def test_leak_in_loop_is_found_after_loop_function_returned(record: Record) -> None:
    verdict = find_leaks(record(serve_then_allocate, 60), "cpu")
    assert verdict.loop is not None and verdict.loop.function == "Server.serve"
    assert [leak.line.function for leak in verdict.leaks] == ["block"] and verdict.units == 60


TWO_LISTS = """
import torch, pytorch_alloctrace as alloctrace

batches, history = [], []
with alloctrace.enable("program.alloctrace"):
    net = torch.nn.Linear(512, 2048).cuda()
    for _ in range(60):
        for _ in range(6):
            batches.append(torch.empty(1_500_000, dtype=torch.uint8, device="cuda"))
        out = torch.nn.functional.gelu(net(torch.ones(2000, 512, device="cuda")))
        history.append(out.detach())
"""


def test_objects_that_hold_a_leak_are_named_by_their_bytes(tmp_path: Path) -> None:
    folder = run_source(tmp_path, TWO_LISTS, cuda=True)

    text = " ".join(run_analyze(folder, "leaks", "program.alloctrace").split())

    lists = "history (list of 60), global of program.py; batches (list of 360), global of program.py"
    assert f"Held by several: {lists}." in text and "Clear or cap `history`" in text
    assert "Allocated at these lines:" in text
