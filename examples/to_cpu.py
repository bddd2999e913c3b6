"""Moving tensors to the CPU copies them: host memory rises, and reserved GPU memory stays reserved.

The tool: between `on-gpu` and `copied` the line with .cpu() allocates 128 MiB on the CPU, and the resident memory of
the process grows by 128 MiB; at `moved` nothing is allocated on the GPU, but 128 MiB are still reserved.
"""

from __future__ import annotations

import time

import torch
from marks import MIB, mark, trace_path

import pytorch_alloctrace as alloctrace

alloctrace.enable(trace_path(__file__), overwrite=True)
on_gpu = [torch.zeros(16 * MIB, dtype=torch.uint8, device="cuda") for _ in range(8)]
time.sleep(0.3)  # the tool polls the driver and the system ten times a second
mark("on-gpu")

on_cpu = [tensor.cpu() for tensor in on_gpu]
time.sleep(0.3)
mark("copied")

del on_gpu
mark("moved")

alloctrace.disable()
