"""Composition of the live memory at a position: by site, role, age and phase of the step.

The phase, the part of a training step in which a block was allocated, is a guess from autograd and the stack:

- backward: by an autograd node or under the call of its engine, including what checkpointing recomputes.
- optimizer: under torch.optim, which wraps the step of every optimizer, but not in the closure that the step calls.
- forward: under an nn.Module, even outside training, or a function of torch.nn.functional; or from a stack that caused
  live blocks of backward.
- other: parameters, inputs, metrics and everything else.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...reading.modules import OUTSIDE, is_outside, module_depth, outside_name
from ...reading.names import BEFORE_RECORDING, ROLES, ROLES_SHOWN, UNKNOWN
from ...reading.positions import Position
from ...reading.recorded import RecordedTrace
from ...reading.replay import LIVE_COLUMNS
from ...reading.sites import BY, describe_stacks, groups_stacks, sites_of_blocks
from ...reading.table import Table, maxima, sums, texts
from .package_lines import LibraryCall, find_library_call, live_by_stack

FORWARD, BACKWARD, OPTIMIZER, OTHER = PHASES = ("forward", "backward", "optimizer", "other")
_OPTIM = re.compile(r"[/\\]torch[/\\]optim[/\\](\w+)\.py$")
_WRAPPER_FILE = "optimizer"
"""File of torch.optim that wraps the step of every optimizer, including the user's own."""
_ENGINE = re.compile(r"[/\\]torch[/\\]autograd[/\\](graph|__init__)\.py$")
_ENGINE_CALLS = ("_engine_run_backward", "backward", "grad")
"""Functions of these files that run the engine or allocate its first gradients."""
_MODULES = re.compile(r"[/\\]torch[/\\]nn[/\\](modules[/\\]module|functional)\.py$")
_MODULE_CALLS = ("_call_impl", "_wrapped_call_impl")


class StackPhases:
    """Phase of each stack of a trace, from its frames alone."""

    def __init__(self, trace: RecordedTrace) -> None:
        self._stacks = trace.stacks
        # Phase of a stack, and whether a user frame called from it is an optimizer's closure.
        self._states: dict[int, tuple[str, bool]] = {0: (OTHER, False)}

    def of_stack(self, stack: int) -> str:
        pending = []
        while stack not in self._states:
            pending.append(stack)
            stack = int(self._stacks.parent[stack])
        for node in reversed(pending):
            self._states[node] = self._state_of_callee(node, *self._states[stack])
            stack = node
        return self._states[stack][0]

    def _state_of_callee(self, stack: int, phase: str, calls_closure: bool) -> tuple[str, bool]:
        """Return the state of a frame whose caller has this phase: phase and `calls_closure`."""
        if self._stacks.is_user[stack]:
            return (OTHER if calls_closure else phase), False
        frame = self._stacks.frame(stack)
        if _ENGINE.search(frame.filename) and frame.name in _ENGINE_CALLS:
            return BACKWARD, False
        optim_match = _OPTIM.search(frame.filename)
        if optim_match:
            return OPTIMIZER, optim_match[1] != _WRAPPER_FILE
        module_match = _MODULES.search(frame.filename)
        if phase == OTHER and module_match and (module_match[1] == "functional" or frame.name in _MODULE_CALLS):
            return FORWARD, False
        return phase, calls_closure


def phases_of_blocks(trace: RecordedTrace, blocks: Table, phases: StackPhases | None = None) -> npt.NDArray[np.int64]:
    """Return the phase of each live block as an index into PHASES. Calls may share the cache `phases`."""
    phases = phases or StackPhases(trace)
    stacks, of_row = np.unique(blocks["stack_id"], return_inverse=True)
    numbers = np.array([PHASES.index(phases.of_stack(stack)) for stack in stacks.tolist()], np.int64)
    caused_backward = np.isin(stacks, blocks["stack_id"][blocks["backward"]])
    numbers[(numbers == PHASES.index(OTHER)) & caused_backward] = PHASES.index(FORWARD)
    return np.where(blocks["node_type"] != 0, PHASES.index(BACKWARD), numbers[of_row])


COMPOSITION_BY = (*BY, "role", "age", "phase")
_SITE = ("site", "filename", "line", "function", "source", "user")
_LIVE = ("live_bytes", "share", "live_blocks", "largest_bytes", "live_backward_bytes")
_YOUNGEST_CLASS_S = 1e-3
"""Upper end of the youngest age class in seconds; each further class ends ten times later."""


def composition_at(trace: RecordedTrace, at: Position = "end", *, device: str | None = None, by: str = "line") -> Table:
    """Return the composition of the memory at a position: see `Trace.usage`."""
    until = trace.first_event_after(at, device)
    return composition_of(trace, live_blocks(trace, until, device), by, until)


