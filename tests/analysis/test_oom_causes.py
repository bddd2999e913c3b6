"""Causes of failed allocations: what the program did, the line to change, and a remedy that fits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from marked_programs import marked_line, run_analyze, run_marked
from running import has_nvidia_gpu, needs_cuda_build
from shared_recordings import record_once

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.analysis.free_memory import program_memory as causes
from pytorch_alloctrace.analysis.free_memory.inefficiencies import find_inefficiencies
from pytorch_alloctrace.analysis.leaks.leak import Doubt

pytestmark = [needs_cuda_build, pytest.mark.skipif(has_nvidia_gpu(), reason="needs a device of 2 GiB")]
PROGRAM = "oom_cause_programs.py"
SMALLER_BATCH = "a smaller batch"


@dataclass(frozen=True)
class Case:
    name: str
    cause: str
    title: str
    remedy: str
    marked: str = ""
    """Function with the marked line, if it is not the case's own."""
    failures: int = 1
    """Number of failed allocations."""


CASES = [
    Case("batch_grows", causes.ACTIVATIONS, "The activations of forward at ", SMALLER_BATCH),
    Case("first_backward_fails", causes.ACTIVATIONS, "The activations of forward and backward at ", SMALLER_BATCH),
    Case("recurrent_model", causes.ACTIVATIONS, "The activations of forward at ", SMALLER_BATCH),
    Case(
        "first_validation",
        causes.ACTIVATIONS,
        "The activations of forward, which no backward has used yet, at ",
        "What helps: in an evaluation, run this line under torch.no_grad() or torch.inference_mode(). In training, a ",
    ),
    Case(
        "time_steps_in_first_forward",
        causes.ACTIVATIONS,
        "The activations of ",
        "In an evaluation, run this line under torch.no_grad()",
    ),
    Case(
        "layers_in_first_forward",
        causes.ACTIVATIONS,
        "The activations of ",
        "In an evaluation, run this line under torch.no_grad()",
    ),
    Case(
        "rollout_of_a_model",
        causes.ACTIVATIONS,
        "The activations of ",
        "In an evaluation, run this line under torch.no_grad()",
    ),
    Case(
        "kept_exceptions",
        causes.KEPT_EXCEPTION,
        " keeps exceptions, whose tracebacks hold ",
        "`str(error)`",
        failures=5,
    ),
    Case(
        "failed_trial_of_a_search",
        causes.KEPT_EXCEPTION,
        "Exceptions that the program keeps hold ",
        "the traceback of an exception, in `failure`, keeps",
        failures=2,
    ),
    Case(
        "prepared_in_variables",
        causes.UNUSED_VARIABLES,
        "is in variables of prepared_in_variables() that it does not use any more",
        "`del spectrum, wave` when they are no longer needed",
    ),
    Case("outputs_of_rollouts", causes.COLLECTED, "`rollouts` keeps ", "clear or cap `rollouts`, or append"),
    Case("data_of_numpy", causes.ACTIVATIONS, "The activations of ", "float64: `.float()` of "),
    Case("evaluation_without_no_grad", causes.NO_BACKWARD, " runs forward without torch.no_grad()", "torch.no_grad()"),
    Case("inference_without_no_grad", causes.NO_BACKWARD, " forwards without torch.no_grad()", "torch.no_grad()"),
    Case(
        "running_mean_with_its_graph",
        causes.CARRIED_GRAPH,
        "`statistics.mean` carries the graphs of all calls of ",
        "`.detach()` of what goes into `statistics.mean`",
    ),
    Case(
        "gradients_of_single_samples",
        causes.VMAP,
        "torch.func.vmap computes all samples at once ",
        "a part of the batch",
    ),
    Case(
        "former_model_in_the_cache_of_a_method",
        causes.HELD,
        "`Encoder.positions(...)[0]",
        "call `Encoder.positions.cache_clear()`",
    ),
    Case("losses_are_added_up", causes.MANY_FORWARDS, " forwards before one backward", "backward after each forward"),
    Case("losses_of_micro_batches", causes.MANY_FORWARDS, " their graphs live together", "for each micro-batch"),
    Case("chunks_of_a_batch", causes.MANY_FORWARDS, " their graphs live together", "for each micro-batch"),
    Case(
        "first_micro_batches",
        causes.NO_BACKWARD,
        " no backward ran between them",
        "in training, call backward on each part",
    ),
    Case("checkpoint_beside_the_model", causes.CHECKPOINT, " loaded a checkpoint onto ", 'map_location="cpu"'),
    Case("checkpoint_before_the_model", causes.CHECKPOINT, " loaded a checkpoint onto ", 'map_location="cpu"'),
    Case("first_step_of_adam", causes.OPTIMIZER_STATE, " allocates the optimizer's state ", "sharding it over devices"),
    Case("large_batch_of_a_cached_model", causes.ACTIVATIONS, "The activations of ", SMALLER_BATCH),
    Case("large_batch_beside_a_late_average", causes.ACTIVATIONS, "The activations of forward ", SMALLER_BATCH),
    Case("first_step_of_sgd_with_momentum", causes.OPTIMIZER_STATE, " allocates the optimizer's state ", "(SGD, "),
    Case("copies_in_a_step_of_adam", causes.OPTIMIZER_STEP, " makes temporary copies in the ", "foreach=False"),
    Case(
        "optimizer_of_a_second_stage",
        causes.FORMER_TRAINING,
        "Gradients and optimizer state of a former training, in `stages[0][1].state`, are still live: ",
        "del its optimizer",
    ),
    Case("copies_of_the_model", causes.COPIES, " puts another copy of the model on ", "keep copies in host memory"),
    Case("models_of_a_search", causes.MANY_MODELS, "4 models made at ", "models, with their optimizers"),
    Case("models_of_many_layers", causes.MANY_MODELS, " models made at ", "Held by versions"),
    Case(
        "models_of_threads",
        causes.MANY_MODELS,
        " models made at ",
        "share it, also between threads",
        "serve_in_threads",
    ),
    Case("model_does_not_fit", causes.MODEL, "Weights fill ", "smaller batch would not"),
    Case(
        "generation_with_a_cache",
        causes.FORWARD,
        " requests more and more (",
        "bound the length of what grows (a window, a maximum)",
        "join_to_cache",
    ),
    Case(
        "rows_of_a_jacobian",
        causes.VMAP,
        " computes a Jacobian or Hessian, a row for each output: ",
        "`jacrev(..., chunk_size=...)`",
    ),
    Case(
        "hessian_of_all_rows",
        causes.VMAP,
        " computes a Jacobian or Hessian, a row for each output: ",
        "`vectorize=False`",
    ),
    Case(
        "misfits_of_a_line_search",
        causes.COLLECTED_GRAPHS,
        "`misfits` keeps the autograd graphs of its items: ",
        "store `.item()` or `.detach()` of each",
    ),
    Case(
        "one_checkpoint_of_all_layers",
        causes.RECOMPUTED,
        " checkpoints a large part, and backward computes all its activations again",
        "checkpoint smaller parts",
    ),
    Case("trainers_that_are_garbage", causes.GARBAGE, "Garbage holds ", "`Decay.trainer` refers back"),
    Case(
        "embedding_with_many_rows",
        causes.LARGE_PARAMETER,
        "One parameter, `0.weight` of ",
        "if it is an embedding: fewer rows",
    ),
    Case(
        "broadcast_of_losses",
        causes.LARGE_REQUEST,
        " broadcasts two tensors of 30,000 elements to 30,000 x 30,000, and requests ",
        "(30,000,) become (30,000, 30,000)",
    ),
    Case("long_attention", causes.LARGE_REQUEST, " at once", "scaled_dot_product_attention", "attend"),
    Case("scaled_attention", causes.LARGE_REQUEST, " at once", "scaled_dot_product_attention", "attend_scaled"),
    Case(
        "layers_of_attention",
        causes.ACTIVATIONS,
        " stores the attention matrices, a value for each pair of positions. The activations of ",
        "scaled_dot_product_attention",
        "attend",
    ),
    Case("one_hot_beside_fragments", causes.LARGE_REQUEST, " makes one-hot tensors", "may serve this request"),
    Case("steps_of_second_order", causes.ACTIVATIONS, " computes gradients with graphs ", "leave `create_graph=True`"),
    Case("weight_norm_in_a_loop", causes.ACTIVATIONS, " computes a weight anew in each call ", "parametrize.cached()"),
    Case("copies_of_agents_with_replay", causes.MANY_MODELS, " models made at ", "copy only the model, not what the"),
    Case("graphs_of_a_generator", causes.NO_BACKWARD, " without torch.no_grad()", "Make a list of it there"),
    Case("large_request_beside_stranded_memory", causes.LARGE_REQUEST, " broadcasts two tensors ", "in chunks"),
    Case("models_in_one_autocast_region", causes.AUTOCAST_CACHE, "Autocast keeps 1.", "`cache_enabled=False`"),
    Case("soup_of_copies", causes.MANY_MODELS, " models made at ", "What helps: keep the copies on the CPU"),
    Case("dense_adjacency", causes.LARGE_REQUEST, " at once", "as a sparse tensor or a list of edges"),
    Case("all_pairs", causes.LARGE_REQUEST, " broadcasts tensors to a larger shape", "chunks of one side"),
    Case("preallocated_cache", causes.KEPT, " keeps 1.28 GiB (64 % of cuda:0)", "a shorter cache"),
    Case("frozen_layers_of_a_large_batch", causes.FORWARD, "A forward without gradients fills ", SMALLER_BATCH),
    Case("inference_of_a_large_batch", causes.FORWARD, "A forward without gradients fills ", SMALLER_BATCH),
]
LEAK, JOINED = "leak_beside_the_model", "joined_collection"
GOES_ON, UNROLLED = "threads_that_go_on", "unrolled_simulation"


