"""Referrer paths from a root to a tensor, written as expressions of the program."""

from __future__ import annotations

import functools
import math
import os
import sys
import threading
import types
import weakref
from _thread import _local as _thread_local
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from . import access
from .containers import Container, container_type, read_container
from .edges import Edge, How, find_default, find_edge
from .own_errors import is_own_error
from .roots import WAITING, FrameRoot, ModuleRoot
from .stores import UNKNOWN, Store, find_store, is_module

_MODULE_DICTS = (".__dict__", "._modules", "._parameters", "._buffers")
"""Dicts of torch modules' attributes, left out of a path."""
_MAX_PATH = 160
"""Maximum length of a path in characters. A longer path is shortened in the middle."""
_FINALIZE_RECORD = getattr(weakref.finalize, "_Info", None)
_GENERATORS = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)
CONTEXT, TENSOR_HOOK, GRADIENT = "ctx", "tensor hook", "gradient"
EXCEPTION, GRAPH, FINALIZER, HOOK, DEFAULT, PARTIAL, GENERATOR, CLOSURE, THREAD_LOCAL, THREAD = (
    *("exception", "autograd graph", "finalizer", "hook", "default value"),
    *("partial", "generator", "closure", "thread-local", "thread"),
)
CYCLE = "cycle"
UNUSED = "unused variable"
THROUGH = (
    *(CONTEXT, TENSOR_HOOK, EXCEPTION, GRADIENT, GRAPH, FINALIZER, HOOK, DEFAULT),
    *(PARTIAL, GENERATOR, CLOSURE, THREAD_LOCAL, THREAD, CYCLE, UNUSED),
)
"""Values of `Chain.through`: of several, the first is reported."""
_HOOKS = ("hooks", "hooks_with_kwargs", "hooks_always_called")
"""Last words of the attributes of modules and tensors that contain hooks."""
_RUNNING_THREADS = "threads that have not ended"
"""Name of the dict of all threads, a variable of the module `threading`."""
_THREAD_ATTRIBUTES = ("._target", ".__self__")
"""Attributes between a thread and the object whose method it runs, left out of a path."""
_PHRASES = {
    EXCEPTION: "through the traceback of an exception",
    GRADIENT: "through the graph of a gradient",
    GRAPH: "through an autograd graph",
    FINALIZER: "through the arguments of a finalizer",
    HOOK: "through a hook",
    DEFAULT: "through a default value",
    PARTIAL: "through a functools.partial",
    GENERATOR: "through a suspended generator",
    CLOSURE: "through a closure",
}
"""Description of the references below the holder."""


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
    """The fullest container on the path, as an expression or a phrase: `trainer.predictions`, `history in the closure
    of step()`, `the default value of crops in multi_crop()`. Without a container, the variable or attribute."""
    container: str
    """Type and number of items of the holder: "list of 46"; "" if the holder is not a container."""
    root: str
    """The variable's scope: "local of main() at train.py:31", "global of train.py"."""
    filename: str
    """File of the root; "" if the root has no file."""
    line: int
    """Line that the root's function was executing; 0 for globals."""
    is_direct: bool = False
    """Whether a variable refers to the tensor itself."""
    scope: str = ""
    """Scope of the variable: "global", "local", "class attribute"; "" if the path begins at none."""
    function: str = ""
    """Function of a local variable: "main"; "" for other scopes."""
    through: str = ""
    """References on the path besides attributes and containers: "ctx" (a reference cycle through the `ctx` of a
    `torch.autograd.Function`), "tensor hook" (a cycle through a hook of the tensor), "exception" (its traceback),
    "gradient" (the graph of a gradient), "autograd graph", "finalizer" (arguments of `weakref.finalize`), "hook",
    "default value", "partial", "generator" (or another suspended function), "closure", "thread-local", "thread" (one
    that has not ended), "cycle" (another reference cycle), "unused variable" (a large local variable that its function
    does not read any more; only object scans find it); of several, the first in this order. "" if nothing."""
    through_below: str = ""
    """References below the holder; a value of `through`."""
    containers: tuple[Container, ...] = ()
    """Containers on the path, outermost first."""
    store: Store = UNKNOWN
    """Line of user code that stores into the holder; read with the containers."""
    back_reference: str = ""
    """Attribute through which an object on the path is in a reference cycle: "Node.parent"; "" if none was found, or
    none was searched: only paths to several tensors, and those of garbage, are searched."""

    @property
    def through_graph(self) -> bool:
        """True if the path goes through an autograd graph below the holder."""
        return self.through_below in (GRADIENT, GRAPH)

    def __str__(self) -> str:
        holder = f"{self.holder} ({self.container})" if self.container else self.holder
        phrases = [self.root, _PHRASES.get(self.through_below, "")]
        return ", ".join([holder, *filter(None, phrases)])


@dataclass(frozen=True)
class _Candidate:
    """A possible holder on a path."""

    name: str
    contents: str
    size: int
    position: int


