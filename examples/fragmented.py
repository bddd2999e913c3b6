"""Out of memory by fragmentation: enough memory is free, but no free block is large enough.

The tool: `oom` reports "fragmented". On a GPU of 8 GiB, 3.22 GiB were requested and 6.06 GiB were free, the largest
free block 1.01 GiB; blocks of the line with results.append separate the free blocks. `oom` also names the setting that
helps: with PYTORCH_ALLOC_CONF=expandable_segments:True in the environment the program finishes.
"""

from __future__ import annotations

import torch
from marks import MIB, mark, trace_path

import pytorch_alloctrace as alloctrace

alloctrace.enable(trace_path(__file__), overwrite=True)
free, _ = torch.cuda.mem_get_info()
batch_size = free // 7 // (2 * MIB) * (2 * MIB)

results, features = [], []
for _ in range(6):
    batch = torch.zeros(batch_size, dtype=torch.uint8, device="cuda")
    del batch
    # Small and long-lived: placed at the start of the block that the batch freed.
    results.append(torch.zeros(64 * MIB, dtype=torch.uint8, device="cuda"))
    features.append(torch.zeros(batch_size - 64 * MIB, dtype=torch.uint8, device="cuda"))
mark("trained")

features.clear()
mark("features-cleared")

torch.zeros(3 * batch_size, dtype=torch.uint8, device="cuda")
