"""Matching of source lines between two versions of a program.

Lines match if file, function and source text are equal. If several lines of a function have the same text, or the text
was changed, the nearest line matches, relative to where the surrounding lines moved.
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
    """Source text; None if unknown."""

    @property
    def text(self) -> str | None:
        """The source without its indentation, which changes when code is wrapped."""
        return None if self.source is None else self.source.strip()


@dataclass(frozen=True)
class LineMatch:
    """Two matching lines, by their indices in the matched sequences."""

    before: int
    after: int
    kind: str
    """SAME: equal text or, if that is unknown, equal number. NEAR: the nearest line of the function."""


def match_files(before: Iterable[str], after: Iterable[str], folders: tuple[str, str] = ("", "")) -> dict[str, str]:
    """Return the matching file of `after` for each file of `before` that has one; no file matches twice.

    Files match by their path or their path within the working directories of the two programs. The others match the
    file whose path has the most trailing parts in common, at least the name.
    """
    left = list(dict.fromkeys(before))
    right = list(dict.fromkeys(after))
    matches: dict[str, str] = {}
    for relative in (False, True):
        file_by_name = {_relative_name(name, folders[1] if relative else ""): name for name in right}
        for name in left:
            candidate = file_by_name.get(_relative_name(name, folders[0] if relative else ""))
            if name not in matches and candidate is not None and candidate not in matches.values():
                matches[name] = candidate
    taken = set(matches.values())
    pairs = [
        (-_count_common_parts(name, candidate), row, column)
        for row, name in enumerate(left)
        for column, candidate in enumerate(right)
        if name not in matches and candidate not in taken and _count_common_parts(name, candidate)
    ]
    for _, row, column in sorted(pairs):
        if left[row] not in matches and right[column] not in taken:
            matches[left[row]] = right[column]
            taken.add(right[column])
    return matches


def _relative_name(filename: str, folder: str) -> str:
    path = PurePath(filename)
    return str(path.relative_to(folder)) if folder and path.is_relative_to(folder) else filename


def _count_common_parts(left: str, right: str) -> int:
    """Count the equal trailing parts of two paths."""
    pairs = zip(reversed(PurePath(left).parts), reversed(PurePath(right).parts), strict=False)
    return len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))


def match_lines(before: Sequence[CodeLine], after: Sequence[CodeLine], files: Mapping[str, str]) -> list[LineMatch]:
    """Return pairs of lines, each line in at most one; `files` is from `match_files`.

    The lines of a sequence must differ in file or number.
    """
    matches: list[LineMatch] = []
    functions = _group_rows(range(len(after)), lambda row: (after[row].filename, after[row].function))
    lines_before = _group_rows(range(len(before)), lambda row: (files.get(before[row].filename), before[row].function))
    for function, rows in lines_before.items():
        candidates = functions.get(function, [])
        same = _match_same_text(before, after, rows, candidates)
        moved = [(before[match.before].line, after[match.after].line) for match in same]
        left = [row for row in rows if row not in {match.before for match in same}]
        right = [row for row in candidates if row not in {match.after for match in same}]
        matches += same
        matches += _match_nearest(before, after, left, right, moved, NEAR, keep_order=True)
    return matches


def _group_rows(rows: Iterable[int], key: Callable[[int], Hashable]) -> dict[Hashable, list[int]]:
    groups: dict[Hashable, list[int]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def _match_same_text(
    before: Sequence[CodeLine], after: Sequence[CodeLine], rows: list[int], others: list[int]
) -> list[LineMatch]:
    """Match the lines of a function that have the same text."""

    def text_of(line: CodeLine) -> Hashable:
        return line.text if line.text is not None else (line.line,)

    rows_by_text = _group_rows(sorted(rows, key=lambda row: before[row].line), lambda row: text_of(before[row]))
    others_by_text = _group_rows(sorted(others, key=lambda row: after[row].line), lambda row: text_of(after[row]))
    matches: list[LineMatch] = []
    ambiguous: list[tuple[list[int], list[int]]] = []
    for text, left in rows_by_text.items():
        right = others_by_text.get(text, [])
        if len(left) == len(right):
            matches += [LineMatch(row, other, SAME) for row, other in zip(left, right, strict=True)]
        elif right:
            ambiguous.append((left, right))
    moved = [(before[match.before].line, after[match.after].line) for match in matches]
    for left, right in ambiguous:
        matches += _match_nearest(before, after, left, right, moved, SAME, keep_order=False)
    return matches


def _match_nearest(
    before: Sequence[CodeLine],
    after: Sequence[CodeLine],
    rows: list[int],
    others: list[int],
    moved: list[tuple[int, int]],
    kind: str,
    *,
    keep_order: bool,
) -> list[LineMatch]:
    """Match lines of a function, the nearest pair first; `moved` has the numbers of lines that are matched already.

    With keep_order, both lines of a pair are next to the same matched line, so that a removed line is not matched with
    one that was added elsewhere.
    """
    expected = {row: _expected_line(before[row].line, moved) for row in rows}
    neighbours = {row: _find_neighbours(before[row].line, moved, 0) for row in rows}
    neighbours_of_others = {other: _find_neighbours(after[other].line, moved, 1) for other in others}
    pairs = sorted(
        (abs(expected[row] - after[other].line), row, other)
        for row in rows
        for other in others
        if not (keep_order and moved) or neighbours[row] & neighbours_of_others[other]
    )
    matches: list[LineMatch] = []
    matched_rows: set[int] = set()
    matched_others: set[int] = set()
    for _, row, other in pairs:
        if row not in matched_rows and other not in matched_others:
            matched_rows.add(row)
            matched_others.add(other)
            matches.append(LineMatch(row, other, kind))
    return matches


def _expected_line(line: int, moved: list[tuple[int, int]]) -> int:
    """Return the expected number of a line: it moved as far as the nearest matched line."""
    before, after = min(moved, key=lambda pair: abs(pair[0] - line), default=(line, line))
    return line + after - before


def _find_neighbours(line: int, moved: list[tuple[int, int]], side: int) -> set[tuple[str, tuple[int, int]]]:
    """Return the nearest matched lines above and below a line, if any."""
    above = [pair for pair in moved if pair[side] < line]
    below = [pair for pair in moved if pair[side] > line]
    neighbours = {("above", max(above, key=lambda pair: pair[side]))} if above else set()
    return neighbours | ({("below", min(below, key=lambda pair: pair[side]))} if below else set())
