"""`del` does not lower what the driver (nvidia-smi) shows; torch.cuda.empty_cache() does.

The tool: at `deleted` nothing is allocated, yet the driver shows as much as before, 1 GiB of it reserved by torch and
releasable; at `emptied` it is back with the driver, and what is left is outside PyTorch.
"""

from __future__ import annotations

import time

import torch
from marks import GIB, mark, trace_path

import pytorch_alloctrace as alloctrace

alloctrace.enable(trace_path(__file__), overwrite=True)
x = torch.zeros(GIB, dtype=torch.uint8, device="cuda")
time.sleep(0.3)  # the tool asks the driver ten times a second
mark("made")

del x
time.sleep(0.3)
mark("deleted")

torch.cuda.empty_cache()
time.sleep(0.3)
mark("emptied")

alloctrace.disable()
