"""Operations that make large tensors, as text: what a line does, and how it needs less memory."""

from __future__ import annotations

from ..analysis.usage.operations import Operation
from ..analysis.usage.recomputed import Recomputed
from .site_names import SiteNames

FOREACH_CURE = (
    "fused=True in the optimizer (Adam, AdamW, SGD), which makes no such copies, or foreach=False, which copies one"
    " parameter at a time"
)
SMALLER_PARTS = (
    "checkpoint smaller parts, such as each layer or a few of them (`checkpoint_sequential`): only the activations of"
    " one part are live at a time"
)
FUSED_ATTENTION = "torch.nn.functional.scaled_dot_product_attention (nn.MultiheadAttention: need_weights=False)"
WHAT_BY_OPERATION = {
    Operation.ATTENTION: "stores the attention matrices, a value for each pair of positions",
    Operation.LOSS: "computes a loss of all logits at once, in float32",
    Operation.LOGITS: "computes the logits of all positions",
    Operation.ONE_HOT: "makes one-hot tensors",
    Operation.WINDOWS: "stores all windows, which overlap",
    Operation.SORT: "sorts, and keeps values and int64 indices",
    Operation.DENSE: "makes a matrix that is mostly 0",
    Operation.PAD: "pads all sequences to the longest",
    Operation.RESIZE: "resizes all at once",
    Operation.UPCAST: "makes copies in higher precision",
    Operation.CONTRACT: "contracts three or more tensors, one after another (without opt_einsum from left to right)",
    Operation.REDUCE: "makes tensors only to reduce them",
    Operation.GATHER: "copies a row for each index",
    Operation.BROADCAST: "broadcasts tensors to a larger shape",
    Operation.JOIN: "joins tensors into one",
    Operation.REPEAT: "copies the same values several times",
    Operation.CHECKPOINT: "checkpoints parts of the model, and keeps what they take and return",
    Operation.MERGE: "computes weights from other weights, and autograd keeps the results",
    Operation.PARAMETRIZED: "computes a weight anew in each call (a parametrization such as weight_norm), and autograd "
    "keeps each",
    Operation.LAST_SEGMENT: "is in the last segment of checkpoint_sequential, which is not checkpointed",
    Operation.ALLOCATE: "allocates a tensor to fill it later",
    Operation.WRITTEN_OUT: "computes a function by single operations, and autograd keeps the input of each",
    Operation.STEP: "makes temporary copies in the optimizer's step",
}
"""Predicates of a line, by its operation."""
CURE_BY_OPERATION = {
    Operation.ATTENTION: f"{FUSED_ATTENTION}, which does not store them",
    Operation.LOSS: "a part of the rows at a time, each with its own backward; and `del` of logits that are no longer "
    "needed",
    Operation.LOGITS: "if only the last position of each sequence is used, as in generation, compute the logits of it "
    "alone (`x[:, -1:]` before the output layer); in training, a part of the rows at a time, each with its own "
    "backward",
    Operation.ONE_HOT: "a smaller type than int64, which takes 8 bytes for each class: compare with one class at a "
    "time (`labels == k`), or count (torch.bincount)",
    Operation.WINDOWS: "an operation that reads the windows in place (a convolution or pooling), a loop over the "
    "positions within the window, or chunks",
    Operation.SORT: "torch.topk if only the largest count, a part of the rows at a time, or a histogram instead of "
    "quantiles",
    Operation.DENSE: "the sparse matrix itself (torch.sparse.mm); a product with the vector instead of a diagonal "
    "matrix",
    Operation.PAD: "batches of similar lengths (sort by length, bound number times longest), or shorter sequences",
    Operation.RESIZE: "reduce before resizing (argmax, a threshold), or resize a few at a time and reduce each result "
    "(`.byte()`, `.cpu()`) before the next",
    Operation.UPCAST: "leave the conversion out, or convert only the part that is used or trained",
    Operation.CONTRACT: "another order of the operands, so that the first of them give a small result, or opt_einsum, "
    "which torch uses once it is installed; or the work in chunks",
    Operation.REDUCE: "a function that does not store them (torch.cdist, matmul, einsum), or the work in chunks",
    Operation.GATHER: "fewer indices at a time, such as the neighbours of some of the nodes; or a product with a "
    "sparse matrix (torch.sparse.mm) or `index_add_` in chunks, which store no row for each index; of few different "
    "rows, one at a time with all that it is used for",
    Operation.BROADCAST: "chunks of one side; a function that does not store all pairs (torch.cdist, matmul); if only "
    "matching pairs are used, compute only those",
    Operation.JOIN: "reduce each part before it is collected, or collect the parts on the CPU (`.cpu()`)",
    Operation.REPEAT: "`expand`, which copies nothing, or fewer copies at a time",
    Operation.MERGE: "apply the parts one after another (`F.linear(F.linear(x, A), B)`) instead of their product, "
    "compute what needs no gradient (a norm) under torch.no_grad(), or checkpoint the layer",
    Operation.PARAMETRIZED: "`with torch.nn.utils.parametrize.cached():` around the loop or the forward, which computes"
    " each weight once (not for the older torch.nn.utils.weight_norm: use that of torch.nn.utils.parametrizations); or"
    " compute the weight once before the loop",
    Operation.LAST_SEGMENT: "more segments, by a number that divides that of the layers (the last segment has all that "
    "are left), or torch.utils.checkpoint for each layer",
    Operation.ALLOCATE: "a smaller shape (no dimension along which all values are equal: they broadcast), a smaller "
    "type, or in host memory",
    Operation.WRITTEN_OUT: "a function of torch that keeps only its input (F.gelu, F.silu, F.mish, F.layer_norm, "
    "F.rms_norm), or checkpointing of this function alone (torch.utils.checkpoint)",
    Operation.CHECKPOINT: "larger parts, such as whole blocks: the checkpoint of a single linear layer saves nothing, "
    "as the layer keeps no more than its input anyway",
    Operation.STEP: FOREACH_CURE,
}
"""Clauses on how a line needs less memory, by its operation."""


def describe_recomputed(recomputed: Recomputed, names: SiteNames) -> str:
    """Return a clause on a checkpoint of too large a part."""
    if recomputed.call is None:
        return f"A checkpoint computes all activations of {names.site(recomputed.site)} again for its backward"
    return f"{names.site(recomputed.call)} checkpoints a large part, and backward computes all its activations again"
