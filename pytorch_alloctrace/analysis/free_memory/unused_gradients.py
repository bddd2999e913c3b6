"""Gradients at the peak that no optimizer uses: a teacher or backbone that is neither frozen nor under no_grad.

`recording.roles` names the gradients of each torch optimizer's parameters. The gradients found here were never named,
were allocated in one step before the peak, and are live after the last step and after the last gradients of the device
were named, for `MIN_STEPS` at least. Not found are:

- gradients of an optimizer that steps rarely: those at a place (stack and size) whose gradients were named at any time,
  and those whose stack ran before that step, as the program then freed earlier gradients;
- tensors that the program took from a single backward and keeps, as of `torch.autograd.grad`: backward must have
  computed gradients of this place again and again while these were live;
- all gradients, if backward made none that was named: the program copies gradients to the parameters of its optimizers,
  as in mixed precision with master weights;
- blocks of which the forward is unknown: a hook or a function in Python may have allocated anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from ...reading.names import HOST_DEVICES, ROLES
from ...reading.positions import Range
from ...reading.recorded import RecordedTrace
from ...reading.replay import Peak
from ...reading.sites import Site, StackIndex, bytes_by_stack
from ...reading.table import Table
from .forwards import MAX_EVENTS, ends_in_module_call, find_lines
from .inefficiency import MIN_BYTES, Inefficiency

UNUSED_GRADIENTS = "unused_gradients"
MIN_SHARE = 0.1
"""Minimum share of the peak. Lower than that of other inefficiencies: the cure takes one line, costs nothing, and frees
activations and time of backward, too.
"""
MIN_STEPS = 10
"""Minimum number of steps for which the gradients are live, and of passes of backward that computed them."""
MIN_LINE_SHARE = 0.5
"""Minimum share of the gradients of a line to be named as their cause."""
_MAX_NODE = 1 << 62
_GRADIENT, _ACTIVATION = ROLES.index("gradient"), ROLES.index("activation")


def find_end(trace: RecordedTrace, device: str) -> int:
    """Return the event after the last step and after the last named gradients of a device; 0 if either is missing.

    Gradients of an optimizer whose first step is the last of the trace are named after that step.
    """
    step_ends = trace.positions.step_ends
    if device in HOST_DEVICES or len(step_ends) <= MIN_STEPS:
        return 0
    last_named = int(_list_named_gradients(trace, device)["seq"].max(initial=-1))
    # The steps of a corrupt trace may be anywhere.
    return min(max(last_named, int(step_ends[-1])) + 1, trace.end_seq) if last_named >= 0 else 0


def find_unused_gradients(trace: RecordedTrace, device: str, peak: Peak, until: int) -> Inefficiency | None:
    """Return the gradients at the peak of allocated bytes that no optimizer uses. Raises CompactedError.

    until: As of `find_end`. seconds: when the first of the gradients was allocated. site: the line that calls the model
    without optimizer; if it has none of its own, the line with the most of the gradients. figures: steps (for which all
    are live), has_own_line (1 if backward computes named gradients from other lines only), is_first (1 if no trained
    parameter gets its gradient through this line; 0 if it may), activation_bytes (activations of the line at the peak;
    0 if it is no line of its own).
    """
    if peak.bytes < MIN_BYTES:
        return None
    live = trace.replay.live(until, device)
    step_ends = trace.positions.step_ends
    latest = min(peak.seq, int(step_ends[-MIN_STEPS - 1]))
    is_candidate = (live["role"] == _GRADIENT) & ~live["role_is_exact"] & live["backward"] & ~live["older"]
    rows = live.take(is_candidate & (live["alloc_seq"] <= latest))
    min_bytes = max(MIN_BYTES, MIN_SHARE * peak.bytes)
    if rows["block_bytes"].sum() < min_bytes:
        return None
    named = _list_named_gradients(trace, device)
    last_named = int(named["seq"].max(initial=-1))
    places = np.unique(_list_places(named))
    rows = rows.take((rows["alloc_seq"] < last_named) & ~np.isin(_list_places(rows), places))
    rows = _take_first_step(trace, device, until, rows)
    size = int(rows["block_bytes"].sum())
    if size < min_bytes:
        return None
    updated = trace.replay.live(last_named, device)
    updated = updated.take((updated["role"] == _GRADIENT) & updated["role_is_exact"] & (updated["node_type"] != 0))
    if not len(updated):
        return None

    stacks = trace.stacks
    sizes = bytes_by_stack(rows["stack_id"].astype(np.int64), rows["block_bytes"].astype(np.int64))
    updated_stacks = np.union1d(named["stack_id"], updated["stack_id"]).astype(np.int64)
    caller, line_bytes = _find_line(stacks, sizes, find_lines(stacks, updated_stacks))
    has_own_line = line_bytes >= MIN_LINE_SHARE * size
    is_first, activation_bytes = False, 0
    if has_own_line:
        lines = stacks.group("line")
        is_below = stacks.outermost(lines == lines[caller]) > 0
        # A trained parameter that is the line's input may get its gradient from a node of which the forward is unknown.
        is_known = bool(updated["backward"].all()) and all(map(stacks.has_frames, updated_stacks.tolist()))
        is_first = is_known and _is_first(trace, until, is_below)
        at_peak = trace.replay.live(peak.seq + 1, device)
        is_kept = (at_peak["role"] == _ACTIVATION) & (at_peak["node_type"] == 0) & is_below[at_peak["stack_id"]]
        activation_bytes = int(at_peak["block_bytes"][is_kept].sum())
    else:
        caller, line_bytes = _find_largest_site(stacks, sizes)
    return Inefficiency(
        kind=UNUSED_GRADIENTS,
        device=device,
        bytes=size,
        total_bytes=peak.bytes,
        seconds=max(int(rows["alloc_ns"].min()) - trace.begin_ns, 0) / 1e9,
        site=Site.of_stack(stacks, caller),
        stack_id=caller,
        site_bytes=line_bytes,
        figures={
            "steps": float((step_ends >= rows["alloc_seq"].max()).sum()),
            "has_own_line": float(has_own_line),
            "is_first": float(is_first),
            "activation_bytes": float(activation_bytes),
        },
    )


def _list_named_gradients(trace: RecordedTrace, device: str) -> Table:
    named = trace.replay.named_blocks()
    return named.take((named["role"] == _GRADIENT) & (named["device"] == device))


def _list_places(blocks: Table) -> npt.NDArray[np.complex128]:
    """Return the place of each block, its stack and its requested bytes, as one number."""
    return blocks["stack_id"] + 1j * blocks["requested_bytes"]


def _take_first_step(trace: RecordedTrace, device: str, until: int, rows: Table) -> Table:
    """Return the gradients of the step that allocated the most bytes of them, if their stacks first ran in this step.

    Their stacks allocated `MIN_STEPS` times as many blocks as there are gradients.
    """
    if not len(rows):
        return rows
    step_ends, count = trace.positions.step_ends, len(trace.stacks)
    steps = np.searchsorted(step_ends, rows["alloc_seq"])
    step = int(np.bincount(steps, rows["block_bytes"]).argmax())
    rows = rows.take(steps == step)
    gradients = np.bincount(rows["stack_id"], minlength=count)
    is_recomputed = _count_allocations(trace, device, until) >= MIN_STEPS * gradients
    begin = int(step_ends[step - 1]) + 1 if step else 0
    has_run = _count_allocations(trace, device, begin) > 0 if begin else np.zeros(count, np.bool_)
    return rows.take((is_recomputed & ~has_run)[rows["stack_id"]])


def _count_allocations(trace: RecordedTrace, device: str, until: int) -> npt.NDArray[np.int64]:
    """Return by stack the number of allocations before an event."""
    totals = trace.replay.stacks(until, device)
    counts = np.zeros(len(trace.stacks), np.int64)
    counts[totals["stack_id"]] = totals["allocations"]
    return counts


def _find_line(stacks: StackIndex, sizes: Mapping[int, int], updated_lines: set[int]) -> tuple[int, int]:
    """Return the part of a stack at the line below which the most bytes are, and the bytes; 0, 0 if there is none.

    The line is none of `updated_lines`. Of several lines with equal bytes, it is the outermost that calls a module,
    else the innermost. sizes: bytes by stack.
    """
    lines, calls = stacks.group("line"), ends_in_module_call(stacks)
    bytes_by_line: Counter[int] = Counter()
    for stack, size in sizes.items():
        for line in {int(lines[part]) for part in _list_parts(stacks, stack)} - updated_lines:
            bytes_by_line[line] += size
    most = max(bytes_by_line.values(), default=0)
    innermost, of_module = 0, 0
    for stack in sorted(sizes, key=lambda stack: -sizes[stack]):
        callee = 0
        for part in _list_parts(stacks, stack):
            if bytes_by_line[int(lines[part])] == most:
                innermost = innermost or part
                of_module = part if calls[callee] and not calls[part] else of_module
            callee = part
        if innermost:
            break
    return of_module or innermost, most


def _list_parts(stacks: StackIndex, stack: int) -> Iterator[int]:
    """Yield a stack and its callers, innermost first."""
    while stacks.has_frames(stack):
        yield stack
        stack = int(stacks.parent[stack])


def _find_largest_site(stacks: StackIndex, sizes: Mapping[int, int]) -> tuple[int, int]:
    """Return a stack of the line with the most bytes, and the bytes. sizes: bytes by stack."""
    lines = stacks.group("line")
    bytes_by_line: Counter[int] = Counter()
    for stack, size in sizes.items():
        bytes_by_line[int(lines[stack])] += size
    [(line, most)] = bytes_by_line.most_common(1)
    return max((stack for stack in sizes if lines[stack] == line), key=lambda stack: sizes[stack]), most


def _is_first(trace: RecordedTrace, until: int, is_below: npt.NDArray[np.bool_]) -> bool:
    """Return whether no pass of the last steps evaluated nodes that were created before those of a line.

    Then no gradient flows through the line, as passes evaluate later nodes first. Nodes whose forward is unknown, such
    as views, may be of the line if they lie between its nodes. is_below: by stack, whether it is of the line.
    """
    first = max(until - MAX_EVENTS, int(trace.positions.step_ends[-MIN_STEPS]), trace.integrity.compacted_until)
    threads: set[int] = set()
    newest = oldest = -1  # of the line in this pass
    oldest_other = _MAX_NODE
    for allocations in trace.iter_events(Range(first, until), ("alloc",)):
        # Nodes that accumulate gradients have no number of their own, but the highest.
        events = allocations.take(
            (allocations["node_type"] != 0) & (allocations["node_seq"].astype(np.uint64) < _MAX_NODE)
        )
        threads.update(np.unique(events["node_thread"]).tolist())
        stacks = events["forward_stack_id"]
        is_of_trace = (stacks >= 0) & (stacks < len(is_below))
        columns = (is_below[np.where(is_of_trace, stacks, 0)].tolist(), events["node_seq"].tolist())
        for is_of_line, node in zip(*columns, strict=True):
            if is_of_line and node > newest:
                if oldest_other < oldest:
                    return False
                newest, oldest, oldest_other = node, node, _MAX_NODE
            elif is_of_line:
                oldest = min(oldest, node)
            elif node < newest:
                oldest_other = min(oldest_other, node)
    # Each thread of the program numbers its nodes by itself.
    return newest >= 0 and oldest_other > oldest and len(threads) == 1
