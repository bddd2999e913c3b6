"""How tables travel in the page: columns of integers as one run of bytes, beside JSON that says where each begins.

A column is written as variable-length integers (seven bits a byte, the lowest first; a set eighth bit: more follows)
of its values, or of the differences between neighbours, each as 2n, or -2n - 1 where it is negative. The whole is
deflated. `web/src/columns.ts` reads it.
"""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ..site_names import printable

MISSING = -1
"""What stands for <NA>, in columns that have nothing below 0."""

_LONGEST = 10
"""Bytes of the largest number."""


class Columns:
    """Columns in the making."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, values: Any, *, differences: bool = True) -> list[int]:
        """Keep a column of integers; return what the JSON says about it: where it begins, how many values it has, and
        whether they are differences. What is missing becomes MISSING."""
        numbers = _integers(values)
        written = np.diff(numbers, prepend=np.int64(0)) if differences else numbers
        data = _variable_length(written)
        begin, self._size = self._size, self._size + len(data)
        self._parts.append(data)
        return [begin, len(numbers), int(differences)]

    def packed(self, manifest: Any) -> str:
        """The columns and the JSON, deflated, in base64: no text of a trace appears in the page as it is."""
        json_bytes = json.dumps(map_texts(manifest, printable), separators=(",", ":"), allow_nan=False).encode("ascii")
        whole = b"".join([struct.pack("<I", len(json_bytes)), json_bytes, *self._parts])
        return base64.b64encode(zlib.compress(whole, 9)).decode("ascii")


def map_texts(data: Any, change: Callable[[str], str]) -> Any:
    """Return plain values with every text in them changed."""
    if isinstance(data, str):
        return change(data)
    if isinstance(data, dict):
        return {change(key) if isinstance(key, str) else key: map_texts(value, change) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [map_texts(item, change) for item in data]
    return data


def unpacked(text: str) -> tuple[Any, bytes]:
    """The JSON and the bytes of `Columns.packed`."""
    whole = zlib.decompress(base64.b64decode(text))
    (length,) = struct.unpack_from("<I", whole)
    return json.loads(whole[4 : 4 + length]), whole[4 + length :]


def _integers(values: Any) -> npt.NDArray[np.int64]:
    return np.asarray(np.ma.filled(values, MISSING)).astype(np.int64)


def _variable_length(numbers: npt.NDArray[np.int64]) -> bytes:
    if not len(numbers):
        return b""
    plain = ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)
    shifts = np.arange(_LONGEST, dtype=np.uint64) * np.uint64(7)
    lengths = np.ones(len(plain), dtype=np.int64)
    for shift in shifts[1:]:
        lengths += (plain >> shift) > 0
    digits = ((plain[:, None] >> shifts) & np.uint64(0x7F)).astype(np.uint8)
    place = np.arange(_LONGEST)
    digits[place < (lengths - 1)[:, None]] |= 0x80
    return digits[place < lengths[:, None]].tobytes()
