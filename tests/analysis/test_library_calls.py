"""Module and library line of memory whose only line of user code is `trainer.train()`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from command_line import run_command
from running import program_environment, run_python
from shared_recordings import record_once

LIBRARY = """
import torch

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(64, 64, bias=False)

    def forward(self, x):
        return self.inner(x)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(Block() for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

class Trainer:
    def __init__(self):
        self.net = Net()

    def train(self):
        optimizer = torch.optim.Adam(self.net.parameters(), foreach=False)
        for _ in range(60):
            self.net(torch.ones(256, 64)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
"""
PROGRAM = """
import library
kept = []
trainer = library.Trainer()
trainer.net.layers[2].register_forward_hook(lambda module, inputs, output: kept.append(output.detach()))
trainer.train()
"""
FORWARD = "library.py:10 in Block.forward"


def record(folder: Path) -> None:
    (folder / "site-packages").mkdir()
    (folder / "site-packages/library.py").write_text(LIBRARY)
    (folder / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "pytorch_alloctrace", "run", "--quiet", "--output", "run.alloctrace", "program.py"]
    path = os.pathsep.join([str(folder / "site-packages"), program_environment()["PYTHONPATH"]])
    run_python(folder, command, True, 600, {"PYTHONPATH": path})


def read_screen(*arguments: str) -> str:
    """Return what the command prints, on one line."""
    process = run_command(record_once("library_calls", record), [*arguments])
    assert process.returncode == 0, process.stderr
    return " ".join(process.stdout.split())


def test_finding_names_module_that_allocated_the_kept_blocks() -> None:
    screen = read_screen("leaks", "run.alloctrace").partition("trainer.train()")[2]
    assert screen.startswith(f" All of it at {FORWARD} (Net.layers.2.inner). "), screen
    peak, _, finding = read_screen("run.alloctrace").partition("LEAK")
    assert f"All of it at {FORWARD} (Net.layers.2.inner)." in finding
    assert f"{FORWARD} (Net.layers.2.inner)" in peak, "below the only line of the program"


def test_lines_below_the_calling_line_name_modules() -> None:
    churn = read_screen("sites", "run.alloctrace").partition("CHURN")[2]

    assert f"{FORWARD} (Net.layers.*.inner)" in churn, churn


def test_roles_name_the_library_line_that_allocated_them() -> None:
    roles = read_screen("peak", "run.alloctrace", "--by", "role")

    assert roles.endswith(f"all of it at {FORWARD} (Net.layers.2.inner)"), roles
