"""The verdict on all ranks of a run: which of them differ from the others, in which line, since which step.

What counts as different, and since when, is decided in `outliers`. A leak or a failed allocation that more than
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
from .rank_summary import CUDA, Detail, DeviceFigures, RankLeak, RankSummary
from .runs import LeftOut, Run, find_run

COMPARED_KINDS = (CUDA, "cpu", "pinned")
MOST_EXPLAINED = 8
"""Of so many outliers the lines are looked up; there may be thousands."""
MOST_REFERENCES = 33
"""So many of the others, evenly chosen, stand for them all."""

Details = Callable[[Sequence[RankSummary]], Mapping[str, Detail]]
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
    """"oom": a request was refused; "leak"; "differs": its figures are outliers; "device": it also uses the CUDA
    device of another rank."""
    device: str
    """The kind of device: "cuda" is each rank's own."""
    ranks: tuple[RankSummary, ...]
    """The one that stands for all first."""
    of: int
    """Of so many ranks that could have it."""
    leak: RankLeak | None = None
    """That of the first rank."""
    rates: tuple[float, float] = (0.0, 0.0)
    """The lowest and the highest rate of the leak."""
    deviations: tuple[Deviation, ...] = ()
    """The outliers among the figures of the first rank, in the order of MEASURES."""
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
    summaries: tuple[RankSummary, ...]
    """All ranks, those that differ most first."""
    compared: tuple[RankSummary, ...]
    """Those whose figures were compared: without gaps."""
    distances: Mapping[str, float] = field(repr=False)
    """The distance of each rank, by path: that of its furthest figure, which is an outlier from 1 on."""
    more_outliers: int = 0
    """Further ranks that have outliers and are in no finding."""

    @property
    def kinds(self) -> list[str]:
        """The kinds of devices that ranks have used."""
        return list(dict.fromkeys(one.kind for summary in self.summaries for one in summary.devices))

    @property
    def incomplete(self) -> tuple[RankSummary, ...]:
        """The ranks of whose traces a part is missing."""
        return tuple(summary for summary in self.summaries if not summary.whole)

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
            summary.leaks_known for summary in self.summaries
        )

    @property
    def is_alike(self) -> bool:
        """Whether all figures of the main device are within what nobody would look into."""
        return not self.findings and all(
            spread.is_alike
            for (kind, measure), spread in self.spreads.items()
            if kind == self.main and measure in BYTES
        )


def compare_ranks(summaries: Sequence[RankSummary], details: Details) -> Comparison:
    """summaries: of any traces. details: what is asked for a few of them."""
    run, left_out = find_run(summaries)
    if run is None:
        return Comparison(None, tuple(left_out), (), {}, "", (), (), {})
    return _Comparing(run, details).compare(left_out)


