"""The same statements in a function and at top level: 16, 18, 22, 16 MiB against 16, 18, 18.

At top level `x = weights @ v` lets go of the x that was there. In the function x is another name: the caller's x lives
until the call has returned, so there are two; then all that the function made goes, but its result.

The tool: at `function-x` both lines that make an x are live, 4 MiB each, at `top-x` one is. What cuBLAS has taken as
its workspace, on the first product, is live too: it is set aside here, and the tool shows it as a block of its own.
"""

from __future__ import annotations

import torch
from moments import moment, trace_path

import pytorch_alloctrace as alloctrace

B, H, L, C = 64, 8, 32, 512


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    weights = q @ k.transpose(-2, -1)
    moment("function-weights", set_aside=workspace)
    x = weights @ v
    moment("function-x", set_aside=workspace)
    return x.transpose(1, 2).reshape(B, L, C)


alloctrace.enable(trace_path(__file__), overwrite=True)
torch.zeros(1, L, L, device="cuda") @ torch.zeros(1, L, L, device="cuda")  # cuBLAS takes the workspace
workspace = torch.cuda.memory_allocated()

x = torch.zeros(B, L, C, device="cuda")
q, k, v = (torch.zeros(B, H, L, C // H, device="cuda") for _ in range(3))
moment("before", set_aside=workspace)
x = attention(q, k, v)
moment("function-after", set_aside=workspace)

weights = q @ k.transpose(-2, -1)
moment("top-weights", set_aside=workspace)
x = weights @ v
moment("top-x", set_aside=workspace)
x = x.transpose(1, 2).reshape(B, L, C)
moment("top-after", set_aside=workspace)

alloctrace.disable()
