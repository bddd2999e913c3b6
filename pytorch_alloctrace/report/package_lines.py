"""Lines of an installed package called by a line of user code, as text and as JSON."""

from __future__ import annotations

import dataclasses
from typing import Any

from ..analysis.usage.package_lines import LibraryCall, PackageLine, PackageLines
from . import units
from .screen import Screen
from .site_names import SiteNames, printable

_ALL = 0.995  # shown as 100 %


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
        screen.text(f"{amount:>{column}}    {package_line_name(line, names)}", 2, hanging=column + 6, style="dim")
    if hint:
        screen.text(f"{'':{column}}    --user-path {package_lines.package} shows all of its lines", 2, style="dim")


def package_line_name(line: LibraryCall | PackageLine, names: SiteNames) -> str:
    """Return the module and the line, such as "transformers/pytorch_utils.py:119 in Conv1D.forward (GPT.h.*.c_fc)"."""
    module = f" ({printable(line.module)})" if line.module else ""
    return f"{names.site(line.frame)}{module}"


def describe_library_call(call: LibraryCall, names: SiteNames) -> str:
    """Return "38 % of it at transformers/activations.py:66 in NewGELUActivation.forward (GPT.h.*.mlp.act)"."""
    share = "all" if call.share > _ALL else units.share(call.share, 1)
    return f"{share} of it at {package_line_name(call, names)}"


def package_lines_data(package_lines: PackageLines | None) -> dict[str, Any] | None:
    if package_lines is None:
        return None
    lines = [
        {
            **dataclasses.asdict(line.frame),
            "module": line.module,
            "bytes": line.bytes,
            "blocks": line.blocks,
            "stack_id": line.stack_id,
        }
        for line in package_lines.lines
    ]
    return {"package": package_lines.package, "bytes": package_lines.bytes, "lines": lines}
