"""Lines of the program that store into a holder, found in the bytecode of functions: no source is read, no code is run.

A variable or attribute is stored by an assignment, a container also by a call such as `append` or an assignment to an
item. Of several lines, those that also read the name (`total += loss`) come first, then those in a loop. A constructor
that sets the first value of an attribute stores nothing, nor does code that was compiled from text. A function
that keeps values, in its closure or its default values, is stored by the line that adds it to the holder, else by the
one that defines it; a hook by the line that registers it.
"""

from __future__ import annotations

import dis
import functools
import itertools
import math
import re
import sys
import time
import types
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from . import access
from .edges import Edge, How, is_tensor
from .roots import FrameRoot, ModuleRoot, is_library_file, modules

ASSIGNMENT, ADDITION, UPDATE, CALL = "assignment", "addition", "update", "call"
DEFINITION, REGISTRATION, CYCLE = "definition", "registration", "cycle"
"""Values of `Store.kind`. Additions (`total += loss`) and updates (`parts = torch.cat((parts, part))`) read what they
store."""
_ADDING_METHODS = frozenset(
    ("add", "append", "appendleft", "extend", "insert", "put", "put_nowait", "setdefault", "update")
)
_REGISTRATIONS = {
    "_forward_hooks": ("register_forward_hook",),
    "_forward_pre_hooks": ("register_forward_pre_hook",),
    "_backward_hooks": ("register_full_backward_hook", "register_backward_hook", "register_hook"),
    "_backward_pre_hooks": ("register_full_backward_pre_hook",),
    "_state_dict_hooks": ("register_state_dict_post_hook",),
}
"""By attribute with hooks of a module or tensor: the methods that add to it."""
_ACCESS = re.compile(r"(LOAD|STORE)_(?:FAST_CHECK|FAST_BORROW|FAST|DEREF|CLASSDEREF|GLOBAL|NAME|ATTR|METHOD)")
_ITEM_STORES = {"STORE_SUBSCR": -2, "STORE_SLICE": -3}
"""By instruction that assigns to items: position of the container on the stack."""
_COPIES = {"COPY": 0, "DUP_TOP": 1, "DUP_TOP_TWO": 2}
_ROTATIONS = {"ROT_TWO": 2, "ROT_THREE": 3, "ROT_FOUR": 4, "ROT_N": 0}
"""By instruction: the number of values at the top of the stack that it copies or rotates; 0: its argument."""
_PUSHES_NOTHING = ("DELETE_", "EXTENDED_ARG", "JUMP", "NOP", "NOT_TAKEN", "POP_", "STORE_")
"""Beginnings of the names of instructions after which the top of the stack is an older value."""
_CONSTRUCTORS = ("__init__", "__new__", "__post_init__")
_MAX_KEYS = 1024
"""Maximum number of keys of a dict that are searched for the one of a path."""
_TRACEBACK = Edge(How.ATTRIBUTE, ".__traceback__")
_QUEUE_MODULES = ("queue", "asyncio.queues")
_NOTEBOOK_CELL = "<ipython-input-"
"""Beginning of the file names of cells before ipykernel 6; later cells have the name of a temporary file."""
_MAX_CODE_BYTES = 1 << 16
"""Maximum length of the bytecode that is read for one holder: about 0.1 s."""
_MAX_DECODED = 64
"""Maximum number of functions whose accesses are kept for the next scan."""
_MAX_CODES = 1024
"""Maximum number of functions whose names are searched for one holder."""


class Store(NamedTuple):
    """Line of user code that stores into the holder of a tensor."""

    kind: str = ""
    """"assignment"; "addition" (`total += loss`); "update", which reads the holder in another way; "call" of a method,
    such as `append`; "definition" of a function that keeps values; "registration" of a hook; "cycle", an assignment
    that makes a reference cycle; "" if unknown."""
    filename: str = ""
    """File of the line."""
    function: str = ""
    """Function of the line."""
    line: int = 0
    """Number of the line; 0 if unknown."""


UNKNOWN = Store()


