"""Dataclasses as plain values and back. Whatever comes back is of the types that the fields declare, or an error."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from typing import Any, TypeVar

_Made = TypeVar("_Made")


class NotPlainError(ValueError):
    """A value is not what the field declares."""


def plain(value: Any) -> Any:
    """Dicts, lists, texts, numbers and None."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return [plain(item) for item in value] if isinstance(value, tuple) else value


def made(kind: type[_Made], value: Any) -> _Made:
    """A dataclass of what `plain` returned. Raises NotPlainError for anything else."""
    return typing.cast(_Made, _made(kind, value))


def _made(kind: Any, value: Any) -> Any:
    if dataclasses.is_dataclass(kind):
        if not isinstance(value, dict) or set(value) != {field.name for field in dataclasses.fields(kind)}:
            raise NotPlainError(f"{value!r} has not the fields of {kind}")
        declared = _types(typing.cast(type, kind))
        return typing.cast(Any, kind)(**{name: _made(declared[name], item) for name, item in value.items()})
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple and isinstance(value, list):
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return tuple(_made(arguments[0], item) for item in value)
        if len(arguments) == len(value):
            return tuple(_made(own, item) for own, item in zip(arguments, value, strict=True))
    if origin in (typing.Union, types.UnionType):
        return None if value is None else _made(next(own for own in arguments if own is not type(None)), value)
    if kind is float and type(value) is int:
        return float(value)
    if kind in (int, float, str, bool) and type(value) is kind:
        return value
    raise NotPlainError(f"{value!r} is no {kind}")


@functools.cache
def _types(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)
