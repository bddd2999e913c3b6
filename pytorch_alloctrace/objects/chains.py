"""Referrer paths from a root to a tensor, written as expressions of the program."""

from __future__ import annotations

import functools
import os
import sys
import types
from _thread import _local as _thread_local
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from . import access
from .containers import Container, container_type, read_container
from .edges import Edge, How, find_edge
from .roots import WAITING, FrameRoot, ModuleRoot

_MODULE_DICTS = (".__dict__", "._modules", "._parameters", "._buffers")
"""Dicts of torch modules' attributes, left out of a path."""
_MAX_PATH = 160
"""Maximum length of a path in characters. A longer path is shortened in the middle."""
_GENERATORS = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)


@dataclass(frozen=True)
class Link:
    edge: Edge
    owner: str
    """Type of the referrer; the name of a function or frame."""


@dataclass(frozen=True)
class Chain:
    """Referrer path from a root to a tensor."""

    path: str
    """The path as an expression: `trainer.predictions[12]`."""
    holder: str
    """The fullest container on the path: `Trainer.predictions`."""
    container: str
    """Type and number of items of the holder: "list of 46"; "" if the holder is not a container."""
    owner: str
    """The object that has the holder: `trainer`; "" if none has."""
    root: str
    """The variable's scope: "local of main() at train.py:31", "global of train.py"."""
    filename: str
    """File of the root; "" if the root has no file."""
    line: int
    """Line that the root's function was executing; 0 for globals."""
    is_direct: bool = False
    """Whether a variable refers to the tensor itself."""
    through_graph: bool = False
    """Whether the path goes through an autograd graph."""
    containers: tuple[Container, ...] = ()
    """Containers on the path, outermost first."""

    def __str__(self) -> str:
        holder = f"{self.holder} ({self.container})" if self.container else self.holder
        owner = f" in {self.owner}" if self.owner else ""
        graph = ", through an autograd graph" if self.through_graph else ""
        return f"{holder}{owner}{self.root and ', ' + self.root}{graph}"


def chain_of(objects: Sequence[Any], container: Any = None, reads_containers: bool = True) -> Chain:
    """Return the referrer path of a root and the objects below it, each referred to by its predecessor.

    `container`: the holder, whose items are written without an index. Default: the fullest container.
    `reads_containers`: whether to set `Chain.containers`, which takes up to a millisecond for each list.
    """
    first_position, root_name, root, filename, line = _describe_root(objects)
    nodes, links = _collect_links(objects[first_position:], container)
    path, owner, holder_name, through_graph = root_name, "", root_name, False
    candidates: list[tuple[str, str, str, int]] = []
    containers: list[Container] = []
    for position, link in enumerate(links):
        how, text = link.edge.how, link.edge.text
        if how is How.ITEM:
            referrer = nodes[position]
            if container is None or referrer is container:
                size = access.length(referrer) or 0
                candidates.append((holder_name, owner, container_type(referrer), size))
            if reads_containers:
                has_owner = position > 0 and links[position - 1].edge.how is How.ATTRIBUTE
                containers.append(read_container(referrer, nodes[position - 1] if has_owner else None))
            path, holder_name = path + text, holder_name + text
        elif how is How.ATTRIBUTE:
            is_class_attribute = position == 0 and bool(root_name)
            owner = "" if is_class_attribute else path
            holder_name = f"{path if is_class_attribute else link.owner}{text}"
            path += text
        elif how is How.VARIABLE:
            if path:
                owner, holder_name = path, f"{text} of {link.owner}"
                path = f"{path} > {holder_name}"
            else:
                path = holder_name = text
        elif how is How.CLOSED_OVER:
            if text:
                owner, holder_name = path, f"{text} closed over by {link.owner}"
                path = f"{path} > {holder_name}"
        elif how is How.GRAPH and not through_graph:
            through_graph = True
            candidates.append((holder_name, owner, "", 1))
            path += ".grad_fn"
    if candidates:
        # The fullest container; the outermost of equally full containers.
        holder, owner, kind, size = max(candidates, key=lambda item: item[3])
        contents = f"{kind} of {size}" if kind else ""
    else:
        holder, contents = holder_name, ""
    if len(path) > _MAX_PATH:
        path = f"{path[: _MAX_PATH // 2]}...{path[-_MAX_PATH // 4 :]}"
    is_direct = len(links) == 1
    return Chain(path, holder, contents, owner, root, filename, line, is_direct, through_graph, tuple(containers))


