"""Public tables of a recorded trace: columns that hide no attribute of a DataFrame, and signed integers."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
import torch
from shared_recordings import run_source

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.reading.replay import Replay
from pytorch_alloctrace.reading.sites import group_stacks

PROGRAM = """
import gc, subprocess, torch, pytorch_alloctrace as alloctrace

kept = []

def step(number, model, optimizer):
    kept.append(torch.empty(300_000, device="cuda"))
    kept.append(torch.empty(70_000))
    model(torch.ones(64, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()

def refuse():
    try:
        torch.empty(100 << 30, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        pass

gc.disable()  # a collection is an event
with alloctrace.enable("nothing.alloctrace", devices=("cpu",)):
    pass
gc.enable()
with alloctrace.enable("run.alloctrace", devices=("cuda", "cpu")):
    model = torch.nn.Linear(64, 64, device="cuda")
    optimizer = torch.optim.Adam(model.parameters())
    for number in range(40):
        step(number, model, optimizer)
        alloctrace.step()
    large = torch.empty(30_000_000, device="cuda")
    del kept[10:20], large
    alloctrace.mark("half")
    with alloctrace.region("refused"):
        refuse()
    cycle = [torch.empty(5_000)]
    cycle.append(cycle)
    del cycle
    gc.collect()
    child = subprocess.Popen(["sleep", "60"])
child.kill()
"""
SERIES_ONLY = {"name"}
"""Attributes of a Series but not of a DataFrame: `table.name` is the column, `row.name` is not `row["name"]`."""
EVENT_IDS = {"thread", "stack_id", "forward_stack_id"}
"""Columns with 32-bit integers in the table of events, the largest table."""
STACKS_BY = ("line", "stack", "function", "file")
RANGES_BY = (*STACKS_BY, "role")
MEMORY_BY = (*RANGES_BY, "age", "phase")
PUBLIC = {name: getattr(alloctrace.Trace, name) for name in dir(alloctrace.Trace) if not name.startswith("_")}
Tables = Iterator[tuple[str, pd.DataFrame]]


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> alloctrace.Trace:
    return alloctrace.load(run_source(tmp_path_factory.mktemp("tables"), PROGRAM, cuda=True) / "run.alloctrace")


@pytest.fixture(scope="module")
def full(trace: alloctrace.Trace) -> list[tuple[str, pd.DataFrame]]:
    return [*full_tables(trace)]


def full_tables(trace: alloctrace.Trace) -> Tables:
    """Yield all tables with their names; none may be empty."""
    for at in ("end", "peak"):
        yield from tables_at(trace, at)
    yield from tables_up_to(trace, "end")
    for by in RANGES_BY:
        yield f"usage since by {by}", trace.usage(by=by, since="step:3", until="step:9")
    for by in MEMORY_BY:
        yield f"diff by {by}", trace.diff("step:3", "step:9", by=by)
    peak = trace.peak()
    for by in (*MEMORY_BY, "call"):
        yield f"usage at by {by}", peak.usage(by)
    yield from tables_of_fragmentation(trace.fragmentation("mark:half"))
    yield from tables_of_the_run(trace)
    yield "driver_memory", trace.driver_memory()
    yield "garbage", trace.garbage()
    yield "annotate", trace.annotate("program.py")
    yield "leaks, sites", pd.DataFrame(trace.leaks().to_frame()["sites"].iloc[0])


def empty_tables(trace: alloctrace.Trace, nothing: alloctrace.Trace) -> Tables:
    """Yield empty tables under the names of full_tables. `nothing` is a trace without an allocation."""
    for source in (trace, nothing):
        yield from tables_at(source, -1)
        yield from tables_up_to(source, -1)
        yield "events", source.events(kinds=("pool_restore",))
        for by in MEMORY_BY:
            yield f"diff by {by}", source.diff(-1, -1, by=by)
    yield from tables_of_the_run(nothing)
    yield "timeline", nothing.timeline(100)
    yield from tables_of_fragmentation(nothing.fragmentation())
    yield from tables_of_fragmentation(trace.fragmentation(-1))
    # The first segment has no block when it is allocated, so nothing pins it.
    of_segment = trace.fragmentation(int(trace.events(kinds=("segment_alloc",))["seq"].iloc[0]))
    yield "fragmentation, pinners", of_segment.pinners.to_frame()
    yield "fragmentation, pinners_by_line", of_segment.pinners_by_line.to_frame()
    # The last event of a recording, the allocator's state, allocates nothing.
    yield "usage since by line", trace.usage(since=int(trace.events()["seq"].iloc[-2]), by="line")
    yield "driver_memory", trace.driver_memory()[:0]
    yield "garbage", nothing.garbage()


def tables_at(trace: alloctrace.Trace, at: int | str) -> Tables:
    for name in ("live", "blocks", "segments"):
        yield name, getattr(trace, name)(at)
    for by in (*MEMORY_BY, "call"):
        yield f"usage at by {by}", trace.usage(at, by=by)
    for by in MEMORY_BY:
        yield f"compare by {by}", alloctrace.compare(trace, trace, at=at, by=by)


def tables_up_to(trace: alloctrace.Trace, until: int | str) -> Tables:
    columns = (*alloctrace.trace.EVENT_COLUMNS, *alloctrace.trace.AUTOGRAD_COLUMNS)
    yield "events", trace.events(until=until)
    yield "events, all columns", trace.events(columns=columns, until=until)
    for by in RANGES_BY:
        yield f"usage by {by}", trace.usage(by=by, until=until)


def tables_of_the_run(trace: alloctrace.Trace) -> Tables:
    for name in ("timeline", "steps", "marks", "threads", "hardware", "holders", "children"):
        yield name, getattr(trace, name)()
    yield "timeline by role", trace.timeline(by="role")
    yield "marks, with peaks", trace.marks(peaks=True)
    yield "leaks", trace.leaks().to_frame()


def tables_of_fragmentation(fragmentation: Any) -> Tables:
    for name in ("segments", "pools", "free_pieces", "pinners", "pinners_by_line"):
        yield f"fragmentation, {name}", getattr(fragmentation, name).to_frame()


def test_empty_table_has_dtypes_of_full_table(trace: alloctrace.Trace, full: list[tuple[str, pd.DataFrame]]) -> None:
    """Sums, joins and concatenations of full tables must not fail for a run without allocations."""
    nothing = alloctrace.load(Path(trace.path).with_name("nothing.alloctrace"))
    dtypes = {name: table.dtypes.astype(str).to_dict() for name, table in full}
    empty = [*empty_tables(trace, nothing)]

    assert [name for name, table in full if table.empty] == []
    assert [name for name, table in empty if not table.empty] == []
    for name, table in [*full, *empty]:
        assert (name, table.dtypes.astype(str).to_dict()) == (name, dtypes[name])
    # annotate raises an error for a file without a line in the trace.
    empty_names = {re.split(r"\W", name)[0] for name, _ in empty}
    assert public_tables() - empty_names == {"annotate"}, "no empty table of a method is compared"


def public_tables() -> set[str]:
    """Return the methods of Trace that return a table."""
    types = {name: getattr(member, "__annotations__", {}) for name, member in PUBLIC.items()}
    names = {name for name, annotations in types.items() if annotations.get("return", "").startswith("pd.DataFrame")}
    assert {"events", "live", "hardware", "usage"} <= names
    return names


def test_columns_hide_no_attribute_of_table(full: list[tuple[str, pd.DataFrame]]) -> None:
    attributes = {*dir(pd.DataFrame), *dir(pd.Series)} - SERIES_ONLY
    assert {name: {*table.columns} & attributes for name, table in full if {*table.columns} & attributes} == {}


def test_unknown_device_raises_and_cuda_means_the_only_gpu(trace: alloctrace.Trace) -> None:
    required_arguments: dict[str, tuple[Any, ...]] = {"diff": ("step:3", "end"), "annotate": ("program.py",)}
    required_arguments["export"] = (Path(trace.path).with_suffix(".txt"), "collapsed")
    functions = {name: member for name, member in PUBLIC.items() if inspect.isfunction(member)}
    with_device = [name for name, function in functions.items() if "device" in inspect.signature(function).parameters]
    assert {"live", "events", "timeline", "steps", "leaks", "ooms", "peak", "usage"} - {*with_device} == {"events"}
    for name in with_device:
        query = functools.partial(getattr(trace, name), *required_arguments.get(name, ()))
        with pytest.raises(alloctrace.TraceError, match=r"no device 'cuda:7' was recorded, only cuda:0, cpu"):
            query(device="cuda:7")
        of_cuda, of_cuda_0 = repr(query(device="cuda")), repr(query(device="cuda:0"))
        assert re.sub("0x[0-9a-f]+", "", of_cuda) == re.sub("0x[0-9a-f]+", "", of_cuda_0), name
    with pytest.raises(alloctrace.TraceError, match="no device 'cuda:7'"):
        alloctrace.compare(trace, trace, device="cuda:7")


def test_integers_of_tables_are_signed(full: list[tuple[str, pd.DataFrame]]) -> None:
    """A difference of two unsigned integers wraps around in pandas."""
    for name, table in full:
        for column, dtype in table.dtypes.items():
            if isinstance(dtype, np.dtype) and dtype.kind in "iu":
                narrow = name.startswith("events") and column in EVENT_IDS
                assert dtype == (np.int32 if narrow else np.int64), (name, column, dtype)
            elif isinstance(dtype, pd.api.extensions.ExtensionDtype) and dtype.kind in "iu":
                narrow = name.startswith("events") and column == "step"
                assert dtype == (pd.Int32Dtype() if narrow else pd.Int64Dtype()), (name, column, dtype)


@pytest.mark.parametrize("columns", [None, ("device", "forward_stack_id", "seq"), ("step",)])
def test_events_are_the_same_in_two_passes(
    trace: alloctrace.Trace, monkeypatch: pytest.MonkeyPatch, columns: tuple[str, ...] | None
) -> None:
    for options in ({}, {"kinds": ("alloc", "free_completed")}, {"since": "step:1"}, {"since": "end"}):
        expected = trace.events(columns=columns, **options)  # type: ignore[arg-type]
        with monkeypatch.context() as patched:
            patched.setattr("pytorch_alloctrace.reading.event_tables._LARGE", 0)
            patched.setattr("pytorch_alloctrace.reading.event_tables._CHUNK_ROWS", 10)
            events = trace.events(columns=columns, **options)  # type: ignore[arg-type]
        pd.testing.assert_frame_equal(events, expected)
        with pytest.raises(ValueError, match="no events of kind"):
            trace.events(columns=columns, kinds=("bogus",))


def test_steps_have_the_numbers_of_the_program(tmp_path: Path) -> None:
    with alloctrace.enable(tmp_path / "run.alloctrace", devices=("cpu",)):
        for number in (1_700_000_000_000, 1_700_000_000_001):
            torch.ones(10)
            alloctrace.step(number)
    trace = alloctrace.load(tmp_path / "run.alloctrace")
    events = trace.events(kinds=("alloc",))

    assert events["step"].tolist() == trace.steps()["step"].tolist() and str(events["step"].dtype) == "Int64"


def test_groups_are_sorted_when_sums_overflow(trace: alloctrace.Trace) -> None:
    """A corrupt trace may have such sizes."""
    stacks, totals = trace._recorded.stacks, trace._recorded.stack_totals()
    for sizes in ([2**63 - 1, -2], [-(2**63), -(2**63)], [-2, -2]):
        rows = totals.assign(live_bytes=np.resize(sizes, len(totals)), total_bytes=np.resize(sizes[::-1], len(totals)))
        assert len(group_stacks(stacks, rows, "file"))

    lowest = np.zeros(len(totals), dtype=np.int64)
    lowest[0] = -(2**63)
    sums = [*group_stacks(stacks, totals.assign(live_bytes=lowest), "function")["live_bytes"]]
    assert len(sums) > 1 and sums == sorted(sums, reverse=True) and sums[-1] == -(2**63)


def test_only_the_first_argument_is_positional(trace: alloctrace.Trace) -> None:
    for method, arguments in (
        (trace.usage, ("end", "cuda:0")),
        (trace.timeline, (100, "cuda:0")),
        (trace.events, ("step:1",)),
        (trace.leaks, ("cuda:0",)),
        (trace.peak, ("allocated", "cuda:0")),
    ):
        with pytest.raises(TypeError, match="positional"):
            method(*arguments)  # type: ignore[operator]

    assert trace.peak("reserved", device="cuda:0").bytes == trace.segments("peak:reserved")["total_bytes"].sum()
    assert trace.ooms(since="mark:half")[0].seq == trace.ooms(last=1)[0].seq and not trace.ooms(until="mark:half")


def test_bytes_of_peak_need_no_table(trace: alloctrace.Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("live", "segments"):
        monkeypatch.setattr(Replay, name, Mock(side_effect=RuntimeError("a table")))
    peak = trace.peak()

    assert peak.bytes > 0 and "cuda:0" in repr(peak)
    with pytest.raises(RuntimeError, match="a table"):
        peak.usage()


def test_blocks_have_the_names_of_their_sites(trace: alloctrace.Trace) -> None:
    usage = trace.usage()
    for table in (trace.live(), trace.blocks()):
        used = table[table["line"] > 0]
        for name in ("site", "filename", "function", "line"):
            sums = used.groupby(name, observed=True)["requested_bytes"].sum()
            expected = usage[(usage["live_bytes"] > 0) & (usage["line"] > 0)].groupby(name)["live_bytes"].sum()
            assert sums.to_dict() == expected.to_dict(), name

    free = trace.blocks().query("state == 'inactive'")
    assert len(free) and free[["site", "filename", "function", "line"]].isna().all().all()
    assert {str(dtype) for dtype in trace.live()[["site", "filename", "function"]].dtypes} == {"category"}
    assert trace.live(0).groupby("site", observed=True)["requested_bytes"].sum().empty


def test_analyses_compute_no_names_of_blocks(trace: alloctrace.Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    names = Mock(side_effect=RuntimeError("names of sites"))
    monkeypatch.setattr("pytorch_alloctrace.reading.tables.site_columns", names)

    assert len(trace.leaks()) and trace.peak(since="step:3", until="step:9").bytes
    with pytest.raises(RuntimeError, match="names of sites"):
        trace.live()


def test_writing_to_table_does_not_change_trace(trace: alloctrace.Trace) -> None:
    for method in (trace.steps, trace.driver_memory):
        table = method()
        before = table.copy()
        table.loc[:, table.columns[-1]] = 7
        pd.testing.assert_frame_equal(method(), before)


def test_invalid_arguments_raise_before_first_chunk_of_events(trace: alloctrace.Trace) -> None:
    with pytest.raises(ValueError, match="events have no column"):
        trace.events(chunk=10, columns=["nothing"])
    with pytest.raises(ValueError, match="no events of kind"):
        trace.events(chunk=10, kinds=["nothing"])


def test_device_without_events_has_no_leaks(trace: alloctrace.Trace) -> None:
    for name in trace._recorded.known_devices:
        report = trace.leaks(device=name)
        assert {leak.device for leak in report.leaks} <= {name}
        assert name in trace.devices or not report.conclusive, "a device without events is conclusive"
