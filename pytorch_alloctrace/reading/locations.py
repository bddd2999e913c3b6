"""Locations: device, stream and pool of an event, identified by one number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _replay
from .names import device_name
from .table import texts

_NONE = ("", 0, (0, 0))


@dataclass(frozen=True, eq=False)
class Places:
    """Device, stream and pool of each location id."""

    devices: npt.NDArray[Any]
    """Names in torch's spelling; "": no device."""
    streams: npt.NDArray[np.int64]
    pools: npt.NDArray[Any]
    """Pairs of numbers; (0, 0): no private pool."""


class Locations:
    """Locations of a trace. Location 0 is none."""

    def __init__(self, reader: _replay.TraceReader) -> None:
        rows = [
            (device_name(location.device_type, location.device_index), location.stream, location.pool)
            for location in reader.locations()
        ]
        self._rows = [_NONE, *rows[1:]]
        self._places: Places | None = None

    def up_to(self, highest: int) -> Places:
        """Return all locations, padded up to id `highest`: a corrupt trace may lack some."""
        if self._places is None or highest >= len(self._places.streams):
            rows = [*self._rows, *[_NONE] * max(highest + 1 - len(self._rows), 0)]
            devices, streams, pools = zip(*rows, strict=True)
            self._places = Places(texts(devices), np.array(streams, np.uint64).astype(np.int64), texts(pools))
        return self._places

    def count_streams(self, device: str) -> int:
        """Return the number of streams that allocated or used memory of a device."""
        return len({stream for name, stream, _ in self._rows if name == device})

    def row(self, location: int) -> tuple[str, int, tuple[int, int]]:
        """Return device, stream and pool of a location."""
        return self._rows[location] if location < len(self._rows) else _NONE
