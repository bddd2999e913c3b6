"""What no_grad, an in-place activation, checkpointing and autocast save, by role and by module.

The tool: what is live between forward and backward, as "activation" in `--by role`, and in the rows of the model's
layers in `--by module`. (activations.py has the same by line.) no_grad keeps none. The activation in place keeps
nothing of its own. Checkpointing keeps the output of each layer but the last. Autocast halves all of that, and adds
copies of the batch and of the weights in half precision, where backward needs them.
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
"""Fewer on a CPU: one that has no bfloat16 would take minutes."""


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


def use(name: str, context: Any = nullcontext, checkpointed: bool = False, in_place: bool = False) -> None:
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
use("plain")
use("no-grad", torch.no_grad)
use("in-place", in_place=True)
use("checkpointing", checkpointed=True)
use("autocast", partial(torch.autocast, DEVICE, torch.bfloat16))

trace = alloctrace.load(alloctrace.disable())
for name in trace.marks()["name"]:
    modules = trace.usage(f"mark:{name}", by="module", device=DEVICE).set_index("site")["live_bytes"].sort_index()
    print(name, *[f"{module} {size / MIB:g}" for module, size in modules.items() if module.startswith("Model.")])
