"""Access to objects of the program that runs no program code: no property, `__getattr__`, `__eq__` or `__repr__`.

A metaclass of the program may define `__eq__` and `__hash__` too. So no class of the program is an operand of `==` or
`in`, a key of a dict or an item of a set: `is_a` and `has_exact_type` compare by identity, dicts have ids as keys.
"""

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
_name = _type_attributes["__name__"].__get__
_qualname = _type_attributes["__qualname__"].__get__
_module_dict = _module_attributes["__dict__"].__get__

DICTS = (dict, OrderedDict, defaultdict)
SEQUENCES = (list, tuple, deque)
SETS = (set, frozenset)
CONTAINERS = (*DICTS, *SEQUENCES, *SETS)
_WRAPPERS = (
    *((functools.partial, "func"), (types.MethodType, "__func__"), (staticmethod, "__func__")),
    *((classmethod, "__func__"), (property, "fget"), (property, "fset"), (property, "fdel")),
)
"""Types that wrap functions, and the attribute with the function."""
_MAX_WRAPPED = 8
"""Maximum number of functions read from one object."""


def raised_here(error: Exception) -> bool:
    """Return whether C code called by the current frame raised the error, not a signal handler that ran at that line.

    A handler adds a frame to the traceback.
    """
    return error.__traceback__ is not None and error.__traceback__.tb_next is None


def mro(cls: type) -> tuple[type, ...]:
    """Return a class and its bases. A metaclass cannot change the result."""
    classes: tuple[type, ...] = _mro(cls)
    return classes


def is_a(obj: object, bases: type | tuple[type, ...]) -> bool:
    """Return isinstance(obj, bases) by the true type, which `__class__` cannot change.

    `bases` are classes of Python or torch: their metaclasses run no code of the program.
    """
    return issubclass(type(obj), bases)


def has_exact_type(obj: object, classes: tuple[type, ...]) -> bool:
    """Return whether the type of an object is one of some classes."""
    cls = type(obj)
    return any(candidate is cls for candidate in classes)


def is_class(obj: object) -> bool:
    return issubclass(type(obj), type)


def class_name(cls: type) -> str:
    """Return `__name__` of a class. A metaclass cannot change the result."""
    name: str = _name(cls)
    return name


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


def function_of_context(cls: type) -> str:
    """Return the name of the `torch.autograd.Function` whose `ctx` has this class, or ""."""
    for base in _mro(cls):
        function = _type_dict(base).get("_forward_cls")
        if function is not None:
            return type_name(function) if is_class(function) else ""
    return ""


def module_of(cls: type) -> str:
    name = class_dict(cls).get("__module__")
    return name if type(name) is str else ""


def items(mapping: object) -> list[tuple[object, object]]:
    """Return a snapshot of the items of a dict or of an instance of a subclass."""
    return list(dict.items(mapping))  # type: ignore[arg-type]


def attributes(obj: object) -> dict[str, object] | None:
    """Return the attribute dict of an object, or None. Creates the dict if Python has not done so yet."""
    if is_a(obj, _thread_local):  # reading it would run the program's __init__ for this thread
        return None
    for cls in _mro(type(obj)):
        getter = _type_dict(cls).get("__dict__")
        if is_a(getter, (types.GetSetDescriptorType, types.MemberDescriptorType)):  # the latter of SimpleNamespace
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


def array_base(array: object) -> object:
    """Return the object that has the memory of a numpy array; None if the array has it."""
    return class_dict(type(array))["base"].__get__(array)  # type: ignore[attr-defined]


def array_bytes(array: object) -> int:
    """Return the bytes of a numpy array's elements."""
    size: int = class_dict(type(array))["nbytes"].__get__(array)  # type: ignore[attr-defined]
    return size


def cache_info(cache: object) -> Any:
    """Return the `cache_info` of an `lru_cache` from functools' C code, even if an attribute has the same name."""
    return functools._lru_cache_wrapper.cache_info(cache)  # type: ignore[arg-type]


def length(obj: object) -> int | None:
    if type(obj) is functools._lru_cache_wrapper:
        return int(cache_info(obj).currsize)
    for container in (dict, list, tuple, deque, set, frozenset):
        if is_a(obj, container):
            return container.__len__(obj)  # type: ignore[arg-type]
    return None


def codes_of(obj: object) -> list[types.CodeType]:
    """Return the code of a function, and of the functions wrapped in an object: by decorators, methods, properties.

    Of another object that can be called, the code of its class's `__call__`.
    """
    codes: list[types.CodeType] = []
    pending = [obj]
    for value in pending:
        wrapped = [base.__dict__[name].__get__(value) for base, name in _WRAPPERS if is_a(value, base)]
        if type(value) is types.FunctionType:
            codes.append(value.__code__)
        elif value is obj and not wrapped:
            calls = (class_dict(cls).get("__call__") for cls in mro(type(value)))
            wrapped = [next((call for call in calls if call is not None), None)]
        own_attributes = attributes(value) or {}
        wrapped.append(own_attributes.get("__wrapped__"))  # by a decorator, such as torch.no_grad()
        if is_a(value, (functools.cached_property, functools.partialmethod)):
            wrapped.append(own_attributes.get("func"))
        pending += [function for function in wrapped if function is not None][: _MAX_WRAPPED - len(pending)]
    return codes
