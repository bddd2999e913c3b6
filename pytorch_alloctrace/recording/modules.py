"""Names of the instances of torch.nn.Module that occur in recorded stacks."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, ModuleType
from typing import Any

from ..objects import access
from ..objects.own_errors import is_own_error


def start_naming(recorder: ModuleType, is_requested: bool) -> bool:
    """Prepare the naming of modules before a recording starts. Return whether modules are named."""
    _names.clear()
    code = _find_module_call() if is_requested else None
    if code is None:
        recorder.watch_modules(None, None, 0)
        return False
    _names.append(ModuleNames(recorder))
    return bool(recorder.watch_modules(code, _names[0].resolve, threading.main_thread().ident))


def end_naming() -> None:
    """Forget the modules of a recording that has ended."""
    _names.clear()


def find_identifier(address: int) -> int:
    """Return the identifier of the module at an address; 0 if it has none, as before its first call."""
    return _names[0].find_identifier(address) if _names else 0


def _find_module_call() -> CodeType | None:
    """Return the code that every call of a module runs."""
    import torch

    # Not _call_impl, which it calls: there the first argument, the module, is in a cell.
    function = getattr(torch.nn.Module, "_wrapped_call_impl", None)
    code = getattr(function, "__code__", None)
    return code if isinstance(code, CodeType) else None


@dataclass(eq=False)
class _NamedModule:
    reference: weakref.ref[Any]
    identifier: int
    owner: int
    """Identifier of the parent module; 0 if it has none."""
    class_name: str
    number: int = 0
    """Number among the live modules of its class without a parent, from 1; 0 if it has a parent."""


class ModuleNames:
    """Names of modules: those of ``named_modules()`` of the outermost module that is called.

    The outermost module is named by its class, as is a module outside of its tree that has submodules. Other modules
    outside of the tree get no name. Identifiers belong to names, not to instances: a model that replaces a deleted
    model gets its identifiers, so deleted models use up none.
    """

    def __init__(self, recorder: ModuleType) -> None:
        self._recorder = recorder
        self._named: dict[int, _NamedModule] = {}  # by address
        self._owners: dict[int, int] = {}
        self._identifiers: dict[tuple[int, str, str], int] = {}  # by owner, name and class
        self._numbers: dict[str, set[int]] = {}  # in use, by class

    def resolve(self, stacks: Sequence[Sequence[Any]], hook_identifiers: Mapping[int, int]) -> None:
        """Name the modules that are being called: in each stack the outermost first.

        The recorder calls this in the middle of the program, so it runs no code of the program's modules. After an
        error of the recorder, modules are named by class; an error of the program's signal handler is raised.
        `hook_identifiers`: the identifiers that hooks gave to modules, by address.
        """
        try:
            self._resolve(stacks, hook_identifiers)
        except Exception as error:
            if not is_own_error(error):
                raise

    def find_identifier(self, address: int) -> int:
        named = self._named.get(address)
        return 0 if named is None else named.identifier

    def _resolve(self, stacks: Sequence[Sequence[Any]], hook_identifiers: Mapping[int, int]) -> None:
        for stack in stacks:
            for depth, module in enumerate(stack):
                if id(module) in self._named:
                    continue
                self._name_tree(stack[0], hook_identifiers)
                if id(module) not in self._named and (depth == 0 or any(_list_children(module))):
                    self._name_tree(module, hook_identifiers)

    def _name_tree(self, root: Any, hook_identifiers: Mapping[int, int]) -> None:
        """Name a module that is called, and all its submodules, in the order of ``named_modules()``."""
        visited: set[int] = set()
        pending: list[tuple[Any, int, str]] = [(root, 0, "")]
        while pending:
            module, owner, name = pending.pop()
            if id(module) in visited:
                continue
            visited.add(id(module))
            named = self._named.get(id(module))
            if named is not None and owner not in (0, named.owner) and self._is_gone(named.owner):
                self._forget(id(module), named.reference)  # the model that contained it was deleted
                named = None
            if named is None:
                named = self._add(module, owner, name, hook_identifiers.get(id(module), 0))
            elif named.owner == 0 and owner != 0 and not self._contains(named.identifier, owner):
                self._set_owner(named, owner, name)
            if named.identifier:
                pending += reversed([(child, named.identifier, key) for key, child in _list_children(module)])

    def _add(self, module: Any, owner: int, name: str, hook_identifier: int) -> _NamedModule:
        address = id(module)
        class_name = access.class_name(type(module))
        number = 0
        if owner == 0:
            used_numbers = self._numbers.setdefault(class_name, set())
            number = next(number for number in range(1, len(used_numbers) + 2) if number not in used_numbers)
            name = class_name if number == 1 else f"{class_name}#{number}"
        key = (owner, name, class_name)
        identifier = self._identifiers.get(key, 0)
        if hook_identifier or not identifier:
            # A hook's identifier gets a name even if another identifier has it already.
            new_identifier = self._recorder.name_module(hook_identifier, class_name, owner, name)
            identifier = identifier or new_identifier
            if not identifier:  # no room for the definition: retried at the next call
                return _NamedModule(weakref.ref(module), 0, owner, class_name)
            self._identifiers[key] = identifier
        if number:
            self._numbers[class_name].add(number)
        reference = weakref.ref(module, lambda dead: self._forget(address, dead))
        named = self._named[address] = _NamedModule(reference, identifier, owner, class_name, number)
        self._owners[identifier] = owner
        self._recorder.bind_module(address, identifier)
        return named

    def _set_owner(self, named: _NamedModule, owner: int, name: str) -> None:
        """Rename a module, and all its submodules, once it turns out to be part of a larger model."""
        self._numbers[named.class_name].discard(named.number)
        self._identifiers = {key: number for key, number in self._identifiers.items() if number != named.identifier}
        self._identifiers[owner, name, named.class_name] = named.identifier
        self._owners[named.identifier] = named.owner = owner
        named.number = 0
        self._recorder.name_module(named.identifier, named.class_name, owner, name)

    def _contains(self, module: int, other: int) -> bool:
        """Return whether one module is the other or contains it."""
        while other and other != module:
            other = self._owners.get(other, 0)
        return other == module

    def _is_gone(self, identifier: int) -> bool:
        return identifier != 0 and all(named.identifier != identifier for named in self._named.values())

    def _forget(self, address: int, reference: weakref.ref[Any]) -> None:
        named = self._named.get(address)
        if named is None or named.reference is not reference:
            return
        del self._named[address]
        self._numbers.get(named.class_name, set()).discard(named.number)
        self._recorder.forget_module(address)


def _list_children(module: Any) -> Iterator[tuple[str, Any]]:
    """Return the named children, without ``named_children()``, which a program may have overridden."""
    modules = (access.attributes(module) or {}).get("_modules")
    items: list[Any] = access.items(modules) if access.is_a(modules, dict) else []
    return ((name, child) for name, child in items if child is not None)


_names: list[ModuleNames] = []
"""Names of the modules of the current recording; empty if modules are not named."""
