"""The summary of the trace of one rank: plain values that fit into a megabyte, however long the run was.

Without its detail a summary is a few kilobytes: whose trace it is, and its figures, by which all ranks are compared.
The detail, what was live at the end of each step and what the peak consisted of, is looked at of a few ranks only. All
figures are those that the verdict on the single trace shows.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import UserPathError
from ...reading.integrity import open_at_once
from ...reading.recorded import RecordedTrace
from ...reading.sites import Site
from ...reading.source_code import short_filename
from ..free_memory.oom import find_ooms
from ..summary import DeviceSummary, Summary, summarize

CUDA = "cuda"
"""Stands for the CUDA device of a rank, whatever its number."""
MAX_WORLD_SIZE = 999_999
"""Ranks without a trace are listed: an untrusted file must not cause a list of any length."""
MOST_POINTS = 1000
"""Most steps whose level is kept, for each of at most `_DEVICES` devices."""
_DEVICES = 16
"""Most devices: a process with more has those with the highest peaks."""
_LINES = 100
"""Most lines of a peak."""
_LEAKS = 8
_TEXT = 400
"""Longest text: a foreign trace may have any. Of a path the end is kept."""
_JOB = (
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "MASTER_ADDR",
    "MASTER_PORT",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
)


@dataclass(frozen=True)
class RankLeak:
    """A leak that matters, as in `analysis.leaks.leak.Leak`."""

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
    """What holds it, in words; "" if that is not known."""


@dataclass(frozen=True)
class DeviceFigures:
    """One device of a rank."""

    kind: str
    """What it is compared with on other ranks: "cuda" is the rank's own CUDA device, "cuda:3" another one that it uses
    too; "cpu", "pinned"."""
    device: str
    """Torch's spelling."""
    peak: int
    """Requested bytes at the peak."""
    peak_step: int | None
    reserved: int | None
    """The highest; None where the allocator reports no segments."""
    live: int | None
    """Requested bytes at the end of the last step; None without steps."""
    seconds_per_step: float | None
    is_small: bool
    """It hardly counts beside the other devices of the rank: see `Summary.is_small`."""
    refused: int | None
    """The last request that ran out of memory, in bytes."""
    refused_step: int | None
    refused_site: Site | None
    judged: bool
    decided: bool
    unexplained: Site | None
    """What grows, though it could not be decided whether it leaks."""
    leaks: tuple[RankLeak, ...]
    """Those that matter, the most pressing first; the first few of many."""
    leak_bytes_per_unit: float
    """Bytes per unit of all of them."""

    @property
    def leak_unit(self) -> str:
        return self.leaks[0].unit if self.leaks else ""


@dataclass(frozen=True)
class RankSummary:
    """Whose trace it is, how whole it is, and its figures."""

    path: str
    unreadable: str
    """Why nothing can be read of it; "" if something can."""
    session: str
    """The trace's own random id, in hexadecimal."""
    program: str
    working_directory: str
    host: str
    process: int
    parent_process: int
    rank: int | None
    """None if the process had none."""
    world_size: int | None
    job: tuple[str, ...]
    """What the launcher calls the run: the same on all of its ranks. Empty if it does not say."""
    begin_ns: int
    end_ns: int
    state: str
    """That of `Integrity`."""
    integrity: str
    """The same in words."""
    cut: bool
    has_gaps: bool
    whole: bool
    is_killed: bool
    """The recording was not ended in good order. Its last events may have been read from its spool all the same."""
    is_running: bool
    events: int
    """Readable events, compacted ones not included."""
    steps: int
    last_step: int | None
    devices: tuple[DeviceFigures, ...]
    """Highest peak first."""
    leaks_known: bool
    """See `Summary.leaks_are_known`."""
    detail: Detail | None = field(default=None, repr=False, compare=False)
    """None where it was left out to save memory."""

    def __post_init__(self) -> None:
        if (self.world_size or 0) > MAX_WORLD_SIZE:
            raise ValueError(f"{self.world_size} ranks")

    @classmethod
    def of_unreadable(cls, path: str, why: str) -> RankSummary:
        """Of a file that cannot be read."""
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
            cut=False,
            has_gaps=False,
            whole=False,
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
        """What it is called: "rank 3"; without a rank the name of its file."""
        return os.path.basename(self.path) if self.rank is None else f"rank {self.rank}"

    def of_kind(self, kind: str) -> DeviceFigures | None:
        """The figures of its device of that kind."""
        return next((one for one in self.devices if one.kind == kind), None)

    def line(self, site: Site) -> tuple[str, int, str]:
        """A line as other ranks have it too, wherever the program lies on their machines."""
        return short_filename(site.filename, self.working_directory), site.line, site.function


