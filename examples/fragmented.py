"""A run that dies though enough is free: what is free lies in pieces, and none is large enough.

The tool: `oom` says "fragmented". Of a GPU of 8 GiB: 3.22 GiB were asked for, 6.06 GiB were free, 1.01 GiB in the
largest piece; the blocks of the line with results.append lie between the pieces; and which setting helps: with
PYTORCH_ALLOC_CONF=expandable_segments:True in the environment the program runs to its end.
"""

from __future__ import annotations

import torch
from moments import MIB, moment, trace_path

import pytorch_alloctrace as alloctrace

alloctrace.enable(trace_path(__file__), overwrite=True)
free, _ = torch.cuda.mem_get_info()
batch_size = free // 7 // (2 * MIB) * (2 * MIB)

results, features = [], []
for _ in range(6):
    batch = torch.zeros(batch_size, dtype=torch.uint8, device="cuda")
    del batch
    # Small, and kept: at the beginning of what the batch has left.
    results.append(torch.zeros(64 * MIB, dtype=torch.uint8, device="cuda"))
    features.append(torch.zeros(batch_size - 64 * MIB, dtype=torch.uint8, device="cuda"))
moment("trained")

features.clear()
moment("features-cleared")

torch.zeros(3 * batch_size, dtype=torch.uint8, device="cuda")
