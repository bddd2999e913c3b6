"""`c = zeros(n)` again needs twice the memory: the new tensor is allocated before the old tensor is freed.

The tool: up to `deleted-first` the peak is 100 MiB; at `rebound` 100 MiB are live again, but the peak was 200 MiB, with
the tensors of both lines live, and 200 MiB stay reserved.
"""

from __future__ import annotations

import torch
from marks import MIB, mark, trace_path

import pytorch_alloctrace as alloctrace

alloctrace.enable(trace_path(__file__), overwrite=True)
n = 25 * MIB  # float32: 100 MiB

c = torch.zeros(n, device="cuda")
mark("created")

del c
c = torch.zeros(n, device="cuda")
mark("deleted-first")

c = torch.zeros(n, device="cuda")  # while the old tensor is still live
mark("rebound")

alloctrace.disable()
