"""Leaks as plain values, and helpers that all kinds of leaks share. `judge` defines what a leak is."""

from __future__ import annotations

import dataclasses
import enum
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
GRAPH = "autograd graph"
GRADIENT = "gradient"
GRAPHS = (GRADIENT, GRAPH)
UNUSED = "unused variable"
CYCLES_OF_CPP = (GRADIENT, "tensor hook")
"""Values of `Holder.through` for cycles that Python's garbage collector may not free."""
EXCEPTION = "exception"
THREAD = "thread"
AUTOCAST = "autocast"
"""Value of `Holder.through`."""
ADDITION = "addition"
BACKWARD = "backward"
"""Values of `Holder.store_kind`."""
CERTAIN = 0.9
"""Minimum confidence of an almost certain leak."""
LIKELY = 0.7
"""Minimum confidence of a likely leak."""
MIN_COVERAGE = 0.8
"""Minimum share of the windows in which a growing buffer grows."""
UNCERTAINTY_FACTOR = 0.8
"""Factor on the confidence for each reason to doubt the times of allocations and frees."""
MIN_SHARED_TIMES = 0.9
"""Minimum share of allocation times in common for two sites to be one finding."""
MINOR_BYTES = 64 << 10
"""Bytes that a minor leak holds at most."""
MINOR_SECONDS = 30 * 86400
"""Seconds that a minor leak takes at least to fill the device."""

_Candidate = TypeVar("_Candidate")


@dataclass(frozen=True)
class LeakingSite:
    """One line's part in a leak."""

    site: Site
    """The line."""
    stack_id: int
    """The stack of this line that holds the most bytes."""
    bytes_per_unit: float
    """Allocated bytes per step, iteration or second."""
    allocated_bytes: int
    """Leaked bytes of this line, counted as in `Leak`."""
    blocks: int
    """Number of leaked blocks of this line."""
    holder: Holder | None = None
    """Object that holds the blocks of this line; None if unknown."""


@dataclass(frozen=True)
class HeldContainer:
    """A container on a referrer path, at the object scan."""

    type: str
    """Type: "list", "deque", "lru_cache"."""
    length: int
    """Number of items."""
    size: int
    """The amount that the bound limits: the length, or the sum of `getsizeof` of a cachetools cache."""
    bound: int | None
    """Maximum of `size`; None if none is known."""
    nones: int
    """Items of a list that are None."""


@dataclass(frozen=True)
class Holder:
    """The object that held the blocks of a leak at the last object scan (see `referrers`)."""

    names: tuple[str, ...]
    """Descriptions, such as "trainer.predictions (list of 46), local of main() at train.py:31".

    Several if no single object held most of the blocks; the object that held the most comes first. The other fields
    describe the first.
    """
    path: str
    """Expression that leads to one of the blocks, such as "trainer.predictions[...]"."""
    filename: str
    """File of the function that has the variable, or of the global variable; "" if neither."""
    line: int
    """Line that the function was executing at the scan; 0 for a global variable."""
    event: int
    """Number of the next event after the scan."""
    step: int | None
    """Step of the scan; None in the last step of the run and in a trace without steps."""
    share: float
    """Estimated share, from 0 to 1, of the leak's live blocks that these objects held."""
    name: str = ""
    """The object alone, as an expression or a phrase: "trainer.predictions"; "" in older traces."""
    scope: str = ""
    """Scope of the variable: "global", "local", "class attribute"; "" if no variable leads to the blocks."""
    function: str = ""
    """Function of a local variable: "main"; "" for other scopes."""
    through: str = ""
    """References on the path besides attributes and containers: "ctx" (a reference cycle through the `ctx` of a
    `torch.autograd.Function`), "tensor hook" (a cycle through a hook of the tensor), "exception" (its traceback),
    "gradient" (the graph of a gradient), "autograd graph", "finalizer" (arguments of `weakref.finalize`), "hook",
    "default value", "partial", "generator" (or another suspended function), "closure", "thread-local", "thread" (one
    that has not ended), "autocast" (its cache), "cycle" (another reference cycle), "unused variable" (a large local
    variable that its function does not read any more); of several, the first in this order. "" if nothing."""
    containers: tuple[HeldContainer, ...] = ()
    """Containers on the path, outermost first."""
    store_kind: str = ""
    """How the program stores into the object: "assignment"; "addition" (`total += loss`); "update", which reads the
    object in another way (`parts = torch.cat((parts, part))`); "call" of a method, such as `append`; "definition" of a
    function that keeps values; "registration" of a hook; "cycle", an assignment that makes a reference cycle;
    "region" of autocast; "backward" with `create_graph=True`, which gives a gradient its graph; "" if unknown."""
    store: Frame | None = None
    """Line that stores into the object; None if unknown."""
    tensor_share: float = 1.0
    """Share of the object's memory that its tensors use: below 1 if they are views of larger ones. 1 if unknown."""
    back_reference: str = ""
    """Attribute through which an object on the path is in a reference cycle: "Node.parent"; "" if none was found."""

    @property
    def identity(self) -> tuple[str, ...]:
        """Values that are equal for one object at different scans."""
        return self.name or self.names[0], self.scope, self.function, self.filename


