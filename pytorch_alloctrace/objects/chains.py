"""A chain of references, from a root to a tensor, and how a person would write it."""

from __future__ import annotations

import functools
import os
import sys
import types
from _thread import _local as _Local
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from . import access
from .edges import Edge, How, edge
from .roots import WAITING, FrameRoot, ModuleRoot

_OF_MODULES = (".__dict__", "._modules", "._parameters", "._buffers")
"""What torch modules keep their attributes in, and nobody writes."""
_LONGEST = 160
"""Characters of a path, at most: a chain of a thousand objects is cut in the middle."""
_GENERATORS = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)


@dataclass(frozen=True)
class Link:
    """One reference of a chain."""

    edge: Edge
    owner: str
    """The type of the object that refers; of a function or frame, its name."""
    type: str
    """Of the object referred to."""
    length: int | None
    """How many things that has in it, if it is a container."""


@dataclass(frozen=True)
class Chain:
    """From a root to a tensor."""

    path: str
    """As a person would write it: `trainer.predictions[12]`."""
    holder: str
    """What on the way holds the most: `Trainer.predictions`."""
    container: str
    """What kind of thing that is, and how full: "list of 46"; "" where it is no container."""
    owner: str
    """What has the holder: `trainer`; "" where it stands by itself."""
    root: str
    """Where it begins: "local of main() at train.py:31", "global of train.py"."""
    filename: str
    """Of the root; "" where it is in no file."""
    line: int
    """Of the root's function at that moment; 0 for globals."""
    is_direct: bool = False
    """Whether a variable refers to the tensor itself."""
    through_graph: bool = False
    """Whether it goes through an autograd graph."""

    def __str__(self) -> str:
        what = f"{self.holder} ({self.container})" if self.container else self.holder
        inside = f" in {self.owner}" if self.owner else ""
        graph = ", through an autograd graph" if self.through_graph else ""
        return f"{what}{inside}{self.root and ', ' + self.root}{graph}"


def chain_of(objects: Sequence[Any], container: Any = None) -> Chain:
    """The chain of some objects, of which the first is a root. container: the one of them that is the holder, whose
    items are to be written without their index; without it, the fullest is the holder."""
    start, base, root, filename, line = _begin(objects)
    things, links = _links(objects[start:], container)
    path, owner, last, graph = base, "", base, False
    containers: list[tuple[str, str, str, int]] = []
    for position, link in enumerate(links):
        how, text = link.edge.how, link.edge.text
        if how is How.ITEM:
            before = things[position]
            size = _length(before)
            if container is None or before is container:
                containers.append((last, owner, _kind_of(before), size))
            path, last = path + text, last + text
        elif how is How.ATTRIBUTE:
            own_class = position == 0 and bool(base)
            owner = "" if own_class else path
            last = f"{path if own_class else link.owner}{text}"
            path += text
        elif how is How.VARIABLE:
            if path:
                owner, last = path, f"{text} of {link.owner}"
                path = f"{path} > {last}"
            else:
                path = last = text
        elif how is How.CLOSED_OVER:
            if text:
                owner, last = path, f"{text} closed over by {link.owner}"
                path = f"{path} > {last}"
        elif how is How.GRAPH and not graph:
            graph = True
            containers.append((last, owner, "", 1))
            path += ".grad_fn"
    if containers:
        # The fullest; of equally full ones the outermost.
        holder, owner, kind, size = max(containers, key=lambda one: one[3])
        contents = f"{kind} of {size}" if kind else ""
    else:
        holder, contents = last, ""
    if len(path) > _LONGEST:
        path = f"{path[: _LONGEST // 2]}...{path[-_LONGEST // 4 :]}"
    return Chain(path, holder, contents, owner, root, filename, line, len(links) == 1, graph)


