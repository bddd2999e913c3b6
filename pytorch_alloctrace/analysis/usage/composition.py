"""What the live memory consists of at a position: by site, by role, by age and by phase of the step."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import pandas as pd

from ...reading.dtypes import TEXT
from ...reading.positions import Position
from ...reading.recorded import RecordedTrace
from ...reading.roles import ROLES_SHOWN
from ...reading.sites import BEFORE_RECORDING, BY, groups_stacks, sites_of_blocks
from .phases import PHASES, phases_of_blocks

COMPOSITION_BY = (*BY, "role", "age", "phase")
_SITE = ("site", "filename", "line", "function", "source", "user")
_HELD = ("bytes", "share", "blocks", "largest", "backward_bytes")
_AGE = ("age", "from_age", "to_age", "unit")
_LEAST_SECONDS = 1e-3
"""End of the youngest class of age in seconds; each further one is ten times as long."""


def composition_at(
    trace: RecordedTrace, at: Position = "end", *, device: str | None = None, by: str = "line"
) -> pd.DataFrame:
    """See `Trace.composition`."""
    until = trace.first_event_after(at, device)
    blocks = trace.live(until - 1, device=device)
    return composition_of(trace, blocks, by, until)


def composition_of(trace: RecordedTrace, blocks: pd.DataFrame, by: str, until: int) -> pd.DataFrame:
    """The same from live blocks (`Trace.live`). until: the first event after the position."""
    if by not in COMPOSITION_BY and not groups_stacks(by):
        raise ValueError(f"by={by!r} is not known: use one of {', '.join(COMPOSITION_BY)}")
    if by == "role":
        return _by_role(blocks)
    if by == "age":
        return _by_age(trace, blocks, until)
    if by == "phase":
        return _summed(blocks.assign(phase=phases_of_blocks(trace, blocks)), "phase", PHASES)
    sites = sites_of_blocks(trace.stacks, blocks.rename(columns={"nbytes": "requested_size"}), by)
    total = int(sites["bytes"].sum())
    table = sites.rename(columns={"live_blocks": "blocks", "live_backward_bytes": "backward_bytes"})
    return table.assign(share=_shares(table["bytes"], total))[[*_SITE, *_HELD, "stack_id"]]


def _by_role(blocks: pd.DataFrame) -> pd.DataFrame:
    table = _summed(blocks, "role", ROLES_SHOWN)
    exact = blocks[blocks["role_is_exact"].astype(bool)].groupby("role", observed=True)["nbytes"].sum()
    exact_bytes = [int(exact.get(role, 0)) for role in table["role"]]
    table.insert(2, "exact_bytes", pd.Series(exact_bytes, dtype=np.int64, index=table.index))
    return table


def _shares(sizes: pd.Series[int], total: int) -> npt.NDArray[np.float64]:
    return sizes.to_numpy(np.float64) / max(total, 1)


def _summed(blocks: pd.DataFrame, name: str, order: tuple[str, ...]) -> pd.DataFrame:
    """One row for each value of a column of the blocks, in this order, without values that no block has."""
    groups = (
        blocks.assign(backward_nbytes=blocks["nbytes"].where(blocks["backward"].astype(bool), 0))
        .groupby(name, observed=True)
        .agg(
            bytes=("nbytes", "sum"),
            blocks=("nbytes", "size"),
            largest=("nbytes", "max"),
            backward_bytes=("backward_nbytes", "sum"),
        )
    )
    table = groups.reindex([value for value in order if value in groups.index]).astype(np.int64).reset_index()
    shares = _shares(table["bytes"], int(table["bytes"].sum()))
    return table.assign(**{name: table[name].astype(TEXT)}, share=shares)[[name, *_HELD]]


def _by_age(trace: RecordedTrace, blocks: pd.DataFrame, until: int) -> pd.DataFrame:
    """Classes of steps, each twice as long as the one before; without steps of seconds, each ten times as long. Blocks
    that were there before the recording have no age."""
    is_older = blocks["birth_seq"].isna().to_numpy(bool)
    ends = trace.steps()["seq"].to_numpy(np.int64)
    if len(ends):
        # By order, not by number: a program may count its steps from 0 in each epoch. The event that ends a step
        # belongs to it.
        born = np.searchsorted(ends, blocks["birth_seq"].to_numpy(np.int64, na_value=0), side="left")
        now = int(np.searchsorted(ends, until - 1, side="left"))
        ages, unit = (now - born).astype(np.float64), "step"
        limits = [0.0, 1.0]
        ratio = 2.0
    else:
        now_ns = trace.time_ns("end" if until >= trace.end_seq else until - 1)
        ages, unit = (now_ns - blocks["birth_ns"].to_numpy(np.int64, na_value=now_ns)) / 1e9, "second"
        limits, ratio = [0.0, _LEAST_SECONDS], 10.0
    ages[is_older] = 0.0
    while limits[-1] <= ages.max(initial=0.0):
        limits.append(limits[-1] * ratio)
    label = _steps_label if unit == "step" else _seconds_label
    labels = (*(label(begin, end) for begin, end in itertools.pairwise(limits)), BEFORE_RECORDING)
    # The clocks of threads may differ a little: what seems unborn is young.
    number = np.where(is_older, len(labels) - 1, np.searchsorted(limits, np.maximum(ages, 0.0), side="right") - 1)
    table = _summed(blocks.assign(age=np.array(labels, dtype=object)[number]), "age", labels)
    index = [labels.index(age) for age in table["age"]]
    from_age, to_age = [*limits[:-1], np.nan], [*limits[1:], np.nan]
    table = table.assign(from_age=[from_age[i] for i in index], to_age=[to_age[i] for i in index], unit=unit)
    return table[[*_AGE, *_HELD]]


def _steps_label(begin: float, end: float) -> str:
    first, last = int(begin), int(end) - 1
    if last == 0:
        return "this step"
    return "1 step" if last == 1 else f"{first:,} to {last:,} steps"


def _seconds_label(begin: float, end: float) -> str:
    return f"{begin:g} to {end:g} s" if begin else f"under {end:g} s"