class NoHolder(enum.Enum):
    """Why the holder of growth is unknown."""

    CONVERTED = "converted"
    """The trace is converted from a snapshot of torch, which contains no references."""
    UNSUPPORTED = "unsupported"
    """Objects cannot be scanned in the program's Python."""
    NO_SCAN = "no scan"
    """The trace contains no object scan."""
    NOT_LIVE = "not live"
    """The blocks were allocated after the last object scan, or freed before it."""
    NOT_REACHED = "not reached"
    """Object scans while the program ran did not reach what holds the blocks, and no final scan ran."""
    COLLECTED = "collected"
    """As before, and later a garbage collection freed most of the blocks: they were in reference cycles."""
    TRUNCATED = "truncated"
    """The final scan was truncated."""
    GRAPHS_IN_USE = "graphs in use"
    """The final scan omitted graphs that other threads may have been changing."""
    MANY = "many"
    """Many objects hold a few of the blocks each."""
    CPP = "c++"
    """After a complete scan: no Python object refers to the blocks."""
    UNKNOWN = "unknown"
    """The trace is of an older version, which did not record how the final scan ended."""


@dataclass(frozen=True)
class Leak:
    """Blocks that accumulate: survivors that are never freed, a backlog, or a growing buffer.

    Survivors are allocated again and again and not freed. In a backlog each block is freed, but more and more are live
    at once. A growing buffer is a block that is replaced by larger and larger blocks. Bytes are allocated bytes: a
    tensor of 4 bytes takes 512 bytes of a CUDA device.
    """

    kind: str
    """"survivors", "backlog" or "growing"."""
    device: str
    """Device as torch spells it."""
    unit: str
    """"step"; in a trace without steps "iteration" (of a loop of the program) or "second"."""
    judged_at: int
    """Event after which the live blocks were judged (see `Clock.judged_at`)."""
    bytes_per_unit: float
    """Bytes per unit. Survivors: `allocated_bytes` by the time in which they were allocated. Backlog and growing: bytes
    that the sites hold more at the end than at the onset, by the time between."""
    allocated_bytes: int
    """Bytes live at the judged event. Survivors: blocks allocated since the onset that have reached `age`. Backlog and
    growing: all blocks of the sites."""
    blocks: int
    """Number of blocks in `allocated_bytes`."""
    allocated_bytes_at_end: int
    """Bytes of these blocks that are still live at the end of the trace."""
    blocks_at_onset: int
    """Backlog: number of live blocks at the onset."""
    age: float
    """Survivors: age from which blocks are no longer freed, in steps, iterations or seconds."""
    reached: int
    """Survivors: number of blocks of the first site that have reached `age`."""
    died: int
    """Survivors: number of blocks in `reached` that were freed later. Backlog: number of freed long-lived blocks."""
    never_died: bool
    """Survivors: True if no block of the first site has been freed, at any age."""
    onset: float
    """Onset of the leak, in steps or iterations since the first; else in thousandths of the allocations."""
    units_with_survivors: int
    """Number of units since the onset in which survivors were allocated or buffers grew: steps, iterations or (without
    either) parts of the run."""
    units_judged: int
    """Number of all units since the onset."""
    confidence: float
    """Confidence from 0 to 1 (see `survivor_leaks` and `growing_buffers`)."""
    oldest_age: float
    """Age of the oldest of these blocks, in steps, iterations or seconds."""
    seconds_per_unit: float
    """Average seconds of a step or iteration; 1 if the unit is a second."""
    forecast_seconds: float | None
    """Seconds until the device is full at this rate; None if its capacity is unknown."""
    sites: tuple[LeakingSite, ...]
    """Lines that hold the bytes, most bytes first. Sites without a line of code come last if the others hold at least a
    fifth."""
    line: Site
    """Line to inspect: the site that allocates most of the bytes, else see `call_paths.find_line_to_inspect`. Growing:
    the site that allocates first.

    A loss kept with its graph keeps tensors that many lines of the model allocate. None of these lines is wrong; the
    call that they share is where the reference is kept, or next to it.
    """
    path: tuple[Frame, ...]
    """Frames of user code under which nearly all bytes are allocated (see `find_common_path`), without the first
    site."""
    path_share: float
    """Share of the bytes, from 0 to 1, that are allocated under `path`."""
    allocated_bytes_over_run: tuple[int, ...] = ()
    """Bytes that the sites hold over the run. Survivors: blocks live at the judged event, by allocation. Backlog: live
    blocks times the average block size. Growing: see `buffers_live`."""
    holder: Holder | None = None
    """Object that holds the blocks; None if unknown."""
    no_holder: NoHolder | None = None
    """Why `holder` is unknown; None if it is known."""
    gradient_graph: Frame | None = None
    """Call of `backward(create_graph=True)`, which may be the cause; None if there is none, if `holder` is known, or
    after a complete scan."""
    is_in_thread: bool = False
    """Survivors: True if a thread of `threading` allocated the blocks."""
    is_model: bool = False
    """Survivors: True if nearly all blocks are of models. `line` then makes them."""
    are_gradients: bool = False
    """True if nearly all blocks are gradients, but not of models; `holder` has the tensors that require them."""
    minor: bool = False
    """True if the leak costs next to nothing, in this run and on this device (see `is_minor`)."""
    block_stacks: tuple[int, ...] = ()
    """All stacks that allocated the blocks, by module; other blocks of the sites have other stacks.

    Growing: all stacks of the package lines that allocated the buffers. Backlog: empty.
    """

    @property
    def stack_ids(self) -> tuple[int, ...]:
        """A stack of each site, the one with the most bytes first."""
        return tuple(site.stack_id for site in self.sites)

    @property
    def callers(self) -> tuple[Frame, ...]:
        """The frames of `path` outside `line`, innermost first."""
        here = self.line.filename, self.line.line
        for index, frame in enumerate(self.path):
            is_inside = (frame.filename, frame.function) == (self.line.filename, self.line.function) and not frame.line
            if (frame.filename, frame.line) == here or is_inside:
                return self.path[index + 1 :]
        return self.path

    @staticmethod
    def buffers_live(total: int, units: npt.NDArray[np.int64], growth: npt.NDArray[np.int64]) -> tuple[int, ...]:
        """Return the bytes that buffers held after the warm-up, and after each unit in which a buffer grew.

        total: the bytes in the end. units, growth: the unit and the bytes of each growth.
        """
        _, unit_of_growth = np.unique(units, return_inverse=True)
        growth_by_unit = np.zeros(int(unit_of_growth.max(initial=-1)) + 1, dtype=np.int64)
        np.add.at(growth_by_unit, unit_of_growth, growth)
        return tuple((total - int(growth_by_unit.sum()) + np.append(0, np.cumsum(growth_by_unit))).tolist())

    @property
    def weight(self) -> tuple[bool, bool, float]:
        """Sort key, for descending order: minor leaks last, likely before possible leaks, then bytes per unit."""
        return not self.minor, self.confidence >= LIKELY, self.bytes_per_unit

    def is_minor(self, peak: int) -> bool:
        """Return whether the leak costs next to nothing.

        A minor leak holds less than 64 KiB, and takes more than 30 days to fill the device. If the device's capacity is
        unknown, the peak is taken as the free memory.

        Args:
            peak: Peak of the device, in bytes.
        """
        if self.allocated_bytes >= MINOR_BYTES or self.bytes_per_unit <= 0:
            return False
        if self.forecast_seconds is not None:
            return self.forecast_seconds > MINOR_SECONDS
        return peak / self.bytes_per_unit * self.seconds_per_unit > MINOR_SECONDS


