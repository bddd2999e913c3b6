"""Which line of one run is which line of another, when the program was changed between them.

Lines are the same if file, function and source text are. If several lines of a function have the same text, or the text
was changed, the nearest line is taken, seen from where the lines around it moved to.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

SAME, NEAR = "same", "near"


@dataclass(frozen=True)
class CodeLine:
    """A line of a program."""

    filename: str
    function: str
    line: int
    source: str | None
    """None if unknown."""

    @property
    def text(self) -> str | None:
        """The source without its indentation, which moves when code is wrapped."""
        return None if self.source is None else self.source.strip()


@dataclass(frozen=True)
class LineMatch:
    """Two lines that are one, by their indices in the sequences that were matched."""

    before: int
    after: int
    kind: str
    """"same": the text is the same (if it is unknown: the number); "near": the nearest line of the function."""


def match_files(before: Iterable[str], after: Iterable[str], folders: tuple[str, str] = ("", "")) -> dict[str, str]:
    """The file of `after` for each file of `before` that has one; no file is given twice.

    Files match by their path or their path within the working directories of the two programs; otherwise those that
    agree in most of the last parts of their paths, at least in the name.
    """
    left = list(dict.fromkeys(before))
    right = list(dict.fromkeys(after))
    found: dict[str, str] = {}
    for relative in (False, True):
        known = {_within(name, folders[1] if relative else ""): name for name in right}
        for name in left:
            other = known.get(_within(name, folders[0] if relative else ""))
            if name not in found and other is not None and other not in found.values():
                found[name] = other
    taken = set(found.values())
    pairs = [
        (-_common_parts(name, other), row, column)
        for row, name in enumerate(left)
        for column, other in enumerate(right)
        if name not in found and other not in taken and _common_parts(name, other)
    ]
    for _, row, column in sorted(pairs):
        if left[row] not in found and right[column] not in taken:
            found[left[row]] = right[column]
            taken.add(right[column])
    return found


def _within(filename: str, folder: str) -> str:
    path = PurePath(filename)
    return str(path.relative_to(folder)) if folder and path.is_relative_to(folder) else filename


def _common_parts(one: str, other: str) -> int:
    """How many of the last parts of two paths agree."""
    pairs = zip(reversed(PurePath(one).parts), reversed(PurePath(other).parts), strict=False)
    return len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))


def match_lines(before: Sequence[CodeLine], after: Sequence[CodeLine], files: Mapping[str, str]) -> list[LineMatch]:
    """Pairs of lines, each line in at most one. files: from `match_files`. Lines of one sequence differ in file or
    number."""
    matches: list[LineMatch] = []
    functions = _grouped(range(len(after)), lambda row: (after[row].filename, after[row].function))
    ours = _grouped(range(len(before)), lambda row: (files.get(before[row].filename), before[row].function))
    for function, rows in ours.items():
        others = functions.get(function, [])
        same = _same_text(before, after, rows, others)
        moved = [(before[match.before].line, after[match.after].line) for match in same]
        left = [row for row in rows if row not in {match.before for match in same}]
        right = [row for row in others if row not in {match.after for match in same}]
        matches += same
        matches += _nearest(before, after, left, right, moved, NEAR, keep_order=True)
    return matches


def _grouped(rows: Iterable[int], key: Callable[[int], Hashable]) -> dict[Hashable, list[int]]:
    groups: dict[Hashable, list[int]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def _same_text(
    before: Sequence[CodeLine], after: Sequence[CodeLine], rows: list[int], others: list[int]
) -> list[LineMatch]:
    """The lines of one function whose text is the same."""

    def text_of(line: CodeLine) -> Hashable:
        return line.text if line.text is not None else (line.line,)

    ours = _grouped(sorted(rows, key=lambda row: before[row].line), lambda row: text_of(before[row]))
    theirs = _grouped(sorted(others, key=lambda row: after[row].line), lambda row: text_of(after[row]))
    found: list[LineMatch] = []
    unequal: list[tuple[list[int], list[int]]] = []
    for text, left in ours.items():
        right = theirs.get(text, [])
        if len(left) == len(right):
            found += [LineMatch(row, other, SAME) for row, other in zip(left, right, strict=True)]
        elif right:
            unequal.append((left, right))
    moved = [(before[match.before].line, after[match.after].line) for match in found]
    for left, right in unequal:
        found += _nearest(before, after, left, right, moved, SAME, keep_order=False)
    return found


def _nearest(
    before: Sequence[CodeLine],
    after: Sequence[CodeLine],
    rows: list[int],
    others: list[int],
    moved: list[tuple[int, int]],
    kind: str,
    *,
    keep_order: bool,
) -> list[LineMatch]:
    """Pairs of lines of one function, nearest first. moved: lines that are known to be the same, before and after.

    keep_order: only pairs with the same known line before or after them, so that a removed line is not matched with one
    that was added elsewhere.
    """
    expected = {row: _moved_to(before[row].line, moved) for row in rows}
    around = {row: _around(before[row].line, moved, 0) for row in rows}
    around_others = {other: _around(after[other].line, moved, 1) for other in others}
    pairs = sorted(
        (abs(expected[row] - after[other].line), row, other)
        for row in rows
        for other in others
        if not (keep_order and moved) or around[row] & around_others[other]
    )
    found: list[LineMatch] = []
    placed: set[int] = set()
    taken: set[int] = set()
    for _, row, other in pairs:
        if row not in placed and other not in taken:
            placed.add(row)
            taken.add(other)
            found.append(LineMatch(row, other, kind))
    return found


def _moved_to(line: int, moved: list[tuple[int, int]]) -> int:
    """Where to look for a line: it moved as far as the nearest known one."""
    was, now = min(moved, key=lambda pair: abs(pair[0] - line), default=(line, line))
    return line + now - was


def _around(line: int, moved: list[tuple[int, int]], side: int) -> set[tuple[str, tuple[int, int]]]:
    """The nearest known lines above and below a line, as far as there are any."""
    above = [pair for pair in moved if pair[side] < line]
    below = [pair for pair in moved if pair[side] > line]
    found = {("above", max(above, key=lambda pair: pair[side]))} if above else set()
    return found | ({("below", min(below, key=lambda pair: pair[side]))} if below else set())
