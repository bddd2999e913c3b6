"""Where references begin: the global variables of modules, and the local ones of functions that run."""

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
"""Modules of the standard library in which what programs leave there waits: looked at with those of the program."""


@dataclass(frozen=True)
class ModuleRoot:
    """The global variables of a module."""

    name: str
    filename: str
    variables: dict[str, object]
    is_library: bool
    """Not the user's own code: installed, or of the standard library."""


@dataclass(frozen=True)
class FrameRoot:
    """The local variables of a call that runs."""

    function: str
    filename: str
    line: int
    thread: str
    """Name of its thread; "" in the main thread."""
    variables: tuple[tuple[str, object], ...]
    depth: int
    """Calls outside of it."""
    key: tuple[str, str, int]
    """File, function, and the identity of its frame."""
    is_library: bool
    """As in `ModuleRoot`."""


def modules() -> tuple[list[ModuleRoot], list[ModuleRoot], list[dict[str, object]]]:
    """Those of the program, and those of libraries; of this package's, which hold nothing of the program, the
    variables."""
    libraries = _library_folders()
    own: list[ModuleRoot] = []
    others: list[ModuleRoot] = []
    ours: list[dict[str, object]] = []
    for name, module in list(sys.modules.items()):
        if type(name) is not str or not access.is_a(module, types.ModuleType):
            continue
        namespace = access.module_dict(module)
        filename = namespace.get("__file__")
        if type(filename) is not str:
            filename = ""
        if filename.startswith(PACKAGE):
            ours.append(namespace)
            continue
        is_library = name != "__main__" and (not filename or filename.startswith(libraries))
        is_library = is_library and name not in WAITING
        root = ModuleRoot(name, filename, namespace, is_library)
        (others if is_library else own).append(root)
    own.sort(key=lambda root: (root.name in WAITING, root.name != "__main__"))
    return own, others, ours


def frames() -> list[FrameRoot | ModuleRoot]:
    """The calls that run, of all threads, outermost first, without this package's and finalizers'; those through
    which the last error went that nothing caught. Code that runs in a dict of its own (`runpy`, `exec`) counts as a
    module."""
    found: list[FrameRoot | ModuleRoot] = []
    main = threading.main_thread().ident
    for thread, innermost in sorted(_innermost().items(), key=lambda one: one[0] != main):
        if thread != threading.get_ident() and not can_read_other_threads():
            continue
        name = "" if thread == main else _thread_name(thread)
        found += _of_thread(innermost, name)
    return [*found, *_of_error()]


def _innermost() -> dict[int, types.FrameType]:
    """The innermost call of each thread; of this one, that of who asked who asked: a frame that is in a variable of its
    own is a cycle, which would keep all the others alive."""
    found = sys._current_frames()
    found[threading.get_ident()] = sys._getframe(2)
    return found


def _of_error() -> Iterator[FrameRoot]:
    """What is still there of a program that ends with a traceback."""
    error = getattr(sys, "last_value", None)
    if not access.is_a(error, BaseException):
        return
    entry = BaseException.__dict__["__traceback__"].__get__(error)
    depth = 0
    while entry is not None:
        frame = entry.tb_frame
        if frame.f_code.co_flags & OPTIMIZED and not frame.f_code.co_filename.startswith(PACKAGE):
            yield _frame_root(frame, entry.tb_lineno, "", depth)
        entry, depth = entry.tb_next, depth + 1


def _of_thread(innermost: types.FrameType, thread: str) -> Iterator[FrameRoot | ModuleRoot]:
    stack: list[types.FrameType] = []
    frame: types.FrameType | None = innermost
    while frame is not None:
        stack.append(frame)
        # What a finalizer and its calls hold may be garbage that is being collected. To ask such an object for its
        # attributes can make a dict that refers to it: it would survive until the next collection.
        if frame.f_code.co_name == "__del__":
            stack.clear()
        frame = frame.f_back
    stack.reverse()
    for depth, frame in enumerate(stack):
        code = frame.f_code
        # What the walk itself has in its variables is no holder.
        if code.co_filename.startswith(PACKAGE):
            continue
        if code.co_flags & OPTIMIZED:
            yield _frame_root(frame, frame.f_lineno or 0, thread, depth)
        elif type(frame.f_locals) is dict:
            yield ModuleRoot(code.co_name, code.co_filename, frame.f_locals, False)


def _frame_root(frame: types.FrameType, line: int, thread: str, depth: int) -> FrameRoot:
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
    )


def _thread_name(ident: int) -> str:
    thread = threading._active.get(ident)  # type: ignore[attr-defined]
    name = access.attribute(thread, "_name")
    return name if type(name) is str else f"thread {ident}"


@functools.cache
def _library_folders() -> tuple[str, ...]:
    return (*library_prefixes(), "<frozen")
