"""Names and texts for a report that is shared: without source, arguments, host and folders.

`RedactedNames` names the code. `Redaction` goes over the finished page, for absolute paths in other texts.
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any

from ...reading.sites import Frame, Site
from ..site_names import SiteNames, printable
from .columns import map_texts

if TYPE_CHECKING:
    from ...analysis.summary import Program

_SEPARATOR = re.compile(r"[/\\]")
_FOLDERS = re.compile(r"(?<![\w/\\.])(?:~|[A-Za-z]:)?(?:[/\\][^\s/\\:,;()'\"<>|]+)+[/\\]([^\s/\\:,;()'\"<>|]+)")
"""An absolute path of at least one folder, and what it leads to."""
_END = r"(?![^\s/\\:,;()'\"<>|])"
"""The end of a part of a path."""
_MODULE = "(module)"
"""Replaces the name of a module, which consists of folders."""
_PACKAGES = re.compile(r"(?<![\w.])(?:\w+\.)+(?=\w)")
"""The packages in the name of generated code: "<attrs generated init package.module.Class>"."""
_QUOTED = re.compile(r"""(["'])((?:(?!\1).)*)(\1?)""", re.DOTALL)
"""A quoted key; the closing quote may be cut off."""
_WORD = re.compile(r"[^\s'\"()\[\]{},:;<>|]+")
_ROOT = re.compile(r"(?<=global of )(?:module )?[\w.]+(?=,|$)|(?<=class attribute in )[\w.]+(?=,|$)")
"""The file or the module of a global variable."""
_FILE = re.compile(r".*\.(?:py\w?|ipynb|so)|__main__")


class RedactedNames(SiteNames):
    """Names without folders, source and arguments."""

    def file(self, filename: str) -> str:
        if filename.startswith("-m "):
            return _MODULE
        last = _last(filename)
        return printable(_PACKAGES.sub("", last) if last.startswith("<") else last)

    def source(self, code: Site | Frame) -> str | None:
        return None

    def command(self, program: Program) -> str:
        return super().command(dataclasses.replace(program, arguments=()))

    def referrer(self, text: str) -> str:
        # A key may have blanks. Of any other path each word is shortened.
        text = _QUOTED.sub(lambda key: key[1] + _SEPARATOR.split(key[2])[-1] + key[3], text)
        text = _WORD.sub(lambda word: _SEPARATOR.split(word[0])[-1], text)
        return _ROOT.sub(lambda root: root[0] if _FILE.fullmatch(root[0]) else _MODULE, text)


class Redaction:
    """Takes folders out of texts."""

    def __init__(self, filenames: list[str], folder: str = "") -> None:
        """Prepare the paths that may be in the texts, and may have any characters.

        Args:
            filenames: Paths of files, whose last part stays.
            folder: Path of a folder, of which nothing stays.
        """
        paths = sorted({name for name in filenames if _SEPARATOR.search(name)}, key=len, reverse=True)
        self._known = [(name, _last(name)) for name in paths if name.startswith(("/", "~", "\\")) or name[1:2] == ":"]
        folder = folder.rstrip("/\\")
        self._folder = re.compile(re.escape(folder) + _END) if _SEPARATOR.search(folder) else None

    def text(self, text: str) -> str:
        """The text, with the last part of each path alone."""
        for name, short in self._known:
            if name in text:
                text = text.replace(name, short)
        if self._folder is not None:
            text = self._folder.sub("", text)
        return _FOLDERS.sub(lambda found: found[1], text)

    def of(self, data: Any) -> Any:
        """The same for all texts in plain values."""
        return map_texts(data, self.text)


def _last(path: str) -> str:
    return _SEPARATOR.split(path.rstrip("/\\"))[-1]
