"""Out of memory: a labelled corpus of runs that died or went on, with the verdict and the line to be named for each.
The oracles of the figures are torch's own error message and snapshot."""

from __future__ import annotations

import csv
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
from shared_recordings import record_once

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.analysis.advice import Advisor
from pytorch_alloctrace.analysis.free_memory import oom
from pytorch_alloctrace.analysis.free_memory.oom import ELSEWHERE, FRAGMENTED, FULL, LIMIT, OUTSIDE, TOO_LARGE
from pytorch_alloctrace.report.oom import sentences
from pytorch_alloctrace.report.site_names import SiteNames

pytestmark = [
    needs_cuda_build,
    pytest.mark.skipif(has_nvidia_gpu(), reason="made for devices of 8 GiB, one shared with another process"),
]
MIB, GIB = 2**20, 2**30
PROGRAM = "oom_programs.py"
UNITS = {"bytes": 1, "KiB": 2**10, "MiB": MIB, "GiB": GIB}


@dataclass(frozen=True)
class Case:
    name: str
    verdict: str
    asks: str = ""
    """The function with the line that makes the request, if it is not the case's own."""
    top: bool = False
    """The line that holds the most is marked."""
    pin: str = ""
    """The function with the line that pins."""
    device: str = "cuda:0"
    outcome: str = "ended"
    advice: str = ""
    """What the sentences must contain."""
    has_temporaries: bool = False
    """An operator's temporary tensors are gone when the exception arrives, so free pieces cannot be compared."""


CASES = [
    Case("full_by_activations", FULL, top=True, advice="smaller batch", has_temporaries=True),
    Case("full_by_weights", FULL, top=True, advice="A smaller batch would not."),
    Case("full_by_a_leak", FULL, top=True, advice="it is a leak"),
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
    Case("expandable_full", FULL, top=True, advice="smaller batch"),
    Case("caught_and_recovered", FULL, top=True, outcome="retried", advice="was served"),
    Case("one_of_two_devices", FULL, top=True, device="cuda:2", advice="smaller batch"),
    Case("in_backward", FULL, top=True, advice="smaller batch", has_temporaries=True),
    Case("nearly_full", FULL, top=True, advice="smaller batch"),
]
RANDOM = ["random_sizes", "random_sizes_expandable"]
ADVISED = ["expandable_segments:True", "max_split_size_mb:21"]
CUT_UP = ("fragmented", "fragmented_with_max_split_size", "fragmented_below_a_memory_fraction")


@pytest.fixture(scope="module")
def folder() -> Path:
    def record(made: Path) -> None:
        (made / "extra").write_text("0")
        names = [*(case.name for case in CASES), *RANDOM, "no_case"]
        others = {"SIMCUDA_OTHER_PROCESSES": "4711:5GiB@1", "SIMCUDA_NVML_EXTRA": str(made / "extra")}
        run_marked(PROGRAM, made, *names, memory="8GiB", devices=3, **others)

    return record_once("oom", record)


def loaded(folder: Path, case: str) -> tuple[alloctrace.Trace, oom.OutOfMemory]:
    """Return the trace of a case, and its only failed allocation."""
    trace = alloctrace.load(folder / f"{case}.alloctrace")
    [refused] = trace.ooms()
    return trace, refused


def explained(trace: alloctrace.Trace, refused: oom.OutOfMemory) -> str:
    """Return the sentences on a failed allocation."""
    return " ".join(sentences(refused, SiteNames(""), Advisor(trace._recorded)))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_verdict_line_advice_and_figures(folder: Path, case: Case) -> None:
    trace, found = loaded(folder, case.name)
    assert found.verdict == case.verdict, found
    assert found.device == case.device
    asking_line = marked_line(PROGRAM, case.asks or case.name, "OOM")
    assert (Path(found.site.filename).name, found.site.line) == (PROGRAM, asking_line)
    assert found.request.backward == (case.name == "in_backward")
    if case.top:
        assert found.top_sites[0].site.line == marked_line(PROGRAM, case.name, "TOP")
    if case.pin:
        pinners = (found.here if case.verdict == FRAGMENTED else found.elsewhere).pinners_by_line
        assert pinners["line"][0] == marked_line(PROGRAM, case.pin, "PIN")
    assert found.request.outcome == case.outcome
    said = explained(trace, found)
    assert case.advice in said, said
    assert ("set_per_process_memory_fraction" in said) == ("memory_fraction" in case.name), said
    [reported] = json.loads((folder / f"{case.name}.json").read_text())
    compare_with_torch(found, reported, has_temporaries=case.has_temporaries)
    # torch has returned what it could: what is left in pools that are not private is stranded.
    assert found.here.releasable_bytes == 0
    assert found.elsewhere.releasable_bytes == (5 * GIB if "pool" in case.name or "graph" in case.name else 0)


