"""Scans of autograd graphs that other threads run backward on."""

from __future__ import annotations

import sys
from typing import NoReturn

import pytest
import torch

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.errors import RecorderUnavailableError
from pytorch_alloctrace.recording import loading

WITHOUT_LIBRARIES = """
from pytorch_alloctrace.objects.walk import Walker
Walker.walk_libraries = lambda walker, walk, *limits: walk.prefer(walker.rank)
"""

# Large graphs and a short switch interval: backward begins while a graph is read.
CONCURRENT_BACKWARD = """
import random, sys, threading, time
import torch
import pytorch_alloctrace as alloctrace

THREADS, ROUNDS = 3, 4
sys.setswitchinterval(1e-5)
torch.set_num_threads(1)
losses_and_weights = {}
round_begins = threading.Barrier(THREADS + 1)

def train(number):
    random.seed(number)
    weights = [torch.ones(4, requires_grad=True) for _ in range(50)]
    for _ in range(ROUNDS):
        x = torch.ones(4)
        for weight in 100 * weights:
            x = x * weight
        losses_and_weights[number] = x, weights
        round_begins.wait()
        time.sleep(0.1 * random.random())
        x.sum().backward()

threads = [threading.Thread(target=train, args=(number,), daemon=True) for number in range(THREADS)]
for thread in threads: thread.start()
for _ in range(ROUNDS):
    round_begins.wait()
    alloctrace.holders(torch.ones(1))
for thread in threads: thread.join()
"""


# torch drops the GIL while it frees a gradient. The leaf points to the gradient until then, which takes long if the
# gradient is large or has a callback that waits. Under torch.device(), the innermost frame is torch's own.
GRADIENTS_FREED = """
import threading, time, weakref
import torch
import pytorch_alloctrace as alloctrace

weight = torch.zeros(1 << 22, requires_grad=True)
stop = False
stopped, end = threading.Event(), threading.Event()

def free_gradients():
    while not stop:
        weight.grad = torch.ones(1 << 22)
        weight.grad = None
        with torch.device("cpu"):
            weight.grad = torch.ones(1 << 22)
            weight.grad = None
        weight.grad = torch.ones(1 << 22)
        callback = weakref.ref(weight.grad, lambda _: time.sleep(0.005))
        weight.grad = None

def work():
    free_gradients()
    stopped.set()
    end.wait()

thread = threading.Thread(target=work, daemon=True)
thread.start()
incomplete = []
while len(incomplete) < 2:
    result = alloctrace.holders(torch.ones(1))
    incomplete += [] if result.complete else [result.note]
stop = True
print(*{*incomplete}, sep=" | ")
stopped.wait()
weight.grad = torch.ones(1 << 22)
weight.requires_grad_(False)
result = alloctrace.holders(weight.grad)
print(result.complete, result)
end.set()
thread.join()
"""


def test_holders_notes_unsearched_gradients_when_threads_free_them(run_program) -> None:
    during, after = run_program(WITHOUT_LIBRARIES + GRADIENTS_FREED).stdout.splitlines()
    assert during.startswith("gradients and graph nodes not searched: 1,") and "|" not in during
    assert after.startswith("True weight.grad")  # the gradient of a frozen leaf


def test_holders_does_not_crash_when_threads_run_backward(run_program) -> None:
    run_program(WITHOUT_LIBRARIES + CONCURRENT_BACKWARD)


def test_holders_notes_unsearched_graphs_without_recorder(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> NoReturn:
        raise RecorderUnavailableError("no compiler")

    monkeypatch.setattr(loading, "load_recorder", fail)
    monkeypatch.delitem(sys.modules, loading.NAME, raising=False)
    weight = torch.ones(3, requires_grad=True)
    weight.sum().backward()
    result = alloctrace.holders(weight.grad)
    unsearched = "autograd graphs" if sys.version_info >= (3, 12) else "autograd graphs and variables of other threads"

    assert not result.complete and result.note == f"{unsearched} were not searched: no compiler"


def test_retained_gradient_is_held_by_its_tensor() -> None:
    inner = torch.ones(3, requires_grad=True) * 2
    inner.retain_grad()
    inner.sum().backward()

    assert "inner.grad" in str(alloctrace.holders(inner.grad))