class _Comparing:
    def __init__(self, run: Run, details: Details) -> None:
        self._run = run
        self._details = details
        self._compared = [summary for summary in run.summaries if summary.devices and not summary.has_gaps]
        # What ended before its time shows less of everything.
        whole = [summary for summary in self._compared if not _ended_early(summary)]
        self._typical = whole if len(whole) > 1 else self._compared
        counts = Counter(summary.last_step for summary in self._typical)
        self._last_step = counts.most_common(1)[0][0] if counts else None
        self._kinds = [kind for kind in COMPARED_KINDS if any(summary.of_kind(kind) for summary in self._compared)]
        self._main = max(self._kinds, key=self._median_peak, default="")
        self._spreads: dict[tuple[str, str], Spread] = {}
        self._deviations = self._find_deviations()

    def compare(self, left_out: Sequence[LeftOut]) -> Comparison:
        common, rare = self._events()
        found = [self._explained(one) for one in rare]
        covered = {(summary.path, one.device) for one in rare for summary in one.ranks}
        differing, more = self._differing(covered)
        ordered = sorted([*common, *found], key=_pressing)
        distances = {
            path: max((abs(one.distance) for one in found), default=0.0) for path, found in self._deviations.items()
        }
        for one in rare:
            distances |= {summary.path: max(distances.get(summary.path, 0.0), 1.0) for summary in one.ranks}
        first = [summary.path for one in rare for summary in one.ranks]
        summaries = sorted(
            self._run.summaries,
            key=lambda summary: (
                summary.path not in first,
                -distances.get(summary.path, 0.0),
                summary.whole and not _ended_early(summary),  # not among those of which nothing is to be said
                summary.rank or 0,
                summary.path,
            ),
        )
        return Comparison(
            run=self._run,
            left_out=tuple(left_out),
            findings=(*ordered, *differing, *self._foreign_devices()),
            spreads=self._spreads,
            main=self._main,
            summaries=tuple(summaries),
            compared=tuple(self._compared),
            distances=distances,
            more_outliers=more,
        )

    # Figures

    def _median_peak(self, kind: str) -> float:
        return float(np.median([_value(summary, kind, "peak") or 0 for summary in self._typical]))

    def _find_deviations(self) -> dict[str, list[Deviation]]:
        """By path; also notes the spreads."""
        found: dict[str, list[Deviation]] = {summary.path: [] for summary in self._run.summaries}
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
            summary.path: value
            for summary in self._compared
            if (value := self._comparable(summary, kind, measure)) is not None
        }
        typical = {summary.path: values[summary.path] for summary in self._typical if summary.path in values}
        if len(values) < 2 or len(typical) < 2:
            return
        spread = self._spreads[kind, measure] = Spread.of(measure, typical)
        small = sum(_is_small(summary, kind) for summary in self._typical) * 2 > len(self._typical)
        for summary in self._compared:
            if summary.path not in values or (small and _is_small(summary, kind)):
                continue
            distance = spread.distance(values[summary.path])
            others = [value for path, value in typical.items() if path != summary.path]
            too_low = distance < 0 and (_ended_early(summary) or len(values) == 2)
            if abs(distance) >= 1 and not too_low:
                usual = float(np.median(others))
                found[summary.path].append(Deviation(kind, measure, values[summary.path], usual, distance))

    def _comparable(self, summary: RankSummary, kind: str, measure: str) -> float | None:
        """What a rank held at the end of its last step is compared where that is the last one of most."""
        if measure == "live" and summary.last_step != self._last_step:
            return None
        return _value(summary, kind, measure)

    # Findings

    def _events(self) -> tuple[list[RankFinding], list[RankFinding]]:
        """Leaks and failed allocations: those that most ranks have, and those by which ranks differ."""
        leaks: dict[_Key, list[tuple[RankSummary, RankLeak]]] = {}
        refused: dict[str, list[RankSummary]] = {}
        for summary in self._run.summaries:
            for device in summary.devices:
                for leak in device.leaks:
                    leaks.setdefault((device.kind, summary.line(leak.site)), []).append((summary, leak))
                if device.refused is not None:
                    refused.setdefault(device.kind, []).append(summary)
        found = []
        for (kind, _), ones in leaks.items():
            of = sum(summary.of_kind(kind) is not None for summary in self._run.summaries)
            ones = sorted(ones, key=lambda one: -one[1].rate)
            ranks = tuple(dict.fromkeys(summary for summary, _ in ones))
            found.append(RankFinding("leak", kind, ranks, of, ones[0][1], (ones[-1][1].rate, ones[0][1].rate)))
        for kind, summaries in refused.items():
            of = sum(summary.of_kind(kind) is not None for summary in self._run.summaries)
            summaries = sorted(summaries, key=lambda summary: -self._furthest(summary))
            found.append(RankFinding("oom", kind, tuple(summaries), of))
        found.sort(key=_pressing)
        return [one for one in found if one.is_common], [one for one in found if not one.is_common]

    def _furthest(self, summary: RankSummary) -> float:
        return max((abs(one.distance) for one in self._deviations[summary.path]), default=0.0)

    def _differing(self, covered: set[tuple[str, str]]) -> tuple[list[RankFinding], int]:
        """Ranks whose figures are outliers without a leak or a failed allocation of their own: together, if it is the
        same line that makes them so. And how many more there are."""
        open_ones = []
        for summary in self._run.summaries:
            ones = [one for one in self._deviations[summary.path] if (summary.path, one.kind) not in covered]
            if ones:
                open_ones.append((summary, ones))
        open_ones.sort(key=lambda pair: -max(abs(one.distance) for one in pair[1]))
        groups: dict[tuple[object, ...], list[RankFinding]] = {}
        for summary, ones in open_ones[:MOST_EXPLAINED]:
            kind = max(ones, key=lambda one: abs(one.distance)).kind
            mine = tuple(one for one in ones if one.kind == kind)
            finding = self._explained(RankFinding("differs", kind, (summary,), len(self._compared), deviations=mine))
            line = None if finding.explanation is None else summary.line(finding.explanation.site)
            groups.setdefault((kind, mine[0].distance > 0, mine[0].measure == TIME, line), []).append(finding)
        found = []
        for ones_together in groups.values():
            first = ones_together[0]
            ranks = tuple(one.ranks[0] for one in ones_together)
            found.append(dataclasses.replace(first, ranks=ranks))
        return found, max(len(open_ones) - MOST_EXPLAINED, 0)

    def _explained(self, finding: RankFinding) -> RankFinding:
        """With the outliers of its first rank, since when, and by which line."""
        summary, kind = finding.ranks[0], finding.device
        deviations = tuple(one for one in self._deviations[summary.path] if one.kind == kind)
        others = self._references(kind, finding.ranks)
        if len(self._run.summaries) < 2 or not others:
            return finding
        details = self._details([summary, *others])
        own = details[summary.path]
        theirs = [details[other.path] for other in others]
        levels = own.levels_of(kind)
        others_levels = [one for one in (detail.levels_of(kind) for detail in theirs) if one is not None]
        departure = None if levels is None else find_departure(levels, others_levels)
        if departure is not None and not _is_apart(departure):
            departure = None
        up = not deviations or deviations[0].distance > 0
        of_bytes = any(one.measure in BYTES for one in deviations)
        explanation = _explain(summary, own, others, theirs, kind, up) if of_bytes else None
        return dataclasses.replace(finding, deviations=deviations, departure=departure, explanation=explanation)

    def _references(self, kind: str, ranks: Sequence[RankSummary]) -> list[RankSummary]:
        """Ranks that stand for the others: those without outliers, if there are any such."""
        out = {summary.path for summary in ranks}
        others = [summary for summary in self._typical if summary.path not in out and summary.of_kind(kind) is not None]
        in_line = [
            summary for summary in others if not any(one.kind == kind for one in self._deviations[summary.path])
        ] or others
        at = np.unique(np.linspace(0, len(in_line) - 1, min(len(in_line), MOST_REFERENCES)).round().astype(int))
        return [in_line[index] for index in at.tolist()]

    def _foreign_devices(self) -> list[RankFinding]:
        """Ranks that use the CUDA device of another rank of their machine too."""
        owners = {
            (summary.host, one.device): summary
            for summary in self._run.summaries
            for one in summary.devices
            if one.kind == CUDA
        }
        found: dict[str, list[RankSummary]] = {}
        for summary in self._run.summaries:
            for one in summary.devices if summary.rank is not None else ():
                owner = owners.get((summary.host, one.device))
                if one.kind.startswith("cuda:") and owner not in (None, summary) and one.peak >= LEAST_BYTES:
                    found.setdefault(one.kind, []).append(summary)
        return [
            RankFinding(
                "device",
                kind,
                tuple(sorted(summaries, key=lambda summary: -_peak(summary, kind))),
                len(self._run.summaries),
            )
            for kind, summaries in found.items()
        ]


