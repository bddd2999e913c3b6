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


def differences(complete: alloctrace.Trace, compacted: alloctrace.Trace) -> list[str]:
    """Return the names of the differing figures, except those documented as approximate."""
    return [figure for figure, is_same in _compare(complete, compacted) if not is_same]


def _compare(complete: alloctrace.Trace, compacted: alloctrace.Trace) -> Iterator[tuple[str, bool]]:
    until, end = compacted.integrity.compacted_until, complete._recorded.end_seq
    yield "kinds", complete._recorded.kind_counts == compacted._recorded.kind_counts
    yield "verification", complete.verify() == compacted.verify()
    yield "steps", are_equal(complete.steps(), compacted.steps())
    yield "marks", are_equal(complete.marks(), compacted.marks())
    yield "driver", are_equal(complete.driver_memory(), compacted.driver_memory())
    yield (
        "times",
        (complete.begin_ns, complete.end_ns, end)
        == (compacted.begin_ns, compacted.end_ns, compacted._recorded.end_seq),
    )
    yield "events", are_equal(complete.events(since=until - 1), compacted.events(since=until - 1))
    yield "settings", are_equal(complete.events(kinds=["config", "oom"]), compacted.events(kinds=["config", "oom"]))
    for at in {min(seq, end - 1) for seq in (until - 1, until, (until + end) // 2, end)}:
        for name in ("live", "blocks", "segments"):
            yield f"{name} after event {at}", are_equal(getattr(complete, name)(at), getattr(compacted, name)(at))
        totals = (tables.stack_totals(trace._recorded, at) for trace in (complete, compacted))
        yield f"totals after event {at}", are_equal(*totals)
    for device in complete.devices:
        for measure in ("allocated", "reserved"):
            yield from _compare_peaks(complete, compacted, device, measure)
        yield from _compare_leaks(complete, compacted, device)


def _compare_peaks(
    complete: alloctrace.Trace, compacted: alloctrace.Trace, device: str, measure: str
) -> Iterator[tuple[str, bool]]:
    if complete._recorded.replay.peak(measure, device) is None:
        return
    expected, actual = complete.peak(measure, device=device), compacted.peak(measure, device=device)
    for name in ("bytes", "seq", "time_ns", "step", "requested_bytes", "reserved_bytes"):
        yield f"{name} of the peak of {measure} on {device}", getattr(expected, name) == getattr(actual, name)
    for by in ("line", "role", "phase", "age"):
        yield f"usage by {by} at the peak of {measure} on {device}", are_equal(expected.usage(by), actual.usage(by))


def _compare_leaks(complete: alloctrace.Trace, compacted: alloctrace.Trace, device: str) -> Iterator[tuple[str, bool]]:
    expected, actual = find_leaks(complete._recorded, device), find_leaks(compacted._recorded, device)
    # A compacted part does not record a growing buffer's sizes: its verdict rests on the events after that part.
    exact = [[repr(leak) for leak in verdict.leaks if leak.kind != GROWING] for verdict in (expected, actual)]
    yield f"leaks on {device}", exact[0] == exact[1]
    grown = [{leak.line.line for leak in verdict.leaks if leak.kind == GROWING} for verdict in (expected, actual)]
    inconclusive = {unclear.site.line for unclear in actual.undecided}
    yield f"growing buffers on {device}", grown[0] <= grown[1] | inconclusive
    same_clock = ("judged", "unit", "units", "loop")
    yield f"clock on {device}", all(getattr(expected, name) == getattr(actual, name) for name in same_clock)
    if not any(grown):
        yield f"inconclusive sites on {device}", dataclasses.astuple(expected) == dataclasses.astuple(actual)


def are_equal(first: pd.DataFrame, second: pd.DataFrame) -> bool:
    first, second = first.reset_index(drop=True), second.reset_index(drop=True)
    with contextlib.suppress(AssertionError):
        pd.testing.assert_frame_equal(first, second, check_categorical=False, check_dtype=False)
        return True
    return False