def chain_of(
    objects: Sequence[Any], container: Any = None, reads_containers: bool = True, deadline: float = math.inf
) -> Chain:
    """Return the referrer path of a root and the objects below it, each referred to by its predecessor.

    `container`: the holder. The items of a container are written without an index. Of another object, only the
    containers below it are read. Default, and if it is the dict of a module's submodules: the fullest container.
    `reads_containers`: whether to set `Chain.containers`, which takes up to a millisecond for each list, and
    `Chain.store`. `deadline`: end of the search for the store, by `time.thread_time`.
    """
    first_position, root_name, root, filename, line = _describe_root(objects)
    scope, function = _scope_of(objects[first_position], bool(root_name))
    nodes, links = collect_links(objects[first_position:], container)
    path = name = root_name
    function_name = access.function_of_context(type(nodes[0]))
    # Of the variable at which `name` begins, if it is not the root.
    place = f" of {function_name}" if function_name else ""
    candidates: list[_Candidate] = []
    containers: list[Container] = []
    is_written = any(node is container for node in nodes)
    is_part = is_written and not access.is_a(container, (*access.CONTAINERS, functools._lru_cache_wrapper))
    ways = [_way_of(link.edge, node) for link, node in zip(links, nodes, strict=False)]
    for position in range(1, len(links)):
        if ways[position] == GRAPH and _is_gradient(links[position - 1].edge, nodes[position - 1]):
            ways[position] = GRADIENT
    is_of_thread = _is_running_threads(objects)
    if is_of_thread:
        ways[0] = THREAD
    if root_name and links and not root:
        ways[0] = _cycle_way(links[0].edge, nodes[0]) or ways[0]
    for position, link in enumerate(links):
        how, text = link.edge.how, link.edge.text
        referrer = nodes[position]
        if is_of_thread and position == 0:
            text = _RUNNING_THREADS
        elif is_of_thread and text in _THREAD_ATTRIBUTES and position < 4:
            path = name = access.type_name(type(nodes[position + 1]))
            continue
        if how is How.ITEM:
            if not is_written or referrer is container:
                size = access.length(referrer) or 0
                contents = f"{container_type(referrer)} of {size}"
                candidates.append(_Candidate(name + place, contents, size, position))
            if reads_containers and not is_part:
                has_owner = position > 0 and links[position - 1].edge.how is How.ATTRIBUTE
                containers.append(read_container(referrer, nodes[position - 1] if has_owner else None))
            path, name = path + text, name + text
            if is_of_thread and position == 1:
                path = name = access.type_name(type(nodes[2]))
        elif how is How.ATTRIBUTE:
            path, name = path + text, name + text
        elif how is How.VARIABLE:
            if path:
                place = f" of {link.owner}{_in_traceback(name)}"
            path, name = f"{path} > {text} of {link.owner}" if path else text, text
        elif how is How.CLOSED_OVER:
            place = f" in the closure of {link.owner}{_as_hook(name)}"
            path, name = f"{path} > {text} closed over by {link.owner}", text
        elif how is How.DEFAULT:
            place = f" in {link.owner}"
            path, name = f"{path} > default value of {text} in {link.owner}", f"the default value of {text}"
        elif how is How.GRAPH and not {GRADIENT, GRAPH}.intersection(ways[:position]):
            candidates.append(_Candidate(name + place, "", 1, position))
            path += ".grad_fn"
    # The fullest container; the outermost of equally full containers.
    holder = max(candidates, key=lambda item: item.size, default=_Candidate(name + place, "", 0, len(links)))
    if is_of_thread and holder.position > 1:
        root = "of a thread that has not ended"
    if len(path) > _MAX_PATH:
        path = f"{path[: _MAX_PATH // 2]}...{path[-_MAX_PATH // 4 :]}"
    return Chain(
        *(path, holder.name, holder.contents, root, filename, line, len(links) == 1, scope, function),
        *(_first_way(ways), _first_way(ways[holder.position :]), tuple(containers)),
        _find_store(nodes, [link.edge for link in links], holder.position, deadline) if reads_containers else UNKNOWN,
    )


def _is_running_threads(objects: Sequence[Any]) -> bool:
    return type(objects[0]) is ModuleRoot and len(objects) > 2 and objects[1] is threading.__dict__.get("_active")


def _find_store(nodes: Sequence[Any], edges: Sequence[Edge], position: int, deadline: float) -> Store:
    """Return the line that stores into the holder. Bytecode that cannot be read costs the line, not the path."""
    try:
        return find_store(nodes, edges, position, deadline)
    except Exception as error:
        if not is_own_error(error):
            raise
        return UNKNOWN


def _in_traceback(name: str) -> str:
    """Return " in the traceback of error" for the name of a frame of an exception, else ""."""
    error, separator, _ = name.partition(".__traceback__")
    return f" in the traceback of {error}" if separator else ""


