"""What is kept of the trace of one rank: plain values that fit into a megabyte, however long the run was.

A card is a few kilobytes: whose trace it is, and its figures; ranks are compared by the cards of all of them. Its
detail, what was live at the end of each step and what the peak consisted of, is looked at of a few ranks only. All
figures are those that the verdict on the single trace shows.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ...reading.sites import Site

CUDA = "cuda"
"""Stands for the CUDA device of a rank, whatever its number."""
MAX_WORLD_SIZE = 999_999
"""Ranks without a trace are listed: an untrusted file must not cause a list of any length."""


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
    leak_rate: float
    """Bytes per unit of all of them."""

    @property
    def leak_unit(self) -> str:
        return self.leaks[0].unit if self.leaks else ""


@dataclass(frozen=True)
class Card:
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
    def of_unreadable(cls, path: str, why: str) -> Card:
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
        folder = self.working_directory.rstrip(os.sep) + os.sep
        inside = site.filename.removeprefix(folder) if len(folder) > 1 else site.filename
        return inside, site.line, site.function


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
