"""The verdict on all ranks of a run in words, and as JSON.

docs/json.md has the fields of the JSON.
"""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.text import Text

from ..analysis.ranks.comparison import Comparison, RankFinding
from ..analysis.ranks.outliers import BYTES, TIME, Deviation
from ..analysis.ranks.rank_summary import CUDA, RankSummary
from ..analysis.ranks.runs import LeftOut
from ..analysis.ranks.tables import ranks_table, state_of
from ..analysis.summary import LeaksAnswer
from ..reading.sites import Site
from . import units
from .integrity import LABEL
from .leaks import confidence_word
from .screen import Screen
from .site_names import SiteNames, printable
from .tables import records

_LABELS = {
    "oom": ("OUT OF MEMORY", "bold red"),
    "leak": ("LEAK", "bold red"),
    "differs": ("DIFFERS", "bold yellow"),
    "device": ("OTHER DEVICE", "bold yellow"),
}
_MEASURES = {"peak": "peak", "reserved": "reserved", "live": "live at the end of the last step", TIME: "time per step"}
_LISTED = 6
"""Most ranks, or files, that a sentence names."""


@dataclasses.dataclass(frozen=True)
class RankWords:
    """Something that is wrong with ranks, or different about them, in words."""

    _finding: RankFinding
    title: str
    """The finding in one line, without a full stop."""
    sentences: tuple[str, ...]
    """Evidence, one sentence each."""
    site: Site | None
    """The line to look at; None if no line explains the finding."""

    @property
    def kind(self) -> str:
        """ "oom" (a request was refused), "leak", "differs" (its figures are outliers) or "device" (it also uses the
        CUDA device of another rank)."""
        return self._finding.kind

    @property
    def device(self) -> str:
        """The kind of device: "cuda" is each rank's own."""
        return self._finding.device

    @property
    def ranks(self) -> tuple[int | None, ...]:
        """The ranks that have it, the one that stands for all first; None for a process without a rank."""
        return tuple(summary.rank for summary in self._finding.ranks)

    @property
    def paths(self) -> tuple[str, ...]:
        """The traces of `ranks`, in the same order."""
        return tuple(summary.path for summary in self._finding.ranks)


def ranks_findings(comparison: Comparison) -> tuple[RankWords, ...]:
    """The findings in words, the most pressing first."""
    return tuple(_worded(one) for one in comparison.findings)


def write_ranks(comparison: Comparison, screen: Screen, top: int, kind: str | None = None) -> None:
    """Writes the verdict, then a table of the ranks. top: rows of it; kind: the kind of device that it shows."""
    incomplete = incomplete_sentences(comparison)
    for sentence in incomplete:
        _labelled(LABEL, "bold yellow", sentence, screen)
    if incomplete:
        screen.blank()
    if comparison.run is None:
        screen.text("No trace could be read.")
        return
    _header(comparison, screen)
    for words in ranks_findings(comparison):
        screen.blank()
        _finding(words, screen)
    clear, noted = _all_clear(comparison), notes(comparison)
    if clear or noted:
        screen.blank()
    for label, style, sentence in clear:
        _labelled(label, style, sentence, screen)
    for sentence in noted:
        screen.text(f"NOTE  {sentence}", hanging=6, style="dim")
    _table(comparison, screen, top, kind)


def ranks_data(comparison: Comparison, top: int, kind: str | None = None) -> dict[str, Any]:
    """Return the comparison as plain values, with at most `top` ranks."""
    run = comparison.run
    return {
        "run": None
        if run is None
        else {
            "program": run.summaries[0].program,
            "begin_ns": run.begin_ns,
            "world_size": run.world_size,
            "hosts": sorted({summary.host for summary in run.summaries}),
            "traces": len(run.summaries),
            "compared": len(comparison.compared),
            "missing": run.missing,
        },
        "left_out": [
            {"path": one.summary.path, "why": one.why, "text": _why(one, comparison)} for one in comparison.left_out
        ],
        "findings": [_finding_data(words) for words in ranks_findings(comparison)],
        "notes": [*incomplete_sentences(comparison), *notes(comparison)],
        "leaks": comparison.leaks_answer.value,
        "alike": comparison.is_alike,
        "ranks": records(ranks_table(comparison, kind).head(top)),
    }