def live_blocks(trace: RecordedTrace, until: int, device: str | None) -> Table:
    """Return `Replay.live` before an event, of one device or of all devices concatenated."""
    device = trace.named_device(device)
    tables = [trace.replay.live(until, name) for name in ([device] if device else trace.replay.devices)]
    if len(tables) == 1:
        return tables[0]
    return Table(
        {
            name: np.concatenate([table[name] for table in tables or [trace.replay.live(until, "")]])
            for name in LIVE_COLUMNS
        }
    )


def composition_of(trace: RecordedTrace, blocks: Table, by: str, until: int) -> Table:
    """Return the composition of live blocks (`live_blocks`); `until` is the first event after the position."""
    if by not in COMPOSITION_BY and not groups_stacks(by):
        raise ValueError(f"by={by!r} is not known: use one of {', '.join(COMPOSITION_BY)}")
    if by == "role":
        return _compose_by_role(blocks)
    if by == "age":
        return _compose_by_age(trace, blocks, until)
    if by == "phase":
        phases = phases_of_blocks(trace, blocks)
        return _sum_by_name(blocks, "phase", phases, PHASES)
    if module_depth(by) is not None:
        return _compose_by_module(trace, blocks, by)
    return _compose_by_site(trace, blocks, by)


def _compose_by_site(trace: RecordedTrace, blocks: Table, by: str) -> Table:
    sites = sites_of_blocks(trace.stacks, blocks, by)
    names = describe_stacks(trace.stacks, sites["stack_id"], by)
    share = _shares(sites["live_bytes"])
    return Table({**names.columns, **sites.columns, "share": share}).select(*_SITE, *_LIVE, "stack_id")


def _compose_by_module(trace: RecordedTrace, blocks: Table, by: str) -> Table:
    """Return one row per module, and one per role of the memory outside of modules.

    A module has what its calls allocated, and those of its parameters, buffers and states of optimizers that have a
    recorded name.
    """
    stacks = trace.stacks
    distinct, of_row = np.unique(blocks["stack_id"], return_inverse=True)
    calls_none = [stacks.has_frames(stack) and stacks.modules.name(stack) == OUTSIDE for stack in distinct.tolist()]
    is_of_no_call = np.array(calls_none, np.bool_)[of_row]
    names = texts([""] * len(blocks))
    names[is_of_no_call] = _name_owners(trace, blocks.take(is_of_no_call), by)
    tables = [_compose_by_site(trace, blocks.take(names == ""), by)]
    for name in np.unique(names[names != ""]).tolist():
        table = _compose_by_site(trace, blocks.take(names == name), by)
        tables.append(table.assign(site=texts([name]), function=texts([name]), user=np.array([not is_outside(name)])))
    joined = Table({name: np.concatenate([table[name] for table in tables]) for name in tables[0].columns})
    columns = joined.take(np.argsort(-joined["live_bytes"], kind="stable")).columns
    # Add rows of one name to the one with the most bytes, which comes first.
    rows, of_row = np.unique(columns["site"], return_index=True, return_inverse=True)[1:]
    merged = Table(columns).take(rows).columns
    for name in ("live_bytes", "live_blocks", "live_backward_bytes"):
        merged[name] = sums(of_row, columns[name], len(rows))
    merged["largest_bytes"] = maxima(of_row, columns["largest_bytes"], len(rows))
    merged["share"] = _shares(merged["live_bytes"])
    return Table(merged).take(np.argsort(-merged["live_bytes"], kind="stable"))


def role_bytes_of_modules(trace: RecordedTrace, blocks: Table, by: str) -> dict[str, dict[str, int]]:
    """Return the bytes of each role, the most first, by module, for composition rows by module; else nothing."""
    bytes_by_module: dict[str, dict[str, int]] = {}
    if module_depth(by) is None:
        return {}
    for role in np.unique(blocks["role"]).tolist():
        table = _compose_by_module(trace, blocks.take(blocks["role"] == role), by)
        for name, size in zip(table["site"].tolist(), table["live_bytes"].tolist(), strict=True):
            bytes_by_module.setdefault(name, {})[ROLES[role]] = size
    return {name: dict(sorted(sizes.items(), key=lambda item: -item[1])) for name, sizes in bytes_by_module.items()}


def _name_owners(trace: RecordedTrace, blocks: Table, by: str) -> list[str]:
    """Return the module that has each block outside of modules, else `outside_name` of its role; "" if unknown."""
    modules, depth = trace.stacks.modules, module_depth(by) or 0
    of_blocks = trace.block_modules(blocks["address"].tolist(), blocks["alloc_seq"].tolist())
    roles = [ROLES[role] for role in blocks["role"].tolist()]
    return [
        modules.owned_name(module, depth) or ("" if role == UNKNOWN else outside_name(role))
        for module, role in zip(of_blocks, roles, strict=True)
    ]