def _begin(objects: Sequence[Any]) -> tuple[int, str, str, str, int]:
    """Where the chain begins to be of interest (at the last class, if any), what is written there, and the root."""
    for position in range(len(objects) - 2, 0, -1):
        cls = objects[position]
        if access.is_class(cls) and _is_attribute_of_class(cls, objects[position + 1 : position + 3]):
            module = access.module_of(cls)
            found = sys.modules.get(module)
            known = found is not None and access.is_a(found, types.ModuleType)
            filename = access.module_dict(found).get("__file__") if known and found is not None else None
            filename = filename if type(filename) is str else ""
            place = os.path.basename(filename) or module
            name = access.type_name(cls) if module not in WAITING else f"{module}.{access.type_name(cls)}"
            return position, name, f"class attribute in {place}", filename, 0
    root = objects[0]
    if type(root) is FrameRoot:
        where = f"{os.path.basename(root.filename)}:{root.line}"
        thread = f" in thread {root.thread}" if root.thread else ""
        return 0, "", f"local of {root.function}() at {where}{thread}", root.filename, root.line
    if type(root) is ModuleRoot:
        if root.is_library:
            return 0, "", f"global of module {root.name}", root.filename, 0
        return 0, "", f"global of {os.path.basename(root.filename) or root.name}", root.filename, 0
    return 0, access.type_name(type(root)), "", "", 0


def _is_attribute_of_class(cls: type, after: Sequence[Any]) -> bool:
    """Whether the next in the chain, or the one after the class's dict, is an attribute of the class."""
    values = [id(value) for value in access.class_dict(cls).values()]
    return any(id(one) in values for one in after)


def _links(objects: Sequence[Any], container: Any) -> tuple[list[Any], list[Link]]:
    """The objects that a reader cares for, and the references between them."""
    things, links = [objects[0]], []
    cut = False
    position = 1
    while position < len(objects):
        parent, child = things[-1], objects[position]
        after = objects[position + 1] if position + 1 < len(objects) else None
        position += 1
        if after is not None and _is_part(parent, child, after):
            continue
        cut = cut or (container is not None and parent is container)
        found = edge(parent, child, cut)
        if type(child) is dict and (found.text in _OF_MODULES and _is_module(parent)):
            # The names in it are those of attributes.
            links_to = _module_attribute(child, after)
            if links_to is not None:
                links.append(_link(links_to, parent, after))
                things.append(after)
                position += 1
                continue
        links.append(_link(found, parent, child))
        things.append(child)
    return things, links


def _link(found: Edge, parent: Any, child: Any) -> Link:
    return Link(found, _name_of(parent), access.type_name(type(child)), access.length(child))


def _is_part(parent: Any, child: Any, after: Any) -> bool:
    """Whether an object is only how another is made: its dict, the cells of a function."""
    kind = type(child)
    if kind is dict:
        if access.is_class(parent):
            return any(value is after for value in access.class_dict(parent).values())
        if type(parent) is functools._lru_cache_wrapper:
            return True
        if _Local in access.mro(type(parent)):
            return True
        return type(parent) not in (dict, ModuleRoot, FrameRoot) and access.attributes(parent) is child
    if kind is tuple and type(parent) is types.FunctionType:
        return child is parent.__closure__
    return False


def _is_module(thing: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and torch.nn.Module in access.mro(type(thing))


def _module_attribute(names: dict[Any, Any], child: Any) -> Edge | None:
    for name, value in access.items(names):
        if value is child and type(name) is str:
            return Edge(How.ATTRIBUTE, f".{name}" if name.isidentifier() else f"[{name}]")
    return None


def _name_of(thing: Any) -> str:
    kind = type(thing)
    if kind is types.FunctionType:
        return f"{_short(thing.__qualname__)}()"
    if kind in _GENERATORS:
        return f"suspended {_short(_qualname(thing))}()"
    if kind is types.FrameType:
        return f"{_short(getattr(thing.f_code, 'co_qualname', thing.f_code.co_name))}()"
    return access.type_name(kind)


def _qualname(generator: Any) -> str:
    """The name of the function of a generator or coroutine."""
    name: str = type(generator).__dict__["__qualname__"].__get__(generator)
    return name


def _short(name: str) -> str:
    return name.rpartition("<locals>.")[2]


def _length(container: Any) -> int:
    if type(container) is functools._lru_cache_wrapper:
        return int(container.cache_info().currsize)
    return access.length(container) or 0


def _kind_of(container: Any) -> str:
    return "lru_cache" if type(container) is functools._lru_cache_wrapper else access.type_name(type(container))
