"""`changes()`: what tensors came and went, between two lines of a program."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..objects.inventory import Inventory, Item, inventory
from ..recording.session import current_session
from ..report import units
from .tensors import COLUMNS, SECONDS, origins_of, row_of

if TYPE_CHECKING:
    import pandas as pd

SHOWN = 20
"""Most rows that `str` shows of what came, and of what went."""
_Seen = dict[tuple[int, int, int], "Row"]
"""By key, address and bytes of the storage, as its memory may be exchanged. The weak reference of each row keeps its
key from a later storage: one that takes the memory of a freed one, of the same size, is often made where that was."""


@dataclass(frozen=True)
class Row:
    """One piece of memory."""

    item: Item
    line: str
    """The line that made it, where a recording knows."""


@dataclass
class Changes:
    """What came and went. Also a context manager: then it says what did inside, once that has ended."""

    added: tuple[Row, ...] = ()
    """The largest first."""
    removed: tuple[Row, ...] = ()
    """The largest first."""
    complete: bool = True
    """Whether all objects were looked at, both times."""
    _now: _Seen = field(default_factory=dict, repr=False)

    @property
    def bytes(self) -> int:
        """By how much the requested bytes grew."""
        return sum(row.item.storage.bytes for row in self.added) - sum(row.item.storage.bytes for row in self.removed)

    @property
    def came(self) -> pd.DataFrame:
        """What came, a row for each piece of memory: the columns of `tensors`, without its age."""
        return _table(self.added)

    @property
    def went(self) -> pd.DataFrame:
        """What went; names and lines are those that it had."""
        return _table(self.removed)

    def __enter__(self) -> Changes:
        return self

    def __exit__(self, *_: object) -> None:
        global _last
        with _lock:
            later = _compared(self._now)
            _last = later._now
        self.added, self.removed, self._now = later.added, later.removed, later._now
        self.complete &= later.complete

    def __str__(self) -> str:
        if not self.added and not self.removed:
            return "no tensors came or went"
        lines = [f"{units.change(self.bytes)} in tensors: {len(self.added)} came, {len(self.removed)} went"]
        for sign, rows in (("+", self.added), ("-", self.removed)):
            lines += [_line(sign, row) for row in rows[:SHOWN]]
            if len(rows) > SHOWN:
                rest = sum(row.item.storage.bytes for row in rows[SHOWN:])
                lines.append(f"{sign} {units.size(rest):>10}  in {len(rows) - SHOWN:,} more")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        import html

        return f"<pre>{html.escape(str(self))}</pre>"

    def _repr_pretty_(self, printer: object, cycle: bool) -> None:
        printer.text(str(self))  # type: ignore[attr-defined]


_lock = threading.Lock()
_last: _Seen = {}


def changes() -> Changes:
    """What tensors came and went since the last call, by name, shape and, where a recording runs, line.

    `print(alloctrace.changes())` between two lines of a program, or `with alloctrace.changes() as c:`, then `print(c)`.
    The first call says what there is. A tensor in the memory that another has left has come, and the other has gone.
    """
    global _last
    with _lock:
        found = _compared(_last)
        _last = found._now
    return found


def _compared(before: _Seen) -> Changes:
    found = inventory(SECONDS)
    now = _seen(found, before)
    came = sorted((now[key] for key in now.keys() - before.keys()), key=_size)
    went = sorted((before[key] for key in before.keys() - now.keys()), key=_size)
    return Changes(tuple(came), tuple(went), found.complete, now)


def _seen(found: Inventory, before: _Seen) -> _Seen:
    session = current_session()
    items = {(item.storage.key, item.storage.address, item.storage.bytes): item for item in found.items}
    # The trace is read for what is new alone.
    new = session is not None and bool(items.keys() - before.keys())
    origins = origins_of(session) if new and session is not None else {}
    return {
        key: before[key] if key in before else Row(item, origins.get(item.storage.address, ("", None, 0.0))[0])
        for key, item in items.items()
    }


def _size(row: Row) -> int:
    return -row.item.storage.bytes


def _line(sign: str, row: Row) -> str:
    item = row.item
    shape = "x".join(map(str, item.shape)) or "scalar"
    name = item.name or "held by no name"
    where = f"  {row.line}" if row.line else ""
    return f"{sign} {units.size(item.storage.bytes):>10}  {name}  {shape} {item.dtype} {item.storage.device}{where}"


def _table(rows: tuple[Row, ...]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame([(*row_of(row.item), row.line) for row in rows], columns=[*COLUMNS, "line"])
