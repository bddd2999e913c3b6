"""Source code of the program: the rule for user code, and the text of source lines."""

from __future__ import annotations

import enum
import os
import re
import tokenize
import types
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

_INSTALLED = re.compile(r".*[/\\](?:site|dist)-packages[/\\](?P<module>.+)", re.DOTALL)
_GENERATED = re.compile(
    # Caches of torch.compile and triton, and code that libraries compile from strings.
    r".*[/\\](?:torchinductor_[^/\\]+|\.triton)[/\\]|<(?:frozen |eval_with_key>|attrs generated |__array_function__)"
)
_NATIVE = re.compile(r".*\.(?:c|cc|cpp|cxx|cu|cuh|h|hpp|hxx|inl|o|so|S)|.*\.so\.[\d.]+|\?\?")
"""C, C++ and object files: of frames in torch's snapshots, and in traces that older versions converted from them."""
_NOT_OPENED = ("torch", "torchgen", "functorch", "triton", "pytorch_alloctrace")
"""Packages whose internal lines reports do not show."""


def package_of(filename: str) -> str:
    """Return the installed package of a file ("transformers"), or ""."""
    installed = _INSTALLED.match(filename)
    return re.split(r"[/\\]", installed["module"])[0].removesuffix(".py") if installed else ""


def is_native(function: str, filename: str, line: int) -> bool:
    """Return whether a frame of torch's snapshots is of C or C++. Only a C++ frame may have no file or line."""
    if not filename or _NATIVE.fullmatch(filename):
        return True
    # Headers of the C++ library have no suffix ("/usr/include/c++/11/functional").
    return not filename.endswith(".py") and (line == 0 or "::" in function or "(" in function)


def short_filename(filename: str, working_directory: str) -> str:
    """Return a filename relative to the installed packages, else to the working directory, else in full."""
    # First, because the installed packages may be inside the working directory. match, not search: a search from every
    # character of a long name takes half a second.
    if installed := _INSTALLED.match(filename):
        filename = installed["module"]
    folder = working_directory.rstrip(os.sep) + os.sep if working_directory else ""
    return filename[len(folder) :] if folder and filename.startswith(folder) else filename


def working_directory_of(header: Mapping[str, Any]) -> str:
    """Return the working directory in the header of a trace; "" if the header is corrupt."""
    folder = header.get("working_directory")
    return folder if isinstance(folder, str) else ""


def can_be_opened(package: str) -> bool:
    """Return whether reports can show the allocating lines inside an installed package."""
    return package not in ("", *_NOT_OPENED)


def packages_to_open(filenames: Iterable[str]) -> list[str]:
    """Return the sorted packages of these files for which `can_be_opened` is true."""
    return sorted(filter(can_be_opened, {package_of(filename) for filename in filenames}))


class UserCode:
    """Rule for user code in one trace.

    library_prefixes: recorded folders of libraries. user_paths: files, folders or installed packages ("transformers",
    "transformers.models") that count as user code although installed. Relative paths are resolved against the current
    and the recorded working directory.
    """

    def __init__(
        self, library_prefixes: Sequence[str] = (), user_paths: Sequence[str] = (), working_directory: str = ""
    ) -> None:
        self._library_prefixes = tuple(library_prefixes)
        self._user_paths = {path: _paths_of(path, working_directory) for path in user_paths}

    @classmethod
    def of_header(cls, header: Mapping[str, Any], user_paths: Sequence[str] = ()) -> UserCode:
        prefixes = header.get("library_prefixes")
        library_prefixes = [str(prefix) for prefix in prefixes] if isinstance(prefixes, list) else []
        return cls(library_prefixes, user_paths, working_directory_of(header))

    def is_user_file(self, filename: str) -> bool:
        if any(_is_within(filename, path, paths) for path, paths in self._user_paths.items()):
            return True
        if not filename or _GENERATED.match(filename) or _NATIVE.fullmatch(filename):
            return False
        return not any(filename.startswith(prefix) for prefix in self._library_prefixes)

    def unmatched(self, filenames: Sequence[str]) -> list[str]:
        """Return the `user_paths` that contain none of these files."""
        return [
            path
            for path, paths in self._user_paths.items()
            if not any(_is_within(filename, path, paths) for filename in filenames)
        ]


def _paths_of(path: str, working_directory: str) -> tuple[str, ...]:
    recorded_path = os.path.normpath(os.path.join(working_directory, path))
    return tuple(dict.fromkeys(name.rstrip(os.sep) for name in (path, os.path.abspath(path), recorded_path)))


def _is_within(filename: str, path: str, paths: Sequence[str]) -> bool:
    # Whole path components: lib does not match library.
    if any(filename == name or filename.startswith(name + os.sep) for name in paths):
        return True
    installed = _INSTALLED.match(filename)
    if installed is None or os.sep in path:
        return False
    module = re.sub(r"[/\\]", ".", installed["module"]).removesuffix(".py")
    return module == path or module.startswith(path + ".")


_MAX_LINE_BYTES = 512
"""Maximum bytes of a source line that the recorder stores."""


class TextFrom(enum.Enum):
    """Origin of the text of a source file."""

    FILE = "file"
    """The file itself, which agrees with the trace."""
    CHANGED = "changed"
    """The trace, which has only lines that occur in stacks: the file has changed since the recording."""
    MISSING = "missing"
    """The trace: the file does not exist on this machine."""


def source_text(path: str, recorded: Mapping[int, str | None], begin_ns: int) -> tuple[dict[int, str], TextFrom]:
    """Return the lines of a source file by number, and their origin. `recorded`: text of the lines in stacks, or None.

    Without any recorded text, the file counts as unchanged if it is older than the recording.
    """
    recorded_text = {line: text for line, text in recorded.items() if text is not None}
    if not os.path.isfile(path):  # to open a pipe would block
        return recorded_text, TextFrom.MISSING
    try:
        is_older = Path(path).stat().st_mtime_ns < begin_ns
        with tokenize.open(path) as file:
            lines = [line.rstrip("\n") for line in file]
    except (OSError, SyntaxError, UnicodeError):
        return recorded_text, TextFrom.MISSING
    is_unchanged = all(line <= len(lines) and _is_same(lines[line - 1], text) for line, text in recorded_text.items())
    if not is_unchanged or max(recorded, default=0) > len(lines) or not (recorded_text or is_older):
        return recorded_text, TextFrom.CHANGED
    return dict(enumerate(lines, 1)), TextFrom.FILE


def functions_of_lines(text: str) -> set[tuple[int, str]]:
    """Return the lines that have code, each with the qualified names of its functions; empty if the text is no Python.

    The names are those of frames of the Python that runs this.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the program's syntax
            pending = [compile(text, "", "exec", dont_inherit=True)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    functions = set()
    while pending:
        code = pending.pop()
        name = getattr(code, "co_qualname", code.co_name)
        functions |= {(line, name) for *_, line in code.co_lines() if line}
        pending += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return functions


def _is_same(line: str, recorded: str) -> bool:
    if len(recorded.encode(errors="replace")) < _MAX_LINE_BYTES:
        return line.rstrip() == recorded.rstrip()
    # A truncated line may end within a character.
    return line.startswith(recorded[:-1])
