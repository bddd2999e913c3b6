"""The roots of a walk: the global variables of modules and the local variables of running functions."""

from __future__ import annotations

import functools
import sys
import threading
import types
from collections.abc import Iterator
from dataclasses import dataclass

from . import access
from .frames import OPTIMIZED, can_read_other_threads, variables
from .libraries import PACKAGE, library_prefixes

WAITING = ("weakref", "threading", "logging", "queue", "concurrent.futures.thread", "asyncio.tasks", "asyncio.events")
"""Modules of the standard library that hold objects of the program. Visited like modules of the program."""


@dataclass(eq=False, slots=True)  # not frozen: a scan creates thousands, and frozen ones take four times as long
class ModuleRoot:
    name: str
    filename: str
    variables: dict[str, object]
    is_library: bool


@dataclass(frozen=True)
class FrameRoot:
    function: str
    filename: str
    line: int
    thread: str
    """Name of the thread; "" for the main thread."""
    variables: tuple[tuple[str, object], ...]
    depth: int
    """Number of calls around this one in its thread."""
    key: tuple[str, str, int]
    """File, function and id of the frame."""
    is_library: bool
    code: types.CodeType
    """Code of the function."""
    instruction: int
    """Offset in the code of the instruction that it was executing; -1 for a call of a traceback, which is over."""


@dataclass(frozen=True)
class Imported:
    """The imported modules, without a reference to any of them."""

    ids: list[int]
    """`id` of each key and value of `sys.modules`."""
    program: list[int]
    """Positions of the program's modules in `sys.modules`, `__main__` first, those in `WAITING` last."""
    library: list[int]
    """Positions of the other modules."""
    library_names: set[str]


_latest = [Imported([], [], [], set())]


def modules() -> tuple[list[ModuleRoot], set[str], list[int]]:
    """Return the program's modules, the names of those of libraries, and the `id` of the variables of other modules.

    Others are those of libraries and of this package. Modules are classified only if they are not those of the
    previous call: a program imports thousands.
    """
    items = list(sys.modules.items())
    ids = [id(obj) for item in items for obj in item]
    imported = _latest[0]
    if ids != imported.ids:
        imported = _latest[0] = _classify(items, ids)
    # Read anew: a module that has the address of a former one has another dict.
    others = [items[position][1] for position in imported.library]
    variables = [id(access.module_dict(module)) for module in others if access.is_a(module, types.ModuleType)]
    roots = [_create_module_root(*items[position], False) for position in imported.program]
    return roots, imported.library_names, variables


def library_roots(names: set[str]) -> list[ModuleRoot]:
    """Return the modules of libraries with these names."""
    return [
        _create_module_root(name, module, True)
        for name, module in list(sys.modules.items())
        if type(name) is str and name in names and access.is_a(module, types.ModuleType)
    ]


def _classify(items: list[tuple[str, types.ModuleType]], ids: list[int]) -> Imported:
    program: list[int] = []
    library: list[int] = []
    library_names: set[str] = set()
    for position, (name, module) in enumerate(items):
        if type(name) is not str or not access.is_a(module, types.ModuleType):
            continue
        filename = _filename_of(access.module_dict(module))
        is_own = filename.startswith(PACKAGE)
        if not is_own and (name == "__main__" or name in WAITING or not is_library_file(filename)):
            program.append(position)
            continue
        library.append(position)
        if not is_own:
            library_names.add(name)
    program.sort(key=lambda position: (items[position][0] in WAITING, items[position][0] != "__main__"))
    return Imported(ids, program, library, library_names)


def _create_module_root(name: str, module: types.ModuleType, is_library: bool) -> ModuleRoot:
    variables = access.module_dict(module)
    return ModuleRoot(name, _filename_of(variables), variables, is_library)


def _filename_of(variables: dict[str, object]) -> str:
    filename = variables.get("__file__")
    return filename if type(filename) is str else ""


def frames() -> list[FrameRoot | ModuleRoot]:
    """Return the running calls of all threads, outermost first, then the calls of the last uncaught error's traceback.

    Calls of this package and of finalizers are left out. Code that runs in a dict (`runpy`, `exec`) is a module.
    """
    roots: list[FrameRoot | ModuleRoot] = []
    main = threading.main_thread().ident
    for thread, innermost in sorted(_innermost_frames().items(), key=lambda item: item[0] != main):
        if thread != threading.get_ident() and not can_read_other_threads():
            continue
        name = "" if thread == main else _thread_name(thread)
        roots += _read_thread(innermost, name)
    return [*roots, *_read_last_error()]


def _innermost_frames() -> dict[int, types.FrameType]:
    """Return the innermost frame of each thread; of this thread, the caller of `frames`.

    A frame in one of its own variables is a cycle: it would keep the frames of all callers alive.
    """
    innermost = sys._current_frames()
    innermost[threading.get_ident()] = sys._getframe(2)
    return innermost


def _read_last_error() -> Iterator[FrameRoot]:
    """Return the calls of the last uncaught error: their variables are alive when a program ends with a traceback."""
    error = getattr(sys, "last_value", None)
    if not access.is_a(error, BaseException):
        return
    entry = BaseException.__dict__["__traceback__"].__get__(error)
    depth = 0
    while entry is not None:
        frame = entry.tb_frame
        if frame.f_code.co_flags & OPTIMIZED and not frame.f_code.co_filename.startswith(PACKAGE):
            yield _create_frame_root(frame, entry.tb_lineno, "", depth, -1)
        entry, depth = entry.tb_next, depth + 1


def _read_thread(innermost: types.FrameType, thread: str) -> Iterator[FrameRoot | ModuleRoot]:
    stack: list[types.FrameType] = []
    frame: types.FrameType | None = innermost
    while frame is not None:
        stack.append(frame)
        # Variables of finalizers may be garbage that is being collected. Reading the attributes of such an object can
        # create a dict that refers to it, and the object would survive until the next collection.
        if frame.f_code.co_name == "__del__":
            stack.clear()
        frame = frame.f_back
    stack.reverse()
    for depth, frame in enumerate(stack):
        code = frame.f_code
        # Variables of the walk itself are not holders.
        if code.co_filename.startswith(PACKAGE):
            continue
        if code.co_flags & OPTIMIZED:
            yield _create_frame_root(frame, frame.f_lineno or 0, thread, depth, frame.f_lasti)
        elif type(frame.f_locals) is dict:
            yield ModuleRoot(code.co_name, code.co_filename, frame.f_locals, False)


def _create_frame_root(frame: types.FrameType, line: int, thread: str, depth: int, instruction: int) -> FrameRoot:
    code, libraries = frame.f_code, _library_folders()
    name = getattr(code, "co_qualname", code.co_name).rpartition("<locals>.")[2]
    key = (code.co_filename, code.co_name, id(frame))
    return FrameRoot(
        name,
        code.co_filename,
        line,
        thread,
        tuple(variables(frame)),
        depth,
        key,
        code.co_filename.startswith(libraries),
        code,
        instruction,
    )


def _thread_name(ident: int) -> str:
    thread = threading._active.get(ident)  # type: ignore[attr-defined]
    name = access.attribute(thread, "_name")
    return name if type(name) is str else f"thread {ident}"


@functools.cache
def is_library_file(filename: str) -> bool:
    return not filename or filename.startswith(_library_folders())


@functools.cache
def _library_folders() -> tuple[str, ...]:
    return (*library_prefixes(), "<frozen")
