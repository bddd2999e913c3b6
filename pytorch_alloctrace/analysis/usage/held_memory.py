"""Memory of a device by the objects of the program that held it at an object scan."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...errors import PositionError
from ...reading.positions import Position
from ...reading.recorded import Held, RecordedTrace
from ...reading.sites import SiteBytes, sites_of_blocks, top_sites
from ...reading.table import Table
from ..leaks.leak import Holder, NoHolder
from ..leaks.referrers import explain_without_blocks, find_step, make_holder
from .peak import PeakMemory, peak_memory


@dataclass(frozen=True)
class HeldRow:
    bytes: int
    """Requested bytes on the device."""
    blocks: int
    """Number of blocks on the device."""
    is_estimated: bool
    """True if bytes and blocks are estimated from a sample: of many blocks, some are on other devices."""
    holder: Holder
    """The object. Its `share` is that of the device's live bytes."""


@dataclass(frozen=True, eq=False)
class HeldMemory:
    """Memory of a device at an object scan. Bytes are requested bytes."""

    device: str
    event: int
    """Number of the next event at the time of the scan."""
    step: int | None
    """Step of the scan; None in the last step of the run and in a trace without steps."""
    seconds: float
    """Time of the scan since the recording began."""
    distance_seconds: float
    """Seconds from the peak, or from the given position, to the scan; negative if the scan is earlier."""
    live_bytes: int
    rows: tuple[HeldRow, ...]
    """The objects that the scan recorded, the most bytes first."""
    unheld_sites: tuple[SiteBytes, ...]
    """Lines that allocated live blocks that none of the objects held, the most bytes first.

    Only workspaces of libraries, which no object holds, if the scan has the addresses of a part of the blocks.
    """
    peak: PeakMemory
    """Peak of the device."""

    @property
    def unheld_bytes(self) -> int:
        """Live bytes that none of the objects held."""
        return max(self.live_bytes - sum(row.bytes for row in self.rows), 0)

    @property
    def unexplained_bytes(self) -> int:
        """Those of `unheld_bytes` that are not in workspaces of libraries."""
        workspaces = sum(site.bytes for site in self.unheld_sites if site.site.is_workspace)
        return max(self.unheld_bytes - workspaces, 0)


def find_held_memory(trace: RecordedTrace, at: Position | None, device: str | None) -> HeldMemory | NoHolder:
    """Return what held the memory of a device at the object scan nearest to its peak, or the last one up to `at`.

    Without a device: that with the highest peak. Returns the reason if the trace has no scan. Raises PositionError if
    there is no scan up to `at`, or nothing was allocated.
    """
    peak = peak_memory(trace, "allocated", device=device)
    scans: dict[int, list[Held]] = {}
    for held in trace.held:
        if len(held.addresses) and 0 < held.event <= trace.end_seq:  # the others were recorded for autograd nodes
            scans.setdefault(held.event, []).append(held)
    if not scans:
        return explain_without_blocks(trace, has_scans=False)
    position = peak.seq if at is None else at
    target = trace.first_event_after(position, peak.device)
    readable_scans = [event for event in scans if trace.is_known_at(event - 1) and (at is None or event <= target)]
    if not readable_scans:
        raise PositionError(
            f"the trace has no object scan and its memory up to {'the end' if at is None else at}: "
            f"the first scan is at event {min(scans):,}"
        )
    event = min(readable_scans, key=lambda event: abs(event - target))
    live = trace.replay.live(event, peak.device)
    live_bytes = int(live["requested_bytes"].sum())
    is_held = np.isin(live["address"], np.concatenate([held.addresses for held in scans[event]]))
    sites = sites_of_blocks(trace.stacks, live.take(~is_held))
    unheld_sites = top_sites(trace.stacks, sites, len(sites))
    if any(len(held.addresses) < held.count for held in scans[event]):
        unheld_sites = tuple(site for site in unheld_sites if site.site.is_workspace)
    live = live.take(is_held)
    amounts = [(*_measure(held, live), held) for held in scans[event]]
    step, time_ns = find_step(trace, event), trace.time_ns(event - 1)
    rows = [
        HeldRow(size, blocks, is_estimated, make_holder(trace, [held], step, min(size / max(live_bytes, 1), 1.0)))
        for size, blocks, is_estimated, held in sorted(amounts, key=lambda amount: -amount[0])
        if size
    ]
    return HeldMemory(
        peak.device,
        event,
        step,
        (time_ns - trace.begin_ns) / 1e9,
        (time_ns - trace.time_ns(position, device=peak.device)) / 1e9,
        live_bytes,
        tuple(rows),
        unheld_sites,
        peak,
    )


def _measure(held: Held, live: Table) -> tuple[int, int, bool]:
    """Return the bytes and blocks of a device that an object held, and whether both are estimated.

    `live`: blocks of the device. If all memory of the object is on the device, the scan has its bytes; else they follow
    from the addresses, which are a sample of many.
    """
    is_held = np.isin(live["address"], held.addresses)
    matches = int(is_held.sum())
    if matches == len(held.addresses):
        return held.bytes, held.count, False
    scale = held.count / len(held.addresses)
    size = round(scale * int(live["requested_bytes"][is_held].sum()))
    return min(size, held.bytes), min(round(scale * matches), held.count), scale > 1
