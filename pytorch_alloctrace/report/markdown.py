"""A comment for a pull request, in Markdown: the verdict in words, then one table."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..analysis.summary import DeviceSummary, Summary
from ..reading.integrity import Integrity
from ..reading.sites import Frame, Site
from . import units
from .difference import Changes, amount_of, label_of, row_name
from .finding import LABELS, Finding
from .integrity import LABEL, effects, of_whole
from .leaks import confidence_word, leak_findings
from .site_names import SiteNames, printable
from .tables import by_word, rows
from .verdict import diagnosis

_ROWS = 10
"""Most rows of a table: a comment is read as a whole."""
_ENTITIES = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;", **{character: f"&#{ord(character)};" for character in "\\`*_[]~|$"}}
)
"""Characters that would begin a link, an image, HTML, code, emphasis, mathematics or another cell of a table."""
_LINK = re.compile(r"(?<=:)(?=//)|(?<=@)(?=\w)|(?<=www)(?=\.)", re.IGNORECASE)
"""Places where GitHub recognizes an address, or a user, in plain text."""
_NOT_WRONG = ("leak", "minor_leak", "no_leak", "inconclusive", "not_judged")


def incomplete_markdown(integrity: Integrity, if_cut: str, trace: str = "") -> str:
    """As `write_incomplete`: before the comment, if a part of a trace is missing."""
    if integrity.whole:
        said = of_whole(integrity, trace)
        return f"> **{said[0]}** {_escaped(said[1])}\n\n" if said else ""
    name = f"{trace} is " if trace else ""
    sentences = " ".join((f"{name}{integrity}.", *effects(integrity, if_cut)))
    return f"> **{LABEL}** {_escaped(sentences)}\n\n"


def verdict_markdown(summary: Summary) -> str:
    """Every finding, and what each device held at its peak."""
    names = SiteNames(summary.program.working_directory)
    found = diagnosis(summary) if summary.devices else ()
    said = [one for one in found if one.kind != "incomplete"]
    parts = [_heading(summary, said), *(_finding(one, names) for one in said)]
    parts += [_peak(device, names) for device in summary.devices]
    return _joined([*parts, _footer(summary, names)])


def leaks_markdown(summary: Summary, failures: Sequence[str], top: int, region: str = "") -> str:
    """The leaks. failures: sentences on limits that were exceeded. region: the one that was judged."""
    names = SiteNames(summary.program.working_directory)
    found = leak_findings(summary)
    parts = [f"**In {_escaped(region)}**"] if region else []
    parts += [_heading(summary, found), *_failures(failures)]
    leaks = [finding for finding in found if finding.leak is not None]
    if leaks:
        table = []
        for finding in leaks[: min(top, _ROWS)]:
            leak = finding.leak
            assert leak is not None
            held = f"{units.size(leak.allocated_bytes)} in {units.counted(leak.blocks, 'block')}"
            certain = f"{confidence_word(leak.confidence)} ({units.share(leak.confidence, 1)})"
            if leak.minor:
                certain += ", costs next to nothing"
            table.append(
                (units.rate(leak.bytes_per_unit, leak.unit), held, leak.device, _code(leak.line, names), certain)
            )
        parts.append(_table(("leak", "live", "device", "line", "confidence"), table, numbers=2))
        if len(leaks) > len(table):
            parts.append(f"and {units.counted(len(leaks) - len(table), 'more leak')}")
    parts += [_sentence(finding.title) for finding in found if finding.leak is None]
    return _joined([*parts, _footer(summary, names)])


def changes_markdown(found: Sequence[Changes], failures: Sequence[str], names: SiteNames, top: int) -> str:
    """What changed on each device. failures: sentences on limits that were exceeded."""
    if not found:
        return "### Memory: nothing was allocated in either\n"
    heading = "; ".join(f"{changes.device} {amount_of(changes)}" for changes in found)
    parts = [f"### Memory: {heading}", *_failures(failures)]
    for changes in found:
        compared = _escaped(f"from {changes.before} to {changes.after}")
        heading = f"**{label_of(changes)[0]}** on {changes.device}, {compared}."
        moved = changes.table[changes.table["change_bytes"] != 0]
        shown = moved.head(min(top, _ROWS))
        table = []
        for row in rows(shown):
            name, source = row_name(row, changes.by, names)
            sizes = units.size(row["live_bytes_before"]), units.size(row["live_bytes_after"])
            table.append((units.change(row["change_bytes"]), *sizes, _quoted(name, source)))
        parts.append(heading if table else f"{heading} No {by_word(changes.by)} changed.")
        if table:
            parts.append(_table(("change", "before", "after", by_word(changes.by)), table, numbers=3))
        rest = moved.iloc[len(shown) :]
        if len(rest):
            more = units.counted(len(rest), f"more {by_word(changes.by)}")
            parts.append(f"{units.change(int(rest['change_bytes'].sum()))} in {more}")
    return _joined(parts)


def _heading(summary: Summary, found: Sequence[Finding]) -> str:
    if not summary.devices:
        return "### Memory: nothing was allocated"
    leaks = [finding for finding in found if finding.kind == "leak"]
    wrong = [LABELS[finding.kind] for finding in found if finding.kind not in _NOT_WRONG]
    said = ([units.counted(len(leaks), "leak")] if leaks else []) + [label.lower() for label in dict.fromkeys(wrong)]
    kinds = {finding.kind for finding in found}
    if "inconclusive" in kinds:
        said.append("not decided whether more leaks" if leaks else "not decided whether it leaks")
    if not said:
        said = ["leaks were not judged" if "not_judged" in kinds else "nothing is wrong"]
    return f"### Memory: {', '.join(said)}"


def _failures(sentences: Sequence[str]) -> list[str]:
    return [f"**FAIL** {_escaped(sentence)}." for sentence in sentences]


def _finding(finding: Finding, names: SiteNames) -> str:
    source = names.source(finding.site) if finding.site is not None else None
    quoted = f"<br>{_in_code(source)}" if source else ""
    sentences = "".join(f" {_escaped(sentence)}" for sentence in finding.sentences)
    return (
        f"**{LABELS[finding.kind]}** {_sentence(finding.title)}{quoted}{'<br>' if quoted else ''}{sentences}".rstrip()
    )


def _peak(device: DeviceSummary, names: SiteNames) -> str:
    held = device.peak
    said = f"**PEAK** {device.device}: {units.size(held.bytes)} in {units.counted(held.blocks, 'block')}"
    step = "" if held.step is None else f" in step {held.step}"
    table = [
        (units.share(site.bytes, held.bytes), units.size(site.bytes), _code(site.site, names)) for site in held.sites
    ]
    if not table:
        return f"{said}{step}"
    return f"{said}{step}\n\n" + _table(("share", "bytes", "line"), table, numbers=2)


def _footer(summary: Summary, names: SiteNames) -> str:
    steps = units.counted(summary.steps, "step") if summary.steps else "no steps"
    facts = [steps, units.duration(summary.seconds), f"torch {summary.program.torch}" if summary.program.torch else ""]
    return f"<sub>{_escaped(names.command(summary.program))}: {_escaped(', '.join(filter(None, facts)))}</sub>"


def _code(site: Site | Frame, names: SiteNames) -> str:
    return _quoted(names.site(site), names.source(site))


def _quoted(name: str, source: str | None) -> str:
    return _escaped(name) + (f"<br>{_in_code(source)}" if source else "")


def _table(header: Sequence[str], body: Sequence[Sequence[str]], *, numbers: int) -> str:
    """The first `numbers` columns are aligned to the right."""
    rule = ["---:" if column < numbers else "---" for column in range(len(header))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, rule, *body))


def _in_code(text: str) -> str:
    # A table ends a cell at a bar even in code; backquotes would end the code.
    return f"<code>{_escaped(text)}</code>"


def _escaped(text: str) -> str:
    """Return text that shows as it is, on one line, wherever it stands within a line of Markdown."""
    # Entities do not stop GitHub from linking addresses and users in what it has decoded. A zero-width space does.
    return _LINK.sub("&#8203;", printable(text).translate(_ENTITIES))


def _sentence(title: str) -> str:
    return f"{_escaped(title)}."


def _joined(parts: Sequence[str]) -> str:
    return "\n\n".join(parts) + "\n"
