"""Everything that the verdict on a trace shows, as plain values."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..reading.integrity import Integrity
from ..reading.positions import Range
from ..reading.recorded import RecordedTrace
from ..reading.replay import Peak
from ..reading.sites import SiteBytes, group_stacks, top_sites
from ..reading.table import Table
from .advice import Advisor
from .evidence import DeviceEvidence
from .free_memory.inefficiencies import Inefficiency, InefficiencyEvidence, inefficiencies_of
from .free_memory.oom import OutOfMemory, visit_last_oom
from .leaks.growth import GrowingSite, StepGrowth, growing_sites, step_growth
from .leaks.judge import LeakVerdict, judge_leaks
from .usage.package_lines import WORTH_OPENING, Inside, look_inside
from .usage.roles import RoleShares, roles_before
from .walk import Visit, Walk


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
    total_bytes: int
    """Everything that was ever requested."""
    peak: Holding
    end: Holding
    growth: StepGrowth | None
    """None in a trace without steps."""
    leaks: LeakVerdict
    growing: tuple[GrowingSite, ...]
    inefficiencies: tuple[Inefficiency, ...]
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
    advisor: Advisor = field(repr=False, compare=False)
    """Which settings would have helped."""

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
    """Summarize a trace: all its devices or those named, with the `top` lines of each table. Raises TraceError for a
    device that the trace does not have, PositionError for a range without a whole step.

    of_leaks: only leaks are looked for. within: only leaks in these events.

    It takes one pass over the trace and one walk through the states that are looked at; memory is in proportion to live
    blocks and stacks, not to events.
    """
    asked = [trace.named_device(device) for device in devices]
    wanted = [device for device in trace.devices if not asked or device in asked]
    walk = Walk(trace)
    parts = [_DeviceParts(walk, trace, device, of_leaks, within) for device in wanted]
    walk.make()
    return Summary(
        trace=trace.path,
        file_bytes=trace.file_bytes,
        program=_program(trace.header),
        begin_ns=trace.begin_ns,
        seconds=_seconds(trace, trace.end_ns),
        steps=trace.positions.step_count,
        integrity=trace.integrity,
        unmatched_frees=trace.replay.unmatched_frees,
        last_look_was_cut=trace.ending.get("last_look") == "cut",
        devices=tuple(device.summary(top, of_leaks) for device in parts),
        advisor=Advisor(trace),
    )


class _DeviceParts:
    """What the summary of one device is made of."""

    def __init__(self, walk: Walk, trace: RecordedTrace, device: str, of_leaks: bool, within: Range | None) -> None:
        self._trace = trace
        self._device = device
        self._evidence = DeviceEvidence(walk, trace, device, within, with_growth=not of_leaks)
        self._peak = trace.replay.peak("allocated", device)
        self._at_end = walk.visit(trace.end_seq, lambda: _Level.before(trace, device, trace.end_seq))
        self._at_peak: Visit[_Level] | None = None
        if self._peak is not None:
            until = self._peak.seq + 1
            self._at_peak = walk.visit(until, lambda: _Level.before(trace, device, until))
        self._conditions = None if of_leaks else InefficiencyEvidence(walk, trace, device)
        self._refused = None if of_leaks else visit_last_oom(walk, trace, device)

    def summary(self, top: int, of_leaks: bool) -> DeviceSummary:
        """Return the summary, after the walk."""
        trace, device = self._trace, self._device
        end = self._at_end.result
        at_end = _holding(trace, end, None, top)
        return DeviceSummary(
            device=device,
            allocations=int(end.stacks["allocations"].sum()),
            total_bytes=int(end.stacks["total_bytes"].sum()),
            peak=at_end if self._at_peak is None else _holding(trace, self._at_peak.result, self._peak, top),
            end=at_end,
            growth=step_growth(trace, device),
            leaks=judge_leaks(self._evidence),
            growing=() if of_leaks else growing_sites(self._evidence, top),
            inefficiencies=() if self._conditions is None else inefficiencies_of(self._conditions),
            refused=None if self._refused is None else self._refused.result,
            levels=tuple(trace.timeline(120, device)["requested_bytes_max"].tolist()),
        )


@dataclass(frozen=True, eq=False)
class _Level:
    """What is live at a position: `Replay.stacks`, and by role."""

    stacks: Table
    roles: RoleShares

    @classmethod
    def before(cls, trace: RecordedTrace, device: str, until: int) -> _Level:
        return cls(trace.replay.stacks(until, device), roles_before(trace, device, until))


def _holding(trace: RecordedTrace, level: _Level, peak: Peak | None, top: int) -> Holding:
    """At a peak, or at the end of the trace."""
    event, time_ns = (None, trace.end_ns) if peak is None else (peak.seq, peak.time_ns)
    sites = group_stacks(trace.stacks, level.stacks, "line")
    shown = top_sites(trace.stacks, sites, top)
    total = int(sites["live_bytes"].sum())
    return Holding(
        bytes=total,
        blocks=int(sites["live_blocks"].sum()),
        event=event,
        seconds=_seconds(trace, time_ns),
        step=None if event is None else trace.positions.step_at(event),
        sites=shown,
        insides=tuple(
            look_inside(trace.stacks, level.stacks, site.stack_id, total)
            if site.bytes >= WORTH_OPENING * total
            else None
            for site in shown
        ),
        more_sites=int((sites["live_bytes"] > 0).sum()) - len(shown),
        more_bytes=total - sum(site.bytes for site in shown),
        roles=level.roles,
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
