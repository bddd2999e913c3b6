"""Calls of the model whose activations are live: how many since backward last evaluated them.

Memory of a device before an event: before a failed allocation (`program_memory`), or at the peak (`unused_graph`).
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...reading.names import ROLES
from ...reading.positions import Range
from ...reading.recorded import RecordedTrace
from ...reading.sites import Frame, Site, SiteBytes, StackIndex
from ...reading.table import Table
from ..usage.composition import FORWARD as FORWARD_PHASE
from ..usage.composition import OPTIMIZER as OPTIMIZER_PHASE
from ..usage.composition import StackPhases

NO_BACKWARD = "forward without backward"
MANY_FORWARDS = "many forwards before backward"
MODEL, ACTIVATIONS, FORWARD, KEPT = USES = ("model", "activations", "forward", "kept")
MIN_FORWARDS = 2
"""Minimum number of forwards without backward, and minimum factor on the usual number before a backward."""
MIN_CALLS = 3
"""Minimum number of calls of each module before a backward to be micro-batches: pairs of inputs have one loss."""
LARGE_SHARE = 0.25
"""Minimum share of the usable bytes that one thing holds to be the cause, whatever else applies."""
MIN_NODES = 2
MIN_NODES_PER_BLOCK = 0.25
"""Minimum numbers of autograd nodes that were created with the activations of a line. Under no_grad, none is."""
MODEL_ROLES = ("parameter", "gradient", "optimizer state", "buffer")
MAX_EVENTS = 200_000
"""Number of events before an event, or after it, that are searched for forwards and backwards."""
_MODULE_CALL = re.compile(r"[/\\]torch[/\\]nn[/\\]modules[/\\]module\.py$")

_Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Forwards:
    """Calls of the model by one line, and their live activations."""

    site: SiteBytes
    """The line that calls the model, with the activations of `count` calls."""
    count: int
    """Number of calls since backward last evaluated nodes of this line, else of all calls."""
    call_count: int
    """Number of calls of each module since then, with other work between them: of micro-batches, not of layers."""
    usual_count: int
    """Maximum number of calls before an earlier pass of backward over this line; 0 if there was none."""
    has_backward: bool
    """True if backward evaluated nodes of this line before."""
    is_training: bool
    """True if there was any backward before."""
    is_in_thread: bool
    """True if the line runs in a thread of `threading`."""
    may_lack_graph: bool
    """True if the trace, a converted snapshot, does not tell whether gradients were enabled."""

    def find_cause(self, total_bytes: int) -> str | None:
        """Return NO_BACKWARD or MANY_FORWARDS if these calls are the cause of `total_bytes` in use, else None."""
        if self.site.bytes < LARGE_SHARE * total_bytes:
            return None
        is_unusual = self.count >= max(MIN_FORWARDS, MIN_FORWARDS * self.usual_count)
        if not is_unusual and self.call_count < MIN_CALLS:
            return None
        return MANY_FORWARDS if self.has_backward else NO_BACKWARD


@dataclass(frozen=True, eq=False)
class LiveForwards:
    """Calls of the model by one line, and their allocations."""

    forwards: Forwards
    stacks: npt.NDArray[np.int64]
    """Stacks of the allocations of these calls, and of earlier ones of the line."""
    rows: _Mask
    """By live block, whether it is an activation of these calls."""
    evaluated: npt.NDArray[np.int64]
    """Stacks of forward that backward evaluated before."""


class ForwardReader:
    """Live blocks of a device before an event by use, and the last allocations before it.

    Args:
        trace: The trace.
        device: Device in torch's spelling.
        until: The event.
        live: The live blocks, as of `Replay.live`.
        in_backward: True if backward makes the request at this event.
    """

    def __init__(self, trace: RecordedTrace, device: str, until: int, live: Table, *, in_backward: bool) -> None:
        self._trace = trace
        self._device = device
        self._until = until
        self._in_backward = in_backward
        self._live = live
        self._stacks: StackIndex = trace.stacks
        self._phases = StackPhases(trace)
        self._lines: npt.NDArray[np.int64] = trace.stacks.group("line")
        self._bytes: npt.NDArray[np.int64] = live["requested_bytes"].astype(np.int64)
        self._of_backward: _Mask = live["node_type"] != 0
        self._of_optimizer = ~self._of_backward & self._is_true_of_stack(
            lambda stack: self._phases.of_stack(stack) == OPTIMIZER_PHASE
        )
        self._creates_nodes: _Mask = np.zeros(len(trace.stacks), np.bool_)
        nodes_created = trace.replay.nodes_created[: len(trace.stacks)]
        # An allocation may be counted for a node that an in-place operator or an unrecorded one created.
        live_blocks = np.bincount(live["stack_id"][~self._of_backward], minlength=len(trace.stacks))
        self._creates_nodes[: len(nodes_created)] = 2 * nodes_created > live_blocks[: len(nodes_created)]
        # A snapshot of torch tells no node: what calls of a module hold may be activations. Its backward has no stack.
        self._lacks_nodes = trace.ending.get("reason") == "converted"
        if self._lacks_nodes:
            self._creates_nodes |= find_module_calls(trace.stacks) > 0
        first = max(until - MAX_EVENTS, trace.integrity.compacted_until)
        self._begins_late = first > 0
        """True if the events are not all of the run."""
        self._events = self.read_events(Range(first, until))
        self._uses = self._find_uses()

    def _is_true_of_stack(self, predicate: Callable[[int], bool]) -> _Mask:
        """Return for each block whether a predicate applies to its stack."""
        stacks, of_row = np.unique(self._live["stack_id"], return_inverse=True)
        return np.array([predicate(stack) for stack in stacks.tolist()], np.bool_)[of_row.reshape(-1)]

    def _has_role(self, *roles: str) -> _Mask:
        return np.isin(self._live["role"], [ROLES.index(role) for role in roles])

    def _find_uses(self) -> dict[str, _Mask]:
        is_model = self._has_role(*MODEL_ROLES) | self._of_optimizer
        in_module = self._is_true_of_stack(lambda stack: self._phases.of_stack(stack) == FORWARD_PHASE)
        creates_nodes = self._creates_nodes[self._live["stack_id"]] | in_module & self._has_role("activation")
        is_activation = (self._of_backward | creates_nodes) & ~is_model
        if self._lacks_nodes:  # what has outlived a backward is no activation
            is_activation &= self._live["alloc_seq"].astype(np.int64) > self._find_past_backward()
            in_module &= is_activation
        is_forward = in_module & ~is_model & ~is_activation
        is_kept = ~(is_model | is_activation | is_forward)
        return {MODEL: is_model, ACTIVATIONS: is_activation, FORWARD: is_forward, KEPT: is_kept}

    def _find_past_backward(self) -> int:
        """Return the last event of backward before the last forward of a snapshot, -1 without one."""
        seqs, stacks = self._events["seq"], self._events["stack"]
        last_forward = int(seqs[self._calls[stacks] > 0].max(initial=-1))
        is_past = ((stacks == 0) | (self._events["node_type"] != 0)) & (seqs < last_forward)
        return int(seqs[is_past].max(initial=-1))

    def read_forwards(self) -> tuple[int, LiveForwards | None]:
        """Return the last event of backward, -1 if there is none, and the calls with the most activations."""
        activations = self._uses[ACTIVATIONS] & ~self._of_backward
        events = self._events
        stacks = np.union1d(self._live["stack_id"][activations], events["stack"])
        stacks = stacks[self._calls[stacks] > 0]
        lines = self._lines[self._stacks.parent[self._calls[stacks]]]
        line_of_stack = dict(zip(stacks.tolist(), lines.tolist(), strict=True))
        is_backward = events["node_type"] != 0
        if self._lacks_nodes:
            is_backward |= events["stack"] == 0
        is_in_past_pass = is_backward
        if self._in_backward:
            # The pass that made the request still needs the activations of the calls that it evaluates.
            is_in_past_pass = is_backward & (events["seq"] < events["seq"][~is_backward].max(initial=-1))
        last_pass = int(events["seq"][is_in_past_pass].max(initial=-1))

        live_stacks = self._live["stack_id"]
        bytes_by_line: Counter[int] = Counter()
        for stack, size in zip(live_stacks[activations].tolist(), self._bytes[activations].tolist(), strict=True):
            if stack in line_of_stack:
                bytes_by_line[line_of_stack[stack]] += size
        if not bytes_by_line:
            return last_pass, None
        [(line, _)] = bytes_by_line.most_common(1)
        stacks_of_line = [stack for stack, call_line in line_of_stack.items() if call_line == line]

        is_of_line = np.isin(events["stack"], stacks_of_line)
        is_of_main = np.isin(events["stack"], self._select_main_module(stacks_of_line, activations))
        is_own_pass = is_in_past_pass if self._lacks_nodes else is_of_line & is_in_past_pass
        last_pass_of_line = int(events["seq"][is_own_pass].max(initial=-1))
        rows = activations & np.isin(live_stacks, stacks_of_line) & (self._live["alloc_seq"] > last_pass_of_line)
        if not rows.any() or not self._has_graph(rows):
            return last_pass, None
        is_training = bool(is_backward.any())
        # In the first pass, only new inputs distinguish calls of the model from layers and time steps.
        is_counted = is_of_line | is_training | ~self._creates_nodes[events["stack"]]
        is_counted |= is_own_pass
        is_call = is_of_main & ~is_backward
        call_counts = _count_calls(is_call[is_counted], is_own_pass[is_counted])
        caller = int(self._stacks.parent[self._calls[int(live_stacks[rows][0])]])
        forwards = Forwards(
            SiteBytes(Site.of_stack(self._stacks, caller), int(self._bytes[rows].sum()), int(rows.sum()), caller),
            int(call_counts[-1]),
            call_count=self._count_calls_of_modules(is_call & (events["seq"] > last_pass_of_line)),
            usual_count=int(call_counts[:-1].max(initial=0)),
            has_backward=bool((is_backward if self._lacks_nodes else is_of_line & is_backward).any()),
            is_training=is_training,
            may_lack_graph=self._lacks_nodes,
            is_in_thread=self._stacks.is_in_thread(caller),
        )
        evaluated = np.unique(events["stack"][is_backward])
        return last_pass, LiveForwards(forwards, np.array(stacks_of_line, np.int64), rows, evaluated)

    def _select_main_module(self, stacks: list[int], activations: _Mask) -> list[int]:
        """Return the stacks in calls of the outermost module with the most activations.

        A line may call a second module for the input of the first: that is no second forward.
        """
        if not self._stacks.has_modules:
            return stacks
        module_of = dict(zip(stacks, self._stacks.modules.called(self._calls[stacks]).tolist(), strict=True))
        sizes: Counter[int] = Counter()
        for stack, size in zip(
            self._live["stack_id"][activations].tolist(), self._bytes[activations].tolist(), strict=True
        ):
            if stack in module_of:
                sizes[module_of[stack]] += size
        [(main_module, _)] = sizes.most_common(1)
        return [stack for stack, module in module_of.items() if module == main_module]

    def _has_graph(self, rows: _Mask) -> bool:
        """Return whether autograd nodes were created with these blocks: a line may sometimes run under no_grad."""
        if self._lacks_nodes:
            return True
        is_of_row = np.isin(self._events["seq"], self._live["alloc_seq"][rows])
        return have_nodes(self._events["autograd_seq"][is_of_row])

    def _count_calls_of_modules(self, is_recent: _Mask) -> int:
        """Return how often each module was called by the allocations of a mask, with other work between: the minimum.

        Layers and their model are called once in a forward. So is a recurrent model, whose layers are called again and
        again: outermost calls count, too. Modules without such allocations do not count.
        """
        if not self._stacks.has_modules or not is_recent.any():
            return 0
        groups = self._stacks.modules.called(self._events["stack"]), self._calls[self._events["stack"]]
        return min(_count_begins(np.where(is_recent, group, 0)) for group in groups)

    def read_events(self, within: Range) -> dict[str, npt.NDArray[Any]]:
        """Return the device's allocations in a range.

        Columns: seq, requested_bytes, node_type, autograd_seq, forward_stack_id (in backward; 0: unknown, as of a
        function in Python), stack (in backward of forward, if known).
        """
        columns = ("seq", "requested_bytes", "node_type", "autograd_seq", "forward_stack_id", "stack")
        parts: list[dict[str, npt.NDArray[Any]]] = [{name: np.zeros(0, np.int64) for name in columns}]
        for events in self._trace.iter_events(within, ("alloc",), chunk=MAX_EVENTS):
            rows = events.take(self._trace.devices_of(events) == self._device)
            in_backward = rows["node_type"] != 0
            stack = np.where(in_backward, np.maximum(rows["forward_stack_id"], rows["stack_id"]), rows["stack_id"])
            stack = np.where((stack >= 0) & (stack < len(self._stacks)), stack, 0)
            parts.append({**{name: rows[name] for name in columns[:-1]}, "stack": stack})
        return {name: np.concatenate([part[name] for part in parts]).astype(np.int64) for name in columns}

    @functools.cached_property
    def _calls(self) -> npt.NDArray[np.uint32]:
        """By stack: the stack of the outermost call of a module within it; 0: there is none."""
        return find_module_calls(self._stacks)

    def _frames(self, stack: int) -> list[Frame]:
        return self._stacks.frames(stack) if self._stacks.has_frames(stack) else []


def find_module_calls(stacks: StackIndex) -> npt.NDArray[np.uint32]:
    """Return by stack the stack of the outermost call of a module within it; 0: there is none."""
    return stacks.outermost(ends_in_module_call(stacks))


def ends_in_module_call(stacks: StackIndex) -> _Mask:
    """Return a mask of the stacks whose innermost frame is torch's call of a module."""
    return stacks.ends_in(lambda filename, _: _MODULE_CALL.search(filename) is not None)


