"""Versions of a training program that writes its tensors' bytes at the mark "stepped" to DEVICE.json."""

from __future__ import annotations

import sys
from pathlib import Path

from running import run_python, with_cuda

BASE = """\
import json, sys
import torch, pytorch_alloctrace as alloctrace

MIB = 2**20

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(256, 1024)
        self.last = torch.nn.Linear(1024, 256)

    def forward(self, x):
        self.seen = torch.relu(self.first(x))
        return self.last(self.seen)

def keep(device):
    kept = []
    kept.append(torch.empty(3 * MIB, dtype=torch.uint8, device=device))
    kept.append(torch.empty(5 * MIB, dtype=torch.uint8, device=device))  # EDITED
    kept.append(torch.empty(3 * MIB, dtype=torch.uint8, device=device))
    return kept

def prepare(device):
    return torch.empty(2 * MIB, dtype=torch.uint8, device=device)  # GONE

def note(device, model, weight, optimizer, x, y, loss):
    parameters = [*model.parameters(), weight]
    of_optimizer = [value for state in optimizer.state.values() for value in state.values()]
    tensors = {
        "backward": [parameter.grad for parameter in parameters],
        "optimizer": [value for value in of_optimizer if value.device.type == device],
        "in_module": [model.seen],
        "in_backward_of_line": [y],
    }
    sizes = {name: sum(tensor.nbytes for tensor in values) for name, values in tensors.items()}
    if device == "cuda":
        sizes["allocated"] = torch.cuda.max_memory_allocated()
        sizes["reserved"] = torch.cuda.max_memory_reserved()
    with open(device + ".json", "w") as file:
        json.dump(sizes, file)

def step(device, model, weight, optimizer):
    x = torch.randn(64, 256, device=device)
    large = torch.empty(20 * MIB, dtype=torch.uint8, device=device)  # LARGE
    del large
    y = model(x) @ weight  # FORWARD
    loss = y.square().mean()
    loss.backward()
    optimizer.step()
    alloctrace.mark("stepped")
    note(device, model, weight, optimizer, x, y, loss)
    optimizer.zero_grad()

def main(device):
    if device == "cuda":
        torch.cuda.empty_cache()  # so that some calls go to the driver
        torch.cuda.reset_peak_memory_stats()
    alloctrace.enable(device + ".alloctrace", devices=(device,))
    alloctrace.step()
    kept = keep(device), prepare(device)
    alloctrace.mark("kept")
    model = Net().to(device)
    weight = torch.randn(256, 256, device=device, requires_grad=True)
    optimizer = torch.optim.AdamW([*model.parameters(), weight])
    for _ in range(6):
        step(device, model, weight, optimizer)
        alloctrace.step()
    alloctrace.disable()

for device in sys.argv[1:]:
    main(device)
"""
NO_STEPS = """\
import time
import torch, pytorch_alloctrace as alloctrace

alloctrace.enable("cpu.alloctrace", devices=("cpu",))
kept = [torch.empty(1000)]
time.sleep(0.05)
kept.append(torch.empty(5000))
alloctrace.disable()
"""


def shifted() -> str:
    """Return the program with comments and an import added, at the beginning and inside functions."""
    lines = BASE.replace("    kept = []\n", "    # What is kept\n    # for ever.\n    kept = []\n").splitlines(True)
    return "# A comment.\n\nimport os\n" + "".join(
        f"\n{line}" if line.startswith(("def ", "class ")) else line for line in lines
    )


def changed() -> str:
    """Return the program with one allocating line edited, one removed, and one added."""
    text = shifted().replace("torch.empty(5 * MIB", "torch.empty(11 * MIB")
    text = text.replace(
        "    return torch.empty(2 * MIB, dtype=torch.uint8, device=device)  # GONE\n", "    return None\n"
    )
    added = "    more = torch.empty(7 * MIB, dtype=torch.uint8, device=device)  # NEW\n"
    return text.replace("    model = Net().to(device)\n", f"    model = Net().to(device)\n{added}")


VERSIONS = {"base": BASE, "shifted": shifted(), "changed": changed()}
# The run "warm" allocates what lives as long as the process, such as the workspaces of cuBLAS.
DRIVER = """
import gc, os, runpy, sys
for version in ["warm", *sys.argv[1:], "no_steps"]:
    os.chdir(version)
    sys.argv[1:] = ["cuda", "cpu"]
    runpy.run_path(os.path.abspath("train.py"), run_name="__main__")
    gc.collect()
    os.chdir("..")
"""


def record(folder: Path) -> None:
    """Record each version into its own folder: base/cuda.alloctrace and so on."""
    for name, text in {**VERSIONS, "warm": BASE, "no_steps": NO_STEPS}.items():
        (folder / name).mkdir()
        (folder / name / "train.py").write_text(text)
    (folder / "driver.py").write_text(DRIVER)
    command = with_cuda([sys.executable, str(folder / "driver.py"), *VERSIONS], "8GiB")
    run_python(folder, command, check=True, timeout=600, environment={})


def line_of(version: str, marker: str) -> int:
    [number] = [number for number, line in enumerate(VERSIONS[version].splitlines(), 1) if line.endswith(f"# {marker}")]
    return number
