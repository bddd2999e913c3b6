"""What-if and fit, as users ask for them: on recorded programs that ran again under what was predicted, on small GPUs,
and on traces that cannot be modelled."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from marked_programs import run_analyze
from running import ROOT, needs_cuda_build, run_python, with_cuda

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.analysis.what_if.settings import parse_setting

pytestmark = needs_cuda_build
MIB, GIB = 2**20, 2**30
PROGRAM = ROOT / "tests/support/what_if_programs.py"
IMPORTS = "import sys, torch, pytorch_alloctrace as alloctrace\n"


def record(name: str, trace: Path, setting: str = "", memory: str = "80GiB", program: str = "") -> alloctrace.Trace:
    words = [str(PROGRAM), name] if not program else ["-c", IMPORTS + program]
    command = with_cuda([sys.executable, *words, str(trace)], memory)
    done = run_python(trace.parent, command, False, 600, {"PYTORCH_ALLOC_CONF": setting})
    assert done.returncode == 0 or "OutOfMemoryError" in done.stderr, done.stderr
    return alloctrace.load(trace)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("what_if")
    record("buffers", made / "buffers.alloctrace")
    record("images", made / "images.alloctrace")
    return made


@pytest.fixture(scope="module")
def buffers(folder: Path) -> alloctrace.Trace:
    return alloctrace.load(folder / "buffers.alloctrace")


@pytest.mark.parametrize(
    ("name", "setting"), [("buffers", "max_split_size_mb:64"), ("images", "expandable_segments:True")]
)
def test_the_run_under_another_setting_is_predicted(folder: Path, tmp_path: Path, name: str, setting: str) -> None:
    trace = alloctrace.load(folder / f"{name}.alloctrace")
    found = trace.what_if([setting])
    assert found.check.is_exact and found.check.recorded == found.check.reproduced > 5
    recorded, predicted = found.outcomes
    least, most = recorded.peak_reserved_bytes
    assert least <= trace.peak("reserved", device="cuda:0").bytes <= most
    again = record(name, tmp_path / "again.alloctrace", setting).peak("reserved", device="cuda:0").bytes
    least, most = predicted.peak_reserved_bytes
    assert least <= again <= most


def test_the_smallest_memory_is_enough_and_less_is_not(buffers: alloctrace.Trace, tmp_path: Path) -> None:
    fit = buffers.fit(["expandable_segments:True"])
    [one] = fit.fittings
    assert one.peak_active_bytes < one.smallest_bytes <= one.without_retries_bytes < fit.device_bytes
    assert all(gpu.outcome.fits for gpu in one.gpus)
    for number, (memory, is_enough) in enumerate(
        ((one.smallest_bytes, True), (one.peak_active_bytes - 64 * MIB, False))
    ):
        trace = tmp_path / f"{number}.alloctrace"
        again = record("buffers", trace, "expandable_segments:True", memory=f"{memory // MIB}MiB")
        assert (again.ooms() == []) is is_enough


def test_on_a_card_that_is_too_small_the_line_is_named(buffers: alloctrace.Trace, tmp_path: Path) -> None:
    memory = 2 * GIB
    found = buffers.what_if(["expandable_segments:True"], memory=memory).outcomes[0]
    assert not found.fits and found.failing_orders == found.orders
    assert found.failure is not None and found.failure.site.function == "block"
    again = record("buffers", tmp_path / "small.alloctrace", memory="2GiB")
    [refused] = again.ooms()
    # The same request: as many were served before it in both.
    served = again.events(until=refused.seq, kinds=("alloc",))
    assert len(buffers.events(until=found.failure.seq - 1, kinds=("alloc",))) == len(served)


def test_a_recorded_out_of_memory_would_have_been_served(tmp_path: Path) -> None:
    """The program dies on a device, and runs through there with what the model says."""
    died = record("server", tmp_path / "died.alloctrace", memory="7420MiB")
    [oom] = died.ooms()
    found = died.what_if(["expandable_segments:True"]).outcomes
    assert not found[0].served and found[1].served == (oom.seq,)
    assert died.settings_that_help(oom)[0] == "expandable_segments:True"
    again = record("server", tmp_path / "again.alloctrace", "expandable_segments:True", memory="7420MiB")
    assert again.ooms() == []


def test_settings_are_written_as_torch_takes_them() -> None:
    assert parse_setting("expandable_segments:True").values == {"expandable_segments": True}
    both = parse_setting("max_split_size_mb:128,roundup_power2_divisions:[256:1,512:2,>:4]")
    assert both.values["max_split_size"] == 128 * MIB
    assert both.values["roundup_power2_divisions"] == [1] * 9 + [2] + [4] * 6
    older = both.select_release((2, 9)).values["roundup_power2_divisions"]
    assert older == [1] * 9 + [4] * 7 and both.select_release((2, 11)) is both
    assert parse_setting("per_process_memory_fraction:0.5").fraction == 0.5
    for wrong in ("expandable_segments", "expandable_segments:yes", "max_split_size_mb:20", "sizes:3", ""):
        with pytest.raises(alloctrace.SettingError):
            parse_setting(wrong)
    with pytest.raises(alloctrace.SettingError, match="power of two"):
        parse_setting("roundup_power2_divisions:3")


def test_garbage_is_collected_below_a_fraction_alone(buffers: alloctrace.Trace) -> None:
    threshold = "garbage_collection_threshold:0.5"
    tried = [threshold, f"{threshold},per_process_memory_fraction:0.05", "per_process_memory_fraction:0.05"]
    recorded, alone, with_fraction, fraction = buffers.what_if(tried).outcomes
    assert alone.peak_reserved_bytes == recorded.peak_reserved_bytes and alone.driver_calls == recorded.driver_calls
    assert with_fraction.driver_calls[0] > fraction.driver_calls[1]


UNTRACKED = """
alloctrace.enable(sys.argv[1], devices=("cuda",))
block = torch.empty(5000, device="cuda")
"""
WITH_OWN_POOL = """
alloctrace.enable(sys.argv[1], devices=("cuda",))
pair = torch.cuda.memory.CUDAPluggableAllocator(alloctrace.pluggable_library(), "alloctrace_malloc", "alloctrace_free")
pool = torch.cuda.MemPool(pair.allocator())
for size in (5_000, 3_000_000, 30_000_000, 5_000_000):
    with torch.cuda.use_mem_pool(pool):
        block = torch.empty(size, device="cuda")
