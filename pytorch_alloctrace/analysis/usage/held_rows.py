"""Objects that hold memory, as rows: similar objects of one variable are merged into a row.

Merged are, in this order: small parameters, buffers or gradients of one model; objects whose names differ only in
their indices; in their indices and text keys; and other small objects of one variable. A large object that holds much
more than the others of its row stays apart. Parameters, buffers, gradients and other blocks are never in one row.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..leaks.leak import UNUSED, Holder

MODEL_ROLES = ("parameter", "buffer", "gradient")
"""Roles of blocks of a model, which are merged apart from other blocks."""
_MIN_MERGED, _MIN_INDEXED = 4, 2
"""Minimum number of merged objects: of one variable, and of objects whose names differ only in their indices."""
_LARGE_SHARE = 0.1
"""Minimum share of all bytes of a large object."""
_MAX_RATIO = 2
"""Maximum ratio of the bytes of a large object to the mean of the others in its row."""
_KEY = r"""\[(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\[\]"'])*\]"""
_PART = re.compile(rf"\.\w+|{_KEY}")
_NAME = re.compile(rf"(\w+)((?:\.\w+|{_KEY})*)(.*)", re.DOTALL)
"""A variable, its attributes and keys, and a phrase such as " in the closure of log()"."""
_CONTENTS = re.compile(r" \([^()]* of (\d{1,9})\)")
"""Type and number of items of a container."""
_ANY_KEY = "[...]"
GRADIENT = ".grad"
"""Attribute of a tensor."""

_Parts = tuple[str, ...]
"""A variable, then attributes and keys."""


@dataclass(frozen=True)
class HeldRow:
    bytes: int
    """Requested bytes on the device."""
    blocks: int
    """Number of blocks on the device."""
    is_estimated: bool
    """True if bytes and blocks are estimated from a sample, as some blocks are elsewhere or may have been freed."""
    holder: Holder
    """The object, or the common part of the merged objects' names. Its `share` is that of the device's live bytes."""
    objects: int
    """Number of objects in the row; 1 if none are merged."""
    role: str
    """Role of all blocks of the row, "gradient" in the attribute `.grad`; "" if they have several."""
    model: str = ""
    """Expression of the model whose parameter, buffer or gradient it is: "service.encoder"; "" if unknown."""


@dataclass(frozen=True)
class _Named:
    """A row and the parts of its name."""

    row: HeldRow
    parts: _Parts
    origin: tuple[str, ...]
    """Key of rows that may be merged: variable, phrase, description after the name, file, `Holder.through`, role,
    model."""
    is_container: bool

    @classmethod
    def of_row(cls, row: HeldRow) -> _Named:
        holder = row.holder
        match = _NAME.fullmatch(holder.name)
        variable, parts, phrase = match.groups() if match else (holder.name, "", "")
        description = holder.names[0].removeprefix(holder.name)
        contents = _CONTENTS.match(description)
        ending = description[contents.end() if contents else 0 :]
        role = row.role if row.role in MODEL_ROLES else ""
        # Only large objects of a variable are searched for whether it is used.
        through = "" if holder.through == UNUSED else holder.through
        origin = variable, phrase, ending, holder.filename, through, role, row.model if role else ""
        is_container = contents is not None and int(contents[1]) > 1
        return cls(row, (variable, *_PART.findall(parts)), origin, is_container)


def merge_rows(rows: Sequence[HeldRow], total: int) -> list[HeldRow]:
    """Return the rows with similar objects merged. total: bytes of which a large object has a large share."""
    large_bytes = _LARGE_SHARE * total

    def is_small(named: _Named) -> bool:
        return named.row.bytes < large_bytes and not named.is_container

    def is_of_model(named: _Named) -> bool:
        return is_small(named) and named.row.role in MODEL_ROLES

    rows = _merge_by_variable(rows, is_of_model, large_bytes)
    rows = _merge_by_name(rows, _replace_indices, _MIN_INDEXED, large_bytes)
    rows = _merge_by_name(rows, _replace_keys, _MIN_MERGED, large_bytes)
    return _merge_by_variable(rows, is_small, large_bytes)


def find_model(expression: str, tensor_name: str) -> str:
    """Return the expression of the model that has a parameter or buffer; "" if the two names do not fit.

    Args:
        expression: Expression of the tensor or of its gradient, such as "service.encoder.layers[0].weight".
        tensor_name: Name of the tensor in its model, such as "layers.0.weight".
    """
    match = _NAME.fullmatch(expression.removesuffix(GRADIENT))
    attributes = _PART.findall(match[2]) if match else []
    names = tensor_name.split(".")
    if match is None or [part.strip("[].") for part in attributes[-len(names) :]] != names:
        return ""
    return match[1] + "".join(attributes[: -len(names)])


def _merge_by_name(
    rows: Sequence[HeldRow], replace: Callable[[_Parts], _Parts], minimum: int, large_bytes: float
) -> list[HeldRow]:
    groups: dict[object, list[_Named]] = {}
    for named in map(_Named.of_row, rows):
        groups.setdefault((named.origin, replace(named.parts)), []).append(named)
    return _merge_groups(groups, lambda group: replace(group[0].parts), minimum, large_bytes)


def _merge_by_variable(
    rows: Sequence[HeldRow], is_merged: Callable[[_Named], bool], large_bytes: float
) -> list[HeldRow]:
    """Merge the rows of one variable for which `is_merged` is True."""
    groups: dict[object, list[_Named]] = {}
    for number, named in enumerate(map(_Named.of_row, rows)):
        groups.setdefault(named.origin if is_merged(named) else number, []).append(named)
    return _merge_groups(groups, _find_owner, _MIN_MERGED, large_bytes)


def _merge_groups(
    groups: dict[object, list[_Named]],
    name_of: Callable[[Sequence[_Named]], _Parts],
    minimum: int,
    large_bytes: float,
) -> list[HeldRow]:
    rows: list[HeldRow] = []
    for group in groups.values():
        group.sort(key=lambda named: -named.row.bytes)
        while _is_first_apart([named.row.bytes for named in group], large_bytes):
            rows.append(group.pop(0).row)
        if len(group) >= minimum:
            rows.append(_merge(group, name_of(group)))
        else:
            rows += [named.row for named in group]
    return rows


def _is_first_apart(sizes: Sequence[int], large_bytes: float) -> bool:
    """Return whether the first of the sizes, in descending order, is large and far above the mean of the others."""
    others = sizes[1:]
    return bool(others) and sizes[0] >= large_bytes and sizes[0] * len(others) > _MAX_RATIO * sum(others)


def _merge(group: Sequence[_Named], parts: _Parts) -> HeldRow:
    rows = [named.row for named in group]
    largest = rows[0].holder
    total = sum(row.bytes for row in rows)
    has_one_store = len({row.holder.store for row in rows}) == 1
    has_one_role = len({row.role for row in rows}) == 1
    _, phrase, description, *_ = group[0].origin
    name = "".join(parts) + phrase
    holder = dataclasses.replace(
        largest,
        names=(name + description,),
        name=name,
        share=min(sum(row.holder.share for row in rows), 1.0),
        containers=(),
        store_kind=largest.store_kind if has_one_store else "",
        store=largest.store if has_one_store else None,
        tensor_share=sum(row.holder.tensor_share * row.bytes for row in rows) / max(total, 1),
    )
    return HeldRow(
        total,
        sum(row.blocks for row in rows),
        any(row.is_estimated for row in rows),
        holder,
        sum(row.objects for row in rows),
        rows[0].role if has_one_role else "",
        rows[0].model if len({row.model for row in rows}) == 1 else "",
    )


def _replace_indices(parts: _Parts) -> _Parts:
    return tuple(_ANY_KEY if part[0] == "[" and part[1] not in "\"'" else part for part in parts)


def _replace_keys(parts: _Parts) -> _Parts:
    return tuple(_ANY_KEY if part[0] == "[" else part for part in parts)


def _find_owner(group: Sequence[_Named]) -> _Parts:
    """Return the object that contains all tensors of a group: `model` for `model[0].weight` and `model[1].bias`."""
    owners = []
    for named in group:
        parts = _replace_keys(named.parts)
        owners.append(parts[: -2 if parts[-1] == GRADIENT else -1])
    common = itertools.takewhile(lambda column: len(set(column)) == 1, zip(*owners, strict=False))
    owner = tuple(column[0] for column in common)
    while owner and owner[-1] == _ANY_KEY:
        owner = owner[:-1]
    return owner or group[0].parts[:1]
