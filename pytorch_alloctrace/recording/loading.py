"""Loads the recorder that fits this torch: the one built with the package, else one built on first use.

A recorder calls virtual methods of torch's classes, so it fits one torch and one Python only. Built at first use, from
sources in the package, it cannot be outdated: another torch has another key, and is built for again.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..errors import RecorderUnavailableError
from . import building

if TYPE_CHECKING:
    import argparse

NAME = "pytorch_alloctrace._record"
PACKAGE = Path(__file__).resolve().parents[1]
WANTED_TORCH = ".".join(map(str, building.MINIMUM_TORCH))


def load_recorder() -> ModuleType:
    """The recording module for this very torch, CUDA and Python; compiled if need be, which a line on stderr says.

    One built for another torch would call the wrong methods of its classes, so it is not even loaded.
    Raises RecorderUnavailableError.
    """
    loaded = sys.modules.get(NAME)
    if loaded is not None:
        return loaded
    torch = _usable_torch()
    target = building.target_of(torch)
    if _built_with_package() == target:
        try:
            return importlib.import_module(NAME)
        except ImportError as error:  # one that was removed, or that this machine cannot load: another is built
            _refuse_if_out_of_memory(error)
    csrc = _sources()
    key = building.recorder_key(target, csrc)
    path = _in_cache(key, target)
    if path is not None:
        try:
            return _load(path)
        except ImportError as error:
            _refuse_if_out_of_memory(error)
            _remove(path)
    path = _build(key, target, csrc, torch)
    try:
        return _load(path)
    except ImportError as error:
        raise RecorderUnavailableError(
            f"the recorder was built but cannot be loaded ({error}): run `python -m pytorch_alloctrace build --force`"
        ) from None


def _refuse_if_out_of_memory(error: ImportError) -> None:
    """Raise RecorderUnavailableError if a module was not loaded for lack of memory: another would not be, either."""
    if re.search("cannot allocate memory|failed to map segment", str(error), re.IGNORECASE):
        raise RecorderUnavailableError(
            f"there is no memory to load the recorder ({error}): raise the limit of the process (ulimit -v)"
        ) from None


class Build:
    """The command `build`: builds the recorder ahead of its first use, in an image for example."""

    def parse(self, prog: str, arguments: Sequence[str]) -> argparse.Namespace:
        """Return the options."""
        from ..parser import Parser

        parser = Parser(
            prog=prog,
            description="Builds the recorder for the torch of this environment, if there is none yet, and prints where "
            "it is. Recording does this by itself on first use. The environment variable ALLOCTRACE_CACHE names the "
            "folder; MAX_JOBS and CXX are honoured.",
        )
        parser.add_argument("--force", action="store_true", help="build again, even if it is there")
        return parser.parse_args(arguments)

    def execute(self, options: argparse.Namespace) -> int:
        """Print the path of the recorder. Returns 1 if recording is not possible, with the reason on stderr."""
        try:
            if options.force:
                target = building.target_of(_usable_torch())
                key = building.recorder_key(target, _sources())
                for folder in _cache_folders():
                    shutil.rmtree(folder / key, ignore_errors=True)
            print(load_recorder().__file__)
        except RecorderUnavailableError as error:
            print(f"pytorch_alloctrace: {error}", file=sys.stderr)
            return 1
        return 0


def _usable_torch() -> Any:
    if not sys.platform.startswith("linux"):
        raise RecorderUnavailableError(
            f"recording needs Linux, and this is {sys.platform}: record there, and read the trace here with "
            "`python -m pytorch_alloctrace TRACE`"
        )
    try:
        import torch
    except ImportError as error:
        raise RecorderUnavailableError(
            f"recording needs torch, which cannot be imported ({error}): run `pip install 'torch>={WANTED_TORCH}'` "
            "(reading traces works without it)"
        ) from None
    if building.is_too_old(torch.__version__):
        raise RecorderUnavailableError(
            f"recording needs torch {WANTED_TORCH} or newer, and this is {torch.__version__}: "
            f"run `pip install --upgrade 'torch>={WANTED_TORCH}'`"
        )
    return torch


def _built_with_package() -> building.Target | None:
    """What the recorder in the package, if there is one, was built for."""
    try:
        from .. import _build_info
    except ImportError:  # a clone in which nothing was built
        return None
    return building.Target(**_build_info.RECORDER_FOR) if _build_info.RECORDER_FOR is not None else None


def _sources() -> Path:
    """The folder csrc: in the package, where it was installed, or next to it, in a clone."""
    for folder in (PACKAGE / "csrc", PACKAGE.parent / "csrc"):
        if (folder / "torch").is_dir():
            return folder
    raise RecorderUnavailableError(
        "this installation of pytorch_alloctrace lacks the sources of its recorder: run "
        "`pip install --force-reinstall --no-deps pytorch_alloctrace`"
    )


def _cache_folders() -> Iterator[Path]:
    """Yield the folders in which recorders are kept, in the order in which they are tried. They hold nothing else."""
    named, cache = os.environ.get("ALLOCTRACE_CACHE"), os.environ.get("XDG_CACHE_HOME")
    home = os.path.expanduser("~")
    if named:
        yield Path(os.path.abspath(named), "pytorch_alloctrace")
    elif cache and os.path.isabs(cache):
        yield Path(cache, "pytorch_alloctrace")
    elif os.path.isabs(home):  # not without a HOME, or for a user that no file names
        yield Path(home, ".cache", "pytorch_alloctrace")
    # For a container with a read-only home.
    yield Path(tempfile.gettempdir(), f"pytorch_alloctrace-{os.geteuid()}")


def _is_trusted(status: os.stat_result) -> bool:
    """Return whether nobody but this user and root can have written there. What lies in the cache is executed."""
    return status.st_uid in (os.geteuid(), 0) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _is_trusted_file(path: Path) -> bool:
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and _is_trusted(status)


def _is_trusted_folder(path: Path) -> bool:
    """Return whether a folder is trusted, and nobody but this user and root can put another in its place."""
    try:
        status = path.stat()
        above = [folder.stat() for folder in (path.absolute().parents)]
        above += [folder.stat() for folder in path.resolve().parents]
    except OSError:
        return False
    # A group may write to the folders above: umask 002 is usual where each user has a group of their own.
    return (
        stat.S_ISDIR(status.st_mode)
        and _is_trusted(status)
        and all(one.st_uid in (os.geteuid(), 0) for one in above)
        and not any(one.st_mode & stat.S_IWOTH and not one.st_mode & stat.S_ISVTX for one in above)
    )


def _close_to_others(folder: Path) -> None:
    """Set a folder of this user's that others can write to, as with umask 002, to 0700. Follows no link."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    try:
        status = os.fstat(descriptor)
        if status.st_uid == os.geteuid() and not _is_trusted(status):
            os.fchmod(descriptor, stat.S_IRWXU)
    except OSError:
        return
    finally:
        os.close(descriptor)