@dataclass
class _Access:
    """One access of a function to a variable or attribute."""

    name: str
    line: int
    is_in_loop: bool
    is_attribute: bool
    kind: str = ""
    """`ASSIGNMENT`, `ADDITION`, `UPDATE` or `CALL`; "" if the name is only read."""
    is_constant: bool = False
    """True if a constant is assigned, such as `total = 0`."""
    is_item_store: bool = False
    """True for a `CALL` that is an assignment to an item."""
    key: str = ""
    """Key of the item that it reads or assigns, if that is a constant text."""
    reads_error: bool = False
    """True if the line reads the variable of an `except` clause, or another that the function deletes."""
    is_nested: bool = False
    """True for an item of the variable or attribute, which a `CALL` fills: `groups[key].append(loss)`."""


def find_store(nodes: Sequence[Any], edges: Sequence[Edge], position: int, deadline: float = math.inf) -> Store:
    """Return the line of user code that stores into a holder; `UNKNOWN` if none is found.

    Args:
        nodes: Objects of a referrer path, the root first.
        edges: Reference of each object to the next.
        position: Index of the holder in `nodes`.
        deadline: End of the search, by `time.thread_time`.
    """
    hook = _find_hook(nodes, edges, deadline)
    if hook is not UNKNOWN:
        return hook
    # A traceback is stored with its exception: search the line that stores the exception.
    tracebacks = (number for number, edge in enumerate(edges) if edge == _TRACEBACK)
    position = min(position, next(tracebacks, position))
    caches = (node for node in nodes[: position + 1] if type(node) is functools._lru_cache_wrapper)
    cache = next(caches, None)
    if cache is not None:
        codes = [code for code in access.codes_of(cache) if _is_user_code(code)]
        return _store_at(DEFINITION, codes[-1], codes[-1].co_firstlineno) if codes else UNKNOWN
    keepers = (
        node
        for node, edge in zip(nodes[position:], edges[position:], strict=False)
        if type(node) is types.FunctionType and edge.how in (How.CLOSED_OVER, How.DEFAULT)
    )
    keeper = next(keepers, None)
    if keeper is None:
        filling = _find_filling(nodes, edges, position, deadline)
        # An attribute of a library's object, such as the state of an optimizer: the container that holds the object.
        position = _climb_items(edges, position)
        if filling is UNKNOWN and position and _is_library_class(type(nodes[position - 1])):
            outer = [number for number in range(1, position) if edges[number].how is How.ITEM]
            filling = _find_filling(nodes, edges, outer[-1], deadline) if outer else UNKNOWN
        if filling.kind in ("", UPDATE):
            entries = _find_filling_of_entries(nodes, edges, position, deadline)
            filling = filling if entries is UNKNOWN else entries
        return filling
    is_container = access.is_a(nodes[position], access.CONTAINERS)
    filling = _find_filling(nodes, edges, position, deadline) if is_container else UNKNOWN
    return _find_definition(keeper) if filling is UNKNOWN else filling


def _find_filling_of_entries(nodes: Sequence[Any], edges: Sequence[Edge], position: int, deadline: float) -> Store:
    """Return the line that assigns an attribute of an entry, if the entries of a container are objects of the program.

    Of several attributes on the path, the last one of an object of the program or of a module.
    """
    if not access.is_a(nodes[position], access.CONTAINERS):
        return UNKNOWN
    attributes = [
        number
        for number in range(position + 1, len(edges) + 1)
        if edges[number - 1].how is How.ATTRIBUTE
        and (not _is_library_class(type(nodes[number - 1])) or is_module(nodes[number - 1]))
    ]
    return _find_filling(nodes, edges, attributes[-1], deadline) if attributes else UNKNOWN


def find_cycle_store(owner: Any, attribute: str, deadline: float) -> Store:
    """Return the line of a method that assigns an attribute which makes a cycle; `UNKNOWN` if none is found.

    Unlike other stores, it may be in a constructor.
    """
    methods = [
        value
        for cls in access.mro(type(owner))
        if not _is_library_class(cls)
        for value in access.class_dict(cls).values()
    ]
    for code, name_access in _read_accesses(_list_codes(methods, None), (attribute,), deadline):
        if name_access.is_attribute and name_access.kind == ASSIGNMENT and not name_access.is_constant:
            return _store_at(CYCLE, code, name_access.line)
    return UNKNOWN


