"""From stacks to modules: which instance of torch.nn.Module was being called."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

MODULE = "module"
OUTSIDE = "(outside of modules)"
"""What stands for the module of a stack that calls none."""
_MOST_PARTS = 256
"""Of a name. No model is so deep; a damaged trace may have a circle, or a chain as long as itself."""


def module_depth(by: str) -> int | None:
    """How many parts of a module's name "module" or "module:3" asks for, 0 for all; None if it is neither."""
    word, colon, depth = by.partition(":")
    if word != MODULE or (colon and not (depth.isascii() and depth.isdigit() and int(depth) > 0)):
        return None
    return int(depth) if colon else 0


class ModuleNames:
    """The module of each stack: the innermost one that it calls.

    A name has parts: the outermost module, by its class ("GPT", "GPT#2" of a second one), then as ``named_modules()``
    has it. A module that nobody is known to hold is the last part, by its class: "(Softmax)".
    """

    def __init__(
        self,
        modules: Sequence[tuple[str, int, str]],
        parent: npt.NDArray[np.uint32],
        called: npt.NDArray[np.uint32],
    ) -> None:
        """modules: class, owner and name of each (see `TraceReader.modules`). parent, called: by stack."""
        self._modules = modules
        # Callers have lower ids: one pass is enough.
        innermost = np.where(called > 0, np.arange(len(parent), dtype=np.uint32), np.uint32(0))
        for stack in np.flatnonzero((called == 0) & (parent < np.arange(len(parent)))):
            innermost[stack] = innermost[parent[stack]]
        self._innermost = innermost
        self._parent = parent
        self._called = called
        self._of_call: dict[int, tuple[str, ...]] = {0: ()}

    def parts(self, stack: int) -> tuple[str, ...]:
        """Of the name of a stack's module; none if the stack calls none."""
        call = int(self._innermost[stack])
        chain = []
        while call not in self._of_call:
            chain.append(call)
            call = int(self._innermost[self._parent[call]])
        parts = self._of_call[call]
        for call in reversed(chain):
            parts = self._of_call[call] = self._parts(int(self._called[call]), parts)
        return parts

    def name(self, stack: int, depth: int = 0) -> str:
        """The first `depth` parts of it, all if that is 0."""
        parts = self.parts(stack)
        return ".".join(parts[:depth] if depth else parts) or OUTSIDE

    def _parts(self, module: int, inside: tuple[str, ...]) -> tuple[str, ...]:
        """inside: the parts of the module in which it is called."""
        if full := self._full(module):
            return full
        return inside if len(inside) >= _MOST_PARTS else (*inside, f"({self._record(module)[0] or 'unknown module'})")

    @functools.cache  # noqa: B019 - as long-lived as the trace
    def _full(self, module: int) -> tuple[str, ...]:
        """Its name from the outermost on; empty where that is unknown."""
        found: list[str] = []
        while module:
            _, owner, name = self._record(module)
            if not name or len(found) >= _MOST_PARTS:  # damage may have taken a definition
                return ()
            found.append(name)
            module = owner
        return tuple(reversed(found))

    def _record(self, module: int) -> tuple[str, int, str]:
        return self._modules[module] if module < len(self._modules) else ("", 0, "")
