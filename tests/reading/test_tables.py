"""Every public table of a real trace: columns that do not hide what a DataFrame has, and integers that can be
subtracted."""

from __future__ import annotations

import functools
import inspect
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from marked_programs import run_analyze
from running import needs_cuda_build, run_python, with_cuda

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.analyze.verbs import VERBS
from pytorch_alloctrace.reading.sites import group_stacks

PROGRAM = """
import torch, pytorch_alloctrace as alloctrace

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

with alloctrace.enable("nothing.alloctrace", devices=("cpu",)):
    pass
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
"""
SERIES_ONLY = {"name", "nbytes"}
"""A Series has these and a DataFrame does not: `table.nbytes` is the column. Only of a row that was made a Series is
`row.nbytes` something else than `row["nbytes"]`."""
EVENT_IDS = {"thread", "stack_id", "forward_stack_id"}
"""Half as wide in the table that has the most rows."""
UNSIGNED = {"address", "segment", "range"}


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> alloctrace.Trace:
    folder = tmp_path_factory.mktemp("tables")
    (folder / "program.py").write_text(PROGRAM)
    run_python(folder, with_cuda([sys.executable, "program.py"]), check=True, timeout=600, environment={})
    return alloctrace.load(folder / "run.alloctrace")


@pytest.fixture(scope="module")
def full(trace: alloctrace.Trace) -> dict[str, pd.DataFrame]:
    return dict(tables(trace))


def tables(trace: alloctrace.Trace) -> Iterator[tuple[str, pd.DataFrame]]:
    """All of them, by the expression that makes them; none may be empty."""
    columns = (*alloctrace.trace.EVENT_COLUMNS, *alloctrace.trace.AUTOGRAD_COLUMNS)
    yield "events", trace.events()
    yield "events, all columns", trace.events(columns=columns)
    for at in ("end", "peak"):
        yield f"live({at})", trace.live(at)
        yield f"blocks({at})", trace.blocks(at)
        yield f"segments({at})", trace.segments(at)
        yield f"stack_totals({at})", trace.stack_totals(at)
        yield f"stack_totals({at}, device)", trace.stack_totals(at, device="cuda:0")
    for by in ("line", "stack", "function", "file"):
        yield f"sites by {by}", trace.sites(by=by)
        yield f"lifetimes by {by}", trace.lifetimes(by=by)
        yield f"lifetimes since by {by}", trace.lifetimes(by=by, since="step:3", until="step:9")
    for by in ("line", "stack", "function", "file", "role", "age", "phase"):
        yield f"composition by {by}", trace.composition(by=by)
        yield f"diff by {by}", trace.diff("step:3", "step:9", by=by)
        yield f"compare by {by}", alloctrace.compare(trace, trace, by=by)
    peak, fragmentation = trace.peak(), trace.fragmentation("mark:half")
    yield from (
        ("peak", peak.composition),
        ("peak, phases", peak.phases),
        ("peak, ages", peak.ages),
        ("roles", peak.roles),
    )
    for name in ("segments", "pools", "free_pieces", "pinners", "pinners_by_line"):
        yield f"fragmentation, {name}", getattr(fragmentation, name)
    yield "timeline", trace.timeline()
    yield "role_timeline", trace.role_timeline()
    yield "role_totals", trace.role_totals()
    yield "role_totals since", trace.role_totals(since="step:3", until="step:9")
    yield "named_blocks", trace.named_blocks()
    yield "driver_memory", trace.driver_memory()
    yield "steps", trace.steps()
    yield "marks", trace.marks()
    yield "regions", trace.regions()
    yield "regions, with peaks", trace.regions(peaks=True)
    yield "annotate", trace.annotate("program.py")
    yield "threads", trace.threads
    yield "hardware", trace.hardware
    leaks = trace.leaks()
    yield "leaks", leaks
    yield "leaks, sites", pd.DataFrame(leaks["sites"].iloc[0])


