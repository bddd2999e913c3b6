"""Numbered tables of the page's texts, sites and frames, and redaction of folders and names."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from ...reading.modules import is_outside
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
        number = self._numbers.get(text)
        if number is None:
            number = self._numbers[text] = len(self.all)
            self.all.append(text)
        return number


class PageStacks:
    """Tables of the frames that the page shows, callers included, and of their sites."""

    def __init__(self, stacks: StackIndex, names: SiteNames) -> None:
        self._stacks = stacks
        self.names = names
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
        text_number = self.texts.number
        return [
            text_number(self.names.site(site)),
            text_number(self.names.file(site.filename)),
            site.line,
            text_number(self.names.function(site)),
            text_number(self.names.source(site) or ""),
            int(site.user),
        ]

    def frame(self, stack_id: int) -> int:
        """Return the number of a stack's innermost frame. Callers have lower numbers."""
        pending = []
        while stack_id not in self._frames and stack_id:
            pending.append(stack_id)
            stack_id = int(self._stacks.parent[stack_id])
        caller = self._frames.get(stack_id, -1) if stack_id else -1
        if not pending and not stack_id:
            return self._add_frame(0, -1)  # stack 0 (no stack was recorded) has a label
        for pending_id in reversed(pending):
            caller = self._add_frame(pending_id, caller)
        return caller

    def _add_frame(self, stack_id: int, parent: int) -> int:
        existing_frame = self._frames.get(stack_id)
        if existing_frame is not None:
            return existing_frame
        text_number = self.texts.number
        if stack_id == 0 or not self._stacks.frames(stack_id):
            label = self.names.site(Site.of_stack(self._stacks, stack_id))
            row = (parent, text_number(label), text_number(""), 0, text_number(""), 0, self.site(stack_id))
        else:
            frame = self._stacks.frame(stack_id)
            row = (
                parent,
                text_number(self.names.function(frame)),
                text_number(self.names.file(frame.filename)),
                frame.line,
                text_number(self.names.source(frame) or ""),
                int(self._stacks.is_user[stack_id]),
                self.site(stack_id),
            )
        frame_number = self._frames[stack_id] = len(self._frame_rows)
        self._frame_rows.append(row)
        return frame_number

    def pack(self, columns: Columns) -> dict[str, Any]:
        """Add the frames to the columns and return their JSON references, and the sites."""
        rows = np.array(self._frame_rows, dtype=np.int64).reshape(-1, len(_FRAME_COLUMNS))
        return {
            "frames": {name: columns.add(rows[:, index]) for index, name in enumerate(_FRAME_COLUMNS)},
            "sites": self._site_rows,
        }


def merge_stacks(
    stacks: StackIndex,
    stack_ids: npt.NDArray[np.int64],
    peak_bytes: npt.NDArray[np.int64],
    max_stacks: int,
    max_sites: int,
) -> dict[int, int]:
    """Return the representative of each stack: the stack itself, the largest of its line, or -1.

    The largest stacks represent themselves, up to `max_stacks`. Stacks outside the `max_sites` largest lines get -1.
    """
    stacks_by_size = [int(stack_ids[i]) for i in np.argsort(-peak_bytes, kind="stable")]
    largest_by_line: dict[tuple[Any, ...], int] = {}
    for stack in stacks_by_size:
        line = stacks.key(stack, "line") if stack else ()
        if line not in largest_by_line and len(largest_by_line) < max_sites:
            largest_by_line[line] = stack
    own_stacks = {*largest_by_line.values()}
    for stack in stacks_by_size:
        if len(own_stacks) >= max_stacks:
            break
        if (stacks.key(stack, "line") if stack else ()) in largest_by_line:
            own_stacks.add(stack)
    return {
        stack: stack if stack in own_stacks else largest_by_line.get(stacks.key(stack, "line") if stack else (), -1)
        for stack in stacks_by_size
    }


