"""The CUDA context: the first use of the GPU takes a few hundred MiB that PyTorch does not count.

The tool: after `used` the driver reports the context plus 2 MiB. torch reserved those 2 MiB and allocated 512 bytes;
the tool lists the rest as outside PyTorch.
"""

from __future__ import annotations

import time

import torch
from marks import mark, trace_path

import pytorch_alloctrace as alloctrace

alloctrace.enable(trace_path(__file__), overwrite=True)
mark("before")

x = torch.zeros(1, device="cuda")
time.sleep(0.3)  # the tool polls the driver ten times a second
mark("used")

alloctrace.disable()