def empty_tables(trace: alloctrace.Trace, nothing: alloctrace.Trace) -> Iterator[tuple[str, pd.DataFrame]]:
    """The same expressions where there is nothing; nothing: a trace without an allocation."""
    columns = (*alloctrace.trace.EVENT_COLUMNS, *alloctrace.trace.AUTOGRAD_COLUMNS)
    for one in (trace, nothing):
        yield "events", one.events(since="end")
        yield "events", one.events(kinds=("pool_restore",))
        yield "events, all columns", one.events(columns=columns, since="end")
        for at in ("end", "peak"):
            yield f"live({at})", one.live(-1)
            yield f"blocks({at})", one.blocks(-1)
            yield f"segments({at})", one.segments(-1)
            yield f"stack_totals({at})", one.stack_totals(-1)
        for by in ("line", "stack", "function", "file"):
            yield f"sites by {by}", one.sites(-1, by=by)
            yield f"lifetimes by {by}", one.lifetimes(by=by, until=-1)
        yield "role_totals", one.role_totals(until=-1)
        for by in ("line", "stack", "function", "file", "role", "age", "phase"):
            yield f"composition by {by}", one.composition(-1, by=by)
            yield f"diff by {by}", one.diff(-1, -1, by=by)
            yield f"compare by {by}", alloctrace.compare(one, one, at=-1, by=by)
    # In the first segment is no block when it was made: segments, and nothing that pins them.
    segment = int(trace.events(kinds=("segment_alloc",))["seq"].iloc[0])
    fragmentation = nothing.fragmentation(), trace.fragmentation(-1), trace.fragmentation(segment)
    for found in fragmentation[:2]:
        for name in ("segments", "pools", "free_pieces"):
            yield f"fragmentation, {name}", getattr(found, name)
    for found in fragmentation:
        for name in ("pinners", "pinners_by_line"):
            yield f"fragmentation, {name}", getattr(found, name)
    # Nothing is allocated in the last event of a recording, the allocator's state.
    yield "lifetimes since by line", trace.lifetimes(since=int(trace.events()["seq"].iloc[-2]), by="line")
    yield "timeline", nothing.timeline()
    yield "timeline", nothing.timeline(100)
    yield "role_timeline", nothing.role_timeline()
    yield "named_blocks", nothing.named_blocks()
    yield "driver_memory", trace.driver_memory()[:0]
    yield "steps", nothing.steps()
    yield "marks", nothing.marks()
    yield "regions", nothing.regions()
    yield "regions, with peaks", nothing.regions(peaks=True)
    yield "threads", nothing.threads
    yield "hardware", nothing.hardware
    yield "leaks", nothing.leaks()


@needs_cuda_build
def test_an_empty_table_has_the_dtypes_of_a_full_one(trace: alloctrace.Trace, full: dict[str, pd.DataFrame]) -> None:
    """So that what is written for a full one (sums, joins, concatenations) does not fail for the run with nothing."""
    nothing = alloctrace.load(os.path.join(os.path.dirname(trace.path), "nothing.alloctrace"))
    dtypes = {name: table.dtypes.astype(str).to_dict() for name, table in full.items()}
    asked = set()
    for name, table in empty_tables(trace, nothing):
        assert table.empty, name
        assert (name, table.dtypes.astype(str).to_dict()) == (name, dtypes[name])
        asked.add(re.split(r"\W", name)[0])
    # A file of which the trace has no line is refused.
    assert public_tables() - asked == {"annotate"}, "a method that returns a table, and is asked here for none"


def public_tables() -> set[str]:
    """The methods and properties of Trace that return a table."""
    members = {name: getattr(alloctrace.Trace, name) for name in dir(alloctrace.Trace) if not name.startswith("_")}
    functions = {name: getattr(member, "func", member) for name, member in members.items()}
    found = {name for name, function in functions.items() if is_table(getattr(function, "__annotations__", {}))}
    assert {"events", "live", "hardware", "lifetimes"} <= found
    return found


def is_table(annotations: dict[str, str]) -> bool:
    return annotations.get("return") == "pd.DataFrame"


@needs_cuda_build
def test_no_column_hides_an_attribute(full: dict[str, pd.DataFrame]) -> None:
    taken = {*dir(pd.DataFrame), *dir(pd.Series)} - SERIES_ONLY
    assert [name for name, table in full.items() if table.empty] == []
    assert {name: {*table.columns} & taken for name, table in full.items() if {*table.columns} & taken} == {}


