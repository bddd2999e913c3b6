"""`del` does not lower what the driver (nvidia-smi) shows; torch.cuda.empty_cache() does.

The tool: at `deleted` nothing is allocated, yet the driver shows as much as before, 1 GiB of it reserved by torch and
releasable; at `emptied` it is back with the driver, and what is left is outside of PyTorch.
"""

from __future__ import annotations

import time

import torch
from moments import GIB, moment, trace_path

import pytorch_alloctrace as alloctrace

alloctrace.enable(trace_path(__file__), overwrite=True)
x = torch.zeros(GIB, dtype=torch.uint8, device="cuda")
time.sleep(0.3)  # the tool asks the driver ten times a second
moment("made")

del x
time.sleep(0.3)
moment("deleted")

torch.cuda.empty_cache()
time.sleep(0.3)
moment("emptied")

alloctrace.disable()