def _as_hook(name: str) -> str:
    """Return ", a hook of model[0]" if the function is an item of the hooks of a module or tensor, else ""."""
    owner, separator, attribute = name.rpartition("._")
    return f", a hook of {owner}" if separator and attribute.partition("[")[0].endswith(_HOOKS) else ""


def _first_way(ways: Sequence[str]) -> str:
    return next((way for way in THROUGH if way in ways), "")


def _scope_of(root: Any, is_class: bool) -> tuple[str, str]:
    """Return the scope of the variable at which a path begins, and the function of a local variable."""
    if type(root) is FrameRoot:
        return "local", root.function
    if type(root) is ModuleRoot:
        return "global", ""
    return ("class attribute" if is_class and access.is_class(root) else ""), ""


def _way_of(edge: Edge, referrer: Any) -> str:
    """Return the value of `Chain.through` for one reference, or ""."""
    cls = type(referrer)
    if edge.how is How.GRAPH:
        return GRAPH
    if edge.how is How.DEFAULT:
        return DEFAULT
    if edge.how is How.CLOSED_OVER:
        return CLOSURE
    if edge.how is How.VARIABLE:
        return GENERATOR if access.is_a(referrer, _GENERATORS) else EXCEPTION if cls is types.FrameType else ""
    if edge.how is How.ATTRIBUTE:
        if cls is functools.partial:
            return PARTIAL
        if edge.text == ".__traceback__":
            return EXCEPTION
        if cls is _FINALIZE_RECORD:
            return FINALIZER
        if edge.text.endswith(_HOOKS):
            return HOOK
        return THREAD_LOCAL if access.is_a(referrer, _thread_local) else ""
    return ""


def _is_gradient(edge: Edge, referrer: Any) -> bool:
    bases = access.mro(type(referrer))
    return edge == Edge(How.ATTRIBUTE, ".grad") and any(base.__name__ == "TensorBase" for base in bases)


def _cycle_way(edge: Edge, referrer: Any) -> str:
    """Return the value of `Chain.through` for the first reference of a path without a root, or ""."""
    if edge.how is not How.ATTRIBUTE:
        return ""
    if access.function_of_context(type(referrer)):
        return CONTEXT
    return TENSOR_HOOK if edge.text == "._backward_hooks" else ""


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
    if access.function_of_context(type(root)):
        return 0, "ctx", "", "", 0
    return 0, access.type_name(type(root)), "", "", 0


def _is_attribute_of_class(cls: type, next_objects: Sequence[Any]) -> bool:
    values = [id(value) for value in access.class_dict(cls).values()]
    return any(id(obj) in values for obj in next_objects)


def collect_links(objects: Sequence[Any], container: Any) -> tuple[list[Any], list[Link]]:
    """Return the objects of a path that an expression names, and the references between them.

    The references from `container` on are written without an index.
    """
    nodes, links = [objects[0]], []
    without_index = False
    position = 1
    while position < len(objects):
        parent, child = nodes[-1], objects[position]
        next_object = objects[position + 1] if position + 1 < len(objects) else None
        position += 1
        if next_object is not None and _is_internal(parent, child, next_object):
            continue
        if type(parent) is types.FunctionType and next_object is not None:
            default = find_default(parent, child, next_object)
            if default is not None:
                links.append(Link(default, _owner_name(parent)))
                nodes.append(next_object)
                position += 1
                continue
        without_index = without_index or (container is not None and parent is container)
        reference = find_edge(parent, child, without_index)
        if type(child) is dict and (reference.text in _MODULE_DICTS and is_module(parent)):
            # The keys of this dict are the module's attributes.
            attribute = _find_module_attribute(child, next_object)
            if child is container and attribute is not None:
                attribute, without_index = Edge(How.ATTRIBUTE, "[...]"), True
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
        if access.is_a(parent, _thread_local):
            return True
        return not access.has_exact_type(parent, (dict, ModuleRoot, FrameRoot)) and access.attributes(parent) is child
    if kind is tuple and type(parent) is types.FunctionType:
        return child is parent.__closure__
    return False


def _find_module_attribute(attributes: dict[Any, Any], child: Any) -> Edge | None:
    for name, value in access.items(attributes):
        if value is child and type(name) is str:
            return Edge(How.ATTRIBUTE, f".{name}" if name.isidentifier() else f"[{name}]")
    return None


def _owner_name(obj: Any) -> str:
    kind = type(obj)
    if kind is types.FunctionType:
        return f"{_strip_locals(obj.__qualname__)}()"
    if access.is_a(obj, _GENERATORS):
        return f"the suspended {_strip_locals(_qualname(obj))}()"
    if kind is types.FrameType:
        return f"{_strip_locals(getattr(obj.f_code, 'co_qualname', obj.f_code.co_name))}()"
    return access.type_name(kind)


def _qualname(generator: Any) -> str:
    name: str = type(generator).__dict__["__qualname__"].__get__(generator)
    return name


def _strip_locals(name: str) -> str:
    return name.rpartition("<locals>.")[2]