@dataclass(frozen=True)
class HeldLine:
    """A line, and the requested bytes that it held at the peak."""

    site: Site
    bytes: int


@dataclass(frozen=True, eq=False)
class Levels:
    """What was live on a device at the ends of steps, at most `MOST_POINTS` of them: all whose numbers are multiples of
    a power of two, so that ranks with more or fewer steps have steps in common."""

    kind: str
    steps: npt.NDArray[np.int64]
    live: npt.NDArray[np.int64]
    """Requested bytes."""

    def __post_init__(self) -> None:
        if len(self.steps) != len(self.live):
            raise ValueError("each step must have its level")


@dataclass(frozen=True, eq=False)
class Detail:
    """What is looked at of a few ranks only."""

    levels: tuple[Levels, ...]
    lines: tuple[tuple[str, tuple[HeldLine, ...]], ...]
    """By kind of device: the lines that held the most at its peak."""

    def levels_of(self, kind: str) -> Levels | None:
        return next((one for one in self.levels if one.kind == kind), None)

    def lines_of(self, kind: str) -> tuple[HeldLine, ...]:
        return next((lines for name, lines in self.lines if name == kind), ())


def summarize_trace(path: str, session: str, user_paths: Sequence[str] = ()) -> RankSummary:
    """Raises TraceError for what cannot be read."""
    trace = _opened(path, user_paths)
    summary = summarize(trace, top=_LINES, of_leaks=True)  # conditions are those of one process, and cost the most
    return _rank_summary(trace, session, summary, _kinds(summary))


def _opened(path: str, user_paths: Sequence[str]) -> RecordedTrace:
    """One of several traces need not have all of the user paths."""
    try:
        return RecordedTrace(path, user_paths=user_paths)
    except UserPathError as error:
        return RecordedTrace(path, user_paths=[name for name in user_paths if name not in error.paths])


def _kinds(summary: Summary) -> dict[str, str]:
    """By device, what it is compared with on other ranks. Of several CUDA devices that a rank uses, its own is the one
    with the highest peak."""
    names = [device.device for device in summary.devices[:_DEVICES]]
    cuda = [name for name in names if name.startswith("cuda:")]
    return {name: CUDA if name in cuda[:1] else name for name in names}


def _rank_summary(trace: RecordedTrace, session: str, summary: Summary, kinds: dict[str, str]) -> RankSummary:
    header, integrity = trace.header, trace.integrity
    environment = _environment(header)
    rank, world_size = _rank(header, environment)
    steps = trace.steps()
    devices = [device for device in summary.devices if device.device in kinds]
    return RankSummary(
        path=trace.path,
        unreadable="",
        session=session,
        program=_end(summary.program.path),
        working_directory=summary.program.working_directory[:_TEXT],
        host=summary.program.host[:_TEXT],
        process=_number(header.get("process")),
        parent_process=_number(header.get("parent_process")),
        rank=rank,
        world_size=world_size,
        job=tuple(f"{name}={environment[name]}"[:_TEXT] for name in _JOB if name in environment),
        begin_ns=trace.begin_ns,
        end_ns=time.time_ns() if integrity.is_running else trace.end_ns,
        state=integrity.state,
        integrity=str(integrity),
        cut=integrity.cut,
        has_gaps=integrity.has_gaps,
        whole=integrity.whole,
        is_killed=not integrity.ended or trace.ending.get("reason") == "killed",
        is_running=integrity.is_running,
        events=integrity.events,
        steps=trace.positions.step_count,
        last_step=int(steps["step"][-1]) if len(steps) else None,
        devices=tuple(_figures(trace, summary, device, kinds[device.device]) for device in devices),
        leaks_known=summary.leaks_are_known,
        detail=_detail(trace, devices, kinds),
    )


