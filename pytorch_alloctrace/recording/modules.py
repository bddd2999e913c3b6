"""Names of the instances of torch.nn.Module that the recorder meets in stacks."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, ModuleType
from typing import Any

from ..objects import access
from .own_errors import is_own_error


def start_naming(recorder: ModuleType, wanted: bool) -> bool:
    """To be called before a recording starts; returns whether it tells modules apart."""
    code = _call_of_modules() if wanted else None
    if code is None:
        recorder.watch_modules(None, None, 0)
        return False
    main_thread = threading.main_thread().ident
    return bool(recorder.watch_modules(code, ModuleNames(recorder).resolve, main_thread))


def _call_of_modules() -> CodeType | None:
    """The function that each call of a module runs, and whose first argument stays the module: the one that it calls
    has it in a cell."""
    import torch

    function = getattr(torch.nn.Module, "_wrapped_call_impl", None)
    code = getattr(function, "__code__", None)
    return code if isinstance(code, CodeType) else None


@dataclass(eq=False)
class _Named:
    """A live module that has a name."""

    reference: weakref.ref[Any]
    identifier: int
    owner: int
    """0: nobody holds it."""
    class_name: str
    number: int = 0
    """Of those that nobody holds: among the live ones of its class, from 1."""


class ModuleNames:
    """Names modules as ``named_modules()`` of the outermost one does that is called.

    Of one that is not in the tree of the outermost: if it has modules of its own, or is the outermost itself, it is
    named by its class; else it keeps no name. Identifiers are given to names, not to instances: a model that is made
    anew in the place of one that is gone gets those of the old one, so they are as many as the names that were in use
    at once.
    """

    def __init__(self, recorder: ModuleType) -> None:
        self._recorder = recorder
        self._named: dict[int, _Named] = {}  # by address
        self._owners: dict[int, int] = {}
        self._identifiers: dict[tuple[int, str, str], int] = {}  # by owner, name and class
        self._numbers: dict[str, set[int]] = {}  # in use, by class

    def resolve(self, stacks: Sequence[Sequence[Any]], seen: Mapping[int, int]) -> None:
        """stacks: modules that are being called, outermost first. seen: identifiers that hooks gave to some of them, by
        address. The recorder calls this in the middle of the program: it runs no code of the program's modules. After
        an error of ours modules keep their classes; an error of the program's signal handler is raised."""
        try:
            self._resolve(stacks, seen)
        except Exception as error:
            if not is_own_error(error):
                raise

    def _resolve(self, stacks: Sequence[Sequence[Any]], seen: Mapping[int, int]) -> None:
        for stack in stacks:
            for depth, module in enumerate(stack):
                if id(module) in self._named:
                    continue
                self._name_tree(stack[0], seen)
                if id(module) not in self._named and (depth == 0 or any(_children(module))):
                    self._name_tree(module, seen)

    def _name_tree(self, root: Any, seen: Mapping[int, int]) -> None:
        """Names a module that is called, and all modules in it, in the order of ``named_modules()``."""
        visited: set[int] = set()
        waiting: list[tuple[Any, int, str]] = [(root, 0, "")]
        while waiting:
            module, owner, name = waiting.pop()
            if id(module) in visited:
                continue
            visited.add(id(module))
            named = self._named.get(id(module))
            if named is not None and owner not in (0, named.owner) and self._is_gone(named.owner):
                self._forget(id(module), named.reference)  # it was part of another model before
                named = None
            if named is None:
                named = self._add(module, owner, name, seen.get(id(module), 0))
            elif named.owner == 0 and owner != 0 and not self._holds(named.identifier, owner):
                self._give_owner(named, owner, name)
            if named.identifier:
                waiting += reversed([(child, named.identifier, key) for key, child in _children(module)])

    def _add(self, module: Any, owner: int, name: str, met_as: int) -> _Named:
        address = id(module)
        class_name = type(module).__name__
        number = 0
        if owner == 0:
            numbers = self._numbers.setdefault(class_name, set())
            number = next(number for number in range(1, len(numbers) + 2) if number not in numbers)
            name = class_name if number == 1 else f"{class_name}#{number}"
        key = (owner, name, class_name)
        identifier = self._identifiers.get(key, 0)
        if met_as or not identifier:
            # Where the name was in use before, two identifiers say the same.
            made = self._recorder.name_module(met_as, class_name, owner, name)
            identifier = identifier or made
            if not identifier:  # no room for the definition: it is named when it is met again
                return _Named(weakref.ref(module), 0, owner, class_name)
            self._identifiers[key] = identifier
        if number:
            self._numbers[class_name].add(number)
        reference = weakref.ref(module, lambda dead: self._forget(address, dead))
        named = self._named[address] = _Named(reference, identifier, owner, class_name, number)
        self._owners[identifier] = owner
        self._recorder.bind_module(address, identifier)
        return named

    def _give_owner(self, named: _Named, owner: int, name: str) -> None:
        """What was called by itself turns out to be part of a larger model: it and all in it are named anew."""
        self._numbers[named.class_name].discard(named.number)
        self._identifiers = {key: number for key, number in self._identifiers.items() if number != named.identifier}
        self._identifiers[owner, name, named.class_name] = named.identifier
        self._owners[named.identifier] = named.owner = owner
        named.number = 0
        self._recorder.name_module(named.identifier, named.class_name, owner, name)

    def _holds(self, module: int, other: int) -> bool:
        """Whether one module is the other, or holds it."""
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


def _children(module: Any) -> Iterator[tuple[str, Any]]:
    """Without ``named_children()``, which a program may have overridden."""
    modules = (access.attributes(module) or {}).get("_modules")
    items: list[Any] = access.items(modules) if access.is_a(modules, dict) else []
    return ((name, child) for name, child in items if child is not None)
