"""The command ``alloctrace run``, which records an unmodified program.

The program runs in the environment of plain ``python``: its own ``__main__`` module in sys.modules (which pickling and
multiprocessing look up), sys.argv, sys.path[0], ``__file__`` and ``__spec__``. runpy.run_path is not used: it clears
the program's globals when it returns, so tensors that live until the exit would be recorded as freed before it.

Recording starts before the program, so torch is imported first: environment variables that torch reads on import
(OMP_NUM_THREADS, ...) must be set for the process, not by the program.
"""

from __future__ import annotations

import argparse
import atexit
import builtins
import contextlib
import importlib.util
import os
import pkgutil
import runpy
import select
import shlex
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader, SourcelessFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, TextIO

from .. import command
from ..errors import AlloctraceError
from ..objects.own_errors import is_from_signal_handler
from ..parser import Parser
from . import children, loading, program, session
from .analysis_process import run_analysis
from .options import DEVICES, STACKS

SUMMARY_SECONDS = 5.0
"""Maximum wait at the exit for the summary of the run, in seconds."""
_PREFIX = "pytorch_alloctrace: "
_launchers: set[str] = set()
"""Files of the scripts that started this process."""


class _NoProgramError(Exception):
    """There is no program to run. The message is the reason."""


class Run:
    def parse(self, prog: str, arguments: Sequence[str]) -> argparse.Namespace:
        """Return the options, with the program as `script` or `module`, and its `arguments`."""
        parser = Parser(
            prog=prog,
            usage="%(prog)s [options] (script.py | -m module) [arguments]",
            description="Runs a program, unchanged, and records every allocation and free of torch into a trace file.",
        )
        parser.add_argument(
            "-o",
            "--output",
            metavar="PATH",
            help="the trace file, or a folder for it; {rank}, {pid} and {host} are filled in (default: "
            "alloctrace-{rank}-{pid}.alloctrace)",
        )
        parser.add_argument("--overwrite", action="store_true", help="replace the trace file if it exists")
        parser.add_argument(
            "--follow",
            action="store_true",
            help="record child processes too, each to a separate file with -{pid} in its name",
        )
        parser.add_argument(
            "--devices",
            metavar="NAMES",
            type=lambda text: tuple(name.strip() for name in text.split(",") if name.strip()),
            default=DEVICES,
            help="the allocators to record: cuda, cpu or cuda,cpu (default)",
        )
        parser.add_argument(
            "--stacks", choices=STACKS, default="python", help="stacks to record: python (default) or none"
        )
        parser.add_argument(
            "--no-modules", action="store_true", help="do not record torch modules (--by module then has no rows)"
        )
        parser.add_argument("--no-sources", action="store_true", help="do not store source lines in the trace")
        parser.add_argument(
            "-q",
            "--quiet",
            action="store_true",
            help="print nothing at the end: neither peak and first finding, nor the command that reads the trace",
        )
        parser.add_argument("--report-oom", action="store_true", help="print the verdict when memory runs out")
        parser.add_argument(
            "--max-bytes",
            metavar="SIZE",
            help="limit on the total size of all trace files, such as 256MiB, or 256MB (of 1000): old events are "
            "compacted",
        )
        parser.add_argument(
            "--keep", metavar="TIME", help="with --max-bytes: events of the last TIME, such as 10min, are not compacted"
        )
        parser.add_argument("--spool-dir", metavar="DIR", help="folder of the spool (default: next to the trace)")
        parser.add_argument(
            "-m", dest="module", metavar="MODULE", nargs=argparse.REMAINDER, help="run a module, as python -m does"
        )
        parser.add_argument("program", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
        options = parser.parse_args(arguments)
        if options.module is not None:
            # Everything after -m belongs to the program, options included.
            name, *program_arguments = options.module or [""]
            if not name:
                parser.error("-m needs the name of a module")
            options.module, options.script, options.arguments = name, None, program_arguments
            return options
        script_and_arguments = options.program[1:] if options.program[:1] == ["--"] else options.program
        if not script_and_arguments:
            parser.error("name a script, or a module with -m")
        options.script, options.arguments = script_and_arguments[0], script_and_arguments[1:]
        return options

    def execute(self, options: argparse.Namespace) -> int:
        """Record the program. Return 0, or 2 with one line on stderr if the program could not be started.

        The program's exceptions pass through, so the interpreter ends as without recording: SystemExit,
        KeyboardInterrupt and its signal, tracebacks.
        """
        outer_main = sys.modules["__main__"]
        # The script that pip installs is the outermost frame of a traceback: _hide_our_frames removes it.
        _launchers.add(str(getattr(outer_main, "__file__", "")))
        main = _new_main(outer_main)
        try:
            code = _prepare_program(options, main)
        except (_NoProgramError, AlloctraceError) as error:
            # The messages name arguments of enable(), which are options here.
            print(f"pytorch_alloctrace: {error}".replace("overwrite=True", "--overwrite"), file=sys.stderr)
            return 2
        except Exception as error:  # a syntax error in the script, or an error in the parent packages of a module
            _hide_our_frames(error)
            raise
        try:
            exec(code, vars(main))
        except SystemExit:
            raise
        except BaseException as error:
            _hide_our_frames(error)
            raise
        return 0


def _new_main(outer_main: ModuleType) -> ModuleType:
    """Return an empty ``__main__`` with the attributes that this version of Python gives every main module."""
    main = ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    if "__annotations__" in vars(outer_main):
        main.__annotations__ = {}
    if "__cached__" in vars(outer_main):
        main.__dict__["__cached__"] = None
    return main


def _prepare_program(options: argparse.Namespace, main: ModuleType) -> CodeType:
    """Make `main` the program's main module, start recording and return the code to execute."""
    # A script is read before recording starts: a syntax error must not leave a trace file. A module is read after that:
    # the search for it imports its parent packages, which are part of the program.
    program.main_module = options.module
    if options.module is None:
        code = _load_script(options.script, options.arguments, main)
    else:
        if not _is_path_safe():
            _set_first_path(str(Path.cwd()))  # as `python -m` does
        _check_module(options.module)
        sys.argv = ["-m", *options.arguments]
    # Before recording starts: the header of the trace must describe the program, not this launcher.
    sys.modules["__main__"] = main
    ending = _start_recording(options)
    if options.module is None:
        return code
    try:
        return _load_module(options.module, main)
    except _NoProgramError:
        ending.trace = None
        trace = session.disable()
        if trace is not None:
            trace.unlink(missing_ok=True)  # empty: no program has run
        raise


def _load_script(script: str, arguments: list[str], main: ModuleType) -> CodeType:
    """Return the code of a script, or of the __main__.py of a folder or zip archive. Sets sys.argv and sys.path."""
    path = os.path.join(Path.cwd(), script)  # not normalised, as in Python
    if not os.path.exists(path):
        raise _NoProgramError(f"no such file: {script}")
    # A plain file has no importer. A folder or archive has one, and goes onto sys.path itself.
    importer: Any = pkgutil.get_importer(path)
    if importer is not None:
        spec = importer.find_spec("__main__")
        if spec is None:
            raise _NoProgramError(f"there is no __main__.py in {script}")
        code = _load_code(spec)
        _set_spec(main, spec)
        _set_first_path(path)
    else:
        try:
            code = _compile_file(path, main)
        except (OSError, ImportError) as error:
            raise _NoProgramError(f"{script} cannot be read: {error}") from None
        if not _is_path_safe():
            _set_first_path(os.path.dirname(os.path.realpath(path)))
    sys.argv = [script, *arguments]
    return code


def _compile_file(path: str, main: ModuleType) -> CodeType:
    main.__file__ = path
    if path.endswith(".pyc"):
        loader = SourcelessFileLoader("__main__", path)
        main.__loader__ = loader
        code = loader.get_code("__main__")
        assert isinstance(code, CodeType)
        return code
    main.__loader__ = SourceFileLoader("__main__", path)
    # dont_inherit: this file's __future__ imports must not apply to the program.
    return compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)


