"""Numbered tables of the page's texts, sites and frames, and redaction of folders."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...reading.sites import Frame, Site, StackIndex
from ..site_names import SiteNames, printable
from .columns import Columns, map_texts

if TYPE_CHECKING:
    from ...analysis.summary import Program


_FRAME_COLUMNS = ("parent", "function", "file", "line", "source", "user", "site")


class Texts:
    """Table of distinct texts, by number."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        """Return the number of a text. Equal texts share a number."""
        number = self._numbers.get(text)
        if number is None:
            number = self._numbers[text] = len(self.all)
            self.all.append(text)
        return number


class PageStacks:
    """Tables of the frames that the page shows, callers included, and of their sites."""

    def __init__(self, stacks: StackIndex, names: SiteNames) -> None:
        self._stacks = stacks
        self._names = names
        self.texts = Texts()
        self._sites: dict[tuple[Any, ...], int] = {}
        self._site_rows: list[list[Any]] = []
        self._site_by_stack: dict[int, int] = {}
        self._frames: dict[int, int] = {}
        self._frame_rows: list[tuple[int, int, int, int, int, int, int]] = []

    def site(self, stack_id: int) -> int:
        """Return the number of a stack's site."""
        number = self._site_by_stack.get(stack_id)
        if number is None:
            key = self._stacks.key(stack_id, "line") if stack_id else ()
            number = self._sites.get(key, -1)
            if number < 0:
                number = self._sites[key] = len(self._site_rows)
                self._site_rows.append(self._make_site_row(stack_id))
            self._site_by_stack[stack_id] = number
        return number

    def _make_site_row(self, stack_id: int) -> list[Any]:
        site = Site.of_stack(self._stacks, stack_id)
        number = self.texts.number
        return [
            number(self._names.site(site)),
            number(self._names.file(site.filename)),
            site.line,
            number(site.function),
            number(self._names.source(site) or ""),
            int(site.user),
        ]

    def frame(self, stack_id: int) -> int:
        """Return the number of a stack's innermost frame. Its callers get lower numbers."""
        pending = []
        while stack_id not in self._frames and stack_id:
            pending.append(stack_id)
            stack_id = int(self._stacks.parent[stack_id])
        caller = self._frames.get(stack_id, -1) if stack_id else -1
        if not pending and not stack_id:
            return self._add_frame(0, -1)  # stack 0 means that no stack was recorded: the page names it, too
        for pending_id in reversed(pending):
            caller = self._add_frame(pending_id, caller)
        return caller

    def _add_frame(self, stack_id: int, parent: int) -> int:
        existing = self._frames.get(stack_id)
        if existing is not None:
            return existing
        number = self.texts.number
        if stack_id == 0 or not self._stacks.frames(stack_id):
            label = self._names.site(Site.of_stack(self._stacks, stack_id))
            row = (parent, number(label), number(""), 0, number(""), 0, self.site(stack_id))
        else:
            frame = self._stacks.frame(stack_id)
            row = (
                parent,
                number(frame.function),
                number(self._names.file(frame.filename)),
                frame.line,
                number(self._names.source(frame) or ""),
                int(self._stacks.is_user[stack_id]),
                self.site(stack_id),
            )
        index = self._frames[stack_id] = len(self._frame_rows)
        self._frame_rows.append(row)
        return index

    def pack(self, columns: Columns) -> dict[str, Any]:
        """Add the frames to the columns and return their JSON references, and the sites."""
        rows = np.array(self._frame_rows, dtype=np.int64).reshape(-1, len(_FRAME_COLUMNS))
        return {
            "frames": {name: columns.add(rows[:, index]) for index, name in enumerate(_FRAME_COLUMNS)},
            "sites": self._site_rows,
        }


