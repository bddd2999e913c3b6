"""Local variables of running functions that are not read any more, from the bytecode: what they hold could be freed."""

from __future__ import annotations

import dis
import sys
import types
from collections.abc import Collection, Iterator

from .holder_search import HolderSearch
from .inventory import Storage
from .roots import FrameRoot
from .walk import Walk, reference_pairs

_ENDS = ("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE")
_JUMPS = ("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "JUMP_ABSOLUTE")
"""Jumps that are always taken."""
_HANDLERS = ("PUSH_EXC_INFO", "SETUP_FINALLY", "SETUP_WITH")
"""First instruction of the code that handles an exception; before Python 3.11 the instruction that names it."""
_STATEMENT_ENDS = (
    "STORE_FAST",
    "STORE_NAME",
    "STORE_ATTR",
    "STORE_SUBSCR",
    "DELETE_",
    "POP_TOP",
    "FOR_ITER",
    *_JUMPS,
    *_ENDS,
)
"""Beginnings of the names of instructions that end a statement, or an expression within it."""
_INSPECTORS = frozenset(("locals", "vars", "eval", "exec", "_getframe", "breakpoint"))
"""Functions that may read any variable of their caller."""
_MAX_CODE_BYTES = 1 << 14
_MAX_HELD = 1024
"""Maximum number of objects below a variable whose references are counted."""


def is_unused(
    walk: Walk, holders: HolderSearch, number: int, keys: Collection[int], storages: dict[int, Storage]
) -> bool:
    """Return whether only variables of one function that it does not read any more lead to some storages.

    Args:
        walk: A complete walk.
        holders: Searches in this walk.
        number: Number in the walk of a tensor of these storages.
        keys: Keys of the storages.
        storages: The storage of each tensor, by its number.
    """
    root_number, *rest = walk.path_to(number)
    root = walk.objects[root_number]
    # The calls of a traceback are over: it keeps their variables.
    if type(root) is not FrameRoot or root.is_library or root.instruction < 0 or not rest:
        return False
    is_below = holders.below(rest[0])
    tensors = {tensor for tensor, storage in storages.items() if storage.key in keys}
    if any(
        child in tensors and parent != root_number and not is_below(parent)
        for parent, child in reference_pairs(walk.references)
    ):
        return False
    held_ids = {id(walk.objects[held]) for held in (rest[0], *tensors)}
    names = {name for name, value in root.variables if id(value) in held_ids}
    if not names or _may_read(root.code, root.instruction, names):
        return False
    below = {*rest, *(step for tensor in tensors for step in walk.path_to(tensor)[1:])}
    return len(below) <= _MAX_HELD and not any(_has_other_reference(walk, root, held) for held in below)


def _has_other_reference(walk: Walk, root: FrameRoot, number: int) -> bool:
    """Return whether something refers to an object besides the variables of a function, its parent, and the walk.

    Such as an object or container that is not on the way to a tensor, an iterator, or the arguments of a call.
    """
    obj = walk.objects[number]
    counted = sys.getrefcount(obj)
    probe = object()
    others = sys.getrefcount(probe) + 1  # those of this function, and of the walk
    variables = sum(value is obj for _, value in root.variables)
    is_child = walk.objects[walk.parents[number]] is not root
    return counted > others + 2 * variables + is_child  # `FrameRoot.variables` refers to the values, too


def _may_read(code: types.CodeType, offset: int, names: set[str]) -> bool:
    """Return whether code after the instruction at an offset may read one of some local variables."""
    shared = {*code.co_cellvars, *code.co_freevars}
    if names & shared or _INSPECTORS & {*code.co_names} or len(code.co_code) > _MAX_CODE_BYTES:
        return True
    instructions = list(dis.get_instructions(code))
    positions = {instruction.offset: position for position, instruction in enumerate(instructions)}
    begin = sum(instruction.offset <= offset for instruction in instructions)
    if names & _list_arguments(instructions[:begin]):
        return True
    starts = [begin, *_list_handlers(instructions, positions)]
    return any(_reads(instructions, positions, starts, name) for name in names)


def _list_arguments(instructions: list[dis.Instruction]) -> set[str]:
    """Return the variables that the last statement has read so far: the running call may have them as arguments."""
    names: set[str] = set()
    for instruction in reversed(instructions):
        if instruction.opname.startswith(_STATEMENT_ENDS):
            break
        value = instruction.argval
        names.update(name for name in (value if type(value) is tuple else (value,)) if type(name) is str)
    return names


def _list_handlers(instructions: list[dis.Instruction], positions: dict[int, int]) -> Iterator[int]:
    for position, instruction in enumerate(instructions):
        if instruction.opname in _HANDLERS:
            yield positions.get(instruction.argval, position)


def _reads(instructions: list[dis.Instruction], positions: dict[int, int], starts: list[int], name: str) -> bool:
    pending, visited = [*starts], set()
    while pending:
        position = pending.pop()
        if position in visited or position >= len(instructions):
            continue
        visited.add(position)
        instruction = instructions[position]
        operation, value = instruction.opname, instruction.argval
        values = value if type(value) is tuple else (value,)
        if "_FAST" in operation and name in values:
            # STORE_FAST_LOAD_FAST stores its first variable and reads its second.
            loaded = values[1:] if operation.startswith("STORE_FAST_LOAD") else values
            if "LOAD" in operation and name in loaded:
                return True
            continue  # stored or deleted
        if operation in _ENDS:
            continue
        if instruction.opcode in dis.hasjrel or instruction.opcode in dis.hasjabs:
            pending.append(positions.get(value, len(instructions)))
        if operation not in _JUMPS:
            pending.append(position + 1)
    return False