def _compose_by_role(blocks: Table) -> Table:
    numbers = np.array([ROLES_SHOWN.index(role) for role in ROLES])[blocks["role"]]
    table = _sum_by_name(blocks, "role", numbers, ROLES_SHOWN)
    exact = sums(numbers, np.where(blocks["role_is_exact"], blocks["requested_bytes"], 0), len(ROLES_SHOWN))
    exact_bytes = np.array([exact[ROLES_SHOWN.index(role)] for role in table["role"]], np.int64)
    return table.assign(exact_bytes=exact_bytes).select("role", "live_bytes", "exact_bytes", *_LIVE[1:])


def library_calls_by_role(trace: RecordedTrace, blocks: Table) -> dict[str, LibraryCall]:
    """Return what the line of user code calls in a library that allocated nearly all memory of a role, by role."""
    numbers = np.array([ROLES_SHOWN.index(role) for role in ROLES])[blocks["role"]]
    calls = {
        ROLES_SHOWN[number]: find_library_call(trace.stacks, live_by_stack(blocks.take(numbers == number)))
        for number in np.unique(numbers).tolist()
    }
    return {role: call for role, call in calls.items() if call is not None}


def _shares(sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    return sizes.astype(np.float64) / max(int(sizes.sum()), 1)


def _sum_by_name(blocks: Table, name: str, numbers: npt.NDArray[np.int64], names: Sequence[str]) -> Table:
    """Return one row per name that occurs, in the order of `names`; `numbers` has the index of each block's name."""
    sizes, count = blocks["requested_bytes"], len(names)
    block_counts = np.bincount(numbers, minlength=count)
    columns = {
        name: texts(names),
        "live_bytes": sums(numbers, sizes, count),
        "live_blocks": block_counts,
        "largest_bytes": maxima(numbers, sizes, count),
        "live_backward_bytes": sums(numbers, np.where(blocks["backward"], sizes, 0), count),
    }
    columns["share"] = _shares(columns["live_bytes"])
    return Table(columns).take(block_counts > 0).select(name, *_LIVE)


def _compose_by_age(trace: RecordedTrace, blocks: Table, until: int) -> Table:
    """Return one row per age class: in steps, each twice as long as the one before, else in seconds, ten times."""
    ends = trace.positions.step_ends
    if len(ends):
        # Steps are compared by order, not by number: a program may restart at 0 in each epoch. The event that ends a
        # step belongs to it.
        allocation_steps = np.searchsorted(ends, blocks["alloc_seq"], side="left")
        current_step = int(np.searchsorted(ends, until - 1, side="left"))
        ages, unit = (current_step - allocation_steps).astype(np.float64), "step"
        limits = [0.0, 1.0]
        ratio = 2.0
    else:
        now_ns = trace.time_ns("end" if until >= trace.end_seq else until - 1)
        ages, unit = (now_ns - blocks["alloc_ns"]) / 1e9, "second"
        limits, ratio = [0.0, _YOUNGEST_CLASS_S], 10.0
    ages[blocks["older"]] = 0.0
    while limits[-1] <= ages.max(initial=0.0):
        limits.append(limits[-1] * ratio)
    make_label = _steps_label if unit == "step" else _seconds_label
    labels = (*(make_label(begin, end) for begin, end in itertools.pairwise(limits)), BEFORE_RECORDING)
    # Clocks of threads may differ slightly: a negative age counts as 0.
    class_index = np.searchsorted(limits, np.maximum(ages, 0.0), side="right") - 1
    table = _sum_by_name(blocks, "age", np.where(blocks["older"], len(labels) - 1, class_index), labels)
    row_labels = [labels.index(age) for age in table["age"].tolist()]
    bounds: dict[str, npt.NDArray[Any]] = {
        "from_age": np.array([*limits[:-1], np.nan])[row_labels],
        "to_age": np.array([*limits[1:], np.nan])[row_labels],
        "unit": texts([unit] * len(row_labels)),
    }
    return table.assign(**bounds).select("age", *bounds, *_LIVE)


def _steps_label(begin: float, end: float) -> str:
    first, last = int(begin), int(end) - 1
    if last == 0:
        return "this step"
    return "1 step" if last == 1 else f"{first:,} to {last:,} steps"


def _seconds_label(begin: float, end: float) -> str:
    return f"{begin:g} to {end:g} s" if begin else f"under {end:g} s"