def merge_stacks(
    index: StackIndex,
    stack_ids: npt.NDArray[np.int64],
    max_bytes: npt.NDArray[np.int64],
    max_stacks: int,
    max_sites: int,
) -> dict[int, int]:
    """Return the representative of each stack: the stack itself, or one with the same line, or -1.

    Args:
        index: The stacks of the trace.
        stack_ids: The stacks to merge.
        max_bytes: Maximum bytes that each stack held.
        max_stacks: Number of stacks, the largest ones, that represent themselves.
        max_sites: Number of lines, the largest ones, that have a representative. Other stacks get -1.
    """
    ordered = [int(stack_ids[i]) for i in np.argsort(-max_bytes, kind="stable")]
    largest_by_line: dict[tuple[Any, ...], int] = {}
    for stack in ordered:
        key = index.key(stack, "line") if stack else ()
        if key not in largest_by_line and len(largest_by_line) < max_sites:
            largest_by_line[key] = stack
    own_stacks = {*largest_by_line.values()}
    for stack in ordered:
        if len(own_stacks) >= max_stacks:
            break
        if (index.key(stack, "line") if stack else ()) in largest_by_line:
            own_stacks.add(stack)
    return {
        stack: stack if stack in own_stacks else largest_by_line.get(index.key(stack, "line") if stack else (), -1)
        for stack in ordered
    }


_SEPARATOR = re.compile(r"[/\\]")
_FOLDERS = re.compile(r"(?<![\w/\\.])(?:~|[A-Za-z]:)?(?:[/\\][^\s/\\:,;()'\"<>|]+)+[/\\]([^\s/\\:,;()'\"<>|]+)")
"""An absolute path with at least one folder; group 1 is its last part."""
_END = r"(?![^\s/\\:,;()'\"<>|])"
"""The end of a part of a path."""
_MODULE = "(module)"
"""Replacement for a module name, which reveals folders."""
_PACKAGES = re.compile(r"(?<![\w.])(?:\w+\.)+(?=\w)")
"""The packages in the name of generated code: "<attrs generated init package.module.Class>"."""
_QUOTED = re.compile(r"""(["'])((?:(?!\1).)*)(\1?)""", re.DOTALL)
"""A quoted key; the closing quote may be cut off."""
_WORD = re.compile(r"[^\s'\"()\[\]{},:;<>|]+")
_ROOT = re.compile(r"(?<=global of )(?:module )?[\w.]+(?=,|$)|(?<=class attribute in )[\w.]+(?=,|$)")
"""The file or the module of a global variable."""
_FILE = re.compile(r".*\.(?:py\w?|ipynb|so)|__main__")


class RedactedNames(SiteNames):
    """Site names without folders, source and arguments."""

    def file(self, filename: str) -> str:
        if filename.startswith("-m "):
            return _MODULE
        name = _last_part(filename)
        return printable(_PACKAGES.sub("", name) if name.startswith("<") else name)

    def source(self, code: Site | Frame) -> str | None:
        return None

    def command(self, program: Program) -> str:
        return super().command(dataclasses.replace(program, arguments=()))

    def referrer(self, text: str) -> str:
        # A quoted key may contain blanks, so it is shortened as a whole. Elsewhere each word is.
        text = _QUOTED.sub(lambda key: key[1] + _SEPARATOR.split(key[2])[-1] + key[3], text)
        text = _WORD.sub(lambda word: _SEPARATOR.split(word[0])[-1], text)
        return _ROOT.sub(lambda root: root[0] if _FILE.fullmatch(root[0]) else _MODULE, text)


class Redaction:
    """Remover of folders from texts."""

    def __init__(self, filenames: list[str], folder: str = "") -> None:
        """Prepare the paths to remove, which may contain any character.

        Args:
            filenames: Paths of files, of which the last part remains.
            folder: Path of a folder, of which nothing remains.
        """
        paths = sorted({name for name in filenames if _SEPARATOR.search(name)}, key=len, reverse=True)
        self._filenames = [
            (name, _last_part(name)) for name in paths if name.startswith(("/", "~", "\\")) or name[1:2] == ":"
        ]
        folder = folder.rstrip("/\\")
        self._folder = re.compile(re.escape(folder) + _END) if _SEPARATOR.search(folder) else None

    def text(self, text: str) -> str:
        """Return the text with each path reduced to its last part."""
        for path, short in self._filenames:
            if path in text:
                text = text.replace(path, short)
        if self._folder is not None:
            text = self._folder.sub("", text)
        return _FOLDERS.sub(lambda match: match[1], text)

    def redact(self, data: Any) -> Any:
        """Return plain values with every text redacted."""
        return map_texts(data, self.text)


def _last_part(path: str) -> str:
    return _SEPARATOR.split(path.rstrip("/\\"))[-1]
