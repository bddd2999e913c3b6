"""The text of a cause of a failed allocation, and sentences that several causes share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..analysis.free_memory.oom import OutOfMemory
from ..analysis.leaks.leak import Holder
from ..analysis.usage.held_rows import HeldRow
from ..analysis.usage.operations import Operation
from ..reading.sites import Site, SiteBytes
from . import units
from .site_names import SiteNames

MAX_LINES = 3
CURE_OF_LARGER_INPUT = (
    "if this input is larger than those before, process it in parts (tiles of an image, chunks of a sequence), or "
    "bound its size; "
)
OWN_CURES = frozenset(Operation) - {Operation.JOIN, Operation.REPEAT, Operation.ALLOCATE, Operation.WRITTEN_OUT}
"""Operations with a cure of their own, also within a module."""
_PLURALS = {
    "parameter": "parameters",
    "gradient": "gradients",
    "optimizer state": "optimizer state",
    "buffer": "buffers",
}


@dataclass(frozen=True)
class CauseText:
    title: str
    site: Site
    """The line to change."""
    stack_id: int
    why: list[str]
    help: list[str]


def describe_usage(failure: OutOfMemory) -> str:
    of_all = f" of {units.size(failure.device_bytes)}" if failure.device_bytes is not None else ""
    return f"{units.size(failure.allocated_bytes)}{of_all} is allocated."


def with_share(size: int, failure: OutOfMemory) -> str:
    if failure.device_bytes is None and not failure.is_limited:
        return units.size(size)
    usable = "the process's limit" if failure.is_limited else failure.device
    return f"{units.size(size)} ({units.share(size, failure.usable_bytes)} of {usable})"


def largest_site(failure: OutOfMemory) -> tuple[Site, int]:
    """Return the line with the most live bytes, and its stack; that of the request if nothing is live."""
    if not failure.top_sites:
        return failure.site, failure.request.stack_id
    return failure.top_sites[0].site, failure.top_sites[0].stack_id


def top_line(sites: tuple[SiteBytes, ...], failure: OutOfMemory) -> tuple[Site, int]:
    """Return the line with the most bytes and its stack; without any, those of the request."""
    return (sites[0].site, sites[0].stack_id) if sites else (failure.site, failure.request.stack_id)


def line_to_change(holder: Holder | None, site: Site, stack: int) -> tuple[Site, int]:
    """Return the line that stores into a holder, without a stack; if it is unknown, the given site and its stack."""
    store = None if holder is None else holder.store
    return (site, stack) if store is None else (Site(store.filename, store.line, store.function, store.source, True), 0)


def list_roles(failure: OutOfMemory) -> list[str]:
    """Return a sentence on the parts of the model's memory."""
    roles = [f"{_PLURALS[role]} {units.size(size)}" for role, size in failure.program.bytes_by_role.items() if size]
    return [f"The model holds: {', '.join(roles)}."] if roles else []


def list_variables(rows: Sequence[HeldRow]) -> str:
    """Return the local variables that lead to some objects, with their bytes: "spectrum 846 MiB, power 423 MiB"."""
    sizes = sum_by_variable(rows)
    return ", ".join(f"{name} {units.size(size)}" for name, size in sizes.items())


def sum_by_variable(rows: Sequence[HeldRow]) -> dict[str, int]:
    """Return the bytes of the objects to which each local variable leads, in the order of the rows."""
    sizes: dict[str, int] = {}
    for row in rows:
        name = row.holder.path.partition(".")[0].partition("[")[0]
        sizes[name] = sizes.get(name, 0) + row.bytes
    return sizes


def list_lines(sites: tuple[SiteBytes, ...], names: SiteNames) -> list[str]:
    """Return a sentence on the lines that allocated the most."""
    lines = [f"{units.size(site.bytes)} from {names.holder(site)}" for site in sites[:MAX_LINES]]
    return [f"The most was allocated at these lines: {'; '.join(lines)}."] if lines else []