def _file_name(target: building.Target) -> str:
    return f"_record.{target.abi}.so"


def _in_cache(key: str, target: building.Target) -> Path | None:
    """Return the first recorder that is complete and trusted: a damaged one would crash the program."""
    for cache in _cache_folders():
        _close_to_others(cache)
        _close_to_others(cache / key)
        path = cache / key / _file_name(target)
        if _is_trusted_folder(cache) and _is_trusted_folder(cache / key) and _is_usable(path):
            return path
    return None


def _is_usable(path: Path) -> bool:
    return _is_trusted_file(path) and _is_trusted_file(building.seal_of(path)) and building.is_sealed(path)


def _remove(path: Path) -> None:
    """Remove a recorder that cannot be loaded, because it is from another machine for instance, or must not be."""
    try:
        path.unlink()
    except OSError:  # read-only: the build goes elsewhere
        return


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(NAME, path, loader=ExtensionFileLoader(NAME, str(path)))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[NAME] = module
    return module


def _writable_folder(key: str) -> Path:
    """Return the folder of a recorder, made for this user alone. Raises RecorderUnavailableError if there is none."""
    for cache in _cache_folders():
        folder = cache / key
        try:
            missing = [path for path in (cache, *cache.parents) if not path.exists()]
            # Nothing is made in the home of another user (sudo -E).
            if missing and missing[-1].parent.stat().st_uid not in (os.geteuid(), 0):
                continue
            for path in reversed(missing):
                path.mkdir(mode=stat.S_IRWXU, exist_ok=True)
            if not _is_trusted_folder(cache):
                continue
            folder.mkdir(mode=stat.S_IRWXU, exist_ok=True)
            if _is_trusted_folder(folder):
                with tempfile.TemporaryFile(dir=folder):
                    return folder
        except OSError:
            continue
    raise RecorderUnavailableError(
        "the recorder has to be built, and there is no folder for it that you can write to and others cannot: set "
        "ALLOCTRACE_CACHE to a folder of yours"
    )


