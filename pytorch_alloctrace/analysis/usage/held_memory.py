"""Memory of a device by the objects of the program that held it at an object scan."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ...errors import CompactedError, PositionError
from ...reading.names import ROLES
from ...reading.positions import Position
from ...reading.recorded import Held, RecordedTrace
from ...reading.replay import Peak
from ...reading.sites import SiteBytes, sites_of_blocks, top_sites
from ...reading.table import Table
from ..evidence import DeviceEvidence
from ..leaks.leak import UNUSED, Holder, NoHolder
from ..leaks.referrers import explain_without_blocks, find_holder, find_step, make_holder
from .held_rows import GRADIENT, MODEL_ROLES, HeldRow, find_model, merge_rows
from .peak import PeakMemory, peak_memory
from .roles import RoleShares

MIN_PEAK_SHARE = 0.25
"""Minimum share of a peak that an object holds to be named as its cause."""
MIN_COLLECTED_SHARE = 0.25
"""Minimum bytes that a container held at its scan, as a share of those of the line at the peak."""
MIN_COLLECTED = 4
"""Minimum number of items of a container that collects the blocks of a line."""
_RECORDED_ROLES = (*MODEL_ROLES, "optimizer state")
_EXPLAINED_ROLES = (*_RECORDED_ROLES, "activation", "library workspace")
"""Roles of blocks that need no holder: models, optimizers and backward hold them."""


WIDE_TYPES = ("float64", "int64")
MIN_WIDE_SHARE = 0.2


@dataclass(frozen=True)
class WideTensors:
    """Tensors with elements of 8 bytes that one object holds."""

    holder: Holder
    dtype: str
    """One of `WIDE_TYPES`."""
    bytes: int
    """Requested bytes on the device."""


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
    """The objects that the scan recorded, similar ones merged, the most bytes first."""
    unheld_sites: tuple[SiteBytes, ...]
    """Lines that allocated live blocks that none of the objects held, the most bytes first.

    Only workspaces of libraries, which no object holds, if the scan has the addresses of a part of the blocks.
    """
    unheld_roles: dict[str, int]
    """Bytes of live blocks of models and optimizers that none of the objects held, by role."""
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
    scans = _list_scans(trace)
    if not scans:
        return explain_without_blocks(trace, has_scans=False)
    position = peak.seq if at is None else at
    target = trace.first_event_after(position, peak.device)
    event = _select_scan(trace, scans if at is None else [event for event in scans if event <= target], target)
    if event is None:
        raise PositionError(
            f"the trace has no object scan and its memory up to {'the end' if at is None else at}: "
            f"the first scan is at event {min(scans):,}"
        )
    live = trace.replay.live(event, peak.device)
    live_bytes = int(live["requested_bytes"].sum())
    is_held = np.isin(live["address"], np.concatenate([held.addresses for held in scans[event]]))
    unheld, live = live.take(~is_held), live.take(is_held)
    sites = sites_of_blocks(trace.stacks, unheld)
    unheld_sites = top_sites(trace.stacks, sites, len(sites))
    sampled = [held.addresses for held in scans[event] if len(held.addresses) < held.count]
    if sampled:
        unheld_sites = tuple(site for site in unheld_sites if site.site.is_workspace)
        roles = np.unique(live["role"][np.isin(live["address"], np.concatenate(sampled))])
        unheld = unheld.take(~np.isin(unheld["role"], roles))
    unheld_roles = {
        role: int(unheld["requested_bytes"][unheld["role"] == ROLES.index(role)].sum()) for role in _RECORDED_ROLES
    }
    step, time_ns = find_step(trace, event), trace.time_ns(event - 1)
    return HeldMemory(
        peak.device,
        event,
        step,
        (time_ns - trace.begin_ns) / 1e9,
        (time_ns - trace.time_ns(position, device=peak.device)) / 1e9,
        live_bytes,
        list_rows(trace, scans[event], live, live_bytes),
        unheld_sites,
        {role: size for role, size in unheld_roles.items() if size},
        peak,
    )


def find_peak_holders(trace: RecordedTrace, device: str, peak: Peak, shares: RoleShares) -> tuple[HeldRow, ...]:
    """Return what held the most of a peak besides models, optimizers and activations, if that is `MIN_PEAK_SHARE`.

    These are the local variables that their functions do not read any more, else one object. The rows are of the object
    scan nearest to the peak, and only of blocks that are live at the scan and at the peak. Returns nothing if the roles
    exclude such objects, before any memory is read.

    Args:
        trace: Trace.
        device: Device as torch spells it.
        peak: Peak of allocated bytes of the device.
        shares: Live memory at the peak by role.
    """
    total = sum(part.bytes for part in shares.roles)
    unexplained = sum(part.bytes for part in shares.roles if part.role not in _EXPLAINED_ROLES)
    if not total or unexplained < MIN_PEAK_SHARE * total or not (scans := _list_scans(trace)):
        return ()
    event = _select_scan(trace, scans, peak.seq + 1)
    if event is None:
        return ()
    try:
        at_scan, at_peak = (trace.replay.live(until, device) for until in (event, peak.seq + 1))
    except CompactedError:
        return ()
    _, in_scan, in_peak = np.intersect1d(at_scan["address"], at_peak["address"], return_indices=True)
    is_same = at_scan["alloc_seq"][in_scan] == at_peak["alloc_seq"][in_peak]
    both = at_peak.take(np.sort(in_peak[is_same]))
    both = both.take(~np.isin(both["role"], [ROLES.index(role) for role in _EXPLAINED_ROLES]))
    rows = list_rows(trace, scans[event], both, total, has_all=False)
    unused = tuple(row for row in rows if row.holder.through == UNUSED)
    if sum(row.bytes for row in unused) >= MIN_PEAK_SHARE * total:
        return unused
    return rows[:1] if rows and rows[0].bytes >= MIN_PEAK_SHARE * total else ()


def find_collection(evidence: DeviceEvidence, peak: Peak, site: SiteBytes) -> HeldRow | None:
    """Return the container that held the blocks of a line at object scans, if these or others of the same stacks.

    `site`: the line, with its blocks at the peak. Backward holds the blocks of a graph, not a container.
    """
    if not evidence.parts:
        return None
    lines = evidence.trace.stacks.line_numbers
    stacks = np.flatnonzero(lines == lines[site.stack_id]).tolist()
    try:
        live = evidence.trace.replay.live(peak.seq + 1, evidence.device, stacks)
    except CompactedError:
        return None
    holder = find_holder(evidence, tuple(stacks), live)
    is_collection = holder is not None and any(held.length >= MIN_COLLECTED for held in holder.containers)
    if holder is None or not is_collection or holder.through:
        return None
    scan = [held for held in evidence.trace.held if (held.event, held.holder) == (holder.event, holder.names[0])]
    if sum(held.bytes for held in scan) < MIN_COLLECTED_SHARE * site.bytes:
        return None
    at_scan = evidence.trace.replay.live(holder.event, evidence.device)
    collected = at_scan.take(np.isin(at_scan["address"], np.concatenate([held.addresses for held in scan])))
    if 2 * int(np.isin(collected["role"], [ROLES.index(role) for role in _EXPLAINED_ROLES]).sum()) > len(collected):
        return None
    return HeldRow(site.bytes, site.blocks, True, holder, 1, "")


def find_line_holders(trace: RecordedTrace, device: str, peak: Peak, sites: Sequence[SiteBytes]) -> list[str]:
    """Return for each line the name of the objects that held half or more of its memory at a peak; "" if unknown.

    Only blocks that are live at the peak and at an object scan count: the nearest one, for other lines the last one.
    """
    names = [""] * len(sites)
    scans = _list_scans(trace)
    events = [_select_scan(trace, scans, target) for target in (peak.seq + 1, trace.end_seq)]
    if events[0] is None:
        return names
    at_peak = trace.replay.live(peak.seq + 1, device)["alloc_seq"]
    for event in dict.fromkeys(event for event in events if event is not None):
        live = trace.replay.live(event, device)
        live = live.take(np.isin(live["alloc_seq"], at_peak))
        lines, total = trace.stacks.line_numbers[live["stack_id"]], int(live["requested_bytes"].sum())
        for number, site in enumerate(sites):
            of_line = live.take(lines == trace.stacks.line_numbers[site.stack_id])
            if len(of_line) and not names[number]:
                rows = list_rows(trace, scans[event], of_line, total, has_all=False)[:1]
                names[number] = next((row.holder.name for row in rows if 2 * row.bytes >= site.bytes), "")
    return names


def find_wide_tensors(trace: RecordedTrace, device: str, peak: Peak, total: int) -> WideTensors | None:
    """Return the object with the most bytes in elements of 8 bytes at the scan nearest to a peak of `total` bytes.

    None if it has less than `MIN_WIDE_SHARE` of the peak. Memory is read only if an object has as much at a scan.
    """
    if not any(held.dtype in WIDE_TYPES and held.bytes >= MIN_WIDE_SHARE * total for held in trace.held):
        return None
    event = _select_scan(trace, _list_scans(trace), peak.seq + 1)
    scan = [held for held in trace.held if held.event == event and held.dtype in WIDE_TYPES and len(held.addresses)]
    if event is None or not scan:
        return None
    try:
        live, at_peak = (trace.replay.live(until, device) for until in (event, peak.seq + 1))
    except CompactedError:
        return None
    live = live.take(np.isin(live["alloc_seq"], at_peak["alloc_seq"]))
    measured = [(measure(held, live)[0], held) for held in scan]
    size, largest = max(measured, key=lambda row: row[0])
    if size < MIN_WIDE_SHARE * total:
        return None
    return WideTensors(make_holder(trace, [largest], find_step(trace, event), 1.0), largest.dtype, size)


def _list_scans(trace: RecordedTrace) -> dict[int, list[Held]]:
    """Return the objects of each scan that hold blocks, by event."""
    scans: dict[int, list[Held]] = {}
    for held in trace.held:
        if len(held.addresses) and 0 < held.event <= trace.end_seq:  # the others were recorded for autograd nodes
            scans.setdefault(held.event, []).append(held)
    return scans


def _select_scan(trace: RecordedTrace, scans: Iterable[int], target: int) -> int | None:
    """Return the scan nearest to an event of those at which the memory is known."""
    readable_scans = (event for event in scans if trace.is_known_at(event - 1))
    return min(readable_scans, key=lambda event: abs(event - target), default=None)


def list_rows(
    trace: RecordedTrace, scan: Sequence[Held], live: Table, total: int, *, has_all: bool = True
) -> tuple[HeldRow, ...]:
    """Return the objects of a scan that hold some of the live blocks, similar ones merged, the most bytes first.

    has_all: whether `live` has all blocks of the device that were live at the scan.
    """
    addresses = live["address"].tolist()
    block_names = trace.block_names(addresses, live["alloc_seq"].tolist(), trace.end_seq)
    names = dict(zip(addresses, block_names, strict=True))
    rows, models = [], dict[str, str]()
    for held in scan:
        size, blocks, is_estimated = measure(held, live)
        is_estimated |= not has_all and len(held.addresses) < held.count  # the other blocks may not be in `live`
        if size:
            holder = make_holder(trace, [held], find_step(trace, held.event), min(size / max(total, 1), 1.0))
            models[held.name] = model = find_model(held.name, names.get(held.addresses[0], ""))
            rows.append(HeldRow(size, blocks, is_estimated, holder, 1, _find_role(held, live), model))
    # Gradients have no names of their own.
    for number, row in enumerate(rows):
        if row.role == "gradient" and not row.model:
            parameter = row.holder.name.removesuffix(GRADIENT)
            rows[number] = dataclasses.replace(row, model=models.get(parameter, ""))
    return tuple(sorted(merge_rows(rows, total), key=lambda row: -row.bytes))


def _find_role(held: Held, live: Table) -> str:
    """Return `HeldRow.role` of an object."""
    if held.name.endswith(GRADIENT):
        return "gradient"
    roles = np.unique(live["role"][np.isin(live["address"], held.addresses)])
    return ROLES[roles[0]] if len(roles) == 1 else ""


def measure(held: Held, live: Table) -> tuple[int, int, bool]:
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
