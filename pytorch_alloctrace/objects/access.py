"""Access to objects of the program that runs no program code: no property, `__getattr__`, `__eq__` or `__repr__`."""

from __future__ import annotations

import functools
import types
from _thread import _local as _thread_local
from collections import OrderedDict, defaultdict, deque
from typing import Any

_type_attributes: Any = type.__dict__
_module_attributes: Any = vars(types.ModuleType)
_mro = _type_attributes["__mro__"].__get__
_type_dict = _type_attributes["__dict__"].__get__
_qualname = _type_attributes["__qualname__"].__get__
_module_dict = _module_attributes["__dict__"].__get__

DICTS = (dict, OrderedDict, defaultdict)
SEQUENCES = (list, tuple, deque)
SETS = (set, frozenset)


def raised_here(error: Exception) -> bool:
    """Return whether C code called by the current frame raised the error, not a signal handler that ran at that line.

    A handler adds a frame to the traceback.
    """
    return error.__traceback__ is not None and error.__traceback__.tb_next is None


def mro(cls: type) -> tuple[type, ...]:
    """Return a class and its bases. A metaclass cannot change the result."""
    classes: tuple[type, ...] = _mro(cls)
    return classes


def is_a(obj: object, base: type) -> bool:
    """Return isinstance(obj, base) by the true type, which `__class__` cannot change."""
    return base in _mro(type(obj))


def is_class(obj: object) -> bool:
    return type in _mro(type(obj))


def type_name(cls: type) -> str:
    """Return the qualified name of a class, without the function that defined it."""
    name: str = _qualname(cls)
    return name.rpartition("<locals>.")[2]


def class_dict(cls: type) -> types.MappingProxyType[str, object]:
    attributes: types.MappingProxyType[str, object] = _type_dict(cls)
    return attributes


def module_dict(module: types.ModuleType) -> dict[str, object]:
    variables: dict[str, object] = _module_dict(module)
    return variables


def module_of(cls: type) -> str:
    name = class_dict(cls).get("__module__")
    return name if type(name) is str else ""


def items(mapping: object) -> list[tuple[object, object]]:
    """Return a snapshot of the items of a dict or of an instance of a subclass."""
    return list(dict.items(mapping))  # type: ignore[arg-type]


def attributes(obj: object) -> dict[str, object] | None:
    """Return the attribute dict of an object, or None. Creates the dict if Python has not done so yet."""
    if _thread_local in _mro(type(obj)):  # reading it would run the program's __init__ for this thread
        return None
    for cls in _mro(type(obj)):
        getter = _type_dict(cls).get("__dict__")
        if type(getter) in (types.GetSetDescriptorType, types.MemberDescriptorType):  # the latter of SimpleNamespace
            try:
                attribute_dict = getter.__get__(obj)
            except AttributeError as error:
                if not raised_here(error):
                    raise
                return None
            return attribute_dict if type(attribute_dict) is dict else None
        if getter is not None:  # defined by the program
            return None
    return None


def slots(obj: object) -> list[tuple[str, object]]:
    values = []
    for cls in _mro(type(obj)):
        for name, slot in list(_type_dict(cls).items()):
            if type(slot) is types.MemberDescriptorType:
                try:
                    values.append((name, slot.__get__(obj)))
                except (AttributeError, TypeError) as error:
                    if not raised_here(error):
                        raise
    return values


def attribute(obj: object, name: str) -> object:
    """Return an attribute from an object's own dict; None if it is missing or a class attribute has the same name."""
    if any(name in _type_dict(cls) for cls in _mro(type(obj))):
        return None
    try:
        return object.__getattribute__(obj, name)
    except AttributeError as error:
        if not raised_here(error):
            raise
        return None


def cache_info(cache: object) -> Any:
    """Return the `cache_info` of an `lru_cache` from functools' C code, even if an attribute has the same name."""
    return functools._lru_cache_wrapper.cache_info(cache)  # type: ignore[arg-type]


def length(obj: object) -> int | None:
    if type(obj) is functools._lru_cache_wrapper:
        return int(cache_info(obj).currsize)
    bases = _mro(type(obj))
    for container in (dict, list, tuple, deque, set, frozenset):
        if container in bases:
            return container.__len__(obj)  # type: ignore[arg-type]
    return None
