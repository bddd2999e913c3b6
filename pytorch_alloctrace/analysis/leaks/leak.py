"""What is said of a leak, as plain values: see `leaks` for what is one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from ...reading.recorded import RecordedTrace
from ...reading.site_tables import Site
from ...reading.sites import Frame
from .windows import Windows

SURVIVORS = "survivors"
GROWING = "growing"
CERTAIN = 0.9
"""A confidence from which on a leak is almost certain."""
LIKELY = 0.7
MOST = 0.8
"""Share of a leak's bytes from which on the one line that makes them is the line to look at."""
LEAST_COVERAGE = 0.8
"""Share of the windows that must bear witness."""
_SAMPLES = 200
"""Most moments of which the level is kept for a chart."""
DOUBT = 0.8
"""Factor on the confidence for each thing that makes births or deaths less certain."""


def certainty(trace: RecordedTrace, windows: Windows) -> float:
    """How far births and deaths can be relied on: the factor on every confidence of the trace."""
    integrity = trace.integrity
    missing = bool(integrity.lost or integrity.missing_events or integrity.corrupt_blocks)
    return (1.0 if windows.unit == "step" else DOUBT) * (DOUBT if missing else 1.0)


@dataclass(frozen=True)
class LeakingSite:
    """One line's part in a leak; bytes and blocks as in `Leak`."""

    site: Site
    stack_id: int
    """Of its stacks the one that keeps the most bytes."""
    rate: float
    """Bytes per step, or per second."""
    bytes: int
    blocks: int


@dataclass(frozen=True)
class Leak:
    """Blocks that are made again and again and never freed, or one that is replaced by ever larger ones. Bytes are
    requested bytes."""

    kind: str
    """"survivors" or "growing": which of the two."""
    device: str
    unit: str
    """"step", or "second" in a trace without steps."""
    rate: float
    """Bytes per unit. Survivors: those alive that were born in judged windows, by the length of these windows. Growing:
    what its sites hold more at the end than after the warm-up, by the length of the time between."""
    bytes: int
    """Alive at the end of the last step (without steps: of the trace). Survivors: born in judged windows. Growing: all
    that its sites hold."""
    blocks: int
    bytes_at_end: int
    """Of these, still alive at the end of the trace."""
    units_with_survivors: int
    """Steps of judged windows that have blocks alive (of a trace without steps: windows). Growing: as windows."""
    units_judged: int
    windows_with_survivors: int
    """Growing: windows in which a larger block took the place of the one before."""
    windows_judged: int
    confidence: float
    """From 0 to 1; see `leaks`."""
    oldest_age: float
    """Of the oldest of these blocks: steps or seconds."""
    seconds_per_unit: float
    forecast: float | None
    """Seconds until the device is full at this rate; None where its capacity is not known."""
    sites: tuple[LeakingSite, ...]
    """The line that keeps the most bytes first."""
    line: Site
    """The line to look at: the site that makes most of it; where none does, see `paths.line_to_look_at`. Growing: see
    `replacements`.

    A loss kept with its graph keeps tensors that are made at many lines of the model. None of these is wrong; the call
    that they share is where the reference is kept, or one step away from it.
    """
    path: tuple[Frame, ...]
    """The frames of user code under which nearly all its bytes are made (see `common_path`), but the first site."""
    path_share: float
    """Of the bytes: how many are made under that path."""
    live: tuple[int, ...] = ()
    """Live bytes of its sites over the run: see `survivors_live`, `buffers_live`."""

    @property
    def callers(self) -> tuple[Frame, ...]:
        """The frames of the path outside of `line`, innermost first."""
        here = self.line.filename, self.line.line
        for number, frame in enumerate(self.path):
            inside = (frame.filename, frame.function) == (self.line.filename, self.line.function) and not frame.line
            if (frame.filename, frame.line) == here or inside:
                return self.path[number + 1 :]
        return self.path

    @staticmethod
    def survivors_live(windows: Windows, blocks: pd.DataFrame, begin_ns: int) -> tuple[int, ...]:
        """Of these blocks, live at the judged moment, the bytes that were born by the end of each step (of at most so
        many, evenly chosen; without steps by as many times): exact of what survives, without what else lived between.
        begin_ns: of the recording."""
        by_step = windows.unit == "step"
        born = blocks["birth_seq" if by_step else "birth_ns"].to_numpy(np.int64)
        ends = windows.births if by_step else np.linspace(begin_ns, windows.judged_ns, _SAMPLES + 1)[1:]
        picked = np.linspace(0, len(ends) - 1, min(_SAMPLES, len(ends))).round().astype(np.int64)
        order = np.argsort(born, kind="stable")
        held = np.append(0, np.cumsum(blocks["nbytes"].to_numpy(np.int64)[order]))
        return tuple(held[np.searchsorted(born[order], ends[picked], side="right")].tolist())

    @staticmethod
    def buffers_live(total: int, units: npt.NDArray[np.int64], growth: npt.NDArray[np.int64]) -> tuple[int, ...]:
        """What buffers held after the warm-up, and after each unit in which one was seen to have grown. total: in the
        end; growth: by how much one grew, each time; units: when that was."""
        _, unit = np.unique(units, return_inverse=True)
        grown = np.zeros(int(unit.max(initial=-1)) + 1, dtype=np.int64)
        np.add.at(grown, unit, growth)
        return tuple((total - int(grown.sum()) + np.append(0, np.cumsum(grown))).tolist())

    @property
    def weight(self) -> tuple[bool, float]:
        """By what leaks are ordered: whether likely or only possible, then bytes per unit."""
        return self.confidence >= LIKELY, self.rate


@dataclass(frozen=True)
class LeakVerdict:
    """What can be said of leaks on one device."""

    judged: bool
    """False: the run is too short to tell."""
    unit: str
    units: int
    """Steps, or windows of time, after the warm-up."""
    warmup: float
    """Steps or seconds."""
    leaks: tuple[Leak, ...]
    """Most certain and largest first: see `Leak.weight`."""
