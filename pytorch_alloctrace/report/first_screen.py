"""First screen of the diagnosis: at most 25 lines of 80 columns, which end with the verdict and the next command.

From top to bottom: the program, its devices with their peaks, the live memory over time, the roles and the largest
lines of the peak, what was not recorded, lesser findings on one line each, and at most two findings in full, the most
severe one last. Lines of the peak get the room that findings leave.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rich.cells import cell_len
from rich.text import Text

from ..analysis.summary import DeviceSummary, Summary
from ..analysis.usage.package_lines import PackageLine
from ..analysis.usage.roles import RoleShares
from ..command import path_argument, spelled
from ..reading.names import HOST_DEVICES
from ..reading.sites import Site, SiteBytes
from . import units
from .children import children_line, leaking_child
from .finding import NOTES, Finding, label_text
from .growth import quote_store
from .integrity import IN_DIAGNOSIS, complete_note, effects
from .integrity import LABEL as INCOMPLETE
from .package_lines import package_line_name
from .peak_advice import peak_advice
from .roles import role_names
from .screen import Screen, shortened
from .site_names import SiteNames
from .verdict import NO_STACKS, diagnosis, no_allocations

LINES = 25
_MAX_IN_FULL = 2
_FINDING_LINES, _ONLY_FINDING_LINES = 5, 8
_MAX_SHORT_FINDINGS = 4
_MAX_SHORT_LINES = 6
_INDENT = 6
_PATHS_PER_LINE = 3  # a longer path is shortened
_MIN_SECOND_SHARE = 0.05  # of the highest peak, to be shown in full beside another finding
_MIN_NOTE_BYTES = 1 << 20
_MIN_NOTE_SHARE = 0.01  # of the peak
_MIN_ROUNDING = 0.05
"""Minimum share of the peak that is allocated in addition to what was requested, for both to be shown."""
_LABEL = 8  # columns
_BAR_WIDTH = 12
_PACKAGE_LINES = 2  # below a line that calls a package
_MIN_SOURCE = _MIN_COMMAND = 12  # columns
_ADVICE_LINES, _MIN_PEAK_LINES = 5, 3
_INCOMPLETE_LINES = 3
_ROLE_MARKS, _PLAIN_ROLE_MARKS = "█▓▒░", "#=-."
_ROLE_STYLES = ("cyan", "green", "magenta", "yellow")
_MIN_ROLE_SHARE = 0.01
_INEFFICIENCIES = ("fragmentation", "cache", "rounding", "pending", "churn", "outside")
_OF_FULL_DEVICE = ("cache", "rounding", "pending", "churn")
"""Inefficiencies that are not shown in full beside out of memory, as they are typical of a full device, or small."""
_MIN_DEVICE_SHARE = 0.03  # of the GPU's memory, for an inefficiency to be listed
_MIN_FREE_DEVICE_SHARE, _MIN_USED_SHARE = 0.2, 0.5  # to be shown in full if less than this share of the GPU is reserved
_SHORT_KINDS = ("no_leak", "not_judged")
_ALL_LEAKS = ("leaks", "all leaks, with their evidence and callers")
_COMMANDS = {
    "oom": ("oom", "what filled the memory"),
    "leak": _ALL_LEAKS,
    "growth": _ALL_LEAKS,
    "inconclusive": _ALL_LEAKS,
    "fragmentation": ("fragmentation", "all lines that pin memory"),
}
"""By kind of the most severe finding: the command that shows more of it, and what that is."""
_PEAK_COMMAND = ("peak", "what the peak was made of")


def write_first_screen(summary: Summary, screen: Screen) -> None:
    """Write the first screen. Longer paths and sources are shortened, also in a pipe."""
    names = SiteNames(
        summary.program.working_directory, longest=screen.width // _PATHS_PER_LINE, ellipsis=screen.ellipsis
    )
    findings = (
        [finding for finding in diagnosis(summary, names) if finding.kind != "incomplete"] if summary.devices else []
    )
    devices = order_devices(summary, findings)
    in_full = _select_in_full(findings, summary)
    header = _list_header(summary, devices, screen, names)
    room = LINES - len(header) - 1
    # A problem of live memory has its own advice.
    advises = all(finding.kind in _INEFFICIENCIES for finding in in_full)
    advice = peak_advice(devices[0], names) if devices and advises and devices[0].device not in HOST_DEVICES else []
    max_lines = _ONLY_FINDING_LINES if len(in_full) == 1 and not advice else _FINDING_LINES
    for short_lines in range(_MAX_SHORT_LINES, 0, -1):
        ending = _list_ending(summary, findings, in_full, screen, names, short_lines, max_lines)
        line_count = len(ending) - 1 - (-cell_len(ending[-1].plain) // screen.width)  # the command may need several
        if line_count <= room:
            break
    room -= line_count + 1
    peak = _list_peak(summary, devices[0], screen, names, room, advice) if devices and room > 0 else []
    for part in (header, peak, ending):
        screen.lines([Text(), *part] if part and part is not header else part)


def order_devices(summary: Summary, findings: Sequence[Finding]) -> list[DeviceSummary]:
    """Return the device of the most severe decided problem first, else the GPU with the highest peak; then by peak."""
    worst = [finding for finding in _select_in_full(findings, summary)[:1] if finding.kind != "inconclusive"]
    problems = [finding.device for finding in worst]
    return sorted(summary.devices, key=lambda device: (device.device not in problems, device.device in HOST_DEVICES))


def _list_header(summary: Summary, devices: Sequence[DeviceSummary], screen: Screen, names: SiteNames) -> list[Text]:
    program, integrity = summary.program, summary.integrity
    rank = f", rank {program.rank}" if program.rank not in ("", "0") else ""
    steps = units.counted(summary.steps, "step") if summary.steps else "no steps"
    facts = f"{rank}  {units.duration(summary.seconds)}, {steps}"
    room = max(screen.width - len(facts), _MIN_COMMAND)
    command = screen.brief(names.command(program), 0, 1, width=room)[0]
    command.stylize("bold")
    lines = screen.brief(command + Text(facts), 0, 1)
    if devices:
        lines += _list_devices(devices, screen)
    if integrity.is_complete:
        events = units.counted(integrity.events, "event")
        lines += screen.brief(f"{events} in {units.size(summary.file_bytes)}: {integrity}", 0, 1, style="dim")
        if note := complete_note(integrity):
            lines += screen.brief("  ".join(note), 0, 1)
        return lines
    incomplete = Text.assemble(
        (INCOMPLETE, "bold yellow"), "  ", " ".join((f"The trace is {integrity}.", *effects(integrity, IN_DIAGNOSIS)))
    )
    return lines + screen.brief(incomplete, 0, _INCOMPLETE_LINES, hanging=_INDENT)


def describe_devices(devices: Sequence[DeviceSummary], *, with_name: bool = False) -> str:
    """Return the peaks of the first device, its memory, and the peak of the others or their number."""
    device = devices[0]
    minimum = _MIN_NOTE_SHARE * max(device.peak.allocated_bytes for device in devices)
    others = [device for device in devices[1:] if device.peak.allocated_bytes > minimum]
    amounts = f"peak {units.size(device.peak.allocated_bytes)} allocated"
    if device.peak.allocated_bytes > (1 + _MIN_ROUNDING) * device.peak.bytes:
        amounts += f" ({units.size(device.peak.bytes)} requested)"  # the lines below have requested bytes
    if device.peak_reserved_bytes:
        reserved, total = units.size(device.peak_reserved_bytes), units.size(device.memory_bytes or 0)
        number, unit = reserved.split(" ")
        short = number if total.endswith(f" {unit}") else reserved
        amounts += f", {short} of {total} reserved" if device.memory_bytes else f", {reserved} reserved"
    more = f"; {others[0].device} {units.size(others[0].peak.allocated_bytes)}" if others else ""
    if len(others) > 1:
        more = f"; {units.counted(len(others), 'more device')}"
    return f"{device.device}{f' {device.name}' if with_name else ''}: {amounts}{more}"


def _list_devices(devices: Sequence[DeviceSummary], screen: Screen) -> list[Text]:
    """Return a line on the devices, with the name of the first one and with the others, as far as they fit."""
    named, unnamed = (describe_devices(devices, with_name=with_name) for with_name in (bool(devices[0].name), False))
    texts = named, unnamed, named.partition(";")[0], unnamed.partition(";")[0]
    text = next((text for text in texts if cell_len(text) <= screen.width), texts[-1])
    line = Text(text)
    line.stylize("bold", 0, text.index(": peak"))
    return screen.brief(line, 0, 1)


def _list_peak(
    summary: Summary, device: DeviceSummary, screen: Screen, names: SiteNames, room: int, advice: Sequence[str]
) -> list[Text]:
    """Return the memory over time, the roles and largest lines of the peak, and advice, in at most `room` lines."""
    peak, lines = device.peak, []
    if len(device.levels) > 1:
        when = f"peak in step {peak.step}" if peak.step is not None else f"peak at {units.duration(peak.seconds)}"
        chart = units.sparkline(device.levels, screen.width - len(when) - _LABEL - 2, plain=screen.plain, minimum=0)
        lines.append(Text.assemble(f"{'live':{_LABEL}}", (chart, "green"), f"  {when}"))
    if peak.blocks and peak.roles.are_known:
        lines += screen.brief(_draw_roles(peak.roles, peak.bytes, screen), 0, 1)
    if peak.blocks and summary.program.stacks == "none":
        lines += screen.brief(NO_STACKS, 0, 1)
        return lines[:room]
    rows = zip(peak.sites, peak.package_lines, strict=True)
    for site, package_lines in sorted(rows, key=lambda row: row[0].site.is_workspace):  # nobody can act on these
        lines.append(_describe_site(site, peak.bytes, screen, names))
        for line in package_lines.lines[:_PACKAGE_LINES] if package_lines is not None else ():
            lines += screen.brief(_describe_package_line(line, peak.bytes, screen, names), 0, 1, style="dim")
    paragraphs: list[Text] = []
    for sentence in advice:
        paragraph = screen.brief(sentence, 0, _ADVICE_LINES)
        paragraphs += paragraph if _MIN_PEAK_LINES + len(paragraphs) + len(paragraph) <= room else []
    return lines[: room - len(paragraphs)] + paragraphs


def _describe_site(site: SiteBytes, total: int, screen: Screen, names: SiteNames) -> Text:
    """Return the amount and name of a line, with its source if there is room."""
    amount = f"{units.share(site.bytes, total):>6}  {units.size(site.bytes):>9}  "
    (text,) = screen.brief(f"{amount}{names.site(site.site)}", 0, 1)
    source, room = names.source(site.site), screen.width - cell_len(text.plain) - 2
    if source and room >= _MIN_SOURCE:
        text.append(f"  {shortened(source, room, screen.ellipsis)}", "cyan")
    return text


def _describe_package_line(line: PackageLine, total: int, screen: Screen, names: SiteNames) -> str:
    """Return the amount, line and module; if that is too long, without function and outermost parts of the module."""
    amount = f"{units.share(line.bytes, total):>6}  {units.size(line.bytes):>9}    "
    text = amount + package_line_name(line, names)
    parts = line.module.split(".")
    if line.module and cell_len(text) > screen.width:
        in_short = dataclasses.replace(line, frame=dataclasses.replace(line.frame, function=""))
        text = amount + package_line_name(in_short, names)
        while cell_len(text) > screen.width and len(parts) > 1:
            del parts[0]
            module = screen.ellipsis + ".".join(parts)
            text = amount + package_line_name(dataclasses.replace(in_short, module=module), names)
    return text


def _draw_roles(shares: RoleShares, total: int, screen: Screen) -> Text:
    """Return the names of the largest roles, as many as fit, after a bar of them if there is room."""
    parts = [part for part in shares.roles if part.bytes >= _MIN_ROLE_SHARE * total]
    marks = _PLAIN_ROLE_MARKS if screen.plain else _ROLE_MARKS
    bar, legend = Text(), Text()
    for part, mark, style in zip(sorted(parts, key=lambda part: -part.bytes), marks, _ROLE_STYLES, strict=False):
        name = f" {role_names(part.role)} {units.share(part.bytes, total)}"
        if _LABEL + len(legend) + len(name) + 2 > screen.width:
            break
        bar.append(mark * round(_BAR_WIDTH * part.bytes / max(total, 1)), style)
        legend.append(f" {mark}"[not legend :], style)
        legend.append(name)
    bar.pad_right(max(_BAR_WIDTH + 2 - len(bar), 1))
    if _LABEL + len(bar) + len(legend) > screen.width:
        bar = Text()
    return Text.assemble(f"{'roles':{_LABEL}}", bar, legend)


def _list_ending(
    summary: Summary,
    findings: Sequence[Finding],
    in_full: Sequence[Finding],
    screen: Screen,
    names: SiteNames,
    short_lines: int,
    max_lines: int,
) -> list[Text]:
    """Return what was not recorded, the findings, the most severe last, and the next command.

    short_lines: maximum number of lines of each finding that is not shown in full. max_lines: of each other finding.
    """
    paragraphs = [] if summary.devices else [screen.brief(no_allocations(summary), 0, _INCOMPLETE_LINES)]
    lines = []
    child = leaking_child(summary.children, names)
    if child is None and summary.children is not None and (children := children_line(summary.children, names)):
        lines += screen.brief(children, 0, 1, style="dim")
    others = [finding for finding in findings if finding not in in_full and _is_listed(finding, in_full, summary)]
    shown = [*in_full, *others[:_MAX_SHORT_FINDINGS]]
    problems = [finding for finding in findings if finding.kind not in (*NOTES, *_SHORT_KINDS)]
    if omitted := sum(finding not in shown for finding in problems):
        lines.append(Text(f"and {units.counted(omitted, 'more finding')} (--verbose)", style="dim"))
    for finding in reversed(others[:_MAX_SHORT_FINDINGS]):
        with_remedy = finding.kind in _INEFFICIENCIES and not _may_follow_leak(finding, in_full)
        lines += _list_title(finding, screen, short_lines, with_remedy=with_remedy)
    if child is not None:
        lines += screen.brief(Text(child, style="bold red"), 0, 2, hanging=_INDENT)
    paragraphs += [lines] if lines else []
    paragraphs += [_list_finding(finding, screen, names, max_lines) for finding in reversed(in_full)]
    kind = "leak" if child is not None and not in_full else next((f.kind for f in (*in_full, *findings)), "")
    paragraphs.append([_make_command(kind, summary, screen)])
    return [line for paragraph in paragraphs for line in (Text(), *paragraph)][1:]


def _make_command(kind: str, summary: Summary, screen: Screen) -> Text:
    """Return the next command, unshortened, and what it shows if that fits on its line."""
    name, effect = _COMMANDS.get(kind, _PEAK_COMMAND)
    command = f"{spelled()} {name} {path_argument(summary.trace)}"
    line = Text.assemble(("Next:", "bold"), f" {command}")
    comment = Text(f"  # {effect}", style="dim")
    return line + comment if cell_len(line.plain + comment.plain) <= screen.width else line


def _select_in_full(findings: Sequence[Finding], summary: Summary) -> list[Finding]:
    """Return the most severe problem, and one at another line that holds much memory and is decided."""
    problems = [
        finding
        for finding in findings
        if finding.kind == "oom"
        or (
            finding.kind not in (*NOTES, *_SHORT_KINDS)
            and _is_notable(finding, summary)
            and not _is_of_free_device(finding, summary)
        )
    ]
    further = [
        finding
        for finding in problems[1:]
        if finding.kind != "inconclusive"
        and not (problems[0].kind == "oom" and finding.kind in _OF_FULL_DEVICE)
        and not _may_follow_leak(finding, problems[:1])
        and (finding.site is None or finding.site != problems[0].site)
        and _has_share(finding, _MIN_SECOND_SHARE, summary)
    ]
    return [*problems[:1], *further[: _MAX_IN_FULL - 1]]


def _is_listed(finding: Finding, in_full: Sequence[Finding], summary: Summary) -> bool:
    """Return whether a finding has a line: if it is on much memory, or an answer on leaks, not beside out of memory."""
    # Torch returns its cache before it runs out of memory.
    if finding.kind in (*_SHORT_KINDS, "cache") and any(shown.kind == "oom" for shown in in_full):
        return False
    if finding.kind in _SHORT_KINDS:
        return True
    is_answer = not in_full and finding.kind not in (*NOTES, *_INEFFICIENCIES)
    has_part = all(shown.kind != "oom" for shown in in_full) or _has_share(finding, _MIN_SECOND_SHARE, summary)
    return is_answer or (has_part and _is_notable(finding, summary))


def _is_notable(finding: Finding, summary: Summary) -> bool:
    if finding.kind in _INEFFICIENCIES:
        (memory,) = [device.memory_bytes for device in summary.devices if device.device == finding.device]
        return finding.bytes >= _MIN_DEVICE_SHARE * (memory or 0)
    return finding.bytes >= _MIN_NOTE_BYTES or _has_share(finding, _MIN_NOTE_SHARE, summary)


def _is_of_free_device(finding: Finding, summary: Summary) -> bool:
    """Return whether a finding is an inefficiency of a device of which enough is free: it needs no more than a line."""
    if finding.kind not in _INEFFICIENCIES:
        return False
    (device,) = [device for device in summary.devices if device.device == finding.device]
    memory = device.memory_bytes or 0
    return device.peak_reserved_bytes < _MIN_USED_SHARE * memory and finding.bytes < _MIN_FREE_DEVICE_SHARE * memory


def _may_follow_leak(finding: Finding, shown: Sequence[Finding]) -> bool:
    """Return whether a finding on free memory may end with a leak that holds more: it needs no remedy of its own."""
    return finding.kind in (*_OF_FULL_DEVICE, "fragmentation") and any(
        other.kind == "leak" and other.device == finding.device and other.bytes >= finding.bytes for other in shown
    )


def _has_share(finding: Finding, share: float, summary: Summary) -> bool:
    return finding.bytes >= share * max((device.peak.allocated_bytes for device in summary.devices), default=0)


def _list_title(finding: Finding, screen: Screen, max_lines: int, *, with_remedy: bool = False) -> list[Text]:
    title, suffix = finding.title, f" on {finding.device}"
    if max_lines == 1 and title.endswith(suffix):  # it would be cut
        title = f"{finding.device}: {title.removesuffix(suffix)}"
    if finding.kind in NOTES:
        title = " ".join((f"{title}.", *finding.sentences[-1:]))
    remedy = f". {finding.brief[0]}" if with_remedy else ""
    return screen.brief(
        Text.assemble(label_text(finding), "  ", (title, "" if finding.kind in NOTES else "bold"), remedy),
        0,
        max_lines,
        hanging=_INDENT,
    )


def _list_finding(finding: Finding, screen: Screen, names: SiteNames, max_lines: int) -> list[Text]:
    """Return title, source, remedy and evidence."""
    lines = _list_title(finding, screen, max_lines // 2)
    source = _quote_source(finding, names)
    quoted = [source] if source else []
    place, separator, code = source.partition(": ")
    if max_lines > _FINDING_LINES and separator and cell_len(source) > screen.width - _INDENT:
        quoted = [f"{place}:", f"  {code}"]
    for text in quoted:
        lines.append(Text(" " * _INDENT + shortened(text, screen.width - _INDENT, screen.ellipsis), style="cyan"))
    for sentence in finding.brief:
        if sentence and (room := max_lines - len(lines)) > 0:
            lines += screen.brief(sentence, _INDENT, room)
    return lines


def _quote_source(finding: Finding, names: SiteNames) -> str:
    """Return the line that stores the blocks, which is the one to change, or else the line of the finding."""
    holder = finding.holder
    store = None if holder is None else holder.store
    if holder is not None and store is not None and (store.filename, store.line) != _place(finding.site):
        if finding.site is not None and store.function == finding.site.function:
            store = dataclasses.replace(store, function="")  # the title has it
        return quote_store(holder.store_kind, store, names)
    source = None if finding.site is None else names.source(finding.site)
    if finding.site is None or source is None:
        return ""
    name = names.site(finding.site)
    return source if name in finding.title else f"{name}: {source}"


def _place(site: Site | None) -> tuple[str, int] | None:
    return None if site is None else (site.filename, site.line)
