"""Memory saved by no_grad, an in-place activation, checkpointing and autocast, by role and by module.

The tool: memory live between forward and backward, as "activation" in `--by role` and in the rows of the model's layers
in `--by module`. (activations.py shows the same by line.) no_grad saves no activations. The activation in place
allocates nothing. Checkpointing saves the output of each layer but the last. Autocast halves the activations and adds
half-precision copies of the batch and the weights where backward needs them.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from marks import DEVICE, MIB, mark, trace_path
from torch import nn
from torch.utils.checkpoint import checkpoint

import pytorch_alloctrace as alloctrace

ROWS = 4096 if DEVICE == "cuda" else 512
"""Batch size. Smaller on a CPU, where emulated bfloat16 would take minutes."""


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(512, 2048, bias=False)
        self.leaky = nn.LeakyReLU()
        self.narrow = nn.Linear(2048, 512, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.narrow(self.leaky(self.wide(x)))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(), Layer()])

    def forward(self, x: torch.Tensor, checkpointed: bool) -> torch.Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if checkpointed else layer(x)
        return x


def train_step(name: str, context: Any = nullcontext, checkpointed: bool = False, in_place: bool = False) -> None:
    for layer in model.layers:
        layer.leaky.inplace = in_place
    batch = torch.zeros(ROWS, 512, device=DEVICE)
    with context():
        loss = model(batch, checkpointed).sum()
    mark(name)
    if loss.requires_grad:
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()


alloctrace.enable(trace_path(__file__), overwrite=True)
model = Model().to(DEVICE)
optimizer = torch.optim.SGD(model.parameters())
train_step("plain")
train_step("no-grad", torch.no_grad)
train_step("in-place", in_place=True)
train_step("checkpointing", checkpointed=True)
train_step("autocast", partial(torch.autocast, DEVICE, torch.bfloat16))

trace = alloctrace.load(alloctrace.disable())
for name in trace.marks()["name"]:
    modules = trace.usage(f"mark:{name}", by="module", device=DEVICE).set_index("site")["live_bytes"].sort_index()
    print(name, *[f"{module} {size / MIB:g}" for module, size in modules.items() if module.startswith("Model.")])
