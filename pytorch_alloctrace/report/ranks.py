"""Comparison of all ranks of a run as text and as JSON (fields: docs/json.md)."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.text import Text

from ..analysis.ranks.comparison import Comparison, Explanation, RankFinding
from ..analysis.ranks.outliers import BYTES, GROWTH, TIME, WITHIN, Deviation
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
_MEASURES = {
    "peak": "peak allocated",
    "reserved": "reserved",
    "live": "live at the end of the last step",
    TIME: "time per step",
}
_MAX_LISTED = 6  # ranks or files in a sentence


@dataclasses.dataclass(frozen=True)
class RankReport:
    """Problem of some ranks, or difference between ranks, in words."""

    _finding: RankFinding
    title: str
    """The finding in one line, without a full stop."""
    sentences: tuple[str, ...]
    """Evidence, one sentence per item."""
    site: Site | None
    """The line to look at; None if no line explains the finding."""

    @property
    def kind(self) -> str:
        """Return "oom" (failed allocation), "leak", "differs" (outlier) or "device" (uses the GPU of another rank)."""
        return self._finding.kind

    @property
    def device(self) -> str:
        """Return the kind of device; "cuda" is the own GPU of each rank."""
        return self._finding.device

    @property
    def ranks(self) -> tuple[int | None, ...]:
        """Return the affected ranks, the representative one first; None for a process without a rank."""
        return tuple(summary.rank for summary in self._finding.ranks)

    @property
    def paths(self) -> tuple[str, ...]:
        """Return the trace paths of `ranks`, in the same order."""
        return tuple(summary.path for summary in self._finding.ranks)


def ranks_findings(comparison: Comparison) -> tuple[RankReport, ...]:
    """Return the findings, the most severe first."""
    return tuple(_describe_finding(finding) for finding in comparison.findings)


def write_ranks(comparison: Comparison, screen: Screen, top: int, kind: str | None = None) -> None:
    """Write the verdict, then a table of `top` ranks for one kind of device."""
    incomplete = incomplete_sentences(comparison)
    for sentence in incomplete:
        _write_labelled(LABEL, "bold yellow", sentence, screen)
    if incomplete:
        screen.blank()
    if comparison.run is None:
        screen.text("No trace could be read.")
        return
    _write_header(comparison, screen)
    for finding in ranks_findings(comparison):
        screen.blank()
        _write_finding(finding, screen)
    passed_checks, note_texts = _list_passed_checks(comparison), note_sentences(comparison)
    if passed_checks or note_texts:
        screen.blank()
    for label, style, sentence in passed_checks:
        _write_labelled(label, style, sentence, screen)
    for sentence in note_texts:
        screen.text(f"NOTE  {sentence}", hanging=6, style="dim")
    _write_table(comparison, screen, top, kind)


def ranks_data(comparison: Comparison, top: int, kind: str | None = None) -> dict[str, Any]:
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
            {"path": trace.summary.path, "why": trace.why, "text": _describe_reason(trace, comparison)}
            for trace in comparison.left_out
        ],
        "findings": [_finding_data(finding) for finding in ranks_findings(comparison)],
        "notes": [*incomplete_sentences(comparison), *note_sentences(comparison)],
        "leaks": comparison.leaks_answer.value,
        "alike": comparison.is_alike,
        "ranks": records(ranks_table(comparison, kind).head(top)),
    }


def incomplete_sentences(comparison: Comparison) -> list[str]:
    sentences = []
    run = comparison.run
    if run is not None and run.missing:
        # A hostile trace may claim any world size.
        verb, pronoun = ("has", "it") if len(run.missing) == 1 else ("have", "they")
        sentences.append(
            f"{len(run.missing):,} of {run.world_size:,} ranks {verb} no trace here: {_list_numbers(run.missing)}. "
            f"What {pronoun} did is unknown."
        )
    sentences.extend(
        f"{_file_name(trace.summary)} cannot be read: {printable(trace.summary.unreadable)}."
        for trace in comparison.left_out
        if trace.why == "unreadable"
    )
    incomplete = comparison.incomplete
    for summary in incomplete[:_MAX_LISTED]:
        gaps = summary.has_gaps
        effect = "Its figures are not compared." if gaps else "What came after the break is unknown."
        sentences.append(f"{_capitalize(summary.name)} is {summary.integrity}. {effect}")
    if len(incomplete) > _MAX_LISTED:
        sentences.append(
            f"Also incomplete: {units.counted(len(incomplete) - _MAX_LISTED, 'more rank')}, marked in the table."
        )
    return sentences


def note_sentences(comparison: Comparison) -> list[str]:
    """Return sentences about left-out traces, killed or running ranks, leaks not judged and further outliers."""
    sentences: list[str] = []
    run = comparison.run
    if run is None:
        return sentences
    left_out = [trace for trace in comparison.left_out if trace.why != "unreadable"]
    for reason in dict.fromkeys(trace.why for trace in left_out):
        traces = [trace for trace in left_out if trace.why == reason]
        files = [_file_name(trace.summary) for trace in traces]
        names = ", ".join(files[:_MAX_LISTED]) + (
            f" and {len(files) - _MAX_LISTED:,} more" if len(files) > _MAX_LISTED else ""
        )
        verb = "is" if len(traces) == 1 else "are"
        sentences.append(
            f"{units.counted(len(traces), 'trace')} {verb} left out, {_describe_reason(traces[0], comparison)}: "
            f"{names}."
        )
    step_counts = Counter(summary.last_step for summary in comparison.compared).most_common(1)
    common_step = step_counts[0][0] if step_counts else None
    for summary in [
        summary for summary in run.summaries if summary.is_complete and (summary.is_killed or summary.is_running)
    ][:_MAX_LISTED]:
        state = "still runs" if summary.is_running else "was killed"
        steps = ""
        if summary.last_step is not None and common_step is not None and summary.last_step != common_step:
            steps = f": its last step is {summary.last_step:,}, on most ranks {common_step:,}"
        sentences.append(f"{_capitalize(summary.name)} {state}{steps}.")
    inconclusive = [
        summary for summary in run.summaries if any(device.judged and not device.decided for device in summary.devices)
    ]
    if inconclusive:
        site = next(device.unexplained for device in inconclusive[0].devices if device.unexplained is not None)
        name = _site_names(inconclusive[0]).site(site)
        sentences.append(
            f"Leaks inconclusive on {_count_ranks(inconclusive, run.summaries)}: {name} grew, but too irregularly or "
            f"too late to call it a leak ({inconclusive[0].name})."
        )
    unjudged = [
        summary
        for summary in run.summaries
        if any(not device.judged and not device.is_small for device in summary.devices)
    ]
    if unjudged:
        sentences.append(f"Too short to judge leaks on {_count_ranks(unjudged, run.summaries)}.")
    if comparison.more_outliers:
        count = units.counted(comparison.more_outliers, "more outlier")
        sentences.append(f"{count}: see the table, or `table()` in Python.")
    return sentences


def _describe_finding(finding: RankFinding) -> RankReport:
    names, ranks, other_ranks = _site_names(finding.ranks[0]), _describe_ranks(finding), _name_others(finding)
    device = "" if finding.device == CUDA else f" on {finding.device}"
    site: Site | None = None
    sentences: list[str] = []
    if finding.kind == "leak":
        leak = finding.leak
        assert leak is not None
        site = leak.site
        title = f"{names.site(site)}: {units.rate(leak.rate, leak.unit)}{device} on {ranks}"
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
        title = f"{ranks}{device}: an allocation of {units.size(figures.refused or 0)} failed{step}"
        if site is not None:
            sentences.append(f"Requested at {names.site(site)}.")
    elif finding.kind == "device":
        peak = max(usage.peak for summary in finding.ranks if (usage := summary.of_kind(finding.device)))
        title = f"{ranks} also {'uses' if len(finding.ranks) == 1 else 'use'} {finding.device}, another rank's device"
        sentences.append(f"Up to {units.size(peak)} there: set the device before the first use of CUDA.")
    else:
        largest = finding.deviations[0]
        title = f"{ranks}{device}: {_describe_deviation(largest, other_ranks)}"
        site = None if finding.explanation is None else finding.explanation.site
    deviations = finding.deviations if finding.kind != "differs" else finding.deviations[1:]
    if deviations:
        deviation_texts = "; ".join(_describe_deviation(deviation, other_ranks) for deviation in deviations)
        rank_note = "" if len(finding.ranks) == 1 else f" ({finding.ranks[0].name})"
        sentences.append(f"{deviation_texts[:1].upper()}{deviation_texts[1:]}{rank_note}.")
    sentences += _explain_difference(finding, names)
    sentences += _describe_departure(finding)
    return RankReport(finding, _capitalize(title), tuple(sentences), site)


def _explain_difference(finding: RankFinding, names: SiteNames) -> list[str]:
    explanation = finding.explanation
    if explanation is None or (finding.leak is not None and explanation.site == finding.leak.site):
        return []
    direction = "more" if explanation.bytes > explanation.usual else "less"
    change, difference = (
        units.size(abs(size)) for size in (explanation.bytes - explanation.usual, explanation.difference)
    )
    return [
        f"At its peak {names.site(explanation.site)} holds {units.size(explanation.bytes)}, on {_name_others(finding)} "
        f"{units.size(explanation.usual)}: {change} {direction}, of {difference} in all.",
        *([f"`{names.referrer(explanation.holder)}` holds it."] if explanation.holder and direction == "more" else []),
        *_describe_factor(explanation),
    ]


def _describe_factor(explanation: Explanation) -> list[str]:
    factor = explanation.factor
    if factor is None:
        return []
    lines = "All lines that differ hold" if explanation.has_equal_lines else "All its lines hold"
    model = "" if explanation.has_equal_lines else f", or {'more' if factor > 1 else 'less'} of the model"
    cause = f"a {'larger' if factor > 1 else 'smaller'} input or batch{model}"
    return [f"{lines} {factor:.3g} times as much: {cause}."]


def _describe_departure(finding: RankFinding) -> list[str]:
    departure = finding.departure
    others = _name_others(finding)
    if departure is None:
        has_bytes = any(deviation.measure in BYTES for deviation in finding.deviations)
        step = finding.figures.peak_step if finding.kind == "differs" else None
        if has_bytes and step is not None:
            verb = "holds" if finding.rank_count == 2 else "hold"
            return [f"At the ends of its steps it holds what {others} {verb}; its peak is within step {step:,}."]
        return []
    is_alone = len(finding.ranks) == 1
    name = "it" if is_alone else finding.ranks[0].name
    subject = "It" if is_alone else _capitalize(name)
    sentences = []
    for number, cause in enumerate(departure.causes):
        since = "since the first step" if cause.from_start else f"since step {cause.step:,}"
        amount = f"{units.size(abs(cause.bytes))} {'more' if cause.bytes > 0 else 'less'} than {others}"
        also = "also " if number else ""
        if cause.kind == WITHIN:
            sentences.append(f"Within its steps {name} has {also}needed {amount} {since}.")
        elif cause.kind == GROWTH:
            change = units.change(cause.bytes)
            verb = f"has {also}grown"
            if cause.last_step is not None:
                verb, since = f"{also}grew", f"from step {cause.step:,} to step {cause.last_step:,}"
            sentences.append(f"Its difference from {others} {verb} by {change} per step {since}.")
        else:
            sentences.append(f"{subject} has {also}held {amount} {since}.")
    return sentences


def _describe_deviation(deviation: Deviation, others: str) -> str:
    if deviation.measure == TIME:
        return f"{units.duration(deviation.value)} per step, {others} {units.duration(deviation.usual)}"
    return f"{_MEASURES[deviation.measure]} {units.size(deviation.value)}, {others} {units.size(deviation.usual)}"


def _name_others(finding: RankFinding) -> str:
    return "the other" if finding.rank_count == 2 else "the others"


def _describe_ranks(finding: RankFinding) -> str:
    """Return "rank 3 alone (of 64)", "all 8 ranks" or "3 of 64 ranks (3, 5 and 9)"."""
    ranks = finding.ranks
    if len(ranks) == 1:
        return ranks[0].name if finding.rank_count < 3 else f"{ranks[0].name} alone (of {finding.rank_count:,})"
    if len(ranks) == finding.rank_count:
        return "both ranks" if finding.rank_count == 2 else f"all {finding.rank_count:,} ranks"
    return f"{len(ranks):,} of {finding.rank_count:,} ranks ({_list_ranks(ranks)})"


def _write_finding(report: RankReport, screen: Screen) -> None:
    label, style = _LABELS[report.kind]
    indent = len(label) + 2
    screen.text(Text.assemble((label, style), "  ", (report.title, "bold")), hanging=indent)
    if report.site is not None:
        names = _site_names(report._finding.ranks[0])
        name, source = names.site(report.site), names.source(report.site)
        if source:
            screen.source(source if name in report.title else f"{name}: {source}", indent)
    for sentence in report.sentences:
        screen.text(sentence, indent)
    departure = report._finding.departure
    if departure is None or len(departure.live) < 2 or departure.causes[0].kind == WITHIN:
        return
    width = max(min(screen.width - indent - 40, 60), 10)
    all_values = (*departure.live, *departure.usual)
    name_of_rank = report._finding.ranks[0].name
    other_ranks = _name_others(report._finding)
    name_width = max(len(name_of_rank), len(other_ranks))
    for name, values in ((name_of_rank, departure.live), (other_ranks, departure.usual)):
        points = np.array_split(np.array(values), min(width, len(values)))
        # One scale for both charts: each gets the minimum and maximum of both as two more columns, then drops these.
        levels = [*(int(part.max()) for part in points), min(all_values), max(all_values)]
        chart = units.sparkline(levels, len(levels), plain=screen.plain)[:-2]
        arrow = "to" if screen.plain else "→"
        change_text = f"{units.size(values[0])} {arrow} {units.size(values[-1])}"
        screen.text(Text.assemble(f"{name:<{name_width}}  ", (chart, "green"), f"  {change_text}"), indent)


def _list_passed_checks(comparison: Comparison) -> list[tuple[str, str, str]]:
    """Return (label, style, sentence) for each check that passed."""
    checks = []
    compared = len(comparison.compared)
    all_ranks = "Both ranks" if compared == 2 else f"All {compared:,} ranks"
    if comparison.run is not None and compared < len(comparison.run.summaries):
        all_ranks += " that could be compared"
    different = [finding for finding in comparison.findings if not finding.is_common]
    # `spreads` lacks reserved bytes for devices without segments, and step times without steps.
    spreads = [spread for (kind, _), spread in comparison.spreads.items() if kind == comparison.main]
    byte_spreads = [spread for spread in spreads if spread.measure in BYTES]
    unlike = comparison.unlike
    if unlike is not None:
        subject = "The ranks" if different else "No rank stands out, but they"
        checks.append(("NOTE", "bold yellow", f"{subject} are not alike: {_describe_unlike(unlike, comparison)}"))
    elif compared > 1 and not different and all(spread.is_alike for spread in byte_spreads):
        figures = ", ".join(
            _describe_spread(spread.measure, spread.median, spread.low, spread.high) for spread in byte_spreads
        )
        checks.append(("OK", "bold green", f"{all_ranks} look alike: {figures}."))
    if comparison.leaks_answer is LeaksAnswer.NONE:
        checks.append(("OK", "bold green", "No leak found on any rank."))
    return checks


def _describe_unlike(unlike: RankFinding, comparison: Comparison) -> str:
    measure = unlike.deviations[0].measure
    spread = comparison.spreads[unlike.device, measure]
    figures = f"{_MEASURES[measure]} from {units.size(spread.low)} to {units.size(spread.high)}"
    explanation = _explain_difference(unlike, _site_names(unlike.ranks[0]))
    return " ".join((f"{figures} ({unlike.ranks[0].name}).", *explanation))


def _describe_spread(measure: str, median: float, low: float, high: float) -> str:
    if units.size(low) == units.size(high):
        return f"{_MEASURES[measure]} {units.size(median)}"
    return f"{_MEASURES[measure]} {units.size(low)} to {units.size(high)}"


def _write_table(comparison: Comparison, screen: Screen, top: int, kind: str | None) -> None:
    kind = kind or comparison.main
    if not kind:
        screen.blank()
        screen.text(
            "Nothing was allocated through torch in these processes. If they started others, record the program with "
            "alloctrace run --follow."
        )
        return
    listed, omitted = comparison.summaries[:top], comparison.summaries[top:]
    has_hosts = len({summary.host for summary in comparison.summaries}) > 1
    rows = [("rank", *(("host",) if has_hosts else ()), "peak", "reserved", "leak", "step", "")]
    rows += [_make_cells(summary, kind, has_hosts, comparison) for summary in listed]
    widths = [max(len(row[number]) for row in rows) for number in range(len(rows[0]) - 1)]
    screen.blank()
    screen.text(Text.assemble(("RANKS", "bold"), f"  {kind}, largest differences first"), hanging=7)
    for number, row in enumerate(rows):
        cells = [
            f"{cell:<{width}}" if column < 1 + has_hosts else f"{cell:>{width}}"
            for column, (cell, width) in enumerate(zip(row, widths, strict=False))
        ]
        line = Text("  ".join([*cells, row[-1]]).rstrip(), style="" if number else "dim")
        screen.text(line, 2, hanging=2 + widths[0] + 2)
    if omitted:
        peaks = [figures.peak for summary in omitted if (figures := summary.of_kind(kind)) is not None]
        peak_range = f", peak {units.size(min(peaks))} to {units.size(max(peaks))}" if peaks else ""
        screen.text(f"and {units.counted(len(omitted), 'more rank')}{peak_range} (--top 0: all)", 2, style="dim")


def _make_cells(summary: RankSummary, kind: str, has_hosts: bool, comparison: Comparison) -> tuple[str, ...]:
    device = summary.of_kind(kind)
    rank = _file_name(summary) if summary.rank is None else str(summary.rank)
    host = (printable(summary.host) or "?",) if has_hosts else ()
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
    if any(figures_of_device.refused is not None for figures_of_device in summary.devices):
        marks.append("OUT OF MEMORY")
    if (state := state_of(summary)) != "complete":
        marks.append(state.upper())
    if comparison.distances.get(summary.path, 0.0) >= 1:
        marks.append("differs")
    return (rank, *host, *figures, ", ".join(marks))


def _write_header(comparison: Comparison, screen: Screen) -> None:
    run = comparison.run
    assert run is not None
    summary = run.summaries[0]
    ranks = units.counted(run.world_size or len(run.summaries), "rank")
    hosts = len({rank_summary.host for rank_summary in run.summaries if rank_summary.host})
    on_hosts = "" if hosts < 2 else f" on {units.counted(hosts, 'host')}"
    heading = Text(_site_names(summary).file(summary.program) or "(unknown program)", style="bold")
    heading.append(f", {ranks}{on_hosts}", style="not bold")
    lowest_steps, highest_steps = (bound(rank_summary.steps for rank_summary in run.summaries) for bound in (min, max))
    steps = units.counted(highest_steps, "step") if highest_steps else "no steps"
    heading.append(
        f", {steps}" if lowest_steps == highest_steps else f", {lowest_steps:,} to {steps}", style="not bold"
    )
    screen.text(heading, hanging=2)


def _write_labelled(label: str, style: str, sentence: str, screen: Screen) -> None:
    screen.text(Text.assemble((label, style), f"  {sentence}"), hanging=len(label) + 2)


def _site_names(summary: RankSummary) -> SiteNames:
    return SiteNames(summary.working_directory)


def _file_name(summary: RankSummary) -> str:
    return printable(Path(summary.path).name)


def _describe_reason(left_out: LeftOut, comparison: Comparison) -> str:
    if left_out.why == "unreadable":
        return printable(left_out.summary.unreadable)
    if left_out.why == "copy":
        return "of the same recording as another trace"
    if left_out.why == "child":
        return "of a process that a rank started"
    if left_out.why == "launcher":
        return "of a process that started the ranks"
    if left_out.why == "no rank":
        return "of a process without a rank"
    assert comparison.run is not None
    seconds_apart = (left_out.summary.begin_ns - comparison.run.begin_ns) / 1e9
    return f"of another run ({units.duration(abs(seconds_apart))} {'later' if seconds_apart > 0 else 'earlier'})"


def _count_ranks(summaries: Sequence[RankSummary], all_summaries: Sequence[RankSummary]) -> str:
    if len(summaries) == 1:
        return summaries[0].name
    if len(summaries) == len(all_summaries):
        return f"all {len(summaries):,} ranks"
    return f"{len(summaries):,} of {len(all_summaries):,} ranks ({_list_ranks(summaries)})"


def _list_ranks(summaries: Sequence[RankSummary]) -> str:
    if any(summary.rank is None for summary in summaries):
        files = [_file_name(summary) for summary in summaries]
        return ", ".join(files[:_MAX_LISTED]) + (
            f" and {len(files) - _MAX_LISTED:,} more" if len(files) > _MAX_LISTED else ""
        )
    return _list_numbers(sorted(summary.rank for summary in summaries if summary.rank is not None))


def _list_numbers(numbers: Sequence[int]) -> str:
    """Return number ranges such as "1, 5 to 9 and 12"; after _MAX_LISTED ranges, only a count."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1] = runs[-1][0], number
        else:
            runs.append((number, number))
    # Write two numbers as "3 and 4", not "3 to 4".
    runs = [
        run
        for first, last in runs
        for run in ([(first, first), (last, last)] if last == first + 1 else [(first, last)])
    ]
    range_texts = [str(first) if first == last else f"{first} to {last}" for first, last in runs]
    if len(range_texts) > _MAX_LISTED:
        omitted = sum(last - first + 1 for first, last in runs[_MAX_LISTED:])
        return f"{', '.join(range_texts[:_MAX_LISTED])} and {omitted:,} more"
    *first_texts, last_text = range_texts
    return f"{', '.join(first_texts)} and {last_text}" if first_texts else last_text


def _capitalize(text: str) -> str:
    return text[:1].upper() + text[1:] if text.startswith(("rank", "all ", "both ", "a ")) else text


def _finding_data(report: RankReport) -> dict[str, Any]:
    finding = report._finding
    departure, leak = finding.departure, finding.leak
    return {
        "kind": finding.kind,
        "title": report.title,
        "sentences": list(report.sentences),
        "device": finding.device,
        "ranks": [summary.rank for summary in finding.ranks],
        "paths": [summary.path for summary in finding.ranks],
        "of": finding.rank_count,
        "site": None if report.site is None else dataclasses.asdict(report.site),
        "bytes_per_unit": None if leak is None else round(leak.rate),
        "unit": None if leak is None else leak.unit,
        "since_step": None if departure is None else departure.step,
        "since_start": None if departure is None else departure.from_start,
        "causes": [] if departure is None else [dataclasses.asdict(cause) for cause in departure.causes],
        "measures": [dataclasses.asdict(deviation) for deviation in finding.deviations],
    }
