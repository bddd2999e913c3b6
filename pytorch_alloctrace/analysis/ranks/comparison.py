"""The verdict on all ranks of a run: which ranks differ, in which line, since which step (see `outliers`).

A leak or failed allocation of more than half of the ranks is a finding of the run, reported once. Otherwise the ranks
with the leak or failed allocation differ from the others.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field

import numpy as np

from ...reading.sites import Site
from ..summary import LeaksAnswer
from .outliers import (
    BYTES,
    MEASURES,
    MIN_BYTES,
    MIN_SHARE,
    TIME,
    Departure,
    Deviation,
    Spread,
    find_departure,
    has_alike_pair,
)
from .rank_summary import CUDA, Detail, DeviceFigures, RankLeak, RankSummary
from .runs import LeftOut, Run, find_run

COMPARED_KINDS = (CUDA, "cpu", "pinned")
MAX_EXPLAINED = 8
"""Maximum number of outliers, of possibly thousands, whose lines are determined."""
MAX_REFERENCES = 33
_MAX_USUAL_DISTANCE = 0.99
"""Maximum distance of a rank without an outlier: a low figure of a rank that ended early is none."""
MIN_CHANGE_SHARE = 0.01
"""Minimum share of a line in the differences of all lines, for its ratio to count."""

Details = Callable[[Sequence[RankSummary]], Mapping[str, Detail]]
_Key = tuple[str, tuple[str, int, str]]


@dataclass(frozen=True)
class Explanation:
    """The line whose requested bytes at the peak of a rank differ most from the median of the other ranks."""

    site: Site
    bytes: int
    usual: int
    holder: str
    """`PeakLine.holder` of the line on this rank."""
    difference: int
    """Requested bytes of all lines at the peak, less the medians of the other ranks."""
    factor: float | None = None
    """Ratio to the median of the other ranks, if about the same for all lines that differ."""
    has_equal_lines: bool = False
    """True if a line of user code holds `MIN_BYTES` or more, as on the other ranks."""


@dataclass(frozen=True)
class RankFinding:
    kind: str
    """"oom": failed allocation; "leak"; "differs": figures are outliers; "device": a rank also uses the CUDA device of
    another rank; "unlike": `Comparison.unlike`."""
    device: str
    ranks: tuple[RankSummary, ...]
    """Ranks that have the finding, the representative first."""
    rank_count: int
    """Number of ranks that could have the finding."""
    leak: RankLeak | None = None
    rates: tuple[float, float] = (0.0, 0.0)
    """Minimum and maximum rate of the leak, in bytes per unit."""
    deviations: tuple[Deviation, ...] = ()
    """Outliers among the figures of the first rank, in the order of MEASURES."""
    departure: Departure | None = None
    explanation: Explanation | None = None

    @property
    def is_common(self) -> bool:
        """Return whether more than half of the ranks have the leak or failed allocation."""
        return 2 * len(self.ranks) > self.rank_count and self.rank_count > 1 and self.kind in ("oom", "leak")

    @property
    def figures(self) -> DeviceFigures:
        figures = self.ranks[0].of_kind(self.device)
        assert figures is not None
        return figures


@dataclass(frozen=True, eq=False)
class Comparison:
    run: Run | None
    left_out: tuple[LeftOut, ...]
    findings: tuple[RankFinding, ...]
    spreads: Mapping[tuple[str, str], Spread] = field(repr=False)
    """Spread of the ranks by kind of device and measure."""
    main: str
    """Kind of device with the highest median peak."""
    summaries: tuple[RankSummary, ...]
    """All ranks, the most different first."""
    compared: tuple[RankSummary, ...]
    """Ranks whose figures were compared: those whose traces have no gaps."""
    distances: Mapping[str, float] = field(repr=False)
    """Largest distance of each rank's figures, by path. A figure is an outlier from 1 on."""
    more_outliers: int = 0
    unlike: RankFinding | None = None
    """The rank with the highest figure, if the ranks are not alike and no finding has this rank; not in `findings`."""

    @property
    def kinds(self) -> list[str]:
        return list(dict.fromkeys(device.kind for summary in self.summaries for device in summary.devices))

    @property
    def incomplete(self) -> tuple[RankSummary, ...]:
        return tuple(summary for summary in self.summaries if not summary.is_complete)

    @property
    def leaks_answer(self) -> LeaksAnswer:
        if any(finding.kind == "leak" for finding in self.findings):
            return LeaksAnswer.FOUND
        return LeaksAnswer.NONE if self.is_known else LeaksAnswer.UNKNOWN

    @property
    def is_known(self) -> bool:
        unreadable = any(trace.why == "unreadable" for trace in self.left_out)
        return bool(self.run and not self.run.missing and not unreadable) and all(
            summary.leaks_known for summary in self.summaries
        )

    @property
    def is_alike(self) -> bool:
        return not self.findings and all(
            spread.is_alike
            for (kind, measure), spread in self.spreads.items()
            if kind == self.main and measure in BYTES
        )


