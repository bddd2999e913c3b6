"""A leak as plain values and as a row of a table, and what both kinds of leaks are found and described with.

What a leak is, and where that is decided: see `judge`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from ...reading.recorded import RecordedTrace
from ...reading.sites import Frame, Site

SURVIVORS = "survivors"
BACKLOG = "backlog"
GROWING = "growing"
CERTAIN = 0.9
"""A leak with at least this confidence is almost certain."""
LIKELY = 0.7
LEAST_COVERAGE = 0.8
"""The least share of the windows in which a leak must show."""
DOUBT = 0.8
"""Factor on the confidence for each thing that makes births or deaths less certain."""
SAME_BIRTHS = 0.9
"""The least share of the times of either that two sites must have in common to belong together."""
MINOR_SHARE = 100
"""A leak is minor if this many times its bytes are less than the peak of its device,"""
MINOR_UNITS = 1_000_000
"""and at its rate the device has room for more than so many further steps,"""
MINOR_SECONDS = 86400
"""which take more than a day."""

_Found = TypeVar("_Found")


@dataclass(frozen=True)
class LeakingSite:
    """One line's part in a leak; bytes and blocks as in `Leak`."""

    site: Site
    """The line."""
    stack_id: int
    """The one that keeps the most bytes of its stacks."""
    bytes_per_unit: float
    """Bytes per step, or per second."""
    allocated_bytes: int
    """As in `Leak`, of this line."""
    blocks: int
    """As in `Leak`, of this line."""


@dataclass(frozen=True)
class Holder:
    """The object that held the blocks of a leak at the last scan: see `referrers`."""

    names: tuple[str, ...]
    """In words: "Trainer.predictions (list of 46) in trainer, local of main() at train.py:31". More than one where no
    single thing held most of them; the one that held most first, as in what follows."""
    path: str
    """To one of them: "trainer.predictions[...]"."""
    filename: str
    """Of the function that has the variable, or of the global one; "" if neither."""
    line: int
    """Where that function was then; 0 for a global variable."""
    event: int
    """The number of the next event at that moment."""
    step: int | None
    """The step in which that was, if it was not the last of the run and there are any."""
    share: float
    """Of the leak's blocks that were live then, how many they held, estimated."""


@dataclass(frozen=True)
class Leak:
    """Blocks that are allocated again and again and kept, ever more that are alive at once, or one that is replaced by
    ever larger ones. Bytes are allocated bytes: a tensor of 4 bytes takes 512 of a CUDA device."""

    kind: str
    """"survivors", "backlog" or "growing": which of the three."""
    device: str
    """Torch's spelling."""
    unit: str
    """"step"; "iteration" of a loop of the program, or "second", in a trace without steps."""
    judged_at: int
    """The event after which it was judged: see `Clock.judged_at`."""
    bytes_per_unit: float
    """Bytes per unit. Survivors: those below, by the time in which they were born. Backlog and growing: what its sites
    hold more at the end than at the onset, by the time between."""
    allocated_bytes: int
    """Live at the judged event. Survivors: of blocks born from the onset on that have reached
    `age`. Else all that its sites hold."""
    blocks: int
    """Number of blocks that have these bytes."""
    allocated_bytes_at_end: int
    """How many of these bytes are still live at the end of the trace."""
    blocks_at_onset: int
    """Backlog: how many blocks were alive then."""
    age: float
    """Survivors: from this age on they do not die, in steps, iterations or seconds."""
    reached: int
    """Survivors: how many blocks of the first site have reached it,"""
    died: int
    """and how many of these died later. Backlog: how many that lived long have died."""
    never_died: bool
    """Survivors: no block of the first site has died at any age."""
    onset: float
    """When it began: in steps or iterations since the first; else in thousandths of the allocations."""
    units_with_survivors: int
    """Steps, iterations or (without either) parts of the run in which survivors were born, or buffers grew,"""
    units_judged: int
    """of so many since the onset."""
    confidence: float
    """From 0 to 1; see `survivor_leaks` and `growing_buffers`."""
    oldest_age: float
    """The age of the oldest of these blocks, in steps, iterations or seconds."""
    seconds_per_unit: float
    """Average seconds of a step or iteration; 1 if the unit is a second."""
    forecast_seconds: float | None
    """Seconds until the device is full at this rate; None if its capacity is unknown."""
    sites: tuple[LeakingSite, ...]
    """The one that keeps the most bytes first; those without a line of code last, if the others hold a good part."""
    line: Site
    """The line to look at: the site that allocates most of it; if none does, see `call_paths.line_to_look_at`. Growing:
    see `growing_buffers`.

    A loss kept with its graph keeps tensors that many lines of the model allocate. None of these lines is wrong; the
    call that they share is where the reference is kept, or one step away from it.
    """
    path: tuple[Frame, ...]
    """The frames of user code under which nearly all its bytes are allocated (see `common_path`), except the first
    site."""
    path_share: float
    """The share of the bytes that is allocated under that path."""
    allocated_bytes_over_run: tuple[int, ...] = ()
    """Allocated bytes of its sites over the run. Survivors: of the blocks that are live at the judged event, by time of
    allocation. Backlog: of all live blocks, at the size of an average block. Growing: see `buffers_live`."""
    holder: Holder | None = None
    """What holds its blocks; None if that is not known."""
    minor: bool = False
    """It costs next to nothing, for the run as for the device: see `is_minor`."""

    @property
    def callers(self) -> tuple[Frame, ...]:
        """The frames of the path outside `line`, innermost first."""
        here = self.line.filename, self.line.line
        for number, frame in enumerate(self.path):
            inside = (frame.filename, frame.function) == (self.line.filename, self.line.function) and not frame.line
            if (frame.filename, frame.line) == here or inside:
                return self.path[number + 1 :]
        return self.path

    @staticmethod
    def buffers_live(total: int, units: npt.NDArray[np.int64], growth: npt.NDArray[np.int64]) -> tuple[int, ...]:
        """What buffers held after the warm-up, and after each unit in which one had grown.

        total: what they hold in the end; growth: by how much one grew, each time; units: when that was.
        """
        _, unit = np.unique(units, return_inverse=True)
        grown = np.zeros(int(unit.max(initial=-1)) + 1, dtype=np.int64)
        np.add.at(grown, unit, growth)
        return tuple((total - int(grown.sum()) + np.append(0, np.cumsum(grown))).tolist())

    @property
    def weight(self) -> tuple[bool, bool, float]:
        """What leaks are ordered by: minor ones last, then whether likely or only possible, then bytes per unit."""
        return not self.minor, self.confidence >= LIKELY, self.bytes_per_unit

    def is_minor(self, peak: int) -> bool:
        """Whether it costs next to nothing: a hundredth of the `peak` of its device was not lost to it in this run,
        and it would take a day and a million further steps to fill the device. Where the device's capacity is unknown,
        the peak stands for the room that is left.
        """
        if self.allocated_bytes * MINOR_SHARE >= peak or self.bytes_per_unit <= 0 or self.seconds_per_unit <= 0:
            return False
        seconds = (
            peak / self.bytes_per_unit * self.seconds_per_unit
            if self.forecast_seconds is None
            else self.forecast_seconds
        )
        return seconds > MINOR_SECONDS and seconds / self.seconds_per_unit > MINOR_UNITS


