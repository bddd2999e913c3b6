"""Recording of child processes: what ``run --follow`` sets up.

A child that is a new Python process (subprocess, multiprocessing's spawn and forkserver, torchrun's workers) finds the
sitecustomize.py in _follow through PYTHONPATH, and starts recording once it has imported torch. A forked child
(multiprocessing's fork, DataLoader workers) starts recording as soon as it exists. Each child writes a separate file.

Children that ignore the environment (python -E or -I, an env= without it) are not followed.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from . import options, session

VARIABLE = "ALLOCTRACE_FOLLOW"
"""Environment variable with the arguments of enable() for children, as JSON."""

HOOK_FOLDER = str(Path(__file__).resolve().parent / "_follow")

# Priority below that of the program's own finalizers: the trace must include what they free.
LAST_EXIT_PRIORITY = -1_000_000

_is_prepared = False
_was_recording_at_fork = False


def begin(path: str | None, settings: Mapping[str, Any]) -> str:
    """Make children of this process record themselves. Return the path of their traces, with {pid} in it."""
    template = _path_template(path)
    # Absolute paths: a child may run in another working directory.
    settings = dict(settings)
    if settings.get("spool_dir") is not None:
        settings["spool_dir"] = os.path.abspath(settings["spool_dir"])
    os.environ[VARIABLE] = json.dumps({"path": os.path.abspath(template), **settings})
    inherited = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([HOOK_FOLDER, inherited] if inherited else [HOOK_FOLDER])
    _prepare_for_forks()
    return template


def forget_parent() -> None:
    """Undo the parent's set-up for following its children: this process has its own recording options."""
    os.environ.pop(VARIABLE, None)
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if HOOK_FOLDER in folders:
        os.environ["PYTHONPATH"] = os.pathsep.join(folder for folder in folders if folder != HOOK_FOLDER)
        if not os.environ["PYTHONPATH"]:
            del os.environ["PYTHONPATH"]
    sys.meta_path[:] = [finder for finder in sys.meta_path if not getattr(finder, "follows_alloctrace", False)]


def enable_here() -> None:
    """Start recording in a child with the arguments in VARIABLE.

    Never raises: a child that cannot be recorded prints one line and runs on.
    """
    text = os.environ.get(VARIABLE)
    if not text or session.is_enabled() or _is_enabling(sys._getframe()):
        return
    try:
        arguments = json.loads(text)
        session.enable(arguments.pop("path"), **arguments)
    except Exception as error:
        print(f"pytorch_alloctrace: process {os.getpid()} is not recorded: {error}", file=sys.stderr)
        return
    _prepare_for_forks()
    _end_with_multiprocessing()


def _path_template(path: str | None) -> str:
    if path is None:
        return options.DEFAULT_NAME
    if "{pid}" in path:
        return path
    if path.endswith(os.sep) or os.path.isdir(path):
        return os.path.join(path, options.DEFAULT_NAME)
    trace = Path(path)
    return str(trace.with_name(f"{trace.stem}-{{pid}}{trace.suffix}"))


def _is_enabling(frame: FrameType | None) -> bool:
    """Return whether the program is inside its own call of enable(), whose settings take precedence."""
    while frame is not None:
        if frame.f_code is session.enable.__code__:
            return True
        frame = frame.f_back
    return False


def _prepare_for_forks() -> None:
    global _is_prepared
    if _is_prepared:  # a forked child inherits what its parent registered
        return
    _is_prepared = True
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)
    # Register after the fork: a child of multiprocessing drops inherited finalizers when it starts.
    from multiprocessing import util

    util.register_after_fork(_anchor, lambda _: _end_with_multiprocessing())


class _Anchor:
    """Object that keeps the callback registered: multiprocessing refers to it weakly."""


_anchor = _Anchor()


def _before_fork() -> None:
    global _was_recording_at_fork
    _was_recording_at_fork = session.is_enabled()


def _after_fork_in_child() -> None:
    # With a preexec_fn, subprocess calls this just before the child executes another program: nothing to record.
    caller = sys._getframe().f_back
    starts_another_program = caller is not None and caller.f_globals.get("__name__") == "subprocess"
    if _was_recording_at_fork and not starts_another_program:
        enable_here()


def _end_with_multiprocessing() -> None:
    """End the trace before multiprocessing ends its child by os._exit(), which skips exit handlers."""
    from multiprocessing import process, util

    if process.parent_process() is not None and session.is_enabled():
        util.Finalize(None, session._end_at_exit, exitpriority=LAST_EXIT_PRIORITY)
