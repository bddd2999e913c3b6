"""Choice of the recorder for this torch: built with the package, else built on first use and cached.

A recorder calls virtual methods of torch's classes, so it fits one torch and one Python only. The cache key contains
both and the sources, so a cached recorder cannot be outdated: another torch gets another build.
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
MIN_TORCH = ".".join(map(str, building.MINIMUM_TORCH))


def load_recorder() -> ModuleType:
    """Return the recorder for this torch and Python, compiled if necessary. Raises RecorderUnavailableError."""
    loaded = sys.modules.get(NAME)
    if loaded is not None:
        return loaded
    torch = _import_torch()
    target = building.target_of(torch)
    if _packaged_target() == target:
        try:
            return importlib.import_module(NAME)
        except ImportError as error:  # removed, or not loadable on this machine: build another
            _refuse_if_out_of_memory(error)
    csrc = _find_sources()
    key = building.recorder_key(target, csrc)
    path = _find_cached(key, target)
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
    """Raise RecorderUnavailableError if the load failed for lack of memory: a new build would fail too."""
    if re.search("cannot allocate memory|failed to map segment", str(error), re.IGNORECASE):
        raise RecorderUnavailableError(
            f"not enough memory to load the recorder ({error}): raise the limit of the process (ulimit -v)"
        ) from None


class Build:
    def parse(self, prog: str, arguments: Sequence[str]) -> argparse.Namespace:
        from ..parser import Parser

        parser = Parser(
            prog=prog,
            description="Builds the recorder for the torch of this environment, unless it exists, and prints its path. "
            "Recording does this itself on first use. The environment variable ALLOCTRACE_CACHE names the folder; "
            "MAX_JOBS and CXX are honoured.",
        )
        parser.add_argument("--force", action="store_true", help="build again, even if it exists")
        return parser.parse_args(arguments)

    def execute(self, options: argparse.Namespace) -> int:
        """Print the path of the recorder. Return 1 if recording is not possible, with the reason on stderr."""
        try:
            if options.force:
                target = building.target_of(_import_torch())
                key = building.recorder_key(target, _find_sources())
                for folder in _cache_folders():
                    shutil.rmtree(folder / key, ignore_errors=True)
            print(load_recorder().__file__)
        except RecorderUnavailableError as error:
            print(f"pytorch_alloctrace: {error}", file=sys.stderr)
            return 1
        return 0


def _import_torch() -> Any:
    if not sys.platform.startswith("linux"):
        raise RecorderUnavailableError(
            f"recording needs Linux, and this is {sys.platform}: record there, and read the trace here with "
            "`python -m pytorch_alloctrace TRACE`"
        )
    try:
        import torch
    except ImportError as error:
        raise RecorderUnavailableError(
            f"recording needs torch, which cannot be imported ({error}): run `pip install 'torch>={MIN_TORCH}'` "
            "(reading traces works without it)"
        ) from None
    if building.is_too_old(torch.__version__):
        raise RecorderUnavailableError(
            f"recording needs torch {MIN_TORCH} or newer, and this is {torch.__version__}: "
            f"run `pip install --upgrade 'torch>={MIN_TORCH}'`"
        )
    return torch


def _packaged_target() -> building.Target | None:
    try:
        from .. import _build_info
    except ImportError:  # a clone without a build
        return None
    return building.Target(**_build_info.RECORDER_FOR) if _build_info.RECORDER_FOR is not None else None


def _find_sources() -> Path:
    """Return the folder csrc: in the installed package, or next to it in a clone."""
    for folder in (PACKAGE / "csrc", PACKAGE.parent / "csrc"):
        if (folder / "torch").is_dir():
            return folder
    raise RecorderUnavailableError(
        "this installation of pytorch_alloctrace lacks the sources of its recorder: run "
        "`pip install --force-reinstall --no-deps pytorch_alloctrace`"
    )


def _cache_folders() -> Iterator[Path]:
    """Yield the possible cache folders, best first. They contain recorders only: --force removes from them."""
    alloctrace_cache, xdg_cache = os.environ.get("ALLOCTRACE_CACHE"), os.environ.get("XDG_CACHE_HOME")
    home = os.path.expanduser("~")
    if alloctrace_cache:
        yield Path(os.path.abspath(alloctrace_cache), "pytorch_alloctrace")
    elif xdg_cache and Path(xdg_cache).is_absolute():
        yield Path(xdg_cache, "pytorch_alloctrace")
    elif Path(home).is_absolute():  # "~" stays unexpanded without HOME and a passwd entry
        yield Path(home, ".cache", "pytorch_alloctrace")
    # For containers with a read-only home.
    yield Path(tempfile.gettempdir(), f"pytorch_alloctrace-{os.geteuid()}")


def _is_trusted(status: os.stat_result) -> bool:
    """Return whether only this user and root can write there: files in the cache are executed."""
    return status.st_uid in (os.geteuid(), 0) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _is_trusted_file(path: Path) -> bool:
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and _is_trusted(status)


def _is_trusted_folder(path: Path) -> bool:
    """Return whether a folder is trusted, and only this user and root can replace it."""
    try:
        status = path.stat()
        parents = [folder.stat() for folder in (path.absolute().parents)]
        parents += [folder.stat() for folder in path.resolve().parents]
    except OSError:
        return False
    # The group may write to the parents: umask 002 is usual where each user has a private group.
    return (
        stat.S_ISDIR(status.st_mode)
        and _is_trusted(status)
        and all(parent.st_uid in (os.geteuid(), 0) for parent in parents)
        and not any(parent.st_mode & stat.S_IWOTH and not parent.st_mode & stat.S_ISVTX for parent in parents)
    )


def _restrict_access(folder: Path) -> None:
    """Set a folder of this user that others can write to, as with umask 002, to 0700. Follows no link."""
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


def _find_cached(key: str, target: building.Target) -> Path | None:
    """Return the first cached recorder that is trusted and complete: a truncated one would crash the program."""
    for cache in _cache_folders():
        _restrict_access(cache)
        _restrict_access(cache / key)
        path = cache / key / _file_name(target)
        if _is_trusted_folder(cache) and _is_trusted_folder(cache / key) and _is_usable(path):
            return path
    return None


def _is_usable(path: Path) -> bool:
    return _is_trusted_file(path) and _is_trusted_file(building.seal_of(path)) and building.is_sealed(path)


def _remove(path: Path) -> None:
    try:
        path.unlink()
    except OSError:  # read-only: the build uses another folder
        return


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(NAME, path, loader=ExtensionFileLoader(NAME, str(path)))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[NAME] = module
    return module


def _writable_folder(key: str) -> Path:
    """Create the folder of a recorder for this user alone. Raises RecorderUnavailableError if none is possible."""
    for cache in _cache_folders():
        folder = cache / key
        try:
            missing_folders = [path for path in (cache, *cache.parents) if not path.exists()]
            # With sudo -E, HOME is another user's: create nothing there.
            if missing_folders and missing_folders[-1].parent.stat().st_uid not in (os.geteuid(), 0):
                continue
            for path in reversed(missing_folders):
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
        "the recorder must be built, and no cache folder is writable for you alone: set ALLOCTRACE_CACHE to a folder "
        "of yours"
    )


def _build(key: str, target: building.Target, csrc: Path, torch: Any) -> Path:
    """Build the recorder and return its path. Uses another process: this one is about to be recorded."""
    folder = _writable_folder(key)
    output = folder / _file_name(target)
    untrusted = [cache for cache in _cache_folders() if cache.exists() and not _is_trusted_folder(cache)]
    refusals = "".join(f"; {cache} is not used, because another user can write there" for cache in untrusted)
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
    # -I and -S: modules of the program, of PYTHONPATH or of a .pth file must not take part.
    command = [_interpreter(), "-I", "-S", building.__file__, json.dumps(request)]
    started = time.monotonic()
    failure = ""
    progress_line = _ProgressLine()
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
            for output_line in child.stdout:
                state, _, message = output_line.strip().partition(": ")
                if state == "waiting":
                    progress_line.begin(
                        f"waiting for another process that builds the recorder for torch {target.torch} ..."
                    )
                elif state == "building":
                    progress_line.begin(
                        f"building the recorder for torch {target.torch}, once (a minute or two{refusals}) ..."
                    )
                elif state == "failed":
                    failure = message
                elif step := re.match(r"\[(\d+)/(\d+)\]", output_line):
                    progress_line.show_progress(f"compiling {step[1]} of {step[2]} ...")
            error_text = child.stderr.read().strip()
        except BaseException:  # KeyboardInterrupt
            child.kill()
            progress_line.end("stopped")
            raise
    # The exit status is unreliable: it is lost if the program ignores SIGCHLD.
    if not _is_usable(output):
        progress_line.end("failed")
        reason = failure or (error_text.splitlines() or ["its process was killed"])[-1]
        raise RecorderUnavailableError(f"recording is not possible: {reason}")
    progress_line.end(f"{time.monotonic() - started:.0f} s")
    return output


class _ProgressLine:
    """Line on stderr about a build, and in a terminal a second line with its progress.

    Never raises: the program may have closed or replaced its stderr.
    """

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


def _interpreter() -> str:
    """Return the path of this interpreter. In an embedded Python, sys.executable names the embedding program."""
    if "python" in os.path.basename(sys.executable or ""):
        return sys.executable
    return os.path.join(sys.base_exec_prefix, "bin", f"python{sys.version_info[0]}.{sys.version_info[1]}")


def _clean_environment() -> dict[str, str]:
    """Return the environment without preloaded libraries and without settings of Python and of this package.

    LD_LIBRARY_PATH stays: a compiler from an environment module may need it.
    """
    removed_prefixes = ("PYTHON", "ALLOCTRACE", "LD_PRELOAD", "LD_AUDIT", "CUDA_VISIBLE_DEVICES")
    return {name: value for name, value in os.environ.items() if not name.startswith(removed_prefixes)}
