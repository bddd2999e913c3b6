"""Everything that the verdict on a trace shows, as plain values."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..reading.integrity import Integrity
from ..reading.positions import Range
from ..reading.recorded import RecordedTrace
from ..reading.replay import Peak
from ..reading.sites import SiteBytes, group_stacks, top_sites
from .ahead import asks_of
from .free_memory.conditions import Condition, conditions_by_device
from .free_memory.oom import OutOfMemory, find_ooms
from .leaks.growth import GrowingSite, StepGrowth, growing_sites, step_growth
from .leaks.judge import LeakVerdict, find_leaks
from .usage.inside import WORTH_OPENING, Inside, look_inside
from .usage.roles import RoleShares, roles_of


class LeaksAnswer(enum.Enum):
    """What a trace says about leaks."""

    FOUND = "found"
    NONE = "none"
    UNKNOWN = "unknown"
    """Too short to judge, or a part of the trace is missing."""


@dataclass(frozen=True)
class Program:
    """What the trace's header says about the program; empty if the header was lost to damage."""

    path: str
    arguments: tuple[str, ...]
    working_directory: str
    torch: str
    cuda: str
    python: str
    host: str
    process: int
    rank: str
    recorded_devices: tuple[str, ...]
    stacks: str
    """The option of `enable`: "python" or "none"."""


@dataclass(frozen=True)
class Holding:
    """What is live at one position on one device, by line of user code. Bytes are requested bytes."""

    bytes: int
    blocks: int
    event: int | None
    """The event that reached it; None for the end of the trace."""
    seconds: float
    """Since the recording began."""
    step: int | None
    sites: tuple[SiteBytes, ...]
    """The lines that hold the most."""
    insides: tuple[Inside | None, ...]
    """For each of these, what is inside the package that it calls."""
    more_sites: int
    """Further lines that hold something."""
    more_bytes: int
    """What these hold."""
    roles: RoleShares
    """What is live, by role."""


@dataclass(frozen=True)
class DeviceSummary:
    """One device; `device` in torch's spelling."""

    device: str
    allocations: int
    bytes_allocated: int
    """Everything that was ever requested."""
    peak: Holding
    end: Holding
    growth: StepGrowth | None
    """None in a trace without steps."""
    leaks: LeakVerdict
    growing: tuple[GrowingSite, ...]
    conditions: tuple[Condition, ...]
    """What else is wrong, most bytes first."""
    refused: OutOfMemory | None
    """The last request that ran out of memory."""
    levels: tuple[int, ...]
    """Live bytes over time: the highest of each of equal intervals."""


@dataclass(frozen=True)
class Summary:
    """A whole trace."""

    trace: str
    file_bytes: int
    program: Program
    begin_ns: int
    """Nanoseconds since 1970-01-01 UTC."""
    seconds: float
    steps: int
    integrity: Integrity
    unmatched_frees: int
    """Frees of blocks that were live before the recording began, or whose alloc was lost."""
    last_look_was_cut: bool
    """When the recording ended, the look at what holds tensors could not see all of the program's objects."""
    devices: tuple[DeviceSummary, ...]
    """Highest peak first."""

    def is_small(self, device: DeviceSummary) -> bool:
        """Whether a device hardly counts: its peak is below a twentieth of the largest device's, and nothing leaks."""
        return device.peak.bytes * 20 < self.devices[0].peak.bytes and not device.leaks.leaks

    @property
    def leaks_answer(self) -> LeaksAnswer:
        """Whether there is a leak that matters: in what could be read of the trace there is one, or the whole trace
        was judged and has none; else this is unknown. A small device need not be judged."""
        if any(not leak.minor for device in self.devices for leak in device.leaks.leaks):
            return LeaksAnswer.FOUND
        return LeaksAnswer.NONE if self.leaks_are_known else LeaksAnswer.UNKNOWN

    @property
    def leaks_are_known(self) -> bool:
        """Whether the whole trace could be read and judged. A small device need not be judged."""
        unjudged = any(not device.leaks.decided and not self.is_small(device) for device in self.devices)
        return bool(self.devices) and self.integrity.whole and not unjudged