@dataclass(frozen=True)
class Unexplained:
    """A line that holds more and more, though it cannot be said whether it leaks."""

    site: Site
    """The line."""
    stack_id: int
    """The one of its stacks that holds the most bytes."""
    allocated_bytes: int
    """Allocated bytes of its blocks that were born after the beginning and are no longer young."""
    blocks: int
    """Number of these blocks."""
    compacted: bool = False
    """It may be a buffer that grows: most of what would show that is compacted."""


@dataclass(frozen=True)
class LeakVerdict:
    """What can be said about leaks on one device."""

    judged: bool
    """False: the run is too short to judge."""
    unit: str
    """What time was counted in: "step", "iteration" or "second" (see `clock`)."""
    units: int
    """Number of judged steps, iterations or thousandths of the allocations."""
    loop: Frame | None
    """The function that begins again, where iterations were counted."""
    leaks: tuple[Leak, ...]
    """Most certain and largest first: see `Leak.weight`."""
    unexplained: tuple[Unexplained, ...] = ()
    """What grows and is no leak for certain: too little of it has been seen. Most bytes first; only if it counts."""

    @property
    def decided(self) -> bool:
        """Whether there either is a leak or nothing grows unexplained."""
        return self.judged and not self.unexplained


def certainty(trace: RecordedTrace, counted: bool) -> float:
    """How reliable births and deaths are: the factor on every confidence of the trace. counted: in steps or
    iterations."""
    integrity = trace.integrity
    missing = bool(integrity.lost or integrity.missing_events or integrity.corrupt_blocks)
    return (1.0 if counted else DOUBT) * (DOUBT if missing else 1.0)


def grouped_by_births(
    candidates: Sequence[_Found], births: Callable[[_Found], npt.NDArray[np.int64]]
) -> list[list[_Found]]:
    """Sites whose blocks were born at the same times belong together: candidates in groups, in order, each group led by
    its first. births: the times of a candidate."""
    groups: list[list[_Found]] = []
    for candidate in candidates:
        times = births(candidate)
        for group in groups:
            leading = births(group[0])
            if len(np.intersect1d(leading, times)) >= SAME_BIRTHS * len(np.union1d(leading, times)):
                group.append(candidate)
                break
        else:
            groups.append([candidate])
    return groups


def room(trace: RecordedTrace, device: str, judged_ns: int, live: int) -> int | None:
    """Bytes that could still be allocated when the judged part of the run ended, with `live` (allocated) bytes in use;
    None if the capacity is unknown.

    What the driver reports as free, and what torch only caches: what it has reserved less the live bytes. For "cpu" the
    memory of the machine less what this process had resident; what other processes use is unknown. If the driver
    reported nothing, the device's size less the live bytes.
    """
    samples = trace.driver_samples(device)
    is_missing = np.ma.getmaskarray(samples["total_bytes"]) | np.ma.getmaskarray(samples["used_bytes"])
    samples = samples.take(~is_missing)
    if not len(samples):
        size = trace.device_bytes.get(device)
        return None if size is None else max(size - live, 0)
    sample = max(int(np.searchsorted(samples["time_ns"], judged_ns, side="right")) - 1, 0)
    reserved = samples["reserved_bytes"][sample]
    cached = 0 if reserved is np.ma.masked else max(int(reserved) - live, 0)
    return max(int(samples["total_bytes"][sample]) - int(samples["used_bytes"][sample]) + cached, 0)
