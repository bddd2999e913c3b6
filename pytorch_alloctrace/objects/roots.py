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


def modules() -> tuple[list[ModuleRoot], list[ModuleRoot], list[dict[str, object]]]:
    """Return the modules of the program, those of libraries, and the variables of this package's modules."""
    program_modules: list[ModuleRoot] = []
    library_modules: list[ModuleRoot] = []
    own_variables: list[dict[str, object]] = []
    for name, module in list(sys.modules.items()):
        if type(name) is not str or not access.is_a(module, types.ModuleType):
            continue
        namespace = access.module_dict(module)
        filename = namespace.get("__file__")
        if type(filename) is not str:
            filename = ""
        if _is_own_file(filename):
            own_variables.append(namespace)
            continue
        is_library = name != "__main__" and is_library_file(filename) and name not in WAITING
        root = ModuleRoot(name, filename, namespace, is_library)
        (library_modules if is_library else program_modules).append(root)
    program_modules.sort(key=lambda root: (root.name in WAITING, root.name != "__main__"))
    return program_modules, library_modules, own_variables


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
            yield _create_frame_root(frame, entry.tb_lineno, "", depth)
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
            yield _create_frame_root(frame, frame.f_lineno or 0, thread, depth)
        elif type(frame.f_locals) is dict:
            yield ModuleRoot(code.co_name, code.co_filename, frame.f_locals, False)


def _create_frame_root(frame: types.FrameType, line: int, thread: str, depth: int) -> FrameRoot:
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
    )


def _thread_name(ident: int) -> str:
    thread = threading._active.get(ident)  # type: ignore[attr-defined]
    name = access.attribute(thread, "_name")
    return name if type(name) is str else f"thread {ident}"


@functools.cache
def _is_own_file(filename: str) -> bool:
    return filename.startswith(PACKAGE)


@functools.cache
def is_library_file(filename: str) -> bool:
    return not filename or filename.startswith(_library_folders())


@functools.cache
def _library_folders() -> tuple[str, ...]:
    return (*library_prefixes(), "<frozen")
