"""Matching of source lines between two versions of a program.

Lines of equal text match first: those of one function, then those of the pair of functions that have the most
remaining text in common, in any file. Within a pair of functions, lines with the same neighbours match, then lines in
order, or the nearest if a line was added or removed. Lines whose text was changed match by similarity, to which
matched neighbours add, or as the only ones between the same neighbours; in another function only if they hold about as
many bytes and no other line is nearly as similar. All other lines stay unmatched.
"""

from __future__ import annotations

import bisect
import itertools
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TypeVar

import numpy as np
import numpy.typing as npt

SAME, NEAR = "same", "near"
_EVIDENT_WORDS = 3
"""Minimum number of different words in a text that shows by itself that its line moved to another function."""
_MAX_PLACES = 10
"""Maximum number of unmatched lines with a text that still shows where a function moved."""
_MIN_SIMILARITY = (0.8, 0.5, 0.4)
"""Minimum similarity of lines whose text was changed, by the number of their neighbours that match each other."""
_MAX_EDITED = 1000
"""Maximum number of lines of each version that are compared by similarity: those with the most bytes."""
_NEIGHBOUR_WEIGHT = 0.125
"""Similarity that a matching neighbour adds."""
_MIN_MOVED_SIMILARITY, _MIN_LEAD, _MAX_RATIO = 0.7, 0.1, 4
"""For a changed line in another function: minimum similarity and lead over other matches, maximum ratio of bytes."""
_ASSIGNMENT = re.compile(r"^(return\b|\w+\s*=(?!=))\s*")
_MIN_COMMON_SHARE = 0.5
"""Minimum share of equal texts in a renamed file or function."""

_Key = TypeVar("_Key", bound=Hashable)
_Row = TypeVar("_Row")
Function = tuple[str, str]
"""File and qualified name of a function."""
_Functions = tuple[Function, Function]
"""A function before and one after."""


@dataclass(frozen=True)
class CodeLine:
    filename: str
    function: str
    line: int
    source: str | None
    is_recorded: bool = field(default=True, compare=False)
    """False for a line that is in no stack of the trace, but in the source file."""
    live_bytes: int = field(default=0, compare=False)
    """Bytes at the compared position."""

    @property
    def text(self) -> str | None:
        """`source` without its indentation, which changes when code is wrapped."""
        return None if self.source is None else self.source.strip()

    @property
    def expression(self) -> str:
        """`text` without `return`, or the local variable that the line assigns."""
        return _ASSIGNMENT.sub("", self.text or "", count=1)

    @property
    def place(self) -> Function:
        return self.filename, self.function


@dataclass(frozen=True)
class LineMatch:
    """Two matching lines, by their indices in the matched sequences."""

    before: int
    after: int
    kind: str
    """SAME: equal text or, if that is unknown, equal number. NEAR: the text was changed."""


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


def match_by_text(
    before: Iterable[CodeLine], after: Iterable[CodeLine], key: Callable[[CodeLine], _Key]
) -> dict[_Key, _Key]:
    """Return the renamed files or functions (`key`): at least half of their texts are equal."""
    texts_before, texts_after = (
        {group: {line.text for line in rows} - {None} for group, rows in _group_rows(lines, key).items()}
        for lines in (before, after)
    )
    groups = _group_rows(
        ((group, text) for group, texts in texts_after.items() for text in texts), lambda pair: pair[1]
    )
    common: dict[tuple[_Key, _Key], float] = {}
    for group, texts in texts_before.items():
        counts = Counter(other for text in texts for other, _ in groups.get(text, []))
        shares = {other: count / max(len(texts), len(texts_after[other])) for other, count in counts.items()}
        common |= {(group, other): share for other, share in shares.items() if share >= _MIN_COMMON_SHARE}
    return _match_best(common)


def _match_best(scores: Mapping[tuple[_Key, _Key], float]) -> dict[_Key, _Key]:
    """Return the pairs with the highest scores, each key in at most one; of rivals with equal scores none."""
    matches: dict[_Key, _Key] = {}
    matched: set[_Key] = set()
    for _, pairs in itertools.groupby(sorted(scores, key=scores.__getitem__, reverse=True), scores.__getitem__):
        free = [(key, other) for key, other in pairs if key not in matches and other not in matched]
        counts = Counter(key for key, _ in free), Counter(other for _, other in free)
        decided = {key: other for key, other in free if counts[0][key] == counts[1][other] == 1}
        matches |= decided
        matched.update(decided.values())
    return matches


