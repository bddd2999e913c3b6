"""The local variables of frames, read without side effects.

Before Python 3.13, `frame.f_locals` of a running function creates a dict that keeps the values alive until the function
returns, and overwrites the dict that the program may have.

Before 3.12 the variables are read from memory. Another thread may return from its function between two instructions of
the read and free its variables, so the recorder module reads the frames of other threads without releasing the GIL.
"""

from __future__ import annotations

import ctypes
import sys
import types
from collections.abc import Callable
from typing import Any

OPTIMIZED = 0x1
"""Flag of the code of functions. Modules and class bodies have their variables in a dict."""
CELLS = types.CellType
Variables = list[tuple[str, object]]

_RECORDER = "pytorch_alloctrace._record"
_UNSET = object()

_POINTER = ctypes.sizeof(ctypes.c_void_p)
_F_BACK = object.__basicsize__
"""Offset of a frame object's first field."""


def variables(frame: types.FrameType) -> Variables:
    """Return the local variables of a function's frame that are set. Cells are replaced by their contents."""
    if not frame.f_code.co_flags & OPTIMIZED:
        return []
    read = _select_reader()
    return [] if read is None else read(frame)


def can_read_frames() -> bool:
    return _select_reader() is not None


def can_read_other_threads() -> bool:
    """Return whether frames of other threads can be read. Before Python 3.12 this needs the recorder module."""
    return sys.version_info >= (3, 12) or _RECORDER in sys.modules


def _from_proxy(frame: types.FrameType) -> Variables:
    """Read f_locals, a view of the frame from 3.13 on."""
    return list(frame.f_locals.items())


def _from_get_var(frame: types.FrameType) -> Variables:
    """Read with PyFrame_GetVarString (3.12), which creates no dict."""
    values = []
    code = frame.f_code
    for name in dict.fromkeys((*code.co_varnames, *code.co_cellvars, *code.co_freevars)):
        try:
            values.append((name, _get_var(frame, name.encode())))
        except NameError as error:
            if error.__traceback__ and error.__traceback__.tb_next:  # a signal handler of the program raised it
                raise
    return values


def _from_memory_311(frame: types.FrameType) -> Variables:
    """Read the internal frame of 3.11, where the variables follow nine words."""
    code = frame.f_code
    names = code.co_varnames
    names = (*names, *(name for name in code.co_cellvars if name not in names), *code.co_freevars)
    return _read_slots(frame, _F_BACK + _POINTER, 9 * _POINTER, names)


def _from_memory_310(frame: types.FrameType) -> Variables:
    """Read the frame object of 3.10: variables and cells are just below the value stack, to which it points."""
    code = frame.f_code
    names = (*code.co_varnames, *code.co_cellvars, *code.co_freevars)
    return _read_slots(frame, _VALUE_STACK_310, -len(names) * _POINTER, names)


_VALUE_STACK_310 = _F_BACK + 6 * _POINTER
"""Offset of the value stack pointer: back, code, builtins, globals and locals precede it."""


def _read_slots(frame: types.FrameType, field: int, first: int, names: tuple[str, ...]) -> Variables:
    """Read the slots that begin `first` bytes from the target of the pointer at offset `field` of a frame object."""
    recorder: Any = sys.modules.get(_RECORDER)
    if recorder is not None:
        values = recorder.read_slots(frame, field, first, len(names), _UNSET)
    else:
        start = _read_word(id(frame) + field) + first
        slot_addresses = range(start, start + len(names) * _POINTER, _POINTER)
        values = [
            ctypes.py_object.from_address(address).value if _read_word(address) else _UNSET
            for address in slot_addresses
        ]
    variable_values: Variables = []
    for name, value in zip(names, values, strict=True):
        if type(value) is CELLS:
            try:
                variable_values.append((name, value.cell_contents))
            except ValueError as error:  # empty
                if error.__traceback__ and error.__traceback__.tb_next:  # a signal handler of the program raised it
                    raise
        elif value is not _UNSET:
            variable_values.append((name, value))
    return variable_values


def _read_word(address: int) -> int:
    return ctypes.c_void_p.from_address(address).value or 0


_get_var: Callable[[types.FrameType, bytes], object]
_cached_reader: list[Callable[[types.FrameType], Variables] | None] = []


def _select_reader() -> Callable[[types.FrameType], Variables] | None:
    if not _cached_reader:
        _cached_reader.append(_choose_reader())
    return _cached_reader[0]


def _choose_reader() -> Callable[[types.FrameType], Variables] | None:
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
    # Objects of debug builds have another layout.
    if hasattr(sys, "gettotalrefcount") or hasattr(sys, "getobjects"):
        return None
    reader = {(3, 10): _from_memory_310, (3, 11): _from_memory_311}.get(version)
    return reader if reader is not None and _is_layout_expected(version) else None


def _is_layout_expected(version: tuple[int, int]) -> bool:
    """Return whether the variables of a probe's frame are at the expected addresses. Uses no word as an object."""

    def probe(first: object, unset: bool) -> tuple[int, ...]:
        frame = sys._getframe()
        if unset:
            later = first  # noqa: F841  # the fourth variable, never set
        if version == (3, 10):
            code = frame.f_code
            slots = len(code.co_varnames) + len(code.co_cellvars) + len(code.co_freevars)
            start = _read_word(id(frame) + _VALUE_STACK_310) - slots * _POINTER
        else:
            inner = _read_word(id(frame) + _F_BACK + _POINTER)
            start = inner + 9 * _POINTER
            # The fifth word must be the code object: the only pointer of the internal frame with a known value.
            if _read_word(inner + 4 * _POINTER) != id(frame.f_code):
                start = 0
        observed_words = [_read_word(start + slot * _POINTER) for slot in range(4)] if start else []
        observed = (*observed_words, id(frame))
        # A frame in a variable of its own is a cycle. It would keep the frames and variables of all callers, including
        # the program's, alive until the next collection.
        del frame
        return observed

    marker = object()
    words = probe(marker, False)
    return words[:2] == (id(marker), id(False)) and words[4:] == words[2:3] and words[3] == 0
