"""Live memory of each device over time, by role and by line: the layers of the page's stacked timelines."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...reading.names import ROLES, ROLES_SHOWN
from ...reading.recorded import RecordedTrace
from .columns import MISSING, Columns
from .maps import Holdings

_POINTS = 750
"""Number of intervals. A served page requests those of the visible part of the run."""
_MAX_LINES = 30


@dataclass(frozen=True)
class Lines:
    """The lines of a device whose memory over time the page shows."""

    stack_ids: list[int]
    """A stack of each line, the line with the most bytes at any snapshot first."""
    of_stack: npt.NDArray[np.int64]
    """By stack: the index of its line in `stack_ids`, or their number for all other lines together."""


def choose_lines(trace: RecordedTrace, holdings: Holdings) -> Lines:
    """Return the lines that hold the most bytes at any snapshot of the page."""
    table = holdings.table[holdings.table["stack_id"] >= 0]
    line_of_stack = trace.stacks.group("line")
    lines = line_of_stack[table["stack_id"].to_numpy(np.int64)]
    by_snapshot = table.assign(line=lines).groupby(["line", "snapshot"], as_index=False)["bytes"].sum()
    max_bytes = by_snapshot.groupby("line")["bytes"].max().sort_values(ascending=False, kind="stable")
    chosen = max_bytes.index.to_numpy(np.int64)[:_MAX_LINES]
    of_stack = np.full(len(line_of_stack), len(chosen), np.int64)
    for index, line in enumerate(chosen.tolist()):
        of_stack[line_of_stack == line] = index
    stack_by_line = dict(zip(lines.tolist(), table["stack_id"].tolist(), strict=True))
    return Lines([int(stack_by_line[line]) for line in chosen.tolist()], of_stack)


def pack_layers(
    trace: RecordedTrace, lines: Mapping[str, Lines], columns: Columns, begin_ns: int, end_ns: int
) -> dict[str, Any]:
    """Return the memory of each role and line in equal intervals from `begin_ns` to `end_ns`, after the begin.

    Of each layer: its bytes after the event with the most bytes on the device in the interval, the distance of its own
    maximum from them, and its own minimum. Layers without bytes are None; the last line is all other lines together.
    """
    site_count = max((len(device.stack_ids) for device in lines.values()), default=0) + 1
    of_stack = {
        # The last site has the other lines of all devices.
        name: np.where(device.of_stack == len(device.stack_ids), site_count - 1, device.of_stack)
        for name, device in lines.items()
    }
    # Times have 64 bits, and a corrupt trace may end at the largest one.
    borders = [min(trace.begin_ns + time_ns, sys.maxsize) for time_ns in (begin_ns, end_ns)]
    timelines = trace.group_timelines(_POINTS, borders[0], borders[1], of_stack, site_count)
    known_ns = trace.integrity.compacted_until_ns - trace.begin_ns if trace.integrity.compacted_until else 0
    is_unknown = np.linspace(begin_ns, end_ns, _POINTS, endpoint=False).astype(np.int64) < known_ns
    devices = {}
    for name, device in lines.items():
        timeline = timelines[name]

        def pack(group: int, timeline: Any = timeline) -> list[list[int]] | None:
            at_peak, highest = timeline.at_peak[:, group], timeline.highest[:, group]
            if not highest.any():
                return None
            return [
                columns.add(at_peak),
                columns.add(highest - at_peak, differences=False),
                columns.add(timeline.lowest[:, group]),
            ]

        line_groups = [*range(len(device.stack_ids)), site_count - 1]
        devices[name] = {
            "seq": columns.add(np.where(is_unknown, MISSING, timeline.peak_seq)),
            "roles": [pack(ROLES.index(role)) for role in ROLES_SHOWN],
            "lines": [pack(len(ROLES) + site) for site in line_groups],
        }
    return {"points": _POINTS, "begin": begin_ns, "end": end_ns, "devices": devices}
