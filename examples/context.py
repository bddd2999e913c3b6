"""The first use of the GPU takes memory that PyTorch does not count: the CUDA context, a few hundred MiB.

The tool: after `used` the driver has the context and 2 MiB, of which torch reserved 2 MiB and allocated 512 bytes; the
rest is what the tool calls outside PyTorch.
"""

from __future__ import annotations

import time

import torch
from marks import mark, trace_path

import pytorch_alloctrace as alloctrace

alloctrace.enable(trace_path(__file__), overwrite=True)
mark("before")

x = torch.zeros(1, device="cuda")
time.sleep(0.3)  # the tool asks the driver ten times a second
mark("used")

alloctrace.disable()
