"""Failed allocations: a labelled corpus of runs; torch's error message and snapshot are the oracles of the figures."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from marked_programs import marked_line, run_analyze, run_marked
from running import ROOT, has_nvidia_gpu, needs_cuda_build
from shared_recordings import record_once, run_source

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.analysis.advice import Advisor
from pytorch_alloctrace.analysis.free_memory import oom
from pytorch_alloctrace.analysis.free_memory.oom import ELSEWHERE, FRAGMENTED, FULL, LIMIT, OUTSIDE, TOO_LARGE
from pytorch_alloctrace.report.oom import oom_finding, oom_title, sentences
from pytorch_alloctrace.report.site_names import SiteNames

pytestmark = [
    needs_cuda_build,
    pytest.mark.skipif(has_nvidia_gpu(), reason="needs devices of 8 GiB, one shared with another process"),
]
MIB, GIB = 2**20, 2**30
PROGRAM = "oom_programs.py"
UNITS = {"bytes": 1, "KiB": 2**10, "MiB": MIB, "GiB": GIB}


@dataclass(frozen=True)
class Case:
    name: str
    verdict: str
    asks: str = ""
    """The function with the allocation that fails, if it is not the case's own."""
    top: bool = False
    """Whether the line that holds the most is marked."""
    pin: str = ""
    """The function with the line that pins."""
    device: str = "cuda:0"
    outcome: str = "ended"
    advice: str = ""
    """A part of the sentences."""
    has_temporaries: bool = False
    """Temporary tensors are freed before the snapshot is taken, so free pieces cannot be compared."""


CASES = [
    Case("full_by_activations", FULL, top=True, advice="smaller batch", has_temporaries=True),
    Case("full_by_weights", FULL, top=True, advice="in host memory"),
    Case("full_by_a_leak", FULL, top=True, advice="What helps: clear or cap "),
    Case("fragmented", FRAGMENTED, pin="cut_up", advice="expandable_segments:True"),
    Case("fragmented_with_max_split_size", FRAGMENTED, pin="cut_up", advice="max_split_size_mb:21"),
    Case("cache_in_a_private_pool", ELSEWHERE, advice="delete pool"),
    Case("cache_in_a_pool_that_is_held", ELSEWHERE, advice="Its live blocks were allocated mostly at "),
    Case("cache_of_a_graph", ELSEWHERE, advice="delete pool"),
    Case("cache_outside_of_the_pool_in_use", ELSEWHERE, advice="torch.cuda.empty_cache() before"),
    Case("cache_of_another_stream", ELSEWHERE, pin="cache_of_another_stream", advice="one stream"),
    Case("another_process", OUTSIDE, top=True, device="cuda:1", advice="5.00 GiB of it by other processes"),
    Case("outside_of_pytorch", OUTSIDE, top=True, advice="outside PyTorch"),
    Case("memory_fraction", LIMIT, top=True, advice="set_per_process_memory_fraction"),
    Case("memory_fraction_set_late", LIMIT, asks="memory_fraction", advice="between 3.00 GiB and 5.00 GiB"),
    Case("fragmented_below_a_memory_fraction", FRAGMENTED, pin="cut_up", advice="enough with what the limit left"),
    Case("larger_than_the_device", TOO_LARGE, advice="freeing cannot help"),
    Case("expandable_full", FULL, top=True, advice="in host memory"),
    Case("expandable_without_a_free_unit", FULL, top=True, advice="(20.0 MiB from the driver, in units of 20.0 MiB)"),
    Case("caught_and_recovered", FULL, top=True, outcome="retried", advice="was served"),
    Case("one_of_two_devices", FULL, top=True, device="cuda:2", advice="in host memory"),
    Case("in_backward", FULL, top=True, advice="in host memory", has_temporaries=True),
    Case("nearly_full", FULL, top=True, advice="in host memory"),
]
RANDOM = ["random_sizes", "random_sizes_expandable"]
ADVISED = ["expandable_segments:True", "max_split_size_mb:21"]
CUT_UP = ("fragmented", "fragmented_with_max_split_size", "fragmented_below_a_memory_fraction")


