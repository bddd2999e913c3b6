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
"""Most rows that `str` shows of `added`, and of `removed`."""
_Seen = dict[tuple[int, int, int], "_Row"]
"""By key, address and bytes of the storage, as its memory may be exchanged. The weak reference of each row keeps its
key from a later storage: one that takes the memory of a freed one, of the same size, is often made where that was."""


@dataclass(frozen=True)
class _Row:
    """One piece of memory."""

    item: Item
    line: str
    """The line that made it, where a recording knows."""


@dataclass
class Changes:
    """What came and went. Also a context manager: then it says what did inside, once that has ended."""

    complete: bool = True
    """Whether all objects were looked at, both times."""
    _added: tuple[_Row, ...] = field(default=(), repr=False)
    _removed: tuple[_Row, ...] = field(default=(), repr=False)
    _now: _Seen = field(default_factory=dict, repr=False)

    @property
    def change_bytes(self) -> int:
        """By how much the requested bytes grew."""
        return sum(row.item.storage.bytes for row in self._added) - sum(row.item.storage.bytes for row in self._removed)

    @property
    def added(self) -> pd.DataFrame:
        """What came, the largest first: a row for each piece of memory, with the columns of `tensors` without its
        age."""
        return _table(self._added)

    @property
    def removed(self) -> pd.DataFrame:
        """What went, the largest first; names and lines are those that it had."""
        return _table(self._removed)

    def __enter__(self) -> Changes:
        return self

    def __exit__(self, *_: object) -> None:
        global _last
        with _lock:
            later = _compared(self._now)
            _last = later._now
        self._added, self._removed, self._now = later._added, later._removed, later._now
        self.complete &= later.complete

    def __str__(self) -> str:
        if not self._added and not self._removed:
            return "no tensors came or went"
        lines = [f"{units.change(self.change_bytes)} in tensors: {len(self._added)} came, {len(self._removed)} went"]
        for sign, rows in (("+", self._added), ("-", self._removed)):
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
    return Changes(found.complete, tuple(came), tuple(went), now)


def _seen(found: Inventory, before: _Seen) -> _Seen:
    session = current_session()
    items = {(item.storage.key, item.storage.address, item.storage.bytes): item for item in found.items}
    # The trace is read for what is new alone.
    new = session is not None and bool(items.keys() - before.keys())
    origins = origins_of(session) if new and session is not None else {}
    return {
        key: before[key] if key in before else _Row(item, origins.get(item.storage.address, ("", None, 0.0))[0])
        for key, item in items.items()
    }


def _size(row: _Row) -> int:
    return -row.item.storage.bytes


def _line(sign: str, row: _Row) -> str:
    item = row.item
    shape = "x".join(map(str, item.shape)) or "scalar"
    name = item.name or "held by no name"
    where = f"  {row.line}" if row.line else ""
    return f"{sign} {units.size(item.storage.bytes):>10}  {name}  {shape} {item.dtype} {item.storage.device}{where}"


def _table(rows: tuple[_Row, ...]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame([(*row_of(row.item), row.line) for row in rows], columns=[*COLUMNS, "line"])