@pytest.fixture(scope="module")
def folder() -> Path:
    def record(path: Path) -> None:
        run_marked(PROGRAM, path, *(case.name for case in CASES), LEAK, JOINED, GOES_ON, UNROLLED, memory="2GiB")

    return record_once("causes-of-oom", record)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_cause_title_line_and_remedy_fit_what_the_program_did(folder: Path, case: Case) -> None:
    trace = alloctrace.load(folder / f"{case.name}.alloctrace")

    failures, finding = trace.ooms(), trace.diagnose()[0]
    failed = failures[-1]
    assert len(failures) == case.failures

    assert failed.cause == case.cause, failed.program
    assert case.title in finding.title
    assert finding.site is not None and finding.site.line == marked_line(PROGRAM, case.marked or case.name, "CHANGE")
    text = " ".join(finding.sentences)
    assert case.remedy in text
    # A smaller batch helps only where data of the batch fills the device.
    assert (SMALLER_BATCH in text) == (case.cause in (causes.ACTIVATIONS, causes.FORWARD))


def test_activations_name_the_line_that_moves_the_model(folder: Path) -> None:
    trace = alloctrace.load(folder / "batch_grows.alloctrace")

    line = trace.ooms()[-1].program.model_origin.line
    text = " ".join(trace.diagnose()[0].sentences)

    assert line is not None and line.source is not None and "model = make_layers(16, 1024).to(DEVICE)" in line.source
    assert f"checkpointing of the model that {line.filename}:{line.line} in batch_grows" in text