@pytest.fixture(scope="module")
def folder() -> Path:
    def record(path: Path) -> None:
        (path / "extra").write_text("0")
        names = [*(case.name for case in CASES), *RANDOM, "no_case"]
        others = {"SIMCUDA_OTHER_PROCESSES": "4711:5GiB@1", "SIMCUDA_NVML_EXTRA": str(path / "extra")}
        run_marked(PROGRAM, path, *names, memory="8GiB", devices=3, **others)

    return record_once("oom", record)


def load_case(folder: Path, case: str) -> tuple[alloctrace.Trace, oom.OutOfMemory]:
    """Return the trace of a case, and its only failed allocation."""
    trace = alloctrace.load(folder / f"{case}.alloctrace")
    [failed] = trace.ooms()
    return trace, failed


def joined_sentences(trace: alloctrace.Trace, failed: oom.OutOfMemory) -> str:
    return " ".join(sentences(failed, SiteNames(""), Advisor(trace._recorded)))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_failed_allocation_has_expected_verdict_line_advice_and_figures(folder: Path, case: Case) -> None:
    trace, failed = load_case(folder, case.name)
    assert failed.verdict == case.verdict, failed
    assert failed.device == case.device
    failed_line = marked_line(PROGRAM, case.asks or case.name, "OOM")
    assert (Path(failed.site.filename).name, failed.site.line) == (PROGRAM, failed_line)
    assert failed.request.backward == (case.name == "in_backward")
    if case.top:
        assert failed.top_sites[0].site.line == marked_line(PROGRAM, case.name, "TOP")
    if case.pin:
        pinners = (failed.here if case.verdict == FRAGMENTED else failed.elsewhere).pinners_by_line
        assert pinners["line"][0] == marked_line(PROGRAM, case.pin, "PIN")
    assert failed.request.outcome == case.outcome
    text = joined_sentences(trace, failed)
    assert case.advice in text, text
    assert ("set_per_process_memory_fraction" in text) == ("memory_fraction" in case.name), text
    [expected] = json.loads((folder / f"{case.name}.json").read_text())
    compare_with_torch(failed, expected, has_temporaries=case.has_temporaries)
    # torch has returned all releasable memory: the free memory of pools that are not private is stranded.
    assert failed.here.releasable_bytes == 0
    assert failed.elsewhere.releasable_bytes == (5 * GIB if "pool" in case.name or "graph" in case.name else 0)


def test_fragmentation_title_does_not_compare_the_request_with_fewer_free_bytes(folder: Path) -> None:
    trace, failed = load_case(folder, "fragmented")
    # 4.94 GiB in pieces and 1 GiB of room are less than the request without the pieces of other pools.
    request = dataclasses.replace(failed.request, requested_bytes=6 * GIB, device_free_bytes=GIB)
    failed = dataclasses.replace(failed, request=request, segment_bytes=6 * GIB, elsewhere=failed.here)

    title = oom_title(failed, SiteNames(""), Advisor(trace._recorded))

    assert failed.verdict == FRAGMENTED and not failed.is_free_here_enough
    assert title.startswith("cuda:0 is fragmented: no free piece was large enough for the 6.00 GiB requested at ")
    assert " and 4.94 GiB in other pools or streams, but not in one piece." in joined_sentences(trace, failed)


_LIMITED = """
import os
import sys
if sys.argv[1] == "variable":
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "per_process_memory_fraction:0.25"
import torch
import pytorch_alloctrace as alloctrace

def configure():
    torch.cuda.set_per_process_memory_fraction(0.25)

def main(blocks):
    with alloctrace.enable("run.alloctrace"):
        if sys.argv[1] == "call":
            configure()
        try:
            while True:
                blocks.append(torch.empty(64 << 20, dtype=torch.uint8, device="cuda"))
        except torch.cuda.OutOfMemoryError:
            pass

if sys.argv[1] == "before":
    torch.cuda.init()
    configure()
main([])
"""


@pytest.mark.parametrize(
    ("origin", "advice"),
    [
        ("call", "raise the memory limit (set at program.py:10 in configure), or use less memory"),
        ("before", "raise the memory limit (find the call of torch.cuda.set_per_process_memory_fraction)"),
        ("variable", "raise the memory limit (per_process_memory_fraction in PYTORCH_CUDA_ALLOC_CONF)"),
    ],
)
def test_advice_on_memory_limit_names_what_set_it(tmp_path: Path, origin: str, advice: str) -> None:
    trace = alloctrace.load(run_source(tmp_path, _LIMITED, origin, cuda=True) / "run.alloctrace")

    [failed] = trace.ooms()
    names = SiteNames(trace._recorded.working_directory)
    assert advice in oom_finding(failed, names, Advisor(trace._recorded)).brief[0]


