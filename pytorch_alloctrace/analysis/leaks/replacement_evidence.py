"""Whether a block that is replaced by ever larger ones is a buffer that something is appended to, or a value that is
made anew each time and happens to get larger, as the inputs of a curriculum do.

made of the last
    When a block was born, the one that it replaced was still there, to be copied, and it was smaller; one of the same
    size goes later, if at all. Inputs that get longer in stages mostly replace a block by one of the same size; inputs
    that are local to a function are gone before the next are made. Judged at some births of each site; nearly all must
    agree.
grows alone
    Longer inputs make everything larger that is made of them. What else is made in the program grows, in total, by less
    than a quarter of what the site's largest block does. Other buffers (values beside keys) do not count: those that
    are made of the last and of something new, too, if enough was made anew to be appended to them all.
made of something new
    Each time it grew by a block, or an equal part of a block (`chunk`), that was made since the last time.
from nothing
    A buffer that is read as a whole (keys that are repeated for each head) does not grow alone. Then it must be made of
    something new, and at the rate at which it grew it was empty, or nearly so, when the recording began.

Not told apart: inputs that get longer with each step to the very end of the run, are held over the step's end, and of
which nothing else is made, from a buffer; a buffer that began with much in it, of which as much is made each time, from
such inputs: this one is not found.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import numpy.typing as npt
import pandas as pd

from ...reading.positions import Position
from ...reading.recorded import RecordedTrace
from ...reading.site_tables import SiteNumbers
from .leak import LEAST_COVERAGE
from .windows import Windows

_EXAMINED = 6
"""Births of each site that are looked at."""
_FOLLOWED = 200_000
"""Events after each of these births in which the block that it replaced must be gone: those of a step or two."""
_CHUNK = 5_000
_FREES = ("free_requested", "free_completed")
_NOTHING = 0.15
"""Share of its last size with which a buffer may have begun."""
_BLOCK_COLUMNS = ("address", "nbytes", "stack_id", "birth_seq", "birth_ns")
_PARTS = 4
"""Most equal parts of a block of which one may have been appended."""
_ALONE = 0.25
"""A buffer grows alone when all else grows by less than this share of its own growth."""
_ALIKE = 0.5
"""What grows by at least this share of a buffer's own relative growth grows with it."""


@dataclass(frozen=True)
class Replacement:
    """A block that took the place of a smaller one of its site."""

    site: int
    unit: int
    """The unit in which it was seen."""
    birth: int
    """Number of the event."""
    size: int
    until: Position
    """By then it was replaced itself, or the run is over: the one that it replaced should be gone. (A variable of the
    code that replaces it may hold that one for a while.)"""


@dataclass(frozen=True)
class _Smaller:
    """The block that was there before."""

    size: int
    birth: int


@dataclass(frozen=True)
class _Appended:
    """What was found at one birth."""

    by: int
    """By how much the block is larger than the one that it is made of."""
    new: int
    """Bytes of the blocks made meanwhile that can be, or have in them, what was appended."""


def are_buffers(
    trace: RecordedTrace,
    device: str,
    windows: Windows,
    numbers: SiteNumbers,
    replacements: Mapping[int, Sequence[Replacement]],
) -> set[int]:
    """Of sites, by number, with their replacements in order, those that are buffers."""
    appended: dict[int, list[_Appended]] = {}
    for site, born in replacements.items():
        picked = np.unique(np.linspace(0, len(born) - 1, min(_EXAMINED, len(born))).round().astype(int))
        found = [_appended(trace, device, born[number], numbers) for number in picked]
        if _nearly_all(birth is not None for birth in found):
            appended[site] = [birth for birth in found if birth is not None]
    if not appended:
        return set()
    of_new = {site for site, births in appended.items() if _nearly_all(birth.new > 0 for birth in births)}
    grew = {site: replacements[site][-1].size - replacements[site][0].size for site in appended}
    made = _MadeByQuarter.of(trace, device, windows, numbers)

    def is_buffer(site: int) -> bool:
        births, born = appended[site], replacements[site]
        others = of_new - {site}
        if grew[site] + sum(grew[other] for other in others) > grew[site] * median(b.new / b.by for b in births):
            others = set()
        if not made.grows_beside(born, median(birth.by for birth in births), others):
            return True
        return site in of_new and _began_empty(born, windows)

    return {site for site in appended if is_buffer(site)}


def live_blocks(trace: RecordedTrace, device: str, at: Position, numbers: SiteNumbers) -> pd.DataFrame:
    """The blocks that are live at a moment: address, nbytes, stack_id, site (its number), birth_seq, birth_ns."""
    blocks = trace.live(at, device=device)
    columns = {name: blocks[name].to_numpy(np.int64) for name in _BLOCK_COLUMNS}
    return pd.DataFrame({**columns, "site": numbers.of(columns["stack_id"])})


