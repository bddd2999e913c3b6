"""`holders()`: the referrer paths to a tensor and to the tensors that share its memory."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import access
from .chains import Chain, chain_of
from .frames import can_read_frames, can_read_other_threads
from .graphs import load_reader
from .inventory import storage_of
from .libraries import PACKAGE
from .roots import WAITING, FrameRoot, ModuleRoot
from .unreached import find_referrers
from .walk import Walk, Walker, reference_pairs

if TYPE_CHECKING:
    import torch

SECONDS = 10.0
MAX_OBJECTS = 30_000_000
_MAX_CHAINS = 5


@dataclass(frozen=True)
class Holders:
    """The holders of a tensor.

    `str` is one line, such as "trainer.predictions[12]: trainer.predictions (list of 46), local of main() at
    train.py:31".
    """

    chains: tuple[Chain, ...]
    """The shortest referrer path from each holder, at most 5. Paths through containers precede plain variables."""
    complete: bool
    """Whether every object that the garbage collector tracks was visited. If not, there may be other holders."""
    note: str
    """Why there is no referrer path, or why the search is incomplete; "" otherwise."""

    @property
    def chain(self) -> Chain | None:
        """Return the first referrer path, or None if no Python object leads to the tensor."""
        return self.chains[0] if self.chains else None

    def __str__(self) -> str:
        lines = [_format_chain(chain) for chain in self.chains]
        text = "; also ".join(lines)
        return f"{text} ({self.note})" if text and self.note else text or self.note


def holders(tensor: torch.Tensor, *, seconds: float = SECONDS) -> Holders:
    """Find what keeps a tensor alive, named as expressions of the program.

    The search starts at the global and local variables of all threads. It follows attributes, containers, closures,
    suspended functions, exceptions and autograd graphs. Views and other tensors that share the memory count as the
    tensor itself. The caller's own variable is reported only if nothing else holds the tensor. The search runs no code
    of the program and takes about a second per million objects.

    The recorder module reads graphs; it is compiled at its first use. Without it, graphs are not searched, and before
    Python 3.12 neither are the variables of other threads.

    Args:
        tensor: The tensor to search for.
        seconds: Limit of processor time.

    Returns:
        The holders. `Holders.complete` is False if the time ran out, or if gradients and graphs were passed over
        because other threads may have been changing them, for example in backward or `zero_grad`.

    Raises:
        TypeError: `tensor` is not a tensor.
    """
    import torch

    if not access.is_a(tensor, torch._C.TensorBase):
        raise TypeError(f"holders() takes a tensor, not {access.type_name(type(tensor))}")
    if not can_read_frames():
        return Holders((), False, "unknown: the local variables of this Python's functions cannot be read")
    graph_problem = load_reader()
    walker = Walker()
    walk = walker.walk(seconds, MAX_OBJECTS)
    with torch._C.DisableTorchFunctionSubclass():
        other_chains, caller_chains = _find_chains(walk, tensor, walker.rank)
    chains = other_chains or caller_chains
    note = ""
    if graph_problem:
        threads = "" if can_read_other_threads() else " and variables of other threads"
        note = f"autograd graphs{threads} were not searched: {graph_problem}"
    elif not walk.within_budget:
        note = f"given up after {len(walk.objects):,} objects: there may be others"
        if not chains:
            note = f"not found among the first {len(walk.objects):,} objects: allow more seconds"
    elif walk.unread:
        note = (
            f"gradients and graph nodes not searched: {walk.unread:,}, because other threads may have been changing "
            "them; call holders() again while they do something else"
        )
    elif not other_chains:
        referrer_chain, note = find_referrers(tensor, walk)
        if referrer_chain is not None:
            chains = [referrer_chain, *chains]
        elif chains:
            note = ""
    return Holders(tuple(chains[:_MAX_CHAINS]), walk.complete, note)


def _format_chain(chain: Chain) -> str:
    text = str(chain)
    return text if chain.path == chain.holder else f"{chain.path}: {text}"


def _find_chains(walk: Walk, tensor: Any, rank: Callable[[Any], int]) -> tuple[list[Chain], list[Chain]]:
    """Return the referrer paths to a tensor, and those from the caller's own variables, most informative first."""
    import torch

    storage = storage_of(tensor)
    aliases = {
        number
        for number in walk.tensors
        if walk.objects[number] is tensor or (storage and storage.is_shared_by(walk.objects[number]))
    }
    caller = _caller_key()
    other_chains: dict[tuple[str, str], tuple[tuple[int, bool, bool, bool], Chain]] = {}
    caller_chains: dict[tuple[str, str], tuple[tuple[int, bool, bool, bool], Chain]] = {}
    for parent, number in reference_pairs(walk.references):
        if number not in aliases or parent in aliases:
            continue
        path = walk.short_path_to(parent)
        if any(step in aliases for step in path):  # a cycle
            continue
        objects = [walk.objects[step] for step in (*path, number)]
        chain = chain_of(objects)
        # An optimizer owns its state, so a path through it explains a state tensor. The model owns the parameters.
        rank_of_path = max(map(rank, objects))
        if rank_of_path == 1 and not any(access.is_a(obj, torch.nn.Parameter) for obj in objects):
            rank_of_path = 0
        is_waiting = type(objects[0]) is ModuleRoot and objects[0].name in WAITING
        sort_key = (rank_of_path, is_waiting, chain.is_direct, not chain.container)
        is_callers = len(objects) == 2 and type(objects[0]) is FrameRoot and objects[0].key == caller
        (caller_chains if is_callers else other_chains).setdefault((chain.holder, chain.root), (sort_key, chain))
    ordered_others, ordered_callers = (
        [chain for _, chain in sorted(chains.values(), key=lambda item: item[0])]
        for chains in (other_chains, caller_chains)
    )
    return ordered_others, ordered_callers


def _caller_key() -> tuple[str, str, int] | None:
    """Return the key of the innermost frame outside of this package."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame = frame.f_back
    return None if frame is None else (frame.f_code.co_filename, frame.f_code.co_name, id(frame))
