"""Doubts: other readings of growth that has the lifetimes of a leak.

The first that applies decides. A note needs proof that the growth ends; where two readings are possible, the growth is
undecided.

bounded           of the containers on the referrer path, at least one has more than one item, and all that have are
                  tuples, did not grow between two object scans, or state their bound; one states it. Blocks per entry
                  did not grow, and it holds `MIN_BOUNDED_SHARE` of the blocks. When full, it fits
optimizer state   nearly all blocks are optimizer state, and hardly any parameters are younger than the first of them
taken             a growing buffer grows each time by as much as another line allocates less, such as the labelled part
                  of a data set whose rest is scored: it ends with the rest
one call          a local variable of a function holds the blocks until the function returns. Not of main() or a module,
                  and not of the function whose loop contains the steps: there, any holder may leak. If no holder is
                  known: the function that iterates, or a comprehension in it, allocated the blocks itself, and they
                  were freed in the end
joined            an allocation as large as all the blocks was followed by their release: they were collected
load              a backlog (see `backlog`) whose referrer path shows no growing container, or a variable that is filled
                  anew in each step, or whose number of blocks fell by `LOAD_FALL`
loading           without steps, next to nothing was freed, and no autograd graph holds the blocks
one pass          each module that the stacks call allocated only a few of the blocks, which are not of models, and
                  was not called more often: a loop over layers
short             less than `MIN_UNITS` units were judged; or without steps, no caller of the line came again so often:
                  one pass is not a loop
rare              blocks were left behind in less than `MIN_ARRIVALS` units, or in the rounds of a buffer that is TAKEN

A run that ended in out of memory, and growth that holds a quarter of the device, are never too short or too rare: they
are possible leaks.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ...errors import CompactedError
from ...reading.names import KINDS, ROLES
from ...reading.positions import Range
from ...reading.recorded import Held
from ...reading.sites import Frame, Site
from ...reading.table import Table
from ..free_memory.failed_allocations import ENDED, find_failed_allocations
from .block_sizes import count_rounds_taken
from .forecast import FreeBytes
from .leak import BACKLOG, GRAPHS, GROWING, SURVIVORS, Doubt, Growth, Holder, Leak
from .loops import CONSTRUCTOR, MIN_ITERATIONS, LoopIndex

if TYPE_CHECKING:
    from ..evidence import PartEvidence

MIN_UNITS = 20
"""Minimum number of steps or iterations for a leak."""
MIN_ARRIVALS = 12
MIN_BOUNDED_SHARE = 0.9
LOAD_FALL = 1 / 3
MIN_REPEATED_SHARE = 0.8
"""Minimum number of blocks that were live at once in an earlier part of the run, as a share of those in this part."""
LARGE_SHARE = 0.25
"""Share of the device that growth must hold to be a possible leak at any length."""
MAX_CONFIDENCE_SHORT = 0.69
"""Maximum confidence of a leak that would be too short or too rare if it were smaller: possible."""
MIN_STATE_SHARE = 0.9
MAX_GROWN_SHARE = 0.2
"""Maximum share of survivors in addition to the earlier blocks of their sizes, for them to have replaced these."""
MAX_ROUNDS_RATIO = 1.25
"""Maximum ratio of the steps with survivors to the times that a buffer grew, for both to come once in each round."""
_MAX_EXAMINED = 8
"""Maximum number of leaks and other growth that are searched for replaced blocks."""
_MAX_STATE_BLOCKS = 8
"""Maximum number of blocks of optimizer state for each parameter."""
MIN_MODULE_SHARE = 1 / 3
"""Minimum share of the blocks that modules allocated, for them to show a pass."""
_MAX_BLOCKS_OF_PASS = 4
"""Average number of blocks of each module, up to which its model may have been called once."""
_MAX_JOIN_EVENTS = 1 << 16
"""Number of events after the judged event in which the release of collected blocks is searched."""
_JOIN_TOLERANCE = 0.02
_MAIN = re.compile(r"(\w*_)?main(_\w+)?|<.*>")
_COMPREHENSION = re.compile(r"(\.<locals>\.<\w+>)+$")
_VARIABLE = re.compile(r"\w+([\[{][^\]}]*[\]}])*")
_ALLOC = KINDS.index("alloc")
_MODEL = [ROLES.index(role) for role in ("parameter", "buffer", "gradient", "optimizer state")]
_PARAMETER, _BUFFER, _GRADIENT, _STATE = _MODEL
_WEIGHTS = (_PARAMETER, _BUFFER)


@dataclasses.dataclass
class _Comparison:
    """The sizes of a growth's blocks, its first and last block, and the sizes that were live before the first."""

    growth_id: int
    own: Counter[int]
    first: int
    last: int
    before: Counter[int] = dataclasses.field(default_factory=Counter)

    def is_replaced_by(self, after: Counter[int]) -> bool:
        """Return whether hardly more blocks of these sizes are live later, counted in `after`."""
        grown = sum(size * min(max(after[size] - self.before[size], 0), count) for size, count in self.own.items())
        total = sum(size * count for size, count in self.own.items())
        return total > 0 and grown <= MAX_GROWN_SHARE * total


