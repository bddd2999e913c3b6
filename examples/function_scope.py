"""The same statements in a function and at top level: 16, 18, 22, 16 MiB against 16, 18, 18.

At top level `x = weights @ v` frees the old x. In the function x is a local name: the caller's x lives until the call
returns, so two are live. When the function returns, every tensor that it allocated is freed except the result.

The tool: at `function-x` both lines that assign an x hold 4 MiB each, at `top-x` only one. The workspace that cuBLAS
allocated with the first product is live too: it is subtracted here, and the tool shows it as a separate block.
"""

from __future__ import annotations

import torch
from marks import mark, trace_path

import pytorch_alloctrace as alloctrace

B, H, L, C = 64, 8, 32, 512


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    weights = q @ k.transpose(-2, -1)
    mark("function-weights", set_aside=workspace)
    x = weights @ v
    mark("function-x", set_aside=workspace)
    return x.transpose(1, 2).reshape(B, L, C)


alloctrace.enable(trace_path(__file__), overwrite=True)
torch.zeros(1, L, L, device="cuda") @ torch.zeros(1, L, L, device="cuda")  # cuBLAS takes the workspace
workspace = torch.cuda.memory_allocated()

x = torch.zeros(B, L, C, device="cuda")
q, k, v = (torch.zeros(B, H, L, C // H, device="cuda") for _ in range(3))
mark("before", set_aside=workspace)
x = attention(q, k, v)
mark("function-after", set_aside=workspace)

weights = q @ k.transpose(-2, -1)
mark("top-weights", set_aside=workspace)
x = weights @ v
mark("top-x", set_aside=workspace)
x = x.transpose(1, 2).reshape(B, L, C)
mark("top-after", set_aside=workspace)

alloctrace.disable()
