"""Tables of events: what the reader gives by number, with the names that it stands for."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from .. import _replay
from .dtypes import TEXT
from .kinds import KINDS, device_name, kind_name

EVENT_COLUMNS = (
    *("seq", "time_ns", "kind", "device", "address", "nbytes", "stream", "pool", "thread", "stack_id", "step"),
)
"""The default columns of `Trace.events`."""
AUTOGRAD_COLUMNS = ("autograd_seq", "node_seq", "node_thread", "node_type", "forward_stack_id")
"""More columns, on request. autograd_seq: the number of the next autograd node of the thread. node_seq, node_thread,
node_type: number, maker thread and type of the node that is being evaluated (in backward). forward_stack_id: the stack
of the forward that caused an allocation of backward, where backward has no stack and that is known; else 0."""

StepOf: TypeAlias = Callable[[npt.NDArray[Any]], Any]
"""The step that each of some events belongs to."""


class _Places(NamedTuple):
    """By location id."""

    devices: pd.Categorical
    streams: pd.Categorical
    pools: pd.Categorical


class EventTables:
    """Makes the tables of one trace."""

    def __init__(self, reader: _replay.TraceReader) -> None:
        self._reader = reader
        self._known_places = _Places(pd.Categorical([]), pd.Categorical([]), pd.Categorical([]))

    def empty(self, columns: Sequence[str], step_of: StepOf) -> pd.DataFrame:
        """A table without events."""
        none = {name: np.zeros(0, np.int64) for name in ("location", *EVENT_COLUMNS, *AUTOGRAD_COLUMNS)}
        none["address"] = np.zeros(0, np.uint64)
        none |= {name: np.zeros(0, np.int32) for name in ("thread", "stack_id", "forward_stack_id")}
        return self.table(none, columns, step_of)

    def table(self, raw: dict[str, Any], columns: Sequence[str], step_of: StepOf) -> pd.DataFrame:
        """The events of one part, by column, as they came from the reader."""
        location = raw["location"]
        most = int(location.max(initial=0))
        made: dict[str, Any] = {}
        for name in columns:
            if name == "kind":
                names = [kind_name(number) for number in range(max(len(KINDS), int(raw["kind"].max(initial=0)) + 1))]
                made[name] = pd.Categorical.from_codes(raw["kind"].astype(np.int16), categories=pd.Index(names))
            elif name == "device":
                made[name] = self._places(most).devices[location]
            elif name == "stream":
                made[name] = self._places(most).streams[location]
            elif name == "pool":
                made[name] = self._places(most).pools[location]
            elif name == "step":
                made[name] = step_of(raw["seq"])
            elif name == "node_type":
                made[name] = self.node_types(raw["node_type"])
            else:
                made[name] = raw[name]
        # Nobody else has these arrays: to copy them into one block is a sixth of the time of reading all events.
        return pd.DataFrame(made, copy=False)

    def _places(self, most: int) -> _Places:
        """With an entry for each location id up to `most`: damage may have taken the definition of one."""
        if most >= len(self._known_places.streams):
            locations = self.locations.reindex(range(max(len(self.locations), most + 1)))
            pools = [value if isinstance(value, tuple) else (0, 0) for value in locations["pool"]]
            known = pd.Index([*dict.fromkeys(pools)], tupleize_cols=False)
            self._known_places = _Places(
                pd.Categorical(locations["device"].fillna("").astype(object)),
                pd.Categorical(locations["stream"].fillna(0).to_numpy(np.int64)),
                pd.Categorical.from_codes(known.get_indexer(pd.Index(pools, tupleize_cols=False)), categories=known),
            )
        return self._known_places

    def node_types(self, numbers: npt.NDArray[np.integer[Any]]) -> Any:
        """Types of autograd nodes, in full, by number; "" for none."""
        names = np.array([*self._reader.node_types()] or [""], dtype=object)
        return pd.array(names[np.minimum(numbers, len(names) - 1)], dtype=TEXT)

    @functools.cached_property
    def locations(self) -> pd.DataFrame:
        """Device, stream and pool by location id; 0 is none."""
        rows: list[dict[str, Any]] = [
            {
                "device": device_name(location.device_type, location.device_index),
                "stream": location.stream,
                "pool": location.pool,
            }
            for location in self._reader.locations()
        ]
        return pd.DataFrame([{"device": "", "stream": 0, "pool": (0, 0)}, *rows[1:]])
