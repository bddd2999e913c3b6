"""Growth with the lifetimes of a leak and another reading: each doubt in a program, and a leak that resembles it."""

from __future__ import annotations

import dataclasses
import functools
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from growth_programs import LAYERS, SIZE, STEPS
from running import SUPPORT, WITH_SUPPORT, run_python
from shared_recordings import record_once, run_source
from steady_clock import TICK_NS
from text_traces import TextTrace

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.analysis.leaks import judge
from pytorch_alloctrace.analysis.leaks.clock import Clock
from pytorch_alloctrace.analysis.leaks.forecast import estimate_free_bytes
from pytorch_alloctrace.analysis.leaks.leak import Doubt, Growth, Leak, LeakVerdict
from pytorch_alloctrace.analysis.leaks.loops import LoopIndex
from pytorch_alloctrace.analysis.leaks.outside_growth import OutsideGrowth, find_outside_growth
from pytorch_alloctrace.analysis.summary import Summary, summarize
from pytorch_alloctrace.reading.recorded import RecordedTrace
from pytorch_alloctrace.reading.table import Table
from pytorch_alloctrace.report import units
from pytorch_alloctrace.report.finding import Finding
from pytorch_alloctrace.report.growth import describe_outside, growth_data
from pytorch_alloctrace.report.leaks import leak_findings
from pytorch_alloctrace.report.site_names import SiteNames


def record(folder: Path) -> None:
    command = [sys.executable, str(SUPPORT / "growth_programs.py")]
    run_python(folder, command, True, 600, {"PYTHONPATH": WITH_SUPPORT})


@functools.cache
def trace_of(program: str) -> RecordedTrace:
    trace = RecordedTrace(record_once("growth-programs", record) / f"{program}.alloctrace")
    assert trace.integrity.state == "complete"
    return trace


@functools.cache
def summary_of(program: str) -> Summary:
    return summarize(trace_of(program), of_leaks=True)


def verdict_on(program: str) -> LeakVerdict:
    verdict = summary_of(program).devices[0].leaks
    assert verdict.judged
    return verdict


@functools.cache
def findings_on(program: str) -> tuple[Finding, ...]:
    return leak_findings(summary_of(program))


def text_of(program: str) -> str:
    return " ".join(" ".join([finding.title, *finding.sentences]) for finding in findings_on(program))


def only_leak(program: str) -> Leak:
    verdict = verdict_on(program)
    assert len(verdict.leaks) == 1 and not verdict.undecided and not verdict.notes, verdict
    return verdict.leaks[0]


def only_growth(program: str) -> Growth:
    """Return the undecided growth or note of a program that has nothing else."""
    verdict = verdict_on(program)
    growths = (*verdict.undecided, *verdict.notes)
    assert len(growths) == 1 and not verdict.leaks, verdict
    assert verdict.decided == growths[0].is_note
    return growths[0]


@pytest.mark.parametrize(
    ("program", "cure"),
    [
        ("list", "Clear or cap `recent`"),
        ("unbounded lru cache", "`functools.lru_cache(maxsize=...)`"),
        ("unbounded queue", "`queue.Queue(maxsize=...)`"),
        ("full deque of growing lists", "Clear or cap the lists in `users`"),
        ("deque of growing lists that is not full", "Clear or cap the lists in `users`"),
        ("deque whose entries grow", "`epochs` has a bound, 200: lower it, or keep less in each entry"),
        ("deque, then a list", "Clear or cap `outputs`"),
        ("optimizers kept", "Clear or cap `optimizers`"),
        ("global", "Clear or cap `OUTPUTS`"),
        ("attribute", "Clear or cap `evaluator.outputs`"),
        ("local of the function with the steps", "Clear or cap `losses`"),
        ("local of the function with the steps, in another function", "Clear or cap `losses`"),
        ("local of a method main", "Clear or cap `outputs`"),
        ("not joined", "Clear or cap `parts`"),
        ("hook that appends", "Clear or cap `seen` in the closure of <lambda>(), a hook of model"),
        ("default value", "use None, and make the object in the call"),
        ("exceptions", "`traceback.clear_frames(error.__traceback__)`"),
        ("closure", "Clear or cap `history` in the closure of <lambda>()"),
        ("closures", "Functions in `callbacks` keep"),
        ("buffer in a closure", "`keys` in the closure of extend() becomes a longer tensor"),
        ("forwards", "Entries of `outputs` keep the graphs"),
        ("forwards without temporary blocks", "Entries of `outputs` keep the graphs"),
        ("running total of activations", "`total = total.detach()`"),
    ],
)
def test_leak_is_called_a_leak_with_the_cure_of_its_holder(program: str, cure: str) -> None:
    leak = only_leak(program)

    assert leak.holder is not None
    assert [finding.kind for finding in findings_on(program)] == ["leak"]
    assert cure in findings_on(program)[0].sentences[-1]