def incomplete_sentences(comparison: Comparison) -> list[str]:
    """What is missing: before any answer."""
    found = []
    run = comparison.run
    if run is not None and run.missing:
        # A foreign trace may claim any number.
        has, they = ("has", "it") if len(run.missing) == 1 else ("have", "they")
        found.append(
            f"{len(run.missing):,} of {run.world_size:,} ranks {has} no trace here: {_listed(run.missing)}. "
            f"What {they} did is unknown."
        )
    for one in comparison.left_out:
        if one.why == "unreadable":
            found.append(f"{_file(one.summary)} cannot be read: {printable(one.summary.unreadable)}.")
    cut = comparison.incomplete
    for summary in cut[:_LISTED]:
        gaps = summary.has_gaps
        effect = "Its figures are not compared." if gaps else "What came after the break is unknown."
        found.append(f"{_capital(summary.name)} is {summary.integrity}. {effect}")
    if len(cut) > _LISTED:
        found.append(f"So are {units.counted(len(cut) - _LISTED, 'more rank')}, which the table marks.")
    return found


def notes(comparison: Comparison) -> list[str]:
    """What is to be known besides."""
    found: list[str] = []
    run = comparison.run
    if run is None:
        return found
    left_out = [one for one in comparison.left_out if one.why != "unreadable"]
    for why in dict.fromkeys(one.why for one in left_out):
        ones = [one for one in left_out if one.why == why]
        files = [_file(one.summary) for one in ones]
        shown = ", ".join(files[:_LISTED]) + (f" and {len(files) - _LISTED:,} more" if len(files) > _LISTED else "")
        is_left = "is" if len(ones) == 1 else "are"
        found.append(f"{units.counted(len(ones), 'trace')} {is_left} left out, {_why(ones[0], comparison)}: {shown}.")
    last = Counter(summary.last_step for summary in comparison.compared).most_common(1)
    usual = last[0][0] if last else None
    for summary in [
        summary for summary in run.summaries if summary.whole and (summary.is_killed or summary.is_running)
    ][:_LISTED]:
        how = "still runs" if summary.is_running else "was killed"
        steps = ""
        if summary.last_step is not None and usual is not None and summary.last_step != usual:
            steps = f": its last step is {summary.last_step:,}, that of most is {usual:,}"
        found.append(f"{_capital(summary.name)} {how}{steps}.")
    inconclusive = [
        summary for summary in run.summaries if any(one.judged and not one.decided for one in summary.devices)
    ]
    if inconclusive:
        site = next(one.unexplained for one in inconclusive[0].devices if one.unexplained is not None)
        name = _names(inconclusive[0]).site(site)
        found.append(
            f"Not decided on {_count(inconclusive, run.summaries)} whether they leak: {name} held on to more, too "
            f"irregularly or too late to call it a leak ({inconclusive[0].name})."
        )
    unjudged = [
        summary for summary in run.summaries if any(not one.judged and not one.is_small for one in summary.devices)
    ]
    if unjudged:
        found.append(f"Too short to judge leaks on {_count(unjudged, run.summaries)}.")
    if comparison.more_outliers:
        more = units.counted(comparison.more_outliers, "more outlier")
        found.append(f"{more}: see the table, or `table()` in Python.")
    return found


# Findings


