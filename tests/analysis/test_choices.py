"""Settings that a report tries: the smallest GPU equals that of `fit`, and the limits are respected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from running import has_nvidia_gpu
from shared_recordings import run_source

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.analysis.what_if import choices, model
from pytorch_alloctrace.analysis.what_if.choices import choices_for, modelled_devices
from pytorch_alloctrace.analysis.what_if.settings import SENSIBLE
from pytorch_alloctrace.reading.recorded import RecordedTrace

pytestmark = pytest.mark.skipif(has_nvidia_gpu(), reason="the programs need a device of 80 GiB")
RECORDED = "as recorded (torch's defaults)"
PROGRAM = """
import torch, pytorch_alloctrace as alloctrace
def block(mebibytes):
    return torch.empty(mebibytes << 20, dtype=torch.uint8, device="cuda")
with alloctrace.enable("run.alloctrace", devices=("cuda",)):
    {limit}
    kept, held = [], []
    for number in range(10):
        batch = block(1900)
        del batch
        kept.append(block(12))
        held.append(block(1800))
    held.clear()
    large = block({last})
"""


def record(folder: Path, limit: str, last: int) -> alloctrace.Trace:
    return alloctrace.load(run_source(folder, PROGRAM.format(limit=limit, last=last), cuda=True) / "run.alloctrace")


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> alloctrace.Trace:
    return record(tmp_path_factory.mktemp("choices"), "", 2000)


@pytest.mark.parametrize(
    ("limit", "last", "gpus"),
    [
        # The last 18.6 GiB do not fit into free pieces of 1.8 GiB unless segments are expandable.
        ("", 19_000, {RECORDED: "RTX 3090", "expandable_segments:True": "L4"}),
        ("torch.cuda.set_per_process_memory_fraction(0.5)", 2000, {}),
    ],
)
def test_choices_have_same_smallest_gpu_as_fit(tmp_path: Path, limit: str, last: int, gpus: dict[str, str]) -> None:
    trace = record(tmp_path, limit, last)
    result = choices_for(trace._recorded, "cuda:0")
    assert result.prediction is not None and result.left_out == ()
    table = trace.what_if(device="cuda:0").to_frame()
    assert result.prediction.to_frame().equals(table) and set(table["setting"]) == {RECORDED, *SENSIBLE}
    settings = [outcome.setting.text for outcome in result.prediction.outcomes]
    names = {}
    for setting, smallest, fitting in zip(settings, result.smallest, trace.fit(settings).fittings, strict=True):
        too_small = [number for number, gpu in enumerate(fitting.gpus) if not gpu.outcome.fits]
        large_enough = fitting.gpus[max(too_small, default=-1) + 1 :]
        assert (smallest and smallest.names) == (large_enough[0].names if large_enough else None), setting
        names[setting] = smallest.names[0] if smallest else ""
    assert gpus.items() <= names.items(), names


def test_simulations_run_in_several_passes_when_memory_is_limited(
    trace: alloctrace.Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_one_pass = trace.what_if().to_frame()
    passes = []
    predicted = RecordedTrace.predicted

    def count_simulations(self: RecordedTrace, simulations: Any, **options: Any) -> Any:
        passes.append(len(simulations))
        return predicted(self, simulations, **options)

    monkeypatch.setattr(RecordedTrace, "predicted", count_simulations)
    monkeypatch.setattr(model, "_MAX_BLOCKS_PER_PASS", 50)

    assert trace.what_if().to_frame().equals(in_one_pass)
    assert len(passes) > 3 and max(passes) < 10


def test_choices_leave_out_settings_beyond_limits(trace: alloctrace.Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = trace.what_if().check.blocks
    limited = choices_for(trace._recorded, "cuda:0", requests * 100)
    assert limited.prediction is not None and 0 < len(limited.left_out) < len(SENSIBLE)
    assert len(limited.prediction.outcomes) + len(limited.left_out) == 1 + len(SENSIBLE)
    empty = choices_for(trace._recorded, "cuda:0", requests)
    assert empty.prediction is None and empty.left_out == SENSIBLE
    assert modelled_devices(trace._recorded) == ("cuda:0",)
    monkeypatch.setattr(choices, "MAX_EVENTS", trace.integrity.events - 1)
    assert modelled_devices(trace._recorded) == ()