def _describe_root(objects: Sequence[Any]) -> tuple[int, str, str, str, int]:
    """Return the position at which the written path begins, its name, and the scope, file and line of the root.

    The path begins at the last class whose attribute is on it, else at the root.
    """
    for position in range(len(objects) - 2, 0, -1):
        cls = objects[position]
        if access.is_class(cls) and _is_attribute_of_class(cls, objects[position + 1 : position + 3]):
            module_name = access.module_of(cls)
            module = sys.modules.get(module_name)
            is_module = module is not None and access.is_a(module, types.ModuleType)
            filename = access.module_dict(module).get("__file__") if is_module and module is not None else None
            filename = filename if type(filename) is str else ""
            location = os.path.basename(filename) or module_name
            name = access.type_name(cls) if module_name not in WAITING else f"{module_name}.{access.type_name(cls)}"
            return position, name, f"class attribute in {location}", filename, 0
    root = objects[0]
    if type(root) is FrameRoot:
        location = f"{os.path.basename(root.filename)}:{root.line}"
        thread = f" in thread {root.thread}" if root.thread else ""
        return 0, "", f"local of {root.function}() at {location}{thread}", root.filename, root.line
    if type(root) is ModuleRoot:
        if root.is_library:
            return 0, "", f"global of module {root.name}", root.filename, 0
        return 0, "", f"global of {os.path.basename(root.filename) or root.name}", root.filename, 0
    return 0, access.type_name(type(root)), "", "", 0


def _is_attribute_of_class(cls: type, next_objects: Sequence[Any]) -> bool:
    values = [id(value) for value in access.class_dict(cls).values()]
    return any(id(obj) in values for obj in next_objects)


def _collect_links(objects: Sequence[Any], container: Any) -> tuple[list[Any], list[Link]]:
    nodes, links = [objects[0]], []
    without_index = False
    position = 1
    while position < len(objects):
        parent, child = nodes[-1], objects[position]
        next_object = objects[position + 1] if position + 1 < len(objects) else None
        position += 1
        if next_object is not None and _is_internal(parent, child, next_object):
            continue
        without_index = without_index or (container is not None and parent is container)
        reference = find_edge(parent, child, without_index)
        if type(child) is dict and (reference.text in _MODULE_DICTS and _is_module(parent)):
            # The keys of this dict are the module's attributes.
            attribute = _find_module_attribute(child, next_object)
            if attribute is not None:
                links.append(Link(attribute, _owner_name(parent)))
                nodes.append(next_object)
                position += 1
                continue
        links.append(Link(reference, _owner_name(parent)))
        nodes.append(child)
    return nodes, links


def _is_internal(parent: Any, child: Any, next_object: Any) -> bool:
    """Return whether an object is an internal part of its referrer: an attribute dict, the cells of a function."""
    kind = type(child)
    if kind is dict:
        if access.is_class(parent):
            return any(value is next_object for value in access.class_dict(parent).values())
        if type(parent) is functools._lru_cache_wrapper:
            return True
        if _thread_local in access.mro(type(parent)):
            return True
        return type(parent) not in (dict, ModuleRoot, FrameRoot) and access.attributes(parent) is child
    if kind is tuple and type(parent) is types.FunctionType:
        return child is parent.__closure__
    return False


def _is_module(obj: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and torch.nn.Module in access.mro(type(obj))


def _find_module_attribute(attributes: dict[Any, Any], child: Any) -> Edge | None:
    for name, value in access.items(attributes):
        if value is child and type(name) is str:
            return Edge(How.ATTRIBUTE, f".{name}" if name.isidentifier() else f"[{name}]")
    return None


def _owner_name(obj: Any) -> str:
    kind = type(obj)
    if kind is types.FunctionType:
        return f"{_strip_locals(obj.__qualname__)}()"
    if kind in _GENERATORS:
        return f"suspended {_strip_locals(_qualname(obj))}()"
    if kind is types.FrameType:
        return f"{_strip_locals(getattr(obj.f_code, 'co_qualname', obj.f_code.co_name))}()"
    return access.type_name(kind)


def _qualname(generator: Any) -> str:
    name: str = type(generator).__dict__["__qualname__"].__get__(generator)
    return name


def _strip_locals(name: str) -> str:
    return name.rpartition("<locals>.")[2]