def _find_filling(nodes: Sequence[Any], edges: Sequence[Edge], position: int, deadline: float) -> Store:
    """Return the line that assigns a holder or, if it is a container, fills it."""
    # An entry of a container in a container is stored by the line that fills the outermost of them.
    end, position = position, _climb_items(edges, position)
    items = [edge.text for edge in edges[position : end + 1] if edge.how is How.ITEM]
    # A line that has the key of another item fills that one.
    key = next((text[2:-2] for text in items if text[1:2] in ("'", '"')), "") or _find_key(nodes, edges, end)
    search = functools.partial(_find_in, key=key, keeps_error=_TRACEBACK in edges, deadline=deadline)
    if position > 1 and edges[position - 1].how is How.ATTRIBUTE and _is_queue(nodes[position - 1]):
        position -= 1
    if not position:
        return UNKNOWN
    referrer, edge, holders = nodes[position - 1], edges[position - 1], nodes[position : position + 2]
    if edge.how is How.DEFAULT:
        codes = iter([referrer.__code__])
        return search(codes, edge.text, False, holders) or _find_definition(referrer)
    if edge.how is How.CLOSED_OVER:
        codes = _list_codes([referrer], nodes[0])
    elif edge.how is How.VARIABLE and type(referrer) is FrameRoot:
        codes = iter([referrer.code])
    elif edge.how is How.VARIABLE and type(referrer) is ModuleRoot:
        codes = _list_codes(referrer.variables.values(), nodes[0])
    elif edge.how is How.ATTRIBUTE and edge.text[:1] == ".":
        is_context = bool(access.function_of_context(type(referrer)))
        if is_context:  # made and filled in one line
            holders = [None]
        classes = [cls for cls in access.mro(type(referrer)) if is_context or not _is_library_class(cls)]
        methods = [value for cls in classes for value in access.class_dict(cls).values()]
        store = search(_list_codes(methods, nodes[0]), edge.text[1:], True, holders)
        if store is None and classes:
            codes = _list_codes(_list_makers(classes[0]), nodes[0])
            store = search(codes, edge.text[1:], True, holders)
        elif store is None and _is_added(edge.text[1:], referrer):
            store = search(_list_program_codes(edge.text[1:]), edge.text[1:], True, holders)
        return store or UNKNOWN
    else:
        return UNKNOWN
    return search(codes, edge.text, False, holders) or UNKNOWN


def _list_makers(cls: type) -> list[object]:
    """Return the functions of the module that defines a class which use its name, without methods."""
    module = sys.modules.get(access.module_of(cls))
    if not access.is_a(module, types.ModuleType) or module is None:
        return []
    functions = [value for value in list(access.module_dict(module).values()) if type(value) is types.FunctionType]
    name = access.class_name(cls)
    return [function for function in functions[:_MAX_CODES] if name in function.__code__.co_names]