class Doubt(enum.Enum):
    """Why growth is not called a leak (see `doubts`)."""

    BOUNDED = "bounded"
    """A note: a container that states its bound, and is not full yet, holds the blocks."""
    OPTIMIZER_STATE = "optimizer state"
    """A note: an optimizer made state for parameters that it updated for the first time."""
    TAKEN = "taken"
    """A note: a buffer grows each time by as much as another line allocates less."""
    STOPPED = "stopped"
    """A note: the line grew until well before the end, and not since."""
    FILLED = "filled"
    """A note: the line held more and more until well before the end, and about as much since (see `filled`)."""
    GARBAGE = "garbage"
    """A note: at an object scan, no variable led to the blocks, and the garbage collector had not freed them yet."""
    OUT_OF_MEMORY = "out of memory"
    """The line grew until an allocation failed, and not since."""
    ACCUMULATED = "accumulated"
    """A note: blocks of many steps, or of many iterations of a loop within a step, made up the peak, and were then
    released at once."""
    RARE = "rare"
    """The line left blocks behind only a few times; a note after `MAX_NOTED_ARRIVALS` times at most."""
    ONE_CALL = "one call"
    """The blocks live until a function returns that was called once."""
    JOINED = "joined"
    """The blocks were concatenated once, and then released."""
    LOAD = "load"
    """The number of live blocks may follow the input: each block is freed, and no container is known to grow."""
    ONE_PASS = "one pass"
    """Each module allocated only a few of the blocks, as if its model was called once."""
    SHORT = "short"
    """The run is too short."""
    FEW = "few"
    """Too few blocks are old enough."""
    LATE = "late"
    """The growth began late, or the blocks are young."""
    BURSTS = "bursts"
    """The blocks were allocated in bursts, with long pauses."""
    LOADING = "loading"
    """Nearly everything that was allocated is kept, not by an autograd graph: the program may still be loading."""
    COMPACTED = "compacted"
    """The line may be a growing buffer, and most of the evidence is compacted."""


