"""A freed tensor's memory stays reserved, and the next tensor of its size reuses it.

The tool: at `freed` nothing is allocated and 100 MiB are still reserved; at `made-again` the new tensor lies in the
same block, at the same address, and reserved has not grown.
"""

from __future__ import annotations

import torch
from marks import MIB, mark, trace_path

import pytorch_alloctrace as alloctrace

alloctrace.enable(trace_path(__file__), overwrite=True)

x = torch.zeros(100 * MIB, dtype=torch.uint8, device="cuda")
mark("made")

del x
mark("freed")

y = torch.zeros(100 * MIB, dtype=torch.uint8, device="cuda")
mark("made-again")

alloctrace.disable()