def match_lines(before: Sequence[CodeLine], after: Sequence[CodeLine], files: Mapping[str, str]) -> list[LineMatch]:
    """Return matches of lines, each line in at most one; the lines of a sequence must differ.

    A line that is in no stack matches only by its text: whether its edited version allocated is unknown.
    """
    rows, candidates = [*range(len(before))], [*range(len(after))]
    functions = _group_rows(candidates, lambda row: after[row].place)
    matches: list[LineMatch] = []
    for (filename, function), function_rows in _group_rows(rows, lambda row: before[row].place).items():
        same_function = functions.get((files.get(filename, ""), function), [])
        matches += _match_same_text(before, after, function_rows, same_function)
    rows, candidates = _remove_matched(rows, candidates, matches)
    rows, candidates = (
        [row for row in side if lines[row].text is not None] for lines, side in ((before, rows), (after, candidates))
    )
    matches += _match_moved_text(before, after, files, rows, candidates)
    rows, candidates = _remove_matched(rows, candidates, matches)
    matches += _match_cancelling(before, after, rows, candidates)
    return [*matches, *_match_similar(before, after, files, matches)]


def _remove_matched(
    rows: list[int], candidates: list[int], matches: Sequence[LineMatch]
) -> tuple[list[int], list[int]]:
    before, after = {match.before for match in matches}, {match.after for match in matches}
    return [row for row in rows if row not in before], [row for row in candidates if row not in after]


