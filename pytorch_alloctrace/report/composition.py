"""Composition of the live memory at a position, as text and as JSON (fields: docs/json.md)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from ..analysis.usage.live_memory import DeviceNeed, LiveMemory
from ..analysis.usage.package_lines import LibraryCall, PackageLines
from ..analysis.usage.peak import PeakMemory
from ..analysis.usage.roles import RoleBytes
from ..reading.modules import module_depth
from ..reading.names import UNKNOWN
from ..reading.recorded import RecordedTrace
from ..reading.sites import Frame, Site, SiteBytes, groups_stacks
from ..reading.table import Table
from . import units
from .package_lines import describe_library_call, package_lines_data, write_package_lines
from .roles import exactness, role_names
from .screen import ENTRY_BAR, Screen
from .site_names import SiteNames
from .tables import by_word, records, rows, site_of

_AMOUNT_WIDTH = 16
_LINE_WIDTH_WITHOUT_BAR = 48
_NAME_WIDTH = 16
_ROLE_WIDTH = 33
_MAX_FRAMES = 3
_MIN_OPENED_SHARE = 0.05
"""Minimum share of a role in all memory for the lines below it."""
_UNKNOWN_LINES = 3
"""Maximum number of lines listed whose memory has an unknown role."""


def composition_data(memory: LiveMemory, top: int) -> dict[str, Any]:
    row_records = records(memory.composition.head(top))
    if memory.by == "line":
        row_records = [
            {**row, "inside": package_lines_data(memory.package_lines.get(number))}
            for number, row in enumerate(row_records)
        ]
    return {**position_data(memory), "by": memory.by, "composition": row_records}


def position_data(memory: LiveMemory) -> dict[str, Any]:
    return {
        "device": memory.device,
        "at": str(memory.at),
        "since": None if memory.since is None else str(memory.since),
        "until": None if memory.until is None else str(memory.until),
        "measure": memory.peak.measure if memory.peak else None,
        "bytes": memory.peak.bytes if memory.peak else None,
        "seq": memory.seq,
        "time_ns": memory.time_ns,
        "step": memory.step,
        "requested_bytes": memory.requested_bytes,
        "reserved_bytes": memory.reserved_bytes,
        "need": None if memory.need is None else dataclasses.asdict(memory.need),
    }


def write_composition(
    memory: LiveMemory,
    begin_ns: int,
    screen: Screen,
    names: SiteNames,
    top: int,
    differing: Mapping[int, list[Frame]],
    *,
    asked_by: str,
) -> None:
    """Write the position and its composition; for a peak also by role, by phase and by age.

    asked_by: the grouping before `module_folding`.
    """
    write_position(memory, begin_ns, screen)
    write_table(
        *(memory.composition, memory.by, screen, names, top, memory.package_lines, differing),
        library_calls=memory.library_calls,
        outside_lines=memory.outside_lines,
        roles_of_modules=memory.roles_of_modules,
    )
    depth = module_depth(memory.by)
    if memory.by != asked_by and depth is not None:
        parts = units.counted(depth, "part")
        screen.text(f"Names of {parts} include the modules below: --depth {depth + 1} shows more.", style="dim")
    if memory.peak is not None and groups_stacks(memory.by):
        for grouping in ("role", "phase", "age"):
            screen.blank()
            screen.text(Text.assemble((f"BY {grouping.upper()}", "bold")))
            write_table(
                memory.peak.composition(grouping),
                grouping,
                screen,
                names,
                top,
                {},
                {},
                library_calls=memory.library_calls,
                unknown_sites=memory.unknown_sites,
            )


def write_position(memory: LiveMemory, begin_ns: int, screen: Screen) -> None:
    blocks = units.counted(int(memory.composition["live_blocks"].sum()), "block")
    when = f"at {units.duration((memory.time_ns - begin_ns) / 1e9)}"
    if memory.step is not None:
        when += f" in step {memory.step}"
    label, amount = "LIVE", f"{units.size(memory.requested_bytes)} in {blocks}"
    if memory.peak is not None:
        label, amount = "PEAK", f"{units.size(memory.peak.bytes)} {memory.peak.measure}"
    position = "" if memory.seq is None else f", after event {memory.seq:,}"
    if (memory.since, memory.until) != (None, None):
        begin = "the beginning" if memory.since is None else memory.since
        position += f": the highest from {begin} to {'the end' if memory.until is None else memory.until}"
    title = Text.assemble((label, "bold"), f"  {memory.device}: {amount} {when}{position}")
    screen.text(title, hanging=len(label) + 2)
    if memory.peak is not None:
        reserved = "" if memory.reserved_bytes is None else f"; {units.size(memory.reserved_bytes)} was reserved"
        screen.text(
            f"The program requested {units.size(memory.requested_bytes)} in {blocks}{reserved}.", len(label) + 2
        )
    if memory.need is not None:
        screen.text(_describe_need(memory.need), len(label) + 2)


def peak_above_sentence(peak: PeakMemory, limit: int) -> str:
    amount = f"{units.size(peak.bytes)} ({peak.bytes:,} B)"
    return f"The peak of {peak.device} was {amount} allocated: more than {units.size(limit)} (--fail-above)"


def unknown_peak_sentence(trace: RecordedTrace, has_ended: bool) -> str:
    """Return why a peak below a limit proves nothing. has_ended: the run ended out of memory."""
    missing = "a part of the trace is missing"
    if has_ended:
        missing = "the run ended out of memory, and would have needed more"
    elif trace.integrity.is_complete:
        missing = "the history of the converted snapshot begins after the run did"
    return f"Cannot tell whether the peak is above the limit: {missing}."


def _describe_need(need: DeviceNeed) -> str:
    reserved = f"torch reserved at most {units.size(need.reserved_bytes)}"
    if need.bytes is None or need.outside_bytes is None:
        return f"In all, {reserved}; the memory of CUDA's context and libraries is unknown."
    device = "the device" if need.device_bytes is None else f"the device's {units.size(need.device_bytes)}"
    outside = f"{units.size(need.outside_bytes)} was used outside PyTorch"
    return f"In all, the run needed up to {units.size(need.bytes)} of {device}: {reserved}, and {outside}."


def write_table(
    table: Table,
    by: str,
    screen: Screen,
    names: SiteNames,
    top: int,
    package_lines: Mapping[int, PackageLines],
    differing_frames: Mapping[int, list[Frame]],
    *,
    library_calls: Mapping[str, LibraryCall] | None = None,
    unknown_sites: Sequence[SiteBytes] = (),
    outside_lines: Mapping[int, Site] | None = None,
    roles_of_modules: Mapping[str, Mapping[str, int]] | None = None,
) -> None:
    """Write a composition. Of sites, write the first `top` and the sum of the others.

    package_lines: by row number. differing_frames: by stack, the frames that the other stacks of the same site lack.
    library_calls: by role, what a line calls that allocated nearly all of its memory. unknown_sites: lines of memory
    whose role is unknown. outside_lines: by row number, the
    line that allocated most of the memory outside of modules. roles_of_modules: bytes by role of each module.
    """
    total = int(table["live_bytes"].sum())
    if not groups_stacks(by):
        name_width = _ROLE_WIDTH if by == "role" else _NAME_WIDTH
        bar_width = max(min(screen.width - _LINE_WIDTH_WITHOUT_BAR - (name_width - _NAME_WIDTH), 40), 4)
        for row in rows(table):
            bar = units.bar(row["share"], bar_width, plain=screen.plain)
            amount = f"{units.share(row['live_bytes'], total):>5}  {units.size(row['live_bytes']):>9}"
            name = _format_role(row) if by == "role" else row[by]
            screen.text(Text.assemble(f"{amount}  {name:<{name_width}}  ", (bar, "green")))
            call = (library_calls or {}).get(row["role"]) if by == "role" else None
            below = [] if call is None else [describe_library_call(call, names)]
            if by == "role" and row["role"] == UNKNOWN:
                largest = unknown_sites[:_UNKNOWN_LINES]
                below = [f"{units.size(site.bytes)} from {names.holder(site)}" for site in largest]
            for line in below if row["share"] >= _MIN_OPENED_SHARE else ():
                screen.text(line, _AMOUNT_WIDTH + 2, hanging=_AMOUNT_WIDTH + 4, style="dim")
        return
    named_sites = set()
    for number, row in enumerate(rows(table.head(top))):
        site = site_of(row)
        name = names.file(site.filename) if by == "file" and site.filename else names.site(site)
        notes = [units.counted(int(row["live_blocks"]), "block")]
        sizes = (roles_of_modules or {}).get(row["site"], {})
        if len(sizes) > 1:
            notes += [f"{role_names(role)} {units.size(size)}" for role, size in sizes.items()]
        elif row["live_backward_bytes"]:
            notes.append(f"including {units.size(row['live_backward_bytes'])} in its backward")
        outside_line = (outside_lines or {}).get(number)
        if outside_line is not None:
            notes.append(f"mostly from {names.site(outside_line)}")
        if by == "stack":
            notes.append(f"stack {int(row['stack_id'])}")
        amount = f"{units.share(row['live_bytes'], total):>5}  {units.size(row['live_bytes']):>9}"
        bar = units.bar(row["share"], ENTRY_BAR, plain=screen.plain)
        frames = names.stack(int(row["stack_id"]))
        row_differing_frames = differing_frames.get(int(row["stack_id"]))
        source = names.source(outside_line or site) if row_differing_frames is None or site not in named_sites else None
        named_sites.add(site)
        screen.entry(amount, f"{name} ({', '.join(notes)})", source, 0, _AMOUNT_WIDTH, bar=bar, frames=frames)
        if row_differing_frames is not None and not frames:
            _write_differing(row_differing_frames, screen, names, _AMOUNT_WIDTH + 2 + ENTRY_BAR + 2)
        write_package_lines(package_lines.get(number), total, screen, names, _AMOUNT_WIDTH)
    omitted = table.take(slice(top, None))
    if len(omitted):
        omitted_bytes = int(omitted["live_bytes"].sum())
        amount = f"{units.share(omitted_bytes, total):>5}  {units.size(omitted_bytes):>9}"
        screen.text(
            f"{amount}  in {units.counted(len(omitted), f'more {by_word(by)}')} (--top 0 shows all)", style="dim"
        )


def _format_role(row: Mapping[str, Any]) -> str:
    note = exactness(RoleBytes(row["role"], row["live_bytes"], row["exact_bytes"], row["live_blocks"]))
    return f"{row['role']:<17}  {note}"


def _write_differing(frames: Sequence[Frame], screen: Screen, names: SiteNames, indent: int) -> None:
    if not frames:
        screen.text("via no frames that the others lack", indent, style="dim")
    for number, frame in enumerate(frames[:_MAX_FRAMES]):
        preposition = "called by" if number else "via"
        screen.text(f"{preposition} {names.site(frame)}", indent, hanging=indent + 2, style="dim")
    if len(frames) > _MAX_FRAMES:
        screen.text(f"and {units.counted(len(frames) - _MAX_FRAMES, 'more frame')} (--all-frames)", indent, style="dim")
