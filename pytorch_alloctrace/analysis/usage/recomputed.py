"""Activations that a checkpoint (torch.utils.checkpoint) computes again in backward, with the line that called it."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...reading.sites import Site, StackIndex

CHECKPOINT_FILE = re.compile(r"[/\\]torch[/\\]utils[/\\]checkpoint\.py$")
RECOMPUTATION = ("backward", "recompute_fn", "unpack_hook")
"""Ends of the names of functions of torch's checkpointing that compute a part again in backward."""
_CALL = "checkpoint"


@dataclass(frozen=True)
class Recomputed:
    """Activations that checkpoints compute again, and the part of the model that makes the most of them."""

    bytes: int
    """Requested bytes of the activations of all parts."""
    site: Site
    """Outermost line of the program within the part."""
    stack_id: int
    """Stack that ends in `site`."""
    call: Site | None
    """Line of forward that called the checkpoint of the part; None if unknown."""


def find_recomputed(
    stacks: StackIndex, stack_ids: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
) -> Recomputed | None:
    """Return what checkpoints have computed again of live blocks, given their stacks and requested bytes."""
    is_recomputed = stacks.outermost(stacks.ends_in(_is_recomputation)) > 0
    rows = is_recomputed[stack_ids] & (sizes > 0)
    if not rows.any():
        return None
    outermost = stacks.outermost(stacks.is_user & is_recomputed)
    bytes_by_line: Counter[int] = Counter()
    stacks_of_line: dict[int, list[int]] = {}
    for stack, size in zip(stack_ids[rows].tolist(), sizes[rows].tolist(), strict=True):
        line = int(stacks.line_numbers[int(outermost[stack]) or stack])
        bytes_by_line[line] += size
        stacks_of_line.setdefault(line, []).append(stack)
    [(line, _)] = bytes_by_line.most_common(1)
    [stack, *_] = stacks_of_line[line]
    part = int(outermost[stack]) or stack
    lines = np.unique(stacks.line_numbers[stacks_of_line[line]])
    return Recomputed(int(sizes[rows].sum()), Site.of_stack(stacks, part), part, _find_call(stacks, lines))


def _find_call(stacks: StackIndex, lines: npt.NDArray[np.integer]) -> Site | None:
    """Return the line that called the checkpoint in which forward reached one of these lines.

    If it reached none of them there, as in layers of torch, return the line of the program that calls checkpoints, if
    there is only one.
    """
    calls = stacks.outermost(stacks.ends_in(_is_call))
    callers = np.where(calls > 0, stacks.site[stacks.parent[calls]], 0)
    of_lines = callers[(callers > 0) & np.isin(stacks.line_numbers, lines)]
    if not len(of_lines):
        _, first = np.unique(stacks.line_numbers[callers[callers > 0]], return_index=True)
        of_lines = callers[callers > 0][first] if len(first) == 1 else of_lines
    return Site.of_stack(stacks, int(of_lines[0])) if len(of_lines) else None


def _is_recomputation(filename: str, function: str) -> bool:
    return CHECKPOINT_FILE.search(filename) is not None and function.endswith(RECOMPUTATION)


def _is_call(filename: str, function: str) -> bool:
    return CHECKPOINT_FILE.search(filename) is not None and function == _CALL
