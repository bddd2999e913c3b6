"""A freed tensor's memory stays reserved, and the next tensor of the same size reuses it.

The tool: at `freed` nothing is allocated and 100 MiB are still reserved; at `created-again` the new tensor has the same
block, at the same address, and reserved memory has not grown.
"""

from __future__ import annotations

import torch
from marks import MIB, mark, trace_path

import pytorch_alloctrace as alloctrace

alloctrace.enable(trace_path(__file__), overwrite=True)

x = torch.zeros(100 * MIB, dtype=torch.uint8, device="cuda")
mark("created")

del x
mark("freed")

y = torch.zeros(100 * MIB, dtype=torch.uint8, device="cuda")
mark("created-again")

alloctrace.disable()
