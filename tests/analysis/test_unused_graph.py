"""Autograd graph at the peak that no backward uses: the line to change, and the advice on the peak."""

from __future__ import annotations

from pathlib import Path

import pytest
from marked_programs import marked_line, run_analyze, run_marked
from running import has_nvidia_gpu, needs_cuda_build
from shared_recordings import record_once

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.analysis.free_memory.unused_graph import UNUSED_GRAPH
from pytorch_alloctrace.analysis.summary import summarize
from pytorch_alloctrace.reading.recorded import RecordedTrace

pytestmark = [needs_cuda_build, pytest.mark.skipif(has_nvidia_gpu(), reason="needs a device of 4 GiB")]
PROGRAM = "unused_graph_programs.py"
UNUSED = {
    "collected_outputs": "torch.no_grad() or torch.inference_mode().",
    "one_large_batch": "torch.no_grad() or torch.inference_mode().",
    "shared_helper": "torch.no_grad() or torch.inference_mode().",
    "outputs_kept_in_next_epoch": "torch.no_grad() or torch.inference_mode().",
    "teacher_with_gradients": "torch.no_grad() or torch.inference_mode().",
    "many_collected_outputs": "torch.no_grad() or torch.inference_mode().",
    "phases_of_one_loop": "wherever no backward follows, as in an evaluation.",
    "inference": "torch.no_grad() or torch.inference_mode(), unless it is to be trained.",
}
"""End of the remedy, by case."""
HEALTHY = (
    *("peak_in_training", "micro_batches", "more_and_more_micro_batches", "gan", "served_in_inference_mode"),
    *("evaluation_under_no_grad", "phases_with_gradients_disabled", "gradients_by_function"),
    *("outputs_without_graph", "checkpointed"),
    *("functions_with_own_backward", "one_forward", "skipped_batch", "interrupted"),
    *("failed_second_phase", "retained_graph_of_functions", "memory_carried_on"),
)
ADVICE = "Activations make this peak"


@pytest.fixture(scope="module")
def folder() -> Path:
    return record_once("unused-graphs", lambda path: run_marked(PROGRAM, path, *UNUSED, *HEALTHY, memory="4GiB"))


@pytest.mark.parametrize("case", UNUSED)
def test_graph_without_backward_names_line_and_no_grad_instead_of_advice(folder: Path, case: str) -> None:
    trace = alloctrace.load(folder / f"{case}.alloctrace")

    [finding] = [finding for finding in trace.diagnose() if finding.kind == UNUSED_GRAPH]

    assert finding.site is not None and finding.site.line == marked_line(PROGRAM, case, "CHANGE")
    assert finding.sentences[-1].endswith(UNUSED[case])
    assert 4 * finding.bytes >= trace.peak().bytes
    for options in ((), ("--verbose",)):
        screen = run_analyze(folder, f"{case}.alloctrace", *options)
        assert "UNUSED GRAPH" in screen and ADVICE not in screen


def test_first_screen_has_the_cure_and_the_peak_of_training_alone(folder: Path) -> None:
    summary = summarize(RecordedTrace(folder / "collected_outputs.alloctrace"))
    text = " ".join(run_analyze(folder, "collected_outputs.alloctrace").split())

    [graph] = summary.devices[0].inefficiencies
    peak_of_training = alloctrace.load(folder / "peak_in_training.alloctrace").peak().bytes
    # The inputs of the last evaluation are live in the next epoch, too.
    assert peak_of_training <= graph.figures["other_peak_bytes"] < 1.1 * peak_of_training
    assert "run this line under torch.no_grad()" in text and "While this line does not run, the peak is 1" in text


def test_graph_that_is_live_in_all_of_training_has_no_peak_without_it(folder: Path) -> None:
    summary = summarize(RecordedTrace(folder / "teacher_with_gradients.alloctrace"))

    [graph] = summary.devices[0].inefficiencies
    assert "other_peak_bytes" not in graph.figures


def test_note_on_accumulation_does_not_repeat_the_graph(folder: Path) -> None:
    trace = alloctrace.load(folder / "many_collected_outputs.alloctrace")

    assert [note for verdict in trace.leaks().verdicts.values() for note in verdict.notes if note.has_graph]
    assert not [finding for finding in trace.diagnose() if "accumulates" in finding.title]


def test_last_evaluation_is_no_leak_where_an_earlier_one_released_as_much(folder: Path) -> None:
    [verdict] = alloctrace.load(folder / "many_collected_outputs.alloctrace").leaks().verdicts.values()

    assert not verdict.leaks and not verdict.undecided


def test_note_on_graphs_that_backward_used_names_what_carries_them_on(folder: Path) -> None:
    [note] = [
        finding for finding in alloctrace.load(folder / "memory_carried_on.alloctrace").diagnose() if finding.growth
    ]

    assert note.growth is not None and note.growth.is_trained
    assert note.sentences[-1].endswith(
        "carries the graph of each iteration to the next, after its backward: `.detach()` it."
    )


@pytest.mark.parametrize("case", HEALTHY)
def test_graph_that_backward_uses_is_no_finding(folder: Path, case: str) -> None:
    findings = alloctrace.load(folder / f"{case}.alloctrace").diagnose()

    assert UNUSED_GRAPH not in [finding.kind for finding in findings]


@pytest.mark.parametrize("case", ["evaluation_under_no_grad", "outputs_without_graph"])
def test_outputs_collected_under_no_grad_have_the_note_and_no_advice(folder: Path, case: str) -> None:
    text = " ".join(run_analyze(folder, f"{case}.alloctrace").split())

    assert "accumulates: at the peak" in text
    assert ADVICE not in text and "torch.no_grad()" not in text


def test_training_that_makes_its_peak_keeps_the_advice(folder: Path) -> None:
    text = run_analyze(folder, "more_and_more_micro_batches.alloctrace")

    assert "whose graphs wait for one backward" in " ".join(text.split())
