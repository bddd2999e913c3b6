"""The verdict on all ranks of a run: which of them differ from the others, in which line, since which step.

What counts as different, and since when, is decided in `outliers`. A leak or a refused request that more than
half of the ranks have is one of the run, and said once; else the ranks that have it differ by it.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...reading.sites import Site
from ..summary import LeaksAnswer
from .outliers import BYTES, LEAST_BYTES, MEASURES, TIME, Departure, Deviation, Spread, find_departure
from .rank_summary import CUDA, Card, Detail, DeviceFigures, RankLeak
from .runs import LeftOut, Run, find_run

COMPARED_KINDS = (CUDA, "cpu", "pinned")
MOST_EXPLAINED = 8
"""Of so many ranks that are out of line the lines are looked up; there may be thousands."""
MOST_REFERENCES = 33
"""So many of the others, evenly chosen, stand for them all."""

Details = Callable[[Sequence[Card]], Mapping[str, Detail]]
"""The details of some ranks, by the paths of their traces."""
_Key = tuple[str, tuple[str, int, str]]


@dataclass(frozen=True)
class Explanation:
    """The line that makes most of what a rank holds more, or less, at its peak."""

    site: Site
    bytes: int
    usual: int
    """The median of the others."""
    difference: int
    """What all lines together hold more."""


@dataclass(frozen=True)
class RankFinding:
    """Something that is wrong with ranks, or different about them."""

    kind: str
    """"oom": a request was refused; "leak"; "differs": its figures are out of line; "device": it also uses the CUDA
    device of another rank."""
    device: str
    """The kind of device: "cuda" is each rank's own."""
    ranks: tuple[Card, ...]
    """The one that stands for all first."""
    of: int
    """Of so many ranks that could have it."""
    leak: RankLeak | None = None
    """That of the first rank."""
    rates: tuple[float, float] = (0.0, 0.0)
    """The lowest and the highest rate of the leak."""
    deviations: tuple[Deviation, ...] = ()
    """What is out of line about the first rank, in the order of MEASURES."""
    departure: Departure | None = None
    explanation: Explanation | None = None

    @property
    def is_common(self) -> bool:
        """More than half of the ranks have it: it is no difference between them."""
        return 2 * len(self.ranks) > self.of and self.of > 1 and self.kind in ("oom", "leak")

    @property
    def figures(self) -> DeviceFigures:
        found = self.ranks[0].of_kind(self.device)
        assert found is not None
        return found


@dataclass(frozen=True, eq=False)
class Comparison:
    """What the traces of a run say together."""

    run: Run | None
    left_out: tuple[LeftOut, ...]
    findings: tuple[RankFinding, ...]
    """The most pressing first."""
    spreads: Mapping[tuple[str, str], Spread] = field(repr=False)
    """What is usual, by kind of device and measure."""
    main: str
    """The kind of device that holds most."""
    cards: tuple[Card, ...]
    """All ranks, those that differ most first."""
    compared: tuple[Card, ...]
    """Those whose figures were compared: without gaps."""
    distances: Mapping[str, float] = field(repr=False)
    """How far out of line each rank is, by path: the furthest of its figures, out of line from 1 on."""
    more_out_of_line: int = 0
    """Further ranks that are out of line and in no finding."""

    @property
    def kinds(self) -> list[str]:
        """The kinds of devices that ranks have used."""
        return list(dict.fromkeys(one.kind for card in self.cards for one in card.devices))

    @property
    def incomplete(self) -> tuple[Card, ...]:
        """The ranks of whose traces a part is missing."""
        return tuple(card for card in self.cards if not card.whole)

    @property
    def leaks_answer(self) -> LeaksAnswer:
        """Whether any rank leaks; see `Summary.leaks_answer`."""
        if any(finding.kind == "leak" for finding in self.findings):
            return LeaksAnswer.FOUND
        return LeaksAnswer.NONE if self.is_known else LeaksAnswer.UNKNOWN

    @property
    def is_known(self) -> bool:
        """Whether every rank of the run was read in full and judged."""
        unreadable = any(one.why == "unreadable" for one in self.left_out)
        return bool(self.run and not self.run.missing and not unreadable) and all(
            card.leaks_known for card in self.cards
        )

    @property
    def is_alike(self) -> bool:
        """Whether all figures of the main device are within what nobody would look into."""
        return not self.findings and all(
            spread.is_alike
            for (kind, measure), spread in self.spreads.items()
            if kind == self.main and measure in BYTES
        )