class DoubtFinder:
    """Finds the doubts about the leaks of one part of the run."""

    def __init__(
        self,
        part: PartEvidence,
        loops: LoopIndex,
        free_bytes: FreeBytes | None,
        device_bytes: int | None,
        is_loading: bool,
    ) -> None:
        self._part = part
        self._trace = part.device.trace
        self._device = part.device.device
        self._clock = part.clock
        self._loops = loops
        self._free_bytes = free_bytes
        self._device_bytes = device_bytes
        self._is_loading = is_loading

    def examine(self, leak: Leak) -> Leak | Growth:
        """Return the leak, or growth with a doubt."""
        if leak.kind == SURVIVORS and self._is_model(leak):
            leak = dataclasses.replace(leak, is_model=True, line=self._find_maker(leak))
        doubt = self._find_other_reading(leak)
        if doubt is not None:
            return doubt
        if leak.holder is not None and not leak.is_model and self._are_gradients(leak):
            # The line that stores the tensors does not make their gradients.
            holder = dataclasses.replace(leak.holder, store=None, store_kind="")
            leak = dataclasses.replace(leak, are_gradients=True, holder=holder)
        short = self._find_shortness(leak)
        if short is None:
            return leak
        if self._clock.is_discrete and self._is_large(leak):
            return dataclasses.replace(leak, confidence=min(leak.confidence, MAX_CONFIDENCE_SHORT))
        return self._doubt(leak, short)

    def omit_replacements(self, growths: Sequence[Leak | Growth]) -> list[Leak | Growth]:
        """Return the growths without those whose blocks replaced blocks of other lines: there, nothing grows.

        Models that move to the CPU one after the other are allocated anew, while their blocks before the move were
        freed. Of each size of survivors, hardly more blocks are live at the last of them than at the first. Only the
        `_MAX_EXAMINED` largest are examined.
        """
        survivors = [growth for growth in growths if growth.kind == SURVIVORS]
        largest = sorted(survivors, key=lambda growth: -growth.allocated_bytes)[:_MAX_EXAMINED]
        comparisons = [_Comparison(id(growth), *blocks) for growth in largest if (blocks := self._find_blocks(growth))]
        comparisons = [
            comparison
            for comparison in comparisons
            if all(self._trace.is_known_at(seq - 1) for seq in (comparison.first, comparison.last))
        ]
        # In this order, each read continues the replay of the read before it.
        for comparison in sorted(comparisons, key=lambda comparison: comparison.first):
            comparison.before = _count_sizes(self._part.blocks_at(comparison.first - 1))
        live, replacing_ids = self._live, set()
        for comparison in sorted(comparisons, key=lambda comparison: comparison.last):
            # The blocks that stay are enough to show most growth.
            stay = live.take(live["alloc_seq"] < comparison.last)
            if comparison.is_replaced_by(_count_sizes(stay)) and comparison.is_replaced_by(
                _count_sizes(self._part.blocks_at(comparison.last - 1))
            ):
                replacing_ids.add(comparison.growth_id)
        return [growth for growth in growths if id(growth) not in replacing_ids]

    def omit_repetitions(self, growths: Sequence[Leak | Growth]) -> list[Leak | Growth]:
        """Return the growths without those that were released, as were as many blocks in an earlier part of the run.

        Evaluations that follow the training of each epoch collect outputs: the last of them is a part of its own.
        """
        cells = self._trace.replay.long_lifetimes(self._device)
        columns, first_cell = (
            cells.freed_blocks,
            int(np.searchsorted(cells.begins, self._clock.begin, side="right")) - 1,
        )
        is_earlier = columns["allocated_in"] < first_cell
        remaining = []
        for growth in growths:
            if isinstance(growth, Leak) and growth.kind == SURVIVORS and not growth.allocated_bytes_at_end:
                rows = is_earlier & np.isin(columns["stack_id"], growth.block_stacks)
                changes = np.zeros(len(cells.begins) + 1, np.int64)
                np.add.at(changes, columns["allocated_in"][rows], columns["blocks"][rows])
                np.subtract.at(changes, columns["freed_in"][rows], columns["blocks"][rows])
                if np.cumsum(changes).max() >= MIN_REPEATED_SHARE * growth.blocks:
                    continue
            remaining.append(growth)
        return remaining

    def _find_blocks(self, growth: Leak | Growth) -> tuple[Counter[int], int, int] | None:
        """Return the sizes of the growth's blocks, and its first and last block of one stack."""
        own = self._live.take(self._is_leaked(growth) & (self._live["alloc_seq"] >= self._clock.begin))
        if not len(own):
            return None
        # Take one stack: different phases of an iteration have different temporaries.
        of_stack = own["alloc_seq"][own["stack_id"] == own["stack_id"][0]].tolist()
        return _count_sizes(own.take(own["alloc_seq"] < of_stack[-1])), of_stack[0], of_stack[-1]

    def doubt_leaks_of_rounds(self, examined: Sequence[Leak | Growth]) -> list[Leak | Growth]:
        """Return the leaks and growth; leaks of survivors that come as seldom as a TAKEN buffer grows are RARE."""
        taken = [growth for growth in examined if isinstance(growth, Growth) and growth.doubt is Doubt.TAKEN]
        rounds = max((growth.arrivals for growth in taken), default=0)
        return [
            self._doubt(growth, Doubt.RARE)
            if isinstance(growth, Leak)
            and growth.kind == SURVIVORS
            and growth.units_with_survivors <= MAX_ROUNDS_RATIO * rounds
            else growth
            for growth in examined
        ]

    def _find_other_reading(self, leak: Leak) -> Growth | None:
        holder = leak.holder
        scan = None if holder is None else self._find_scan(holder)
        if scan is not None and holder is not None:
            bounded = self._find_bound(leak, holder, scan)
            if bounded is not None:
                return bounded
        if self._is_optimizer_state(leak):
            return self._doubt(leak, Doubt.OPTIMIZER_STATE)
        if leak.kind == GROWING:
            site = int(self._part.device.numbers.of([leak.stack_ids[0]])[0])
            if rounds := count_rounds_taken(self._part, site):
                return dataclasses.replace(self._doubt(leak, Doubt.TAKEN), arrivals=rounds)
        call = self._find_one_call(leak)
        if call is not None:
            return dataclasses.replace(self._doubt(leak, Doubt.ONE_CALL), call=call)
        join = self._find_join(leak) if leak.kind == SURVIVORS else None
        if join is not None:
            return dataclasses.replace(self._doubt(leak, Doubt.JOINED), call=join)
        if leak.kind == BACKLOG and (
            scan is None
            or (self._clock.is_discrete and leak.oldest_age <= 1 and _VARIABLE.fullmatch(scan.path))
            or not self._has_growing_container(scan)
            or _has_fallen(leak)
        ):
            return self._doubt(leak, Doubt.LOAD)
        if leak.kind == SURVIVORS and not leak.is_model and self._calls_each_module_once(leak):
            return self._doubt(leak, Doubt.ONE_PASS)
        if self._is_loading and leak.kind == SURVIVORS and (holder is None or holder.through not in GRAPHS):
            return self._doubt(leak, Doubt.LOADING)
        return None

    def _find_shortness(self, leak: Leak) -> Doubt | None:
        if not self._clock.is_discrete:
            return None if self._loops.is_in_loop(leak.stack_ids[0]) else Doubt.SHORT
        if self._clock.length + 1 < MIN_UNITS:
            return Doubt.SHORT
        return Doubt.RARE if leak.kind == SURVIVORS and leak.units_with_survivors < MIN_ARRIVALS else None

    def _is_large(self, leak: Leak) -> bool:
        if self._device_bytes is not None and leak.allocated_bytes >= LARGE_SHARE * self._device_bytes:
            return True
        failures = find_failed_allocations(self._trace, device=self._device, last=1)
        return any(failure.outcome == ENDED and failure.seq >= self._clock.judged_at for failure in failures)

    def _doubt(self, leak: Leak, doubt: Doubt) -> Growth:
        units, last = round(self._clock.length) + 1, self._clock.first_step + self._clock.length
        return Growth.of_leak(leak, doubt, units, last)

    def _find_scan(self, holder: Holder) -> Held | None:
        for held in self._trace.held:
            if held.event == holder.event and held.holder == holder.names[0]:
                return held
        return None

    def _earlier_scans(self, held: Held) -> list[Held]:
        """Return what earlier object scans found at the same path, in order."""
        return [
            other
            for other in self._trace.held
            if other.event < held.event
            and other.path == held.path
            and len(other.containers) == len(held.containers)
            and len(other.addresses)
        ]

    def _find_bound(self, leak: Leak, holder: Holder, held: Held) -> Growth | None:
        # An entry that keeps the autograd graph of its step is a fault, though the number of entries has a bound.
        if len(holder.names) > 1 or holder.share < MIN_BOUNDED_SHARE or holder.through in GRAPHS:
            return None
        earlier = self._earlier_scans(held)
        bounds = []
        for level, container in enumerate(held.containers):
            size, bound = container["size"], container["bound"]
            if bound:
                # In a full container, each new block replaces one: more blocks than it holds are elsewhere.
                if size >= bound and MIN_BOUNDED_SHARE * leak.blocks > held.count:
                    return None
                bounds.append((size, bound, level))
            elif container["length"] > 1 and container["type"] != "tuple":
                lengths = {other.containers[level]["length"] for other in earlier}
                if lengths != {container["length"]}:
                    return None
        if not bounds:
            return None
        size, bound, level = bounds[-1]
        if any(
            held.count / size > 1.5 * other.count / max(other.containers[level]["size"], 1) + 1
            for other in earlier
            if size
        ):
            return None
        bytes_when_full = round(held.bytes / max(size, 1) * bound)
        if self._free_bytes is not None and bytes_when_full - held.bytes > self._free_bytes.until_full():
            return None
        return dataclasses.replace(
            self._doubt(leak, Doubt.BOUNDED), size=size, bound=bound, bytes_when_full=bytes_when_full
        )

    def _has_growing_container(self, held: Held) -> bool:
        for other in self._earlier_scans(held):
            for container, before in zip(held.containers, other.containers, strict=True):
                if container["length"] > before["length"]:
                    return True
        return False

    def _is_optimizer_state(self, leak: Leak) -> bool:
        live = self._live
        is_parameter = live["role"] == _PARAMETER
        states = int((live["role"] == _STATE).sum())
        if leak.kind != SURVIVORS or not states or states > _MAX_STATE_BLOCKS * int(is_parameter.sum()):
            return False
        is_leaked = self._is_leaked(leak)
        if not is_leaked.any() or (live["role"][is_leaked] == _STATE).mean() < MIN_STATE_SHARE:
            return False
        is_new = is_parameter & (live["alloc_seq"] > live["alloc_seq"][is_leaked].min())
        return _MAX_STATE_BLOCKS * int(live["block_bytes"][is_new].sum()) < leak.allocated_bytes

    def _is_model(self, leak: Leak) -> bool:
        roles = self._live["role"][self._is_leaked(leak)]
        has_weights = bool(np.isin(roles, _WEIGHTS).any())
        return has_weights and bool(np.isin(roles, _MODEL).mean() >= MIN_STATE_SHARE)

    def _are_gradients(self, leak: Leak) -> bool:
        roles = self._live["role"][self._is_leaked(leak)]
        return len(roles) > 0 and bool((roles == _GRADIENT).mean() >= MIN_STATE_SHARE)

    def _find_maker(self, leak: Leak) -> Site:
        """Return the line that makes the models of a leak: that of most weights, as gradients and state follow them."""
        numbers, stacks = self._part.device.numbers, self._trace.stacks
        live = self._live.take(self._is_leaked(leak) & np.isin(self._live["role"], _WEIGHTS))
        lines = numbers.of(live["stack_id"])
        site = max(leak.sites, key=lambda site: int(live["block_bytes"][lines == numbers.of([site.stack_id])[0]].sum()))
        if CONSTRUCTOR not in site.site.function or not stacks.has_frames(site.stack_id):
            return leak.line if site is leak.sites[0] else site.site
        return Site.of_stack(stacks, self._loops.find_maker(site.stack_id))

    def _calls_each_module_once(self, leak: Leak) -> bool:
        """Return whether hardly any module allocated more than `_MAX_BLOCKS_OF_PASS` blocks, kept or freed."""
        stacks = self._trace.stacks
        if not stacks.has_modules:
            return False
        modules = stacks.modules.called(self._live["stack_id"][self._is_leaked(leak)])
        inside = modules[modules > 0]
        max_blocks = _MAX_BLOCKS_OF_PASS * len(np.unique(inside))
        if len(inside) <= MIN_MODULE_SHARE * len(modules) or len(inside) > max_blocks:
            return False
        if self._loops.is_in_one_pass(leak.stack_ids[0]):
            return True
        # A layer whose output is kept only at times allocates it in each call.
        totals = self._part.stacks.result
        is_inside = np.isin(totals["stack_id"], leak.block_stacks) & (stacks.modules.called(totals["stack_id"]) > 0)
        return int(totals["allocations"][is_inside].sum()) <= max_blocks

    def _is_leaked(self, leak: Leak | Growth) -> npt.NDArray[np.bool_]:
        """Return which of `_live` were allocated by the stacks of a leak's survivors."""
        return np.isin(self._live["stack_id"], leak.block_stacks)

    @property
    def _live(self) -> Table:
        return self._part.live

    def _find_one_call(self, leak: Leak) -> Frame | None:
        if leak.holder is not None:
            if not _VARIABLE.fullmatch(leak.holder.path):
                return None  # an attribute: its object may be older than the call
            function = leak.holder.function
            if leak.holder.event > self._clock.judged_at + 1 and not self._returned_to(function, leak):
                return None  # by then, the call may have returned the blocks
            if not function or _is_main(function) or function in self._functions_with_steps:
                return None
            if self._came_again(leak, function):
                return None
            return Frame(function, leak.holder.filename, leak.holder.line)
        loop = self._clock.loop
        if loop is None or leak.allocated_bytes_at_end > leak.allocated_bytes // 2:
            return None
        # Stacks do not tell whether a function came once and iterated, or was called again.
        function = _strip_scopes(loop.function)
        if _is_main(function) or (function == loop.function and function != leak.line.function):
            return None
        return dataclasses.replace(loop, function=function)

    def _returned_to(self, function: str, leak: Leak) -> bool:
        """Return whether the function with the loop has returned the blocks to a function that called it."""
        loop, stacks = self._clock.loop, self._trace.stacks
        if leak.kind != SURVIVORS or loop is None or leak.holder is None or leak.holder.through in GRAPHS:
            return False
        calls = [_strip_scopes(stacks.frame(node).function) for node in self._loops.calls(leak.stack_ids[0])]
        return function != _strip_scopes(loop.function) and function in calls

    def _came_again(self, leak: Leak, function: str) -> bool:
        """Return whether a call of a function, on the stack of a leak, is in a loop of another function."""
        for node in self._loops.calls(leak.stack_ids[0]):
            if _strip_scopes(self._trace.stacks.frame(node).function) == function:
                return False
            if self._loops.is_repeated(node, MIN_ITERATIONS):
                return True
        return False

    @functools.cached_property
    def _functions_with_steps(self) -> frozenset[str]:
        """Names of the functions on the stack of the last step."""
        if not len(self._trace.positions.step_ends):
            return frozenset()
        seq = int(self._trace.positions.step_ends[-1])
        names: set[str] = set()
        for events in self._trace.iter_events(Range(seq, seq + 1), ["step"], with_state=False):
            for stack in events["stack_id"].tolist():
                names.update(_strip_scopes(frame.function) for frame in self._trace.stacks.frames(stack))
        return frozenset(names)

    def _find_join(self, leak: Leak) -> Frame | None:
        """Return the line of an allocation as large as all the blocks, which was followed by their release."""
        if leak.allocated_bytes_at_end > leak.allocated_bytes // 2:
            return None
        blocks = self._live.take(self._is_leaked(leak))
        if not len(blocks):
            return None
        total = int(blocks["requested_bytes"].sum())
        addresses, begin = blocks["address"], max(self._clock.judged_at - 64, 0)
        joined_at, join_stack = -1, 0
        freed: set[int] = set()
        try:
            chunks = self._trace.iter_events(
                Range(begin, min(begin + _MAX_JOIN_EVENTS, self._trace.end_seq)),
                ["alloc", "free_requested", "free_completed"],
                with_state=False,
            )
            for events in chunks:
                is_here = self._trace.devices_of(events) == self._device
                is_join = is_here & (np.abs(events["requested_bytes"] - total) <= _JOIN_TOLERANCE * total)
                is_join &= events["kind"] == _ALLOC
                if joined_at < 0 and is_join.any():
                    joined_at, join_stack = (int(events[name][is_join][0]) for name in ("seq", "stack_id"))
                is_free = is_here & (events["kind"] != _ALLOC) & np.isin(events["address"], addresses)
                if joined_at < 0 and int(is_free.sum()) > len(blocks) // 10:
                    return None
                if joined_at >= 0:
                    freed.update(events["address"][is_free & (events["seq"] > joined_at)].tolist())
        except CompactedError:
            return None
        if joined_at < 0 or 2 * len(freed) < len(blocks):
            return None
        stacks = self._trace.stacks
        return stacks.frame(stacks.representative(join_stack)) if stacks.has_frames(join_stack) else Frame("", "", 0)


def _count_sizes(blocks: Table) -> Counter[int]:
    """Return the number of blocks of each requested size."""
    return Counter(blocks["requested_bytes"].tolist())


def _has_fallen(leak: Leak) -> bool:
    """Return whether the bytes fell by `LOAD_FALL` once there was half as much as in the end."""
    levels = np.array(leak.allocated_bytes_over_run)
    if not len(levels):
        return False
    highest = np.maximum.accumulate(levels)
    return bool(((levels < (1 - LOAD_FALL) * highest) & (2 * highest >= levels[-1])).any())


def _strip_scopes(function: str) -> str:
    """Return a function's name as object scans write it: without comprehensions in it, and functions around it."""
    return _COMPREHENSION.sub("", function).rpartition("<locals>.")[2]


def _is_main(function: str) -> bool:
    return _MAIN.fullmatch(function.rpartition(".")[2]) is not None
