"""Servers and data pipelines whose memory grows or fluctuates without a leak. Some have no steps."""

from __future__ import annotations

import collections
import queue
import threading

import torch
from leak_corpus import STEPS, network, requests, steps, update


def caches_filled_once(device: str) -> object:
    # Tables made at first use, the last of them late in the run.
    net, tables = network(device), {}
    for step in steps():
        length = 64 * (1 + sum(step >= first for first in (5, 17, 31, 52)))
        if length not in tables:
            tables[length] = torch.arange(length * 16, device=device)
        with torch.no_grad():
            net(torch.randn(8, 64, device=device))
    return tables


def cache_of_the_least_recently_used(device: str) -> object:
    cache: collections.OrderedDict[int, torch.Tensor] = collections.OrderedDict()
    for step in steps(2 * STEPS):
        key = step * 7919 % 101
        if key not in cache:
            cache[key] = torch.randn(8, 64, device=device)
        cache.move_to_end(key)
        if len(cache) > 48:
            cache.popitem(last=False)
    return cache


def workspaces_of_an_autotuner(device: str) -> object:
    # One for each shape that is met; all shapes have been met in the first half.
    workspaces: dict[int, torch.Tensor] = {}
    for step in steps():
        rows = 8 * (1 + step * 7 % 25)
        if rows not in workspaces:
            workspaces[rows] = torch.empty(rows * 64, device=device)
        torch.randn(rows, 64, device=device).exp()
    return workspaces


def key_value_cache_reset_by_each_request(device: str) -> object:
    project = torch.nn.Linear(64, 192).to(device)
    keys = values = torch.empty(1, 0, 64, device=device)
    with torch.no_grad():
        for token in steps(2 * STEPS):
            if token % 23 == 0:
                keys = values = torch.empty(1, 0, 64, device=device)
            query, key, value = project(torch.randn(1, 1, 64, device=device)).chunk(3, dim=2)
            keys = torch.cat([keys, key], dim=1)
            values = torch.cat([values, value], dim=1)
            (query @ keys.transpose(1, 2)).softmax(dim=2) @ values
    return keys, values


def key_value_cache_reset_in_step_with_the_windows(device: str) -> object:
    # Requests nearly as long as a window of the run: looked at once a window, the cache seems to grow slowly.
    keys = torch.empty(1, 0, 16, device=device)
    with torch.no_grad():
        for token in steps(600):
            if token % 19 == 0:
                keys = torch.empty(1, 0, 16, device=device)
            keys = torch.cat([keys, torch.randn(1, 1, 16, device=device)], dim=1)
    return keys


def key_value_cache_reset_without_steps(device: str) -> object:
    keys = torch.empty(1, 0, 64, device=device)
    with torch.no_grad():
        for token in requests():
            if token % 11 == 0:
                keys = torch.empty(1, 0, 64, device=device)
            keys = torch.cat([keys, torch.randn(1, 1, 64, device=device)], dim=1)
            keys.mean()
    return keys


def requests_of_varying_length(device: str) -> object:
    net = network(device)
    for number in requests():
        with torch.no_grad():
            x = torch.randn(1 + number * 37 % 50, 64, device=device)
            net(x).softmax(dim=1)
    return net


def requests_that_get_longer_and_longer(device: str) -> object:
    net = network(device)
    for number in requests():
        with torch.no_grad():
            x = torch.randn(8 + number, 64, device=device)
            output = net(x)
        output.softmax(dim=1)
    return net


def sessions_with_a_bound(device: str) -> object:
    sessions: collections.deque[torch.Tensor] = collections.deque(maxlen=30)
    for _ in requests():
        sessions.append(torch.zeros(8, 128, device=device))
        sessions[-1].add_(torch.randn(8, 128, device=device))
    return sessions


def queue_drained_in_bursts(device: str) -> object:
    results: queue.Queue[torch.Tensor] = queue.Queue()

    def work() -> None:
        for number in requests():
            results.put(torch.randn(8, 64, device=device).softmax(dim=1))
            if number % 20 == 19:
                while not results.empty():
                    results.get()

    worker = threading.Thread(target=work)
    worker.start()
    worker.join()
    return results


def prefetched_batches_used_up(device: str) -> object:
    net, ready = network(device), collections.deque()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    for _ in range(STEPS):
        while len(ready) < 4:
            ready.append(torch.randn(16, 64, device=device))
        net(ready.popleft()).mean().backward()
        update(optimizer)
    return ready


def counts_added_in_place(device: str) -> object:
    net, counts = network(device), torch.zeros(64, 64, device=device)
    for _ in steps():
        with torch.no_grad():
            output = net(torch.randn(8, 64, device=device))
            counts += output.T @ output
    return counts


def warm_up_then_steady(device: str) -> object:
    # Connections are opened in the first third of the run and stay open.
    connections = []
    for number in requests():
        if number < 50:
            connections.append(torch.zeros(8, 128, device=device))
        for connection in connections[-8:]:
            (connection + 1).exp()
    return connections


def weights_loaded_one_after_the_other(device: str) -> object:
    # The whole recording: nothing is done with them yet.
    return [torch.empty(64, 64, device=device) for _ in requests()]


def weights_loaded_for_most_of_the_run(device: str) -> object:
    layers = []
    for number in requests():
        if number < 110:
            layers.append(torch.randn(64, 64, device=device))
        else:
            torch.randn(8, 64, device=device) @ layers[number % 110]
    return layers


def sessions_that_come_and_go(device: str) -> object:
    # Each has a history that grows as long as it is open.
    histories: dict[int, torch.Tensor] = {}
    for number in requests():
        histories[number] = torch.empty(0, 32, device=device)
        for session in histories:
            histories[session] = torch.cat([histories[session], torch.randn(1, 32, device=device)])
        histories.pop(number - 20, None)
    return histories
