"""`del` does not lower the memory in use that the driver (nvidia-smi) shows; torch.cuda.empty_cache() does.

The tool: at `deleted` nothing is allocated, yet the driver shows the same use, with 1 GiB reserved by torch and
releasable; at `emptied` the driver has that 1 GiB back, and the memory still in use is outside PyTorch.
"""

from __future__ import annotations

import time

import torch
from marks import GIB, mark, trace_path

import pytorch_alloctrace as alloctrace

alloctrace.enable(trace_path(__file__), overwrite=True)
x = torch.zeros(GIB, dtype=torch.uint8, device="cuda")
time.sleep(0.3)  # the tool polls the driver ten times a second
mark("created")

del x
time.sleep(0.3)
mark("deleted")

torch.cuda.empty_cache()
time.sleep(0.3)
mark("emptied")

alloctrace.disable()