def summarize(
    trace: RecordedTrace,
    *,
    top: int = 10,
    devices: Sequence[str] = (),
    of_leaks: bool = False,
    within: Range | None = None,
) -> Summary:
    """Summarizes a trace: all its devices or those named, with the `top` lines of each table. Raises TraceError for a
    device that the trace does not have.

    of_leaks: only leaks are looked for. within: only leaks in these events.

    It takes one pass over the trace and some twenty states of the replay per device; memory is in proportion to live
    blocks and stacks, not to events.
    """
    asked = [trace.named_device(device) for device in devices]
    wanted = [device for device in trace.devices if not asked or device in asked]
    asks = asks_of(trace, wanted, with_growth=not of_leaks) if within is None else []
    with trace.replay.asked_ahead(asks):
        # First what needs none of these states, then what needs few.
        ends = {device: _holding(trace, device, None, top) for device in wanted}
        conditions = conditions_by_device(trace, () if of_leaks else wanted)
        trace.replay.let_go()
        found = tuple(
            _device(trace, device, top, of_leaks, within, ends[device], conditions.get(device, ())) for device in wanted
        )
    return Summary(
        trace=trace.path,
        file_bytes=trace.file_bytes,
        program=_program(trace.header),
        begin_ns=trace.begin_ns,
        seconds=_seconds(trace, trace.end_ns),
        steps=trace.positions.step_count,
        integrity=trace.integrity,
        unmatched_frees=trace.unmatched_frees,
        last_look_was_cut=trace.ending.get("last_look") == "cut",
        devices=found,
    )


def _device(
    trace: RecordedTrace,
    device: str,
    top: int,
    of_leaks: bool,
    within: Range | None,
    end: Holding,
    conditions: tuple[Condition, ...],
) -> DeviceSummary:
    totals = trace.stack_totals(device=device)
    peak = trace.replay.peak("allocated", device)
    found = DeviceSummary(
        device=device,
        allocations=int(totals["allocations"].sum()),
        bytes_allocated=int(totals["bytes"].sum()),
        peak=_holding(trace, device, peak, top),
        end=end,
        growth=step_growth(trace, device),
        leaks=find_leaks(trace, device, within),
        growing=() if of_leaks else growing_sites(trace, device, top),
        conditions=conditions,
        refused=None if of_leaks else next(iter(find_ooms(trace, device=device, last=1)), None),
        levels=tuple(int(level) for level in trace.timeline(120, device=device)["requested_max"]),
    )
    trace.replay.forget(device)
    return found


def _holding(trace: RecordedTrace, device: str, peak: Peak | None, top: int) -> Holding:
    """At a peak, or at the end of the trace."""
    event, time_ns = (None, trace.end_ns) if peak is None else (peak.seq, peak.time_ns)
    held = trace.stack_totals("end" if event is None else event, device=device)
    sites = group_stacks(trace.stacks, held, "line")
    shown = top_sites(sites, top)
    total = int(sites["live_bytes"].sum())
    return Holding(
        bytes=total,
        blocks=int(sites["live_blocks"].sum()),
        event=event,
        seconds=_seconds(trace, time_ns),
        step=None if event is None else trace.positions.step_at(event),
        sites=shown,
        insides=tuple(
            look_inside(trace.stacks, held, site.stack_id, total) if site.bytes >= WORTH_OPENING * total else None
            for site in shown
        ),
        more_sites=int((sites["live_bytes"] > 0).sum()) - len(shown),
        more_bytes=total - sum(site.bytes for site in shown),
        roles=roles_of(trace, device, "end" if event is None else event),
    )


def _seconds(trace: RecordedTrace, time_ns: int) -> float:
    return max(time_ns - trace.begin_ns, 0) / 1e9


def _program(header: dict[str, Any]) -> Program:
    # A damaged header may hold anything: every value is converted to what it should be.
    def text(name: str) -> str:
        value = header.get(name)
        return "" if value is None else str(value)

    def texts(name: str) -> tuple[str, ...]:
        value = header.get(name)
        return tuple(str(item) for item in value) if isinstance(value, list) else ()

    options = header.get("options")
    process = header.get("process")
    return Program(
        path=text("program"),
        arguments=texts("arguments"),
        working_directory=text("working_directory"),
        torch=text("torch"),
        cuda=text("cuda"),
        python=text("python"),
        host=text("host"),
        process=process if isinstance(process, int) else 0,
        rank=text("rank"),
        recorded_devices=texts("devices"),
        stacks=str(options.get("stacks", "")) if isinstance(options, dict) else "",
    )
