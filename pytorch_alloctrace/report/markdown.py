"""Pull request comment in Markdown: the findings, then tables."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..analysis.leaks.leak import Leak
from ..analysis.summary import DeviceSummary, Summary
from ..reading.integrity import Integrity
from ..reading.sites import Frame, Site
from . import units
from .children import LABEL as CHILD
from .children import describe_children, leaking_child
from .difference import Changes, amount_of, label_of, peak_move_sentence, row_name
from .finding import LABELS, Finding
from .growth import describe_no_holder
from .integrity import LABEL, complete_note, effects
from .leaks import confidence_word, leak_findings
from .site_names import SiteNames, printable
from .tables import by_word, rows
from .verdict import diagnosis

_MAX_ROWS = 10
_ENTITIES = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;", **{character: f"&#{ord(character)};" for character in "\\`*_[]~|$"}}
)
"""Escapes of the characters that begin a link, an image, HTML, code, emphasis, mathematics or a table cell."""
_AUTOLINK = re.compile(r"(?<=:)(?=//)|(?<=@)(?=\w)|(?<=www)(?=\.)", re.IGNORECASE)
"""Positions inside addresses and user names that GitHub turns into links."""
_KINDS_WITHOUT_LABEL = ("leak", "minor_leak", "no_leak", "inconclusive", "not_judged")


def incomplete_markdown(integrity: Integrity, if_truncated: str, trace: str = "") -> str:
    """Return the warning that precedes the comment on an incomplete trace, else the note on a complete one, or ""."""
    if integrity.is_complete:
        note = complete_note(integrity, trace)
        return f"> **{note[0]}** {_escape(note[1])}\n\n" if note else ""
    subject = f"{trace} is " if trace else ""
    sentences = " ".join((f"{subject}{integrity}.", *effects(integrity, if_truncated)))
    return f"> **{LABEL}** {_escape(sentences)}\n\n"


def verdict_markdown(summary: Summary) -> str:
    names = SiteNames(summary.program.working_directory)
    findings = diagnosis(summary) if summary.devices else ()
    shown_findings = [finding for finding in findings if finding.kind != "incomplete"]
    paragraphs = [
        _make_heading(summary, shown_findings),
        *(_format_finding(finding, names) for finding in shown_findings),
    ]
    paragraphs += [_format_peak(device, names) for device in summary.devices]
    paragraphs += _list_children(summary, names)
    return _join([*paragraphs, _make_footer(summary, names)])


def leaks_markdown(summary: Summary, failures: Sequence[str], top: int, region: str = "") -> str:
    """Return the leaks of the run, or of `region`, after `failures`: sentences on exceeded limits."""
    names = SiteNames(summary.program.working_directory)
    findings = leak_findings(summary)
    paragraphs = [f"**In {_escape(region)}**"] if region else []
    paragraphs += [_make_heading(summary, findings), *_list_failures(failures)]
    leaks = [finding for finding in findings if finding.leak is not None]
    if leaks:
        table_rows = []
        for finding in leaks[: min(top, _MAX_ROWS)]:
            leak = finding.leak
            assert leak is not None
            live = f"{units.size(leak.allocated_bytes)} in {units.counted(leak.blocks, 'block')}"
            confidence = f"{confidence_word(leak.confidence)} ({units.share(leak.confidence, 1)})"
            if leak.minor:
                confidence += ", minor"
            table_rows.append(
                (
                    units.rate(leak.bytes_per_unit, leak.unit),
                    live,
                    leak.device,
                    _format_site(leak.line, names),
                    _format_holder(leak, summary, names),
                    confidence,
                )
            )
        header = ("leak", "live", "device", "line", "held by", "confidence")
        paragraphs.append(_make_table(header, table_rows, numbers=2))
        if len(leaks) > len(table_rows):
            paragraphs.append(f"and {units.counted(len(leaks) - len(table_rows), 'more leak')}")
    paragraphs += [_make_sentence(finding.title) for finding in findings if finding.leak is None]
    paragraphs += _list_children(summary, names)
    return _join([*paragraphs, _make_footer(summary, names)])


def changes_markdown(all_changes: Sequence[Changes], failures: Sequence[str], names: SiteNames, top: int) -> str:
    """Return the changes on each device, after `failures`: sentences on exceeded limits."""
    if not all_changes:
        return "### Memory: nothing was allocated in either\n"
    heading = "; ".join(f"{changes.device} {amount_of(changes)}" for changes in all_changes)
    paragraphs = [f"### Memory: {heading}", *_list_failures(failures)]
    for changes in all_changes:
        range_text = _escape(f"from {changes.before} to {changes.after}")
        heading = f"**{label_of(changes)[0]}** on {changes.device}, {range_text}."
        changed_rows = changes.table[changes.table["change_bytes"] != 0]
        listed_rows = changed_rows.head(min(top, _MAX_ROWS))
        table_rows = []
        for row in rows(listed_rows):
            name, source = row_name(row, changes.by, names)
            sizes = units.size(row["live_bytes_before"]), units.size(row["live_bytes_after"])
            table_rows.append((units.change(row["change_bytes"]), *sizes, _join_source(name, source)))
        paragraphs.append(heading if table_rows else f"{heading} No {by_word(changes.by)} changed.")
        if table_rows:
            if changes.peak_move is not None:
                paragraphs.append(_escape(peak_move_sentence(changes.peak_move, changes.by, names)))
            paragraphs.append(_make_table(("change", "before", "after", by_word(changes.by)), table_rows, numbers=3))
        omitted_rows = changed_rows.iloc[len(listed_rows) :]
        if len(omitted_rows):
            count = units.counted(len(omitted_rows), f"more {by_word(changes.by)}")
            paragraphs.append(f"{units.change(int(omitted_rows['change_bytes'].sum()))} in {count}")
    return _join(paragraphs)


def _make_heading(summary: Summary, findings: Sequence[Finding]) -> str:
    if not summary.devices and leaking_child(summary.children, SiteNames("")) is None:
        return "### Memory: nothing was allocated"
    leaks = [finding for finding in findings if finding.kind == "leak"]
    problems = [LABELS[finding.kind] for finding in findings if finding.kind not in _KINDS_WITHOUT_LABEL]
    problem_texts = ([units.counted(len(leaks), "leak")] if leaks else []) + [
        label.lower() for label in dict.fromkeys(problems)
    ]
    kinds = {finding.kind for finding in findings}
    if "inconclusive" in kinds:
        problem_texts.append("other leaks inconclusive" if leaks else "leaks inconclusive")
    if leaking_child(summary.children, SiteNames("")) is not None:
        problem_texts.append("a leak in a child process")
    if not problem_texts:
        problem_texts = ["leaks were not judged" if "not_judged" in kinds else "nothing is wrong"]
    return f"### Memory: {', '.join(problem_texts)}"


def _list_children(summary: Summary, names: SiteNames) -> list[str]:
    sentences = describe_children(summary.children, names) if summary.children is not None else []
    return [f"**{CHILD}** {_make_sentence(sentence)}" for sentence in sentences]


def _list_failures(sentences: Sequence[str]) -> list[str]:
    return [f"**FAIL** {_escape(sentence)}." for sentence in sentences]


def _format_finding(finding: Finding, names: SiteNames) -> str:
    source = names.source(finding.site) if finding.site is not None else None
    source_code = f"<br>{_format_code(source)}" if source else ""
    sentences = "".join(f" {_escape(sentence)}" for sentence in finding.sentences)
    heading = f"**{LABELS[finding.kind]}** {_make_sentence(finding.title)}"
    return f"{heading}{source_code}{'<br>' if source_code else ''}{sentences}".rstrip()


def _format_peak(device: DeviceSummary, names: SiteNames) -> str:
    peak = device.peak
    heading = f"**PEAK** {device.device}: {units.size(peak.allocated_bytes)} allocated in "
    heading += units.counted(peak.blocks, "block")
    step = "" if peak.step is None else f" in step {peak.step}"
    table_rows = [
        (units.share(site.bytes, peak.bytes), units.size(site.bytes), _format_site(site.site, names))
        for site in peak.sites
    ]
    if not table_rows:
        return f"{heading}{step}"
    return f"{heading}{step}\n\n" + _make_table(("share", "bytes", "line"), table_rows, numbers=2)


def _make_footer(summary: Summary, names: SiteNames) -> str:
    steps = units.counted(summary.steps, "step") if summary.steps else "no steps"
    facts = [steps, units.duration(summary.seconds), f"torch {summary.program.torch}" if summary.program.torch else ""]
    return f"<sub>{_escape(names.command(summary.program))}: {_escape(', '.join(filter(None, facts)))}</sub>"


def _format_site(site: Site | Frame, names: SiteNames) -> str:
    return _join_source(names.site(site), names.source(site))


def _format_holder(leak: Leak, summary: Summary, names: SiteNames) -> str:
    if leak.holder is not None:
        return _escape("; ".join(names.referrer(name) for name in leak.holder.names))
    return _escape(" ".join(describe_no_holder(leak.no_holder, summary.final_scan)))


def _join_source(name: str, source: str | None) -> str:
    return _escape(name) + (f"<br>{_format_code(source)}" if source else "")


def _make_table(header: Sequence[str], body: Sequence[Sequence[str]], *, numbers: int) -> str:
    """Return a table whose first `numbers` columns are aligned to the right."""
    rule = ["---:" if column < numbers else "---" for column in range(len(header))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, rule, *body))


def _format_code(text: str) -> str:
    # Not backquotes: the text may contain them, and a bar ends a table cell even in code.
    return f"<code>{_escape(text)}</code>"


def _escape(text: str) -> str:
    """Return text that Markdown shows unchanged, on one line."""
    # GitHub links addresses and users even when they are written as entities. A zero-width space prevents it.
    return _AUTOLINK.sub("&#8203;", printable(text).translate(_ENTITIES))


def _make_sentence(title: str) -> str:
    return f"{_escape(title)}."


def _join(paragraphs: Sequence[str]) -> str:
    return "\n\n".join(paragraphs) + "\n"