def _figures(trace: RecordedTrace, summary: Summary, device: DeviceSummary, kind: str) -> DeviceFigures:
    reserved = trace.replay.peak("reserved", device.device)
    leaks = [leak for leak in device.leaks.leaks if not leak.minor]
    growth, open_lines = device.growth, device.leaks.unexplained
    refused = next(iter(find_ooms(trace, device=device.device, last=1)), None)
    return DeviceFigures(
        kind=kind,
        device=device.device,
        peak=device.peak.bytes,
        peak_step=device.peak.step,
        reserved=None if reserved is None else reserved.bytes,
        live=None if growth is None else growth.last_bytes,
        seconds_per_step=None if growth is None or growth.steps < 2 else growth.seconds_per_step,
        is_small=summary.is_small(device),
        refused=None if refused is None else refused.request.requested_bytes,
        refused_step=None if refused is None else refused.step,
        refused_site=None if refused is None else _site(refused.site),
        judged=device.leaks.judged,
        decided=device.leaks.decided,
        unexplained=_site(open_lines[0].site) if open_lines else None,
        leaks=tuple(
            RankLeak(
                _site(leak.line),
                leak.kind,
                leak.unit,
                float(leak.bytes_per_unit),
                int(leak.allocated_bytes),
                float(leak.confidence),
                float(leak.onset),
                int(leak.units_judged),
                "" if leak.holder is None else leak.holder.names[0][:_TEXT],
            )
            for leak in leaks[:_LEAKS]
        ),
        leak_bytes_per_unit=float(sum(leak.bytes_per_unit for leak in leaks)),
    )


def _detail(trace: RecordedTrace, devices: Sequence[DeviceSummary], kinds: dict[str, str]) -> Detail:
    return Detail(
        levels=tuple(_levels(trace, device.device, kinds[device.device]) for device in devices),
        lines=tuple(
            (kinds[device.device], tuple(HeldLine(_site(one.site), one.bytes) for one in device.peak.sites))
            for device in devices
        ),
    )


def _levels(trace: RecordedTrace, device: str, kind: str) -> Levels:
    table = trace.steps(device)
    steps, live = table["step"], table["live_bytes"]
    # A program may begin its count anew, with each epoch perhaps: numbers that come again are of no use here.
    if len(np.unique(steps)) < len(steps):
        steps = np.arange(len(steps), dtype=np.int64)
    stride = 1
    while np.count_nonzero(steps % stride == 0) > MOST_POINTS:
        stride *= 2
    picked = steps % stride == 0
    return Levels(kind, steps[picked], live[picked])


def _rank(header: dict[str, Any], environment: dict[str, str]) -> tuple[int | None, int | None]:
    """The rank and the number of ranks, as the launcher had told the process. Traces of earlier versions have them
    among their environment variables alone."""
    size, rank = header.get("world_size"), header.get("rank")
    if not isinstance(size, int):
        size, rank = environment.get("WORLD_SIZE", ""), environment.get("RANK", "")
    numbers = [int(text) if text.isdecimal() and len(text) < 7 else None for text in (str(rank), str(size))]
    return numbers[0], numbers[1]


def _environment(header: dict[str, Any]) -> dict[str, str]:
    # A damaged header may hold anything.
    found = header.get("environment")
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, dict) else {}


def _number(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < 1 << 63 else 0


def _site(site: Site) -> Site:
    source = None if site.source is None else site.source.strip()[:_TEXT]
    return Site(_end(site.filename), site.line, site.function[:_TEXT], source, site.user)


def _end(path: str) -> str:
    return path if len(path) <= _TEXT else "..." + path[-_TEXT:]


def session_of(path: str) -> str:
    """The id of a trace, in hexadecimal; "" of what cannot be read."""
    try:
        with open_at_once(path) as file:
            return (file.read(32) or b"")[16:].hex()  # None of a pipe without data
    except OSError:
        return ""
