"""What holds a tensor: the chains of references that lead to it, or to another that shares its memory."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import access
from .chains import Chain, chain_of
from .frames import can_read, can_read_other_threads
from .graphs import load_reader
from .inventory import storage_of
from .libraries import PACKAGE
from .roots import WAITING, FrameRoot, ModuleRoot
from .unreached import unreached
from .walk import Walk, Walker, pairs

if TYPE_CHECKING:
    import torch

SECONDS = 10.0
OBJECTS = 30_000_000
_CHAINS = 5


@dataclass(frozen=True)
class Holders:
    """What holds a tensor. `str` is one line, such as "trainer.predictions[12]: Trainer.predictions (list of 46) in
    trainer, local of main() at train.py:31"."""

    chains: tuple[Chain, ...]
    """The shortest from each thing that holds it, at most 5; those through containers before plain variables."""
    complete: bool
    """Whether all that Python's garbage collector knows was looked at: if not, there may be others."""
    note: str
    """What is to be said besides: why there is no chain, or that the search was given up."""

    @property
    def chain(self) -> Chain | None:
        """The one to look at first; None where nothing in Python leads to the tensor."""
        return self.chains[0] if self.chains else None

    def __str__(self) -> str:
        lines = [_line(chain) for chain in self.chains]
        text = "; also ".join(lines)
        return f"{text} ({self.note})" if text and self.note else text or self.note


def holders(tensor: torch.Tensor, *, seconds: float = SECONDS) -> Holders:
    """What keeps a tensor alive, by the names that a person would write.

    Looks from all global and local variables, of all threads, through attributes, containers, closures, suspended
    functions, exceptions and autograd graphs. Views and other tensors that share the memory count as the tensor
    itself. The variable of the caller that names the tensor is left out where anything else holds it. Runs no code of
    the program and keeps nothing alive; takes about a second for each million of objects. Graphs are read by the
    recorder, which is compiled at its first use; without it they are not searched, nor, before Python 3.12, are the
    variables of other threads.

    seconds: after which it gives up, with `Holders.complete` False. It is False, too, where gradients and graphs were
    passed over because other threads may have been changing them: during their backward and `zero_grad`, for example.
    Raises TypeError for what is no tensor.
    """
    import torch

    if torch._C.TensorBase not in access.mro(type(tensor)):
        raise TypeError(f"holders() takes a tensor, not {access.type_name(type(tensor))}")
    if not can_read():
        return Holders((), False, "not known: the variables of this Python's functions cannot be read")
    unread = load_reader()
    walker = Walker()
    walk = walker.walk(seconds, OBJECTS)
    with torch._C.DisableTorchFunctionSubclass():
        found, own = _reached(walk, tensor, walker.rank)
    chains = found or own
    note = ""
    if unread:
        threads = "" if can_read_other_threads() else " and variables of other threads"
        note = f"autograd graphs{threads} were not searched: {unread}"
    elif not walk.within_budget:
        note = f"given up after {len(walk.objects):,} objects: there may be others"
        if not chains:
            note = f"not found among the first {len(walk.objects):,} objects: allow more seconds"
    elif walk.unread:
        note = (
            f"gradients and graph nodes not searched: {walk.unread:,}, because other threads may have been changing "
            "them; call holders() again while they do something else"
        )
    elif not found:
        above, note = unreached(tensor, walk)
        if above is not None:
            chains = [above, *chains]
        elif chains:
            note = ""
    return Holders(tuple(chains[:_CHAINS]), walk.complete, note)


def _line(chain: Chain) -> str:
    text = str(chain)
    return text if chain.path == chain.holder and not chain.owner else f"{chain.path}: {text}"


def _reached(walk: Walk, tensor: Any, rank: Callable[[Any], int]) -> tuple[list[Chain], list[Chain]]:
    """The chains that lead to a tensor, and those that are the caller's own variable; those first of which a person
    would want to be told first."""
    import torch

    wanted = storage_of(tensor)
    same = {n for n in walk.tensors if walk.objects[n] is tensor or (wanted and wanted.is_shared_by(walk.objects[n]))}
    caller = _caller()
    found: dict[tuple[str, str, str], tuple[tuple[int, bool, bool, bool], Chain]] = {}
    own: dict[tuple[str, str, str], tuple[tuple[int, bool, bool, bool], Chain]] = {}
    for parent, number in pairs(walk.references):
        if number not in same or parent in same:
            continue
        way = walk.way(parent)
        if any(one in same for one in way):  # round a cycle
            continue
        things = [walk.objects[one] for one in (*way, number)]
        chain = chain_of(things)
        # Through an optimizer, its state is what it is there for; parameters and their gradients are the model's.
        worst = max(map(rank, things))
        if worst == 1 and not any(torch.nn.Parameter in access.mro(type(one)) for one in things):
            worst = 0
        waiting = type(things[0]) is ModuleRoot and things[0].name in WAITING
        order = (worst, waiting, chain.is_direct, not chain.container)
        is_callers = len(things) == 2 and type(things[0]) is FrameRoot and things[0].key == caller
        (own if is_callers else found).setdefault((chain.holder, chain.owner, chain.root), (order, chain))
    first, second = ([chain for _, chain in sorted(one.values(), key=lambda known: known[0])] for one in (found, own))
    return first, second


def _caller() -> tuple[str, str, int] | None:
    """The function outside of this package that asked."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame = frame.f_back
    return None if frame is None else (frame.f_code.co_filename, frame.f_code.co_name, id(frame))