def is_module(obj: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and access.is_a(obj, torch.nn.Module)


def _is_added(attribute: str, module: Any) -> bool:
    """Return whether a program has added an attribute to a module of a library: none of the library's own names."""
    if not is_module(module):
        return False
    variables = access.attributes(module) or {}
    own = (variables.get(name) for name in ("_parameters", "_buffers", "_modules"))
    if any(type(names) is dict and attribute in names for names in own):
        return False
    methods = (value for cls in access.mro(type(module)) for value in access.class_dict(cls).values())
    return not any(attribute in code.co_names for method in methods for code in access.codes_of(method))


def _list_program_codes(attribute: str) -> Iterator[types.CodeType]:
    """Yield the code of the program's functions and methods that uses an attribute."""
    for module in modules()[0]:
        for code in _list_codes(list(module.variables.values()), None):
            if attribute in code.co_names:
                yield code


def _climb_items(edges: Sequence[Edge], position: int) -> int:
    """Return the position of the outermost of the containers that contain each other, down to a position."""
    while position > 1 and edges[position - 1].how is How.ITEM:
        position -= 1
    return position


def _find_key(nodes: Sequence[Any], edges: Sequence[Edge], position: int) -> str:
    """Return the key of the next object of the path in a dict, if the path was written without it and it is a text."""
    is_hidden = position + 1 < len(nodes) and edges[position] == Edge(How.ITEM, "[...]")
    if not is_hidden or not access.is_a(nodes[position], dict) or dict.__len__(nodes[position]) > _MAX_KEYS:
        return ""
    return next(
        (key for key, value in access.items(nodes[position]) if value is nodes[position + 1] and type(key) is str), ""
    )


def _is_queue(obj: object) -> bool:
    """Return whether an object is a queue of the standard library, which the program fills through its methods."""
    return any(access.module_of(cls) in _QUEUE_MODULES for cls in access.mro(type(obj)))


def _find_hook(nodes: Sequence[Any], edges: Sequence[Edge], deadline: float) -> Store:
    """Return the line that registers the hook on a path, else the line that defines it."""
    methods: tuple[str, ...] = ()
    for node, edge in zip(nodes, edges, strict=False):
        function = node.__func__ if type(node) is types.MethodType else node
        if methods and type(function) is types.FunctionType:
            code = function.__code__
            callers = list(itertools.islice(_list_codes(function.__globals__.values(), nodes[0]), _MAX_CODES))
            # The function that defines the hook usually registers it.
            callers.sort(key=lambda caller: not any(const is code for const in caller.co_consts))
            for caller, name_access in _read_accesses(callers, methods, deadline):
                if name_access.is_attribute:
                    return _store_at(REGISTRATION, caller, name_access.line)
            return _find_definition(function)
        if edge.how is How.ATTRIBUTE:
            methods = _REGISTRATIONS.get(edge.text[1:], methods)
    return UNKNOWN


def _find_definition(function: types.FunctionType) -> Store:
    code = function.__code__
    return _store_at(DEFINITION, code, code.co_firstlineno) if _is_user_code(code) else UNKNOWN


def _find_in(
    codes: Iterable[types.CodeType],
    name: str,
    is_attribute: bool,
    holders: Sequence[object],
    *,
    key: str,
    keeps_error: bool,
    deadline: float,
) -> Store | None:
    """Return the line that stores into a variable or attribute.

    holders: its value, and the next object of the path. key: the key of the item on the path; "" if it is no text.
    keeps_error: whether the path leads through the traceback of an exception, which the line may name.
    """
    is_container, has_containers = (
        position < len(holders) and access.is_a(holders[position], access.CONTAINERS) for position in range(2)
    )
    best: tuple[tuple[bool, ...], Store] | None = None
    for code, name_access in _read_accesses(codes, (name,), deadline):
        if (
            name_access.is_attribute != is_attribute
            or not name_access.kind
            or (name_access.is_nested and not has_containers)
            or (key and name_access.key not in ("", key))
        ):
            continue
        if name_access.kind == CALL and is_tensor(holders[0]):  # `total.add(1)` returns another tensor
            continue
        adds = name_access.kind != ASSIGNMENT
        is_initial = is_attribute and code.co_name in _CONSTRUCTORS
        if not adds and (is_container or is_initial):  # made there, not filled; set to its first value
            continue
        rank = (
            not keeps_error or name_access.reads_error,
            *(adds and (name_access.kind == CALL) == is_container, adds),
            name_access.is_nested,
            # Items of a list that are assigned replace others.
            not name_access.is_item_store or access.is_a(holders[0], dict),
            *(not is_initial, name_access.is_in_loop, not name_access.is_constant),
        )
        if best is None or rank > best[0]:
            best = rank, _store_at(name_access.kind, code, name_access.line)
    return None if best is None else best[1]


def _store_at(kind: str, code: types.CodeType, line: int) -> Store:
    function = getattr(code, "co_qualname", code.co_name).rpartition("<locals>.")[2]
    return Store(kind, code.co_filename, function, line)


def _is_user_code(code: types.CodeType) -> bool:
    """Return whether code is in a file of the user or a notebook cell, not of a library or generated."""
    filename = code.co_filename
    return not is_library_file(filename) and (filename[0] != "<" or filename.startswith(_NOTEBOOK_CELL))


def _list_codes(values: Iterable[object], root: Any) -> Iterator[types.CodeType]:
    """Yield the code of a root's function, then that of functions and methods among the values, with nested code."""
    if type(root) is FrameRoot:
        yield from _list_nested(root.code)
    for value in list(values):
        is_class = access.is_class(value)
        if is_class and _is_library_class(value):  # type: ignore[arg-type]
            continue
        members = access.class_dict(value).values() if is_class else ()  # type: ignore[arg-type]
        for function in (value, *members):
            for code in access.codes_of(function):
                yield from _list_nested(code)


def _is_library_class(cls: type) -> bool:
    """Return whether a class is defined in a library or in C: none of its code is the user's."""
    name = access.class_dict(cls).get("__module__")
    module = sys.modules.get(name) if type(name) is str else None
    if type(module) is not types.ModuleType:
        return name is None  # a class of C code has none
    filename = access.module_dict(module).get("__file__")
    return name != "__main__" and type(filename) is str and is_library_file(filename)


def _list_nested(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield user code and the functions defined in it, outermost first."""
    pending = deque([code] if _is_user_code(code) else [])
    while pending:
        code = pending.popleft()
        yield code
        pending += [const for const in code.co_consts if type(const) is types.CodeType]


def _read_accesses(
    codes: Iterable[types.CodeType], names: tuple[str, ...], deadline: float
) -> Iterator[tuple[types.CodeType, _Access]]:
    """Yield the accesses of functions to variables and attributes of these names, in the order of the bytecode."""
    code_bytes = 0
    for count, code in enumerate(codes):
        if count == _MAX_CODES or time.thread_time() > deadline:
            return
        code_names = (code.co_names, code.co_varnames, code.co_cellvars, code.co_freevars)
        if not any(name in group for group in code_names for name in names) or not _is_user_code(code):
            continue
        if code_bytes + len(code.co_code) > _MAX_CODE_BYTES:
            continue
        code_bytes += len(code.co_code)
        for name_access in _decode(code):
            if name_access.name in names:
                yield code, name_access


_decoded: dict[int, tuple[weakref.ref[types.CodeType], list[_Access]]] = {}
"""Accesses of functions, by `id`: the hash of a function's code fails if a constant has none."""


def _decode(code: types.CodeType) -> list[_Access]:
    """Return the accesses of a function, in the order of its bytecode. Fast for functions of the previous scan."""
    reference, accesses = _decoded.get(id(code), (None, []))
    if reference is None or reference() is not code:
        if len(_decoded) >= _MAX_DECODED:
            _decoded.clear()
        accesses = _read_bytecode(code)
        _decoded[id(code)] = weakref.ref(code), accesses
    return accesses


def _read_bytecode(code: types.CodeType) -> list[_Access]:
    # Without constants: dis writes their `repr`, which may be long, or a method of the program.
    instructions = list(dis.get_instructions(code.replace(co_consts=(None,) * len(code.co_consts))))
    loop_ends: dict[int, int] = {}  # by offset of the first instruction
    for instruction in instructions:
        target = instruction.argval
        if "JUMP" in instruction.opname and type(target) is int and target < instruction.offset:
            loop_ends[target] = instruction.offset
    accesses: list[_Access] = []
    names_by_line: dict[int, set[tuple[str, bool]]] = {}  # names that the line has read, attributes with True
    stack = _Stack()
    read_keys: dict[int, str] = {}  # by line: the constant key of the last item that it has read
    previous_names = ("", "")
    key = ""  # the constant that the previous instruction has loaded
    line = loop_end = 0
    for instruction in instructions:
        opname = instruction.opname
        line_number = getattr(instruction, "line_number", instruction.starts_line)
        line = line_number if type(line_number) is int else line
        loop_end = max(loop_end, loop_ends.get(instruction.offset, 0))
        is_in_loop = instruction.offset <= loop_end
        is_attribute = "ATTR" in opname or "METHOD" in opname
        names_read = names_by_line.setdefault(line, set())
        key = "" if instruction.is_jump_target else key  # `d[key if key else "unknown"]`
        container = stack.peek(_ITEM_STORES.get(opname, 0))
        if is_attribute and opname.startswith("LOAD") and instruction.argval in _ADDING_METHODS:
            container = stack.peek(-1)
        if container is not None:
            container.kind, container.is_item_store = CALL, opname in _ITEM_STORES
            # `counts["step"] += 1` has loaded the key before it read the item.
            is_augmented = container.is_item_store and previous_names[1] in ("SWAP", "ROT_THREE")
            own_key = read_keys.get(line, "") if is_augmented else key
            container.key = own_key if container.is_item_store else container.key
        item_of = stack.peek(-2) if _is_subscript(instruction) else None
        stack.apply(instruction)
        names = instruction.argval if type(instruction.argval) is tuple else (instruction.argval,)
        for way, name in zip(_ACCESS.findall(opname), names, strict=False):
            if type(name) is not str:
                continue
            name_access = _Access(name, line, is_in_loop, is_attribute)
            accesses.append(name_access)
            if way == "LOAD":
                names_read.add((name, is_attribute))
                stack.replace_top(name_access)
                continue
            is_sum = any(previous.startswith(("BINARY_OP", "BINARY_ADD", "INPLACE_")) for previous in previous_names)
            is_read = (name, is_attribute) in names_read
            name_access.kind = (ADDITION if is_sum else UPDATE) if is_read else ASSIGNMENT
            name_access.is_constant = any(previous in ("LOAD_CONST", "LOAD_SMALL_INT") for previous in previous_names)
        if item_of is not None:
            read_keys[line] = key
            accesses.append(_Access(item_of.name, line, is_in_loop, item_of.is_attribute, key=key, is_nested=True))
            stack.replace_top(accesses[-1])
        constant = code.co_consts[instruction.arg or 0] if opname == "LOAD_CONST" else ""
        if opname not in _COPIES:
            key = constant if type(constant) is str else ""
        previous_names = previous_names[1], opname if not _is_subscript(instruction) else ""
    deleted = {instruction.argval for instruction in instructions if instruction.opname.startswith("DELETE_")}
    for name_access in accesses:
        name_access.reads_error = any(
            name in deleted for name, is_attribute in names_by_line[name_access.line] if not is_attribute
        )
    return accesses


def _is_subscript(instruction: dis.Instruction) -> bool:
    return instruction.opname == "BINARY_SUBSCR" or (instruction.opname == "BINARY_OP" and instruction.argrepr == "[]")


class _Stack:
    """The accesses whose values are on the stack of a function, None for other values.

    A missing value, after an instruction that is reached only by an exception, is None too.
    """

    def __init__(self) -> None:
        self._values: list[_Access | None] = []
        self._by_target: dict[int, list[_Access | None]] = {}
        """Stack at the targets of forward jumps, by offset."""

    def peek(self, position: int) -> _Access | None:
        """Return the value at a negative position, -1 at the top; None for position 0."""
        return self._values[position] if 0 < -position <= len(self._values) else None

    def replace_top(self, name_access: _Access) -> None:
        self._values[-1:] = [name_access]

    def apply(self, instruction: dis.Instruction) -> None:
        """Execute an instruction. The values that it pushes are None, except copies."""
        opname, argument = instruction.opname, instruction.arg or 0
        values = self._by_target.pop(instruction.offset, self._values)
        self._values = values
        if opname in _COPIES:
            count = _COPIES[opname] or argument
            copied = [self.peek(-position) for position in range(count, 0, -1)]
            values += copied[: 1 if opname == "COPY" else None]
        elif opname == "SWAP" or opname in _ROTATIONS:
            count = _ROTATIONS.get(opname, 0) or argument
            moved = [self.peek(-position) for position in range(count, 0, -1)]
            first, *middle, last = moved
            values[-count:] = [last, *middle, first] if opname == "SWAP" else [last, first, *middle]
        else:
            effect = dis.stack_effect(instruction.opcode, instruction.arg, jump=False)
            if "JUMP" in opname and type(instruction.argval) is int and instruction.argval > instruction.offset:
                jump_effect = dis.stack_effect(instruction.opcode, instruction.arg, jump=True)
                self._by_target[instruction.argval] = values[: len(values) + min(jump_effect, 0)]
            if effect < 0:
                del values[effect:]
            values += [None] * effect
            if values and not opname.startswith(_PUSHES_NOTHING):
                values[-1] = None
