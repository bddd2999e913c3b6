"""The stacks and lines of code that the page names: each once, by number."""

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
    """Texts by number."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        """The number of a text; the same for the same text."""
        number = self._numbers.get(text)
        if number is None:
            number = self._numbers[text] = len(self.all)
            self.all.append(text)
        return number


class PageStacks:
    """The stacks that the page shows, with all their callers, and the site of each.

    Where there are more than fit, the stacks of a line that hold least stand under the one that holds most.
    """

    def __init__(self, stacks: StackIndex, names: SiteNames) -> None:
        self._stacks = stacks
        self._names = names
        self.texts = Texts()
        self._sites: dict[tuple[Any, ...], int] = {}
        self._site_rows: list[list[Any]] = []
        self._of_stack: dict[int, int] = {}
        self._frames: dict[int, int] = {}
        self._frame_rows: list[tuple[int, int, int, int, int, int, int]] = []

    def site(self, stack_id: int) -> int:
        """The number of a stack's line of code."""
        known = self._of_stack.get(stack_id)
        if known is None:
            key = self._stacks.key(stack_id, "line") if stack_id else ()
            known = self._sites.get(key, -1)
            if known < 0:
                known = self._sites[key] = len(self._site_rows)
                self._site_rows.append(self._site_row(stack_id))
            self._of_stack[stack_id] = known
        return known

    def _site_row(self, stack_id: int) -> list[Any]:
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
        """The number of a stack's innermost frame; its callers have numbers too, lower ones."""
        pending = []
        while stack_id not in self._frames and stack_id:
            pending.append(stack_id)
            stack_id = int(self._stacks.parent[stack_id])
        above = self._frames.get(stack_id, -1) if stack_id else -1
        if not pending and not stack_id:
            return self._add(0, -1)  # no stack is known: that has a name, too
        for one in reversed(pending):
            above = self._add(one, above)
        return above

    def _add(self, stack_id: int, parent: int) -> int:
        known = self._frames.get(stack_id)
        if known is not None:
            return known
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
        made = self._frames[stack_id] = len(self._frame_rows)
        self._frame_rows.append(row)
        return made

    def packed(self, columns: Columns) -> dict[str, Any]:
        """As the page has them."""
        rows = np.array(self._frame_rows, dtype=np.int64).reshape(-1, len(_FRAME_COLUMNS))
        return {
            "frames": {name: columns.add(rows[:, index]) for index, name in enumerate(_FRAME_COLUMNS)},
            "sites": self._site_rows,
        }


def fewer_stacks(
    index: StackIndex, stack_ids: npt.NDArray[np.int64], most: npt.NDArray[np.int64], bound: int, site_bound: int
) -> dict[int, int]:
    """The stack under which each of these is shown. most: the most bytes that each held.

    Up to `bound` stacks stand for themselves; of the lines, at most `site_bound`: those that hold less are one, under
    stack -1.
    """
    ordered = [int(stack_ids[i]) for i in np.argsort(-most, kind="stable")]
    first_of_line: dict[tuple[Any, ...], int] = {}
    for stack in ordered:
        key = index.key(stack, "line") if stack else ()
        if key not in first_of_line and len(first_of_line) < site_bound:
            first_of_line[key] = stack
    kept = {*first_of_line.values()}
    for stack in ordered:
        if len(kept) >= bound:
            break
        if (index.key(stack, "line") if stack else ()) in first_of_line:
            kept.add(stack)
    return {
        stack: stack if stack in kept else first_of_line.get(index.key(stack, "line") if stack else (), -1)
        for stack in ordered
    }


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