def _check_module(name: str) -> None:
    """Raise _NoProgramError if the top-level package of a module does not exist. Imports nothing."""
    top_package = name.partition(".")[0]
    try:
        exists = top_package in sys.modules or importlib.util.find_spec(top_package) is not None
    except ValueError:
        exists = False
    if not exists:
        raise _NoProgramError(f"no module named {top_package!r}")


def _load_module(name: str, main: ModuleType) -> CodeType:
    """Return the code of a module, or of the ``__main__`` of a package, as ``python -m`` finds it."""
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            name += ".__main__"
            spec = importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        # If a parent package fails to import another module, the program gets that error, with a traceback.
        if error.name is None or not (name == error.name or name.startswith(error.name + ".")):
            raise
        spec = None
    if spec is None or spec.loader is None:
        raise _NoProgramError(f"no module named {name!r}")
    code = _load_code(spec)
    _set_spec(main, spec)
    sys.argv[0] = spec.origin or name
    return code


def _load_code(spec: ModuleSpec) -> CodeType:
    get_code = getattr(spec.loader, "get_code", None)
    code = get_code(spec.name) if get_code is not None else None
    if not isinstance(code, CodeType):
        raise _NoProgramError(f"{spec.origin or spec.name} has no Python code to run")
    return code


def _set_spec(main: ModuleType, spec: ModuleSpec) -> None:
    main.__spec__, main.__loader__, main.__package__ = spec, spec.loader, spec.parent
    main.__file__ = spec.origin
    if "__cached__" in vars(main):
        main.__dict__["__cached__"] = spec.cached