@pytest.mark.parametrize("name", RANDOM)
def test_figures_of_random_programs_are_those_of_torch(folder: Path, name: str) -> None:
    found = alloctrace.load(folder / f"{name}.alloctrace").ooms()
    reported = json.loads((folder / f"{name}.json").read_text())
    assert len(found) == len(reported) == 25
    for one, of_torch in zip(found, reported, strict=True):
        compare_with_torch(one, of_torch)
    assert {one.verdict for one in found} >= {FULL, ELSEWHERE} and {one.request.pool for one in found} != {(0, 0)}
    served = [one for one in found if one.request.outcome == "retried"]
    assert served and all(one.request.outcome_seq > one.seq for one in served)


def in_bytes(text: str) -> Any:
    """A size that torch wrote with two decimals."""
    amount, unit = text.split()
    return pytest.approx(float(amount) * UNITS[unit], abs=0.005 * UNITS[unit])


def compare_with_torch(found: oom.OutOfMemory, reported: dict[str, Any], *, has_temporaries: bool = False) -> None:
    """Compares the figures with torch's error message, snapshot and memory info."""
    assert found.segment_bytes == in_bytes(reported["tried"])
    assert (found.limit_bytes is None) == (reported["allowed"] is None)
    if found.limit_bytes is not None:
        least, most = found.limit_bytes
        assert least <= in_bytes(reported["allowed"]).expected <= most
    assert [found.device_free_bytes, found.device_bytes] == reported["mem_get_info"]
    assert found.reserved_bytes == reported["reserved"]
    assert found.outside_bytes == found.device_bytes - found.device_free_bytes - found.reserved_bytes
    if has_temporaries:
        return

    def free(*, here: bool) -> list[int]:
        location = [found.request.stream, list(found.request.pool)]
        pieces = [(piece["size"], [piece["stream"], piece["pool"]]) for piece in reported["free"]]
        return sorted(size for size, where in pieces if (where == location) == here)

    assert list(found.here.sizes) == free(here=True)
    assert list(found.elsewhere.sizes) == free(here=False)
    assert found.largest_free_bytes < found.requested_bytes


def test_program_gets_all_it_asks_for_under_each_setting_that_is_advised(folder: Path, tmp_path: Path) -> None:
    """Programs changed as advised otherwise: tools/bench/advice."""
    again = []
    for case in CUT_UP:
        trace, found = loaded(folder, case)
        advice = Advisor(trace._recorded).on_request(found)
        again += [f"{case}={one.setting.text}" for one in advice.helping]
        # No event tells of the limit that one has: what helps is only certain where it allows what is reserved.
        assert advice.is_certain == (found.limit_bytes is None)
        if found.limit_bytes is not None:
            assert trace.settings_that_help(found) == ()
            assert "would have been served if the limit allows 3.0" in explained(trace, found)
    assert len(again) == 2 * len(CUT_UP)
    (tmp_path / "extra").write_text("0")
    extra = str(tmp_path / "extra")
    run_marked("oom_advised_programs.py", tmp_path, *again, memory="8GiB", devices=3, SIMCUDA_NVML_EXTRA=extra)
    for name in again:
        assert alloctrace.load(tmp_path / f"{name}.alloctrace").ooms() == [], name


def test_requests_of_a_device_and_all_devices_at_one_position(folder: Path) -> None:
    trace = alloctrace.load(folder / "one_of_two_devices.alloctrace")
    assert trace.ooms(device="cuda:0") == [] and len(trace.ooms(device="cuda:2", last=1)) == 1
    shown = json.loads(run_analyze(folder, "fragmentation", "one_of_two_devices.alloctrace", "--at", "peak", "--json"))[
        "rows"
    ]
    assert {data["device"] for data in shown} == {"cuda:0", "cuda:2"} and len({data["at"] for data in shown}) == 1