def _pressing(finding: RankFinding) -> tuple[object, ...]:
    return finding.kind != "oom", finding.is_common, -finding.rates[1]


def _value(summary: RankSummary, kind: str, measure: str) -> float | None:
    """None where it is not known. A rank that has nothing on a device has nothing there at its peak."""
    figures = summary.of_kind(kind)
    if figures is None:
        return 0.0 if measure == "peak" else None
    value = getattr(figures, measure)
    return None if value is None else float(value)


def _peak(summary: RankSummary, kind: str) -> float:
    return _value(summary, kind, "peak") or 0.0


def _is_small(summary: RankSummary, kind: str) -> bool:
    figures = summary.of_kind(kind)
    return figures is None or figures.is_small


def _ended_early(summary: RankSummary) -> bool:
    return summary.cut or summary.is_killed or summary.is_running


def _is_apart(departure: Departure) -> bool:
    """Whether what was live at the ends of steps differs by more than nobody would look into."""
    live, usual = (np.array(values, dtype=np.float64) for values in (departure.live, departure.usual))
    return bool(np.any(np.abs(live - usual) >= LEAST_BYTES))


def _explain(
    summary: RankSummary, own: Detail, others: Sequence[RankSummary], theirs: Sequence[Detail], kind: str, up: bool
) -> Explanation | None:
    """The line whose bytes at the peak differ most from the median of the others, in the direction asked for."""
    held = {summary.line(line.site): (line.site, line.bytes) for line in own.lines_of(kind)}
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
