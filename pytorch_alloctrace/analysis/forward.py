"""Which line of forward made an autograd node, found by the numbers that each allocation carries.

The operator that makes node n allocates while its thread's counter stands at n + 1, and the first allocation outside of
backward that finds it there is its own. A view allocates nothing in forward, so the first allocation after it is
another operator's: nodes of views stay without a line. (csrc/core/forward_stacks.h does the same for what was
allocated; this is for requests that were refused, which the account does not have.)
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

import pandas as pd

from ..trace import Trace

VIEW_OPERATORS = frozenset(
    (
        *("Alias", "AsStrided", "Chunk", "Detach", "Diagonal", "Expand", "Imag"),
        *("Indices", "Movedim", "Narrow", "Permute", "Real", "Reshape", "Select"),
        *("Slice", "Split", "SplitWithSizes", "Squeeze", "Swapaxes", "T", "TensorSplit"),
        *("Transpose", "Unbind", "Unflatten", "Unfold", "UnsafeSplit", "UnsafeView", "Unsqueeze"),
        *("Values", "View", "ViewAsReal", "ReshapeAlias", "ViewAsComplex"),
    )
)
"""As csrc/core/forward_stacks.cpp has them."""
_OPERATOR = re.compile(r"(?:^|[:\d])([A-Za-z_]+)Backward\d*$")


@dataclass(frozen=True)
class Node:
    """An autograd node, as events of backward name it."""

    number: int
    thread: int
    """autograd's number of the thread that made it."""
    type: str
    """Of its class, in full: "torch::autograd::generated::MmBackward0"."""

    @property
    def is_view(self) -> bool:
        """Whether its operator returned a view of its input."""
        found = _OPERATOR.search(self.type)
        return found is not None and found[1] in VIEW_OPERATORS


def forward_stacks(trace: Trace, nodes: Collection[Node], until: int) -> dict[Node, int]:
    """The stack of forward for each node that has a known one, from the events before `until`. A pass over them."""
    wanted = {(node.thread, node.number + 1): node for node in nodes if node.number and not node.is_view}
    autograd_id = trace.threads.set_index("thread")["autograd_id"]
    counters = [counter for _, counter in wanted]
    columns = ("kind", "thread", "stack", "autograd_seq", "node_seq")
    found: dict[Node, int] = {}
    for frame in trace.iter_events(until=until, columns=columns, kinds=("alloc",)) if wanted else ():
        rows = frame[frame["autograd_seq"].isin(counters) & (frame["node_seq"] == 0) & (frame["stack"] != 0)]
        threads = rows["thread"].map(autograd_id)
        for thread, counter, stack in zip(threads, rows["autograd_seq"], rows["stack"], strict=True):
            node = None if pd.isna(thread) else wanted.get((int(thread), int(counter)))
            if node is not None:
                found.setdefault(node, int(stack))
    return found
