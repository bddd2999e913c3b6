"""Charts of the live bytes of leaks over a run, and of a timeline, compared with its table."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd
import pytest
from marked_programs import run_analyze
from matplotlib.figure import Figure
from shared_recordings import record_once, record_report
from steady_clock import make_steady

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.analysis.leaks.leak import GROWING, SURVIVORS
from pytorch_alloctrace.report.units import size

matplotlib.use("agg")

LEAKING = """
import sys, torch, pytorch_alloctrace as alloctrace

kept, buffer = [], torch.empty(0)
with alloctrace.enable("run.alloctrace", devices=("cpu",)):
    for number in range(int(sys.argv[2])):
        kept.append(torch.empty(1000 * (1 + number % 3)))
        buffer = torch.cat([buffer, torch.ones(500)])
        if sys.argv[1] == "steps":
            alloctrace.step()
        else:
            alloctrace.mark("tick")
"""


def live_bytes_of(trace: alloctrace.Trace, line: int, at: str) -> int:
    sites = trace.usage(at, device="cpu")
    return int(sites.loc[sites["line"] == line, "live_bytes"].sum())


def test_chart_of_leak_has_live_bytes_of_its_line(run_program: Any, tmp_path: Path) -> None:
    run_program(LEAKING, "steps", "30")
    trace = alloctrace.load(tmp_path / "run.alloctrace")
    leaks = {leak.kind: leak for leak in trace.leaks().leaks}
    survivors, growing = leaks[SURVIVORS], leaks[GROWING]
    levels = [live_bytes_of(trace, survivors.line.line, f"step:{step}") for step in range(30)]
    assert survivors.allocated_bytes_over_run == tuple(levels)
    levels = [live_bytes_of(trace, growing.line.line, f"step:{step}") for step in range(30)]
    chart = growing.allocated_bytes_over_run
    assert list(chart) == sorted(set(chart)) and set(chart) <= set(levels)
    assert chart[-1] == levels[-1] and len(chart) > 20

    output = run_analyze(tmp_path, "leaks", "run.alloctrace")
    # Charts begin at zero: the buffers begin with a fifth of their last size.
    assert output.count(" live: ▁") == 1 == output.count(" live: ▂") and "█  3.91 KiB → 234 KiB" in output
    narrow = run_analyze(tmp_path, "leaks", "run.alloctrace", "--width", "50")
    assert max(map(len, (line for line in narrow.splitlines() if "live:" in line))) <= 50
    findings = json.loads(run_analyze(tmp_path, "run.alloctrace", "--json"))["findings"]
    charts = [finding["allocated_bytes_over_run"] for finding in findings if finding["leak_kind"] == SURVIVORS]
    assert charts == [list(survivors.allocated_bytes_over_run)]


def test_leak_and_timeline_have_charts_without_steps(run_program: Any, tmp_path: Path) -> None:
    run_program(LEAKING, "time", "90")
    assert make_steady(tmp_path / "run.alloctrace") == 90

    trace = alloctrace.load(tmp_path / "run.alloctrace")
    [leak] = [leak for leak in trace.leaks().leaks if leak.kind == SURVIVORS]
    levels = leak.allocated_bytes_over_run
    assert leak.unit == "iteration" and len(levels) == 90 and list(levels) == sorted(levels)
    assert levels[-1] == live_bytes_of(trace, leak.line.line, "end") == 720_000
    # The program allocates evenly over the run, half of it in the first half.
    assert levels[40] < 360_000 < levels[50]

    [chart] = alloctrace.plot_timeline(trace.timeline(50)).axes
    assert chart.get_title(loc="left") == "cpu"


def test_plot_has_one_chart_per_device_with_bytes_of_timeline(tmp_path: Path) -> None:
    trace = alloctrace.load(record_once("report", record_report) / "run.alloctrace")
    timeline = trace.timeline(200)
    figure = alloctrace.plot_timeline(timeline)
    figure.savefig(tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 5_000
    assert [chart.get_title(loc="left") for chart in figure.axes] == list(timeline["device"].unique())
    for chart in figure.axes:
        table = timeline[timeline["device"] == chart.get_title(loc="left")]
        maximum = next(line for line in chart.lines if line.get_label() == "allocated, at most")
        assert maximum.get_ydata().tolist() == table["allocated_bytes_max"].tolist()
        assert chart.get_ylim()[1] > table["allocated_bytes_max"].max()
        assert chart.texts[0].get_text().startswith(size(int(table["allocated_bytes_max"].max())))

    figure = Figure()
    assert alloctrace.plot_timeline(trace.timeline(50, device="cuda:0"), figure.add_subplot()) is figure
    with pytest.raises(ValueError, match="pass device="):
        alloctrace.plot_timeline(trace.timeline(50), figure.add_subplot())
    with pytest.raises(ValueError, match="nothing was allocated"):
        alloctrace.plot_timeline(trace.timeline(50)[:0])


def test_plot_raises_missing_package_error_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(alloctrace.MissingPackageError, match="pip install matplotlib"):
        alloctrace.plot_timeline(pd.DataFrame({"device": ["cpu"]}))