MAX_NOTED_ARRIVALS = 5
_NOTES = (
    Doubt.BOUNDED,
    Doubt.OPTIMIZER_STATE,
    Doubt.TAKEN,
    Doubt.STOPPED,
    Doubt.FILLED,
    Doubt.GARBAGE,
    Doubt.ACCUMULATED,
)
_OTHER_READINGS = (
    Doubt.BOUNDED,
    Doubt.OPTIMIZER_STATE,
    Doubt.TAKEN,
    Doubt.RARE,
    Doubt.ONE_CALL,
    Doubt.JOINED,
    Doubt.LOAD,
    Doubt.ONE_PASS,
    Doubt.SHORT,
)


@dataclass(frozen=True)
class Growth:
    """A line that holds more and more memory, and that is not called a leak."""

    doubt: Doubt
    """Why the growth is not called a leak."""
    site: Site
    """The line."""
    stack_ids: tuple[int, ...]
    """Stacks that allocated the blocks, the one with the most bytes first."""
    kind: str
    """Kind of growth, as `Leak.kind`."""
    device: str
    """Device as torch spells it."""
    unit: str
    """Unit of `first`, `last` and `units`: see `Leak.unit`."""
    judged_at: int
    """Event after which the live blocks were judged."""
    allocated_bytes: int
    """Allocated bytes of the blocks that the growth left behind."""
    blocks: int
    """Number of these blocks."""
    arrivals: int
    """Number of units in which such blocks were allocated; 0 for a backlog."""
    units: int
    """Number of steps, iterations or thousandths of the allocations judged."""
    first: float
    """Begin of the growth, in steps or iterations since the first."""
    last: float
    """Time of the last of these allocations, or the end of the judged part."""
    holder: Holder | None = None
    """Object that holds the blocks; None if unknown."""
    no_holder: NoHolder | None = None
    """Why `holder` is unknown; None if it is known, and for growth that is ACCUMULATED."""
    call: Frame | None = None
    """ONE_CALL: the call. JOINED: the line that concatenates. ACCUMULATED within a step: the function whose loop
    accumulates, at the line through which it allocated most of the blocks (0: none, or the function of a library)."""
    block_stacks: tuple[int, ...] = ()
    """As in `Leak`."""
    is_model: bool = False
    """True if nearly all blocks are of models: parameters and buffers, with their gradients and optimizer state."""
    size: int = 0
    """BOUNDED: size of the container at the last object scan (see `HeldContainer.size`)."""
    bound: int = 0
    """BOUNDED: maximum size of the container."""
    bytes_when_full: int = 0
    """BOUNDED: estimated requested bytes of the container when it is full."""
    peak_bytes: int = 0
    """ACCUMULATED: peak of the device, in allocated bytes."""
    has_graph: bool = False
    """ACCUMULATED: whether operators that made autograd nodes allocated most of the blocks."""
    is_trained: bool = False
    """ACCUMULATED: whether backward evaluated these nodes while the blocks accumulated."""
    is_joined: bool = False
    """ACCUMULATED: whether the line joins a growing buffer with a new part in each iteration."""
    join: Site | None = None
    """ACCUMULATED: line that has joined the blocks into one of the same size (`torch.cat`), live at the peak, too."""
    join_bytes: int = 0
    """Bytes that `join` allocated."""
    leak: Leak | None = dataclasses.field(default=None, repr=False)
    """The growth as the leak that it is if the doubt is wrong; None if it has not the lifetimes of a leak."""
    other_peak_bytes: int = 0
    """ACCUMULATED within a step: the peak without these blocks: that of intervals in which their stacks hold hardly
    anything, or the rest at the peak of the device; 0 if there is no training in such intervals."""

    @classmethod
    def of_leak(cls, leak: Leak, doubt: Doubt, units: int, last: float) -> Growth:
        """Return the growth of what would be a leak without a doubt. units, last: as in the fields."""
        return cls(
            doubt=doubt,
            site=leak.line,
            stack_ids=leak.stack_ids,
            kind=leak.kind,
            device=leak.device,
            unit=leak.unit,
            judged_at=leak.judged_at,
            allocated_bytes=leak.allocated_bytes,
            blocks=leak.blocks,
            arrivals=leak.units_with_survivors,
            units=units,
            first=leak.onset,
            last=last,
            holder=leak.holder,
            no_holder=leak.no_holder,
            block_stacks=leak.block_stacks,
            is_model=leak.is_model,
            leak=leak,
        )

    @property
    def is_judged(self) -> bool:
        """True if the blocks have the lifetimes of a leak."""
        return self.doubt in _OTHER_READINGS

    @property
    def is_note(self) -> bool:
        """True if the growth is no reason to withhold an all-clear."""
        return self.doubt in _NOTES or (self.doubt is Doubt.RARE and self.arrivals <= MAX_NOTED_ARRIVALS)


