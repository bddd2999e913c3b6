"""Holders of leaks: the choice among several, and blocks that a garbage collection freed."""

from __future__ import annotations

from pathlib import Path

import pytest
from running import needs_cuda_build
from shared_recordings import run_source

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.analysis.leaks.leak import Leak, NoHolder
from pytorch_alloctrace.report.finding import Finding

pytestmark = needs_cuda_build
PROGRAM = """
import collections, gc, random, torch
import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.recording import object_scans
from torch import nn

object_scans.FREE_SCAN_S = object_scans.MAX_SCAN_S = 60.0  # on a busy machine, too, a scan reaches the buffer

class Agent:
    def __init__(self):
        self.buffer = collections.deque(maxlen=100_000)
        self.reward = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)).cuda()
        self.policy = nn.Linear(64, 1).cuda()
        self.optimizer = torch.optim.SGD(self.policy.parameters(), lr=0.1)

    def learn(self):
        states = torch.ones(8192, 64, device="cuda")
        reward = self.reward(states)
        self.buffer.append((states[0].clone(), reward))
        batch = tuple(zip(*self.buffer))
        rewards = torch.stack(batch[1][-4:]).detach()
        loss = (self.policy(states)[None] - rewards).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def train(self):
        for _ in range(120):
            self.learn()
            alloctrace.step()

class Node:
    def __init__(self, parent=None):
        self.parent, self.children, self.value = parent, [], torch.ones(1024, device="cuda")

def search():
    root = Node()
    root.children += [Node(root) for _ in range(8)]

def plan():
    weights = torch.ones(8, device="cuda")
    gc.collect()
    gc.disable()
    for _ in range(600):
        search()
        alloctrace.step()
    gc.enable()
    [[] for _ in range(2000)]  # a collection of the youngest generation, before which no object scan runs

def learn():
    Agent().train()

for name, run in (("buffer", learn), ("cycles", plan)):
    with alloctrace.enable(f"{name}.alloctrace", devices=("cuda",)):
        run()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_source(tmp_path_factory.mktemp("holders"), PROGRAM, cuda=True)


def findings_on(folder: Path, name: str) -> tuple[Leak, tuple[Finding, ...]]:
    findings = alloctrace.load(folder / f"{name}.alloctrace").diagnose()
    (leak,) = [finding.leak for finding in findings if finding.kind == "leak"]
    assert leak is not None
    return leak, findings


def test_of_two_holders_the_one_of_an_outer_function_is_named(folder: Path) -> None:
    leak, _ = findings_on(folder, "buffer")

    assert leak.holder is not None and leak.holder.name == "self.buffer"
    assert leak.holder.function == "Agent.train"


def test_unused_graph_that_a_leak_keeps_is_no_finding_of_its_own(folder: Path) -> None:
    leak, findings = findings_on(folder, "buffer")

    assert leak.holder is not None and leak.holder.through == "autograd graph"
    assert "unused_graph" not in [finding.kind for finding in findings]


def test_blocks_that_a_collection_freed_were_in_reference_cycles(folder: Path) -> None:
    leak, findings = findings_on(folder, "cycles")
    text = " ".join(" ".join(finding.sentences) for finding in findings if finding.leak is leak)

    assert leak.holder is None and leak.no_holder is NoHolder.COLLECTED
    assert "Python's garbage collector freed most of the blocks, later" in text
    assert "break the cycle with a `weakref`, or call `gc.collect()` after each use" in text