def find_lines(stacks: StackIndex, stack_ids: npt.NDArray[np.int64]) -> set[int]:
    """Return the lines, as of `StackIndex.group`, that these stacks contain."""
    lines, parent = stacks.group("line"), stacks.parent
    line_numbers: set[int] = set()
    pending = {int(stack) for stack in stack_ids.tolist()}
    seen: set[int] = set()
    while pending:
        seen |= pending
        line_numbers.update(lines[list(pending)].tolist())
        pending = {int(parent[stack]) for stack in pending} - seen - {0}
    return line_numbers


def have_nodes(autograd_seqs: npt.NDArray[np.int64]) -> bool:
    """Return whether autograd nodes were created with allocations, by their `autograd_seq`; True if there are none."""
    count = len(autograd_seqs)
    return not count or len(np.unique(autograd_seqs)) >= max(MIN_NODES, MIN_NODES_PER_BLOCK * count)


def _count_calls(is_call: _Mask, is_pass: _Mask) -> npt.NDArray[np.int64]:
    """Return the number of calls before each pass of backward, and after the last pass.

    Args:
        is_call: By allocation, in order, whether a call of the model made the allocation.
        is_pass: Whether backward of such a call made the allocation.
    """
    begins = is_call & ~np.append(False, is_call[:-1])
    pass_begins = is_pass & ~np.append(False, is_pass[:-1])
    return np.bincount(np.cumsum(pass_begins), begins, int(pass_begins.sum()) + 1).astype(np.int64)


def _count_begins(groups: npt.NDArray[np.int64]) -> int:
    """Return how often each group, except 0, begins in a sequence: the minimum."""
    begins = groups[(groups != np.append(0, groups[:-1])) & (groups > 0)]
    return int(np.unique(begins, return_counts=True)[1].min(initial=len(begins)))
