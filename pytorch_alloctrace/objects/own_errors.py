"""Distinction between the recorder's own errors and errors of the program raised inside recorder code.

A signal handler of the program runs wherever the main thread is, and may raise there: KeyboardInterrupt, or the
exception of a time limit. Another thread may raise an exception on the main thread (PyThreadState_SetAsyncExc). Both
exceptions must reach the program; errors of the recorder must not.
"""

from __future__ import annotations

import builtins
import functools
import os
import signal
import sys
import types

from ..objects.libraries import PACKAGE

_OWN_TYPES = frozenset(
    builtin
    for builtin in vars(builtins).values()
    if isinstance(builtin, type) and issubclass(builtin, Exception) and not issubclass(builtin, Warning)
) - {Exception, InterruptedError, TimeoutError}
"""Exact types that reading objects raises. Exceptions of other types come from the program."""


def is_own_error(error: Exception) -> bool:
    """Return whether an error is the recorder's. For recorder code that calls no program code, such as a scan."""
    return type(error) in _OWN_TYPES and all(map(_is_own_code, _list_codes(error)))


def is_from_signal_handler(error: Exception) -> bool:
    """Return whether an error passed through a signal handler of the program.

    For recorder code that calls program code: errors of the called code must not reach the program. Does not recognise
    a handler that replaced itself before it raised, or that is not written in Python.
    """
    handlers = {_find_handler_code(signal.getsignal(number)) for number in signal.valid_signals()}
    return any(code in handlers for code in _list_codes(error))


def _list_codes(error: Exception) -> list[types.CodeType]:
    codes = []
    entry = error.__traceback__
    while entry is not None:
        codes.append(entry.tb_frame.f_code)
        entry = entry.tb_next
    return codes


def _is_own_code(code: types.CodeType) -> bool:
    file = code.co_filename
    torch = getattr(sys.modules.get("torch"), "__file__", None)
    if file.startswith((PACKAGE, "<frozen ")) or (torch and file.startswith(os.path.dirname(torch) + os.sep)):
        return True
    package_folders = f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}"
    in_library = file.startswith(os.path.dirname(os.__file__) + os.sep)
    return in_library and not any(folder in file for folder in package_folders)


def _find_handler_code(handler: object) -> types.CodeType | None:
    """Return the code of a handler, or None if it is not written in Python. Runs no code of the program."""
    while type(handler) in (functools.partial, types.MethodType):
        handler = handler.func if type(handler) is functools.partial else handler.__func__  # type: ignore[attr-defined]
    if type(handler) is not types.FunctionType:
        classes = type.__dict__["__mro__"].__get__(type(handler))
        namespaces = (type.__dict__["__dict__"].__get__(cls) for cls in classes)
        handler = next((namespace["__call__"] for namespace in namespaces if "__call__" in namespace), None)
    return handler.__code__ if type(handler) is types.FunctionType else None
