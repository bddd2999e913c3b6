"""Operations that make large tensors, read from a line's source and from the functions of torch that it calls."""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence

from ...reading.sites import Frame, Site


class Operation(enum.Enum):
    """Operation by which a line makes large tensors. Of several, the first applies."""

    LOSS = "loss"
    """A loss or softmax over all logits, whose float32 copies autograd keeps."""
    RESIZE = "resize"
    """Interpolation to a larger size."""
    UPCAST = "upcast"
    """A copy in higher precision."""
    REDUCE = "reduce"
    """Arithmetic whose results, element by element, are only summed: the sum is much smaller."""
    BROADCAST = "broadcast"
    """Arithmetic on tensors that broadcasting enlarges."""
    JOIN = "join"
    """Concatenation: the parts and the result are live at once."""
    REPEAT = "repeat"
    """Copies of the same values."""


_FUNCTIONS = {
    "cross_entropy": Operation.LOSS,
    "nll_loss": Operation.LOSS,
    "log_softmax": Operation.LOSS,
    "kl_div": Operation.LOSS,
    "interpolate": Operation.RESIZE,
    "upsample": Operation.RESIZE,
}
"""Functions of torch, by the name of a frame."""
_NEW_AXIS = r"(\[[^\]]*\bNone\b[^\]]*\]|\.unsqueeze\([^)]*\))"
_PATTERNS = (
    (r"cross_entropy|log_softmax|logsumexp|nll_loss|kl_div", Operation.LOSS),
    (r"interpolate\(|upsample\(", Operation.RESIZE),
    (r"\.(float|double)\(\)|\bfloat(32|64)\b", Operation.UPCAST),
    (r"( - | \* |pow|abs|square|exp).*\)\.(sum|mean|norm)\((?!\))", Operation.REDUCE),
    (rf"{_NEW_AXIS} [-+*/] | [-+*/] \w+{_NEW_AXIS}", Operation.BROADCAST),
    (r"\b(cat|stack|concat|hstack|vstack)\(", Operation.JOIN),
    (r"\.(repeat|repeat_interleave|tile)\(", Operation.REPEAT),
)
"""Patterns of the source of a line."""


def find_operation(site: Site, frames: Sequence[Frame]) -> Operation | None:
    """Return the operation of a line of user code; None if it is no special one.

    Args:
        site: The line.
        frames: Frames of its stack with the most bytes, innermost first.
    """
    for frame in frames:
        if (frame.filename, frame.line) == (site.filename, site.line):
            break
        if frame.name in _FUNCTIONS:
            return _FUNCTIONS[frame.name]
    operation = next((operation for pattern, operation in _PATTERNS if re.search(pattern, site.source or "")), None)
    # Within a model, concatenated features are a part of its architecture.
    is_in_module = any(frame.name == "_call_impl" for frame in frames)
    return None if is_in_module and operation in (Operation.JOIN, Operation.REPEAT) else operation
