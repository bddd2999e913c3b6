"""Distinction between the recorder's own errors and errors of the program raised inside recorder code.

A signal handler of the program runs wherever the main thread is, and may raise there: KeyboardInterrupt, or the
exception of a time limit. Another thread may raise an exception on the main thread (PyThreadState_SetAsyncExc). Both
exceptions must reach the program; errors of the recorder must not.
"""

from __future__ import annotations

import builtins
import os
import signal
import sys
import types

from . import access
from .libraries import PACKAGE

_PROGRAM_TYPES = (Warning, InterruptedError, TimeoutError)
_OWN_TYPES = tuple(
    builtin
    for builtin in vars(builtins).values()
    if isinstance(builtin, type) and issubclass(builtin, Exception) and not issubclass(builtin, _PROGRAM_TYPES)
    if builtin is not Exception
)
"""Exact types that reading objects raises. Exceptions of other types come from the program."""


def is_own_error(error: Exception) -> bool:
    """Return whether an error is the recorder's. For recorder code that calls no program code, such as a scan."""
    return access.has_exact_type(error, _OWN_TYPES) and all(map(_is_own_code, _list_codes(error)))


def is_from_signal_handler(error: Exception) -> bool:
    """Return whether an error passed through a signal handler of the program.

    For recorder code that calls program code: errors of the called code must not reach the program. Does not recognise
    a handler that replaced itself before it raised, or that is not written in Python.
    """
    # By id: a hash of code includes its constants, and `code.replace` accepts a list among them.
    handlers = {id(code) for number in signal.valid_signals() for code in access.codes_of(signal.getsignal(number))}
    return any(id(code) in handlers for code in _list_codes(error))


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
