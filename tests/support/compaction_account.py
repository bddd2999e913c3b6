"""Comparison of a compacted trace with the complete one."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

import pandas as pd

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.analysis.leaks.judge import find_leaks
from pytorch_alloctrace.analysis.leaks.leak import GROWING
from pytorch_alloctrace.reading import tables


def differences(whole: alloctrace.Trace, compacted: alloctrace.Trace) -> list[str]:
    """Return the names of the figures in which the two differ, without those that are documented as approximate."""
    return [what for what, is_same in _compared(whole, compacted) if not is_same]


def _compared(whole: alloctrace.Trace, compacted: alloctrace.Trace) -> Iterator[tuple[str, bool]]:
    until, end = compacted.integrity.compacted_until, whole._recorded.end_seq
    yield "kinds", whole._recorded.kind_counts == compacted._recorded.kind_counts
    yield "verification", whole.verify() == compacted.verify()
    yield "steps", same(whole.steps(), compacted.steps())
    yield "marks", same(whole.marks(), compacted.marks())
    yield "driver", same(whole.driver_memory(), compacted.driver_memory())
    yield (
        "times",
        (whole.begin_ns, whole.end_ns, end) == (compacted.begin_ns, compacted.end_ns, compacted._recorded.end_seq),
    )
    yield "events", same(whole.events(since=until - 1), compacted.events(since=until - 1))
    yield "settings", same(whole.events(kinds=["config", "oom"]), compacted.events(kinds=["config", "oom"]))
    for at in {min(seq, end - 1) for seq in (until - 1, until, (until + end) // 2, end)}:
        for name in ("live", "blocks", "segments"):
            yield f"{name} after event {at}", same(getattr(whole, name)(at), getattr(compacted, name)(at))
        totals = (tables.stack_totals(trace._recorded, at) for trace in (whole, compacted))
        yield f"totals after event {at}", same(*totals)
    for device in whole.devices:
        for measure in ("allocated", "reserved"):
            yield from _peaks(whole, compacted, device, measure)
        yield from _leaks(whole, compacted, device)


def _peaks(
    whole: alloctrace.Trace, compacted: alloctrace.Trace, device: str, measure: str
) -> Iterator[tuple[str, bool]]:
    if whole._recorded.replay.peak(measure, device) is None:
        return
    one, other = whole.peak(measure, device=device), compacted.peak(measure, device=device)
    for name in ("bytes", "seq", "time_ns", "step", "requested_bytes", "reserved_bytes"):
        yield f"{name} of the peak of {measure} on {device}", getattr(one, name) == getattr(other, name)
    for by in ("line", "role", "phase", "age"):
        yield f"usage by {by} at the peak of {measure} on {device}", same(one.usage(by), other.usage(by))


def _leaks(whole: alloctrace.Trace, compacted: alloctrace.Trace, device: str) -> Iterator[tuple[str, bool]]:
    one, other = find_leaks(whole._recorded, device), find_leaks(compacted._recorded, device)
    # What a growing buffer was at any time of the compacted part is not known: it is judged by what came after.
    exact = [[repr(leak) for leak in verdict.leaks if leak.kind != GROWING] for verdict in (one, other)]
    yield f"leaks on {device}", exact[0] == exact[1]
    grown = [{leak.line.line for leak in verdict.leaks if leak.kind == GROWING} for verdict in (one, other)]
    inconclusive = {unclear.site.line for unclear in other.unexplained}
    yield f"growing buffers on {device}", grown[0] <= grown[1] | inconclusive
    same_clock = ("judged", "unit", "units", "loop")
    yield f"clock on {device}", all(getattr(one, name) == getattr(other, name) for name in same_clock)
    if not any(grown):
        yield f"what is inconclusive on {device}", dataclasses.astuple(one) == dataclasses.astuple(other)


def same(one: pd.DataFrame, other: pd.DataFrame) -> bool:
    one, other = one.reset_index(drop=True), other.reset_index(drop=True)
    with contextlib.suppress(AssertionError):
        pd.testing.assert_frame_equal(one, other, check_categorical=False, check_dtype=False)
        return True
    return False
