"""Source code of the program: which files are the user's own, and the text of their lines."""

from __future__ import annotations

import enum
import os
import re
import tokenize
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_INSTALLED = re.compile(r".*[/\\](?:site|dist)-packages[/\\](?P<module>.+)", re.DOTALL)
_GENERATED = re.compile(
    # What torch.compile and triton write into their caches, and code that is made from strings inside libraries.
    r".*[/\\](?:torchinductor_[^/\\]+|\.triton)[/\\]|<(?:frozen |eval_with_key>|attrs generated |__array_function__)"
)
_NATIVE = re.compile(r".*\.(?:c|cc|cpp|cxx|cu|cuh|h|hpp|hxx|inl|so|S)|\?\?")
"""Files of C++: stacks of it are in traces that were made of torch's snapshots."""
_NOT_OPENED = ("torch", "torchgen", "functorch", "triton", "pytorch_alloctrace")
"""Packages that are below every line: what they do inside is not what a user looks for."""


def package_of(filename: str) -> str:
    """The installed package that a file belongs to ("transformers"); "" if it is in none."""
    found = _INSTALLED.match(filename)
    return re.split(r"[/\\]", found["module"])[0].removesuffix(".py") if found else ""


def short_filename(filename: str, working_directory: str) -> str:
    """Return a filename as users know it: relative to the folder of installed packages, which may be inside the
    program's working directory, or to the working directory; else in full."""
    # Matched once: searched from each of its characters on, a long name takes half a second.
    if installed := _INSTALLED.match(filename):
        filename = installed["module"]
    folder = working_directory.rstrip(os.sep) + os.sep if working_directory else ""
    return filename[len(folder) :] if folder and filename.startswith(folder) else filename


def working_directory_of(header: Mapping[str, Any]) -> str:
    """Return the working directory in the header of a trace; "" if a damaged header has no text for it."""
    folder = header.get("working_directory")
    return folder if isinstance(folder, str) else ""


def can_be_opened(package: str) -> bool:
    """Whether an installed package can be looked into, to show what a line that calls it allocates."""
    return package not in ("", *_NOT_OPENED)


def packages_to_open(filenames: Iterable[str]) -> list[str]:
    """The packages of these files that can be looked into, in alphabetical order."""
    return sorted(filter(can_be_opened, {package_of(filename) for filename in filenames}))


class UserCode:
    """The rule for one trace.

    library_prefixes: folders of libraries, as the trace has them. user_paths: files, folders or installed packages
    ("transformers", "transformers.models") whose code counts as the user's own although it is installed; a relative
    path is one of the working directory, here or where the trace was made.
    """

    def __init__(
        self, library_prefixes: Sequence[str] = (), user_paths: Sequence[str] = (), working_directory: str = ""
    ) -> None:
        self._library_prefixes = tuple(library_prefixes)
        self._user_paths = {path: _paths_of(path, working_directory) for path in user_paths}

    @classmethod
    def of_header(cls, header: Mapping[str, Any], user_paths: Sequence[str] = ()) -> UserCode:
        """Return the rule for the trace with this header, which may be damaged."""
        prefixes = header.get("library_prefixes")
        known = [str(prefix) for prefix in prefixes] if isinstance(prefixes, list) else []
        return cls(known, user_paths, working_directory_of(header))

    def is_user_file(self, filename: str) -> bool:
        """Whether a file is the user's own code."""
        if any(_is_within(filename, path, paths) for path, paths in self._user_paths.items()):
            return True
        if not filename or _GENERATED.match(filename) or _NATIVE.fullmatch(filename):
            return False
        return not any(filename.startswith(prefix) for prefix in self._library_prefixes)

    def unmatched(self, filenames: Sequence[str]) -> list[str]:
        """Those of `user_paths` that name none of these files."""
        return [
            path
            for path, paths in self._user_paths.items()
            if not any(_is_within(filename, path, paths) for filename in filenames)
        ]


def _paths_of(path: str, working_directory: str) -> tuple[str, ...]:
    made_there = os.path.normpath(os.path.join(working_directory, path))
    return tuple(dict.fromkeys(name.rstrip(os.sep) for name in (path, os.path.abspath(path), made_there)))


def _is_within(filename: str, path: str, paths: Sequence[str]) -> bool:
    # A folder means its contents, not other names that begin like it: lib does not match library.
    if any(filename == name or filename.startswith(name + os.sep) for name in paths):
        return True
    installed = _INSTALLED.match(filename)
    if installed is None or os.sep in path:
        return False
    module = re.sub(r"[/\\]", ".", installed["module"]).removesuffix(".py")
    return module == path or module.startswith(path + ".")


_CUT_AT = 512
"""The recorder keeps so many bytes of a line."""


class TextFrom(enum.Enum):
    """Where the text of a source file comes from."""

    FILE = "file"
    """The file, whose lines are as the trace has them."""
    CHANGED = "changed"
    """The trace, which has only lines that occur in stacks: the file has changed since."""
    MISSING = "missing"
    """The trace: the file is not here."""


def source_text(path: str, recorded: Mapping[int, str | None], begin_ns: int) -> tuple[dict[int, str], TextFrom]:
    """The lines of a file, by number.

    recorded: the lines that occur in stacks, with their text as the trace has it; None: it does not have it. begin_ns:
    when the recording began. Where the trace has no line at all, a file that is older than it is believed.
    """
    known = {line: text for line, text in recorded.items() if text is not None}
    if not os.path.isfile(path):  # nor opened: it may be a pipe
        return known, TextFrom.MISSING
    try:
        is_older = os.stat(path).st_mtime_ns < begin_ns
        with tokenize.open(path) as file:
            lines = [line.rstrip("\n") for line in file]
    except (OSError, SyntaxError, UnicodeError):
        return known, TextFrom.MISSING
    agrees = all(line <= len(lines) and _is_same(lines[line - 1], text) for line, text in known.items())
    if not agrees or max(recorded, default=0) > len(lines) or not (known or is_older):
        return known, TextFrom.CHANGED
    return dict(enumerate(lines, 1)), TextFrom.FILE


def _is_same(line: str, recorded: str) -> bool:
    if len(recorded.encode(errors="replace")) < _CUT_AT:
        return line.rstrip() == recorded.rstrip()
    # What was cut off may end in the middle of a character.
    return line.startswith(recorded[:-1])