def _worded(finding: RankFinding) -> RankWords:
    names, where, others = _names(finding.ranks[0]), _where(finding), _others(finding)
    device = "" if finding.device == CUDA else f" on {finding.device}"
    site: Site | None = None
    sentences: list[str] = []
    if finding.kind == "leak":
        leak = finding.leak
        assert leak is not None
        site = leak.site
        title = f"{names.site(site)}: {units.rate(leak.rate, leak.unit)}{device} on {where}"
        low, high = finding.rates
        if len(finding.ranks) > 1:
            spread = "the same on each" if round(low) == round(high) else f"{units.size(low)} to {units.size(high)}"
            sentences.append(f"Per {leak.unit}: {spread}.")
        sentences.append(f"{confidence_word(leak.confidence).capitalize()} ({units.share(leak.confidence, 1)}).")
        if leak.holder:
            sentences.append(f"Held by {leak.holder}.")
        if finding.is_common and leak.onset > leak.units_judged / 4:
            sentences.append(f"From {leak.unit} {round(leak.onset):,} on.")
    elif finding.kind == "oom":
        figures = finding.figures
        site = figures.refused_site
        step = "" if figures.refused_step is None else f" in step {figures.refused_step:,}"
        title = f"{where}{device}: a request of {units.size(figures.refused or 0)} was refused{step}"
        if site is not None:
            sentences.append(f"It was made at {names.site(site)}.")
    elif finding.kind == "device":
        most = max(own.peak for summary in finding.ranks if (own := summary.of_kind(finding.device)))
        title = f"{where} also {'uses' if len(finding.ranks) == 1 else 'use'} {finding.device}, another rank's device"
        sentences.append(f"Up to {units.size(most)} there: set the device before the first use of CUDA.")
    else:
        first = finding.deviations[0]
        title = f"{where}{device}: {_deviation(first, others)}"
        site = None if finding.explanation is None else finding.explanation.site
    rest = finding.deviations if finding.kind != "differs" else finding.deviations[1:]
    if rest:
        said = "; ".join(_deviation(one, others) for one in rest)
        of_first = "" if len(finding.ranks) == 1 else f" ({finding.ranks[0].name})"
        sentences.append(f"{said[:1].upper()}{said[1:]}{of_first}.")
    sentences += _explained(finding, names)
    sentences += _since(finding)
    return RankWords(finding, _capital(title), tuple(sentences), site)


def _explained(finding: RankFinding, names: SiteNames) -> list[str]:
    one = finding.explanation
    if one is None or (finding.leak is not None and one.site == finding.leak.site):
        return []
    more = "more" if one.bytes > one.usual else "less"
    change, in_all = (units.size(abs(count)) for count in (one.bytes - one.usual, one.difference))
    return [
        f"At its peak {names.site(one.site)} holds {units.size(one.bytes)}, on {_others(finding)} "
        f"{units.size(one.usual)}: {change} {more}, of {in_all} in all."
    ]


def _since(finding: RankFinding) -> list[str]:
    departure = finding.departure
    if departure is None:
        of_bytes = any(one.measure in BYTES for one in finding.deviations)
        step = finding.figures.peak_step if finding.kind == "differs" else None
        if of_bytes and step is not None:
            hold = "holds" if finding.of == 2 else "hold"
            return [
                f"At the ends of its steps it holds what {_others(finding)} {hold}; its peak is within step {step:,}."
            ]
        return []
    it = "It" if len(finding.ranks) == 1 else _capital(finding.ranks[0].name)
    if departure.from_start:
        return [f"{it} has differed from {_others(finding)} since the first step."]
    return [f"{it} departs from {_others(finding)} in step {departure.step:,}."]


def _deviation(one: Deviation, others: str) -> str:
    if one.measure == TIME:
        return f"{units.duration(one.value)} per step, {others} {units.duration(one.usual)}"
    return f"{_MEASURES[one.measure]} {units.size(one.value)}, {others} {units.size(one.usual)}"


def _others(finding: RankFinding) -> str:
    return "the other" if finding.of == 2 else "the others"


def _where(finding: RankFinding) -> str:
    """Which ranks: "rank 3 alone (of 64)", "all 8 ranks", "3 of 64 ranks (3, 5 and 9)"."""
    ranks = finding.ranks
    if len(ranks) == 1:
        return ranks[0].name if finding.of < 3 else f"{ranks[0].name} alone (of {finding.of:,})"
    if len(ranks) == finding.of:
        return "both ranks" if finding.of == 2 else f"all {finding.of:,} ranks"
    return f"{len(ranks):,} of {finding.of:,} ranks ({_names_of(ranks)})"


def _finding(words: RankWords, screen: Screen) -> None:
    label, style = _LABELS[words.kind]
    indent = len(label) + 2
    screen.text(Text.assemble((label, style), "  ", (words.title, "bold")), hanging=indent)
    source = _names(words._finding.ranks[0]).source(words.site) if words.site is not None else None
    if source:
        screen.source(source, indent)
    for sentence in words.sentences:
        screen.text(sentence, indent)
    departure = words._finding.departure
    if departure is None or len(departure.live) < 2:
        return
    width = max(min(screen.width - indent - 40, 60), 10)
    both = (*departure.live, *departure.usual)
    own = words._finding.ranks[0].name
    others = _others(words._finding)
    column = max(len(own), len(others))
    for name, values in ((own, departure.live), (others, departure.usual)):
        points = np.array_split(np.array(values), min(width, len(values)))
        # On one scale, so that they can be compared: from the lowest to the highest of both.
        drawn = [*(int(part.max()) for part in points), min(both), max(both)]
        chart = units.sparkline(drawn, len(drawn), plain=screen.plain)[:-2]
        arrow = "to" if screen.plain else "→"
        levels = f"{units.size(values[0])} {arrow} {units.size(values[-1])}"
        screen.text(Text.assemble(f"{name:<{column}}  ", (chart, "green"), f"  {levels}"), indent)


