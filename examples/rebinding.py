"""`c = zeros(n)` again needs twice the memory: the new tensor is made before the old one is freed.

The tool: up to `let-go-first` the peak is 100 MiB; `rebound` ends with the same 100 MiB, but the peak on the way was
200 MiB, with the tensors of both lines alive, and 200 MiB stay reserved.
"""

from __future__ import annotations

import torch
from marks import MIB, mark, trace_path

import pytorch_alloctrace as alloctrace

alloctrace.enable(trace_path(__file__), overwrite=True)
n = 25 * MIB  # float32: 100 MiB

c = torch.zeros(n, device="cuda")
mark("made")

del c
c = torch.zeros(n, device="cuda")
mark("let-go-first")

c = torch.zeros(n, device="cuda")  # while the old one is still there
mark("rebound")

alloctrace.disable()
