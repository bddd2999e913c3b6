"""The reference from one object to another as an expression: an attribute, an index, a key, a variable."""

from __future__ import annotations

import enum
import functools
import gc
import sys
import threading
import types
from dataclasses import dataclass
from typing import Any

from . import access
from .frames import variables
from .roots import FrameRoot, ModuleRoot

_GENERATOR_FRAMES = (
    (types.GeneratorType, "gi_frame"),
    (types.CoroutineType, "cr_frame"),
    (types.AsyncGeneratorType, "ag_frame"),
)
_MAX_KEY = 40
"""Maximum length of a key in characters."""


class How(enum.Enum):
    NOTHING = ""
    """Internal reference without an expression, such as that to an attribute dict."""
    VARIABLE = "variable"
    ATTRIBUTE = "attribute"
    ITEM = "item"
    CLOSED_OVER = "closed over"
    DEFAULT = "default"
    GRAPH = "graph"


@dataclass(frozen=True)
class Edge:
    how: How
    text: str
    """The reference as an expression: ".name", "[12]", '["key"]', "name"."""


NOTHING = Edge(How.NOTHING, "")


def find_edge(parent: Any, child: Any, without_index: bool = False) -> Edge:
    """Return how `parent` refers to `child`. without_index: write `[...]` without a search for the index or key."""
    cls = type(parent)
    if cls is ModuleRoot or cls is FrameRoot:
        return _find_variable(parent, child)
    if access.is_a(parent, dict):
        attribute = None if access.has_exact_type(parent, access.DICTS) else _find_attribute(parent, child)
        return attribute or _find_dict_item(parent, child, without_index)
    if access.is_a(parent, access.SEQUENCES):
        return _find_item(parent, child, without_index)
    if access.is_a(parent, access.SETS):
        return Edge(How.ITEM, "{...}")
    if access.is_class(parent):
        for name, value in list(access.class_dict(parent).items()):
            if value is child:
                return Edge(How.ATTRIBUTE, f".{name}")
        return NOTHING
    for generator_type, frame_name in _GENERATOR_FRAMES:
        if cls is generator_type:
            frame = getattr(parent, frame_name)
            return _find_name(variables(frame) if frame is not None else [], child)
    if cls is types.FrameType:
        return _find_name(variables(parent), child)
    if cls is types.FunctionType:
        return _find_closure_variable(parent, child)
    if cls is types.MethodType:
        return Edge(How.ATTRIBUTE, ".__self__") if child is parent.__self__ else NOTHING
    if cls is types.BuiltinFunctionType:
        return NOTHING
    if cls is functools._lru_cache_wrapper:
        return Edge(How.ITEM, "(...)")
    if cls is functools.partial:
        return _find_partial_argument(parent, child)
    return _find_attribute(parent, child) or _find_special_reference(parent, child) or NOTHING


def _find_variable(root: ModuleRoot | FrameRoot, child: object) -> Edge:
    variable_list = root.variables if type(root) is FrameRoot else list(root.variables.items())  # type: ignore[union-attr]
    return _find_name(variable_list, child)  # type: ignore[arg-type]


def _find_name(variable_list: list[tuple[str, object]], child: object) -> Edge:
    name = next((name for name, value in variable_list if value is child), None)
    return Edge(How.VARIABLE, name) if type(name) is str else NOTHING


def _find_dict_item(parent: Any, child: object, without_index: bool) -> Edge:
    if without_index:
        return Edge(How.ITEM, "[...]")
    for key, value in access.items(parent):
        if value is child:
            return Edge(How.ITEM, f"[{_format_key(key)}]")
        if key is child:
            return Edge(How.ITEM, "{key}")
    return NOTHING


def _find_item(parent: Any, child: object, without_index: bool) -> Edge:
    bases = access.mro(type(parent))
    fields = next((names for base in bases if (names := access.class_dict(base).get("_fields")) is not None), None)
    if type(fields) is tuple and access.is_a(parent, tuple):
        position = next((n for n, value in enumerate(tuple.__iter__(parent)) if value is child), None)
        if position is not None and position < len(fields) and type(fields[position]) is str:
            return Edge(How.ATTRIBUTE, f".{fields[position]}")
    attribute = None if access.has_exact_type(parent, access.SEQUENCES) else _find_attribute(parent, child)
    if attribute:
        return attribute
    if without_index:
        return Edge(How.ITEM, "[...]")
    base = next(base for base in access.SEQUENCES if access.is_a(parent, base))
    for position, value in enumerate(base.__iter__(parent)):
        if value is child:
            return Edge(How.ITEM, f"[{position}]")
    return NOTHING