def _all_clear(comparison: Comparison) -> list[tuple[str, str, str]]:
    """What is not wrong, if that is known."""
    found = []
    compared = len(comparison.compared)
    all_ranks = "Both ranks" if compared == 2 else f"All {compared:,} ranks"
    if comparison.run is not None and compared < len(comparison.run.summaries):
        all_ranks += " that could be compared"
    differs = any(not one.is_common for one in comparison.findings)
    if compared > 1 and not differs:
        # Of no step, the reserved bytes of a device without segments, there is none.
        spreads = [spread for (kind, _), spread in comparison.spreads.items() if kind == comparison.main]
        of_bytes = [spread for spread in spreads if spread.measure in BYTES]
        if all(spread.is_alike for spread in of_bytes):
            said = ", ".join(_usual(spread.measure, spread.median, spread.low, spread.high) for spread in of_bytes)
            found.append(("OK", "bold green", f"{all_ranks} look alike: {said}."))
        else:
            first = next(spread for spread in of_bytes if not spread.is_alike)
            low, high = (units.size(value) for value in (first.low, first.high))
            found.append(
                (
                    "NOTE",
                    "bold yellow",
                    f"No rank stands out, but they are not alike: {_MEASURES[first.measure]} from {low} to {high}.",
                )
            )
    if comparison.leaks_answer is LeaksAnswer.NONE:
        found.append(("OK", "bold green", "No leak found on any rank."))
    return found


def _usual(measure: str, median: float, low: float, high: float) -> str:
    if units.size(low) == units.size(high):
        return f"{_MEASURES[measure]} {units.size(median)}"
    return f"{_MEASURES[measure]} {units.size(low)} to {units.size(high)}"


# The table


def _table(comparison: Comparison, screen: Screen, top: int, kind: str | None) -> None:
    kind = kind or comparison.main
    shown, more = comparison.summaries[:top], comparison.summaries[top:]
    hosts = len({summary.host for summary in comparison.summaries}) > 1
    rows = [("rank", *(("host",) if hosts else ()), "peak", "reserved", "leak", "step", "")]
    rows += [_cells(summary, kind, hosts, comparison) for summary in shown]
    widths = [max(len(row[number]) for row in rows) for number in range(len(rows[0]) - 1)]
    screen.blank()
    screen.text(Text.assemble(("RANKS", "bold"), f"  {kind}, those that differ most first"), hanging=7)
    for number, row in enumerate(rows):
        cells = [
            f"{cell:<{width}}" if column < 1 + hosts else f"{cell:>{width}}"
            for column, (cell, width) in enumerate(zip(row, widths, strict=False))
        ]
        line = Text("  ".join([*cells, row[-1]]).rstrip(), style="" if number else "dim")
        screen.text(line, 2, hanging=2 + widths[0] + 2)
    if more:
        peaks = [figures.peak for summary in more if (figures := summary.of_kind(kind)) is not None]
        between = f", peak {units.size(min(peaks))} to {units.size(max(peaks))}" if peaks else ""
        screen.text(f"and {units.counted(len(more), 'more rank')}{between} (--top 0: all)", 2, style="dim")


def _cells(summary: RankSummary, kind: str, hosts: bool, comparison: Comparison) -> tuple[str, ...]:
    device = summary.of_kind(kind)
    rank = _file(summary) if summary.rank is None else str(summary.rank)
    host = (printable(summary.host) or "?",) if hosts else ()
    if device is None:
        figures = ("-",) * 4
    else:
        figures = (
            units.size(device.peak),
            "-" if device.reserved is None else units.size(device.reserved),
            f"{units.change(device.leak_bytes_per_unit)}/{device.leak_unit}" if device.leaks else "-",
            "-" if device.seconds_per_step is None else units.duration(device.seconds_per_step),
        )
    marks = []
    if any(one.refused is not None for one in summary.devices):
        marks.append("OUT OF MEMORY")
    if (state := state_of(summary)) != "complete":
        marks.append(state.upper())
    if comparison.distances.get(summary.path, 0.0) >= 1:
        marks.append("differs")
    return (rank, *host, *figures, ", ".join(marks))


