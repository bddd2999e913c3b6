"""`x + 1`, `x = x + 1` and `x += 1`: which of them allocates a tensor, and which x survives.

The tool: `x + 1` allocates a tensor that is freed at once, so 200 MiB are reserved from then on; `x = x + 1` allocates
a tensor that stays, at another address, and frees the old x; `x += 1` allocates nothing.
"""

from __future__ import annotations

import torch
from marks import MIB, mark, trace_path

import pytorch_alloctrace as alloctrace

alloctrace.enable(trace_path(__file__), overwrite=True)

x = torch.zeros(25 * MIB, device="cuda")
mark("created")

x + 1  # the result is discarded
mark("expression")

x = x + 1
mark("assignment")

x += 1
mark("in-place")

alloctrace.disable()
