"""Matching of source lines between two versions of a program.

Lines match if file, function and source text are equal. Of several lines of a function with the same text, lines with
the same neighbours match, then lines in order, or the nearest if a line was added or removed. A line whose text was
changed matches the nearest, relative to where the surrounding lines moved.
"""

from __future__ import annotations

import bisect
import itertools
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

SAME, NEAR = "same", "near"


@dataclass(frozen=True)
class CodeLine:
    filename: str
    function: str
    line: int
    source: str | None
    is_recorded: bool = field(default=True, compare=False)
    """False for a line that is in no stack of the trace, but in the source file."""

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
    """Return matches of lines, each line in at most one; the lines of a sequence must differ.

    A line that is in no stack matches only by its text: whether its edited version allocated is unknown.
    """
    matches: list[LineMatch] = []
    functions = _group_rows(range(len(after)), lambda row: (after[row].filename, after[row].function))
    lines_before = _group_rows(range(len(before)), lambda row: (files.get(before[row].filename), before[row].function))
    for function, rows in lines_before.items():
        candidates = functions.get(function, [])
        text_matches = _match_same_text(before, after, rows, candidates)
        anchors = [(before[match.before].line, after[match.after].line) for match in text_matches]
        matched_before, matched_after = (
            {getattr(match, side) for match in text_matches} for side in ("before", "after")
        )
        unmatched = [row for row in rows if row not in matched_before and before[row].is_recorded]
        free_candidates = [row for row in candidates if row not in matched_after and after[row].is_recorded]
        matches += text_matches
        matches += _match_nearest(before, after, unmatched, free_candidates, anchors, NEAR, keep_order=True)
    return matches


def _remove_matched(
    rows: list[int], candidates: list[int], matches: Sequence[LineMatch]
) -> tuple[list[int], list[int]]:
    before, after = {match.before for match in matches}, {match.after for match in matches}
    return [row for row in rows if row not in before], [row for row in candidates if row not in after]


def _group_rows(rows: Iterable[int], key: Callable[[int], Hashable]) -> dict[Hashable, list[int]]:
    groups: dict[Hashable, list[int]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def _match_same_text(
    before: Sequence[CodeLine], after: Sequence[CodeLine], rows: list[int], candidates: list[int]
) -> list[LineMatch]:
    matches = _match_same_neighbours(before, after, rows, candidates)
    rows, candidates = _remove_matched(rows, candidates, matches)
    rows_by_text = _group_rows(_in_order(before, rows), lambda row: _text_key(before[row]))
    candidates_by_text = _group_rows(_in_order(after, candidates), lambda row: _text_key(after[row]))
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


def _match_same_neighbours(
    before: Sequence[CodeLine], after: Sequence[CodeLine], rows: list[int], candidates: list[int]
) -> list[LineMatch]:
    """Match lines whose text, with the text of the lines above and below, is unique in both versions of a function."""
    rows_by_context, candidates_by_context = (
        _unique_contexts([(row, _text_key(lines[row])) for row in _in_order(lines, side)])
        for lines, side in ((before, rows), (after, candidates))
    )
    return [
        LineMatch(row, candidates_by_context[context], SAME)
        for context, row in rows_by_context.items()
        if context in candidates_by_context
    ]


def _unique_contexts(rows: Sequence[tuple[int, Hashable]]) -> dict[tuple[Hashable, ...], int]:
    """Return rows by their text and the texts of their neighbours, without those that occur more than once."""
    texts = [None, *(text for _, text in rows), None]
    contexts = [*zip(texts, texts[1:], texts[2:], strict=False)]
    counts = Counter(contexts)
    return {context: row for context, (row, _) in zip(contexts, rows, strict=True) if counts[context] == 1}


def _in_order(lines: Sequence[CodeLine], rows: list[int]) -> list[int]:
    return sorted(rows, key=lambda row: lines[row].line)


def _text_key(line: CodeLine) -> Hashable:
    return line.text if line.text is not None else (line.line,)


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
    from_before, from_after = sorted(anchors), sorted((after_line, line) for line, after_line in anchors)
    expected = {row: _expected_line(before[row].line, from_before) for row in rows}
    neighbours = {row: _find_neighbours(before[row].line, from_before) for row in rows}
    candidate_neighbours = {
        row: {(side, (line, number)) for side, (number, line) in _find_neighbours(after[row].line, from_after)}
        for row in candidates
    }
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
    """Return the number that a line has if it moved as far as the nearest anchor. anchors: in order."""
    index = bisect.bisect_left(anchors, (line, 0))
    before, after = min(
        anchors[max(index - 1, 0) : index + 1], key=lambda pair: abs(pair[0] - line), default=(line, line)
    )
    return line + after - before


def _find_neighbours(line: int, anchors: list[tuple[int, int]]) -> set[tuple[str, tuple[int, int]]]:
    """Return the nearest anchors above and below a line, by the first number of each. anchors: in order."""
    first, last = bisect.bisect_left(anchors, (line, 0)), bisect.bisect_left(anchors, (line + 1, 0))
    neighbours = {("above", anchors[first - 1])} if first else set()
    return neighbours | ({("below", anchors[last])} if last < len(anchors) else set())
