"""Advice to switch on activation checkpointing: where it is done."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from running import needs_cuda_build
from shared_recordings import run_source

from pytorch_alloctrace.analysis.summary import summarize
from pytorch_alloctrace.reading.recorded import RecordedTrace
from pytorch_alloctrace.report.site_names import SiteNames
from pytorch_alloctrace.report.verdict import peak_advice

pytestmark = needs_cuda_build
TRAINING = """
import torch
import pytorch_alloctrace as alloctrace

TRAINER = '''
class Trainer:
    def __init__(self, model):
        self.model, self.optimizer = model, torch.optim.SGD(model.parameters())

    def train(self, steps):
        for _ in range(steps):
            self.optimizer.zero_grad()
            self.model(torch.ones(100000, 64, device="cuda")).sum().backward()
            self.optimizer.step()
'''

def make():
    return torch.nn.Sequential(*[layer for _ in range(8) for layer in (torch.nn.Linear(64, 64), torch.nn.Tanh())])

def train(model, file="loop.py"):
    names = {"torch": torch, "__name__": "training"}
    exec(compile(TRAINER, file, "exec"), names)
    names["Trainer"](model).train(4)

def record(name, run):
    alloctrace.enable(f"{name}.alloctrace", devices=("cuda",))
    run()
    alloctrace.disable()

def move_later():
    model = make()
    model.to("cuda")
    train(model)

def make_on_device():
    with torch.device("cuda"):
        model = make()
    train(model)

record("moved", lambda: train(make().cuda()))
record("moved_later", move_later)
record("made_on_device", make_on_device)
record("trainer", lambda: train(make().cuda(), "/lib/transformers/trainer.py"))
"""
TORCH = "(torch.utils.checkpoint, which many models apply only after model.train())"


@pytest.mark.parametrize(
    ("name", "line", "advice"),
    [
        ("moved", 'record("moved", lambda', f"of the model that {{}} in <lambda> moves to the device {TORCH}"),
        ("moved_later", 'model.to("cuda")', f"of the model that {{}} in move_later moves to the device {TORCH}"),
        ("made_on_device", "return torch.nn.Seq", "switched on where the model is made, {} in make"),
        ("trainer", "", "activation checkpointing (`gradient_checkpointing=True` in TrainingArguments)."),
    ],
)
def test_advice_on_activations_names_where_checkpointing_is_switched_on(
    tmp_path: Path, name: str, line: str, advice: str
) -> None:
    folder = run_source(tmp_path, TRAINING, cuda=True)
    devices = {device.device: device for device in summarize(RecordedTrace(folder / f"{name}.alloctrace")).devices}
    number = next(number for number, text in enumerate(TRAINING.splitlines(), 1) if line in text)

    [sentence] = peak_advice(devices["cuda:0"], SiteNames(str(folder)))

    assert advice.format(f"program.py:{number}") in re.sub(r"\S*/", "", sentence)
    assert ("is made" in sentence) == ("is made" in advice)
