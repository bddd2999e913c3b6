"""What a report tries of settings: the smallest GPU is that of `fit`, whatever it costs less to find; bounds hold."""

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

pytestmark = pytest.mark.skipif(has_nvidia_gpu(), reason="the programs are made for a device of 80 GiB")
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
        # 18.6 GiB and as much again, which does not go into pieces of 1.8 GiB: unless segments are expandable.
        ("", 19_000, {"as recorded": "40 GB", "expandable_segments:True": "24 GB"}),
        ("torch.cuda.set_per_process_memory_fraction(0.5)", 2000, {}),
    ],
)
def test_the_smallest_card_is_that_of_fit(tmp_path: Path, limit: str, last: int, gpus: dict[str, str]) -> None:
    trace = record(tmp_path, limit, last)
    found = choices_for(trace._recorded, "cuda:0")
    assert found.prediction is not None and found.left_out == ()
    table = trace.what_if(device="cuda:0").to_frame()
    assert found.prediction.to_frame().equals(table) and set(table["setting"]) == {"as recorded", *SENSIBLE}
    settings = [one.setting.text for one in found.prediction.outcomes]
    shown = {}
    for setting, smallest, fitting in zip(settings, found.smallest, trace.fit(settings).fittings, strict=True):
        refused = [number for number, gpu in enumerate(fitting.gpus) if not gpu.outcome.fits]
        enough = fitting.gpus[max(refused, default=-1) + 1 :]
        assert (smallest and smallest[0]) == (enough[0].name if enough else None), setting
        shown[setting] = smallest[0][:5] if smallest else ""
    assert gpus.items() <= shown.items(), shown


def test_lanes_that_do_not_fit_into_memory_together_run_in_several_passes(
    trace: alloctrace.Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once = trace.what_if().to_frame()
    passes = []
    predicted = RecordedTrace.predicted

    def counted(self: RecordedTrace, simulations: Any, *, device: str) -> Any:
        passes.append(len(simulations))
        return predicted(self, simulations, device=device)

    monkeypatch.setattr(RecordedTrace, "predicted", counted)
    monkeypatch.setattr(model, "_MAX_BLOCKS_PER_PASS", 50)
    assert trace.what_if().to_frame().equals(at_once)
    assert len(passes) > 3 and max(passes) < 10


def test_bounds(trace: alloctrace.Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = trace.what_if().check.blocks
    few = choices_for(trace._recorded, "cuda:0", requests * 100)
    assert few.prediction is not None and 0 < len(few.left_out) < len(SENSIBLE)
    assert len(few.prediction.outcomes) + len(few.left_out) == 1 + len(SENSIBLE)
    none = choices_for(trace._recorded, "cuda:0", requests)
    assert none.prediction is None and none.left_out == SENSIBLE
    assert modelled_devices(trace._recorded) == ("cuda:0",)
    monkeypatch.setattr(choices, "MAX_EVENTS", trace.integrity.events - 1)
    assert modelled_devices(trace._recorded) == ()
