"""The picture of a timeline: what it draws is what the table says."""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib
import pandas as pd
import pytest
from matplotlib.figure import Figure
from running import needs_cuda_build

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.report.timeline import plot_timeline
from pytorch_alloctrace.report.units import size

matplotlib.use("agg")

PROGRAM = """
import torch, pytorch_alloctrace as alloctrace
alloctrace.enable("run.alloctrace")
kept = [torch.empty(n * 1_000_000, dtype=torch.uint8, device="cuda") for n in (1, 3, 15)]
torch.empty(40_000_000, dtype=torch.uint8, device="cuda")
on_cpu = torch.empty(5_000_000)
del kept[1]
alloctrace.disable()
"""


@needs_cuda_build
def test_charts_are_those_of_the_timeline_of_each_device(run_cuda_program, tmp_path: Path) -> None:
    run_cuda_program(PROGRAM)
    trace = alloctrace.load(tmp_path / "run.alloctrace")
    timeline, figure = trace.timeline(200), trace.plot_timeline(200)
    figure.savefig(tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 5_000
    assert [chart.get_title(loc="left") for chart in figure.axes] == list(timeline["device"].unique())
    for chart in figure.axes:
        table = timeline[timeline["device"] == chart.get_title(loc="left")]
        highest = next(line for line in chart.lines if line.get_label() == "allocated, at most")
        assert highest.get_ydata().tolist() == table["allocated_max"].tolist()
        assert chart.get_ylim()[1] > table["allocated_max"].max()
        assert chart.texts[0].get_text().startswith(size(int(table["allocated_max"].max())))
    cuda = next(chart for chart in figure.axes if chart.get_title(loc="left") == "cuda:0")
    labels = [label.get_text() for label in cuda.get_legend().get_texts()]
    assert "cached, releasable by empty_cache()" in labels
    figure = Figure()
    assert trace.plot_timeline(50, device="cuda:0", axes=figure.add_subplot()) is figure
    with pytest.raises(ValueError, match="pass device="):
        trace.plot_timeline(50, axes=figure.add_subplot())
    with pytest.raises(ValueError, match="nothing was allocated"):
        plot_timeline(trace.timeline(50)[:0])


def test_without_matplotlib_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(alloctrace.MissingPackageError, match="pip install matplotlib"):
        plot_timeline(pd.DataFrame({"device": ["cpu"]}))