del pool, block
kept = torch.empty(5000, device="cuda")
"""
POOLS_GIVEN_BACK = """
alloctrace.enable(sys.argv[1], devices=("cuda",))
pair = torch.cuda.memory.CUDAPluggableAllocator(alloctrace.pluggable_library(), "alloctrace_malloc", "alloctrace_free")
blocks, graphs = [], []
for _ in range(4):
    pool = torch.cuda.MemPool(pair.allocator())
    with torch.cuda.use_mem_pool(pool):
        blocks.append(torch.empty(30 << 20, dtype=torch.uint8, device="cuda"))
    del pool
    graphs.append(torch.cuda.CUDAGraph())
    with torch.cuda.graph(graphs[-1]):
        torch.empty(30 << 20, dtype=torch.uint8, device="cuda")
for graph in graphs:
    graph.reset()
blocks.clear()
large = torch.empty(400 << 20, dtype=torch.uint8, device="cuda")
"""
SEVERAL_POOLS = """
alloctrace.enable(sys.argv[1], devices=("cuda",))
pools = [torch.cuda.MemPool(use_on_oom=True) for _ in range(2)]
for pool in pools:
    with torch.cuda.use_mem_pool(pool):
        torch.empty(40 << 20, dtype=torch.uint8, device="cuda")
