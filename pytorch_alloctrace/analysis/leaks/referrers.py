"""Referrers of the blocks of a leak: the blocks are joined by address with the recorder's object scans.

A scan records how many tensors each object of the program held, and the addresses of some of the tensors. An object's
share of a leak's blocks is the share of its addresses that belong to the leak, times its count, divided by the number
of the leak's blocks that were live at the scan. An object that holds at least half is named. If several objects
together hold at least half, all of them are named.

The last scan in which an object holds the blocks counts: at the end of a run main() may have returned and freed its
locals. Garbage is named only if no scan found another object: a cycle that main() has just left is garbage only then.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from ...errors import CompactedError
from ...reading.recorded import Held, RecordedTrace
from ...reading.table import Table
from .leak import GROWING, SURVIVORS, Growth, HeldContainer, Holder, Leak

if TYPE_CHECKING:
    from ..evidence import DeviceEvidence

MIN_SHARE = 0.5
"""Minimum share of the blocks that the named objects hold together."""
MAX_HOLDERS = 3
MIN_SHARE_EACH = 0.15
"""Minimum share of the blocks that each of several named objects holds."""
_MAX_SCANS = 8
"""Maximum number of object scans examined."""
_INTERVAL_GROWTH = 4 / 3
"""Factor from the first event of an interval to that of the next: the last scan of each interval is examined."""
_MIN_BLOCKS = 3
"""Minimum number of live blocks of a leak at a scan."""

_Held = TypeVar("_Held", Leak, Growth)


def attach_holders(evidence: DeviceEvidence, leaks: Sequence[_Held]) -> list[_Held]:
    """Return leaks or other growth with their holders."""
    trace = evidence.trace
    scans: dict[int, list[Held]] = {}
    for referrer in trace.held:
        if not len(referrer.addresses):  # recorded for its autograd nodes
            continue
        scans.setdefault(referrer.event, []).append(referrer)
    if not scans or not leaks:
        return list(leaks)
    part_of = {part.clock.judged_at: part for part in evidence.parts}
    live_at_judged = {leak.judged_at: part_of[leak.judged_at].lifetimes.result["alloc_seq"] for leak in leaks}
    holders: dict[int, Holder] = {}
    garbage_holders: dict[int, Holder] = {}
    for event in _select_scans(scans):
        try:
            live = evidence.parts[0].blocks_at(event - 1)
        except CompactedError:
            continue  # the last scan of an interval only after the compaction
        site = evidence.numbers.of(live["stack_id"])
        step = _find_step(trace, event)
        for index, leak in enumerate(leaks):
            if index not in holders:
                blocks = _select_blocks(live, site, evidence, leak, live_at_judged[leak.judged_at])
                holder = _find_holder(
                    blocks, [referrer for referrer in scans[event] if not referrer.is_garbage], leak, step
                )
                if holder is not None:
                    holders[index] = holder
                elif index not in garbage_holders:
                    holder = _find_holder(
                        blocks, [referrer for referrer in scans[event] if referrer.is_garbage], leak, step
                    )
                    if holder is not None:
                        garbage_holders[index] = holder
        if len(holders) == len(leaks):
            break
    holders = garbage_holders | holders
    return [dataclasses.replace(leak, holder=holders.get(index)) for index, leak in enumerate(leaks)]


def _select_scans(events: Iterable[int]) -> list[int]:
    """Return the events of the scans to examine, from the last: of eight intervals, which reach back to a tenth.

    Compaction keeps the memory at them. The intervals are fixed, so that later scans do not change the selection.
    """
    last_of_interval = {math.floor(math.log(event + 1) / math.log(_INTERVAL_GROWTH)): event for event in sorted(events)}
    return sorted(last_of_interval.values(), reverse=True)[:_MAX_SCANS]


def _find_step(trace: RecordedTrace, event: int) -> int | None:
    """Return the step that contains an event; None in the last step."""
    index = int(np.searchsorted(trace.positions.step_ends, event))
    return trace.positions.step_at(event) if index + 1 < len(trace.positions.step_ends) else None


def _select_blocks(
    live: Table,
    site: npt.NDArray[np.int64],
    evidence: DeviceEvidence,
    leak: Leak | Growth,
    live_at_judged: npt.NDArray[np.int64],
) -> npt.NDArray[np.int64]:
    """Return the addresses of the blocks of a leak that were live at the scan."""
    is_leaked = np.isin(site, evidence.numbers.of(list(leak.stack_ids)))
    if leak.kind == SURVIVORS:  # in leaks of other kinds, blocks are replaced by others of the same line
        is_leaked &= np.isin(live["alloc_seq"], live_at_judged)
    return live["address"][is_leaked]


def _find_holder(
    blocks: npt.NDArray[np.int64], scan: Sequence[Held], leak: Leak | Growth, step: int | None
) -> Holder | None:
    if len(blocks) < (1 if leak.kind == GROWING else _MIN_BLOCKS):
        return None
    shares = []
    for referrer in scan:
        if len(referrer.addresses):
            matches = int(np.isin(referrer.addresses, blocks).sum())
            # The addresses are a sample: the estimate may exceed 1.
            share = min(1.0, matches / len(referrer.addresses) * referrer.count / len(blocks))
            if share >= MIN_SHARE_EACH:
                shares.append((share, referrer))
    shares.sort(key=lambda pair: -pair[0])
    if not shares:
        return None
    share, referrer = shares[0]
    largest = shares[: 1 if share >= MIN_SHARE else MAX_HOLDERS]
    total_share = sum(share for share, _ in largest)
    if total_share < MIN_SHARE:
        return None
    return Holder(
        names=tuple(largest_referrer.holder for _, largest_referrer in largest),
        path=referrer.path,
        filename=referrer.filename,
        line=referrer.line,
        event=referrer.event,
        step=step,
        share=total_share,
        name=referrer.name,
        scope=referrer.scope,
        function=referrer.function,
        through=referrer.through,
        containers=tuple(
            HeldContainer(**(container | {"bound": container["bound"] or None})) for container in referrer.containers
        ),
    )