def _is_path_safe() -> bool:
    """Return whether -P, -I or PYTHONSAFEPATH keeps the program's folder out of sys.path."""
    return bool(getattr(sys.flags, "safe_path", False) or sys.flags.isolated)


def _set_first_path(folder: str) -> None:
    if _is_path_safe():
        sys.path.insert(0, folder)
    else:
        sys.path[0] = folder  # replaces the working directory, which our own -m inserted


def _start_recording(options: argparse.Namespace) -> _Ending:
    children.forget_parent()
    ending = _Ending(options.quiet)
    # Exit handlers run last in, first out: the summary must be made after the end of the trace.
    atexit.unregister(session._end_at_exit)
    atexit.register(ending.print)
    atexit.register(session._end_at_exit)
    settings = {
        "devices": options.devices,
        "stacks": options.stacks,
        "spool_dir": options.spool_dir,
        "report_oom": options.report_oom,
        "max_bytes": options.max_bytes,
        "keep": options.keep,
        "sources": not options.no_sources,
        "modules": not options.no_modules,
        "overwrite": options.overwrite,
    }
    # Importing torch takes seconds. Until then Ctrl-C ends the command with one line, not a traceback.
    loading.load_recorder()
    command.raise_interrupts()
    ending.trace = session.enable(options.output, **settings).path
    if options.follow:
        ending.children = children.begin(options.output, settings)
    return ending


class _Ending:
    """Three lines on stderr at the exit: the run's peak, its first finding, and the command that reads the trace.

    Only the last line is printed by other ranks than 0, and if the analysis fails or takes more than SUMMARY_SECONDS;
    nothing if the recording never began.
    """

    def __init__(self, is_quiet: bool) -> None:
        self.trace: Path | None = None
        self.children: str | None = None
        self._is_quiet = is_quiet
        self._process = os.getpid()

    def print(self) -> None:
        # A forked child that exits normally runs its parent's exit handlers too.
        if self.trace is None or self._is_quiet or os.getpid() != self._process or not _is_read(sys.stderr):
            return
        lines: list[str] = []
        try:
            if program.rank() == "0":
                lines = run_analysis(["diagnose", str(self.trace), "--brief"], SUMMARY_SECONDS).splitlines()
        except KeyboardInterrupt:  # the program has ended: its exit status must not change
            pass
        except Exception as error:
            if is_from_signal_handler(error):
                raise
        finally:
            lines.append(self._describe_trace(self.trace))
            with contextlib.suppress(OSError, ValueError):
                print(*(f"{_PREFIX}{line}" for line in lines), sep="\n", file=sys.stderr, flush=True)

    def _describe_trace(self, trace: Path) -> str:
        children = f" (children: {self.children})" if self.children else ""
        next_command = f"{command.spelled()} {shlex.quote(_shorten_path(trace))}"
        return f"the trace is {_shorten_path(trace)}{children}; read it with: {next_command}"


def _is_read(stream: TextIO | None) -> bool:
    """Return whether a stream is open, and not a pipe without a reader: a write could end the process by SIGPIPE."""
    if stream is None or getattr(stream, "closed", False):  # a program's own object may lack it
        return False
    try:
        number = stream.fileno()
    except (OSError, ValueError, AttributeError):  # replaced by the program: an object in memory
        return True
    poll = select.poll()
    poll.register(number, 0)
    return not poll.poll(0)


def _shorten_path(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except (OSError, ValueError):  # another folder, or the program has removed its working directory
        return str(path)


def _hide_our_frames(error: BaseException) -> None:
    """Make the traceback that the interpreter is about to print begin with the program's first frame.

    Removes our frames when the traceback is printed: until then the error passes through more of them. The program's
    sys.excepthook and KeyboardInterrupt's signal stay in effect.
    """
    traceback = error.__traceback__
    while traceback is not None and _is_ours(traceback.tb_frame.f_code.co_filename):
        traceback = traceback.tb_next
    original_hook = sys.excepthook

    def show(kind: type[BaseException], value: BaseException, unused: object) -> None:
        sys.excepthook = original_hook
        sys.last_traceback = traceback
        original_hook(kind, value.with_traceback(traceback), traceback)

    sys.excepthook = show


def _is_ours(filename: str) -> bool:
    """Return whether a file contains code between the interpreter and the program: ours or the import system's."""
    package = os.path.dirname(os.path.dirname(__file__))
    entries = (os.path.join(package, "__main__.py"), os.path.join(package, "analyze", "__main__.py"))
    own_files = (__file__, *entries, importlib.util.__file__, runpy.__file__, *_launchers)
    return filename.startswith("<frozen ") or filename in own_files
