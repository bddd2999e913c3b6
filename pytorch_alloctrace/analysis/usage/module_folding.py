"""Live memory by module, with submodules folded so that a few rows show which parts of the model hold most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ...reading.modules import MODULE
from ...reading.positions import Position
from ...reading.recorded import RecordedTrace
from ...reading.table import Table
from .live_memory import LiveMemory, highest_of_ranges

MAX_ROWS = 8
"""Maximum number of modules that hold `MIN_SHARE` of the bytes of all modules."""
MIN_SHARE = 0.8


def folded_memory(
    trace: RecordedTrace,
    ranges: Sequence[tuple[Position | None, Position | None]],
    at: Position = "peak",
    *,
    device: str | None = None,
) -> LiveMemory:
    """Return `highest_of_ranges` by "module:N", or by "module" if no name is folded."""
    memory = highest_of_ranges(trace, ranges, at, by=MODULE, device=device)
    depth = choose_depth(_list_modules(memory.composition))
    if depth is not None:
        memory = highest_of_ranges(trace, ranges, at, by=f"{MODULE}:{depth}", device=device)
    return memory


def choose_depth(modules: Sequence[tuple[str, int]]) -> int | None:
    """Return the largest number of name parts at which few modules hold most bytes; None if no name is longer.

    modules: name and bytes of each.
    """
    parts = [(name.split("."), size) for name, size in modules]
    total = sum(size for _, size in parts)
    deepest = max((len(names) for names, _ in parts), default=1)
    for depth in range(deepest, 0, -1):
        sizes: Counter[str] = Counter()
        for names, size in parts:
            sizes[".".join(names[:depth])] += size
        if depth == 1 or sum(size for _, size in sizes.most_common(MAX_ROWS)) >= MIN_SHARE * total:
            return depth if depth < deepest else None
    return None


def _list_modules(composition: Table) -> list[tuple[str, int]]:
    is_module = composition["user"]
    return list(
        zip(composition["site"][is_module].tolist(), composition["live_bytes"][is_module].tolist(), strict=True)
    )
