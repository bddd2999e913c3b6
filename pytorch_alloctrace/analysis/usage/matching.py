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
    filename: str
    function: str
    line: int
    source: str | None

    @property
    def text(self) -> str | None:
        """`source` without its indentation, which changes when code is wrapped."""
        return None if self.source is None else self.source.strip()


@dataclass(frozen=True)
class LineMatch:
    """Two matching lines, by their indices in the matched sequences."""

    before: int
    after: int
    kind: str
    """SAME: equal text or, if that is unknown, equal number. NEAR: the nearest line of the function."""


def match_files(before: Iterable[str], after: Iterable[str], folders: tuple[str, str] = ("", "")) -> dict[str, str]:
    """Return the file of `after` that matches each file of `before`, if any; no file matches twice.

    First match equal paths, then equal paths within the working directories, then paths with the most trailing parts in
    common, at least the name.
    """
    files_before = list(dict.fromkeys(before))
    files_after = list(dict.fromkeys(after))
    matches: dict[str, str] = {}
    for relative in (False, True):
        file_by_name = {_relative_name(name, folders[1] if relative else ""): name for name in files_after}
        for name in files_before:
            candidate = file_by_name.get(_relative_name(name, folders[0] if relative else ""))
            if name not in matches and candidate is not None and candidate not in matches.values():
                matches[name] = candidate
    matched_after = set(matches.values())
    pairs = [
        (-_count_common_parts(name, candidate), row, column)
        for row, name in enumerate(files_before)
        for column, candidate in enumerate(files_after)
        if name not in matches and candidate not in matched_after and _count_common_parts(name, candidate)
    ]
    for _, row, column in sorted(pairs):
        if files_before[row] not in matches and files_after[column] not in matched_after:
            matches[files_before[row]] = files_after[column]
            matched_after.add(files_after[column])
    return matches


def _relative_name(filename: str, folder: str) -> str:
    path = PurePath(filename)
    return str(path.relative_to(folder)) if folder and path.is_relative_to(folder) else filename


def _count_common_parts(left: str, right: str) -> int:
    pairs = zip(reversed(PurePath(left).parts), reversed(PurePath(right).parts), strict=False)
    return len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))


def match_lines(before: Sequence[CodeLine], after: Sequence[CodeLine], files: Mapping[str, str]) -> list[LineMatch]:
    """Return matches of lines, each line in at most one; the lines of a sequence must differ in file or number."""
    matches: list[LineMatch] = []
    functions = _group_rows(range(len(after)), lambda row: (after[row].filename, after[row].function))
    lines_before = _group_rows(range(len(before)), lambda row: (files.get(before[row].filename), before[row].function))
    for function, rows in lines_before.items():
        candidates = functions.get(function, [])
        text_matches = _match_same_text(before, after, rows, candidates)
        anchors = [(before[match.before].line, after[match.after].line) for match in text_matches]
        unmatched = [row for row in rows if row not in {match.before for match in text_matches}]
        free_candidates = [row for row in candidates if row not in {match.after for match in text_matches}]
        matches += text_matches
        matches += _match_nearest(before, after, unmatched, free_candidates, anchors, NEAR, keep_order=True)
    return matches


def _group_rows(rows: Iterable[int], key: Callable[[int], Hashable]) -> dict[Hashable, list[int]]:
    groups: dict[Hashable, list[int]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def _match_same_text(
    before: Sequence[CodeLine], after: Sequence[CodeLine], rows: list[int], candidates: list[int]
) -> list[LineMatch]:
    def text_of(line: CodeLine) -> Hashable:
        return line.text if line.text is not None else (line.line,)

    rows_by_text = _group_rows(sorted(rows, key=lambda row: before[row].line), lambda row: text_of(before[row]))
    candidates_by_text = _group_rows(
        sorted(candidates, key=lambda row: after[row].line), lambda row: text_of(after[row])
    )
    matches: list[LineMatch] = []
    ambiguous: list[tuple[list[int], list[int]]] = []
    for text, same_rows in rows_by_text.items():
        same_candidates = candidates_by_text.get(text, [])
        if len(same_rows) == len(same_candidates):
            matches += [
                LineMatch(row, candidate, SAME) for row, candidate in zip(same_rows, same_candidates, strict=True)
            ]
        elif same_candidates:
            ambiguous.append((same_rows, same_candidates))
    anchors = [(before[match.before].line, after[match.after].line) for match in matches]
    for same_rows, same_candidates in ambiguous:
        matches += _match_nearest(before, after, same_rows, same_candidates, anchors, SAME, keep_order=False)
    return matches


def _match_nearest(
    before: Sequence[CodeLine],
    after: Sequence[CodeLine],
    rows: list[int],
    candidates: list[int],
    anchors: list[tuple[int, int]],
    kind: str,
    *,
    keep_order: bool,
) -> list[LineMatch]:
    """Match lines of a function, the nearest pair first; `anchors` are the line numbers of earlier matches.

    With keep_order, both lines of a pair must be next to the same anchor, so that a removed line is not matched with a
    line that was added elsewhere.
    """
    expected = {row: _expected_line(before[row].line, anchors) for row in rows}
    neighbours = {row: _find_neighbours(before[row].line, anchors, 0) for row in rows}
    candidate_neighbours = {row: _find_neighbours(after[row].line, anchors, 1) for row in candidates}
    pairs = sorted(
        (abs(expected[row] - after[candidate].line), row, candidate)
        for row in rows
        for candidate in candidates
        if not (keep_order and anchors) or neighbours[row] & candidate_neighbours[candidate]
    )
    matches: list[LineMatch] = []
    matched_rows: set[int] = set()
    matched_candidates: set[int] = set()
    for _, row, candidate in pairs:
        if row not in matched_rows and candidate not in matched_candidates:
            matched_rows.add(row)
            matched_candidates.add(candidate)
            matches.append(LineMatch(row, candidate, kind))
    return matches


def _expected_line(line: int, anchors: list[tuple[int, int]]) -> int:
    """Return the number that a line has if it moved as far as the nearest anchor."""
    before, after = min(anchors, key=lambda pair: abs(pair[0] - line), default=(line, line))
    return line + after - before


def _find_neighbours(line: int, anchors: list[tuple[int, int]], side: int) -> set[tuple[str, tuple[int, int]]]:
    above = [pair for pair in anchors if pair[side] < line]
    below = [pair for pair in anchors if pair[side] > line]
    neighbours = {("above", max(above, key=lambda pair: pair[side]))} if above else set()
    return neighbours | ({("below", min(below, key=lambda pair: pair[side]))} if below else set())
