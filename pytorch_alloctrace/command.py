"""The command `alloctrace`: how it is spelled here, and how Ctrl-C and a pipe that is closed end it.

Imports only what is built into Python: what it is for must work while everything else is imported, and until then
Ctrl-C shows a traceback. `signal`, `contextlib` and `typing` alone take several milliseconds.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # what the module `signal` is made of
import errno
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType, TracebackType
    from typing import Any, TextIO

SCRIPT = "alloctrace"
MODULES = ("pytorch_alloctrace", "pytorch_alloctrace.analyze")
INTERRUPTED = 130
"""As a shell reports a program that SIGINT ended."""
BAD_INPUT = 2
"""Also for output that cannot be written: there is no verdict either."""
BROKEN_PIPE = 141
"""As a shell reports a program that SIGPIPE ended."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_INTERRUPTED_LINE = f"{SCRIPT}: interrupted"


def spelled() -> str:
    """The shortest way to write the command here: the installed script, if it is that of this interpreter, else a
    module of it."""
    import shlex
    import shutil

    found = shutil.which(SCRIPT)
    if found is not None and os.path.dirname(found) == os.path.dirname(sys.executable):
        return SCRIPT
    name = os.path.basename(sys.executable)
    python = name if shutil.which(name) == sys.executable else shlex.quote(sys.executable)
    return f"{python} -m {MODULES[0]}"


def is_running() -> bool:
    """Whether this process was started as the command, by whichever name."""
    words = sys.orig_argv
    if "-m" in words:
        return words[words.index("-m") + 1 :][:1] in ([name] for name in MODULES)
    return len(words) > 1 and os.path.basename(words[1]) == SCRIPT


def end_at_interrupt() -> None:
    """Ctrl-C is one line and the end, without a traceback from the middle of an import. Not where the process was
    started with the signal ignored, as shells start what runs in the background."""
    _replace(signal.default_int_handler, _end)


def raise_interrupts() -> None:
    """Ctrl-C raises KeyboardInterrupt again, as Python begins."""
    _replace(_end, signal.default_int_handler)


def ignore_interrupts() -> None:
    """For the end: all is said, and what is left takes milliseconds. (Python gives up other handlers at its end, and
    Ctrl-C would kill it.)"""
    _replace(signal.default_int_handler, signal.SIG_IGN)


def end_at_once(status: int) -> None:
    """Ends the process of the command: the tables of a large trace would be given back piece by piece, which takes a
    tenth of a second and more. Returns in another process, and where somebody is still at work or watches how Python
    ends: a thread, a debugger or profiler, `python -i`."""
    watched = sys.flags.inspect or sys.flags.interactive or sys.gettrace() or sys.getprofile() or _is_monitored()
    if not is_running() or watched:
        return
    if "threading" in sys.modules and sys.modules["threading"].active_count() > 1:
        return
    import atexit

    atexit._run_exitfuncs()
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:  # as where it was closed before Python began
                stream.flush()
    except (OSError, ValueError):  # Python knows what to say of it
        return
    os._exit(status)


def _is_monitored() -> bool:
    # Of Python 3.12 and later: profilers and coverage.
    monitoring = getattr(sys, "monitoring", None)
    return monitoring is not None and any(monitoring.get_tool(number) for number in range(6))


def say_interrupted() -> None:
    """The one line."""
    print(_INTERRUPTED_LINE, file=sys.stderr)


class quiet_pipe:
    """A reader that goes away (head) ends the command without a word, a device that is full with a line. What is
    printed inside is flushed. Without a stdout (`>&-`) it goes nowhere."""

    def __enter__(self) -> None:
        self._closed = sys.stdout is None
        if self._closed:  # argparse and rich write to it all the same
            sys.stdout = open(os.devnull, "w")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._closed:
            sys.stdout.close()
            sys.stdout = None  # as a recorded program would find it
            return
        try:
            sys.stdout.flush()
        except OSError as failed:
            if error is None or isinstance(failed, BrokenPipeError):
                error = failed
        if isinstance(error, BrokenPipeError):
            _drop_what_follows(sys.stdout, sys.stderr)
            raise SystemExit(BROKEN_PIPE) from None
        if isinstance(error, OSError) and error.errno in _FULL:
            _drop_what_follows(sys.stdout)
            try:
                print(f"{SCRIPT}: error: cannot write the output: {error.strerror}", file=sys.stderr, flush=True)
            except OSError:  # nor that
                _drop_what_follows(sys.stderr)
            raise SystemExit(BAD_INPUT) from None
        if error is not None and kind is None:
            raise error


def _drop_what_follows(*streams: TextIO) -> None:
    """Sends what is still written to these streams to nowhere: Python flushes once more at its end, and would
    complain."""
    for stream in streams:
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        except (OSError, ValueError):
            continue


def _end(number: int, frame: FrameType | None) -> None:
    # Not print: the signal may have come in the middle of one.
    try:
        os.write(2, f"{_INTERRUPTED_LINE}\n".encode())
    finally:  # even if nobody is there to read it
        os._exit(INTERRUPTED)


def _replace(old: Any, new: Any) -> None:
    # Only the main thread may; where the program is somebody else's, nothing is changed.
    if signal.getsignal(signal.SIGINT) is old:
        try:
            signal.signal(signal.SIGINT, new)
        except ValueError:
            return