@pytest.mark.parametrize("name", RANDOM)
def test_figures_of_random_failed_allocations_match_torch(folder: Path, name: str) -> None:
    ooms = alloctrace.load(folder / f"{name}.alloctrace").ooms()
    expected = json.loads((folder / f"{name}.json").read_text())
    assert len(ooms) == len(expected) == 25
    for failed, of_torch in zip(ooms, expected, strict=True):
        compare_with_torch(failed, of_torch)
    assert {item.verdict for item in ooms} >= {FULL, ELSEWHERE} and {item.request.pool for item in ooms} != {(0, 0)}
    served = [failed for failed in ooms if failed.request.outcome == "retried"]
    assert served and all(failed.request.outcome_seq > failed.seq for failed in served)


def in_bytes(text: str) -> Any:
    """Return a size that torch rounded to two decimals, with that tolerance."""
    amount, unit = text.split()
    return pytest.approx(float(amount) * UNITS[unit], abs=0.005 * UNITS[unit])


def compare_with_torch(failed: oom.OutOfMemory, reported: dict[str, Any], *, has_temporaries: bool = False) -> None:
    assert failed.segment_bytes == in_bytes(reported["tried"])
    assert (failed.limit_bytes is None) == (reported["allowed"] is None)
    if failed.limit_bytes is not None:
        minimum, maximum = failed.limit_bytes
        assert minimum <= in_bytes(reported["allowed"]).expected <= maximum
    assert [failed.device_free_bytes, failed.device_bytes] == reported["mem_get_info"]
    assert failed.reserved_bytes == reported["reserved"]
    assert failed.outside_bytes == failed.device_bytes - failed.device_free_bytes - failed.reserved_bytes
    if has_temporaries:
        return

    def free(*, here: bool) -> list[int]:
        location = [failed.request.stream, list(failed.request.pool)]
        pieces = [(piece["size"], [piece["stream"], piece["pool"]]) for piece in reported["free"]]
        return sorted(size for size, place in pieces if (place == location) == here)

    assert list(failed.here.sizes) == free(here=True)
    assert list(failed.elsewhere.sizes) == free(here=False)
    assert failed.largest_free_bytes < failed.requested_bytes


def test_no_allocation_fails_under_advised_settings(folder: Path, tmp_path: Path) -> None:
    runs = []
    for case in CUT_UP:
        trace, failed = load_case(folder, case)
        advice = Advisor(trace._recorded).on_request(failed)
        runs += [f"{case}={outcome.setting.text}" for outcome in advice.helping]
        # No event records the limit exactly: below a limit the advice is not certain.
        assert advice.is_certain == (failed.limit_bytes is None)
        if failed.limit_bytes is not None:
            assert trace.settings_that_help(failed) == ()
            assert "would have been served if the limit allows 3.0" in joined_sentences(trace, failed)
    assert len(runs) == 2 * len(CUT_UP)
    (tmp_path / "extra").write_text("0")
    extra = str(tmp_path / "extra")
    run_marked("oom_advised_programs.py", tmp_path, *runs, memory="8GiB", devices=3, SIMCUDA_NVML_EXTRA=extra)
    for name in runs:
        assert alloctrace.load(tmp_path / f"{name}.alloctrace").ooms() == [], name


def test_ooms_are_selected_by_device_and_peaks_share_one_position(folder: Path) -> None:
    trace = alloctrace.load(folder / "one_of_two_devices.alloctrace")
    assert trace.ooms(device="cuda:0") == [] and len(trace.ooms(device="cuda:2", last=1)) == 1
    rows = json.loads(run_analyze(folder, "fragmentation", "one_of_two_devices.alloctrace", "--at", "peak", "--json"))[
        "rows"
    ]
    assert {data["device"] for data in rows} == {"cuda:0", "cuda:2"} and len({data["at"] for data in rows}) == 1


