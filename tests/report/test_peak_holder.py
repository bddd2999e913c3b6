"""Object that holds a peak, on the first screen and with --verbose."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import NoReturn

import pytest
from marked_programs import run_analyze
from running import needs_cuda_build
from shared_recordings import run_source

from pytorch_alloctrace.analysis.free_memory.inefficiency import Inefficiency
from pytorch_alloctrace.analysis.summary import DeviceSummary, summarize
from pytorch_alloctrace.analysis.usage import held_memory
from pytorch_alloctrace.reading.recorded import RecordedTrace
from pytorch_alloctrace.report.first_screen import LINES
from pytorch_alloctrace.report.site_names import SiteNames
from pytorch_alloctrace.report.verdict import peak_advice

pytestmark = needs_cuda_build
PROGRAM = """
import torch
import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.recording import object_scans
from torch import nn

object_scans.FREE_SCAN_S = object_scans.MAX_SCAN_S = 60.0
MIB = 1 << 18

class View(nn.Module):
    def __init__(self):
        super().__init__()
        self.args = (torch.ones(24 * MIB, device="cuda"),)

def train(model, steps):
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    for _ in range(steps):
        model(torch.ones(64, 512, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        alloctrace.step()

def hold():
    views = nn.ModuleList([View() for _ in range(12)])
    train(nn.Linear(512, 512).cuda(), 60)
    return views

def forget():
    views = nn.ModuleList([View() for _ in range(12)])
    table = torch.ones(24 * MIB, device="cuda")
    used = torch.ones(24 * MIB, device="cuda")
    train(nn.Linear(512, 512).cuda(), 60)
    return used

def replace():
    old = torch.ones(288 * MIB, device="cuda")
    train(nn.Linear(512, 512).cuda(), 60)
    del old
    new = torch.ones(288 * MIB, device="cuda")  # at the same address
    more = torch.ones(96 * MIB, device="cuda")

def large_model():
    train(nn.Sequential(*[nn.Linear(512, 512) for _ in range(200)]).cuda(), 4)

for run in (hold, forget, replace, large_model):
    alloctrace.enable(f"{run.__name__}.alloctrace", devices=("cuda",))
    run()
    alloctrace.disable()
"""
SENTENCE = "288 MiB of it is held by views[...].args (12 objects), local of hold() at program.py:"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_source(tmp_path_factory.mktemp("peaks"), PROGRAM, cuda=True)


def read_device(folder: Path, name: str) -> DeviceSummary:
    [device] = [
        device for device in summarize(RecordedTrace(folder / f"{name}.alloctrace")).devices if device.device != "cpu"
    ]
    return device


@pytest.mark.parametrize("arguments", [(), ("--verbose",)])
def test_diagnosis_names_the_object_that_holds_a_quarter_of_the_peak(folder: Path, arguments: tuple[str, ...]) -> None:
    output = run_analyze(folder, "hold.alloctrace", *arguments)

    assert SENTENCE in " ".join(output.split())
    assert arguments or len(output.splitlines()) <= LINES


def test_no_object_is_named_whose_address_was_allocated_again_before_the_peak(folder: Path) -> None:
    device = read_device(folder, "replace")

    assert "new = " in (device.peak.sites[0].site.source or "") and not device.peak_holders


def test_variables_that_their_function_does_not_use_any_more_are_named(folder: Path) -> None:
    device = read_device(folder, "forget")

    text = " ".join(peak_advice(device, SiteNames(str(folder))))
    assert "312 MiB of it is in variables of forget() that it does not use any more: views 288 MiB, table 24.0" in text


def test_no_memory_is_read_for_a_peak_of_a_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(trace: RecordedTrace) -> NoReturn:
        raise AssertionError

    monkeypatch.setattr(held_memory, "_list_scans", fail)

    device = read_device(folder, "large_model")

    assert not device.peak_holders


@pytest.mark.parametrize(("kind", "is_named"), [("garbage", False), ("cache", True)])
def test_no_object_is_named_if_a_finding_explains_the_live_memory(folder: Path, kind: str, is_named: bool) -> None:
    device = read_device(folder, "hold")
    finding = Inefficiency(kind, device.device, 280 << 20, device.peak.bytes, 1.0)
    device = dataclasses.replace(device, inefficiencies=(finding,))

    assert any(SENTENCE in sentence for sentence in peak_advice(device, SiteNames(str(folder)))) is is_named
