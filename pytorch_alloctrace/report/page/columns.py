"""Encoding of the page's tables: integer columns as bytes, and JSON with the offset of each column.

A column stores its values, or the differences between neighbours, as variable-length integers: seven bits a byte, the
lowest first; the eighth bit is set if more follow. n >= 0 is stored as 2n, n < 0 as -2n - 1. JSON and columns are
deflated together. `web/src/columns.ts` decodes them.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ..site_names import printable

MISSING = -1
"""Stored value of masked numbers. Only for columns without negative values."""
_MAX_INTEGER_BYTES = 10  # 64 bits, seven a byte


class Columns:
    """Encoder of integer columns."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0
        self._references: dict[tuple[bytes, bool], list[int]] = {}

    def add(self, values: Any, *, differences: bool = True) -> list[int]:
        """Add a column; return its JSON reference: byte offset, number of values, 1 if they are differences.

        Equal columns are stored once: memory is mostly active as long as it is allocated.
        """
        numbers = _integers(values)
        stored = np.diff(numbers, prepend=np.int64(0)) if differences else numbers
        data = _encode(stored)
        key = hashlib.sha256(data).digest(), differences
        if key not in self._references:
            self._references[key] = [self._size, len(numbers), int(differences)]
            self._size += len(data)
            self._parts.append(data)
        return self._references[key]

    def pack(self, manifest: Any) -> str:
        """Return the JSON and the columns, deflated. Base64 keeps texts of a trace from being read as HTML."""
        json_bytes = json.dumps(map_texts(manifest, printable), separators=(",", ":"), allow_nan=False).encode("ascii")
        packed = b"".join([struct.pack("<I", len(json_bytes)), json_bytes, *self._parts])
        return base64.b64encode(zlib.compress(packed, 9)).decode("ascii")


def map_texts(data: Any, change: Callable[[str], str]) -> Any:
    """Return a copy of plain values with `change` applied to every string, dict keys included."""
    if isinstance(data, str):
        return change(data)
    if isinstance(data, dict):
        return {change(key) if isinstance(key, str) else key: map_texts(value, change) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [map_texts(item, change) for item in data]
    return data


def unpack(text: str) -> tuple[Any, bytes]:
    """Return the JSON and the column bytes of `Columns.pack`."""
    packed = zlib.decompress(base64.b64decode(text))
    (json_length,) = struct.unpack_from("<I", packed)
    return json.loads(packed[4 : 4 + json_length]), packed[4 + json_length :]


def _integers(values: Any) -> npt.NDArray[np.int64]:
    return np.asarray(np.ma.filled(values, MISSING)).astype(np.int64)


def _encode(numbers: npt.NDArray[np.int64]) -> bytes:
    if not len(numbers):
        return b""
    zigzag = ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)
    shifts = np.arange(_MAX_INTEGER_BYTES, dtype=np.uint64) * np.uint64(7)
    lengths = np.ones(len(zigzag), dtype=np.int64)
    for shift in shifts[1:]:
        lengths += (zigzag >> shift) > 0
    digits = ((zigzag[:, None] >> shifts) & np.uint64(0x7F)).astype(np.uint8)
    byte_index = np.arange(_MAX_INTEGER_BYTES)
    digits[byte_index < (lengths - 1)[:, None]] |= 0x80
    return digits[byte_index < lengths[:, None]].tobytes()
