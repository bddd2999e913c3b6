"""Conversion of dataclasses to JSON and back. Decoded values have exactly the declared types of the fields."""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
from typing import Any, TypeVar

import numpy as np

_T = TypeVar("_T")


class TypedJsonError(ValueError):
    """The data is not the JSON of the dataclass."""


def encode(value: Any) -> bytes:
    """Return a dataclass as one line of JSON without a line feed. Integer arrays become lists of differences."""
    return json.dumps(value, default=_encode_object, separators=(",", ":")).encode()


def decode(kind: type[_T], data: bytes) -> _T:
    """Return the dataclass that `encode` encoded. Raise TypedJsonError for any other, possibly hostile data."""
    try:
        return typing.cast(_T, _decode(kind, json.loads(data)))
    except (ValueError, OverflowError, RecursionError) as error:
        raise TypedJsonError(f"no {kind.__name__} in JSON: {type(error).__name__}") from None


def _encode_object(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return np.diff(value, prepend=0).tolist()
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def _decode(kind: Any, value: Any) -> Any:
    if dataclasses.is_dataclass(kind):
        declared = _field_types(typing.cast(type, kind))
        if type(value) is dict and value.keys() == declared.keys():
            return typing.cast(Any, kind)(**{name: _decode(declared[name], item) for name, item in value.items()})
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return (
            None
            if value is None
            else _decode(next(argument for argument in arguments if argument is not type(None)), value)
        )
    if origin is tuple and type(value) is list:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return tuple(_decode(arguments[0], item) for item in value)
        if len(arguments) == len(value):
            return tuple(_decode(argument, item) for argument, item in zip(arguments, value, strict=True))
    if origin is np.ndarray and type(value) is list and all(type(item) is int for item in value):
        return np.cumsum(np.array(value, dtype=np.int64))
    if kind in (int, float, str, bool) and type(value) is kind:
        # The comparison converts integers to floats, which fails for an integer of arbitrary size.
        if kind is not int or abs(value) < 1 << 64:
            return value
    elif kind is float and type(value) is int:
        return float(value)
    raise TypedJsonError


@functools.cache
def _field_types(kind: type) -> dict[str, Any]:
    declared = typing.get_type_hints(kind)
    return {field.name: declared[field.name] for field in dataclasses.fields(kind)}
