"""Allocations of each site, as text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd
from rich.text import Text

from ..analysis.usage.lifetimes import Lifetimes
from ..analysis.usage.package_lines import PackageLines
from ..reading.sites import StackIndex
from . import units
from .package_lines import write_package_lines
from .screen import ENTRY_BAR, Screen
from .site_names import SiteNames
from .tables import by_word, rows, site_of
from .units import Span

_AMOUNT_WIDTH = 9
_MIN_LARGE_BYTES = 1 << 20  # of a temporary block: smaller blocks come from torch's small pool
_COLUMNS_WITH_PACKAGE_LINES = ("live_bytes", "total_bytes", "churn_bytes_per_step", "retained_bytes_per_step")


@dataclass(frozen=True)
class _Section:
    """Section of the text: the sites with the most of `column`."""

    label: str
    title: str
    column: str
    note: Callable[[dict[str, Any]], str]
    size: Callable[[float], str] = units.size


def write_lifetimes(
    lifetimes: Lifetimes, stacks: StackIndex, span: Span, by: str, screen: Screen, names: SiteNames, top: int
) -> None:
    table, steps = lifetimes.table(stacks, by), lifetimes.steps
    if table.empty:
        screen.text("Nothing was allocated.")
        return
    basis = "unknown, there are no steps" if not lifetimes.trace_has_steps else "unknown, the range has no whole step"
    if steps:
        basis = f"{'as in' if steps == 1 else 'the average of'} {units.last(steps, 'step')}"
    sections = [_Section("LIVE", f"at {span.until}: what holds the most", "live_bytes", _describe_live)]
    if lifetimes.is_of_ranges:
        table = table.assign(live_shrunk=-table["live_bytes_change"])
        sections = [
            _Section("ALLOCATED", f"{span}, including what was freed again", "total_bytes", _describe_allocated),
            _Section("GREW", f"{span}: what holds more", "live_bytes_change", _describe_change, units.change),
            _Section("SHRANK", f"{span}: what holds less", "live_shrunk", _describe_change, _format_decrease),
        ]
    if steps:
        sections += [
            _Section("CHURN", "per step: allocated and freed within it", "churn_bytes_per_step", _describe_churn),
            _Section(
                "KEPT FOR BACKWARD",
                "per step: allocated in forward, freed in backward",
                "retained_bytes_per_step",
                _describe_retained,
            ),
            _Section("LARGE TEMPORARIES", "never live at the end of a step", "largest_bytes", _describe_temporary),
        ]
    sections += [
        _Section(
            "SLOW CALLS",
            "of the allocator: over 10 us, or with a call to the driver",
            "slow_ns",
            _describe_slow,
            _format_duration,
        )
    ]
    screen.text(f"Per step: {basis}.", style="dim")
    hinted_packages: set[str] = set()
    for section in sections:
        is_largest = section.column == "largest_bytes"
        section_rows = table[table["temporary"] & (table["largest_bytes"] >= _MIN_LARGE_BYTES)] if is_largest else table
        ranked_rows = section_rows[section_rows[section.column].fillna(0) > 0].sort_values(
            section.column, ascending=False, kind="stable"
        )
        if len(ranked_rows):
            shows_packages = by == "line" and section.column in _COLUMNS_WITH_PACKAGE_LINES
            package_lines = lifetimes.package_lines(stacks, table, section.column) if shows_packages else {}
            _write_section(section, ranked_rows, by, screen, names, top, package_lines, hinted_packages)


def _write_section(
    section: _Section,
    ranked_rows: pd.DataFrame,
    by: str,
    screen: Screen,
    names: SiteNames,
    top: int,
    package_lines: Mapping[int, PackageLines],
    hinted_packages: set[str],
) -> None:
    """Write one section. `package_lines` are by row; packages whose hint is written are added to `hinted_packages`."""
    screen.blank()
    screen.text(Text.assemble((section.label, "bold"), f"  {section.title}"), hanging=len(section.label) + 2)
    highest = float(ranked_rows[section.column].iloc[0])
    for row_index, row in zip(ranked_rows.index, rows(ranked_rows.head(top)), strict=False):
        site, amount = site_of(row), float(row[section.column])
        bar = units.bar(amount / highest, ENTRY_BAR, plain=screen.plain)
        name, frames = f"{names.site(site)} ({section.note(row)})", names.stack(int(row["stack_id"]))
        screen.entry(section.size(amount), name, names.source(site), 0, _AMOUNT_WIDTH, bar=bar, frames=frames)
        called_package = package_lines.get(int(row_index))
        if called_package is not None:
            write_package_lines(
                called_package, None, screen, names, _AMOUNT_WIDTH, hint=called_package.package not in hinted_packages
            )
            hinted_packages.add(called_package.package)
    if len(ranked_rows) > top:
        omitted_amount = float(ranked_rows[section.column].iloc[top:].sum())
        omitted_text = "" if section.column == "largest_bytes" else f" with {section.size(omitted_amount)}"
        screen.text(
            f"and {units.counted(len(ranked_rows) - top, f'more {by_word(by)}')}{omitted_text} (--top 0 shows all)",
            2,
            style="dim",
        )


def _describe_allocated(row: dict[str, Any]) -> str:
    allocations = units.counted(int(row["allocations"]), "allocation")
    return (
        f"{allocations}; it holds {units.change(row['live_bytes_change'])}" if row["live_bytes_change"] else allocations
    )


def _format_decrease(size: float) -> str:
    return units.size(-size)


def _describe_change(row: dict[str, Any]) -> str:
    return f"to {units.size(row['live_bytes'])} in {_describe_live(row)}"


def _describe_live(row: dict[str, Any]) -> str:
    blocks = units.counted(int(row["live_blocks"]), "block")
    backward = row["live_backward_bytes"]
    return f"{blocks}, including {units.size(backward)} in its backward" if backward else blocks


def _describe_churn(row: dict[str, Any]) -> str:
    note = units.averaged(row["allocations_per_step"], "allocation")
    backward = row["backward_bytes_per_step"]
    return f"{note}; backward allocates {units.size(backward)} for it" if backward else note


def _describe_retained(row: dict[str, Any]) -> str:
    return f"{units.share(row['retained_bytes_per_step'], row['bytes_per_step'])} of what it allocates"


def _describe_temporary(row: dict[str, Any]) -> str:
    allocations = units.averaged(row["allocations_per_step"], "allocation")
    return f"the largest; {units.size(row['bytes_per_step'])} in {allocations} per step"


def _describe_slow(row: dict[str, Any]) -> str:
    longest = units.duration(row["slowest_ns"] / 1e9)
    return f"{units.counted(int(row['slow_calls']), 'call')}, the longest {longest}"


def _format_duration(nanoseconds: float) -> str:
    return units.duration(nanoseconds / 1e9)