def _group_rows(rows: Iterable[_Row], key: Callable[[_Row], _Key]) -> dict[_Key, list[_Row]]:
    groups: dict[_Key, list[_Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def _match_moved_text(
    before: Sequence[CodeLine],
    after: Sequence[CodeLine],
    files: Mapping[str, str],
    rows: list[int],
    candidates: list[int],
) -> list[LineMatch]:
    """Match equal text in different functions, the pair of functions with the clearest evidence first."""
    matches: list[LineMatch] = []
    ambiguous: set[_Functions] = set()
    while True:
        common = _find_common_texts(before, after, rows, candidates)
        scores = {
            pair: (sum(texts.values()), *_measure_closeness(*pair, files))
            for pair, texts in common.items()
            if pair not in ambiguous and sum(texts.values()) >= 1
        }
        rows_by_place = _group_rows(rows, lambda row: before[row].place)
        candidates_by_place = _group_rows(candidates, lambda row: after[row].place)
        for _, pairs in itertools.groupby(sorted(scores, key=lambda pair: scores[pair], reverse=True), scores.get):
            # A function that was matched in this round has less text left: the next round scores it anew.
            free = [pair for pair in pairs if pair[0] in rows_by_place and pair[1] in candidates_by_place]
            ambiguous |= _find_rivals(free, common)
            for pair in free:
                if pair not in ambiguous and pair[0] in rows_by_place and pair[1] in candidates_by_place:
                    sides = rows_by_place.pop(pair[0]), candidates_by_place.pop(pair[1])
                    matches += _match_same_text(before, after, *sides)
        if scores.keys() <= ambiguous:
            return matches
        rows, candidates = _remove_matched(rows, candidates, matches)


def _find_rivals(pairs: Sequence[_Functions], common: Mapping[_Functions, Iterable[str]]) -> set[_Functions]:
    """Return the pairs of which a text of one function would also match in the other function of another pair."""
    places = {pair: [(side, pair[side], text) for side in (0, 1) for text in common[pair]] for pair in pairs}
    counts = Counter(itertools.chain.from_iterable(places.values()))
    return {pair for pair, pair_places in places.items() if any(counts[place] > 1 for place in pair_places)}


def _measure_closeness(before: Function, after: Function, files: Mapping[str, str]) -> tuple[bool, bool]:
    """Return whether the functions have one name, apart from their classes, and whether they are in one file."""
    return before[1].rpartition(".")[2] == after[1].rpartition(".")[2], files.get(before[0]) == after[0]


def _find_common_texts(
    before: Sequence[CodeLine], after: Sequence[CodeLine], rows: list[int], candidates: list[int]
) -> dict[_Functions, dict[str, float]]:
    """Return, for each pair of functions, the texts that both have and how clearly each shows that its line moved.

    The evidence is less for a text of few words, and is shared between all lines with the text.
    """
    rows_by_text = _group_rows(rows, lambda row: before[row].text or "")
    common: dict[_Functions, dict[str, float]] = {}
    for text, same_candidates in _group_rows(candidates, lambda row: after[row].text or "").items():
        same_rows = rows_by_text.get(text, [])
        count = max(len(same_rows), len(same_candidates))
        if not same_rows or count > _MAX_PLACES:
            continue
        evidence = min(1.0, len(_words_of(text)) / _EVIDENT_WORDS) / count
        for row, candidate in itertools.product(same_rows, same_candidates):
            common.setdefault((before[row].place, after[candidate].place), {})[text] = evidence
    return common


def _match_cancelling(
    before: Sequence[CodeLine], after: Sequence[CodeLine], rows: list[int], candidates: list[int]
) -> list[LineMatch]:
    """Match lines of equal text and bytes, whichever of them moved where: they do not differ."""
    candidates_by_key = _group_rows(_in_order(after, candidates), lambda row: (after[row].text, after[row].live_bytes))
    return [
        LineMatch(row, candidate, SAME)
        for (text, live_bytes), same_rows in _group_rows(
            _in_order(before, rows), lambda row: (before[row].text, before[row].live_bytes)
        ).items()
        if live_bytes
        for row, candidate in zip(same_rows, candidates_by_key.get((text, live_bytes), []), strict=False)
    ]


def _match_similar(
    before: Sequence[CodeLine],
    after: Sequence[CodeLine],
    files: Mapping[str, str],
    matches: Sequence[LineMatch],
) -> list[LineMatch]:
    """Match recorded lines whose text was changed, the most similar first; of equally similar lines none.

    Lines without similarity match if each is the only unmatched line between the same neighbours.
    """
    neighbours_before = _find_neighbours(before, files, {match.before: match.after for match in matches})
    neighbours_after = _find_neighbours(
        after, {line.filename: line.filename for line in after}, {match.after: match.after for match in matches}
    )
    counts = Counter(neighbours_before.values()), Counter(neighbours_after.values())
    rows, candidates = (
        sorted((row for row in side if lines[row].is_recorded), key=lambda row: -lines[row].live_bytes)[:_MAX_EDITED]
        for lines, side in ((before, neighbours_before), (after, neighbours_after))
    )
    replacements = {
        gap: column
        for column, candidate in enumerate(candidates)
        if counts[0][gap := neighbours_after[candidate]] == counts[1][gap] == 1
    }
    scores: dict[tuple[int, int], float] = {}
    moved: set[tuple[int, int]] = set()
    texts = [[line.text for line in side] for side in (before, after)]
    expressions = [[line.expression for line in side] for side in (before, after)]
    measures = (_measure_similarities(side, other, rows, candidates) for side, other in (texts, expressions))
    for row, similarities, own_similarities in zip(rows, *measures, strict=True):
        gap = neighbours_before[row]
        alike = np.flatnonzero(np.maximum(similarities, own_similarities) >= min(_MIN_SIMILARITY)).tolist()
        for column in {*alike, *([replacements[gap]] if gap in replacements else [])}:
            candidate = candidates[column]
            line, other, similarity = before[row], after[candidate], similarities[column]
            shared = sum(left == right for left, right in zip(gap, neighbours_after[candidate], strict=True))
            is_edited = line.text != other.text or line.text is None
            is_alike = similarity >= _MIN_SIMILARITY[shared] or replacements.get(gap) == column
            if not shared and (files.get(line.filename), line.function) != other.place:
                moved.add((row, candidate))
                is_alike |= own_similarities[column] >= _MIN_MOVED_SIMILARITY and _is_evident_move(line, other)
                similarity = max(similarity, own_similarities[column])
                shared = line.expression == other.expression
            if bool(line.live_bytes) != bool(other.live_bytes):
                shared = 0  # else the call of a new function would be the edited version of the line that moved there
            if is_edited and is_alike:
                # Rounded: the order of the words must not decide between equally similar lines.
                scores[row, candidate] = round(float(similarity) + _NEIGHBOUR_WEIGHT * shared, 6)
    certain = _drop_uncertain(scores, moved)
    return [LineMatch(row, candidate, NEAR) for row, candidate in _match_best(certain).items()]


def _drop_uncertain(
    scores: Mapping[tuple[int, int], float], moved: set[tuple[int, int]]
) -> dict[tuple[int, int], float]:
    """Return the scores without the pairs in `moved` that another pair with one of their lines nearly equals."""
    rivals = _group_rows(((key, pair) for pair in scores for key in enumerate(pair)), lambda entry: entry[0])
    leads = {
        pair: min(
            (scores[pair] - scores[other] for key in enumerate(pair) for _, other in rivals[key] if other != pair),
            default=_MIN_LEAD,
        )
        for pair in moved & scores.keys()
    }
    return {pair: score for pair, score in scores.items() if leads.get(pair, _MIN_LEAD) >= _MIN_LEAD}


def _is_evident_move(before: CodeLine, after: CodeLine) -> bool:
    """Return whether two lines in different functions have comparable bytes, and enough words in common."""
    smaller, larger = sorted((before.live_bytes, after.live_bytes))
    words = len(_words_of(before.expression) & _words_of(after.expression))
    min_words = 2 if before.expression == after.expression else _EVIDENT_WORDS
    return 0 < larger <= _MAX_RATIO * smaller and words >= min_words


def _find_neighbours(
    lines: Sequence[CodeLine], files: Mapping[str, str], matched: Mapping[int, int]
) -> dict[int, tuple[Hashable, Hashable]]:
    """Return the nearest matched lines above and below each unmatched line, or its function in the later version."""
    neighbours: dict[int, tuple[Hashable, Hashable]] = {}
    for (filename, function), rows in _group_rows(range(len(lines)), lambda row: lines[row].place).items():
        edge: Hashable = (files.get(filename, ""), function)
        ordered = _in_order(lines, rows)
        above, below = (
            [
                *itertools.accumulate(
                    (matched.get(row) for row in side), lambda last, row: last if row is None else row, initial=edge
                )
            ]
            for side in (ordered, reversed(ordered))
        )
        for row, first, last in zip(ordered, above, [*reversed(below)][1:], strict=False):
            if row not in matched:
                neighbours[row] = first, last
    return neighbours


def _words_of(text: str | None) -> set[str]:
    return set(re.findall(r"\w+", text or ""))


def _measure_similarities(
    before: Sequence[str | None], after: Sequence[str | None], rows: Sequence[int], candidates: Sequence[int]
) -> Iterator[npt.NDArray[np.float64]]:
    """Yield, for each row, the share of words that it has in common with each candidate.

    A word of many lines counts less.
    """
    counts = Counter(word for text in (*before, *after) for word in _words_of(text))
    weights = {word: count**-0.5 for word, count in counts.items()}
    columns: dict[str, list[int]] = {}
    for column, candidate in enumerate(candidates):
        for word in _words_of(after[candidate]):
            columns.setdefault(word, []).append(column)
    totals = np.zeros(len(candidates))
    for word, word_columns in columns.items():
        totals[word_columns] += weights[word]
    for row in rows:
        words = _words_of(before[row])
        common = np.zeros(len(candidates))
        for word in words & columns.keys():
            common[columns[word]] += weights[word]
        yield 2 * common / np.maximum(totals + sum(weights[word] for word in words), 1e-9)


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
        matches += _match_nearest(before, after, same_rows, same_candidates, anchors)
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
) -> list[LineMatch]:
    """Match lines of equal text, the nearest pair first; `anchors` are the line numbers of earlier matches."""
    anchors = sorted(anchors)
    expected = {row: _expected_line(before[row].line, anchors) for row in rows}
    pairs = sorted(
        (abs(expected[row] - after[candidate].line), row, candidate) for row in rows for candidate in candidates
    )
    matches: dict[int, int] = {}
    for _, row, candidate in pairs:
        if row not in matches and candidate not in matches.values():
            matches[row] = candidate
    return [LineMatch(row, candidate, SAME) for row, candidate in matches.items()]


def _expected_line(line: int, anchors: list[tuple[int, int]]) -> int:
    """Return the number that a line has if it moved as far as the nearest anchor. anchors: in order."""
    index = bisect.bisect_left(anchors, (line, 0))
    before, after = min(
        anchors[max(index - 1, 0) : index + 1], key=lambda pair: abs(pair[0] - line), default=(line, line)
    )
    return line + after - before
