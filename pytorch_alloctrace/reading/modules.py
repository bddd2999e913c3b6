"""Modules of stacks: the instance of torch.nn.Module that was being called."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

MODULE = "module"
OUTSIDE = "(outside of modules)"
_MAX_PARTS = 256
"""Maximum number of parts of a name: a corrupt trace may contain cycles, or very long chains."""


def module_depth(by: str) -> int | None:
    """Return the number of name parts selected by "module:3", 0 (all) for "module", None for other values."""
    word, colon, depth = by.partition(":")
    if word != MODULE or (colon and not (depth.isascii() and depth.isdigit() and int(depth) > 0)):
        return None
    return int(depth) if colon else 0


def outside_name(role: str) -> str:
    """Return the name of memory of a role outside of modules: "(outside of modules: gradient)"."""
    return f"{OUTSIDE[:-1]}: {role})"


def is_outside(name: str) -> bool:
    """Return True for OUTSIDE and every `outside_name`."""
    return name.startswith(OUTSIDE[:-1])


class ModuleNames:
    """Name of the innermost module that each stack calls.

    The first part is the class of the outermost module ("GPT", or "GPT#2" for the second instance), the others as in
    ``named_modules()``. A module whose owner is unknown is the last part, by its class: "(Softmax)".

    modules: class, owner and name of each (see `TraceReader.modules`). parent, called: by stack.
    """

    def __init__(
        self,
        modules: Sequence[tuple[str, int, str]],
        parent: npt.NDArray[np.uint32],
        called: npt.NDArray[np.uint32],
    ) -> None:
        self._modules = modules
        # One pass is enough, because callers have lower ids.
        innermost = np.where(called > 0, np.arange(len(parent), dtype=np.uint32), np.uint32(0))
        for stack in np.flatnonzero((called == 0) & (parent < np.arange(len(parent)))):
            innermost[stack] = innermost[parent[stack]]
        self._innermost = innermost
        self._parent = parent
        self._called = called
        self._parts_by_call: dict[int, tuple[str, ...]] = {0: ()}

    def parts(self, stack: int) -> tuple[str, ...]:
        """Return the name parts of a stack's module; empty if the stack calls no module."""
        call = int(self._innermost[stack])
        chain = []
        while call not in self._parts_by_call:
            chain.append(call)
            call = int(self._innermost[self._parent[call]])
        parts = self._parts_by_call[call]
        for call in reversed(chain):
            parts = self._parts_by_call[call] = self._resolve_parts(int(self._called[call]), parts)
        return parts

    def called(self, stacks: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.uint32]:
        """Return the id of the innermost module that each stack calls; 0: none."""
        modules: npt.NDArray[np.uint32] = self._called[self._innermost[stacks]]
        return modules

    def name(self, stack: int, depth: int = 0) -> str:
        """Return the first `depth` parts of a stack's module name; 0: all."""
        parts = self.parts(stack)
        return ".".join(parts[:depth] if depth else parts) or OUTSIDE

    def owned_name(self, module: int, depth: int = 0) -> str:
        """Return the first `depth` parts (0: all) of the name of a module; "" if an owner is unknown."""
        parts = self._owned_parts(module)
        return ".".join(parts[:depth] if depth else parts)

    def root_of(self, module: int) -> int:
        """Return the id of the outermost module that contains a module; 0 for an id that the trace does not define."""
        for _ in range(_MAX_PARTS):  # a corrupt trace may contain cycles
            _, owner, _ = self._record(module)
            if not owner:
                break
            module = owner
        return module if module < len(self._modules) else 0

    def _resolve_parts(self, module: int, caller_parts: tuple[str, ...]) -> tuple[str, ...]:
        if owned_parts := self._owned_parts(module):
            return owned_parts
        if len(caller_parts) >= _MAX_PARTS:
            return caller_parts
        return (*caller_parts, f"({self._record(module)[0] or 'unknown module'})")

    @functools.cache  # noqa: B019 - as long-lived as the trace
    def _owned_parts(self, module: int) -> tuple[str, ...]:
        """Return the name parts along a module's owners, the outermost first; empty if an owner is unknown."""
        names: list[str] = []
        while module:
            _, owner, name = self._record(module)
            if not name or len(names) >= _MAX_PARTS:  # a corrupt trace may lack definitions
                return ()
            names.append(name)
            module = owner
        return tuple(reversed(names))

    def _record(self, module: int) -> tuple[str, int, str]:
        return self._modules[module] if module < len(self._modules) else ("", 0, "")