def compare_ranks(summaries: Sequence[RankSummary], details: Details) -> Comparison:
    run, left_out = find_run(summaries)
    if run is None:
        return Comparison(None, tuple(left_out), (), {}, "", (), (), {})
    return _RankComparer(run, details).compare(left_out)


class _RankComparer:
    def __init__(self, run: Run, details: Details) -> None:
        self._run = run
        self._details = details
        self._compared = [summary for summary in run.summaries if summary.devices and not summary.has_gaps]
        # A trace that ended early has lower figures.
        finished = [summary for summary in self._compared if not _has_ended_early(summary)]
        self._typical = finished if len(finished) > 1 else self._compared
        counts = Counter(summary.last_step for summary in self._typical)
        self._last_step = counts.most_common(1)[0][0] if counts else None
        self._kinds = [kind for kind in COMPARED_KINDS if any(summary.of_kind(kind) for summary in self._compared)]
        self._main = max(self._kinds, key=self._compute_median_peak, default="")
        self._spreads: dict[tuple[str, str], Spread] = {}
        self._byte_distances: dict[str, float] = {}
        self._deviations = self._find_deviations()

    def compare(self, left_out: Sequence[LeftOut]) -> Comparison:
        common_findings, rare_findings = self._find_events()
        covered = {(summary.path, finding.device) for finding in rare_findings for summary in finding.ranks}
        self._judge_rest(covered)
        explained = [self._explain(finding) for finding in rare_findings]
        outlier_findings, more_outliers = self._find_outliers(covered)
        ordered = sorted([*common_findings, *explained], key=_sort_key)
        distances = {
            path: max(
                (abs(deviation.distance) for deviation in deviations),
                default=min(self._byte_distances.get(path, 0.0), _MAX_USUAL_DISTANCE),
            )
            for path, deviations in self._deviations.items()
        }
        for finding in rare_findings:
            distances |= {summary.path: max(distances.get(summary.path, 0.0), 1.0) for summary in finding.ranks}
        rare_paths = [summary.path for finding in rare_findings for summary in finding.ranks]
        summaries = sorted(
            self._run.summaries,
            key=lambda summary: (
                summary.path not in rare_paths,
                -distances.get(summary.path, 0.0),
                summary.is_complete and not _has_ended_early(summary),  # incomplete traces before unremarkable ranks
                summary.rank or 0,
                summary.path,
            ),
        )
        findings = (*ordered, *outlier_findings, *self._find_foreign_devices())
        return Comparison(
            run=self._run,
            left_out=tuple(left_out),
            findings=findings,
            unlike=self._find_unlike(findings),
            spreads=self._spreads,
            main=self._main,
            summaries=tuple(summaries),
            compared=tuple(self._compared),
            distances=distances,
            more_outliers=more_outliers,
        )

    # Figures

    def _compute_median_peak(self, kind: str) -> float:
        return float(np.median([_read_figure(summary, kind, "peak") or 0 for summary in self._typical]))

    def _find_deviations(self) -> dict[str, list[Deviation]]:
        """Return the outliers of each rank by path, and fill `_spreads`."""
        deviations: dict[str, list[Deviation]] = {summary.path: [] for summary in self._run.summaries}
        if len(self._compared) < 2:
            return deviations
        for kind, measure in self._list_figures():
            self._spreads |= self._compare_figures(kind, measure, deviations, frozenset())
        return deviations

    def _list_figures(self) -> list[tuple[str, str]]:
        """Return the compared kinds of devices and measures. All devices of a rank have the same steps."""
        return [
            (kind, measure) for kind in self._kinds for measure in MEASURES if measure != TIME or kind == self._main
        ]

    def _judge_rest(self, covered: set[tuple[str, str]]) -> None:
        """Judge ranks again without those that differ, until no more do: of few ranks, two widen the spread for both.

        `covered`: path and kind of device of each leak and failed allocation.
        """
        has_more = True
        while has_more:
            more: dict[str, list[Deviation]] = {path: [] for path in self._deviations}
            for kind, measure in self._list_figures():
                different = {
                    path
                    for path, items in self._deviations.items()
                    if any(item.kind == kind and (item.measure == TIME) == (measure == TIME) for item in items)
                    or (measure != TIME and (path, kind) in covered)
                }
                if different:
                    self._compare_figures(kind, measure, more, different)
            for path, items in more.items():
                self._deviations[path] += items
            has_more = any(more.values())

    def _compare_figures(
        self, kind: str, measure: str, deviations: dict[str, list[Deviation]], different: Set[str]
    ) -> dict[tuple[str, str], Spread]:
        """Add the outliers among the ranks that are not in `different`, and return the spread of these ranks.

        Beside ranks that differ, a rank is judged only against others of which two are alike.
        """
        values = {
            summary.path: value
            for summary in self._compared
            if summary.path not in different
            and (value := self._read_comparable_figure(summary, kind, measure)) is not None
        }
        typical = {summary.path: values[summary.path] for summary in self._typical if summary.path in values}
        if len(values) < 2 or len(typical) < 2:
            return {}
        spread = Spread.of(measure, typical)
        is_mostly_small = sum(_is_small(summary, kind) for summary in self._typical) * 2 > len(self._typical)
        for summary in self._compared:
            if summary.path not in values or (is_mostly_small and _is_small(summary, kind)):
                continue
            distance = spread.distance(values[summary.path])
            if measure in BYTES and not different:
                largest = max(self._byte_distances.get(summary.path, 0.0), abs(distance))
                self._byte_distances[summary.path] = largest
            other_values = [value for path, value in typical.items() if path != summary.path]
            if different and not has_alike_pair(measure, other_values):
                continue
            too_low = distance < 0 and (_has_ended_early(summary) or len(values) == 2)
            if abs(distance) < 1 or too_low:
                continue
            if measure != TIME or self._has_other_step_times(summary, kind, is_slower=distance > 0):
                median_of_others = float(np.median(other_values))
                deviations[summary.path].append(
                    Deviation(kind, measure, values[summary.path], median_of_others, distance)
                )
        return {(kind, measure): spread}

    def _has_other_step_times(self, summary: RankSummary, kind: str, *, is_slower: bool) -> bool:
        """Return whether nine tenths of a rank's steps are slower (or faster) than nine tenths of the others' steps.

        A busy machine slows a part of the steps down, on any rank.
        """
        spreads = {
            other.path: figures.seconds_spread
            for other in (summary, *self._typical)
            if (figures := other.of_kind(kind)) is not None and figures.seconds_spread is not None
        }
        own_spread = spreads.pop(summary.path, None)
        if own_spread is None or not spreads:
            return False
        low, high = np.median([*spreads.values()], axis=0)
        return bool(own_spread[0] > high if is_slower else own_spread[1] < low)

    def _read_comparable_figure(self, summary: RankSummary, kind: str, measure: str) -> float | None:
        """Return a figure, or None for the live bytes of a rank whose last step is not the last step of most ranks."""
        if measure == "live" and summary.last_step != self._last_step:
            return None
        return _read_figure(summary, kind, measure)

    # Findings

    def _find_events(self) -> tuple[list[RankFinding], list[RankFinding]]:
        """Return the leaks and failed allocations of most ranks, and those of fewer ranks."""
        leaks: dict[_Key, list[tuple[RankSummary, RankLeak]]] = {}
        failed_ranks: dict[str, list[RankSummary]] = {}
        for summary in self._run.summaries:
            for device in summary.devices:
                for leak in device.leaks:
                    leaks.setdefault((device.kind, summary.line(leak.site)), []).append((summary, leak))
                if device.refused is not None:
                    failed_ranks.setdefault(device.kind, []).append(summary)
        findings = []
        for (kind, _), pairs in leaks.items():
            rank_count = sum(summary.of_kind(kind) is not None for summary in self._run.summaries)
            leaking_ranks = sorted(pairs, key=lambda item: -item[1].rate)
            ranks = tuple(dict.fromkeys(summary for summary, _ in leaking_ranks))
            findings.append(
                RankFinding(
                    "leak",
                    kind,
                    ranks,
                    rank_count,
                    leaking_ranks[0][1],
                    (leaking_ranks[-1][1].rate, leaking_ranks[0][1].rate),
                )
            )
        for kind, failed_summaries in failed_ranks.items():
            rank_count = sum(summary.of_kind(kind) is not None for summary in self._run.summaries)
            summaries = sorted(failed_summaries, key=lambda summary: -self._compute_max_distance(summary))
            findings.append(RankFinding("oom", kind, tuple(summaries), rank_count))
        findings.sort(key=_sort_key)
        return (
            [finding for finding in findings if finding.is_common],
            [finding for finding in findings if not finding.is_common],
        )

    def _compute_max_distance(self, summary: RankSummary) -> float:
        return max((abs(deviation.distance) for deviation in self._deviations[summary.path]), default=0.0)

    def _find_outliers(self, covered: set[tuple[str, str]]) -> tuple[list[RankFinding], int]:
        """Return one finding for all outlier ranks that the same line explains, and the number of further outliers."""
        outliers = []
        for summary in self._run.summaries:
            deviations = [item for item in self._deviations[summary.path] if (summary.path, item.kind) not in covered]
            if deviations:
                outliers.append((summary, deviations))
        outliers.sort(key=lambda pair: -max(abs(item.distance) for item in pair[1]))
        groups: dict[tuple[object, ...], list[RankFinding]] = {}
        for summary, deviations in outliers[:MAX_EXPLAINED]:
            kind = max(deviations, key=lambda item: abs(item.distance)).kind
            own_deviations = tuple(item for item in deviations if item.kind == kind)
            finding = self._explain(
                RankFinding("differs", kind, (summary,), len(self._compared), deviations=own_deviations)
            )
            line = None if finding.explanation is None else summary.line(finding.explanation.site)
            groups.setdefault(
                (kind, own_deviations[0].distance > 0, own_deviations[0].measure == TIME, line), []
            ).append(finding)
        findings = []
        for group_findings in groups.values():
            representative = group_findings[0]
            ranks = tuple(finding.ranks[0] for finding in group_findings)
            findings.append(dataclasses.replace(representative, ranks=ranks))
        return findings, max(len(outliers) - MAX_EXPLAINED, 0)

    def _find_unlike(self, findings: Sequence[RankFinding]) -> RankFinding | None:
        """Return the rank with the highest figure of the main device, with the line that explains it."""
        spreads = (self._spreads.get((self._main, measure)) for measure in BYTES)
        spread = next((spread for spread in spreads if spread is not None and not spread.is_alike), None)
        if spread is None:
            return None
        values = {summary: _read_figure(summary, self._main, spread.measure) or 0.0 for summary in self._compared}
        highest = max(self._compared, key=lambda summary: values[summary])
        if any(highest in finding.ranks for finding in findings if not finding.is_common):
            return None
        others = [value for summary, value in values.items() if summary is not highest]
        distance = min(spread.distance(values[highest]), _MAX_USUAL_DISTANCE)
        deviation = Deviation(self._main, spread.measure, values[highest], float(np.median(others)), distance)
        finding = RankFinding("unlike", self._main, (highest,), len(self._compared), deviations=(deviation,))
        return self._explain(finding)

    def _explain(self, finding: RankFinding) -> RankFinding:
        """Add the step of the first rank's departure and the explaining line to a finding; if it has none, outliers."""
        summary, kind = finding.ranks[0], finding.device
        outliers = tuple(item for item in self._deviations[summary.path] if item.kind == kind)
        deviations = finding.deviations or outliers
        references = self._select_references(kind, finding.ranks)
        if len(self._run.summaries) < 2 or not references:
            return finding
        details = self._details([summary, *references])
        own_detail = details[summary.path]
        reference_details = [details[reference.path] for reference in references]
        levels = own_detail.levels_of(kind)
        reference_levels = [
            item for item in (detail.levels_of(kind) for detail in reference_details) if item is not None
        ]
        departure = None if levels is None else find_departure(levels, reference_levels)
        is_higher = not deviations or deviations[0].distance > 0
        has_byte_outlier = any(item.measure in BYTES for item in deviations)
        explanation = (
            _find_explanation(summary, own_detail, references, reference_details, kind, is_higher)
            if has_byte_outlier
            else None
        )
        return dataclasses.replace(finding, deviations=deviations, departure=departure, explanation=explanation)

    def _select_references(self, kind: str, ranks: Sequence[RankSummary]) -> list[RankSummary]:
        own_paths = {summary.path for summary in ranks}
        other_ranks = [
            summary for summary in self._typical if summary.path not in own_paths and summary.of_kind(kind) is not None
        ]
        candidates = [
            summary for summary in other_ranks if not any(item.kind == kind for item in self._deviations[summary.path])
        ] or other_ranks
        positions = np.unique(
            np.linspace(0, len(candidates) - 1, min(len(candidates), MAX_REFERENCES)).round().astype(int)
        )
        return [candidates[index] for index in positions.tolist()]

    def _find_foreign_devices(self) -> list[RankFinding]:
        """Find ranks that also use the CUDA device of another rank on the same machine."""
        owners = {
            (summary.host, device.device): summary
            for summary in self._run.summaries
            for device in summary.devices
            if device.kind == CUDA
        }
        ranks_by_kind: dict[str, list[RankSummary]] = {}
        for summary in self._run.summaries:
            for device in summary.devices if summary.rank is not None else ():
                owner = owners.get((summary.host, device.device))
                if device.kind.startswith("cuda:") and owner not in (None, summary) and device.peak >= MIN_BYTES:
                    ranks_by_kind.setdefault(device.kind, []).append(summary)
        return [
            RankFinding(
                "device",
                kind,
                tuple(sorted(summaries, key=lambda summary: -_read_peak(summary, kind))),
                len(self._run.summaries),
            )
            for kind, summaries in ranks_by_kind.items()
        ]


