"""The command `alloctrace`: its name on this machine, and its exit on Ctrl-C and on a closed pipe.

Imports only modules built into Python: until this module is imported, Ctrl-C shows a traceback, and `signal`,
`contextlib` and `typing` alone take several milliseconds.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # the C implementation of the module `signal`
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
"""Exit status of a program ended by SIGINT, as reported by a shell."""
BAD_INPUT = 2
"""Exit status for wrong input, and for output that cannot be written."""
BROKEN_PIPE = 141
"""Exit status of a program ended by SIGPIPE, as reported by a shell."""

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_INTERRUPTED_LINE = f"{SCRIPT}: interrupted"


def spelled() -> str:
    """Return the shortest spelling of the command: the script installed for this interpreter, else `python -m`."""
    import shlex
    import shutil

    script = shutil.which(SCRIPT)
    if script is not None and os.path.dirname(script) == os.path.dirname(sys.executable):
        return SCRIPT
    name = os.path.basename(sys.executable)
    python = name if shutil.which(name) == sys.executable else shlex.quote(sys.executable)
    return f"{python} -m {MODULES[0]}"


def is_running() -> bool:
    """Return whether this process was started as the command, by script or module."""
    command_line = sys.orig_argv
    if "-m" in command_line:
        return command_line[command_line.index("-m") + 1 :][:1] in ([name] for name in MODULES)
    return len(command_line) > 1 and os.path.basename(command_line[1]) == SCRIPT


def exit_on_interrupt() -> None:
    """Exit on Ctrl-C with one line, instead of a traceback from the middle of an import.

    Does nothing if the process was started with SIGINT ignored, as shells start background jobs.
    """
    _replace_handler(signal.default_int_handler, _exit_interrupted)


def raise_interrupts() -> None:
    """Raise KeyboardInterrupt on Ctrl-C again, as Python does by default."""
    _replace_handler(_exit_interrupted, signal.default_int_handler)


def ignore_interrupts() -> None:
    """Ignore Ctrl-C during the exit: Python resets other handlers at its end, and Ctrl-C would kill the process."""
    _replace_handler(signal.default_int_handler, signal.SIG_IGN)


def exit_now(status: int) -> None:
    """Exit the process of the command without freeing the tables of a large trace, which takes 0.1 s and more.

    Returns if the process is not the command's, and if a thread, a debugger, a profiler or `python -i` needs a regular
    exit.
    """
    is_observed = sys.flags.inspect or sys.flags.interactive or sys.gettrace() or sys.getprofile() or _is_monitored()
    if not is_running() or is_observed:
        return
    if "threading" in sys.modules and sys.modules["threading"].active_count() > 1:
        return
    import atexit

    atexit._run_exitfuncs()
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:  # None: closed before Python started
                stream.flush()
    except (OSError, ValueError):  # Python reports the error at its regular exit
        return
    os._exit(status)


def _is_monitored() -> bool:
    # Profilers and coverage in Python 3.12 and later.
    monitoring = getattr(sys, "monitoring", None)
    return monitoring is not None and any(monitoring.get_tool(number) for number in range(6))


def path_argument(path: str) -> str:
    """Return a path as an argument for a shell, which no command takes for an option."""
    import shlex

    path = os.path.normpath(path)
    return shlex.quote(f"./{path}" if path.startswith("-") else path)


def print_interrupted() -> None:
    print(_INTERRUPTED_LINE, file=sys.stderr)


class QuietPipe:
    """Context manager for output: exits silently on a closed pipe (head), with one line on a full disk.

    Flushes stdout at the end. Discards output if there is no stdout (`>&-`).
    """

    def __enter__(self) -> None:
        self._lacks_stdout = sys.stdout is None
        if self._lacks_stdout:  # argparse and rich would fail on None
            sys.stdout = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._lacks_stdout:
            sys.stdout.close()
            sys.stdout = None  # a recorded program must find stdout as without us
            return
        try:
            sys.stdout.flush()
        except OSError as flush_error:
            if error is None or isinstance(flush_error, BrokenPipeError):
                error = flush_error
        if isinstance(error, BrokenPipeError):
            _discard_output(sys.stdout, sys.stderr)
            raise SystemExit(BROKEN_PIPE) from None
        if isinstance(error, OSError) and error.errno in _DISK_FULL:
            _discard_output(sys.stdout)
            try:
                print(f"{SCRIPT}: error: cannot write the output: {error.strerror}", file=sys.stderr, flush=True)
            except OSError:
                _discard_output(sys.stderr)
            raise SystemExit(BAD_INPUT) from None
        if error is not None and kind is None:
            raise error


def _discard_output(*streams: TextIO) -> None:
    """Redirect streams to /dev/null: Python flushes them again at its exit, and would report an error."""
    for stream in streams:
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        except (OSError, ValueError):
            continue


def _exit_interrupted(number: int, frame: FrameType | None) -> None:
    # Not print: the signal may have interrupted a print.
    try:
        os.write(2, f"{_INTERRUPTED_LINE}\n".encode())
    finally:  # even if stderr is closed
        os._exit(INTERRUPTED)


def _replace_handler(old: Any, new: Any) -> None:
    # Other handlers belong to the program. Threads other than the main thread cannot set handlers (ValueError).
    if signal.getsignal(signal.SIGINT) is old:
        try:
            signal.signal(signal.SIGINT, new)
        except ValueError:
            return
