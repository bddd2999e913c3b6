"""`changes()`: the tensors added and removed between two lines of a program."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..objects.inventory import Inventory, Item, inventory
from ..recording.session import current_session
from ..report import units
from .tensors import COLUMNS, SECONDS, create_row, read_origins

if TYPE_CHECKING:
    import pandas as pd

MAX_ROWS = 20
"""Maximum number of rows of `added`, and of `removed`, in `str`."""
_Rows = dict[tuple[int, int, int], "_Row"]
"""Rows by key, address and bytes of the storage: torch can exchange the memory of a storage.

The weak reference in each row reserves the key. Without it, a new storage could get key, address and size of a freed
storage, and would not be reported.
"""


@dataclass(frozen=True)
class _Row:
    item: Item
    line: str
    """Line that allocated the storage; "" if it was not recorded."""


@dataclass
class Changes:
    """The tensors added and removed since the previous call, or within a `with` block."""

    complete: bool = True
    """Whether both walks visited all objects."""
    _added: tuple[_Row, ...] = field(default=(), repr=False)
    _removed: tuple[_Row, ...] = field(default=(), repr=False)
    _now: _Rows = field(default_factory=dict, repr=False)

    @property
    def change_bytes(self) -> int:
        """Return the requested bytes added minus those removed."""
        return sum(row.item.storage.bytes for row in self._added) - sum(row.item.storage.bytes for row in self._removed)

    @property
    def added(self) -> pd.DataFrame:
        """Return the added tensors, one row per storage, largest first.

        The columns are those of `tensors` without step and age.
        """
        return _create_table(self._added)

    @property
    def removed(self) -> pd.DataFrame:
        """Return the removed tensors like `added`, with their previous names and lines."""
        return _create_table(self._removed)

    def __enter__(self) -> Changes:
        return self

    def __exit__(self, *_: object) -> None:
        global _last_rows
        with _lock:
            block_changes = _compare_with(self._now)
            _last_rows = block_changes._now
        self._added, self._removed, self._now = block_changes._added, block_changes._removed, block_changes._now
        self.complete &= block_changes.complete

    def __str__(self) -> str:
        if not self._added and not self._removed:
            return "no tensors added or removed"
        lines = [
            f"{units.change(self.change_bytes)} in tensors: {len(self._added)} added, {len(self._removed)} removed"
        ]
        for sign, rows in (("+", self._added), ("-", self._removed)):
            lines += [_format_row(sign, row) for row in rows[:MAX_ROWS]]
            if len(rows) > MAX_ROWS:
                remaining_bytes = sum(row.item.storage.bytes for row in rows[MAX_ROWS:])
                lines.append(f"{sign} {units.size(remaining_bytes):>10}  in {len(rows) - MAX_ROWS:,} more")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        import html

        return f"<pre>{html.escape(str(self))}</pre>"

    def _repr_pretty_(self, printer: object, cycle: bool) -> None:
        printer.text(str(self))  # type: ignore[attr-defined]


_lock = threading.Lock()
_last_rows: _Rows = {}


def changes() -> Changes:
    """Return the tensors added and removed since the previous call, with names, shapes and recorded lines.

    Use `print(alloctrace.changes())` between two lines of a program, or `with alloctrace.changes() as c:` and then
    `print(c)`. The first call returns all tensors as added. If a new tensor has the memory of a freed tensor, the new
    one is in `added` and the freed one in `removed`.
    """
    global _last_rows
    with _lock:
        result = _compare_with(_last_rows)
        _last_rows = result._now
    return result


def _compare_with(before: _Rows) -> Changes:
    tensors = inventory(SECONDS)
    rows = _read_rows(tensors, before)
    added = sorted((rows[key] for key in rows.keys() - before.keys()), key=_sort_key)
    removed = sorted((before[key] for key in before.keys() - rows.keys()), key=_sort_key)
    return Changes(tensors.complete, tuple(added), tuple(removed), rows)


def _read_rows(tensors: Inventory, before: _Rows) -> _Rows:
    session = current_session()
    items = {(item.storage.key, item.storage.address, item.storage.bytes): item for item in tensors.items}
    # Read the trace only if there are new storages.
    has_new = session is not None and bool(items.keys() - before.keys())
    origins = read_origins(session) if has_new and session is not None else {}
    return {
        key: before[key] if key in before else _Row(item, origins.get(item.storage.address, ("", None, 0.0))[0])
        for key, item in items.items()
    }


def _sort_key(row: _Row) -> int:
    return -row.item.storage.bytes


def _format_row(sign: str, row: _Row) -> str:
    item = row.item
    shape = "x".join(map(str, item.shape)) or "scalar"
    name = item.name or "unnamed"
    where = f"  {row.line}" if row.line else ""
    return f"{sign} {units.size(item.storage.bytes):>10}  {name}  {shape} {item.dtype} {item.storage.device}{where}"


def _create_table(rows: tuple[_Row, ...]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame([(*create_row(row.item), row.line) for row in rows], columns=[*COLUMNS, "line"])
