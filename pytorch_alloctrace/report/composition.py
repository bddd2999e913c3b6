"""What the live memory consists of, at the peak or at another position, as text and as plain values.

docs/json.md has the fields of the JSON; the CSV is its `composition`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from ..analysis.usage.live_memory import DeviceNeed, LiveMemory
from ..analysis.usage.package_lines import Inside
from ..analysis.usage.roles import RoleBytes
from ..reading.sites import Frame, groups_stacks
from ..reading.table import Table
from . import units
from .package_lines import inside_data, write_inside
from .roles import exactness
from .screen import ENTRY_BAR, Screen
from .site_names import SiteNames
from .tables import by_word, records, rows, site_of

_COLUMN = 16
"""Width of a share and a size."""
_BARS = 48
"""Width of everything but the bar in a line that has one."""
_NAME = 16
"""Width of an age or a phase."""
_ROLE = 33
"""Width of a role and of whether it was recorded."""
_DIFFERING = 3
"""As many of the frames by which a stack differs are shown."""


def composition_data(shown: LiveMemory, top: int) -> dict[str, Any]:
    """As plain values, with at most `top` rows."""
    composition = records(shown.composition.head(top))
    if shown.by == "line":
        composition = [{**row, "inside": inside_data(shown.insides.get(i))} for i, row in enumerate(composition)]
    return {**position_data(shown), "by": shown.by, "composition": composition}


def position_data(shown: LiveMemory) -> dict[str, Any]:
    """What the position is and how much was live there, as plain values."""
    return {
        "device": shown.device,
        "at": str(shown.at),
        "since": None if shown.since is None else str(shown.since),
        "until": None if shown.until is None else str(shown.until),
        "measure": shown.peak.measure if shown.peak else None,
        "bytes": shown.peak.bytes if shown.peak else None,
        "seq": shown.seq,
        "time_ns": shown.time_ns,
        "step": shown.step,
        "requested_bytes": shown.requested_bytes,
        "reserved_bytes": shown.reserved_bytes,
        "need": None if shown.need is None else dataclasses.asdict(shown.need),
    }


def write_composition(
    shown: LiveMemory, begin_ns: int, screen: Screen, names: SiteNames, top: int, differing: Mapping[int, list[Frame]]
) -> None:
    """The position and what was live there; of a peak also by role, by phase and by age. begin_ns: when the recording
    began. differing: what `differing_frames` found, if the rows are stacks."""
    write_position(shown, begin_ns, screen)
    write_table(shown.composition, shown.by, screen, names, top, shown.insides, differing)
    if shown.peak is not None and groups_stacks(shown.by):
        for name in ("role", "phase", "age"):
            screen.blank()
            screen.text(Text.assemble((f"BY {name.upper()}", "bold")))
            write_table(shown.peak.composition(name), name, screen, names, top, {}, {})


def write_position(shown: LiveMemory, begin_ns: int, screen: Screen) -> None:
    """What the position is and how much was live there."""
    blocks = units.counted(int(shown.composition["live_blocks"].sum()), "block")
    when = f"at {units.duration((shown.time_ns - begin_ns) / 1e9)}"
    if shown.step is not None:
        when += f" in step {shown.step}"
    label, amount = "LIVE", f"{units.size(shown.requested_bytes)} in {blocks}"
    if shown.peak is not None:
        label, amount = "PEAK", f"{units.size(shown.peak.bytes)} {shown.peak.measure}"
    after = "" if shown.seq is None else f", after event {shown.seq:,}"
    if (shown.since, shown.until) != (None, None):
        begin = "the beginning" if shown.since is None else shown.since
        after += f": the highest from {begin} to {'the end' if shown.until is None else shown.until}"
    title = Text.assemble((label, "bold"), f"  {shown.device}: {amount} {when}{after}")
    screen.text(title, hanging=len(label) + 2)
    if shown.peak is not None:
        reserved = "" if shown.reserved_bytes is None else f"; {units.size(shown.reserved_bytes)} was reserved"
        screen.text(f"The program requested {units.size(shown.requested_bytes)} in {blocks}{reserved}.", len(label) + 2)
    if shown.need is not None:
        screen.text(_need_sentence(shown.need), len(label) + 2)


def _need_sentence(need: DeviceNeed) -> str:
    """What the run needs of the device: whether it fits on another one."""
    reserved = f"torch reserved at most {units.size(need.reserved_bytes)}"
    if need.bytes is None or need.outside_bytes is None:
        return f"In all, {reserved}; what CUDA's context and libraries took besides is unknown."
    device = "the device" if need.device_bytes is None else f"the device's {units.size(need.device_bytes)}"
    outside = f"{units.size(need.outside_bytes)} was used outside PyTorch"
    return f"In all, the run needed up to {units.size(need.bytes)} of {device}: {reserved}, and {outside}."


def write_table(
    table: Table,
    by: str,
    screen: Screen,
    names: SiteNames,
    top: int,
    insides: Mapping[int, Inside],
    differing: Mapping[int, list[Frame]],
) -> None:
    """The rows of a composition; of sites the first `top`, and what is left in one line. insides: by row. differing: by
    stack, the frames by which it differs from those of other rows of its site."""
    total = int(table["live_bytes"].sum())
    if not groups_stacks(by):
        name_width = _ROLE if by == "role" else _NAME
        width = max(min(screen.width - _BARS - (name_width - _NAME), 40), 4)
        for row in rows(table):
            bar = units.bar(row["share"], width, plain=screen.plain)
            amount = f"{units.share(row['live_bytes'], total):>5}  {units.size(row['live_bytes']):>9}"
            name = _role_name(row) if by == "role" else row[by]
            screen.text(Text.assemble(f"{amount}  {name:<{name_width}}  ", (bar, "green")))
        return
    named = set()
    for number, row in enumerate(rows(table.head(top))):
        site = site_of(row)
        name = names.file(site.filename) if by == "file" and site.filename else names.site(site)
        notes = [units.counted(int(row["live_blocks"]), "block")]
        if row["live_backward_bytes"]:
            notes.append(f"including {units.size(row['live_backward_bytes'])} in its backward")
        if by == "stack":
            notes.append(f"stack {int(row['stack_id'])}")
        amount = f"{units.share(row['live_bytes'], total):>5}  {units.size(row['live_bytes']):>9}"
        bar = units.bar(row["share"], ENTRY_BAR, plain=screen.plain)
        frames = names.stack(int(row["stack_id"]))
        differs = differing.get(int(row["stack_id"]))
        source = names.source(site) if differs is None or site not in named else None
        named.add(site)
        screen.entry(amount, f"{name} ({', '.join(notes)})", source, 0, _COLUMN, bar=bar, frames=frames)
        if differs is not None and not frames:
            _write_differing(differs, screen, names, _COLUMN + 2 + ENTRY_BAR + 2)
        write_inside(insides.get(number), total, screen, names, _COLUMN)
    rest = table.take(slice(top, None))
    if len(rest):
        left = int(rest["live_bytes"].sum())
        amount = f"{units.share(left, total):>5}  {units.size(left):>9}"
        screen.text(f"{amount}  in {units.counted(len(rest), f'more {by_word(by)}')} (--top 0 shows all)", style="dim")


def _role_name(row: Mapping[str, Any]) -> str:
    known = exactness(RoleBytes(row["role"], row["live_bytes"], row["exact_bytes"], row["live_blocks"]))
    return f"{row['role']:<17}  {known}"


def _write_differing(frames: Sequence[Frame], screen: Screen, names: SiteNames, indent: int) -> None:
    if not frames:
        screen.text("via no other frames than the others have", indent, style="dim")
    for number, frame in enumerate(frames[:_DIFFERING]):
        word = "called by" if number else "via"
        screen.text(f"{word} {names.site(frame)}", indent, hanging=indent + 2, style="dim")
    if len(frames) > _DIFFERING:
        screen.text(f"and {units.counted(len(frames) - _DIFFERING, 'more frame')} (--all-frames)", indent, style="dim")