def test_verdict_names_leak_when_blocks_of_top_site_span_steps(folder: Path) -> None:
    (leaking, leak), (healthy, activations) = (
        load_case(folder, f"full_by_{name}") for name in ("a_leak", "activations")
    )
    assert leak.program.kept_steps == leak.top_sites[0].blocks == leak.step > 5
    assert activations.program.kept_steps == activations.step == 1
    # The diagnosis names the leak that fills the device.
    first = leaking.diagnose()[0]
    assert first.kind == "oom" and first.site is not None
    assert f":{first.site.line} in full_by_a_leak leaks: " in first.title
    assert "What helps: clear or cap " in " ".join(first.sentences)
    other = healthy.diagnose()[0]
    assert other.kind == "oom" and "activations" in other.title and "leak" not in " ".join(other.sentences)


def test_oom_command_shows_verdict_in_every_output_format(folder: Path) -> None:
    assert "kept.append(torch.empty(12 * MIB" in run_analyze(folder, "oom", "fragmented.alloctrace")
    ascii_text = run_analyze(folder, "oom", "fragmented.alloctrace", "--width", "50", encoding="ascii")
    assert ascii_text.isascii() and "%%%" in ascii_text
    assert max(len(line) for line in ascii_text.splitlines() if PROGRAM not in line) <= 50

    [data] = json.loads(run_analyze(folder, "oom", "fragmented.alloctrace", "--json"))["rows"]
    assert data["verdict"] == FRAGMENTED and data["requested_bytes"] == 3 * GIB and data["sentences"]
    assert data["settings_that_help"] == ADVISED
    assert data["pinners_by_line"][0]["line"] == marked_line(PROGRAM, "cut_up", "PIN")
    rows = [*csv.DictReader(io.StringIO(run_analyze(folder, "oom", "in_backward.alloctrace", "--csv")))]
    assert [(row["verdict"], row["backward"], int(row["requested_bytes"])) for row in rows] == [(FULL, "True", GIB)]

    # Without failed allocations (text: screens/oom-healthy.txt).
    assert json.loads(run_analyze(folder, "oom", "no_case.alloctrace", "--json"))["rows"] == []
    assert run_analyze(folder, "oom", "no_case.alloctrace", "--csv").startswith("seq,time_ns,device")


def test_oom_command_shows_last_three_failed_allocations(folder: Path) -> None:
    text = run_analyze(folder, "oom", "random_sizes.alloctrace")
    assert text.count("OUT OF MEMORY") == 3 and "The last 3 failed" in text
    assert run_analyze(folder, "oom", "random_sizes.alloctrace", "--top", "0").count("OUT OF MEMORY") == 25
    trace = alloctrace.load(folder / "random_sizes.alloctrace")
    assert [failed.seq for failed in trace.ooms()[-2:]] == [failed.seq for failed in trace.ooms(last=2)]


def test_documented_oom_output_is_current(run_cuda_program: Any, tmp_path: Path) -> None:
    text = (ROOT / "docs/out-of-memory.md").read_text()
    [program] = re.findall(r'\n\n((?:    .*\n|\n)*?    print\("all served"\)\n)', text)
    (tmp_path / "serve.py").write_text(textwrap.dedent(program))
    record = "import runpy, sys, pytorch_alloctrace as alloctrace\n"
    record += 'alloctrace.enable("run.alloctrace", devices=("cuda",))\n'
    record += 'runpy.run_path("serve.py", run_name="__main__")\n'
    assert run_cuda_program(record, memory="8GiB", check=False).returncode != 0
    examples = re.findall(r"\$ alloctrace (.*)\n((?:(?:    .*)?\n)+)", text)
    assert len(examples) == 2
    for command, output in examples:
        # "..." is omitted output.
        parts = [without_times(part) for part in re.split(r"^ +\.\.\.$", output, flags=re.MULTILINE)]
        pattern = ".*".join(re.escape(part) for part in parts)
        assert re.fullmatch(pattern, without_times(run_analyze(tmp_path, *command.split()))), command


def without_times(output: str) -> str:
    """Return the output without times, addresses and the chart over time."""
    text = re.sub(r"\d[\d.]* (ms|us|s)\b|0x[0-9a-f]+|over the run.*", "-", output)
    return " ".join(text.split())
