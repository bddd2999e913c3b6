"""Loops of the program that stacks show, and one pass over a model, which looks like a loop over its layers.

A call came again if its function was entered again from the same place of the same calling stack, or iterated: stacks
do not tell these apart. Threads that run a function once each enter it again, too. The layers of a model are built,
moved, loaded, run and updated one after the other: such a loop counts only if the outermost call of this kind, on its
stack, came again `MIN_ITERATIONS` times.
"""

from __future__ import annotations

import functools
import itertools

import numpy as np
import numpy.typing as npt

from ... import _replay
from ...reading.recorded import RecordedTrace

MIN_ITERATIONS = 20
"""Minimum number of iterations of a loop: fewer may be a coincidence."""
_PASSES = {
    "torch/nn/modules/module.py": ("_wrapped_call_impl", "_call_impl", "_apply", "load_state_dict"),
    "torch/optim/optimizer.py": ("wrapper",),
}
"""By file: functions of torch that go through the layers of a module, or the parameters of an optimizer."""
CONSTRUCTOR = "__init__"
_REQUEST_HANDLERS = "socketserver.py"
"""File whose constructors handle a request."""


class LoopIndex:
    """Loops of a trace by the call that iterates."""

    def __init__(self, trace: RecordedTrace) -> None:
        self._stacks = trace.stacks
        self._replay = trace.replay

    def is_repeated(self, node: int, min_rounds: int = 1) -> bool:
        """Return whether the call in which a stack ends came again at least so often."""
        return any(loop.rounds >= min_rounds for loop in self._by_call.get(self._stacks.call(node), ()))

    def calls(self, stack: int) -> list[int]:
        """Return the calls of a stack, outermost first, each as the stack that ends in it."""
        calls = []
        while self._stacks.has_frames(stack):
            calls.append(stack)
            stack = int(self._stacks.parent[stack])
        return calls[::-1]

    def is_in_one_pass(self, stack: int) -> bool:
        """Return whether a stack ends within one pass over the layers of a model."""
        for node in self.calls(stack):
            if self._is_constructor[node]:
                return True
            if self.is_repeated(node, MIN_ITERATIONS):
                return False
            if self._is_pass[node]:
                return True
        return False

    def is_in_pass(self, stack: int) -> bool:
        """Return whether a stack contains a call that goes through the layers of a model, or makes a model."""
        return any(self._is_constructor[node] or self._is_pass[node] for node in self.calls(stack))

    def find_maker(self, stack: int) -> int:
        """Return the stack, of user code, that makes the model of which a stack allocates a part.

        This is the caller of the outermost constructor that came again, or else the innermost user code.
        """
        calls = self.calls(stack)
        user = [node for node in calls if self._stacks.is_user[node]]
        if not user or any(self._is_pass[node] or self._is_copy[node] for node in calls):
            return user[-1] if user else stack
        is_repeated = False
        for node, inner in itertools.pairwise(calls):
            is_repeated |= self.is_repeated(inner)
            if is_repeated and self._is_constructor[inner] and self._stacks.is_user[node]:
                return node
        return user[-1]

    def loops_around(self, stack: int) -> list[_replay.Loop]:
        """Return the loops of the calls of a stack, innermost first."""
        return [loop for node in self.calls(stack)[::-1] for loop in self._by_call.get(self._stacks.call(node), ())]

    def is_in_loop(self, stack: int) -> bool:
        """Return whether a stack contains a call that came again often enough, not within one pass.

        A loop of a library counts only if it calls user code, such as the handlers of an event loop: otherwise it may
        be one request, such as the tokens of a text.
        """
        is_in_library_loop = False
        for node in self.calls(stack):
            if self._is_constructor[node]:
                return False
            is_repeated = self.is_repeated(node, MIN_ITERATIONS)
            if self._stacks.is_user[node] and (is_repeated or is_in_library_loop):
                return True
            is_in_library_loop |= is_repeated
            if self._is_pass[node]:
                return False
        return False

    @functools.cached_property
    def _by_call(self) -> dict[tuple[int, int, int], list[_replay.Loop]]:
        by_call: dict[tuple[int, int, int], list[_replay.Loop]] = {}
        for loop in self._replay.loops:
            by_call.setdefault(self._stacks.call(loop.function), []).append(loop)
        return by_call

    @functools.cached_property
    def _is_constructor(self) -> npt.NDArray[np.bool_]:
        return self._stacks.ends_in(
            lambda filename, function: (
                function.rpartition(".")[2] == CONSTRUCTOR and not filename.endswith(_REQUEST_HANDLERS)
            )
        )

    @functools.cached_property
    def _is_copy(self) -> npt.NDArray[np.bool_]:
        return self._stacks.ends_in(lambda filename, function: function == "deepcopy")

    @functools.cached_property
    def _is_pass(self) -> npt.NDArray[np.bool_]:
        return self._stacks.ends_in(
            lambda filename, function: any(
                filename.replace("\\", "/").endswith(file) and function.rpartition(".")[2] in functions
                for file, functions in _PASSES.items()
            )
        )