def _header(comparison: Comparison, screen: Screen) -> None:
    run = comparison.run
    assert run is not None
    summary = run.summaries[0]
    ranks = units.counted(run.world_size or len(run.summaries), "rank")
    hosts = len({one.host for one in run.summaries if one.host})
    where = "" if hosts < 2 else f" on {units.counted(hosts, 'host')}"
    first = Text(_names(summary).file(summary.program) or "(unknown program)", style="bold")
    first.append(f", {ranks}{where}", style="not bold")
    fewest, most = (of(one.steps for one in run.summaries) for of in (min, max))
    steps = units.counted(most, "step") if most else "no steps"
    first.append(f", {steps}" if fewest == most else f", {fewest:,} to {steps}", style="not bold")
    screen.text(first, hanging=2)


# Words


def _labelled(label: str, style: str, sentence: str, screen: Screen) -> None:
    screen.text(Text.assemble((label, style), f"  {sentence}"), hanging=len(label) + 2)


def _names(summary: RankSummary) -> SiteNames:
    return SiteNames(summary.working_directory)


def _file(summary: RankSummary) -> str:
    return printable(os.path.basename(summary.path))


def _why(one: LeftOut, comparison: Comparison) -> str:
    if one.why == "unreadable":
        return printable(one.summary.unreadable)
    if one.why == "copy":
        return "of the same recording as another trace"
    if one.why == "child":
        return "of a process that a rank started"
    if one.why == "no rank":
        return "of a process without a rank"
    assert comparison.run is not None
    apart = (one.summary.begin_ns - comparison.run.begin_ns) / 1e9
    return f"of another run ({units.duration(abs(apart))} {'later' if apart > 0 else 'earlier'})"


def _count(some: Sequence[RankSummary], all_summaries: Sequence[RankSummary]) -> str:
    if len(some) == 1:
        return some[0].name
    if len(some) == len(all_summaries):
        return f"all {len(some):,} ranks"
    return f"{len(some):,} of {len(all_summaries):,} ranks ({_names_of(some)})"


def _names_of(summaries: Sequence[RankSummary]) -> str:
    if any(summary.rank is None for summary in summaries):
        files = [_file(summary) for summary in summaries]
        return ", ".join(files[:_LISTED]) + (f" and {len(files) - _LISTED:,} more" if len(files) > _LISTED else "")
    return _listed(sorted(summary.rank for summary in summaries if summary.rank is not None))


def _listed(numbers: Sequence[int]) -> str:
    """ "1, 5 to 9 and 12": runs of numbers, the first few of many."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1] = runs[-1][0], number
        else:
            runs.append((number, number))
    # Of two: "3 and 4", not "3 to 4".
    runs = [
        part
        for first, last in runs
        for part in ([(first, first), (last, last)] if last == first + 1 else [(first, last)])
    ]
    texts = [str(first) if first == last else f"{first} to {last}" for first, last in runs]
    if len(texts) > _LISTED:
        left = sum(last - first + 1 for first, last in runs[_LISTED:])
        return f"{', '.join(texts[:_LISTED])} and {left:,} more"
    *most, last_text = texts
    return f"{', '.join(most)} and {last_text}" if most else last_text


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:] if text.startswith(("rank", "all ", "both ", "a ")) else text


def _finding_data(words: RankWords) -> dict[str, Any]:
    finding = words._finding
    departure, leak = finding.departure, finding.leak
    return {
        "kind": finding.kind,
        "title": words.title,
        "sentences": list(words.sentences),
        "device": finding.device,
        "ranks": [summary.rank for summary in finding.ranks],
        "paths": [summary.path for summary in finding.ranks],
        "of": finding.of,
        "site": None if words.site is None else dataclasses.asdict(words.site),
        "bytes_per_unit": None if leak is None else round(leak.rate),
        "unit": None if leak is None else leak.unit,
        "since_step": None if departure is None else departure.step,
        "since_start": None if departure is None else departure.from_start,
        "measures": [dataclasses.asdict(one) for one in finding.deviations],
    }