torch.cuda.set_per_process_memory_fraction(0.001)
block = torch.empty(30 << 20, dtype=torch.uint8, device="cuda")
"""
LIMITED = """
alloctrace.enable(sys.argv[1], devices=("cuda",))
torch.cuda.set_per_process_memory_fraction(0.01)
blocks = [torch.empty(number << 20, dtype=torch.uint8, device="cuda") for number in (300, 200, 100, 50)]
del blocks[::2]
blocks += [torch.empty(number << 20, dtype=torch.uint8, device="cuda") for number in (400, 60)]
"""
BEGUN_LATE = """
blocks = [torch.empty(5000 * (1 + number % 7) ** 5, device="cuda") for number in range(60)]
del blocks[::2]
alloctrace.enable(sys.argv[1], devices=("cuda",))
blocks += [torch.empty(4000 * (1 + number % 9) ** 5, device="cuda") for number in range(60)]
del blocks[::3]
blocks += [torch.empty(9000 * (1 + number % 9) ** 4, device="cuda") for number in range(60)]
torch.cuda.empty_cache()
"""


@pytest.mark.parametrize(
    ("program", "setting", "reason"),
    [
        (UNTRACKED, "backend:cudaMallocAsync", "allocator"),
        (SEVERAL_POOLS, "", "pools"),
        (BEGUN_LATE, "expandable_segments:True", "beginning"),
    ],
)
def test_what_cannot_be_modelled_is_refused(tmp_path: Path, program: str, setting: str, reason: str) -> None:
    trace = record("", tmp_path / "refused.alloctrace", setting, program=program)
    for ask in (trace.what_if, trace.fit):
        with pytest.raises(alloctrace.NotPredictableError) as refused:
            ask()
        assert refused.value.reason == reason and str(refused.value).endswith(".")
    if reason == "pools":
        assert run_analyze(tmp_path, "what-if", "refused.alloctrace", status=2).count("\n") == 1


def test_a_pool_with_an_allocator_of_its_own_is_modelled(tmp_path: Path) -> None:
    """It never has expandable segments, and goes when the program lets go of it."""
    trace = record("", tmp_path / "own.alloctrace", program=WITH_OWN_POOL)
    found = trace.what_if(["expandable_segments:True"])
    assert found.check.is_exact and found.check.recorded == 8
    # As if it were not set: of the pool's segments one is still in use when the last request comes.
    assert found.outcomes[0].peak_reserved_bytes == found.outcomes[1].peak_reserved_bytes == (150 * MIB, 150 * MIB)


def test_pools_are_given_back_in_any_order(tmp_path: Path) -> None:
    """Release pools in the order of torch's hash table: some free segments (own allocator), the others unmap them."""
    trace = record("", tmp_path / "pools.alloctrace", "expandable_segments:True", "1GiB", POOLS_GIVEN_BACK)
    found = trace.what_if()
    assert found.check.is_exact and found.check.recorded == 18 and found.outcomes[0].retries == (1, 1)


def test_the_recorded_share_of_the_device_holds_on_every_card(tmp_path: Path) -> None:
    trace = record("", tmp_path / "limited.alloctrace", program=LIMITED)
    found = trace.what_if(["per_process_memory_fraction:1.0", "per_process_memory_fraction:0.005"])
    assert found.check.is_exact
    recorded, unlimited, half = found.outcomes
    limit = 80 * GIB // 100
    assert recorded.retries == (1, 1) and recorded.peak_reserved_bytes[1] <= limit < unlimited.peak_reserved_bytes[0]
    assert unlimited.retries == (0, 0) and not half.fits
    assert not trace.what_if(memory=40 * GIB).outcomes[0].fits  # a hundredth of it is less


def test_a_recording_that_began_late_is_modelled_from_there(tmp_path: Path) -> None:
    trace = record("", tmp_path / "late.alloctrace", program=BEGUN_LATE)
    found = trace.what_if(["expandable_segments:True"])
    assert found.inherited and found.check.is_exact and found.check.recorded > 10


def test_verb_what_if(folder: Path, buffers: alloctrace.Trace) -> None:
    arguments = ("what-if", "buffers.alloctrace", "--setting", "expandable_segments:True", "--memory", "2GiB")
    data = json.loads(run_analyze(folder, *arguments, "--outside", "700MiB", "--json"))
    assert (
        data["device_bytes"] == 2 * GIB
        and data["outside_bytes"] == 700 * MIB
        and data["check"]["first_difference"] is None
    )
    assert [one["setting"] for one in data["outcomes"]] == ["as recorded", "expandable_segments:True"]
    assert data["outcomes"][0]["failure"]["requested_bytes"] > 0
    text = " ".join(run_analyze(folder, *arguments).split())
    assert "FAILS" in text and "in block" in text, text
    table = run_analyze(folder, *arguments, "--csv")
    assert table.splitlines()[0].startswith("setting,fits,min_peak_reserved_bytes") and len(table.splitlines()) == 3
    run_analyze(folder, *arguments[:3], "max_split_size_mb:1", status=2)


def test_verbs_fit_and_peak_report_whether_the_run_fits(folder: Path, buffers: alloctrace.Trace) -> None:
    one_setting = ("fit", "buffers.alloctrace", "--setting", "expandable_segments:True", "--json")
    [fitting] = json.loads(run_analyze(folder, *one_setting))["settings"]
    assert fitting["smallest_bytes"] == buffers.fit(["expandable_segments:True"]).fittings[0].smallest_bytes
    assert [gpu["fits"] for gpu in fitting["gpus"]] == [True] * 6
    shown = run_analyze(folder, "peak", "buffers.alloctrace", "--fits", "24GiB")
    assert "On 24.0 GiB (500 MiB of it outside torch) the run fits" in shown
    shown = run_analyze(folder, "peak", "buffers.alloctrace", "--fits", "2GiB")
    assert "the run does not fit" in " ".join(shown.split())