@needs_cuda_build
def test_an_unknown_device_is_refused_and_cuda_is_the_only_one(trace: alloctrace.Trace) -> None:
    needed = {"first_event_after": ("end",), "time_ns": ("peak",), "diff": ("step:3", "end")}
    needed |= {"range": ("step:3",), "named_device": (), "annotate": ("program.py",)}
    needed["predicted"] = ([],)
    needed["export"] = (Path(trace.path).with_suffix(".txt"), "collapsed")
    members = [name for name in dir(alloctrace.Trace) if not name.startswith("_")]
    asked = [name for name in members if takes_device(getattr(alloctrace.Trace, name))]
    assert {"live", "events", "timeline", "steps", "leaks", "ooms", "peak", "lifetimes"} - {*asked} == {"events"}
    for name in asked:
        if name == "plot_timeline":  # draws what `timeline` returns
            continue
        ask = functools.partial(getattr(trace, name), *needed.get(name, ()))
        with pytest.raises(alloctrace.TraceError, match=r"no device 'cuda:7' was recorded, only cuda:0, cpu"):
            ask(device="cuda:7")
        one, same = repr(ask(device="cuda")), repr(ask(device="cuda:0"))
        assert re.sub("0x[0-9a-f]+", "", one) == re.sub("0x[0-9a-f]+", "", same), name
    with pytest.raises(alloctrace.TraceError, match="no device 'cuda:7'"):
        alloctrace.compare(trace, trace, device="cuda:7")
    folder = Path(trace.path).parent
    for verb in VERBS.values():
        if verb.name not in ("verify", "finish", "fold", "report", "serve", "live", "convert", "ranks"):
            words = {"diff": ("--since", "step:3"), "annotate": ("program.py",), "export": ("--to", "collapsed")}
            needed_words = words.get(verb.name, ())
            said = run_analyze(folder, verb.name, "run.alloctrace", *needed_words, "--device", "cuda:7", status=2)
            assert said.count("\n") == 1 and "no device 'cuda:7' was recorded, only cuda:0, cpu" in said


def takes_device(member: object) -> bool:
    return inspect.isfunction(member) and "device" in inspect.signature(member).parameters


@needs_cuda_build
def test_integers_are_signed(trace: alloctrace.Trace, full: dict[str, pd.DataFrame]) -> None:
    """What pandas subtracts from an unsigned integer wraps. Also where a table is empty."""
    nothing = [("live", trace.live(0)), ("blocks", trace.blocks(0)), ("segments", trace.segments(0))]
    nothing += [("stack_totals", trace.stack_totals(0))]
    for name, table in [*full.items(), *nothing]:
        for column, dtype in table.dtypes.items():
            if isinstance(dtype, np.dtype) and dtype.kind in "iu":
                allowed = (np.int64, np.uint64) if column in UNSIGNED else (np.int64,)
                if name.startswith("events") and column in EVENT_IDS:
                    allowed = (np.int32,)
                assert dtype in allowed, (name, column, dtype)
            elif isinstance(dtype, pd.api.extensions.ExtensionDtype) and dtype.kind in "iu":
                narrow = name.startswith("events") and column == "step"
                assert dtype == (pd.Int32Dtype() if narrow else pd.Int64Dtype()), (name, column, dtype)


@needs_cuda_build
@pytest.mark.parametrize("columns", [None, ("device", "forward_stack_id", "seq"), ("step",)])
def test_a_table_of_many_events_is_made_in_two_passes(
    trace: alloctrace.Trace, monkeypatch: pytest.MonkeyPatch, columns: tuple[str, ...] | None
) -> None:
    for options in ({}, {"kinds": ("alloc", "free_completed")}, {"since": "step:1"}, {"since": "end"}):
        expected = trace.events(columns=columns, **options)  # type: ignore[arg-type]
        with monkeypatch.context() as patched:
            patched.setattr("pytorch_alloctrace.reading.recorded._LARGE", 0)
            patched.setattr("pytorch_alloctrace.reading.recorded._CHUNK", 10)
            found = trace.events(columns=columns, **options)  # type: ignore[arg-type]
        pd.testing.assert_frame_equal(found, expected)
        with pytest.raises(ValueError, match="no events of kind"):
            trace.events(columns=columns, kinds=("bogus",))


