"""What the examples that run on every device must show, on the CPU as on a GPU: of each, its trace and what it printed,
FOLDER/NAME.alloctrace and FOLDER/NAME.txt, against figures that follow from the shapes."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import torch

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace import Trace

MIB = 2**20


def load(folder: Path, name: str) -> Trace:
    return alloctrace.load(folder / f"{name}.alloctrace")


def printed_changes(folder: Path) -> list[Counter[tuple[str, str, str, str]]]:
    """Of each line of between_lines: sign, size, name, and shape with dtype and device, of each tensor."""
    parts = [part for part in (folder / "between_lines.txt").read_text().split("\n\n") if part.strip()]
    rows = [re.findall(r"^([+-]) +([\d.]+ \w+)  (\S+)  (.*?)  \S*between_lines.py:\d+$", one, re.M) for one in parts]
    for part, found in zip(parts, rows, strict=True):
        assert len(found) == sum(line[:2] in ("+ ", "- ") for line in part.splitlines()), part
    return [Counter(found) for found in rows]


def check_between_lines(folder: Path, device: str) -> None:
    def rows(sign: str, *tensors: tuple[str, str, str]) -> Counter[tuple[str, str, str, str]]:
        return Counter((sign, size, name, f"{shape} float32 {device}") for size, name, shape in tensors)

    shapes = [("2.00 MiB", "1024x512"), ("4.00 KiB", "1024"), ("1.00 MiB", "256x1024"), ("1.00 KiB", "256")]
    of_net = ["net[0].weight", "net[0].bias", "net[2].weight", "net[2].bias"]
    batch = ("4.00 MiB", "batch", "2048x512")
    saved = [("8.00 MiB", "loss.grad_fn", "2048x1024"), ("2.00 MiB", "loss.grad_fn", "2048x256")]
    gradients = [(size, f"{name}.grad", shape) for name, (size, shape) in zip(of_net, shapes, strict=True)]
    state = 'optimizer.state[Parameter]["{}"]'
    averages = [(size, state.format(name), shape) for name in ("exp_avg", "exp_avg_sq") for size, shape in shapes]
    steps = Counter({("+", "4 B", state.format("step"), "scalar float32 cpu"): len(shapes)})
    assert printed_changes(folder) == [
        rows("+", batch),
        rows("+", *saved, ("4 B", "loss", "scalar")),
        rows("+", *gradients) + rows("-", *saved),
        rows("+", *averages) + steps,
        rows("-", *gradients),
        rows("-", batch),
    ]


def check_formula(folder: Path, device: str) -> None:
    printed = (folder / "formula.txt").read_text().rpartition("paper")[2]
    rows = re.findall(r"^([a-z ]+?) +([\d,]+) +([\d,]+) +([\d,]+)$", printed, re.M)
    found = {role: [int(size.replace(",", "")) for size in sizes] for role, *sizes in rows}
    images, numbers = 64, (16 * 3 * 9 + 16) + (32 * 16 * 9 + 32) + (10 * 32 * 64 + 10)
    steps = 4 * 6 if device == "cpu" else 0
    expected = {
        "parameter": 4 * numbers,
        "gradient": 4 * numbers,
        "optimizer state": 8 * numbers + steps,
        "input": images * (4 * 3 * 32 * 32 + 8),
        "activation": images * (4 * (16 * 32**2 + 32 * 16**2) + 12 * (16 * 16**2 + 32 * 8**2) + 4 * 10) + 4,
    }
    assert {role: paper for role, (paper, _, _) in found.items()} == expected
    assert {role: requested for role, (_, requested, _) in found.items()} == expected
    trace = load(folder, "formula")
    by_role = trace.composition("mark:forward-2", device=device, by="role").set_index("role")["bytes"].to_dict()
    assert {role: size for role, size in by_role.items() if role in expected} == {
        role: size for role, size in expected.items() if role != "gradient"
    }
    # What is not in the table: the loss, and what cuBLAS keeps.
    assert by_role["other"] == 4 and set(by_role) - set(expected) <= {"other", "library workspace"}
    blocks = {"parameter": 6, "gradient": 6, "optimizer state": 12, "input": 2, "activation": 8}
    for role, (_, requested, allocated) in found.items():
        rounding = 0 if device == "cpu" else 512 * blocks[role]
        assert requested <= allocated <= requested + rounding, role
        assert device == "cpu" or allocated % 512 == 0, role


def check_views(folder: Path) -> None:
    parts = (folder / "views.txt").read_text().split("tensors")[1:]
    [viewed, deleted] = [re.findall(r"^ *(\w+) +\(.*?\) +(\d+) +(\d+) +\S*views.py:\d+$", part, re.M) for part in parts]
    whole = str(100 * MIB)
    assert [(size, tensors) for _, size, tensors in viewed] == [(whole, "4")]
    assert {*deleted} == {("row", whole, "1"), ("cloned", whole, "1"), ("packed", whole, "1")}


def check_saved_by_module(folder: Path, device: str) -> None:
    trace = load(folder, "saved_by_module")
    rows = 512 if device == "cpu" else 4096
    wide, narrow, batch, weight = (4 * count for count in (rows * 2048, rows * 512, rows * 512, 512 * 2048))
    expected = {
        "plain": {"0.wide": wide, "0.leaky": wide, "0.narrow": narrow, "1.wide": wide, "1.leaky": wide},
        "no-grad": {},
        "in-place": {"0.wide": wide, "0.narrow": narrow, "1.wide": wide},
        "checkpointing": {"0.narrow": narrow},
        "autocast": {
            "0.wide": (wide + batch) // 2,  # the batch needs no gradient, so the copy of this weight is not kept
            "0.leaky": wide // 2,
            "0.narrow": (narrow + weight) // 2,
            "1.wide": (wide + weight) // 2,
            "1.leaky": wide // 2,
            "1.narrow": weight // 2,
        },
    }
    for mark, by_layer in expected.items():
        at = f"mark:{mark}"
        by_role = trace.composition(at, device=device, by="role").set_index("role")["bytes"]
        activations = int(by_role.get("activation", 0))
        by_module = trace.composition(at, device=device, by="module").set_index("site")["bytes"].to_dict()
        layers = {name: size for name, size in by_module.items() if name.startswith("Model.")}
        if mark == "no-grad":
            assert activations == 0 and layers == {}
            continue
        assert layers == {f"Model.layers.{name}": size for name, size in by_layer.items()}, mark
        # On the CPU also the state of the random numbers, which checkpointing keeps for each layer: of the first it is
        # from before forward.
        on_cpu = (device, mark) == ("cpu", "checkpointing")
        beside = torch.get_rng_state().nbytes if on_cpu else 0
        assert activations == sum(by_layer.values()) + beside, mark
        assert by_module.get("Model", 0) == 2 * beside, mark
        printed = re.search(rf"^{mark} (Model.*)$", (folder / "saved_by_module.txt").read_text(), re.M)
        assert printed is not None, mark
        words = printed[1].split()
        said = {name: float(size) for name, size in zip(words[::2], words[1::2], strict=True) if name != "Model"}
        assert said == {f"Model.layers.{name}": size / MIB for name, size in by_layer.items()}, mark
