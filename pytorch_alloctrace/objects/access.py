"""Looking at objects of the program without running any of its code: no attribute is asked for by its name where a
property, `__getattr__` or `__class__` of the program's could answer, and nothing is compared or printed.
"""

from __future__ import annotations

import types
from _thread import _local as _Local
from collections import OrderedDict, defaultdict, deque
from typing import Any

_of_types: Any = type.__dict__
_of_modules: Any = vars(types.ModuleType)
_mro = _of_types["__mro__"].__get__
_type_dict = _of_types["__dict__"].__get__
_qualname = _of_types["__qualname__"].__get__
_module_dict = _of_modules["__dict__"].__get__

DICTS = (dict, OrderedDict, defaultdict)
SEQUENCES = (list, tuple, deque)
SETS = (set, frozenset)


def raised_here(error: Exception) -> bool:
    """Return whether C code that the current frame called raised the error, rather than a signal handler of the program
    that happened to run at the same line: a handler adds a frame to the traceback."""
    return error.__traceback__ is not None and error.__traceback__.tb_next is None


def mro(cls: type) -> tuple[type, ...]:
    """A class and its bases, whatever its metaclass says."""
    found: tuple[type, ...] = _mro(cls)
    return found


def is_a(thing: object, base: type) -> bool:
    """`isinstance` by the true type."""
    return base in _mro(type(thing))


def is_class(thing: object) -> bool:
    """Whether it is a class."""
    return type in _mro(type(thing))


def type_name(cls: type) -> str:
    """The name of a class as its module has it: without the function that it was defined in."""
    name: str = _qualname(cls)
    return name.rpartition("<locals>.")[2]


def class_dict(cls: type) -> types.MappingProxyType[str, object]:
    """The attributes that a class itself has."""
    found: types.MappingProxyType[str, object] = _type_dict(cls)
    return found


def module_dict(module: types.ModuleType) -> dict[str, object]:
    """The global variables of a module."""
    found: dict[str, object] = _module_dict(module)
    return found


def module_of(cls: type) -> str:
    """The name of the module that a class comes from; "" where it is not known."""
    name = class_dict(cls).get("__module__")
    return name if type(name) is str else ""


def items(mapping: object) -> list[tuple[object, object]]:
    """The items of a dict, or of an object of a class made from it, at one moment."""
    return list(dict.items(mapping))  # type: ignore[arg-type]


def attributes(thing: object) -> dict[str, object] | None:
    """The dict of an object's attributes; None for what has none. (Makes it, if Python has put that off.)"""
    if _Local in _mro(type(thing)):  # would make another for this thread, by the program's __init__
        return None
    for cls in _mro(type(thing)):
        getter = _type_dict(cls).get("__dict__")
        if type(getter) is types.GetSetDescriptorType:
            try:
                found = getter.__get__(thing)
            except AttributeError as error:
                if not raised_here(error):
                    raise
                return None
            return found if type(found) is dict else None
        if getter is not None:  # of the program's
            return None
    return None


def slots(thing: object) -> list[tuple[str, object]]:
    """What is in the `__slots__` of an object, by name."""
    found = []
    for cls in _mro(type(thing)):
        for name, slot in list(_type_dict(cls).items()):
            if type(slot) is types.MemberDescriptorType:
                try:
                    found.append((name, slot.__get__(thing)))
                except (AttributeError, TypeError) as error:
                    if not raised_here(error):
                        raise
    return found


def attribute(thing: object, name: str) -> object:
    """The attribute of an object that is in its own dict; None without one, or where a class has the name."""
    if any(name in _type_dict(cls) for cls in _mro(type(thing))):
        return None
    try:
        return object.__getattribute__(thing, name)
    except AttributeError as error:
        if not raised_here(error):
            raise
        return None


def length(thing: object) -> int | None:
    """How many things a container has; None for what is not one."""
    bases = _mro(type(thing))
    for container in (dict, list, tuple, deque, set, frozenset):
        if container in bases:
            return container.__len__(thing)  # type: ignore[arg-type]
    return None
