"""Operations that make large tensors, read from a line's source and from the functions of torch that it calls."""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from itertools import takewhile

from ...reading.sites import Frame, Site
from .recomputed import CHECKPOINT_FILE, RECOMPUTATION


class Operation(enum.Enum):
    """Operation by which a line makes large tensors. Of several, the first applies."""

    ATTENTION = "attention"
    """Matrices of an attention, a value for each pair of positions: the fused function of torch stores none."""
    LOSS = "loss"
    """A loss or softmax over all logits, whose float32 copies autograd keeps."""
    LOGITS = "logits"
    """Logits of all positions of a sequence."""
    ONE_HOT = "one-hot"
    """A value of int64 for each class."""
    WINDOWS = "windows"
    """The values of all windows of a tensor (im2col), which overlap."""
    SORT = "sort"
    """Sorted values with their indices, of int64."""
    DENSE = "dense"
    """A dense copy of a sparse matrix, or a matrix that is 0 but for its diagonal."""
    PAD = "pad"
    """Sequences that are padded to the longest."""
    RESIZE = "resize"
    """Interpolation to a larger size."""
    UPCAST = "upcast"
    """A copy in higher precision."""
    CONTRACT = "contract"
    """torch.einsum of three or more tensors: without opt_einsum, from left to right."""
    REDUCE = "reduce"
    """Arithmetic whose results, element by element, are only summed: the sum is much smaller."""
    GATHER = "gather"
    """A row for each of many indices, such as the neighbours of the nodes of a graph."""
    BROADCAST = "broadcast"
    """Arithmetic on tensors that broadcasting enlarges."""
    JOIN = "join"
    """Concatenation: the parts and the result are live at once."""
    REPEAT = "repeat"
    """Copies of the same values."""
    CHECKPOINT = "checkpoint"
    """Activation checkpointing of parts of a model: what they take and return is kept, the rest computed again."""
    MERGE = "merge"
    """A weight that is computed from other weights, such as those of a low-rank adapter."""
    PARAMETRIZED = "parametrized"
    """A weight that a parametrization, such as weight_norm, computes anew in each call."""
    LAST_SEGMENT = "last segment"
    """Activations of the last segment of `checkpoint_sequential`, the only one that is not checkpointed."""
    ALLOCATE = "allocate"
    """A tensor of equal values, such as zeros, or of none yet, to be filled later."""
    WRITTEN_OUT = "written out"
    """A function such as gelu, computed by single operations: autograd keeps the input of each."""
    STEP = "step"
    """Copies of all parameters at once in the step of an optimizer, by its foreach implementation."""


_FUNCTIONS = {
    "cross_entropy": Operation.LOSS,
    "nll_loss": Operation.LOSS,
    "log_softmax": Operation.LOSS,
    "kl_div": Operation.LOSS,
    "interpolate": Operation.RESIZE,
    "upsample": Operation.RESIZE,
}
"""Functions of torch, by the name of a frame."""
_MULTI_HEAD, _FUSED_ATTENTION = "multi_head_attention_forward", "scaled_dot_product_attention"
"""Functions of torch: the first calls the second unless it has to return the weights."""
_ATTENTION = re.compile(r"attention|attn|attend", re.IGNORECASE)
_OF_PAIRS = re.compile(
    r"@ \(?[\w.]*k(ey)?s?\w*\.(transpose|permute|swapaxes|mT\b|T\b|t\(\))"
    r"|(matmul|bmm)\([\w.]+, [\w.]*k(ey)?s?\w*\.(transpose|permute|swapaxes|mT\b|T\b|t\(\))"
    r"|\beinsum\(.*\bq\w*\b.*\bk\w*\b"
    r"|\b(scores?|attn|attention|dots|similarity|energy)\w*(\.masked_fill\(.*\))?\.softmax\("
    r"|softmax\(\s*(scores?|attn|attention|dots|similarity|energy)\w*\s*[,)/*]"
    r"|\b(scores?|attn|dots)\w*\.masked_fill|dropout\(\w*(attn|attention|probs|scores)\b"
)
"""Operations on a value for each pair of positions."""
_FOREACH = "_multi_tensor_"
"""Beginning of the names of the foreach implementations of torch's optimizers."""
_CALL = "_call_impl"
"""Function of torch that calls a module."""
_PARAMETRIZATION = re.compile(r"[/\\]torch[/\\]nn[/\\]utils[/\\](parametrize|weight_norm|spectral_norm)\.py$")
_WEIGHT_FUNCTIONS = ("get_parametrized", "compute_weight")
_LINEAR = re.compile(r"[/\\]torch[/\\]nn[/\\]modules[/\\](module|linear)\.py$")
"""Files of the frames of a call of a linear layer."""
_NEW_AXIS = r"(\[[^\]]*\bNone\b[^\]]*\]|\.unsqueeze\([^)]*\))"
_PATTERNS = (
    (r"\b(cross_entropy|log_softmax|logsumexp|nll_loss|kl_div)\(", Operation.LOSS),
    (
        r"\b(lm_|out_|output_)?head\(.*\)\.float\(\)|\blm_head\("
        r"|\blogits = (F\.linear|.*\bhead)\(|\blogits\.(float|to|softmax)\(",
        Operation.LOGITS,
    ),
    (r"\baddmm\([\w.]*\.weight\b|\bweight \+ .*( @ |\bupdate\b|\bdelta\b)|\bweight = .* @ ", Operation.MERGE),
    (r"\bone_hot\(", Operation.ONE_HOT),
    (r"\b(F\.unfold|functional\.unfold|im2col)\(|\.unfold\(.*\)\.(contiguous|reshape|clone)\(", Operation.WINDOWS),
    (r"\b(sort|argsort|msort|quantile|nanquantile)\(", Operation.SORT),
    (r"\.to_dense\(|\b(diag_embed|torch\.eye|block_diag)\(", Operation.DENSE),
    (r"\bpad_sequence\(", Operation.PAD),
    (r"\b(interpolate|upsample)\(", Operation.RESIZE),
    (r"\.(float|double)\(\)|\b(to|type|softmax)\(.*\bfloat(32|64)\b", Operation.UPCAST),
    (r"\beinsum\(\s*[rf]?[\"'][^\"',]*,[^\"',]*,", Operation.CONTRACT),
    (r"( - | \* |\b(pow|abs|square|exp)\().*\)\.(sum|mean|norm)\((?!\))", Operation.REDUCE),
    (r"\b(cat|stack)\(.*\)\.(sum|mean|any|all|a?min|a?max)\(", Operation.REDUCE),
    (
        r"\w\[(src|dst|sources?|targets?|rows?|cols?|idx|ids|ind(ex|ices)|rels?|relations?|perm|edges?|neighbou?rs?"
        r"|edge_index\[\d\]|\w+_(idx|ids|index|indices)|(?!self\.)[A-Za-z_]\w*\.(rel|kinds?|types?|species|edge_\w+|idx|index|indices|ids|\w+_index))\]"
        r"(?!\()",
        Operation.GATHER,
    ),
    (r"\b(index_select|gather|take_along_dim)\(", Operation.GATHER),
    (rf"{_NEW_AXIS} [-+*/] | [-+*/] \w+{_NEW_AXIS}", Operation.BROADCAST),
    (r"\b(cat|stack|concat|hstack|vstack)\(", Operation.JOIN),
    (r"\.(repeat|repeat_interleave|tile)\(|\.expand\(.*\)\.(contiguous|clone|reshape)\(", Operation.REPEAT),
    (r"^(?!.*requires_grad)[^=(]+ = torch\.(zeros|empty|full)\(", Operation.ALLOCATE),
)
"""Patterns of the source of a line."""
_ELEMENTWISE = re.compile(
    r" [-+*/] |\*\*|\b(tanh|sigmoid|exp|erf|log|log1p|pow|sqrt|rsqrt|square|softplus|relu|clamp)\("
)
_FUNCTION = re.compile(r"\b(tanh|sigmoid|exp|erf|log|log1p|pow|sqrt|rsqrt|square|softplus)\(")
_MIN_ELEMENTWISE = 3
"""Minimum number of operations of a line that computes a function by single ones."""

