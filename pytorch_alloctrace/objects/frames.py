"""The local variables of frames, read without a trace: `frame.f_locals` of a running function would, before Python
3.13, make a dict that keeps the values alive until the function returns, and write over one that the program has.

Before 3.12 they are read from memory. Between two instructions of ours another thread may return from its function, and
its variables are then gone: those of other threads are read by the recorder module, which lets nobody run meanwhile.
"""

from __future__ import annotations

import ctypes
import sys
import types
from collections.abc import Callable
from typing import Any

OPTIMIZED = 0x1
"""Flag of code whose variables are not in a dict: functions, not modules or class bodies."""
CELLS = types.CellType
Variables = list[tuple[str, object]]

_RECORDER = "pytorch_alloctrace._record"
_UNSET = object()

_POINTER = ctypes.sizeof(ctypes.c_void_p)
_F_BACK = object.__basicsize__
"""Offset of a frame object's first field."""


def variables(frame: types.FrameType) -> Variables:
    """The local variables of a frame that are set, cells opened. Empty for modules, and where they cannot be read."""
    if not frame.f_code.co_flags & OPTIMIZED:
        return []
    read = _reader()
    return [] if read is None else read(frame)


def can_read() -> bool:
    """Whether this Python's frames can be read."""
    return _reader() is not None


def can_read_other_threads() -> bool:
    """Return whether variables of other threads can be read: before Python 3.12, if the recorder is loaded."""
    return sys.version_info >= (3, 12) or _RECORDER in sys.modules


def _from_proxy(frame: types.FrameType) -> Variables:
    """From 3.13 on, f_locals is a view of the frame and copies nothing."""
    return list(frame.f_locals.items())


def _from_get_var(frame: types.FrameType) -> Variables:
    """3.12 has a function that reads one variable and makes no dict."""
    found = []
    code = frame.f_code
    for name in dict.fromkeys((*code.co_varnames, *code.co_cellvars, *code.co_freevars)):
        try:
            found.append((name, _get_var(frame, name.encode())))
        except NameError as error:  # not set
            if error.__traceback__ and error.__traceback__.tb_next:  # a signal handler of the program raised it
                raise
    return found


def _from_memory_311(frame: types.FrameType) -> Variables:
    """3.11: frame object -> internal frame, in which the variables follow nine words."""
    code = frame.f_code
    names = code.co_varnames
    names = (*names, *(name for name in code.co_cellvars if name not in names), *code.co_freevars)
    return _slots(frame, _F_BACK + _POINTER, 9 * _POINTER, names)


def _from_memory_310(frame: types.FrameType) -> Variables:
    """3.10: the variables lie before the value stack, to which the frame object points; cells have their own slots."""
    code = frame.f_code
    names = (*code.co_varnames, *code.co_cellvars, *code.co_freevars)
    return _slots(frame, _VALUE_STACK_310, -len(names) * _POINTER, names)


_VALUE_STACK_310 = _F_BACK + 6 * _POINTER
"""Behind the size of an object that varies: back, code, builtins, globals, locals, value stack."""


def _slots(frame: types.FrameType, field: int, first: int, names: tuple[str, ...]) -> Variables:
    """The variables in slots that begin `first` bytes from where a field of the frame object points."""
    recorder: Any = sys.modules.get(_RECORDER)
    if recorder is not None:
        values = recorder.read_slots(frame, field, first, len(names), _UNSET)
    else:
        start = _word(id(frame) + field) + first
        places = range(start, start + len(names) * _POINTER, _POINTER)
        values = [ctypes.py_object.from_address(at).value if _word(at) else _UNSET for at in places]
    found: Variables = []
    for name, value in zip(names, values, strict=True):
        if type(value) is CELLS:
            try:
                found.append((name, value.cell_contents))
            except ValueError as error:  # empty
                if error.__traceback__ and error.__traceback__.tb_next:  # a signal handler of the program raised it
                    raise
        elif value is not _UNSET:
            found.append((name, value))
    return found


def _word(address: int) -> int:
    return ctypes.c_void_p.from_address(address).value or 0


_get_var: Callable[[types.FrameType, bytes], object]
_known: list[Callable[[types.FrameType], Variables] | None] = []


def _reader() -> Callable[[types.FrameType], Variables] | None:
    if not _known:
        _known.append(_choose())
    return _known[0]


def _choose() -> Callable[[types.FrameType], Variables] | None:
    global _get_var
    version = sys.version_info[:2]
    if sys.implementation.name != "cpython" or not getattr(sys, "_is_gil_enabled", lambda: True)():
        return None
    if version >= (3, 13):
        return _from_proxy
    if version == (3, 12):
        _get_var = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, ctypes.c_char_p)(
            ("PyFrame_GetVarString", ctypes.pythonapi)
        )
        return _from_get_var
    # Debug builds have other objects. Memory that is known to be there is compared before any of it counts as one.
    if hasattr(sys, "gettotalrefcount") or hasattr(sys, "getobjects"):
        return None
    read = {(3, 10): _from_memory_310, (3, 11): _from_memory_311}.get(version)
    return read if read is not None and _reads(version) else None


def _reads(version: tuple[int, int]) -> bool:
    """Whether the variables of a frame of ours are where they are expected."""

    def probe(first: object, unset: bool) -> tuple[int, ...]:
        frame = sys._getframe()
        if unset:
            later = first  # noqa: F841  # a variable that is not set, the fourth
        if version == (3, 10):
            code = frame.f_code
            slots = len(code.co_varnames) + len(code.co_cellvars) + len(code.co_freevars)
            start = _word(id(frame) + _VALUE_STACK_310) - slots * _POINTER
        else:
            inner = _word(id(frame) + _F_BACK + _POINTER)
            start = inner + 9 * _POINTER
            # The fifth word, and the only pointer in it that we know.
            if _word(inner + 4 * _POINTER) != id(frame.f_code):
                start = 0
        words = [_word(start + slot * _POINTER) for slot in range(4)] if start else []
        found = (*words, id(frame))
        # A frame in a variable of its own is a cycle. It would keep all calls above it, the program's too, and what is
        # in their variables, until the collector comes.
        del frame
        return found

    marker = object()
    words = probe(marker, False)
    return words[:2] == (id(marker), id(False)) and words[4:] == words[2:3] and words[3] == 0