def compare_ranks(cards: Sequence[Card], details: Details) -> Comparison:
    """cards: of any traces. details: what is asked for a few of them."""
    run, left_out = find_run(cards)
    if run is None:
        return Comparison(None, tuple(left_out), (), {}, "", (), (), {})
    return _Comparing(run, details).compare(left_out)


class _Comparing:
    def __init__(self, run: Run, details: Details) -> None:
        self._run = run
        self._details = details
        self._compared = [card for card in run.cards if card.devices and not card.has_gaps]
        # What ended before its time shows less of everything.
        whole = [card for card in self._compared if not _ended_early(card)]
        self._typical = whole if len(whole) > 1 else self._compared
        counts = Counter(card.last_step for card in self._typical)
        self._last_step = counts.most_common(1)[0][0] if counts else None
        self._kinds = [kind for kind in COMPARED_KINDS if any(card.of_kind(kind) for card in self._compared)]
        self._main = max(self._kinds, key=self._median_peak, default="")
        self._spreads: dict[tuple[str, str], Spread] = {}
        self._deviations = self._find_deviations()

    def compare(self, left_out: Sequence[LeftOut]) -> Comparison:
        common, rare = self._events()
        found = [self._explained(one) for one in rare]
        covered = {(card.path, one.device) for one in rare for card in one.ranks}
        differing, more = self._differing(covered)
        ordered = sorted([*common, *found], key=_pressing)
        distances = {
            path: max((abs(one.distance) for one in found), default=0.0) for path, found in self._deviations.items()
        }
        for one in rare:
            distances |= {card.path: max(distances.get(card.path, 0.0), 1.0) for card in one.ranks}
        first = [card.path for one in rare for card in one.ranks]
        cards = sorted(
            self._run.cards,
            key=lambda card: (
                card.path not in first,
                -distances.get(card.path, 0.0),
                card.whole and not _ended_early(card),  # not among those of which nothing is to be said
                card.rank or 0,
                card.path,
            ),
        )
        return Comparison(
            run=self._run,
            left_out=tuple(left_out),
            findings=(*ordered, *differing, *self._foreign_devices()),
            spreads=self._spreads,
            main=self._main,
            cards=tuple(cards),
            compared=tuple(self._compared),
            distances=distances,
            more_out_of_line=more,
        )

    # Figures

    def _median_peak(self, kind: str) -> float:
        return float(np.median([_value(card, kind, "peak") or 0 for card in self._typical]))

    def _find_deviations(self) -> dict[str, list[Deviation]]:
        """By path; also notes the spreads."""
        found: dict[str, list[Deviation]] = {card.path: [] for card in self._run.cards}
        if len(self._compared) < 2:
            return found
        for kind in self._kinds:
            for measure in MEASURES:
                if measure == TIME and kind != self._main:
                    continue  # all devices of a rank have the same steps
                self._compare(kind, measure, found)
        return found

    def _compare(self, kind: str, measure: str, found: dict[str, list[Deviation]]) -> None:
        values = {
            card.path: value for card in self._compared if (value := self._comparable(card, kind, measure)) is not None
        }
        typical = {card.path: values[card.path] for card in self._typical if card.path in values}
        if len(values) < 2 or len(typical) < 2:
            return
        spread = self._spreads[kind, measure] = Spread.of(measure, typical)
        small = sum(_is_small(card, kind) for card in self._typical) * 2 > len(self._typical)
        for card in self._compared:
            if card.path not in values or (small and _is_small(card, kind)):
                continue
            distance = spread.distance(values[card.path])
            others = [value for path, value in typical.items() if path != card.path]
            too_low = distance < 0 and (_ended_early(card) or len(values) == 2)
            if abs(distance) >= 1 and not too_low:
                usual = float(np.median(others))
                found[card.path].append(Deviation(kind, measure, values[card.path], usual, distance))

    def _comparable(self, card: Card, kind: str, measure: str) -> float | None:
        """What a rank held at the end of its last step is compared where that is the last one of most."""
        if measure == "live" and card.last_step != self._last_step:
            return None
        return _value(card, kind, measure)

    # Findings

    def _events(self) -> tuple[list[RankFinding], list[RankFinding]]:
        """Leaks and refused requests: those that most ranks have, and those by which ranks differ."""
        leaks: dict[_Key, list[tuple[Card, RankLeak]]] = {}
        refused: dict[str, list[Card]] = {}
        for card in self._run.cards:
            for device in card.devices:
                for leak in device.leaks:
                    leaks.setdefault((device.kind, card.line(leak.site)), []).append((card, leak))
                if device.refused is not None:
                    refused.setdefault(device.kind, []).append(card)
        found = []
        for (kind, _), ones in leaks.items():
            of = sum(card.of_kind(kind) is not None for card in self._run.cards)
            ones = sorted(ones, key=lambda one: -one[1].rate)
            ranks = tuple(dict.fromkeys(card for card, _ in ones))
            found.append(RankFinding("leak", kind, ranks, of, ones[0][1], (ones[-1][1].rate, ones[0][1].rate)))
        for kind, cards in refused.items():
            of = sum(card.of_kind(kind) is not None for card in self._run.cards)
            cards = sorted(cards, key=lambda card: -self._furthest(card))
            found.append(RankFinding("oom", kind, tuple(cards), of))
        found.sort(key=_pressing)
        return [one for one in found if one.is_common], [one for one in found if not one.is_common]

    def _furthest(self, card: Card) -> float:
        return max((abs(one.distance) for one in self._deviations[card.path]), default=0.0)

    def _differing(self, covered: set[tuple[str, str]]) -> tuple[list[RankFinding], int]:
        """Ranks whose figures are out of line without a leak or a refused request of their own: together, if it is the
        same line that makes them so. And how many more there are."""
        open_ones = []
        for card in self._run.cards:
            ones = [one for one in self._deviations[card.path] if (card.path, one.kind) not in covered]
            if ones:
                open_ones.append((card, ones))
        open_ones.sort(key=lambda pair: -max(abs(one.distance) for one in pair[1]))
        groups: dict[tuple[object, ...], list[RankFinding]] = {}
        for card, ones in open_ones[:MOST_EXPLAINED]:
            kind = max(ones, key=lambda one: abs(one.distance)).kind
            mine = tuple(one for one in ones if one.kind == kind)
            finding = self._explained(RankFinding("differs", kind, (card,), len(self._compared), deviations=mine))
            line = None if finding.explanation is None else card.line(finding.explanation.site)
            groups.setdefault((kind, mine[0].distance > 0, mine[0].measure == TIME, line), []).append(finding)
        found = []
        for ones_together in groups.values():
            first = ones_together[0]
            ranks = tuple(one.ranks[0] for one in ones_together)
            found.append(dataclasses.replace(first, ranks=ranks))
        return found, max(len(open_ones) - MOST_EXPLAINED, 0)

    def _explained(self, finding: RankFinding) -> RankFinding:
        """With what is out of line about its first rank, since when, and by which line."""
        card, kind = finding.ranks[0], finding.device
        deviations = tuple(one for one in self._deviations[card.path] if one.kind == kind)
        others = self._references(kind, finding.ranks)
        if len(self._run.cards) < 2 or not others:
            return finding
        details = self._details([card, *others])
        own = details[card.path]
        theirs = [details[other.path] for other in others]
        levels = own.levels_of(kind)
        others_levels = [one for one in (detail.levels_of(kind) for detail in theirs) if one is not None]
        departure = None if levels is None else find_departure(levels, others_levels)
        if departure is not None and not _is_apart(departure):
            departure = None
        up = not deviations or deviations[0].distance > 0
        of_bytes = any(one.measure in BYTES for one in deviations)
        explanation = _explain(card, own, others, theirs, kind, up) if of_bytes else None
        return dataclasses.replace(finding, deviations=deviations, departure=departure, explanation=explanation)

    def _references(self, kind: str, ranks: Sequence[Card]) -> list[Card]:
        """Ranks that stand for the others: none that is out of line, if there are any such."""
        out = {card.path for card in ranks}
        others = [card for card in self._typical if card.path not in out and card.of_kind(kind) is not None]
        in_line = [
            card for card in others if not any(one.kind == kind for one in self._deviations[card.path])
        ] or others
        at = np.unique(np.linspace(0, len(in_line) - 1, min(len(in_line), MOST_REFERENCES)).round().astype(int))
        return [in_line[index] for index in at.tolist()]

    def _foreign_devices(self) -> list[RankFinding]:
        """Ranks that use the CUDA device of another rank of their machine too."""
        owners = {(card.host, one.device): card for card in self._run.cards for one in card.devices if one.kind == CUDA}
        found: dict[str, list[Card]] = {}
        for card in self._run.cards:
            for one in card.devices if card.rank is not None else ():
                owner = owners.get((card.host, one.device))
                if one.kind.startswith("cuda:") and owner not in (None, card) and one.peak >= LEAST_BYTES:
                    found.setdefault(one.kind, []).append(card)
        return [
            RankFinding("device", kind, tuple(sorted(cards, key=lambda card: -_peak(card, kind))), len(self._run.cards))
            for kind, cards in found.items()
        ]


