"""Garbage of reference cycles: what held it before, and the attribute that makes the cycle."""

from __future__ import annotations

from pathlib import Path

import pytest
from running import needs_cuda_build
from shared_recordings import run_source

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.report.finding import Finding

pytestmark = needs_cuda_build
PROGRAM = """
import gc, torch
import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.recording import object_scans

object_scans.MAX_SCAN_S = 60.0
object_scans.FIRST_SCAN_EVENTS = 1e18

class Node:
    def __init__(self, parent=None):
        self.parent, self.children, self.state = parent, [], torch.ones(1 << 20, device="cuda")

def search(number, session):
    root = Node()
    root.children += [Node(root) for _ in range(8)]
    if number in (16, 28) and collects:
        session._object_scans.scan_now()

def plan(session):
    for number in range(40):
        torch.ones(1000, device="cuda")
        if number % 4 == 0:
            search(number, session)
        alloctrace.step()
    if collects:
        gc.collect()
    else:
        session._object_scans.scan_now()
    alloctrace.step()

for name, collects in (("collected", True), ("scanned", False)):
    gc.collect()
    gc.disable()
    with alloctrace.enable(f"{name}.alloctrace", devices=("cuda",)) as session:
        plan(session)
"""
BYTES = 10 * 9 * (4 << 20)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_source(tmp_path_factory.mktemp("garbage"), PROGRAM, cuda=True)


def find_garbage(folder: Path, name: str) -> Finding:
    """Return the only finding on memory that was kept."""
    findings = alloctrace.load(folder / f"{name}.alloctrace").diagnose()
    [garbage] = [finding for finding in findings if finding.kind != "no_leak"]
    assert garbage.kind == "garbage" and garbage.bytes == BYTES
    return garbage


def test_collected_garbage_names_what_held_it_and_the_attribute_that_refers_back(folder: Path) -> None:
    text = " ".join(find_garbage(folder, "collected").sentences)

    assert "only Python's garbage collector freed it" in text
    assert "Held by Node.state, a reference cycle" in text
    assert "`Node.parent` refers back" in text and "`weakref.ref`" in text and "`gc.collect()`" in text


def test_garbage_that_a_scan_found_is_no_growth_of_unknown_cause(folder: Path) -> None:
    text = " ".join(find_garbage(folder, "scanned").sentences)

    assert "had not freed it yet: 90 blocks" in text
    assert "`Node.parent` refers back" in text
