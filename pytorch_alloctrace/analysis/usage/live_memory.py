"""Live memory of a device at a position or at its peak, and the memory that the whole run needs."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...errors import PositionError
from ...reading.modules import is_outside, module_depth
from ...reading.names import ROLES, UNKNOWN
from ...reading.positions import PEAKS, Position
from ...reading.recorded import RecordedTrace
from ...reading.sites import Site, SiteBytes, sites_of_blocks, top_sites
from ...reading.table import Table
from .composition import composition_of, library_calls_by_role, role_bytes_of_modules
from .package_lines import WORTH_OPENING, LibraryCall, PackageLines, find_package_lines, live_by_stack
from .peak import PeakMemory, peak_between, peak_memory


@dataclass(frozen=True)
class DeviceNeed:
    """Memory that a run needs on a device. Sizes in bytes."""

    reserved_bytes: int
    """Maximum bytes that torch reserved from the driver, including its cache."""
    outside_bytes: int | None
    """Maximum bytes used outside PyTorch (CUDA's context, libraries, other processes); None if unknown."""
    device_bytes: int | None

    @property
    def bytes(self) -> int | None:
        """Upper bound of the bytes needed: the two maxima may not coincide. None if unknown."""
        return None if self.outside_bytes is None else self.reserved_bytes + self.outside_bytes


def device_need(trace: RecordedTrace, device: str) -> DeviceNeed | None:
    """Return the need of the whole run; None if the allocator reports no segments."""
    peak = trace.replay.peak("reserved", device)
    if peak is None:
        return None
    samples = trace.driver_samples(device)
    # The recorder repeats each sample that shows a change. The first may fall into a call that allocates from the
    # driver, before torch's event: the new segment would count as memory outside torch.
    used = np.ma.filled(samples["used_bytes"], -1)
    is_repeated = (used == np.append(used[1:], -1)) & (used >= 0)
    outside = np.ma.compressed(samples["outside_bytes"][~is_repeated])
    return DeviceNeed(
        reserved_bytes=peak.bytes,
        outside_bytes=int(outside.max()) if len(outside) else None,
        device_bytes=trace.device_bytes(device),
    )


@dataclass(frozen=True, eq=False)
class LiveMemory:
    """Live memory of a device at a position. Sizes in bytes."""

    device: str
    at: Position
    by: str
    composition: Table
    seq: int | None
    """The state is the one after this event; None: the end of the trace."""
    time_ns: int
    step: int | None
    requested_bytes: int
    reserved_bytes: int | None
    """None if the allocator reports no segments."""
    package_lines: dict[int, PackageLines]
    """Package lines by row of the composition, if it is by line."""
    outside_lines: dict[int, Site]
    """Line that allocated most of each row outside of modules, by row of the composition."""
    roles_of_modules: dict[str, dict[str, int]]
    """Bytes by role of each row, if the composition is by module: see `role_bytes_of_modules`."""
    library_calls: dict[str, LibraryCall]
    """What the one line of user code calls that allocated nearly all memory of a role, by role."""
    unknown_sites: tuple[SiteBytes, ...]
    """Lines whose blocks have no known role, the most bytes first."""
    peak: PeakMemory | None = None
    need: DeviceNeed | None = None
    """Set if the position is the peak of the whole run."""
    since: Position | None = None
    """Range of the peak, if the position is one."""
    until: Position | None = None


def live_memory(
    trace: RecordedTrace,
    at: Position = "peak",
    *,
    by: str = "line",
    device: str | None = None,
    since: Position | None = None,
    until: Position | None = None,
) -> LiveMemory:
    """Return the live memory at a position or at the peak of a range. Default: the device with the highest peak."""
    if at in PEAKS:
        return _live_memory_at_peak(trace, at, by, device, since, until)
    device = trace.named_device(device) or next(iter(trace.known_devices), None)
    if device is None:
        raise PositionError("nothing is live: nothing was allocated in the trace")
    end = trace.first_event_after(at, device)
    is_end = end == trace.end_seq
    position: Position = "end" if is_end else end - 1
    blocks = trace.replay.live(end, device)
    composition = composition_of(trace, blocks, by, end)
    segments = trace.replay.segments(end, device)["total_bytes"]
    return LiveMemory(
        device=device,
        at=at,
        by=by,
        composition=composition,
        seq=None if is_end else end - 1,
        time_ns=trace.time_ns(position),
        step=trace.positions.step_at(max(end - 1, 0)),
        requested_bytes=int(blocks["requested_bytes"].sum()),
        reserved_bytes=int(segments.sum()) if len(segments) else None,
        package_lines=_list_package_lines(trace, composition, blocks, by),
        outside_lines=_list_outside_lines(trace, composition, by),
        roles_of_modules=role_bytes_of_modules(trace, blocks, by),
        library_calls=library_calls_by_role(trace, blocks),
        unknown_sites=_list_unknown_sites(trace, blocks),
    )


def _list_package_lines(trace: RecordedTrace, composition: Table, blocks: Table, by: str) -> dict[int, PackageLines]:
    if by != "line":
        return {}
    stacks = live_by_stack(blocks)
    total = int(composition["live_bytes"].sum())
    large_rows = np.flatnonzero(composition["share"] >= WORTH_OPENING).tolist()
    stack_ids = composition["stack_id"]
    package_lines = {row: find_package_lines(trace.stacks, stacks, int(stack_ids[row]), total) for row in large_rows}
    return {row: lines for row, lines in package_lines.items() if lines is not None}


def _list_outside_lines(trace: RecordedTrace, composition: Table, by: str) -> dict[int, Site]:
    if module_depth(by) is None:
        return {}
    rows = zip(composition["site"].tolist(), composition["stack_id"].tolist(), strict=True)
    return {number: Site.of_stack(trace.stacks, stack) for number, (name, stack) in enumerate(rows) if is_outside(name)}


def _list_unknown_sites(trace: RecordedTrace, blocks: Table) -> tuple[SiteBytes, ...]:
    sites = sites_of_blocks(trace.stacks, blocks.take(blocks["role"] == ROLES.index(UNKNOWN)))
    return top_sites(trace.stacks, sites, len(sites))


def highest_of_ranges(
    trace: RecordedTrace,
    ranges: Sequence[tuple[Position | None, Position | None]],
    at: Position = "peak",
    *,
    by: str = "line",
    device: str | None = None,
) -> LiveMemory:
    """Return `live_memory` at the highest peak of several ranges; ranges without allocations are left out."""
    if len(ranges) == 1 or at not in PEAKS:
        return live_memory(trace, at, by=by, device=device, since=ranges[0][0], until=ranges[0][1])
    measure = "reserved" if at == "peak:reserved" else "allocated"
    peaks = []
    for since, until in ranges:
        with contextlib.suppress(PositionError):
            within = trace.range(since, until, device=device)
            peaks.append((peak_between(trace, within, measure, device=device), since, until))
    if not peaks:
        raise PositionError(f"there is no peak of {device or 'any device'} in these {len(ranges):,} ranges")
    highest, since, until = max(peaks, key=lambda entry: entry[0].bytes)
    return live_memory(trace, at, by=by, device=highest.device, since=since, until=until)


def _live_memory_at_peak(
    trace: RecordedTrace, at: Position, by: str, device: str | None, since: Position | None, until: Position | None
) -> LiveMemory:
    measure = "reserved" if at == "peak:reserved" else "allocated"
    if since is None and until is None:
        peak = peak_memory(trace, measure, device=device)
    else:
        peak = peak_between(trace, trace.range(since, until, device=device), measure, device=device)
    blocks = trace.replay.live(peak.seq + 1, peak.device)
    composition = composition_of(trace, blocks, by, peak.seq + 1)
    return LiveMemory(
        device=peak.device,
        at=at,
        by=by,
        composition=composition,
        seq=peak.seq,
        time_ns=peak.time_ns,
        step=peak.step,
        requested_bytes=peak.requested_bytes,
        reserved_bytes=peak.reserved_bytes,
        package_lines=_list_package_lines(trace, composition, blocks, by),
        outside_lines=_list_outside_lines(trace, composition, by),
        roles_of_modules=role_bytes_of_modules(trace, blocks, by),
        library_calls=library_calls_by_role(trace, blocks),
        unknown_sites=_list_unknown_sites(trace, blocks),
        peak=peak,
        need=device_need(trace, peak.device) if since is None and until is None else None,
        since=since,
        until=until,
    )