def _pressing(finding: RankFinding) -> tuple[object, ...]:
    return finding.kind != "oom", finding.is_common, -finding.rates[1]


def _value(card: Card, kind: str, measure: str) -> float | None:
    """None where it is not known. A rank that has nothing on a device has nothing there at its peak."""
    figures = card.of_kind(kind)
    if figures is None:
        return 0.0 if measure == "peak" else None
    value = getattr(figures, measure)
    return None if value is None else float(value)


def _peak(card: Card, kind: str) -> float:
    return _value(card, kind, "peak") or 0.0


def _is_small(card: Card, kind: str) -> bool:
    figures = card.of_kind(kind)
    return figures is None or figures.is_small


def _ended_early(card: Card) -> bool:
    return card.cut or card.is_killed or card.is_running


def _is_apart(departure: Departure) -> bool:
    """Whether what was live at the ends of steps differs by more than nobody would look into."""
    live, usual = (np.array(values, dtype=np.float64) for values in (departure.live, departure.usual))
    return bool(np.any(np.abs(live - usual) >= LEAST_BYTES))


def _explain(
    card: Card, own: Detail, others: Sequence[Card], theirs: Sequence[Detail], kind: str, up: bool
) -> Explanation | None:
    """The line whose bytes at the peak differ most from the median of the others, in the direction asked for."""
    held = {card.line(line.site): (line.site, line.bytes) for line in own.lines_of(kind)}
    tables = [
        {other.line(line.site): (line.site, line.bytes) for line in detail.lines_of(kind)}
        for other, detail in zip(others, theirs, strict=True)
    ]
    sites = {key: site for table in [*tables, held] for key, (site, _) in table.items()}
    usual = {key: float(np.median([table[key][1] if key in table else 0 for table in tables])) for key in sites}
    changes = {key: (held[key][1] if key in held else 0) - usual[key] for key in sites}
    if not changes:
        return None
    most = (max if up else min)(changes, key=lambda key: changes[key])
    if abs(changes[most]) < LEAST_BYTES or (changes[most] > 0) != up:
        return None
    total = sum(changes.values())
    return Explanation(sites[most], held[most][1] if most in held else 0, round(usual[most]), round(total))
