"""Lines of the program that store into a holder, found in the bytecode of functions: no source is read, no code is run.

A variable or attribute is stored by an assignment, a container also by a call such as `append` or an assignment to an
item. Of several lines, those that also read the name (`total += loss`) come first, then those in a loop. A function
that keeps values, in its closure or its default values, is stored by the line that defines it; a hook by the line that
registers it.
"""

from __future__ import annotations

import dis
import re
import types
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from . import access
from .edges import Edge, How
from .roots import FrameRoot, ModuleRoot, is_library_file

ASSIGNMENT, ADDITION, UPDATE, CALL = "assignment", "addition", "update", "call"
DEFINITION, REGISTRATION = "definition", "registration"
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
_MAX_CODE_BYTES = 1 << 15
"""Maximum length of the bytecode of a function that is searched."""
_MAX_CODES = 64
"""Maximum number of functions searched for one holder."""
_MAX_WRAPPERS = 8
"""Maximum number of decorators of a function that are followed."""


class Store(NamedTuple):
    """Line of user code that stores into the holder of a tensor."""

    kind: str = ""
    """"assignment"; "addition" (`total += loss`); "update", which reads the holder in another way; "call" of a method,
    such as `append`; "definition" of a function that keeps values; "registration" of a hook; "" if unknown."""
    filename: str = ""
    """File of the line."""
    function: str = ""
    """Function of the line."""
    line: int = 0
    """Number of the line; 0 if unknown."""


UNKNOWN = Store()


@dataclass(frozen=True)
class _Access:
    """One access of a function to a variable or attribute."""

    name: str
    line: int
    kind: str
    """`ASSIGNMENT`, `ADDITION`, `UPDATE` or `CALL`; "" if the name is only read."""
    is_in_loop: bool
    is_attribute: bool
    is_constant: bool
    """True if a constant is assigned, such as `total = 0`."""


def find_store(nodes: Sequence[Any], edges: Sequence[Edge], position: int) -> Store:
    """Return the line of user code that stores into a holder; `UNKNOWN` if none is found.

    Args:
        nodes: Objects of a referrer path, the root first.
        edges: Reference of each object to the next.
        position: Index of the holder in `nodes`.
    """
    hook = _find_hook(nodes, edges)
    if hook is not UNKNOWN:
        return hook
    for node, edge in zip(nodes[position:], edges[position:], strict=False):
        if type(node) is types.FunctionType and edge.how in (How.CLOSED_OVER, How.DEFAULT):
            return _find_definition(node)
    # An entry of a container in a container is stored by the line that fills the outermost of them.
    while position > 1 and edges[position - 1].how is How.ITEM:
        position -= 1
    if not position:
        return UNKNOWN
    referrer, edge, holder = nodes[position - 1], edges[position - 1], nodes[position]
    is_container = any(access.is_a(holder, base) for base in (*access.DICTS, *access.SEQUENCES, *access.SETS))
    if edge.how is How.DEFAULT:
        return _find_in([referrer.__code__], edge.text, False, is_container) or _find_definition(referrer)
    if edge.how is How.CLOSED_OVER:
        return _find_in(_list_codes([referrer], nodes[0]), edge.text, False, is_container) or UNKNOWN
    if edge.how is How.VARIABLE and type(referrer) is FrameRoot:
        return _find_in([referrer.code], edge.text, False, is_container) or UNKNOWN
    if edge.how is How.VARIABLE and type(referrer) is ModuleRoot:
        codes = _list_codes(referrer.variables.values(), nodes[0])
        return _find_in(codes, edge.text, False, is_container) or UNKNOWN
    if edge.how is How.ATTRIBUTE and edge.text[:1] == ".":
        methods = [value for cls in access.mro(type(referrer)) for value in access.class_dict(cls).values()]
        return _find_in(_list_codes(methods, nodes[0]), edge.text[1:], True, is_container) or UNKNOWN
    return UNKNOWN


def _find_hook(nodes: Sequence[Any], edges: Sequence[Edge]) -> Store:
    """Return the line that registers the hook on a path, else the line that defines it."""
    methods: tuple[str, ...] = ()
    for node, edge in zip(nodes, edges, strict=False):
        if edge.how is How.ATTRIBUTE:
            methods = _REGISTRATIONS.get(edge.text[1:], methods)
        elif methods and type(node) is types.FunctionType:
            code = node.__code__
            callers = [*_list_codes(node.__globals__.values(), nodes[0])]
            # The function that defines the hook usually registers it.
            for caller in sorted(callers, key=lambda caller: not any(const is code for const in caller.co_consts)):
                for found in _read_accesses(caller):
                    if found.is_attribute and found.name in methods:
                        return _store_at(REGISTRATION, caller, found.line)
            return _find_definition(node)
    return UNKNOWN


def _find_definition(function: types.FunctionType) -> Store:
    code = function.__code__
    return UNKNOWN if is_library_file(code.co_filename) else _store_at(DEFINITION, code, code.co_firstlineno)


