"""Tables of what was in memory at any position: segments, blocks and their sums over time.

csrc/core/replay computes it, from the events alone; what is here names devices and columns.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from .. import _replay
from ..errors import FoldedError
from .dtypes import BLOCK_STATES, TEXT, no_rows
from .integrity import Integrity
from .kinds import device_name
from .roles import ROLES, ROLES_SHOWN, roles_by_number
from .states_ahead import Ask, ByDevice, StatesAhead

SEGMENT_COLUMNS = (
    "device",
    "address",
    "total_size",
    "allocated_size",
    "active_size",
    "requested_size",
    "stream",
    "segment_type",
    "segment_pool_id",
    "is_expandable",
)
_MADE = ("stack_id", "backward", "node_type", "thread", "birth_seq", "birth_ns")
"""For a block in use: what made it, and when. `older`: it was there before the recording, which began at its birth."""
_ROLE = ("role", "role_is_exact")
BLOCK_COLUMNS = ("device", "segment", "address", "nbytes", "requested_size", "state", *_MADE, "age_ns", "older", *_ROLE)
LIVE_COLUMNS = ("address", "nbytes", "allocated", "device", *_MADE, "older", *_ROLE)
MEASURES = ("requested", "allocated", "active", "reserved", "releasable", "stranded", "largest_free")
"""In bytes; the timeline has the value of each at an interval's end, and the lowest and highest within it."""

_NEED_SEGMENTS = MEASURES[3:]
_ENDS = ("", "_min", "_max")

_SMALL = 700_000
"""Blocks: of no more than these a second state is made while the first is in use. It takes about 100 bytes of each."""


def external_fragmentation(largest_free: pd.Series[Any], free: pd.Series[Any]) -> pd.Series[Any]:
    """1 - largest free block / all free bytes: 0 where nothing is free, <NA> where that is unknown."""
    missing = free.isna().to_numpy()
    largest, known = (column.to_numpy(np.float64, na_value=np.nan) for column in (largest_free, free))
    is_some = known > 0
    # Not below 0, even where events contradict each other.
    share = np.where(is_some, 1 - largest / np.where(is_some, known, 1), 0).clip(0)
    return pd.Series(pd.arrays.FloatingArray(np.nan_to_num(share), missing), index=free.index)


@dataclass(frozen=True)
class Peak:
    """The most that a device had at once, and the event that reached it."""

    bytes: int
    seq: int
    time_ns: int


@dataclass(frozen=True)
class Contradiction:
    """An event that does not fit what came before it."""

    seq: int
    """Number of the event."""
    device: str
    """Torch's spelling."""
    sentence: str
    """What does not fit."""


@dataclass(frozen=True)
class Verification:
    """How far a trace agrees with itself: see `Trace.verify`."""

    states: int
    """Allocator states in the trace: at the start and stop of the recording, and wherever the program asked for one."""
    agreeing: int
    """How many of them equal the replay in every segment and block. Where CUDA was in use before the recording, the
    replay begins from the first state, which counts as agreeing."""
    differences: list[Contradiction] = field(default_factory=list)
    """States that differ from the replay although nothing was lost before them (the first 1000)."""
    contradictions: int = 0
    """Events that do not fit what came before, with no loss that explains it."""
    contradiction_list: list[Contradiction] = field(default_factory=list)
    """The first 1000 of them."""
    after_loss: int = 0
    """Events that do not fit, after a loss and before the next state."""
    resumed: int = 0
    """States from which the replay continued after a loss."""
    void_states: int = 0
    """States with missing events."""
    unmatched_frees: int = 0
    """Frees of blocks whose alloc is not in the trace: made before it began, or lost."""
    lost: int = 0
    """Events that are missing: not recorded, or in damaged or absent blocks."""
    integrity: str = "complete"
    """`Integrity.state` of the trace."""

    @property
    def ok(self) -> bool:
        """Nothing is lost, and all that is there agrees."""
        faults = self.differences or self.contradictions or self.void_states or self.lost
        return not faults and self.integrity == "complete"


