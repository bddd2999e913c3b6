"""Lines of an installed package called by a line of user code, as text and as JSON."""

from __future__ import annotations

import dataclasses
from typing import Any

from ..analysis.usage.package_lines import PackageLines
from . import units
from .screen import Screen
from .site_names import SiteNames


def write_package_lines(
    package_lines: PackageLines | None,
    total: int | None,
    screen: Screen,
    names: SiteNames,
    column: int,
    *,
    hint: bool = True,
) -> None:
    """Write the lines below the entry of the calling line, with shares of `total` bytes, if given."""
    if package_lines is None:
        return
    for line in package_lines.lines:
        share = "" if total is None else f"{units.share(line.bytes, total):>5}  "
        amount = f"{share}{units.size(line.bytes):>9}"
        screen.text(f"{amount:>{column}}    {names.site(line.frame)}", 2, hanging=column + 6, style="dim")
    if hint:
        screen.text(f"{'':{column}}    --user-path {package_lines.package} shows all of its lines", 2, style="dim")


def package_lines_data(package_lines: PackageLines | None) -> dict[str, Any] | None:
    if package_lines is None:
        return None
    lines = [
        {**dataclasses.asdict(line.frame), "bytes": line.bytes, "blocks": line.blocks, "stack_id": line.stack_id}
        for line in package_lines.lines
    ]
    return {"package": package_lines.package, "bytes": package_lines.bytes, "lines": lines}
