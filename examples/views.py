"""Views (transpose, slice, expand) allocate nothing; clone and contiguous copy.

The tool: no event between `created` and `viewed`; then the lines with clone and contiguous hold 100 MiB each. At
`base-deleted` nothing has been freed: a view of one row keeps the complete tensor alive. `alloctrace.tensors()` has a
row for each storage, with the number of tensors that share it.
"""

from __future__ import annotations

import torch
from marks import DEVICE, MIB, mark, trace_path

import pytorch_alloctrace as alloctrace


def show() -> None:
    largest = alloctrace.tensors().query("requested_bytes >= @MIB")
    print(largest[["name", "shape", "requested_bytes", "tensors", "line"]].to_string(index=False))


alloctrace.enable(trace_path(__file__), overwrite=True)

x = torch.zeros(1024, 25 * 1024, device=DEVICE)
mark("created")

transposed = x.transpose(0, 1)
row = x[0]
expanded = row.expand(1_000_000, -1)
mark("viewed")
show()

cloned = x.clone()
mark("cloned")

packed = transposed.contiguous()
mark("contiguous")

del x, transposed, expanded
mark("base-deleted")
show()

assert row.untyped_storage().nbytes() == 100 * MIB
alloctrace.disable()