_SEPARATOR = re.compile(r"[/\\]")
_FOLDERS = re.compile(r"(?<![\w/\\.])(?:~|[A-Za-z]:)?(?:[/\\][^\s/\\:,;()'\"<>|]+)+[/\\]([^\s/\\:,;()'\"<>|]+)")
"""An absolute path with at least one folder; group 1 is its last part."""
_PART_END = r"(?![^\s/\\:,;()'\"<>|])"
_REDACTED_MODULE = "(module)"
"""Replaces names of modules, since they reveal folders."""
_PACKAGES = re.compile(r"(?<![\w.])(?:\w+\.)+(?=\w)")
"""The packages in the name of generated code: "<attrs generated init package.module.Class>"."""
_QUOTED = re.compile(r"""(["'])((?:(?!\1).)*)(\1?)""", re.DOTALL)
"""A quoted key; the closing quote may be cut off."""
_WORD = re.compile(r"[^\s'\"()\[\]{},:;<>|]+")
_OWNER = re.compile(r"(?<=global of )(?:module )?[\w.]+(?=,|$)|(?<=class attribute in )[\w.]+(?=,|$)")
"""The file or the module that owns a global variable or a class attribute."""
_FILE = re.compile(r".*\.(?:py\w?|ipynb|so)|__main__")


class RedactedNames(SiteNames):
    """Site names without folders, source and arguments."""

    def file(self, filename: str) -> str:
        if filename.startswith("-m "):
            return _REDACTED_MODULE
        name = _last_part(filename)
        return printable(_PACKAGES.sub("", name) if name.startswith("<") else name)

    def source(self, code: Site | Frame) -> str | None:
        return None

    def command(self, program: Program) -> str:
        return super().command(dataclasses.replace(program, arguments=()))

    def referrer(self, text: str) -> str:
        # A quoted key may contain blanks: it is shortened as one path. Outside quotes, each word is.
        text = _QUOTED.sub(lambda key: key[1] + _SEPARATOR.split(key[2])[-1] + key[3], text)
        text = _WORD.sub(lambda word: _SEPARATOR.split(word[0])[-1], text)
        return _OWNER.sub(lambda owner: owner[0] if _FILE.fullmatch(owner[0]) else _REDACTED_MODULE, text)


NAMES = "names"
Redact = bool | Literal["names"]
"""Redaction of a page: none, without names, or with the names of the program, too ("names")."""
_TOKEN = re.compile(r"""(["'])(?:(?!\1).)*\1?|[\w-]+\.(?:py\w?|ipynb|so)\b|[^\W\d]\w*""", re.DOTALL)
"""A quoted key, a file or a word in a referrer path."""
_AUTOGRAD_FUNCTION = re.compile(r"\b([^\W\d]\w*)(Backward)\b")
"""The node of a torch.autograd.Function. Nodes of torch's operators end with a digit."""
_IDENTIFIER = re.compile(r"[^\W\d]\w*")
_PHRASES = frozenset(
    """a an and args arguments at attribute autograd been by class closed closure collector ctx cycle default deque
    detect dict exception finalizer for freed func functools garbage generator global grad grad_fn gradient graph
    has have hook in it keywords list local lru_cache may module more not of over partial queue reference set
    several suspended that the thread through traceback tuple value which yet""".split()  # noqa: SIM905
)
"""Words of referrer paths that are not of the program."""
_INTERNAL = frozenset(("args", "ctx", "func", "functools", "grad", "grad_fn", "keywords", "partial"))
"""Those that are also attributes."""
_FIRST_PHRASES = frozenset(("a", "the"))
"""Words with which a referrer path begins that does not begin with a name: "the suspended run()"."""
_LANGUAGE_NAME = re.compile(r"<\w+>|__\w+__")
"""A name of the language, such as "<locals>" or "__init__". A private name, such as "__run", is of the program."""
_NUMBERED_CELL = re.compile(r"In\[\d+\]")
_LANGUAGE_FILE = re.compile(r".*\.(py\w?|ipynb)(\[\d+\])?")