@dataclass(frozen=True)
class LeakVerdict:
    """Verdict on the leaks of one device."""

    judged: bool
    """False if the run is too short to judge, or only one pass."""
    unit: str
    """Unit of time: "step", "iteration" or "second" (see `clock`)."""
    units: int
    """Number of judged steps, iterations or thousandths of the allocations."""
    loop: Frame | None
    """Function whose iterations were counted; None for other units."""
    leaks: tuple[Leak, ...]
    """Leaks, most certain and largest first (see `Leak.weight`)."""
    undecided: tuple[Growth, ...] = ()
    """Growth that may be a leak, most bytes first; without small growth that is not even a possible leak."""
    notes: tuple[Growth, ...] = ()
    """Growth that is no leak, most bytes first, if it holds much."""
    is_one_pass: bool = False
    """True if lines kept memory, but the trace has neither steps nor a loop."""

    @property
    def decided(self) -> bool:
        """True if the run was long enough and no growth is undecided."""
        return self.judged and not self.undecided


def merge_leaks(leaks: Sequence[Leak]) -> Leak:
    """Return survivors of one device as one leak. Fields that describe the first site are those of the largest leak."""
    largest = max(leaks, key=lambda leak: leak.allocated_bytes)
    if len(leaks) == 1:
        return largest
    rate = sum(leak.bytes_per_unit for leak in leaks)
    forecast = largest.forecast_seconds
    return dataclasses.replace(
        largest,
        bytes_per_unit=rate,
        allocated_bytes=sum(leak.allocated_bytes for leak in leaks),
        blocks=sum(leak.blocks for leak in leaks),
        allocated_bytes_at_end=sum(leak.allocated_bytes_at_end for leak in leaks),
        oldest_age=max(leak.oldest_age for leak in leaks),
        forecast_seconds=None if forecast is None or rate <= 0 else forecast * largest.bytes_per_unit / rate,
        sites=tuple(sorted((site for leak in leaks for site in leak.sites), key=lambda site: -site.allocated_bytes)),
        path=_find_common_frames([leak.path for leak in leaks]),
        path_share=min(leak.path_share for leak in leaks),
        block_stacks=tuple(sorted({stack for leak in leaks for stack in leak.block_stacks})),
        allocated_bytes_over_run=tuple(
            sum(samples) for samples in zip(*(leak.allocated_bytes_over_run for leak in leaks), strict=False)
        ),
    )