def test_leak_with_a_quarter_of_the_device_leads(folder: Path) -> None:
    trace = alloctrace.load(folder / f"{LEAK}.alloctrace")

    finding = trace.diagnose()[0]

    assert finding.kind == "oom" and " leaks: " in finding.title
    assert finding.site is not None and finding.site.line == marked_line(PROGRAM, LEAK, "CHANGE")
    assert "What helps: clear or cap " in " ".join(finding.sentences)
    assert finding.title in " ".join(run_analyze(folder, "oom", f"{LEAK}.alloctrace", "--width", "300").split())


def test_graph_that_fills_the_device_before_any_backward_may_be_needed(folder: Path) -> None:
    finding = alloctrace.load(folder / f"{UNROLLED}.alloctrace").diagnose()[0]

    assert finding.kind == "oom" and " iterations, and no backward has run: " in finding.title
    text = " ".join(finding.sentences)
    assert "if a backward is to follow, call it in each of them" in text and "or checkpoint each" in text


def test_request_that_joins_what_leaks_is_named(folder: Path) -> None:
    finding = alloctrace.load(folder / f"{JOINED}.alloctrace").diagnose()[0]

    assert finding.site is not None and finding.site.line == marked_line(PROGRAM, JOINED, "CHANGE")
    assert " collects 1.17 GiB" in finding.title and " joins it into one: as much again" in finding.title
    assert "What helps: collect copies on the CPU (`.cpu()`)" in " ".join(finding.sentences)


def test_first_screen_shows_the_cure_once_and_quotes_the_line_that_stores(folder: Path) -> None:
    text = run_analyze(folder, f"{LEAK}.alloctrace")

    line = marked_line(PROGRAM, LEAK, "STORE")
    assert f"…/{PROGRAM}:{line}: outputs.append(out.detach())" in " ".join(text.split())
    assert text.count("clear or cap `outputs`") == 1


def test_growth_that_a_failed_allocation_stopped_is_undecided(folder: Path) -> None:
    trace = alloctrace.load(folder / f"{GOES_ON}.alloctrace")

    [growth] = trace.leaks().verdicts["cuda:0"].undecided

    assert growth.doubt is Doubt.OUT_OF_MEMORY
    assert growth.site.line == marked_line(PROGRAM, "serve_in_threads", "CHANGE")


def test_peak_below_a_limit_is_no_proof_if_the_run_ended_out_of_memory(folder: Path) -> None:
    trace = f"{LEAK}.alloctrace"

    assert "UNKNOWN" in run_analyze(folder, "peak", trace, "--fail-above", "4GiB", status=3)
    assert "FAIL" in run_analyze(folder, "peak", trace, "--fail-above", "1GiB", status=1)
    # The events of a range before the failure are complete.
    assert "UNKNOWN" not in run_analyze(folder, "peak", trace, "--until", "step:2", "--fail-above", "4GiB")


def test_oom_command_shows_title_and_line_of_the_cause(folder: Path) -> None:
    text = run_analyze(folder, "oom", "evaluation_without_no_grad.alloctrace")

    assert "runs forward without torch.no_grad()" in " ".join(text.split())
    assert "outputs.append(model(x))  # CHANGE" in text


def test_negligible_fragmentation_is_no_finding_beside_another_cause(folder: Path) -> None:
    trace = alloctrace.load(folder / "large_request_beside_stranded_memory.alloctrace")

    [inefficiency] = find_inefficiencies(trace._recorded, "cuda:0")
    kinds = [finding.kind for finding in trace.diagnose()]

    assert inefficiency.kind == "fragmentation" and "oom" in kinds and "fragmentation" not in kinds
