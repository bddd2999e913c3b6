"""The rank summary: plain values of one trace, at most 1 MB for a run of any length.

A summary is a few kilobytes: the origin of the trace, and the figures by which ranks are compared, equal to those of
the verdict on the single trace. Its detail, needed for a few ranks only, has the live bytes at the ends of steps and
the lines of the peak.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import UserPathError
from ...reading.integrity import open_at_once
from ...reading.recorded import RecordedTrace
from ...reading.sites import Site
from ...reading.source_code import short_filename
from ...reading.timeline import MEASURED
from ..free_memory.oom import find_ooms
from ..summary import DeviceSummary, Summary, summarize
from ..usage.held_memory import find_line_holders

CUDA = "cuda"
"""Kind of the CUDA device of a rank, independent of its number."""
MAX_WORLD_SIZE = 999_999
"""Maximum number of ranks: an untrusted file must not choose the length of the list of missing ranks."""
MAX_POINTS = 1000
MIN_HELD_BYTES = 1 << 20
"""Minimum bytes of a line for a search of what holds them."""
MIN_TIMED_STEPS = 10
"""Minimum number of times between the ends of steps that show their noise."""
_MAX_DEVICES = 16
_MAX_LINES = 100
_MAX_LEAKS = 8
_MAX_TEXT = 400
_JOB_VARIABLES = (
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "MASTER_ADDR",
    "MASTER_PORT",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
)


@dataclass(frozen=True)
class RankLeak:
    """A leak that is not minor, as in `analysis.leaks.leak.Leak`."""

    site: Site
    kind: str
    unit: str
    rate: float
    """Allocated bytes per unit."""
    bytes: int
    confidence: float
    onset: float
    units_judged: int
    holder: str


@dataclass(frozen=True)
class DeviceFigures:
    kind: str
    """"cuda" (the rank's own CUDA device), "cuda:3" (another CUDA device that the rank uses), "cpu" or "pinned"."""
    device: str
    peak: int
    """Allocated bytes at the peak."""
    peak_step: int | None
    reserved: int | None
    """Maximum reserved bytes; None if the allocator reports no segments."""
    live: int | None
    """Requested bytes at the end of the last step; None without steps."""
    seconds_per_step: float | None
    """Median; None with fewer than two steps."""
    seconds_spread: tuple[float, float] | None
    """Tenth and ninetieth percentile; None with fewer than `MIN_TIMED_STEPS` times."""
    is_small: bool
    """Whether the device is negligible beside the rank's other devices (see `Summary.is_small`)."""
    refused: int | None
    """Bytes requested by the last failed allocation."""
    refused_step: int | None
    refused_site: Site | None
    judged: bool
    decided: bool
    unexplained: Site | None
    """Line for which the leak verdict is inconclusive."""
    leaks: tuple[RankLeak, ...]
    """At most `_MAX_LEAKS` leaks that are not minor, the most urgent first."""
    leak_bytes_per_unit: float
    """Bytes per unit of all leaks that are not minor."""

    @property
    def leak_unit(self) -> str:
        return self.leaks[0].unit if self.leaks else ""


@dataclass(frozen=True)
class RankSummary:
    path: str
    unreadable: str
    """Why the trace cannot be read; "" if it can."""
    session: str
    """Random id of the trace in hexadecimal."""
    program: str
    working_directory: str
    host: str
    process: int
    parent_process: int
    rank: int | None
    world_size: int | None
    job: tuple[str, ...]
    """The launcher's identification of the run, equal on all ranks; empty if there is none."""
    begin_ns: int
    end_ns: int
    state: str
    integrity: str
    is_truncated: bool
    has_gaps: bool
    is_complete: bool
    is_killed: bool
    """Whether the recording was not ended regularly; the spool may have saved all events."""
    is_running: bool
    events: int
    """Number of readable events, without compacted events."""
    steps: int
    last_step: int | None
    devices: tuple[DeviceFigures, ...]
    leaks_known: bool
    detail: Detail | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if (self.world_size or 0) > MAX_WORLD_SIZE:
            raise ValueError(f"{self.world_size} ranks")

    @classmethod
    def of_unreadable(cls, path: str, why: str) -> RankSummary:
        return cls(
            path=path,
            unreadable=why,
            session="",
            program="",
            working_directory="",
            host="",
            process=0,
            parent_process=0,
            rank=None,
            world_size=None,
            job=(),
            begin_ns=0,
            end_ns=0,
            state="unreadable",
            integrity=why,
            is_truncated=False,
            has_gaps=False,
            is_complete=False,
            is_killed=False,
            is_running=False,
            events=0,
            steps=0,
            last_step=None,
            devices=(),
            leaks_known=False,
            detail=Detail((), ()),
        )

    @property
    def name(self) -> str:
        return Path(self.path).name if self.rank is None else f"rank {self.rank}"

    def of_kind(self, kind: str) -> DeviceFigures | None:
        return next((device for device in self.devices if device.kind == kind), None)

    def line(self, site: Site) -> tuple[str, int, str]:
        """Return the key of a line that is equal on all ranks: file below the working directory, line, function."""
        return short_filename(site.filename, self.working_directory), site.line, site.function


@dataclass(frozen=True)
class PeakLine:
    site: Site
    bytes: int
    holder: str
    """Name of the objects that held half or more of the line's memory, by an object scan; "" if unknown."""


@dataclass(frozen=True, eq=False)
class Levels:
    """Live bytes of a device at the ends of at most `MAX_POINTS` steps, and their maximum within each.

    The step numbers are multiples of a power of two, so that ranks with different numbers of steps have common steps.
    """

    kind: str
    steps: npt.NDArray[np.int64]
    live: npt.NDArray[np.int64]
    """Requested bytes at the end of each of `steps`."""
    peak: npt.NDArray[np.int64]
    """Maximum of the requested bytes within each of `steps`, as measured by the timeline; never below `live`."""

    def __post_init__(self) -> None:
        if not len(self.steps) == len(self.live) == len(self.peak):
            raise ValueError("each step must have its level")


@dataclass(frozen=True, eq=False)
class Detail:
    levels: tuple[Levels, ...]
    lines: tuple[tuple[str, tuple[PeakLine, ...]], ...]
    """By kind of device: the lines that held the most bytes at its peak."""

    def levels_of(self, kind: str) -> Levels | None:
        return next((levels for levels in self.levels if levels.kind == kind), None)

    def lines_of(self, kind: str) -> tuple[PeakLine, ...]:
        return next((lines for name, lines in self.lines if name == kind), ())


def summarize_trace(path: str, session: str, user_paths: Sequence[str] = ()) -> RankSummary:
    """Read a trace and return its summary. The trace need not contain all user paths."""
    trace = _open_trace(path, user_paths)
    summary = summarize(trace, top=_MAX_LINES, of_leaks=True)  # no inefficiencies: slow, and not compared
    return _create_summary(trace, session, summary, _map_kinds(summary))


def _open_trace(path: str, user_paths: Sequence[str]) -> RecordedTrace:
    try:
        return RecordedTrace(path, user_paths=user_paths)
    except UserPathError as error:
        return RecordedTrace(path, user_paths=[name for name in user_paths if name not in error.paths])


def _map_kinds(summary: Summary) -> dict[str, str]:
    """Return the kind of each device. The CUDA device with the highest peak is the rank's own."""
    names = [device.device for device in summary.devices[:_MAX_DEVICES]]
    cuda = [name for name in names if name.startswith("cuda:")]
    return {name: CUDA if name in cuda[:1] else name for name in names}


def _create_summary(trace: RecordedTrace, session: str, summary: Summary, kinds: dict[str, str]) -> RankSummary:
    header, integrity = trace.header, trace.integrity
    environment = _read_environment(header)
    rank, world_size = _read_rank(header, trace.ending, environment)
    steps = trace.steps()
    devices = [device for device in summary.devices if device.device in kinds]
    return RankSummary(
        path=trace.path,
        unreadable="",
        session=session,
        program=_shorten_path(summary.program.path),
        working_directory=summary.program.working_directory[:_MAX_TEXT],
        host=summary.program.host[:_MAX_TEXT],
        process=_clamp_number(header.get("process")),
        parent_process=_clamp_number(header.get("parent_process")),
        rank=rank,
        world_size=world_size,
        job=tuple(f"{name}={environment[name]}"[:_MAX_TEXT] for name in _JOB_VARIABLES if name in environment),
        begin_ns=trace.begin_ns,
        end_ns=time.time_ns() if integrity.is_running else trace.end_ns,
        state=integrity.state,
        integrity=str(integrity),
        is_truncated=integrity.is_truncated,
        has_gaps=integrity.has_gaps,
        is_complete=integrity.is_complete,
        is_killed=not integrity.ended or trace.ending.get("reason") == "killed",
        is_running=integrity.is_running,
        events=integrity.events,
        steps=trace.positions.step_count,
        last_step=int(steps["step"][-1]) if len(steps) else None,
        devices=tuple(_create_figures(trace, summary, device, kinds[device.device]) for device in devices),
        leaks_known=summary.leaks_are_known,
        detail=_create_detail(trace, devices, kinds),
    )


def _create_figures(trace: RecordedTrace, summary: Summary, device: DeviceSummary, kind: str) -> DeviceFigures:
    reserved = trace.replay.peak("reserved", device.device)
    leaks = [leak for leak in device.leaks.leaks if not leak.minor]
    growth, inconclusive_lines = device.growth, device.leaks.undecided
    failed_allocation = next(iter(find_ooms(trace, device=device.device, last=1)), None)
    return DeviceFigures(
        kind=kind,
        device=device.device,
        peak=device.peak.allocated_bytes,
        peak_step=device.peak.step,
        reserved=None if reserved is None else reserved.bytes,
        live=None if growth is None else growth.last_bytes,
        seconds_per_step=None if growth is None or growth.steps < 2 else growth.seconds_per_step,
        seconds_spread=None if growth is None or growth.steps <= MIN_TIMED_STEPS else growth.seconds_spread,
        is_small=summary.is_small(device),
        refused=None if failed_allocation is None else failed_allocation.request.requested_bytes,
        refused_step=None if failed_allocation is None else failed_allocation.step,
        refused_site=None if failed_allocation is None else _shorten_site(failed_allocation.site),
        judged=device.leaks.judged,
        decided=device.leaks.decided,
        unexplained=_shorten_site(inconclusive_lines[0].site) if inconclusive_lines else None,
        leaks=tuple(
            RankLeak(
                _shorten_site(leak.line),
                leak.kind,
                leak.unit,
                float(leak.bytes_per_unit),
                int(leak.allocated_bytes),
                float(leak.confidence),
                float(leak.onset),
                int(leak.units_judged),
                "" if leak.holder is None else leak.holder.names[0][:_MAX_TEXT],
            )
            for leak in leaks[:_MAX_LEAKS]
        ),
        leak_bytes_per_unit=float(sum(leak.bytes_per_unit for leak in leaks)),
    )


def _create_detail(trace: RecordedTrace, devices: Sequence[DeviceSummary], kinds: dict[str, str]) -> Detail:
    return Detail(
        levels=tuple(_sample_levels(trace, device.device, kinds[device.device]) for device in devices),
        lines=tuple((kinds[device.device], _list_peak_lines(trace, device)) for device in devices),
    )


def _list_peak_lines(trace: RecordedTrace, device: DeviceSummary) -> tuple[PeakLine, ...]:
    sites = device.peak.sites
    large = [site for site in sites if site.bytes >= MIN_HELD_BYTES]
    peak = trace.replay.peak("allocated", device.device)
    names = [] if peak is None else find_line_holders(trace, device.device, peak, large)
    holders = dict(zip(large, names, strict=True)) if names else {}
    return tuple(PeakLine(_shorten_site(site.site), site.bytes, holders.get(site, "")[:_MAX_TEXT]) for site in sites)


def _sample_levels(trace: RecordedTrace, device: str, kind: str) -> Levels:
    table = trace.steps(device)
    steps, live = table["step"], table["live_bytes"]
    timeline = trace.timeline(MEASURED, device)
    # A step that is shorter than an interval has only the level at its end.
    step_of_maximum = np.searchsorted(table["seq"], timeline["seq"])
    peak = np.append(live, 0)
    np.maximum.at(peak, step_of_maximum, timeline["requested_bytes_max"])
    # Numbers repeat if a program restarts its step count, for example in each epoch.
    if len(np.unique(steps)) < len(steps):
        steps = np.arange(len(steps), dtype=np.int64)
    stride = 1
    while np.count_nonzero(steps % stride == 0) > MAX_POINTS:
        stride *= 2
    is_sampled = steps % stride == 0
    return Levels(kind, steps[is_sampled], live[is_sampled], peak[:-1][is_sampled])


def _read_rank(
    header: dict[str, Any], ending: dict[str, Any], environment: dict[str, str]
) -> tuple[int | None, int | None]:
    """Return the rank and the world size, of the process at the begin of the recording, else at its end.

    Earlier versions recorded them in the environment variables only.
    """
    record = next((record for record in (header, ending) if isinstance(record.get("world_size"), int)), {})
    size, rank = record.get("world_size"), record.get("rank")
    if not record:
        size, rank = environment.get("WORLD_SIZE", ""), environment.get("RANK", "")
    numbers = [int(text) if text.isdecimal() and len(text) < 7 else None for text in (str(rank), str(size))]
    return numbers[0], numbers[1]


def _read_environment(header: dict[str, Any]) -> dict[str, str]:
    # A corrupt header may contain a value of any type.
    environment = header.get("environment")
    return {str(name): str(value) for name, value in environment.items()} if isinstance(environment, dict) else {}


def _clamp_number(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < 1 << 63 else 0


def _shorten_site(site: Site) -> Site:
    source = None if site.source is None else site.source.strip()[:_MAX_TEXT]
    return Site(_shorten_path(site.filename), site.line, site.function[:_MAX_TEXT], source, site.user)


def _shorten_path(path: str) -> str:
    return path if len(path) <= _MAX_TEXT else "..." + path[-_MAX_TEXT:]


def read_session(path: str) -> str:
    """Return the id of a trace in hexadecimal, or "" if the file cannot be read."""
    try:
        with open_at_once(path) as file:
            return (file.read(32) or b"")[16:].hex()  # a pipe without data returns None
    except OSError:
        return ""