def _build(key: str, target: building.Target, csrc: Path, torch: Any) -> Path:
    """Builds it in another process: this one is about to be observed."""
    folder = _writable_folder(key)
    output = folder / _file_name(target)
    unused = [cache for cache in _cache_folders() if cache.exists() and not _is_trusted_folder(cache)]
    refused = "".join(f"; {cache} is not used, because another user can write there" for cache in unused)
    for path in (output, building.seal_of(output)):
        if os.path.lexists(path) and not _is_trusted_file(path):
            _remove(path)
    torch_folder = Path(torch.__file__).resolve().parent
    request = {
        "target": target._asdict(),
        "csrc": str(csrc),
        "torch": str(torch_folder),
        "packages": [*map(os.path.abspath, filter(None, sys.path)), str(torch_folder.parent)],
        "output": str(output),
        "ninja": building.find_ninja(),
    }
    # -I and -S: no module of the program's, of PYTHONPATH's or of a .pth file's may take part.
    command = [_python(), "-I", "-S", building.__file__, json.dumps(request)]
    started = time.monotonic()
    failure = ""
    line = _Line()
    child = subprocess.Popen(
        command,
        cwd=os.sep,
        env=_clean_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    with child:
        try:
            assert child.stdout is not None and child.stderr is not None
            for said in child.stdout:
                word, _, rest = said.strip().partition(": ")
                if word == "waiting":
                    line.begin(f"waiting for another process that builds the recorder for torch {target.torch} ...")
                elif word == "building":
                    line.begin(f"building the recorder for torch {target.torch}, once (a minute or two{refused}) ...")
                elif word == "failed":
                    failure = rest
                elif step := re.match(r"\[(\d+)/(\d+)\]", said):
                    line.show_progress(f"compiling {step[1]} of {step[2]} ...")
            other = child.stderr.read().strip()
        except BaseException:  # KeyboardInterrupt
            child.kill()
            line.end("stopped")
            raise
    # Not the exit status, which is unknown where the program ignores SIGCHLD.
    if not _is_usable(output):
        line.end("failed")
        reason = failure or (other.splitlines() or ["its process was killed"])[-1]
        raise RecorderUnavailableError(f"recording is not possible: {reason}")
    line.end(f"{time.monotonic() - started:.0f} s")
    return output


class _Line:
    """A line on stderr that is begun when something starts and ended when it is done; in a terminal, a second one below
    it shows how far it is. Never raises: the program may have closed or replaced its stderr."""

    def __init__(self) -> None:
        self._is_begun = False
        self._shows_progress = False

    def begin(self, text: str) -> None:
        self._write(("\n" if self._is_begun else "") + f"pytorch_alloctrace: {text}")
        self._is_begun = True

    def show_progress(self, progress: str) -> None:
        try:
            if not sys.stderr.isatty():
                return
        except Exception:
            return
        self._write(("\r" if self._shows_progress else "\n") + f"  {progress}")
        self._shows_progress = True

    def end(self, text: str) -> None:
        if self._is_begun:
            self._write(f" {text}\n")

    def _write(self, text: str) -> None:
        try:
            print(text, end="", file=sys.stderr, flush=True)
        except Exception:
            return


def _python() -> str:
    """This interpreter. Where Python is a part of another program, sys.executable names that one."""
    if "python" in os.path.basename(sys.executable or ""):
        return sys.executable
    return os.path.join(sys.base_exec_prefix, "bin", f"python{sys.version_info[0]}.{sys.version_info[1]}")


def _clean_environment() -> dict[str, str]:
    """The program's, without what would reach into the build: preloaded libraries, settings of Python and ours.

    LD_LIBRARY_PATH stays: a compiler from an environment module may need it.
    """
    ours = ("PYTHON", "ALLOCTRACE", "LD_PRELOAD", "LD_AUDIT", "CUDA_VISIBLE_DEVICES")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}
