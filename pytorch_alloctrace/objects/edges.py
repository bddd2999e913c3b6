"""What one object calls another that it refers to: an attribute, an index, a key, a variable."""

from __future__ import annotations

import enum
import functools
import gc
import threading
import types
from dataclasses import dataclass
from typing import Any

from . import access
from .frames import variables
from .roots import FrameRoot, ModuleRoot

_GENERATORS = {
    types.GeneratorType: ("gi_frame", "gi_code"),
    types.CoroutineType: ("cr_frame", "cr_code"),
    types.AsyncGeneratorType: ("ag_frame", "ag_code"),
}
_SHOWN = 40
"""Most characters of a key."""


class How(enum.Enum):
    """How an object refers to another."""

    NOTHING = ""
    """In a way that nobody writes: to its dict, a cell, a traceback to its frame."""
    VARIABLE = "variable"
    """A variable of a module, a function, a generator."""
    ATTRIBUTE = "attribute"
    ITEM = "item"
    """One of the things in a container."""
    CLOSED_OVER = "closed over"
    GRAPH = "graph"
    """Through an autograd graph."""


@dataclass(frozen=True)
class Edge:
    """One step of a chain."""

    how: How
    text: str
    """As it is written: ".name", "[12]", '["key"]', "name"."""


NOTHING = Edge(How.NOTHING, "")


def edge(parent: Any, child: Any, cut: bool = False) -> Edge:
    """How `parent` refers to `child`. cut: do not look which item it is (`[...]`)."""
    cls = type(parent)
    if cls is ModuleRoot or cls is FrameRoot:
        return _variable(parent, child)
    bases = access.mro(cls)
    if dict in bases:
        found = _attribute(parent, child) if cls not in access.DICTS else None
        return found or _item_of_dict(parent, child, cut)
    if any(base in bases for base in access.SEQUENCES):
        return _item(parent, child, cut)
    if any(base in bases for base in access.SETS):
        return Edge(How.ITEM, "{...}")
    if type in bases:
        for name, value in list(access.class_dict(parent).items()):
            if value is child:
                return Edge(How.ATTRIBUTE, f".{name}")
        return NOTHING
    if cls in _GENERATORS:
        frame = getattr(parent, _GENERATORS[cls][0])
        return _named(variables(frame) if frame is not None else [], child)
    if cls is types.FrameType:
        return _named(variables(parent), child)
    if cls is types.FunctionType:
        return _of_function(parent, child)
    if cls is types.MethodType:
        return Edge(How.CLOSED_OVER, "") if child is parent.__self__ else NOTHING
    if cls is types.BuiltinFunctionType:
        return NOTHING
    if cls is functools._lru_cache_wrapper:
        return Edge(How.ITEM, "(...)")
    if cls is functools.partial:
        return Edge(How.CLOSED_OVER, "")
    return _attribute(parent, child) or _special(parent, child) or NOTHING


def _variable(root: ModuleRoot | FrameRoot, child: object) -> Edge:
    named = root.variables if type(root) is FrameRoot else list(root.variables.items())  # type: ignore[union-attr]
    return _named(named, child)  # type: ignore[arg-type]


def _named(named: list[tuple[str, object]], child: object) -> Edge:
    name = next((name for name, value in named if value is child), None)
    return Edge(How.VARIABLE, name) if type(name) is str else NOTHING


def _item_of_dict(parent: Any, child: object, cut: bool) -> Edge:
    if cut:
        return Edge(How.ITEM, "[...]")
    for key, value in access.items(parent):
        if value is child:
            return Edge(How.ITEM, f"[{_written(key)}]")
        if key is child:
            return Edge(How.ITEM, "{key}")
    return NOTHING


def _item(parent: Any, child: object, cut: bool) -> Edge:
    bases = access.mro(type(parent))
    fields = next((one for base in bases if (one := access.class_dict(base).get("_fields")) is not None), None)
    if type(fields) is tuple and tuple in bases:
        position = next((n for n, value in enumerate(tuple.__iter__(parent)) if value is child), None)
        if position is not None and position < len(fields) and type(fields[position]) is str:
            return Edge(How.ATTRIBUTE, f".{fields[position]}")
    own = _attribute(parent, child) if type(parent) not in access.SEQUENCES else None
    if own:
        return own
    if cut:
        return Edge(How.ITEM, "[...]")
    base = next(base for base in access.SEQUENCES if base in bases)
    for position, value in enumerate(base.__iter__(parent)):
        if value is child:
            return Edge(How.ITEM, f"[{position}]")
    return NOTHING


def _written(key: object) -> str:
    """A key as it is written; for what is not plain, its type."""
    if type(key) is str:
        text = repr(key)
        text = '"' + text[1:-1] + '"' if text[0] == "'" and '"' not in text else text
        return text if len(text) <= _SHOWN else text[: _SHOWN - 4] + '..."'
    if type(key) in (int, bool, float, type(None)):
        return repr(key)
    if type(key) is tuple:
        return "(...)"
    return access.type_name(type(key))


def _of_function(function: types.FunctionType, child: object) -> Edge:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            if cell is child or cell.cell_contents is child:
                return Edge(How.CLOSED_OVER, name)
        except ValueError as error:  # an empty cell
            if not access.raised_here(error):
                raise
    if child is function.__defaults__ or child is function.__kwdefaults__:
        return Edge(How.CLOSED_OVER, "a default argument")
    return NOTHING


def _attribute(parent: object, child: object) -> Edge | None:
    own = access.attributes(parent)
    if own is child:
        return NOTHING
    if own is not None:
        for name, value in access.items(own):
            if value is child:
                return Edge(How.ATTRIBUTE, f".{name}") if type(name) is str else None
    for name, value in access.slots(parent):
        if value is child:
            return Edge(How.ATTRIBUTE, f".{name}")
    return None


def _of_thread(parent: Any, child: object) -> Edge | None:
    """What a `threading.local` has for any thread: dicts in a dict."""
    for threads in gc.get_referents(parent):
        for own in access.items(threads) if type(threads) is dict else ():
            if type(own[1]) is dict:
                for name, value in access.items(own[1]):
                    if value is child and type(name) is str:
                        return Edge(How.ATTRIBUTE, f".{name}")
    return None


def _special(parent: Any, child: object) -> Edge | None:
    bases = access.mro(type(parent))
    if threading.local in bases:
        return _of_thread(parent, child)
    if BaseException in bases:
        getter = BaseException.__dict__["__traceback__"].__get__
        if getter(parent) is child:
            return Edge(How.ATTRIBUTE, ".__traceback__")
        if BaseException.__dict__["args"].__get__(parent) is child:
            return Edge(How.ATTRIBUTE, ".args")
        if BaseException.__dict__["__context__"].__get__(parent) is child:
            return Edge(How.ATTRIBUTE, ".__context__")
    if any("next_functions" in access.class_dict(base) for base in bases):
        return Edge(How.GRAPH, "")
    if any(base.__name__ == "TensorBase" for base in bases):
        child_bases = access.mro(type(child))
        if any("next_functions" in access.class_dict(base) for base in child_bases):
            return Edge(How.GRAPH, ".grad_fn")
        if any(base.__name__ == "TensorBase" for base in child_bases):
            return Edge(How.ATTRIBUTE, ".grad")
        if dict in child_bases:
            return Edge(How.ATTRIBUTE, "._backward_hooks")
    return None