class NeutralNames(RedactedNames):
    """Redacted names in which those of the program are replaced: "file_1.py:12 in class_1.function_2".

    Equal names have equal replacements: a file by its last part, everything else word by word. Names of libraries stay.
    """

    def __init__(self, working_directory: str, is_user_file: Callable[[str], bool], stacks: StackIndex) -> None:
        super().__init__(working_directory)
        self._is_user_file = is_user_file
        self._replacements: dict[str, str] = {}
        self._counts: Counter[str] = Counter()
        self._library_files: set[str] = set()
        self._library_classes: set[str] = set()
        user_files: set[str] = set()
        _, first_stacks = np.unique(stacks.functions(np.arange(len(stacks))), axis=1, return_index=True)
        for stack in first_stacks.tolist():
            frame = stacks.frame(stack) if stack and stacks.frames(stack) else None
            if frame is not None and is_user_file(frame.filename):
                user_files.add(_last_part(frame.filename))
            elif frame is not None:
                self._library_files.add(_last_part(frame.filename))
                self._library_classes.update(_IDENTIFIER.findall(frame.function.rpartition(".")[0]))
        self._library_files -= user_files

    def file(self, filename: str) -> str:
        name = super().file(filename)
        if not filename or name == _REDACTED_MODULE or self._is_library(filename) or _NUMBERED_CELL.fullmatch(name):
            return name
        if name.startswith("<"):
            return "<generated code>"
        source = _LANGUAGE_FILE.fullmatch(name)
        return self._replace("file", name) + (f".{source[1]}{source[2] or ''}" if source else "")

    def function(self, place: Site | Frame) -> str:
        if not place.filename:
            return _AUTOGRAD_FUNCTION.sub(lambda node: self._replace_word(node[1], "class") + node[2], place.function)
        if self._is_library(place.filename):
            return place.function
        parts = place.function.split(".")
        is_function = [after == "<locals>" for after in parts[1:]] + [True]
        return ".".join(
            part if _LANGUAGE_NAME.fullmatch(part) else self._replace("function" if is_last else "class", part)
            for part, is_last in zip(parts, is_function, strict=True)
        )

    def module(self, name: str) -> str:
        if is_outside(name) or name.endswith(" workspace"):  # of a library
            return name
        return _IDENTIFIER.sub(lambda word: self._replace_word(word[0], "module"), name)

    def mark(self, name: str) -> str:
        return self._replace("mark", name)

    def referrer(self, text: str) -> str:
        text = super().referrer(text)

        def replace(match: re.Match[str]) -> str:
            token, before, after = match[0], text[: match.start()][-1:], text[match.end() :][:1]
            if match[1]:
                return f'"{self._replace("key", token)}"'
            if "." in token or "-" in token:
                return self.file(token)
            is_name = before == "." or after in (".", "[", "(") or (not before and token not in _FIRST_PHRASES)
            if token in _INTERNAL or (token in _PHRASES and not is_name):
                return token
            return self._replace_word(token, "function" if after == "(" else "variable")

        return _TOKEN.sub(replace, text)

    def _is_library(self, filename: str) -> bool:
        # Referrer paths contain only the last part of a file's path.
        return not self._is_user_file(filename) if _SEPARATOR.search(filename) else filename in self._library_files

    def _replace_word(self, word: str, kind: str) -> str:
        if _LANGUAGE_NAME.fullmatch(word) or word in self._library_classes:
            return word
        return self._replace("class" if word[0].isupper() else kind, word)

    def _replace(self, kind: str, word: str) -> str:
        if word not in self._replacements:
            self._counts[kind] += 1
            self._replacements[word] = f"{kind}_{self._counts[kind]}"
        return self._replacements[word]


class Redaction:
    """Remover of folders from texts.

    Known paths are removed literally, since `_FOLDERS` does not match every character. Of `filenames`, the last parts
    remain; of `folder`, nothing.
    """

    def __init__(self, filenames: list[str], folder: str = "") -> None:
        paths = sorted({name for name in filenames if _SEPARATOR.search(name)}, key=len, reverse=True)
        self._filenames = [
            (name, _last_part(name)) for name in paths if name.startswith(("/", "~", "\\")) or name[1:2] == ":"
        ]
        folder = folder.rstrip("/\\")
        self._folder = re.compile(re.escape(folder) + _PART_END) if _SEPARATOR.search(folder) else None

    def text(self, text: str) -> str:
        """Return the text with each path reduced to its last part."""
        for path, last_part in self._filenames:
            if path in text:
                text = text.replace(path, last_part)
        if self._folder is not None:
            text = self._folder.sub("", text)
        return _FOLDERS.sub(lambda match: match[1], text)

    def redact(self, data: Any) -> Any:
        """Return a copy of JSON data with every text redacted."""
        return map_texts(data, self.text)


def _last_part(path: str) -> str:
    return _SEPARATOR.split(path.rstrip("/\\"))[-1]