class Replay:
    """A replayed trace. locations: of the reader (device, stream, pool by location id)."""

    def __init__(
        self,
        reader: _replay.TraceReader,
        run: _replay.Replay,
        locations: pd.DataFrame,
    ) -> None:
        self._run = run
        self._states = _replay.States(run)
        self._locations = locations
        self.devices = {
            device_name(timeline.device_type, timeline.device_index): timeline for timeline in self._run.timelines()
        }
        self._names = list(self.devices)
        self._ahead: StatesAhead | None = None
        self._times: dict[int, int] = {}  # few are asked for, again and again
        self._long_lives = self._run.long_lives()
        self.folded_moments = frozenset(self._run.folded_moments)
        """The events before which the memory is known though the trace is folded further."""
        self.folded_interval_ns = self._run.folded_interval_ns
        """How exact the curves of a folded part are; 0: nothing is folded."""
        self.left_out = self._run.left_out
        """Steps, marks and regions that are not in a folded part any more: there were too many."""
        self._folded_until = reader.integrity.folded_until
        self.positions = self._run.positions
        """Each step's end, mark, region's begin and end."""
        self.refusals = self._run.refusals
        """Each out-of-memory event, and the stack of the forward that caused it where backward asked."""
        self.kind_counts = self._run.kind_counts
        """How many events there are of each kind."""
        self.unmatched_frees = self._run.unmatched_frees
        self.missed_frees = self._run.missed_frees

    def bytes_at_positions(self, devices: Sequence[int]) -> npt.NDArray[np.int64]:
        """Requested bytes on some devices together, by number, at each of `positions`."""
        return self._run.bytes_at_positions(devices)

    def long_lives(self, device: str) -> _replay.LongLives:
        """Which blocks of a device lived long, by stack."""
        return self._long_lives[self._names.index(device)]

    @functools.cached_property
    def loops(self) -> list[_replay.Loop]:
        """The functions that begin again and again under the same calls."""
        return self._run.loops()

    @functools.cached_property
    def nodes_made(self) -> npt.NDArray[np.int64]:
        """By stack: about how many of its allocations were of operators that made an autograd node."""
        return self._run.nodes_made()

    @property
    def used_devices(self) -> list[str]:
        """Those on which there was memory."""
        return [name for name, timeline in self.devices.items() if timeline.is_used]

    def peak(self, measure: str, device: str | None = None) -> Peak | None:
        """The peak of "allocated" or "reserved" bytes, of one device or of that with the highest; None without one.

        Raises ValueError for another measure.
        """
        if measure not in ("allocated", "reserved"):
            raise ValueError(f"measure={measure!r} is not known: use allocated or reserved")
        wanted = [timeline for name, timeline in self.devices.items() if device in (None, name)]
        peaks = [one.reserved_peak if measure == "reserved" else one.allocated_peak for one in wanted]
        highest = max(peaks, key=lambda peak: peak.bytes, default=None)
        if highest is None or not highest.bytes:
            return None
        return Peak(highest.bytes, highest.seq, highest.time_ns)

    def most_requested(self, device: str) -> int:
        """The most requested bytes at a time."""
        return self.devices[device].most_requested

    def events(self, first: int, end: int, kinds: Sequence[int]) -> _replay.EventStream:
        """The events from `first` on and before `end`, by column; of these kinds, none: of all."""
        return self._run.events(first, end, kinds)

    def sequence_after(self, time_ns: int) -> int:
        """Number of the first event after a time (ns since 1970); beyond all events where there is none."""
        return self._run.sequence_after(time_ns)

    def time_before(self, until: int) -> int:
        """Time of the last event before `until` (ns since 1970); 0 where there is none."""
        found = self._times.get(until)
        if found is None:
            found = self._times[until] = self._run.time_before(until)
        return found

    def segments(self, until: int, device: str | None = None) -> pd.DataFrame:
        """See `Trace.segments`; the state before event `until`."""
        tables = []
        for name, columns in self._by_device(self._states.segments_before, until, device):
            table = pd.DataFrame(columns)
            location = self._locations.iloc[table.pop("location")]
            table["device"] = name
            table["stream"] = location["stream"].to_numpy()
            table["segment_pool_id"] = location["pool"].to_numpy()
            table["segment_type"] = np.where(table.pop("is_large"), "large", "small")
            tables.append(table)
        return _joined(tables, SEGMENT_COLUMNS)

    def blocks(self, until: int, device: str | None = None) -> pd.DataFrame:
        """See `Trace.blocks`; the state before event `until`."""
        tables = []
        for name, columns in self._by_device(self._states.blocks_before, until, device):
            state = pd.Categorical.from_codes(columns["state"], dtype=BLOCK_STATES)
            role = roles_by_number(columns["role"])
            tables.append(_table({"device": name, **columns, "state": state, "role": role}, BLOCK_COLUMNS))
        return _joined(tables, BLOCK_COLUMNS, node_type=np.int64)

    def live(self, until: int, device: str | None = None, stacks: Sequence[int] | None = None) -> pd.DataFrame:
        """See `Trace.live`, without the steps; the state before event `until`. stacks: only what these have made."""

        def ask(until: int, wanted: tuple[int, int] | None) -> list[_replay.DeviceColumns]:
            return self._states.live_before(until, wanted, stacks)

        found = self._by_device(ask, until, device)
        tables = [
            _table({"device": name, **columns, "role": roles_by_number(columns["role"])}, LIVE_COLUMNS)
            for name, columns in found
        ]
        joined = _joined(tables, LIVE_COLUMNS, node_type=np.int64)
        if len(tables) < 2:
            return joined  # it is in order
        return joined.sort_values("birth_seq", ignore_index=True, kind="stable")

    def lives(self, until: int, device: str) -> _replay.Columns:
        """The blocks of `live` by column, and of these only birth_seq, birth_ns, allocated, stack_id and older."""
        found = self._asked("lives", until, device)
        none = {name: np.zeros(0, np.int64) for name in ("birth_seq", "birth_ns", "allocated", "stack_id")}
        return found[0][1] if found else {**none, "older": np.zeros(0, np.bool_)}

    def role_bytes(self, until: int, device: str) -> dict[str, tuple[int, int, int]]:
        """What is live before event `until`, by role, in the order of ROLES_SHOWN, without roles that no block has: its
        requested bytes, those of them whose role was recorded, and the blocks."""
        for _, columns in self._asked("roles", until, device):
            rows = np.stack([columns["bytes"], columns["exact_bytes"], columns["blocks"]], axis=1).tolist()
            found = {role: (size, exact, blocks) for role, (size, exact, blocks) in zip(ROLES, rows, strict=True)}
            return {role: found[role] for role in ROLES_SHOWN if found[role][2]}
        return {}

    def stacks(self, until: int, device: str | None = None) -> list[pd.DataFrame]:
        """See `Trace.stack_totals`, each device apart; the state before event `until`."""
        return [pd.DataFrame(columns) for _, columns in self._asked("stacks", until, device)]

    @contextlib.contextmanager
    def asked_ahead(self, asks: Iterable[Ask]) -> Iterator[None]:
        """What will be asked for within, in any order."""
        asks = [*asks]
        if not asks:
            yield
            return
        most = sum(timeline.most_blocks for timeline in self.devices.values())
        meanwhile = most <= _SMALL
        states = _replay.States(self._run) if meanwhile else self._states
        ahead = self._ahead = StatesAhead(asks, self._answer, states, meanwhile=meanwhile)
        try:
            yield
        finally:
            ahead.stop()
            if self._ahead is ahead:  # not another thread's
                self._ahead = None

    def let_go(self) -> None:
        """Gives up the state that was asked for last: it may take hundreds of megabytes."""
        self._states.let_go()

    def forget(self, device: str) -> None:
        """Nothing more will be asked of a device that was asked for ahead."""
        if (ahead := self._ahead) is not None:
            ahead.forget(device)

    def _asked(self, kind: str, until: int, device: str | None) -> ByDevice:
        ahead = self._ahead
        known = None if ahead is None or device is None else ahead.take((kind, until, device))
        return self._answer(self._states, (kind, until, device)) if known is None else known

    def _answer(self, states: _replay.States, ask: tuple[str, int, str | None]) -> ByDevice:
        kind, until, device = ask
        before = {"lives": states.lives_before, "roles": states.roles_before, "stacks": states.stacks_before}
        return self._by_device(before[kind], until, device)

    def _by_device(self, ask: Callable[..., list[_replay.DeviceColumns]], until: int, device: str | None) -> ByDevice:
        """One device or all, ordered by type and index, with their names."""
        if device is not None and device not in self.devices:
            return []
        wanted = None if device is None else self.devices[device]
        found = ask(until, None if wanted is None else (wanted.device_type, wanted.device_index))
        found.sort(key=lambda one: (one.device_type, one.device_index))
        return [(device_name(one.device_type, one.device_index), one.columns) for one in found]

    def timeline(
        self, begins: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], device: str | None = None
    ) -> pd.DataFrame:
        """See `Trace.timeline`, without its times. begins, ends: which of the measured intervals make one each: from
        the number of the first on, and before that of another."""
        need_segments = {f"{measure}{end}": "Int64" for measure in _NEED_SEGMENTS for end in _ENDS}
        tables = []
        for number, (name, timeline) in enumerate(self.devices.items()):
            if device in (None, name):
                table = pd.DataFrame(self._run.timeline(number, begins, ends))
                table.insert(0, "device", name)
                unknown = pd.Series(pd.NA, index=table.index, dtype="Int64")
                for column in need_segments:
                    table[column] = table[column].astype("Int64") if timeline.reports_segments else unknown
                tables.append(table)
        columns = ("device", *(f"{measure}{end}" for measure in MEASURES for end in _ENDS), "blocks", "seq")
        return _joined(tables, columns, **need_segments)

    @functools.cached_property
    def devices_with_names(self) -> frozenset[str]:
        """Those of which the program said of any block what it is."""
        return frozenset(self._names[number] for number in set(self._run.named_blocks()["device"].tolist()))

    def named_blocks(self) -> pd.DataFrame:
        """A row for each time that the program said what a block is, in order: see `Trace.named_blocks`. name is a
        string id."""
        columns = self._run.named_blocks()
        device = pd.Series([self._names[number] for number in columns["device"]], dtype=TEXT)
        return pd.DataFrame({**columns, "device": device, "role": roles_by_number(columns["role"])})

    def role_timelines(
        self, points: int, progress: Callable[[float], None] | None = None
    ) -> dict[str, dict[str, npt.NDArray[np.int64]]]:
        """By device and role: the requested bytes at the end of each interval. It takes another pass."""
        found = self._run.role_timelines(points, progress)
        result = {}
        for name, columns in zip(self._names, found, strict=False):
            result[name] = {role: columns[ROLES.index(role)] for role in ROLES_SHOWN}
        return result

    def role_allocations(self, first: int, until: int, device: str | None = None) -> pd.DataFrame:
        """What was allocated for each role by the events from `first` on and before `until`: role, allocations, bytes,
        exact_bytes and largest, in the order of ROLES_SHOWN, without roles that have none. Raises FoldedError for
        events that are folded: what they allocated is known by stack alone."""
        if first < self._folded_until:
            raise FoldedError(
                f"what was allocated before event {self._folded_until:,} is folded into sums by line, not by role: "
                "give a range after it"
            )
        found = self._run.role_allocations(first, until)
        tables = [
            pd.DataFrame({"role": ROLES, **columns})
            for name, columns in zip(self._names, found, strict=False)
            if device in (None, name)
        ]
        if not tables:
            return no_rows(("role", "allocations", "bytes", "exact_bytes", "largest"))
        how = {"allocations": "sum", "bytes": "sum", "exact_bytes": "sum", "largest": "max"}
        table = pd.concat(tables).groupby("role").agg(how).reindex(ROLES_SHOWN).reset_index()
        return table[table["allocations"] > 0].reset_index(drop=True)

    def samples(self) -> _replay.Columns:
        """What the driver reported, by column: see `driver.driver_memory`."""
        return self._run.samples()

    def verification(self, integrity: Integrity) -> Verification:
        """See `Trace.verify`."""
        found = self._run.findings

        def named(items: list[_replay.Disagreement]) -> list[Contradiction]:
            return [Contradiction(item.seq, self._names[item.device], item.text) for item in items]

        return Verification(
            states=found.states,
            agreeing=found.agreeing,
            differences=named(found.differences),
            contradictions=found.contradictions,
            contradiction_list=named(found.kept_contradictions),
            after_loss=found.after_loss,
            resumed=found.resumed,
            void_states=found.void_states,
            unmatched_frees=self.unmatched_frees,
            lost=integrity.lost + integrity.missing_events,
            integrity=integrity.state,
        )


def _table(made: dict[str, Any], columns: tuple[str, ...]) -> pd.DataFrame:
    """Of columns that nobody else has: a copy of a million rows would take as much again."""
    return pd.DataFrame({name: made[name] for name in columns}, copy=False)


def _joined(tables: list[pd.DataFrame], columns: tuple[str, ...], **dtypes: Any) -> pd.DataFrame:
    if not tables:
        return no_rows(columns, **dtypes)
    joined = tables[0] if len(tables) == 1 else pd.concat(tables, ignore_index=True)
    return joined if tuple(joined.columns) == columns else joined[list(columns)]