def test_steps_keep_their_numbers(tmp_path: Path) -> None:
    with alloctrace.enable(tmp_path / "run.alloctrace", devices=("cpu",)):
        for number in (1_700_000_000_000, 1_700_000_000_001):
            torch.ones(10)
            alloctrace.step(number)
    trace = alloctrace.load(tmp_path / "run.alloctrace")
    events = trace.events(kinds=("alloc",))
    assert events["step"].tolist() == trace.steps()["step"].tolist() and str(events["step"].dtype) == "Int64"


def test_sums_that_wrap_are_sorted_all_the_same(trace: alloctrace.Trace) -> None:
    """A damaged trace may have such sizes."""
    totals = trace.stack_totals()
    for sizes in ([2**63 - 1, -2], [-(2**63), -(2**63)], [-2, -2]):
        made = totals.assign(live_bytes=np.resize(sizes, len(totals)), bytes=np.resize(sizes[::-1], len(totals)))
        assert len(group_stacks(trace.stacks, made, "file"))
    lowest = np.zeros(len(totals), dtype=np.int64)
    lowest[0] = -(2**63)
    sums = [*group_stacks(trace.stacks, totals.assign(live_bytes=lowest), "function")["live_bytes"]]
    assert len(sums) > 1 and sums == sorted(sums, reverse=True) and sums[-1] == -(2**63)


@needs_cuda_build
def test_what_is_asked_comes_first_and_the_rest_by_name(trace: alloctrace.Trace) -> None:
    for method, arguments in (
        (trace.sites, ("end", "cuda:0")),
        (trace.timeline, (100, "cuda:0")),
        (trace.events, ("step:1",)),
        (trace.leaks, ("cuda:0",)),
        (trace.peak, ("allocated", "cuda:0")),
    ):
        with pytest.raises(TypeError, match="positional"):
            method(*arguments)  # type: ignore[operator]
    assert trace.peak("reserved", device="cuda:0").bytes == trace.segments("peak:reserved")["total_size"].sum()
    assert trace.ooms(since="mark:half")[0].seq == trace.ooms(last=1)[0].seq and not trace.ooms(until="mark:half")


def test_the_number_of_a_peak_costs_no_table(trace: alloctrace.Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **named: object) -> pd.DataFrame:
        raise AssertionError("a state of the replay for a number that is known")

    monkeypatch.setattr(type(trace), "live", refuse)
    monkeypatch.setattr(type(trace), "segments", refuse)
    peak = trace.peak()
    assert peak.bytes > 0 and "cuda:0" in repr(peak)
    with pytest.raises(AssertionError, match="state of the replay"):
        _ = peak.composition


@needs_cuda_build
def test_blocks_have_the_names_of_their_sites(trace: alloctrace.Trace) -> None:
    for table, nbytes in ((trace.live(), "nbytes"), (trace.blocks(), "requested_size")):
        used = table[table["line"] > 0]
        for name in ("site", "filename", "function", "line"):
            sums = used.groupby(name, observed=True)[nbytes].sum()
            sites = trace.sites()
            expected = sites[(sites["live_bytes"] > 0) & (sites["line"] > 0)].groupby(name)["live_bytes"].sum()
            assert sums.to_dict() == expected.to_dict(), name
    free = trace.blocks().query("state == 'inactive'")
    assert len(free) and free[["site", "filename", "function", "line"]].isna().all().all()
    assert {str(dtype) for dtype in trace.live()[["site", "filename", "function"]].dtypes} == {"category"}
    assert trace.live(0).groupby("site", observed=True)["nbytes"].sum().empty


def test_analyses_pay_for_no_names_of_blocks(trace: alloctrace.Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **named: object) -> dict[str, object]:
        raise AssertionError("names of sites where none are asked for")

    monkeypatch.setattr(type(trace.stacks), "site_columns", refuse)
    assert len(trace.leaks()) and trace.peak(since="step:3", until="step:9").bytes
    with pytest.raises(AssertionError, match="names of sites"):
        trace.live()
