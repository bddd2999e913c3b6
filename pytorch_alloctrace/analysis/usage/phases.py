"""In which part of a training step a block was allocated, as far as autograd and its stack show.

- backward: by a node of autograd, or under the call that runs its engine. What checkpointing recomputes there counts as
  backward.
- optimizer: under a frame of torch.optim, which every subclass of `torch.optim.Optimizer` has on its stack. The closure
  that an optimizer calls does not belong to the optimizer.
- forward: under the call of an nn.Module or a function of torch.nn.functional, or from a stack that blocks of backward
  were traced to.
- other: parameters, inputs, metrics and everything else. This is a guess: an operator that is called outside any module
  counts as other unless live blocks show its backward, and a module called outside training counts as forward.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from ...reading.recorded import RecordedTrace
from ...reading.table import Table

FORWARD, BACKWARD, OPTIMIZER, OTHER = PHASES = ("forward", "backward", "optimizer", "other")
_OPTIM = re.compile(r"[/\\]torch[/\\]optim[/\\](\w+)\.py$")
_WRAPPERS = "optimizer"
"""The file of torch.optim that calls the step of every optimizer, including the user's own."""
_ENGINE = re.compile(r"[/\\]torch[/\\]autograd[/\\](graph|__init__)\.py$")
_ENGINE_CALLS = ("_engine_run_backward", "backward", "grad")
"""Functions of these files that run the engine or allocate its first gradients."""
_MODULES = re.compile(r"[/\\]torch[/\\]nn[/\\](modules[/\\]module|functional)\.py$")
_MODULE_CALLS = ("_call_impl", "_wrapped_call_impl")


class StackPhases:
    """The phase of each stack of a trace, by its frames alone."""

    def __init__(self, trace: RecordedTrace) -> None:
        self._stacks = trace.stacks
        # The phase of a stack, and whether a user frame that it calls next is an optimizer's closure.
        self._known: dict[int, tuple[str, bool]] = {0: (OTHER, False)}

    def of_stack(self, stack: int) -> str:
        """One of PHASES."""
        pending = []
        while stack not in self._known:
            pending.append(stack)
            stack = int(self._stacks.parent[stack])
        for node in reversed(pending):
            self._known[node] = self._within(node, *self._known[stack])
            stack = node
        return self._known[stack][0]

    def _within(self, stack: int, phase: str, calls_closure: bool) -> tuple[str, bool]:
        """The phase of a frame that is called from one in `phase`."""
        if self._stacks.is_user[stack]:
            return (OTHER if calls_closure else phase), False
        frame = self._stacks.frame(stack)
        if _ENGINE.search(frame.filename) and frame.name in _ENGINE_CALLS:
            return BACKWARD, False
        optim = _OPTIM.search(frame.filename)
        if optim:
            return OPTIMIZER, optim[1] != _WRAPPERS
        module = _MODULES.search(frame.filename)
        if phase == OTHER and module and (module[1] == "functional" or frame.name in _MODULE_CALLS):
            return FORWARD, False
        return phase, calls_closure


def phases_of_blocks(trace: RecordedTrace, blocks: Table, known: StackPhases | None = None) -> npt.NDArray[np.int64]:
    """Return the phase in which each live block was allocated, as a number of PHASES. blocks: as `Replay.live` has
    them. known: the phases of the stacks, where several tables of blocks are asked for."""
    phases = known or StackPhases(trace)
    stacks, of_row = np.unique(blocks["stack_id"], return_inverse=True)
    numbers = np.array([PHASES.index(phases.of_stack(stack)) for stack in stacks.tolist()], np.int64)
    caused_backward = np.isin(stacks, blocks["stack_id"][blocks["backward"]])
    numbers[(numbers == PHASES.index(OTHER)) & caused_backward] = PHASES.index(FORWARD)
    return np.where(blocks["node_type"] != 0, PHASES.index(BACKWARD), numbers[of_row])
