"""Servers and data pipelines that leak; see leak_cases_training. Some have no steps, like most servers."""

from __future__ import annotations

import functools
import queue
import threading
from collections.abc import Callable, Iterator

import torch
from leak_corpus import STEPS, network, requests, steps, update


def cache_by_step_number(device: str) -> object:
    cache = {}
    for step in steps():
        cache[step] = torch.arange(512, device=device)  # LEAK
        torch.randn(8, 64, device=device).exp()
    return cache


def cache_by_request_without_steps(device: str) -> object:
    net, answers = network(device), {}
    for number in requests():
        with torch.no_grad():
            x = torch.randn(8, 64, device=device)
            answers[number] = net(x)  # LEAK
    return answers


def one_answer_in_fifteen_without_steps(device: str) -> object:
    net, answers = network(device), []
    for number in requests():
        with torch.no_grad():
            output = net(torch.randn(8, 64, device=device)).softmax(dim=1)  # LEAK
        if number % 15 == 0:
            answers.append(output)
    return answers


def exceptions_keep_their_frames(device: str) -> object:
    failures = []

    def handle(number: int) -> None:
        x = torch.randn(8, 64, device=device)  # LEAK
        raise ValueError(f"request {number} of {len(x)} rows is refused")

    for step in steps():
        try:
            handle(step)
        except ValueError as error:
            failures.append(error)
    return failures


class Session:
    """Registers itself, and nobody takes it off the list."""

    everyone: list[Session]

    def __init__(self, device: str) -> None:
        self.state = torch.zeros(8, 128, device=device)  # LEAK
        self.everyone.append(self)


def global_registry(device: str) -> object:
    Session.everyone = []
    for _ in steps():
        session = Session(device)
        session.state.add_(torch.randn(8, 128, device=device))
    return Session.everyone


global_registry.leaks_in = Session.__init__  # type: ignore[attr-defined]


def callbacks_keep_what_they_close_over(device: str) -> object:
    net, callbacks = network(device), []

    def later(output: torch.Tensor) -> Callable[[], torch.Tensor]:
        return lambda: output.sum()

    for _ in requests():
        with torch.no_grad():
            output = net(torch.randn(8, 64, device=device))  # LEAK
        callbacks.append(later(output))
    return callbacks


def lru_cache_without_a_bound_keyed_by_tensors(device: str) -> object:
    @functools.cache
    def expanded(x: torch.Tensor) -> torch.Tensor:
        return x.repeat(8, 1)  # LEAK

    for _ in steps():
        expanded(torch.randn(1, 64, device=device))
    return expanded


def generators_never_finished(device: str) -> object:
    def stream() -> Iterator[torch.Tensor]:
        hidden = torch.zeros(8, 128, device=device)  # LEAK
        while True:
            yield hidden.sum()

    streams = []
    for _ in steps():
        opened = stream()
        next(opened)
        streams.append(opened)
    return streams


class Disconnection:
    """What a connection waits for, and what never comes."""

    def __await__(self) -> Iterator[None]:
        yield


def coroutines_that_wait_for_ever(device: str) -> object:
    async def connection() -> None:
        buffer = torch.zeros(8, 128, device=device)  # LEAK
        buffer.add_(torch.randn(8, 128, device=device))
        await Disconnection()
        buffer.sum()

    connections = []
    for _ in requests():
        connections.append(connection())
        connections[-1].send(None)
    return connections


def queue_never_drained(device: str) -> object:
    results: queue.Queue[torch.Tensor] = queue.Queue()

    def work() -> None:
        for _ in requests():
            results.put(torch.randn(8, 64, device=device).softmax(dim=1))  # LEAK

    worker = threading.Thread(target=work)
    worker.start()
    worker.join()
    return results


