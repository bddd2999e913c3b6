"""Errors of the recorder, told apart from those that the program raises while the recorder's Python code runs.

A signal handler of the program runs wherever the main thread is, and may raise there: KeyboardInterrupt, or the
exception of a time limit. Another thread may raise an exception on the main thread (PyThreadState_SetAsyncExc). The
program must get them; an error of the recorder it must not get.
"""

from __future__ import annotations

import builtins
import functools
import signal
import types

_OWN_TYPES = frozenset(
    thing
    for thing in vars(builtins).values()
    if isinstance(thing, type) and issubclass(thing, Exception) and not issubclass(thing, (OSError, Warning))
) - {Exception}
"""Exact types that reading objects raises. A subclass, or TimeoutError, is an exception that a program chose."""


def is_own_error(error: BaseException) -> bool:
    """Return whether the recorder raised the error, in a failed scan for instance; the program must get all others."""
    if isinstance(error, (MemoryError, RecursionError)):
        return True
    return type(error) in _OWN_TYPES and not is_from_signal_handler(error)


def is_from_signal_handler(error: BaseException) -> bool:
    """Return whether the error passed through a Python function that is a signal handler of the program."""
    handlers = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()}
    entry = error.__traceback__
    while entry is not None:
        if entry.tb_frame.f_code in handlers:
            return True
        entry = entry.tb_next
    return False


def _code_of(handler: object) -> types.CodeType | None:
    """Return the code of a handler, None for one that is not written in Python. Runs no code of the program."""
    while type(handler) in (functools.partial, types.MethodType):
        handler = handler.func if type(handler) is functools.partial else handler.__func__  # type: ignore[attr-defined]
    if type(handler) is not types.FunctionType:
        handler = type.__dict__["__dict__"].__get__(type(handler)).get("__call__")
    return handler.__code__ if type(handler) is types.FunctionType else None