def _find_common_frames(paths: Sequence[tuple[Frame, ...]]) -> tuple[Frame, ...]:
    """Return the outermost frames that all paths, innermost first, have in common."""
    common = []
    for frames in zip(*(reversed(path) for path in paths), strict=False):
        if any((frame.filename, frame.line) != (frames[0].filename, frames[0].line) for frame in frames):
            break
        common.append(frames[0])
    return tuple(reversed(common))


def compute_certainty(trace: RecordedTrace, is_counted: bool) -> float:
    """Return the factor on confidence for unreliable times. is_counted: time is counted in steps or iterations."""
    integrity = trace.integrity
    is_incomplete = bool(integrity.lost or integrity.missing_events or integrity.corrupt_blocks)
    return (1.0 if is_counted else UNCERTAINTY_FACTOR) * (UNCERTAINTY_FACTOR if is_incomplete else 1.0)


def group_by_times(
    candidates: Sequence[_Candidate], times_of: Callable[[_Candidate], npt.NDArray[np.int64]]
) -> list[list[_Candidate]]:
    """Group candidates whose blocks were allocated at the same times as those of the first of their group."""
    groups: list[list[_Candidate]] = []
    for candidate in candidates:
        times = times_of(candidate)
        for group in groups:
            leader_times = times_of(group[0])
            if len(np.intersect1d(leader_times, times)) >= MIN_SHARED_TIMES * len(np.union1d(leader_times, times)):
                group.append(candidate)
                break
        else:
            groups.append([candidate])
    return groups
