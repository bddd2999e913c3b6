"""What refers to the blocks of a leak: its blocks, joined by address with what the recorder's object scans found.

A scan records what an object of the program held at one moment: so many pieces of memory, some of them at addresses
that it names. Of the blocks of a leak that were live at that moment, an object holds as many as the share of its
addresses at which they are, times its count. It is named if these are most of them; if it takes several to hold most,
they are; else nothing is said. The last scan at which most of the blocks are held by something counts: at the end of a
run main() may have returned, and nothing holds them any more. For the same reason garbage counts only where no scan has
found anything else: an object in a cycle that main() has just left was in a variable all the time before.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ...errors import CompactedError
from ...reading.recorded import Held, RecordedTrace
from ...reading.table import Table
from .leak import GROWING, SURVIVORS, Holder, Leak

if TYPE_CHECKING:
    from ..evidence import DeviceEvidence


MOST = 0.5
"""A holder has at least this share of the blocks."""
SEVERAL = 3
"""Most holders that together count as several."""
LEAST = 0.15
"""The least share of each of them."""
_LOOKS = 6
"""Most object scans that are examined, the last one first."""
_SOME = 3
"""Blocks of a leak that must be live at a scan."""


def with_holders(evidence: DeviceEvidence, leaks: Sequence[Leak]) -> list[Leak]:
    """Return the leaks of a device, each with its holder where one is known."""
    trace = evidence.trace
    looks: dict[int, list[Held]] = {}
    for held in trace.held:
        looks.setdefault(held.event, []).append(held)
    if not looks or not leaks:
        return list(leaks)
    part_of = {part.clock.judged_at: part for part in evidence.parts}
    old = {leak.judged_at: part_of[leak.judged_at].lifetimes.result["alloc_seq"] for leak in leaks}
    holders: dict[int, Holder] = {}
    of_garbage: dict[int, Holder] = {}
    for event in sorted(looks, reverse=True)[:_LOOKS]:
        try:
            live = evidence.parts[0].blocks_at(event - 1)
        except CompactedError:
            break  # and what was looked at before is further back
        site = evidence.numbers.of(live["stack_id"])
        step = _step(trace, event)
        for number, leak in enumerate(leaks):
            if number not in holders:
                blocks = _blocks(live, site, evidence, leak, old[leak.judged_at])
                holder = _holder(blocks, [held for held in looks[event] if not held.is_garbage], leak, step)
                if holder is not None:
                    holders[number] = holder
                elif number not in of_garbage:
                    holder = _holder(blocks, [held for held in looks[event] if held.is_garbage], leak, step)
                    if holder is not None:
                        of_garbage[number] = holder
        if len(holders) == len(leaks):
            break
    holders = of_garbage | holders
    return [dataclasses.replace(leak, holder=holders.get(number)) for number, leak in enumerate(leaks)]


def _step(trace: RecordedTrace, event: int) -> int | None:
    """Return the step in which an event was, unless that was the last."""
    number = int(np.searchsorted(trace.positions.step_ends, event))
    return trace.positions.step_at(event) if number + 1 < len(trace.positions.step_ends) else None


def _blocks(
    live: Table,
    site: npt.NDArray[np.int64],
    evidence: DeviceEvidence,
    leak: Leak,
    old: npt.NDArray[np.int64],
) -> npt.NDArray[np.int64]:
    """Return the addresses of the blocks of a leak among those that were live when the scan was made."""
    is_of_leak = np.isin(site, evidence.numbers.of([one.stack_id for one in leak.sites]))
    if leak.kind == SURVIVORS:  # of the others, blocks are replaced by others of the same line
        is_of_leak &= np.isin(live["alloc_seq"], old)
    return live["address"][is_of_leak]


def _holder(blocks: npt.NDArray[np.int64], looks: Sequence[Held], leak: Leak, step: int | None) -> Holder | None:
    if len(blocks) < (1 if leak.kind == GROWING else _SOME):
        return None
    shares = []
    for held in looks:
        if len(held.addresses):
            hits = int(np.isin(held.addresses, blocks).sum())
            # At most all: a sample is not exact.
            share = min(1.0, hits / len(held.addresses) * held.count / len(blocks))
            if share >= LEAST:
                shares.append((share, held))
    shares.sort(key=lambda one: -one[0])
    if not shares:
        return None
    share, held = shares[0]
    if share >= MOST:
        return Holder((held.holder,), held.path, held.filename, held.line, held.event, step, share)
    several = shares[:SEVERAL]
    total = sum(share for share, _ in several)
    if total < MOST:
        return None
    names = tuple(one.holder for _, one in several)
    return Holder(names, held.path, held.filename, held.line, held.event, step, total)
