"""When the survivors of leaks were born: a small chart for each finding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...analysis.leaks.leak import Leak
from ...analysis.leaks.lives import rows_of
from ...reading.recorded import RecordedTrace
from ...reading.sites import SiteNumbers

_BARS = 120
"""Of a chart, at most."""

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Live:
    """The blocks of a device that were allocated in the recording and live after an event."""

    born_at: Numbers
    """The event."""
    born_ns: Numbers
    bytes: Numbers
    rows: dict[int, Numbers]
    """Which of them each line, by number, has made."""


class Births:
    """Asks the replay once for what many findings share."""

    def __init__(self, trace: RecordedTrace) -> None:
        self._trace = trace
        self._numbers = SiteNumbers(trace.stacks)
        self._known: dict[tuple[str, int], _Live] = {}
        self._steps = trace.steps()["step"]

    def of(self, leak: Leak) -> dict[str, Any]:
        """The blocks of its lines that were live when it was judged, by birth: bytes in each of a number of bars."""
        live = self._live(leak.device, leak.judged_at)
        sites = np.unique(self._numbers.of([one.stack_id for one in leak.sites]))
        rows = np.concatenate([live.rows.get(site, np.zeros(0, np.int64)) for site in sites.tolist()])
        by_step = leak.unit == "step" and len(self._steps) > 1 and bool((np.diff(self._steps) > 0).all())
        if by_step:
            births = np.asarray(self._trace.positions.step_of(live.born_at[rows])).astype(np.int64)
            first, last = int(self._steps[0]), int(self._steps[-1]) + 1
        else:
            births = live.born_ns[rows] - self._trace.begin_ns
            first, last = 0, max(self._trace.end_ns - self._trace.begin_ns, 1)
        bars = min(_BARS, last - first + 1)
        width = -(-(last - first + 1) // bars)
        sums = np.zeros(-(-(last - first + 1) // width), dtype=np.int64)
        inside = (births >= first) & (births <= last)
        np.add.at(sums, (births[inside] - first) // width, live.bytes[rows][inside])
        return {"unit": "step" if by_step else "ns", "first": first, "width": width, "bytes": sums.tolist()}

    def _live(self, device: str, judged_at: int) -> _Live:
        found = self._known.get((device, judged_at))
        if found is None:
            blocks = self._trace.replay.live(judged_at + 1, device)
            blocks = blocks.take(~blocks["older"])
            found = self._known[device, judged_at] = _Live(
                blocks["birth_seq"],
                blocks["birth_ns"],
                blocks["requested_bytes"],
                rows_of(self._numbers.of(blocks["stack_id"])),
            )
        return found
