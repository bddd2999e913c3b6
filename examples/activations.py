"""Activation memory saved by no_grad, an in-place activation, checkpointing and autocast, line by line.

The tool: at `plain` the lines of layer() hold 64, 64 and 16 MiB; compare with the other marks (at every mark the first
line also holds the cuBLAS workspace). no_grad leaves only the output, checkpointing only each layer's output; autocast
halves everything but adds copies of the weights; leaky_relu in place allocates nothing. (relu in place would save
nothing here: relu and the product after it save the same tensor for backward.)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from marks import mark, trace_path
from torch.nn.functional import leaky_relu
from torch.utils.checkpoint import checkpoint

import pytorch_alloctrace as alloctrace


def layer(x: torch.Tensor, wide: torch.Tensor, narrow: torch.Tensor, in_place: bool = False) -> torch.Tensor:
    hidden = x @ wide
    hidden = leaky_relu(hidden, inplace=in_place)
    return hidden @ narrow


def forward(name: str, layer: Callable[..., torch.Tensor]) -> None:
    x = batch
    for wide, narrow in weights:
        x = layer(x, wide, narrow)
    mark(name)  # backward would begin here


alloctrace.enable(trace_path(__file__), overwrite=True)
shapes = [(512, 2048), (2048, 512)]
weights = [[torch.zeros(shape, device="cuda", requires_grad=True) for shape in shapes] for _ in range(2)]
batch = torch.zeros(4096, 512, device="cuda")

forward("plain", layer)
with torch.no_grad():
    forward("no-grad", layer)
forward("checkpointing", partial(checkpoint, layer, use_reentrant=False))
with torch.autocast("cuda", torch.float16):
    forward("autocast", layer)
forward("in-place", partial(layer, in_place=True))

alloctrace.disable()