@pytest.mark.parametrize("program", ["deque", "lru cache", "queue"])
def test_container_that_is_not_full_is_a_note_with_its_bytes_when_full(program: str) -> None:
    growth = only_growth(program)

    assert (growth.doubt, growth.is_note, growth.bound) == (Doubt.BOUNDED, True, 200)
    assert STEPS // 2 < growth.size <= STEPS
    assert growth.bytes_when_full == 200 * SIZE
    assert [finding.kind for finding in findings_on(program)] == ["no_leak", "note"]
    assert f"{growth.size} of 200, about 19.1 MiB when full" in text_of(program)


def test_full_container_that_holds_all_blocks_is_a_note() -> None:
    growth = only_growth("deque that another line filled before")

    assert (growth.doubt, growth.is_note, growth.size, growth.bound) == (Doubt.BOUNDED, True, STEPS // 2, STEPS // 2)


def test_optimizer_state_of_unfrozen_layers_is_a_note() -> None:
    growth = only_growth("unfrozen layers")

    assert (growth.doubt, growth.is_note) == (Doubt.OPTIMIZER_STATE, True)
    assert [finding.kind for finding in findings_on("unfrozen layers")] == ["no_leak", "note"]


def test_optimizer_state_of_layers_that_are_added_again_and_again_leaks_with_them() -> None:
    verdict = verdict_on("layers added")

    assert {leak.line.function for leak in verdict.leaks} == {"fit", "main"}
    assert verdict.notes == ()


@pytest.mark.parametrize(
    ("program", "call"),
    [
        ("local of one call", "evaluate"),
        ("local of one call after steps", "evaluate"),
        ("local of one call of an inner function", "evaluate"),
        pytest.param(
            *("comprehension", "handle"),
            marks=pytest.mark.skipif(sys.version_info >= (3, 12), reason="comprehensions have no frame"),
        ),
    ],
)
def test_local_of_one_call_is_undecided_and_the_call_is_named(program: str, call: str) -> None:
    growth = only_growth(program)

    assert growth.doubt is Doubt.ONE_CALL and growth.call is not None
    assert growth.call.function == call
    (finding,) = findings_on(program)
    assert finding.kind == "inconclusive" and f"until {call}() returns" in finding.title
    assert f"Record several calls of {call}()" in finding.sentences[-1]


def describe_growths(program: str, *growths: Growth) -> list[Finding]:
    """Return the findings on a device with this growth only."""
    summary = summary_of(program)
    notes = tuple(growth for growth in growths if growth.is_note)
    undecided = tuple(growth for growth in growths if not growth.is_note)
    leaks = dataclasses.replace(summary.devices[0].leaks, undecided=undecided, notes=notes)
    devices = (dataclasses.replace(summary.devices[0], leaks=leaks), *summary.devices[1:])
    findings = leak_findings(dataclasses.replace(summary, devices=devices))
    return [finding for finding in findings if finding.kind != "no_leak"]


def on_line(growth: Growth, line: int, function: str = "evaluate") -> Growth:
    """Return the growth at another line of `function`, which is also the call."""
    site = dataclasses.replace(growth.site, line=line, function=function)
    call = None if growth.call is None else dataclasses.replace(growth.call, function=function)
    return dataclasses.replace(growth, site=site, call=call)


def test_lines_of_one_call_are_one_finding_and_those_of_another_call_a_second() -> None:
    growth = only_growth("local of one call")

    findings = describe_growths(
        "local of one call", on_line(growth, 5), on_line(growth, 6), on_line(growth, 7, "predict")
    )

    assert ["until evaluate() returns" in finding.title for finding in findings] == [True, False]
    assert [finding.bytes for finding in findings] == [2 * growth.allocated_bytes, growth.allocated_bytes]
    assert "evaluate and 1 more line keeps" in findings[0].title
    assert any(":5 in evaluate; " in text and ":6 in evaluate." in text for text in findings[0].sentences)
    assert "until predict() returns" in findings[1].title and "By line" not in " ".join(findings[1].sentences)


@pytest.mark.parametrize(("has_holder", "count"), [(True, 1), (False, 2)])
def test_notes_on_one_holder_or_one_function_are_one_note(has_holder: bool, count: int) -> None:
    growth = only_growth("stopped")
    growth = growth if has_holder else dataclasses.replace(growth, holder=None)

    findings = describe_growths("stopped", on_line(growth, 5), on_line(growth, 6, "predict"))

    assert [finding.kind for finding in findings] == ["note"] * count
    assert sum(finding.bytes for finding in findings) == 2 * growth.allocated_bytes
    assert ("and 1 more line grew by" in findings[0].title) == has_holder


EVALUATION = """
import torch
import pytorch_alloctrace as alloctrace

def evaluate(layer):
    outputs = []
    for number in range(100):
        with torch.no_grad():
            output = layer(torch.randn(256, 256))
        outputs.append(output)
        if number > 10:
            outputs.append(output.exp())
    return outputs

def main():
    layer = torch.nn.Linear(256, 256)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for number in range(20):
        layer(torch.randn(16, 256)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    outputs = evaluate(layer)
    for number in range(100):
        with torch.no_grad():
            layer(torch.randn(256, 256)).relu()

alloctrace.enable("run.alloctrace", devices=("cpu",))
main()
"""


def test_lines_of_an_accumulation_have_no_notes_of_their_own(tmp_path: Path) -> None:
    trace = RecordedTrace(run_source(tmp_path, EVALUATION) / "run.alloctrace")

    notes = [finding.title for finding in leak_findings(summarize(trace, of_leaks=True)) if finding.kind == "note"]

    assert len(notes) == 1 and "in evaluate accumulates: at the peak" in notes[0], notes


def test_undecided_growth_after_the_steps_is_described_in_its_own_unit() -> None:
    (finding,) = findings_on("local of one call after steps")

    assert f"({STEPS} iterations judged)" in finding.sentences[0]


def test_blocks_that_were_concatenated_once_and_released_are_undecided() -> None:
    assert only_growth("joined").doubt is Doubt.JOINED
    assert "concatenated and released" in text_of("joined")


def test_collected_parts_name_the_line_that_concatenates() -> None:
    growth = only_growth("joined")

    assert growth.call is not None and growth.call.source is not None and "torch.cat(" in growth.call.source
    assert f"The parts are concatenated at {growth.call.filename}:{growth.call.line}" in text_of("joined")


def test_blocks_that_replace_others_of_their_sizes_are_no_growth() -> None:
    verdict = verdict_on("blocks that move one by one")

    assert not (verdict.leaks or verdict.undecided or verdict.notes)


def test_blocks_in_addition_to_others_of_their_sizes_are_a_leak() -> None:
    leak = only_leak("blocks that move and are kept")

    assert leak.blocks >= STEPS // 2


def test_buffer_that_takes_from_a_pool_is_a_note_and_what_comes_in_its_rounds_undecided() -> None:
    verdict = verdict_on("buffer taken from a pool")

    assert not verdict.leaks
    [note], [growth] = verdict.notes, verdict.undecided
    assert note.doubt is Doubt.TAKEN and "cat" in (note.site.source or "")
    assert growth.doubt is Doubt.RARE and growth.arrivals >= STEPS // 2
    assert "as much as another line allocated less" in text_of("buffer taken from a pool")


def test_two_buffers_that_grow_alike_are_leaks() -> None:
    assert verdict_on("buffer beside another").leaks


def test_buffer_that_restarts_in_each_step_is_no_growth() -> None:
    verdict = verdict_on("buffer that restarts")

    assert not (verdict.leaks or verdict.undecided)


def test_backlog_of_longer_inputs_is_undecided() -> None:
    growth = only_growth("longer inputs")

    assert (growth.doubt, growth.kind) == (Doubt.LOAD, "backlog")
    assert [finding.kind for finding in findings_on("longer inputs")] == ["inconclusive"]


@pytest.mark.parametrize(
    ("program", "cure"),
    [("hooks", "call `remove()` on the handle"), ("longer queue", "Entries of `waiting` come faster")],
)
def test_backlog_in_a_growing_container_is_growth(program: str, cure: str) -> None:
    assert only_leak(program).kind == "backlog"
    assert [finding.kind for finding in findings_on(program)] == ["growth"]
    assert cure in findings_on(program)[0].sentences[-1]


@pytest.mark.parametrize("program", ["layers built", "layers converted", "layers loaded", "one forward"])
def test_one_pass_over_layers_is_no_loop_and_no_leak(program: str) -> None:
    verdict = summary_of(program).devices[0].leaks

    assert verdict.is_one_pass and not verdict.judged
    assert (verdict.leaks, verdict.undecided, verdict.notes, verdict.loop) == ((), (), (), None)
    assert [finding.kind for finding in findings_on(program)] == ["not_judged"]


def test_graph_of_a_variable_that_leaks_is_reported_once() -> None:
    for program in ("forwards", "running total of activations"):
        assert [finding.kind for finding in findings_on(program)] == ["leak"]


def test_loop_of_forwards_is_counted_although_each_forward_is_one_pass() -> None:
    trace = trace_of("forwards")
    loops = LoopIndex(trace)
    leak = only_leak("forwards")

    assert (leak.unit, leak.blocks) == ("iteration", LAYERS * 46 + 46)  # 46 forwards are old enough
    assert loops.is_in_loop(leak.stack_ids[0]) and not loops.is_in_one_pass(leak.stack_ids[0])


def test_optimizers_that_alternate_unevenly_are_judged_by_iterations() -> None:
    verdict = verdict_on("alternating optimizers")

    assert trace_of("alternating optimizers").positions.steps_are_inferred
    assert (verdict.unit, verdict.units, verdict.leaks, verdict.decided) == ("iteration", 300, (), True)


def test_few_arrivals_are_undecided_and_five_models_are_a_note() -> None:
    for program, arrivals in (("5 arrivals", 5), ("7 arrivals", 7)):
        (growth,) = verdict_on(program).undecided
        assert (growth.doubt, growth.arrivals) == (Doubt.RARE, arrivals)
        assert f"{arrivals} of {growth.units} steps" in text_of(program)
    (growth,) = verdict_on("models on demand").notes
    assert (growth.doubt, growth.is_model) == (Doubt.RARE, True)


@pytest.mark.parametrize(
    ("program", "holder", "source"),
    [("models of requests", "registry", "registry.setdefault"), ("models of threads", "models", "copy.deepcopy(base)")],
)
def test_model_for_each_request_is_a_leak_of_the_line_that_makes_it(program: str, holder: str, source: str) -> None:
    leak = only_leak(program)
    cure = findings_on(program)[0].sentences[-1]

    assert leak.is_model and leak.unit == "iteration"
    assert leak.line.source is not None and source in leak.line.source
    assert leak.holder is not None and leak.holder.name.startswith(holder)
    assert f"`{holder}`" in cure and "make one model and share it, also between threads" in cure


def test_undecided_growth_has_one_size_and_all_its_holders() -> None:
    [finding] = findings_on("two lists that grow now and then")

    size = units.size(finding.bytes)
    assert finding.title.startswith("A leak or not?") and f" kept {size}, allocated in " in finding.title
    assert finding.sentences[0].startswith(f"{size} in 72 blocks")
    text = " ".join(finding.sentences)
    assert all(f"{name} (list of " in text for name in ("inputs", "outputs"))


def test_views_are_to_be_cloned() -> None:
    leak = only_leak("views of batches")

    assert leak.holder is not None and leak.holder.tensor_share == 1000 / SIZE
    cure = findings_on("views of batches")[0].sentences[-1]
    assert "views, which use 1 % of the memory that they keep: store `.clone()` of each. Clear or cap `last`" in cure
    other = only_leak("lines of one list").holder
    assert other is not None and other.tensor_share == 1


def test_corrupt_sizes_of_a_holder_are_no_views(tmp_path: Path) -> None:
    files = {name: f"/home/user/{name}.py" for name in ("main", "weights", "forward", "keep", "small", "batch")}
    holders = ("kept (list of 40), global of keep.py",)
    trace = RecordedTrace(TextTrace(files, holders=holders).write(tmp_path / "run.alloctrace"))
    trace.held = tuple(dataclasses.replace(held, bytes=0, tensor_bytes=5) for held in trace.held)

    [leak] = [leak for device in summarize(trace).devices for leak in device.leaks.leaks if leak.holder is not None]

    assert leak.holder is not None and leak.holder.tensor_share == 1


def test_title_of_a_leak_of_several_lines_counts_the_others() -> None:
    [leak, title] = only_leak("lines of one list"), findings_on("lines of one list")[0].title

    assert len(leak.sites) == 2 and " in main.<locals>.keep and 1 more line: +" in title


@pytest.mark.parametrize("program", ["models of the last requests", "models of threads that end"])
def test_models_that_are_removed_are_no_leak(program: str) -> None:
    verdict = verdict_on(program)

    assert (verdict.leaks, verdict.undecided, verdict.decided, verdict.unit) == ((), (), True, "iteration")


def test_models_of_ten_folds_are_undecided_models() -> None:
    growth = only_growth("models of folds")

    assert (growth.doubt, growth.is_model) == (Doubt.RARE, True)
    assert f"made models or optimizers in {growth.arrivals} of 100 steps, and all are kept" in text_of(
        "models of folds"
    )


def test_layers_of_one_model_are_no_models_of_requests() -> None:
    assert not summary_of("layers added one by one").devices[0].leaks.leaks


def test_growth_that_stopped_is_a_note_with_its_last_step() -> None:
    growth = only_growth("stopped")

    assert (growth.doubt, growth.is_note, growth.last) == (Doubt.STOPPED, True, STEPS // 2 - 1)
    assert f"until step {STEPS // 2 - 1}, and not since" in text_of("stopped")


def test_graphs_of_a_validation_are_a_note_with_the_line_that_adds_up() -> None:
    growth = only_growth("validation that adds up losses")
    (note,) = [finding for finding in findings_on("validation that adds up losses") if finding.kind == "note"]

    assert growth.doubt is Doubt.ACCUMULATED and growth.unit == "iteration" and growth.has_graph
    assert growth.call is not None
    assert growth.holder is not None and growth.holder.name == "total" and growth.holder.store_kind == "addition"
    assert note.site is not None and note.site.source is not None and "total += forward(weight)" in note.site.source
    assert "add up `.item()` of each part" in note.sentences[-1]
    assert not verdict_on("validation that adds up numbers").notes


def test_outputs_joined_in_each_iteration_are_a_note_with_the_line_that_joins() -> None:
    growth = only_growth("validation that joins outputs")

    assert growth.doubt is Doubt.ACCUMULATED and growth.is_joined and not growth.has_graph
    assert growth.site.source is not None and "outputs = torch.cat" in growth.site.source
    assert "join them once" in text_of("validation that joins outputs")


def test_few_outputs_that_are_joined_are_a_note_with_the_line_that_stores_and_the_join() -> None:
    growth = only_growth("few outputs joined at the end")
    (note,) = [finding for finding in findings_on("few outputs joined at the end") if finding.kind == "note"]

    assert (growth.doubt, growth.arrivals, growth.blocks) == (Doubt.ACCUMULATED, 8, 8)
    assert growth.holder is not None and growth.holder.name == "outputs"
    assert note.site is not None and "outputs.append(make_output())" in (note.site.source or "")
    assert growth.join is not None and "torch.cat(outputs)" in (growth.join.source or "")
    assert growth.join_bytes == growth.allocated_bytes
    assert "joins into" in note.title
    assert 0 <= growth.other_peak_bytes < growth.peak_bytes


def test_single_buffer_is_not_joined_into_a_temporary_of_its_size() -> None:
    growth = only_growth("outputs beside a buffer as large as a temporary")

    assert growth.doubt is Doubt.ACCUMULATED and growth.join is None and growth.join_bytes == 0


def test_few_outputs_after_the_last_step_are_a_note_with_the_line_of_the_loop() -> None:
    growth = only_growth("few outputs that no scan saw")
    (note,) = [finding for finding in findings_on("few outputs that no scan saw") if finding.kind == "note"]

    assert growth.doubt is Doubt.ACCUMULATED and growth.holder is None and growth.join is None
    assert note.site is not None and "outputs.append(make_output())" in (note.site.source or "")
    assert "Most of it was allocated at" in note.sentences[0] and "make_output" in note.sentences[0]


def test_outputs_that_the_loop_of_a_library_collects_are_a_note() -> None:
    growth = only_growth("outputs that a trainer's loop collects")

    assert growth.doubt is Doubt.ACCUMULATED and growth.unit == "iteration"
    assert growth.call is not None and (growth.call.function, growth.call.line) == ("run", 0)


@pytest.mark.parametrize("program", ["six outputs", "model of eight layers in each epoch"])
def test_fewer_outputs_and_layers_of_a_model_are_no_note(program: str) -> None:
    assert not verdict_on(program).notes


def test_activations_that_backward_frees_are_no_note() -> None:
    assert not verdict_on("layers before backward").notes


def test_memory_of_an_epoch_that_makes_the_peak_is_a_note() -> None:
    growth = only_growth("outputs of an epoch")

    assert (growth.doubt, growth.is_note, growth.kind) == (Doubt.ACCUMULATED, True, "survivors")
    assert STEPS - 2 <= growth.arrivals <= 2 * STEPS and growth.allocated_bytes > growth.peak_bytes / 2
    assert growth.holder is not None and "outputs" in growth.holder.name
    assert "accumulates: at the peak" in text_of("outputs of an epoch")
    assert not verdict_on("sliding window").notes


def test_accumulated_blocks_whose_holder_was_garbage_remain_accumulated(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = trace_of("outputs of an epoch")
    (before,) = verdict_on("outputs of an epoch").notes
    assert before.holder is not None
    holder = before.holder.event, before.holder.names[0]
    garbage = [held for held in trace.held if (held.event, held.holder) == holder]
    assert garbage
    monkeypatch.setattr(judge, "list_garbage", lambda _: garbage)

    (note,) = judge.find_leaks(trace, "cpu").notes

    assert note == before and note.doubt is Doubt.ACCUMULATED


def test_line_that_is_filled_is_a_note_with_its_size_and_last_step() -> None:
    (note,) = verdict_on("full replay buffer").notes
    assert note.doubt is Doubt.FILLED and note.allocated_bytes == pytest.approx(3 * STEPS * SIZE * 10, rel=0.05)
    assert note.last == pytest.approx(3 * STEPS, rel=0.1) and note.unit == "step"
    assert note.holder is not None and note.holder.name == "replay"
    assert "and hardly since" in text_of("full replay buffer")
    (note,) = verdict_on("nearly full cache").notes
    assert note.doubt in (Doubt.FILLED, Doubt.STOPPED) and note.holder is not None and note.holder.name == "cache"
    assert summary_of("full replay buffer").leaks_are_known and summary_of("nearly full cache").leaks_are_known


def find_growth_of_process(monkeypatch: pytest.MonkeyPatch, program: str, last_mib: int) -> tuple[OutsideGrowth, ...]:
    """Return the growth of a recorded program if its process had grown from 200 MiB to `last_mib` in its steps."""
    trace = trace_of(program)
    steps = trace.positions.step_ends
    times = np.array([trace.replay.time_before(int(end)) for end in steps])
    levels = np.ma.array(np.linspace(200 << 20, last_mib << 20, len(steps)).astype(np.int64))
    columns = ("anonymous_bytes", "used_bytes", "outside_bytes")
    samples = Table({"time_ns": times, **dict.fromkeys(columns, levels)})
    monkeypatch.setattr(
        RecordedTrace, "driver_samples", lambda self, device=None: samples.take(np.full(len(steps), device == "cpu"))
    )

    return find_outside_growth(trace, Clock.from_steps(steps, trace.positions.ordinals), [])


@pytest.mark.parametrize(("last_mib", "is_growing"), [(4000, True), (210, False)])
def test_process_that_grows_outside_torch_is_undecided(
    monkeypatch: pytest.MonkeyPatch, last_mib: int, is_growing: bool
) -> None:
    growths = find_growth_of_process(monkeypatch, "running total of numbers", last_mib)

    assert [growth.device for growth in growths] == ["cpu"] * is_growing
    for growth in growths:
        assert growth.bytes == pytest.approx(0.5 * (last_mib - 200) * 2**20, rel=0.05)
        assert growth.bytes_per_unit == pytest.approx((last_mib - 200) * 2**20 / 100, rel=0.05)
        assert not growth.nodes and growth.holder is None


def test_object_that_keeps_numpy_arrays_explains_growth_outside_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    (growth,) = find_growth_of_process(monkeypatch, "numpy arrays", 400)
    finding = describe_outside(growth, SiteNames(""))

    assert growth.holder is not None and growth.holder.name == "frames" and not growth.nodes
    assert growth.holder.store is not None and ".append(" in growth.holder.store.source
    assert "Numpy arrays accumulate in `frames`" in finding.title and ".copy()" in finding.brief[0]
    (unexplained,) = find_growth_of_process(monkeypatch, "numpy arrays", 8000)
    assert unexplained.holder is None


def test_graph_of_a_running_total_is_undecided_and_the_variable_is_named() -> None:
    program = "running total"
    report = alloctrace.load(trace_of(program).path).leaks()

    (growth,) = summary_of(program).outside_growth
    assert growth.holder is not None and (growth.holder.name, growth.bytes) == ("total", 0) and growth.nodes > 1000
    assert not verdict_on(program).leaks and not summary_of(program).leaks_are_known
    assert report.outside_growth == (growth,) and not report.conclusive
    (finding,) = findings_on(program)
    assert finding.kind == "inconclusive" and "autograd graph of `total` grows" in finding.title


def test_running_total_of_numbers_is_no_leak() -> None:
    assert summary_of("running total of numbers").leaks_are_known
    assert [finding.kind for finding in findings_on("running total of numbers")] == ["no_leak"]


USABLE = 8000 - (1032 - 532)
POINTS, CACHED = 400, 5000


@pytest.mark.parametrize(
    ("stranded", "reserved_per_point", "free"),
    [
        (0, 0, USABLE - 985),  # the temporaries of a step are needed again
        (200, 0, (USABLE - 985 - 200) * 985 // (985 + 200)),  # what blocks strand grows
        (0, 5, (USABLE - 2500) * 2 // 5),  # fragmentation makes the reserved bytes grow faster than the leak
        (0, 1, USABLE - 985),  # the reserved bytes grow more slowly, as free memory is used first
    ],
)
def test_forecast_leaves_room_for_temporaries_and_for_free_memory_that_cannot_be_used(
    stranded: int, reserved_per_point: int, free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = trace_of("wait before the growth")
    # The driver was asked long before.
    columns = {"time_ns": trace.begin_ns, "total_bytes": 8000, "used_bytes": 1032, "reserved_bytes": 532}
    samples = Table({name: np.ma.array([value]) for name, value in columns.items()})
    events = trace.positions.step_ends[[0, -1]].tolist()
    clock = Clock("step", *events, np.array(events), np.array([0.0, 1.0]), True)
    begin_ns, end_ns = (trace.replay.time_before(event + 1) for event in events)
    point = np.arange(POINTS)
    levels = Table(
        {
            "time_ns": begin_ns + (end_ns - begin_ns) * point // POINTS,
            "allocated_bytes_min": 100 + 2 * point,
            "allocated_bytes_max": 187 + 2 * point,
            "reserved_bytes": 505 + CACHED + reserved_per_point * point,
            "releasable_bytes": np.full(POINTS, CACHED),  # torch returns these before it runs out of memory
            "stranded_bytes_min": np.full(POINTS, stranded),
        }
    )
    monkeypatch.setattr(RecordedTrace, "driver_samples", lambda self, device=None: samples)
    monkeypatch.setattr(RecordedTrace, "timeline", lambda self, points, device: levels)

    free_bytes = estimate_free_bytes(trace, "cuda:0", clock, end_ns, 880)
    assert free_bytes is not None and free_bytes.until_full() == pytest.approx(free, rel=0.01)
    assert free_bytes.until_full(copies=2) <= free_bytes.by_allocated // 2


def test_forecast_counts_the_seconds_since_the_onset() -> None:
    leak = only_leak("wait before the growth")

    # The program waits for 1000 ticks, then ticks once in each step.
    assert leak.seconds_per_unit == pytest.approx(TICK_NS / 1e9, rel=0.1)
    assert leak.forecast_seconds is not None
    trace = trace_of("wait before the growth")
    free_bytes = leak.forecast_seconds / leak.seconds_per_unit * leak.bytes_per_unit
    assert 0 < free_bytes <= trace.driver_samples("cpu")["total_bytes"].max()


def test_growth_data_has_the_numbers_of_the_growth() -> None:
    expected: dict[str, dict[str, Any]] = {
        "deque": {"doubt": "bounded", "leak_kind": "survivors", "unit": "step", "bound": 200, "call": None},
        "local of one call": {"doubt": "one call", "unit": "iteration", "bound": 0, "bytes_when_full": 0},
        "7 arrivals": {"doubt": "rare", "arrivals": 7, "blocks": 7, "units_judged": 145},
    }
    for program, values in expected.items():
        growth = only_growth(program)
        data = growth_data(growth)
        assert values.items() <= data.items()
        assert growth.holder is not None and data["holder"]["names"] == growth.holder.names
    assert growth_data(only_growth("local of one call"))["call"]["function"] == "evaluate"