def _appended(trace: RecordedTrace, device: str, replacement: Replacement, numbers: SiteNumbers) -> _Appended | None:
    """How a block came to be, if it is made of the smaller one that it replaced; else None."""
    there = live_blocks(trace, device, replacement.birth, numbers)
    there = there[there["birth_seq"] < replacement.birth]
    last = _replaced(trace, device, replacement, there[there["site"] == replacement.site])
    if last is None:
        return None
    grew = replacement.size - last.size
    new = there["nbytes"][there["birth_seq"] > last.birth]
    return _Appended(grew, int(new[(new % grew == 0) & (new <= _PARTS * grew)].sum()))


def _replaced(trace: RecordedTrace, device: str, replacement: Replacement, of_site: pd.DataFrame) -> _Smaller | None:
    """The block that a block took the place of. of_site: those of its site that were there when it was born."""
    # The largest: what is appended may be made at the same line, and be gone before.
    last: _Smaller | None = None
    there = of_site[of_site["nbytes"] <= replacement.size].set_index("address")[["nbytes", "birth_seq"]]
    sizes, births = (there[name].to_dict() for name in ("nbytes", "birth_seq"))
    until = trace.first_event_after(replacement.until)
    followed = replacement.birth + _FOLLOWED
    span = {"since": replacement.birth + 1, "until": followed if until is None else min(until, followed)}
    for frees in trace.iter_events(_CHUNK, columns=("device", "address"), kinds=_FREES, **span):
        for address in frees.loc[frees["device"] == device, "address"].tolist():
            size = sizes.pop(address, 0)
            if size == replacement.size:
                return last
            if size and (last is None or size > last.size):
                last = _Smaller(size, births[address])
        if last is not None and max(sizes.values(), default=0) <= last.size:
            return last
    return last


def _nearly_all(witnesses: Iterable[bool]) -> bool:
    told = list(witnesses)
    return sum(told) >= LEAST_COVERAGE * len(told)


def _began_empty(born: Sequence[Replacement], windows: Windows) -> bool:
    """Whether, extended back to the beginning of the recording at its rate, a buffer had next to nothing."""
    rate = (born[-1].size - born[0].size) / max(born[-1].unit - born[0].unit, 1)
    before = windows.warmup / windows.length_of_unit
    return born[-1].size - rate * (born[-1].unit + 1 + before) <= _NOTHING * born[-1].size


@dataclass(frozen=True)
class _MadeByQuarter:
    """What each stack has made in the first and in the last quarter of the run after its warm-up.

    By stack and mean size: so what is only made more often, as in an evaluation, has not got larger.
    """

    before: pd.Series[float]
    """Mean size of a block of each stack that made some in both quarters."""
    after: pd.Series[float]
    blocks: pd.Series[int]
    """Made in the last quarter."""
    sites: npt.NDArray[np.int64]
    """Of each stack."""
    largest: tuple[pd.Series[int], ...]
    """By site its largest block when the first quarter began and ended, and the last one."""

    @classmethod
    def of(cls, trace: RecordedTrace, device: str, windows: Windows, numbers: SiteNumbers) -> _MadeByQuarter:
        quarter = max(windows.units // 4, 1)
        first_quarter = windows.beginning(trace.begin_ns), int(windows.moments[quarter - 1])
        last_quarter = int(windows.moments[-1 - quarter]), windows.judged_at
        first, last = _made(trace, device, *first_quarter), _made(trace, device, *last_quarter)
        both = last.join(first.add_suffix("_before"), how="inner")
        both = both[(both["allocations_before"] > 0) & (both["allocations"] > 0)]
        return cls(
            before=both["bytes_before"] / both["allocations_before"],
            after=both["bytes"] / both["allocations"],
            blocks=both["allocations"],
            sites=numbers.of(both.index.to_series()),
            largest=tuple(
                live_blocks(trace, device, moment, numbers).groupby("site")["nbytes"].max()
                for moment in (*first_quarter, *last_quarter)
            ),
        )

    def grows_beside(self, born: Sequence[Replacement], by: float, buffers: set[int]) -> bool:
        """Whether all else that is made has got larger between the two quarters, by `_ALONE` of what a buffer has, in
        bytes made. by: by how much most of its replacements are larger than the last. buffers: sites of others."""
        site = born[0].site
        # By what it grew, not by when it was looked at: the work may be slower in one quarter than in the other.
        first, second, third, last = (int(largest.get(site, 0)) for largest in self.largest)
        early, late = (first + second) / 2, (third + last) / 2
        larger = late - early
        # How often it was replaced in the last quarter; no more often than its line made any.
        times = min((last - third) / by, float(self.blocks[self.sites == site].sum()))
        alike = (self.after >= self.before * (1 + _ALIKE * larger / max(early, 1))) & ~np.isin(
            self.sites, list(buffers)
        )
        # The buffer is in it, too: its stack may be that of other blocks of the same line.
        everything = float(((self.after - self.before) * self.blocks)[alike].sum())
        return everything >= (1 + _ALONE) * larger * times


def _made(trace: RecordedTrace, device: str, begin: Position, end: Position) -> pd.DataFrame:
    """Blocks and bytes that each stack (the index) has made between two moments: allocations, bytes."""
    first, last = (
        trace.stack_totals(at, device=device).set_index("stack_id")[["allocations", "bytes"]].astype(np.int64)
        for at in (begin, end)
    )
    return last.sub(first, fill_value=0)
