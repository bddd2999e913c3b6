"""The last steps of a run, event by event: when each block was allocated and freed, and whether in backward.

For the whole of a long run there are only sums; how long blocks live is measured over its last whole steps, as many as
fit into two million events.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from ...reading import event_tables
from ...reading.positions import Range
from ...reading.recorded import FREES, RecordedTrace
from ...reading.sites import StackIndex
from ...reading.tables import no_rows

MOST_EVENTS = 2_000_000
"""Most events that are read, unless a single step has more."""
MOST_STEPS = 100
_COLUMNS = (
    *("seq", "kind", "device", "address", "requested_bytes"),
    *("stack_id", "forward_stack_id", "node_type"),
)
_BLOCK_COLUMNS = (
    *("device", "requested_bytes", "stack_id", "born", "freed"),
    *("survives", "backward", "freed_in_backward"),
)
_KEPT = np.iinfo(np.int64).max
"""When it was freed: not within these steps."""


@dataclass(frozen=True, eq=False)
class LastSteps:
    """The last whole steps before an event; in a trace without steps, the last events before it."""

    first: int
    """The first event."""
    end: int
    """The first event after them."""
    step_ends: npt.NDArray[np.int64]
    """The events that end the steps; empty for a trace without steps."""

    @classmethod
    def before(cls, trace: RecordedTrace, limit: int, first: int = 0) -> LastSteps:
        """The last steps that end before event `limit` and do not begin before event `first`."""
        ends = trace.positions.step_ends
        begins = np.append(0, ends + 1)[:-1]
        is_within = trace.positions.whole_steps(Range(first, limit))
        begins, ends = begins[is_within], ends[is_within]
        if not len(ends):
            return cls(max(limit - MOST_EVENTS, first), limit, ends)
        fitting = int((begins >= ends[-1] + 1 - MOST_EVENTS).sum())
        # Nothing marks the beginning of the first step: it would include everything that was allocated before it.
        whole = len(ends) - 1 if begins[0] == 0 else len(ends)
        count = min(max(fitting, 1), MOST_STEPS, max(whole, 1))
        return cls(int(begins[-count]), int(ends[-1]) + 1, ends[-count:])

    @classmethod
    def of_ranges(cls, trace: RecordedTrace, ranges: Sequence[Range]) -> list[LastSteps]:
        """Those of each range, the last range first, until there are as many steps or events as are measured at most.
        If some ranges have whole steps, the others are left out."""
        folded = trace.integrity.folded_until
        found = [cls.before(trace, within.end, max(within.first, folded)) for within in reversed(ranges)]
        found = [one for one in found if len(one.step_ends)] or found
        steps = np.cumsum([len(one.step_ends) for one in found])
        events = np.cumsum([one.end - one.first for one in found])
        fitting = int(((steps <= MOST_STEPS) & (events <= MOST_EVENTS)).sum())
        return found[: max(fitting, 1)]

    def blocks(self, trace: RecordedTrace) -> pd.DataFrame:
        """The blocks that were allocated in these steps, one row each.

        Columns: device, requested_bytes; stack_id: as in `Trace.live`; born,
        freed: events, where `freed` is the largest number if the block is still live after these steps; survives: live
        at the end of its step (without steps, at the end of these events); backward: allocated by a node of autograd;
        freed_in_backward: freed while one was evaluated.
        """
        events = event_tables.events(
            trace, since=self.first - 1, until=self.end - 1, columns=_COLUMNS, kinds=("alloc", *FREES)
        )
        if events.empty:
            flags = dict.fromkeys(("survives", "freed_in_backward"), np.bool_)
            return no_rows(_BLOCK_COLUMNS, **flags)
        is_alloc = (events["kind"] == "alloc").to_numpy()
        # In the order of each address: the event after an alloc is what ended it. Not its completion: a stream may
        # use the block longer, the program does not.
        order = np.lexsort((events["seq"], events["address"], events["device"].cat.codes))
        ordered = events.iloc[order]
        same = _equals_next(ordered["address"]) & _equals_next(ordered["device"].cat.codes)
        freed = np.where(same, np.append(ordered["seq"].to_numpy(np.int64)[1:], _KEPT), _KEPT)
        in_node = (ordered["node_type"] != "").to_numpy()
        freed_in_node = same & np.append(in_node[1:], False)
        made = is_alloc[order]
        blocks = ordered.assign(freed=freed, freed_in_backward=freed_in_node)[made].sort_values("seq")
        born = blocks["seq"].to_numpy(np.int64)
        ends = np.append(self.step_ends, self.end) if len(self.step_ends) else np.array([self.end])
        # The event that ends a step belongs to it.
        end_of_step = ends[np.minimum(np.searchsorted(ends, born, side="left"), len(ends) - 1)]
        return pd.DataFrame(
            {
                "device": blocks["device"].astype(str).to_numpy(),
                "requested_bytes": blocks["requested_bytes"].to_numpy(np.int64),
                "stack_id": allocating_stacks(trace.stacks, blocks),
                "born": born,
                "freed": blocks["freed"].to_numpy(np.int64),
                "survives": blocks["freed"].to_numpy(np.int64) > end_of_step,
                "backward": (blocks["node_type"] != "").to_numpy(),
                "freed_in_backward": blocks["freed_in_backward"].to_numpy(),
            }
        )


def allocating_stacks(stacks: StackIndex, events: pd.DataFrame) -> npt.NDArray[np.int64]:
    """Return the stack of each alloc as `Trace.live` has it. events: with seq, address, stack_id, forward_stack_id,
    node_type."""
    seq, address, own, forward = (
        events[name].to_numpy(np.int64) for name in ("seq", "address", "stack_id", "forward_stack_id")
    )
    return stacks.allocating_stacks(seq, address, own, forward, events["node_type"].to_numpy(object))


def _equals_next(values: pd.Series[int]) -> npt.NDArray[np.bool_]:
    numbers = values.to_numpy()
    return np.append(numbers[1:] == numbers[:-1], False)
