"""What holds the blocks of a leak: its blocks, joined by their addresses with what the recorder's looks found.

A look says what an object of the program held at one moment: so many pieces of memory, some of them at addresses that
it names. Of the blocks of a leak that were live at that moment, an object holds as many as the share of its addresses
at which they are, times its count. It is named if these are most of them; if it takes several to hold most, they are;
else nothing is said. The last look at which most of the blocks are held by something counts: at the end of a run
main() may have returned, and nothing holds them any more. For the same reason garbage counts only where no look has
found anything else: an object in a cycle that main() has just left was in a variable all the time before.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pandas as pd

from ...errors import FoldedError
from ...reading.held import Held
from ...reading.recorded import RecordedTrace
from ...reading.sites import SiteNumbers
from .leak import GROWING, SURVIVORS, Holder, Leak

MOST = 0.5
"""A holder has at least this share of the blocks."""
SEVERAL = 3
"""Most holders that together count as several."""
LEAST = 0.15
"""The least share of each of them."""
_LOOKS = 6
"""So many looks are asked, the last first."""
_SOME = 3
"""Blocks of a leak that must be live at a look."""


def with_holders(trace: RecordedTrace, device: str, leaks: Sequence[Leak]) -> list[Leak]:
    """The leaks of a device, each with its holder where one is known."""
    looks: dict[int, list[Held]] = {}
    for held in trace.held:
        looks.setdefault(held.event, []).append(held)
    if not looks or not leaks:
        return list(leaks)
    judged_at = {leak.judged_at for leak in leaks}
    old = {at: set(trace.replay.live(at + 1, device)["birth_seq"].tolist()) for at in judged_at}
    numbers = SiteNumbers(trace.stacks)
    found: dict[int, Holder] = {}
    of_garbage: dict[int, Holder] = {}
    for event in sorted(looks, reverse=True)[:_LOOKS]:
        try:
            live = trace.replay.live(event, device)
        except FoldedError:
            break  # and what was looked at before is further back
        site = numbers.of(live["stack_id"].to_numpy())
        step = _step(trace, device, event)
        for number, leak in enumerate(leaks):
            if number not in found:
                blocks = _blocks(live, site, numbers, leak, old[leak.judged_at])
                holder = _holder(blocks, [held for held in looks[event] if not held.is_garbage], leak, step)
                if holder is not None:
                    found[number] = holder
                elif number not in of_garbage:
                    holder = _holder(blocks, [held for held in looks[event] if held.is_garbage], leak, step)
                    if holder is not None:
                        of_garbage[number] = holder
        if len(found) == len(leaks):
            break
    found = of_garbage | found
    return [dataclasses.replace(leak, holder=found.get(number)) for number, leak in enumerate(leaks)]


def _step(trace: RecordedTrace, device: str, event: int) -> int | None:
    """The step in which an event was, unless that was the last."""
    ends = trace.steps(device=device)["seq"].to_numpy(np.int64)
    number = int(np.searchsorted(ends, event))
    return int(trace.steps(device=device)["step"].iloc[number]) if number + 1 < len(ends) else None


def _blocks(
    live: pd.DataFrame, site: np.typing.NDArray[np.int64], numbers: SiteNumbers, leak: Leak, old: set[int]
) -> pd.DataFrame:
    """The blocks of a leak among those that were live at a look."""
    sites = numbers.of([one.stack_id for one in leak.sites])
    blocks = live[np.isin(site, sites)]
    # Of the others, blocks are replaced by others of the same line.
    return blocks if leak.kind != SURVIVORS else blocks[blocks["birth_seq"].isin(old)]


def _holder(blocks: pd.DataFrame, looks: Sequence[Held], leak: Leak, step: int | None) -> Holder | None:
    if len(blocks) < (1 if leak.kind == GROWING else _SOME):
        return None
    address = blocks["address"].to_numpy(np.uint64)
    shares = []
    for held in looks:
        if len(held.addresses):
            hits = int(np.isin(held.addresses, address).sum())
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