def _find_in(codes: Iterable[types.CodeType], name: str, is_attribute: bool, is_container: bool) -> Store | None:
    best: tuple[tuple[bool, ...], Store] | None = None
    for code in codes:
        if is_library_file(code.co_filename):
            continue
        for found in _read_accesses(code):
            if found.name != name or found.is_attribute != is_attribute or not found.kind:
                continue
            adds = found.kind != ASSIGNMENT
            if is_container and not adds:  # made there, not filled
                continue
            rank = adds and (found.kind == CALL) == is_container, adds, found.is_in_loop, not found.is_constant
            if best is None or rank > best[0]:
                best = rank, _store_at(found.kind, code, found.line)
    return None if best is None else best[1]


def _store_at(kind: str, code: types.CodeType, line: int) -> Store:
    function = getattr(code, "co_qualname", code.co_name).rpartition("<locals>.")[2]
    return Store(kind, code.co_filename, function, line)


def _list_codes(values: Iterable[object], root: Any) -> Iterator[types.CodeType]:
    """Yield the code of a root's function, then that of functions and methods among the values, with nested code."""
    pending: list[types.CodeType] = [root.code] if type(root) is FrameRoot else []
    for value in list(values):
        pending += _codes_of(value)
        if access.is_class(value):
            for member in access.class_dict(value).values():  # type: ignore[arg-type]
                pending += _codes_of(member)
    count = 0
    while pending and count < _MAX_CODES:
        code = pending.pop(0)
        if not is_library_file(code.co_filename):
            yield code
            count += 1
            pending += [const for const in code.co_consts if type(const) is types.CodeType]


def _codes_of(value: object) -> list[types.CodeType]:
    if type(value) in (staticmethod, classmethod):
        value = value.__func__  # type: ignore[attr-defined]
    elif type(value) is property:
        value = value.fget
    codes: list[types.CodeType] = []
    while type(value) is types.FunctionType and len(codes) < _MAX_WRAPPERS:
        codes.append(value.__code__)
        value = (access.attributes(value) or {}).get("__wrapped__")  # by a decorator, such as torch.no_grad()
    return codes


_cache: weakref.WeakKeyDictionary[types.CodeType, tuple[_Access, ...]] = weakref.WeakKeyDictionary()


def _read_accesses(code: types.CodeType) -> tuple[_Access, ...]:
    """Return the accesses of a function to variables and attributes, in the order of its bytecode."""
    accesses = _cache.get(code)
    if accesses is None:
        accesses = _cache[code] = tuple(_decode(code)) if len(code.co_code) <= _MAX_CODE_BYTES else ()
    return accesses


def _decode(code: types.CodeType) -> Iterator[_Access]:
    instructions = list(dis.get_instructions(code))
    lines = _lines_of(instructions)
    loops = [
        (instruction.argval, instruction.offset)
        for instruction in instructions
        if "JUMP" in instruction.opname and type(instruction.argval) is int and instruction.argval < instruction.offset
    ]
    statements: dict[int, set[tuple[str, bool]]] = {}
    subscript_lines = {lines[number] for number, item in enumerate(instructions) if item.opname == "STORE_SUBSCR"}
    for number, instruction in enumerate(instructions):
        following = instructions[number + 1].opname if number + 1 < len(instructions) else ""
        following_name = instructions[number + 1].argval if number + 1 < len(instructions) else None
        previous_names = [previous.opname for previous in instructions[max(number - 2, 0) : number]]
        line = lines[number]
        is_attribute = "ATTR" in instruction.opname or "METHOD" in instruction.opname
        names = instruction.argval if type(instruction.argval) is tuple else (instruction.argval,)
        for way, name in zip(_ACCESS.findall(instruction.opname), names, strict=False):
            if type(name) is not str:
                continue
            kind = ""
            read_names = statements.setdefault(line, set())
            if way == "STORE":
                is_sum = any(
                    previous.startswith(("BINARY_OP", "BINARY_ADD", "INPLACE_")) for previous in previous_names
                )
                kind = ASSIGNMENT if (name, is_attribute) not in read_names else ADDITION if is_sum else UPDATE
            else:
                read_names.add((name, is_attribute))
                is_method = "ATTR" in following or "METHOD" in following
                if (is_method and following_name in _ADDING_METHODS) or (
                    line in subscript_lines and not is_method and not following.startswith("CALL")
                ):
                    kind = CALL
            is_in_loop = any(begin <= instruction.offset <= end for begin, end in loops)
            is_constant = any(previous in ("LOAD_CONST", "LOAD_SMALL_INT") for previous in previous_names)
            yield _Access(name, line, kind, is_in_loop, is_attribute, way == "STORE" and is_constant)


def _lines_of(instructions: Sequence[dis.Instruction]) -> list[int]:
    """Return the line of each instruction."""
    lines, line = [], 0
    for instruction in instructions:
        number = getattr(instruction, "line_number", instruction.starts_line)
        line = number if type(number) is int else line
        lines.append(line)
    return lines