def _format_key(key: object) -> str:
    """Return a key as an expression: str, int, bool, float and None by value, other keys by their type."""
    if type(key) is str:
        text = repr(key)
        text = '"' + text[1:-1] + '"' if text[0] == "'" and '"' not in text else text
        return text if len(text) <= _MAX_KEY else text[: _MAX_KEY - 4] + '..."'
    if access.has_exact_type(key, (int, bool, float, type(None))):
        return repr(key)
    if type(key) is tuple:
        return "(...)"
    return access.type_name(type(key))


def _find_closure_variable(function: types.FunctionType, child: object) -> Edge:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            if cell is child or cell.cell_contents is child:
                return Edge(How.CLOSED_OVER, name)
        except ValueError as error:
            if not access.raised_here(error):
                raise
    return NOTHING


def find_default(function: types.FunctionType, defaults: object, value: object) -> Edge | None:
    """Return the parameter of a function that has a default value; None if `defaults` are not the function's."""
    if defaults is function.__kwdefaults__ and defaults is not None:
        names = [name for name, default in access.items(defaults) if default is value]
    elif defaults is function.__defaults__ and defaults is not None:
        code = function.__code__
        positions = range(code.co_argcount - len(function.__defaults__ or ()), code.co_argcount)
        pairs = zip(positions, function.__defaults__ or (), strict=True)
        names = [code.co_varnames[position] for position, default in pairs if default is value and position >= 0]
    else:
        return None
    return Edge(How.DEFAULT, names[0]) if names and type(names[0]) is str else None


def _find_partial_argument(partial: Any, child: object) -> Edge:
    for name in ("func", "args", "keywords"):
        if functools.partial.__dict__[name].__get__(partial) is child:
            return Edge(How.ATTRIBUTE, f".{name}")
    return NOTHING


def _find_attribute(parent: object, child: object) -> Edge | None:
    own_attributes = access.attributes(parent)
    if own_attributes is child:
        return NOTHING
    if own_attributes is not None:
        for name, value in access.items(own_attributes):
            if value is child:
                return Edge(How.ATTRIBUTE, f".{name}") if type(name) is str else None
    for name, value in access.slots(parent):
        if value is child:
            return Edge(How.ATTRIBUTE, f".{name}")
    return None


def _find_thread_local(parent: Any, child: object) -> Edge | None:
    """Find the child in the attribute dicts of a `threading.local`: a dict contains one for each thread."""
    for dicts_by_thread in gc.get_referents(parent):
        for entry in access.items(dicts_by_thread) if type(dicts_by_thread) is dict else ():
            if type(entry[1]) is dict:
                for name, value in access.items(entry[1]):
                    if value is child and type(name) is str:
                        return Edge(How.ATTRIBUTE, f".{name}")
    return None


def _find_special_reference(parent: Any, child: object) -> Edge | None:
    if access.is_a(parent, threading.local):
        return _find_thread_local(parent, child)
    if access.is_a(parent, BaseException):
        getter = BaseException.__dict__["__traceback__"].__get__
        if getter(parent) is child:
            return Edge(How.ATTRIBUTE, ".__traceback__")
        if BaseException.__dict__["args"].__get__(parent) is child:
            return Edge(How.ATTRIBUTE, ".args")
        if BaseException.__dict__["__context__"].__get__(parent) is child:
            return Edge(How.ATTRIBUTE, ".__context__")
    if _is_node(parent):
        return Edge(How.GRAPH, "")
    if is_tensor(parent):
        if _is_node(child):
            return Edge(How.GRAPH, ".grad_fn")
        if is_tensor(child):
            return Edge(How.ATTRIBUTE, ".grad")
        if access.is_a(child, dict):
            return Edge(How.ATTRIBUTE, "._backward_hooks")
    return None


def _is_node(obj: object) -> bool:
    return any("next_functions" in access.class_dict(base) for base in access.mro(type(obj)))


def is_tensor(obj: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and access.is_a(obj, torch._C.TensorBase)