def results_of_several_threads(device: str) -> object:
    net, done = network(device), []

    def work(turn: threading.Semaphore, ended: threading.Semaphore) -> None:
        for _ in range(STEPS):
            turn.acquire()
            with torch.no_grad():
                done.append(net(torch.randn(8, 64, device=device)))  # LEAK
            ended.release()

    turn, ended = threading.Semaphore(0), threading.Semaphore(0)
    workers = [threading.Thread(target=work, args=(turn, ended)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for _ in steps():
        for _ in workers:
            turn.release()
        for _ in workers:
            ended.acquire()
    for worker in workers:
        worker.join()
    return done


def thread_local_scratch_never_cleared(device: str) -> object:
    scratch = threading.local()

    def work(turn: threading.Semaphore, ended: threading.Semaphore) -> None:
        scratch.blocks = []
        for _ in range(STEPS):
            turn.acquire()
            scratch.blocks.append(torch.empty(8, 128, device=device))  # LEAK
            ended.release()
        turn.acquire()

    turn, ended = threading.Semaphore(0), threading.Semaphore(0)
    worker = threading.Thread(target=work, args=(turn, ended))
    worker.start()
    for _ in steps():
        turn.release()
        ended.acquire()
    turn.release()
    worker.join()
    return scratch


def prefetched_batches_read_but_not_removed(device: str) -> object:
    class Loader:
        def __init__(self) -> None:
            self.ready: list[torch.Tensor] = []
            self.position = 0

        def fetch(self) -> None:
            self.ready.append(torch.empty(16, 64, device=device))  # LEAK

        def next(self) -> torch.Tensor:
            while len(self.ready) < self.position + 3:
                self.fetch()
            self.position += 1
            return self.ready[self.position - 1]

    net, loader = network(device), Loader()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    for _ in range(STEPS):
        net(loader.next()).mean().backward()
        update(optimizer)
    return loader


def key_value_cache_never_reset(device: str) -> object:
    project = torch.nn.Linear(64, 192).to(device)
    keys = values = torch.empty(1, 0, 64, device=device)
    with torch.no_grad():
        for _ in requests():
            query, key, value = project(torch.randn(1, 1, 64, device=device)).chunk(3, dim=2)
            keys = torch.cat([keys, key], dim=1)  # LEAK
            values = torch.cat([values, value], dim=1)  # LEAK
            scores = query @ keys.transpose(1, 2)
            scores.softmax(dim=2) @ values
    return keys, values


def context_of_tokens_never_cut(device: str) -> object:
    embedding = torch.nn.Embedding(100, 16).to(device)
    tokens = torch.zeros(1, 8, dtype=torch.long, device=device)
    for _ in steps():
        with torch.no_grad():
            embedding(tokens[:, -8:]).mean()
        word = torch.zeros(1, 1, dtype=torch.long, device=device)
        tokens = torch.cat([tokens, word], dim=1)  # LEAK
    return tokens


def key_value_caches_of_every_layer(device: str) -> object:
    caches = [torch.empty(1, 0, 64, device=device) for _ in range(4)]
    with torch.no_grad():
        for _ in steps():
            hidden = torch.randn(1, 1, 64, device=device)
            for layer in range(4):
                hidden = hidden * 2
                caches[layer] = torch.cat([caches[layer], hidden], dim=1)  # LEAK
    return caches


def histories_of_several_users(device: str) -> object:
    # One line, many buffers: each request makes one of them larger.
    histories = {user: torch.empty(0, 32, device=device) for user in range(7)}
    for number in requests():
        history = histories[number % 7]
        histories[number % 7] = torch.cat([history, torch.randn(1, 32, device=device)])  # LEAK
    return histories


def keys_repeated_for_each_head(device: str) -> object:
    # What is made of the cache each time is larger than the cache, and grows with it.
    keys = torch.empty(1, 2, 0, 16, device=device)
    with torch.no_grad():
        for _ in steps():
            query, key = torch.randn(1, 8, 1, 16, device=device), torch.randn(1, 2, 1, 16, device=device)
            keys = torch.cat([keys, key], dim=2)  # LEAK
            repeated = keys.repeat_interleave(4, dim=1)
            (query @ repeated.transpose(2, 3)).softmax(dim=3)
    return keys


def padded_by_a_part_of_the_output(device: str) -> object:
    net, columns = network(device), torch.zeros(8, 0, device=device)
    for _ in requests():
        with torch.no_grad():
            output = net(torch.randn(8, 64, device=device))
            columns = torch.cat([columns, output[:, :3]], dim=1)  # LEAK
    return columns


def conversation_after_a_long_prompt(device: str) -> object:
    # Most of the cache is there from the start, and it is read as a whole.
    project = torch.nn.Linear(64, 192).to(device)
    with torch.no_grad():
        query, keys, values = project(torch.randn(1, 512, 64, device=device)).chunk(3, dim=2)
        for _ in requests():
            query, key, value = project(torch.randn(1, 1, 64, device=device)).chunk(3, dim=2)
            keys = torch.cat([keys, key], dim=1)  # LEAK
            values = torch.cat([values, value], dim=1)  # LEAK
            (query @ keys.transpose(1, 2)).softmax(dim=2) @ values
    return keys, values


def prompts_and_tokens_of_every_request(device: str) -> object:
    # A cache that each request appends to: a prompt of its own length, then a few tokens.
    project = torch.nn.Linear(64, 192).to(device)
    keys = values = torch.empty(1, 0, 64, device=device)
    with torch.no_grad():
        for number in steps():
            for length in (16 + number * 37 % 50, 1, 1, 1):
                query, key, value = project(torch.randn(1, length, 64, device=device)).chunk(3, dim=2)
                keys = torch.cat([keys, key], dim=1)  # LEAK
                values = torch.cat([values, value], dim=1)  # LEAK
                (query @ keys.transpose(1, 2)).softmax(dim=2) @ values
    return keys, values
