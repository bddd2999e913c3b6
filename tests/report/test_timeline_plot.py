"""The picture of a timeline: what it draws is what the table says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import matplotlib
import pytest
from running import needs_cuda_build, program_environment

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
def test_a_chart_for_each_device(run_cuda_program, tmp_path: Path) -> None:
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


@needs_cuda_build
def test_one_device_into_given_axes(run_cuda_program, tmp_path: Path) -> None:
    from matplotlib.figure import Figure

    run_cuda_program(PROGRAM)
    trace = alloctrace.load(tmp_path / "run.alloctrace")
    figure = Figure()
    assert trace.plot_timeline(50, device="cuda:0", axes=figure.add_subplot()) is figure
    with pytest.raises(ValueError, match="pass device="):
        trace.plot_timeline(50, axes=figure.add_subplot())
    with pytest.raises(alloctrace.TraceError, match="no device 'cuda:7'"):
        trace.plot_timeline(50, device="cuda:7")
    with pytest.raises(ValueError, match="nothing was allocated"):
        plot_timeline(trace.timeline(50)[:0])


def test_without_matplotlib(run_program, tmp_path: Path) -> None:
    run_program(
        """
        import torch, pytorch_alloctrace as alloctrace
        alloctrace.enable("run.alloctrace", devices=("cpu",))
        kept = torch.empty(5)
        alloctrace.disable()
        """
    )
    program = """
import sys
sys.modules["matplotlib"] = None
import pytorch_alloctrace as alloctrace
trace = alloctrace.load("run.alloctrace")
try:
    trace.plot_timeline(10)
except alloctrace.MissingPackageError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=program_environment(), capture_output=True, text=True
    )
    assert done.stdout == "drawing a timeline needs matplotlib: pip install matplotlib\n", done.stderr
