"""Views (transpose, slice, expand) allocate nothing; clone and contiguous copy.

The tool: no event between `made` and `viewed`; then the lines with clone and contiguous hold 100 MiB each. And at
`base-deleted` nothing has come free: a view of one row keeps the whole tensor alive.
"""

from __future__ import annotations

import torch
from moments import MIB, moment, trace_path

import pytorch_alloctrace as alloctrace

alloctrace.enable(trace_path(__file__), overwrite=True)

x = torch.zeros(1024, 25 * 1024, device="cuda")
moment("made")

transposed = x.transpose(0, 1)
row = x[0]
expanded = row.expand(1_000_000, -1)
moment("viewed")

cloned = x.clone()
moment("cloned")

packed = transposed.contiguous()
moment("contiguous")

del x, transposed, expanded
moment("base-deleted")

assert row.untyped_storage().nbytes() == 100 * MIB
alloctrace.disable()