def _sort_key(finding: RankFinding) -> tuple[object, ...]:
    return finding.kind != "oom", finding.is_common, -finding.rates[1]


def _read_figure(summary: RankSummary, kind: str, measure: str) -> float | None:
    """Return a figure, or None if it is not recorded. The peak of a device that a rank does not use is 0."""
    figures = summary.of_kind(kind)
    if figures is None:
        return 0.0 if measure == "peak" else None
    value = getattr(figures, measure)
    return None if value is None else float(value)


def _read_peak(summary: RankSummary, kind: str) -> float:
    return _read_figure(summary, kind, "peak") or 0.0


def _is_small(summary: RankSummary, kind: str) -> bool:
    figures = summary.of_kind(kind)
    return figures is None or figures.is_small


def _has_ended_early(summary: RankSummary) -> bool:
    return summary.is_truncated or summary.is_killed or summary.is_running


def _find_explanation(
    summary: RankSummary,
    own_detail: Detail,
    references: Sequence[RankSummary],
    reference_details: Sequence[Detail],
    kind: str,
    is_higher: bool,
) -> Explanation | None:
    """Return the line whose bytes at the peak differ most from the references' median, in the given direction.

    Leaking lines are left out: each has a finding of its own.
    """
    own_lines = {summary.line(line.site): (line.site, line.bytes) for line in own_detail.lines_of(kind)}
    tables = [
        {reference.line(line.site): (line.site, line.bytes) for line in detail.lines_of(kind)}
        for reference, detail in zip(references, reference_details, strict=True)
    ]
    sites = {key: site for table in [*tables, own_lines] for key, (site, _) in table.items()}
    medians = {key: float(np.median([table[key][1] if key in table else 0 for table in tables])) for key in sites}
    changes = {key: (own_lines[key][1] if key in own_lines else 0) - medians[key] for key in sites}
    figures = summary.of_kind(kind)
    leaking_lines = [summary.line(leak.site) for leak in figures.leaks] if figures is not None else []
    candidates = [key for key in changes if key not in leaking_lines]
    if not candidates:
        return None
    key_of_line = (max if is_higher else min)(candidates, key=lambda key: changes[key])
    if abs(changes[key_of_line]) < MIN_BYTES or (changes[key_of_line] > 0) != is_higher:
        return None
    own_bytes = {key: own_lines[key][1] if key in own_lines else 0 for key in sites}
    return Explanation(
        sites[key_of_line],
        own_bytes[key_of_line],
        round(medians[key_of_line]),
        next((line.holder for line in own_detail.lines_of(kind) if summary.line(line.site) == key_of_line), ""),
        round(sum(changes.values())),
        _find_common_factor([(own_bytes[key], medians[key]) for key in sites]),
        any(sites[key].user and own_bytes[key] == medians[key] >= MIN_BYTES for key in sites),
    )


def _find_common_factor(lines: Sequence[tuple[int, float]]) -> float | None:
    """Return the ratio of own to usual bytes, if it is about the same for all lines that matter and for at least two.

    A small line, such as that of the input, may be one of the two.
    """
    differing = [(own, usual) for own, usual in lines if own != usual]
    total = sum(abs(own - usual) for own, usual in differing)
    large = [(own, usual) for own, usual in differing if abs(own - usual) >= MIN_CHANGE_SHARE * total]
    own_total, usual_total = (sum(values) for values in zip(*large, strict=True)) if large else (0, 0)
    if not own_total or not usual_total:
        return None
    factor = own_total / usual_total
    alike = [(own, usual) for own, usual in differing if abs(own - factor * usual) <= MIN_SHARE * factor * usual]
    is_common = len(alike) >= 2 and set(large) <= set(alike) and abs(factor - 1) >= MIN_SHARE
    return factor if is_common else None
