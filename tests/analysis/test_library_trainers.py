"""Leaks of programs whose only line of user code calls a library: `trainer.train()` allocates all blocks."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path

import pytest
from running import has_nvidia_gpu, program_environment, run_python, with_cuda
from shared_recordings import record_once

from pytorch_alloctrace.analysis.leaks.leak import BACKLOG, GROWING, Doubt
from pytorch_alloctrace.analysis.summary import DeviceSummary, summarize
from pytorch_alloctrace.reading.recorded import RecordedTrace
from pytorch_alloctrace.report.leaks import leak_findings
from pytorch_alloctrace.report.oom import oom_finding
from pytorch_alloctrace.report.site_names import SiteNames

LIBRARY = """
import torch
import pytorch_alloctrace as alloctrace

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(64)
        self.up = torch.nn.Linear(64, 64)
        self.down = torch.nn.Linear(64, 64)

    def forward(self, x):
        hidden = torch.relu(self.up(self.norm(x)))
        return x + self.down(hidden)

class Net(torch.nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.layers = torch.nn.ModuleList(Block() for _ in range(depth))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

class Trainer:
    def __init__(self, steps=40, depth=12, optimizer=torch.optim.SGD):
        self.steps = steps
        self.net = Net(depth).to("cuda")
        self.optimizer = optimizer(self.net.parameters(), lr=0.01, foreach=False)

    def make_batch(self):
        return torch.ones(64, 64, device="cuda")

    def train(self):
        for _ in range(self.steps):
            self.optimizer.zero_grad()
            self.net(self.make_batch()).sum().backward()
            self.optimizer.step()
            alloctrace.step()

    def collect(self):
        self.collected, self.squares = self.make_batch(), self.make_batch()
        for _ in range(self.steps):
            self.optimizer.zero_grad()
            output = self.net(self.make_batch())
            output.sum().backward()
            self.optimizer.step()
            self.collected = torch.cat([self.collected, output.detach()])
            self.squares = torch.cat([self.squares, output.detach() ** 2])
            alloctrace.step()

    def register(self):
        self.cells = []
        for _ in range(self.steps):
            self.cells.append(cell := {})
            self.net.layers[3].register_forward_hook(
                lambda module, inputs, output, cell=cell: cell.update(last=output.detach() * 2)
            )
            self.net(self.make_batch()).sum().backward()
            self.optimizer.step()
            alloctrace.step()

    @torch.no_grad()
    def embed(self):
        x = self.make_batch()
        for layer in self.net.layers:
            x = layer(x)
            alloctrace.step()
        return x
"""
PROGRAM = """
import collections
import torch
import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.recording import object_scans

object_scans.FREE_SCAN_S = object_scans.MAX_SCAN_S = 60.0  # complete on a busy machine, too
import library

def keep_outputs(trainer, kept):
    for layer in trainer.net.layers:
        layer.register_forward_hook(lambda module, inputs, output: kept.append(output.detach()))

def one_layer(kept, steps):
    trainer = library.Trainer(steps)
    trainer.net.layers[5].register_forward_hook(lambda module, inputs, output: kept.append(output.detach()))
    trainer.train()

def layers_by_turns(kept):
    trainer = library.Trainer(depth=24)
    outputs = collections.deque(maxlen=24)
    keep_outputs(trainer, outputs)
    steps = iter(range(trainer.steps))
    trainer.optimizer.register_step_post_hook(lambda *_: kept.append(outputs[next(steps) % 24]))
    trainer.train()

def optimizer_state(kept):
    trainer = library.Trainer(optimizer=torch.optim.AdamW)
    trainer.net.layers[5].register_forward_hook(lambda module, inputs, output: kept.append(output.detach()))
    trainer.net.layers[5].norm.register_forward_hook(lambda module, inputs, output: kept.append(output.detach()))
    trainer.train()

def buffer():
    trainer = library.Trainer(steps=120, optimizer=torch.optim.AdamW)
    trainer.collect()

def backlog():
    trainer = library.Trainer(steps=120, optimizer=torch.optim.AdamW)
    trainer.register()

def stopped(kept):
    trainer = library.Trainer(steps=120)
    trainer.make_batch = lambda: torch.ones(1 << 10, 64, device="cuda")
    trainer.net.layers[5].register_forward_hook(
        lambda module, inputs, output: kept.append(output.detach()) if len(kept) < 60 else None
    )
    trainer.train()

def out_of_memory():
    trainer = library.Trainer()
    trainer.make_batch = lambda: torch.empty(1 << 19, 64, device="cuda")
    try:
        trainer.train()
    except torch.OutOfMemoryError:
        pass

def one_pass(kept):
    trainer = library.Trainer(depth=60)
    keep_outputs(trainer, kept)
    trainer.embed()

programs = {
    "one_layer_40": lambda: one_layer([], 40),
    "one_layer_200": lambda: one_layer([], 200),
    "healthy": lambda: one_layer(collections.deque(maxlen=2), 40),
    "layers_by_turns": lambda: layers_by_turns([]),
    "optimizer_state": lambda: optimizer_state([]),
    "buffer": buffer,
    "backlog": backlog,
    "stopped": lambda: stopped([]),
    "out_of_memory": out_of_memory,
    "one_pass": lambda: one_pass([]),
}
for name, program in programs.items():
    with alloctrace.enable(f"{name}.alloctrace", devices="cuda"):
        program()
"""


def record(folder: Path) -> None:
    (folder / "site-packages").mkdir()
    (folder / "site-packages/library.py").write_text(LIBRARY)
    (folder / "program.py").write_text(PROGRAM)
    path = os.pathsep.join([str(folder / "site-packages"), program_environment()["PYTHONPATH"]])
    run_python(folder, with_cuda([sys.executable, "program.py"], "4GiB"), True, 600, {"PYTHONPATH": path})


def trace_of(program: str) -> RecordedTrace:
    return RecordedTrace(record_once("library-trainers", record) / f"{program}.alloctrace")


@functools.cache
def judge(program: str) -> tuple[DeviceSummary, str]:
    """Return the summary of the device, and the first finding on leaks."""
    summary = summarize(RecordedTrace(record_once("library-trainers", record) / f"{program}.alloctrace"), of_leaks=True)
    finding = leak_findings(summary)[0]
    return summary.devices[0], " ".join([finding.title, *finding.sentences])


@pytest.mark.parametrize("program", ["one_layer_40", "one_layer_200", "layers_by_turns", "optimizer_state"])
def test_blocks_that_a_trainer_keeps_in_each_step_are_a_leak(program: str) -> None:
    device, _ = judge(program)

    assert len(device.leaks.leaks) == 1 and not device.leaks.undecided, device.leaks


def test_outputs_of_the_last_steps_are_no_leak() -> None:
    device, _ = judge("healthy")

    assert device.leaks.decided and not device.leaks.leaks, device.leaks


def test_one_pass_over_layers_in_a_library_is_undecided() -> None:
    device, _ = judge("one_pass")

    assert [growth.doubt for growth in device.leaks.undecided] == [Doubt.ONE_PASS], device.leaks


@pytest.mark.parametrize("program", ["one_layer_40", "one_layer_200", "layers_by_turns", "optimizer_state"])
def test_holder_is_that_of_the_kept_blocks_not_of_all_blocks_of_the_line(program: str) -> None:
    (leak,) = judge(program)[0].leaks.leaks

    assert leak.holder is not None and leak.holder.name == "kept", leak.holder


def test_share_of_a_library_line_counts_all_stacks_of_a_leak() -> None:
    _, text = judge("optimizer_state")

    assert " 50 % of it at library.py:1" in text, text


@pytest.mark.parametrize(("program", "holder"), [("buffer", "trainer.collected"), ("backlog", "trainer.cells")])
def test_other_blocks_below_the_line_do_not_hide_a_buffer_or_backlog(program: str, holder: str) -> None:
    (leak,) = judge(program)[0].leaks.leaks

    assert leak.kind == {"buffer": GROWING, "backlog": BACKLOG}[program]
    # The two buffers are equal: which is named first depends on the instant of the scan.
    assert leak.holder is not None and any(name.startswith(holder) for name in leak.holder.names), leak.holder
    assert leak.blocks == {"buffer": 2, "backlog": 120}[program] and len(leak.sites) == 1


def test_note_names_module_and_library_line() -> None:
    summary = summarize(trace_of("stopped"), of_leaks=True)
    (note,) = [finding for finding in leak_findings(summary) if finding.kind == "note"]

    assert note.sentences[0] == "All of it at library.py:14 in Block.forward (Net.layers.5).", note


@pytest.mark.skipif(has_nvidia_gpu(), reason="the sizes need a device of 4 GiB")
def test_out_of_memory_names_module_and_library_line_of_the_line_that_holds_the_most() -> None:
    summary = summarize(trace_of("out_of_memory"))
    failure = summary.devices[0].failure
    assert failure is not None
    finding = oom_finding(failure, SiteNames(summary.program.working_directory), summary.advisor)

    sentences = [sentence for sentence in finding.sentences if sentence.startswith("This line holds ")]
    assert len(sentences) == 1 and " (Net.layers.*" in sentences[0], finding