_OF_ARCHITECTURE = (Operation.RESIZE, Operation.JOIN, Operation.REPEAT)
"""Operations that are a part of the model within a module."""


def find_operation(site: Site, frames: Sequence[Frame]) -> Operation | None:
    """Return the operation of a line of user code; None if it is no special one.

    Args:
        site: The line.
        frames: Frames of its stack with the most bytes, innermost first.
    """
    called = list(takewhile(lambda frame: (frame.filename, frame.line) != (site.filename, site.line), frames))
    if any(frame.name.startswith(_FOREACH) for frame in called):
        return Operation.STEP
    if _stores_attention(site, called):
        return Operation.ATTENTION
    if any(_PARAMETRIZATION.search(frame.filename) and frame.name in _WEIGHT_FUNCTIONS for frame in called):
        return Operation.PARAMETRIZED
    of_checkpoints = [frame.name for frame in frames if CHECKPOINT_FILE.search(frame.filename)]
    if "checkpoint_sequential" in of_checkpoints and not {"checkpoint", *RECOMPUTATION} & {*of_checkpoints}:
        return Operation.LAST_SEGMENT
    in_checkpoint = [frame.name for frame in called if CHECKPOINT_FILE.search(frame.filename)]
    if in_checkpoint and not any(name in RECOMPUTATION for name in in_checkpoint):
        return Operation.CHECKPOINT
    operation = next((_FUNCTIONS[frame.name] for frame in called if frame.name in _FUNCTIONS), None)
    # The source of a line does not describe what a module that the line calls allocates.
    is_linear = all(_LINEAR.search(frame.filename) for frame in called)
    if operation is None and (is_linear or not any(frame.name == _CALL for frame in called)):
        operation = _read_operation(site.source or "")
    is_in_module = any(frame.name == _CALL for frame in frames[len(called) :])
    return None if is_in_module and operation in _OF_ARCHITECTURE else operation


def _stores_attention(site: Site, called: Sequence[Frame]) -> bool:
    if any(_FUSED_ATTENTION in text for frame in called for text in (frame.name, frame.source or "")):
        return False
    if any(frame.name == _MULTI_HEAD for frame in called):
        return True
    source = site.source or ""
    is_attention = any(_ATTENTION.search(text) for text in (site.function, source))
    return is_attention and _FUSED_ATTENTION not in source and _OF_PAIRS.search(source) is not None


def _read_operation(source: str) -> Operation | None:
    operation = next((operation for pattern, operation in _PATTERNS if re.search(pattern, source)), None)
    is_long = len(_ELEMENTWISE.findall(source)) >= _MIN_ELEMENTWISE
    if operation is None and is_long and _FUNCTION.search(source) and "rand" not in source:
        return Operation.WRITTEN_OUT
    return operation
