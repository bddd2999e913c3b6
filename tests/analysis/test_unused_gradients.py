"""Gradients at the peak that no optimizer uses: the line to change, and whether torch.no_grad() is right there."""

from __future__ import annotations

from pathlib import Path

import pytest
from marked_programs import line_with, marked_line, run_analyze, run_marked
from running import SUPPORT, has_nvidia_gpu, needs_cuda_build
from shared_recordings import record_once

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.analysis.free_memory.unused_gradients import UNUSED_GRADIENTS
from pytorch_alloctrace.report.finding import Finding

pytestmark = [needs_cuda_build, pytest.mark.skipif(has_nvidia_gpu(), reason="needs a device of 8 GiB")]
PROGRAM = "unused_gradient_programs.py"
WIDTH = 2048
FREEZE = "requires_grad_(False) on the parameters that are not trained"
NO_GRAD = "run this line under torch.no_grad() or torch.inference_mode()."
FREEZE_OR_NO_GRAD = (
    f"{FREEZE}; or, if no trained parameter needs a gradient through this line, run it under torch.no_grad()."
)
JUST_FREEZE = f"{FREEZE}, before the first backward."
UNUSED = {
    "teacher": (NO_GRAD, 8),
    "attention_teacher": (NO_GRAD, 6),
    "micro_batches_with_teacher": (NO_GRAD, 8),
    "teacher_after_student": (FREEZE_OR_NO_GRAD, 8),
    "loss_network": (FREEZE_OR_NO_GRAD, 6),
    "backbone_between_parts": (FREEZE_OR_NO_GRAD, 8),
    "soft_prompt": (FREEZE_OR_NO_GRAD, 6),
    "second_part_updated_by_hand": (FREEZE_OR_NO_GRAD, 6),
}
"""By case with a marked line: the remedy, and number of matrices WIDTH x WIDTH in the gradients."""
UNMARKED = {
    "helper_that_calls_teacher": ("return teacher(inputs)", NO_GRAD),
    "head": ("features = self.backbone(inputs)", NO_GRAD),
    "low_rank": ("return inputs @ self.weight.T", JUST_FREEZE),
    "optimized_image": ("loss = network(image)", JUST_FREEZE),
}
"""By case: text of the line, and the remedy."""
HEALTHY = (
    *("frozen_teacher", "teacher_under_no_grad", "ordinary_training", "gradients_set_to_zero", "alternating_gan"),
    *("gan_with_many_critic_steps", "gan_without_detach", "many_micro_batches", "lbfgs", "later_optimizer"),
    *("many_micro_batches_beside_another_optimizer", "updated_by_hand", "master_weights", "reference_gradients"),
    *("gan_with_larger_and_larger_batches", "gan_whose_generator_steps_once"),
    *("logged_gradients", "buffers_of_hooks", "few_steps", "small_teacher"),
)


@pytest.fixture(scope="module")
def folder() -> Path:
    cases = (*UNUSED, *UNMARKED, *HEALTHY)
    return record_once("unused-gradients", lambda path: run_marked(PROGRAM, path, *cases, memory="8GiB"))


def find_unused(folder: Path, case: str) -> Finding:
    findings = alloctrace.load(folder / f"{case}.alloctrace").diagnose()
    [finding] = [finding for finding in findings if finding.kind == UNUSED_GRADIENTS]
    return finding


@pytest.mark.parametrize("case", UNUSED)
def test_gradients_without_optimizer_name_line_bytes_and_cure(folder: Path, case: str) -> None:
    remedy, matrices = UNUSED[case]

    finding = find_unused(folder, case)

    assert finding.site is not None and finding.site.line == marked_line(PROGRAM, case, "CHANGE")
    assert f"What helps: {remedy} If" in finding.sentences[-1]
    biases = 1 << 20
    assert 0 <= finding.bytes - matrices * 4 * WIDTH * WIDTH < biases


@pytest.mark.parametrize("case", UNMARKED)
def test_gradients_name_line_of_helper_or_of_the_model_that_is_trained_in_part(folder: Path, case: str) -> None:
    text, remedy = UNMARKED[case]

    finding = find_unused(folder, case)

    line = line_with(text, (SUPPORT / PROGRAM).read_text())
    assert finding.site is not None and finding.site.line == line
    assert f"What helps: {remedy} If" in finding.sentences[-1]


@pytest.mark.parametrize("case", HEALTHY)
def test_gradients_that_are_used_or_absent_are_no_finding(folder: Path, case: str) -> None:
    findings = alloctrace.load(folder / f"{case}.alloctrace").diagnose()

    assert UNUSED_GRADIENTS not in [finding.kind for finding in findings]


def test_first_screen_has_label_title_and_cure(folder: Path) -> None:
    text = " ".join(run_analyze(folder, "teacher.alloctrace").split())

    assert "UNUSED GRADIENTS cuda:0: 128 MiB of 3" in text
    assert "at the peak are gradients of parameters that no optimizer updates, of" in text
    assert "targets = teacher(inputs)" in text and f"What helps: {NO_GRAD}" in text
