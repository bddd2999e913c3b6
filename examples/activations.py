"""What no_grad, an activation in place, checkpointing and autocast save of the memory that waits for backward.

The tool: what each line of Block.forward holds at `plain`, 64, 64 and 16 MiB, against what it holds at the other marks
(the first line holds, at all of them, the workspaces of cuBLAS, too).
no_grad leaves nothing but the output, checkpointing each block's output; autocast halves everything, at the price of
copies of weights; leaky_relu in place makes nothing. (relu in place would save none of this: both relu and the layer
after it keep the same result.)
"""

from __future__ import annotations

import torch
from moments import moment, trace_path
from torch import nn
from torch.nn.functional import leaky_relu
from torch.utils.checkpoint import checkpoint

import pytorch_alloctrace as alloctrace


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.expand, self.shrink = nn.Linear(512, 2048, device="cuda"), nn.Linear(2048, 512, device="cuda")
        self.in_place = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.expand(x)
        hidden = leaky_relu(hidden, inplace=self.in_place)
        return self.shrink(hidden)


alloctrace.enable(trace_path(__file__), overwrite=True)
model, x = nn.Sequential(Block(), Block()), torch.zeros(4096, 512, device="cuda")
model(x)  # cuBLAS takes its workspaces

output = model(x)
moment("plain")

del output
with torch.no_grad():
    output = model(x)
moment("no-grad")

del output
output = x
for block in model:
    output = checkpoint(block, output, use_reentrant=False)
moment("checkpointing")

del output
with torch.autocast("cuda", torch.float16):
    output = model(x)
moment("autocast")

del output
for block in model:
    block.in_place = True
output = model(x)
moment("in-place")

alloctrace.disable()