def test_leak_that_fills_the_device_is_told_from_activations_by_its_steps(folder: Path) -> None:
    (leaking, leak), (active, activations) = (loaded(folder, f"full_by_{what}") for what in ("a_leak", "activations"))
    assert leak.steps_of_top_site == leak.top_sites[0].blocks == leak.step > 5
    assert activations.steps_of_top_site == activations.step == 1
    # The diagnosis names the leak that fills the device.
    first = leaking.diagnose()[0]
    assert first.kind == "oom" and first.site is not None
    assert first.title.endswith(f":{first.site.line} in full_by_a_leak leaks"), first.title
    assert "fix this leak first" in " ".join(first.sentences)
    other = active.diagnose()[0]
    assert other.kind == "oom" and other.title.endswith(": full") and "leak" not in " ".join(other.sentences)


def test_verb_oom_shows_the_verdict_in_every_form(folder: Path) -> None:
    assert "kept.append(torch.empty(12 * MIB" in run_analyze(folder, "oom", "fragmented.alloctrace")
    plain = run_analyze(folder, "oom", "fragmented.alloctrace", "--width", "50", encoding="ascii")
    assert plain.isascii() and "%%%" in plain
    assert max(len(line) for line in plain.splitlines() if PROGRAM not in line) <= 50

    [data] = json.loads(run_analyze(folder, "oom", "fragmented.alloctrace", "--json"))["rows"]
    assert data["verdict"] == FRAGMENTED and data["requested_bytes"] == 3 * GIB and data["sentences"]
    assert data["settings_that_help"] == ADVISED
    assert data["pinners_by_line"][0]["line"] == marked_line(PROGRAM, "cut_up", "PIN")
    rows = [*csv.DictReader(io.StringIO(run_analyze(folder, "oom", "in_backward.alloctrace", "--csv")))]
    assert [(row["verdict"], row["backward"], int(row["requested_bytes"])) for row in rows] == [(FULL, "True", GIB)]

    # Without any (as text: screens/oom-healthy.txt):
    assert json.loads(run_analyze(folder, "oom", "no_case.alloctrace", "--json"))["rows"] == []
    assert run_analyze(folder, "oom", "no_case.alloctrace", "--csv").startswith("seq,time_ns,device")


def test_of_many_refused_requests_the_last_three_are_shown(folder: Path) -> None:
    shown = run_analyze(folder, "oom", "random_sizes.alloctrace")
    assert shown.count("OUT OF MEMORY") == 3 and "The last 3 failed" in shown
    assert run_analyze(folder, "oom", "random_sizes.alloctrace", "--top", "0").count("OUT OF MEMORY") == 25
    trace = alloctrace.load(folder / "random_sizes.alloctrace")
    assert [one.seq for one in trace.ooms()[-2:]] == [one.seq for one in trace.ooms(last=2)]


def test_the_documentation_shows_what_comes_out(run_cuda_program: Any, tmp_path: Path) -> None:
    text = (ROOT / "docs/out-of-memory.md").read_text()
    [program] = re.findall(r'\n\n((?:    .*\n|\n)*?    print\("all served"\)\n)', text)
    (tmp_path / "serve.py").write_text(textwrap.dedent(program))
    record = "import runpy, sys, pytorch_alloctrace as alloctrace\n"
    record += 'alloctrace.enable("run.alloctrace", devices=("cuda",))\n'
    record += 'runpy.run_path("serve.py", run_name="__main__")\n'
    assert run_cuda_program(record, memory="8GiB", check=False).returncode != 0
    shown = re.findall(r"\$ alloctrace (.*)\n((?:(?:    .*)?\n)+)", text)
    assert len(shown) == 2
    for command, output in shown:
        # A line of three dots stands for omitted output.
        parts = [without_times(part) for part in re.split(r"^ +\.\.\.$", output, flags=re.MULTILINE)]
        pattern = ".*".join(re.escape(part) for part in parts)
        assert re.fullmatch(pattern, without_times(run_analyze(tmp_path, *command.split()))), command


def without_times(shown: str) -> str:
    """Without what differs from run to run: times, addresses, the chart over time."""
    text = re.sub(r"\d[\d.]* (ms|us|s)\b|0x[0-9a-f]+|over the run.*", "-", shown)
    return " ".join(text.split())
