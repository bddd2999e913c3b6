"""What-if and fit: predictions compared with a second run of the program, and traces that cannot be modelled."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import re
import sys
from pathlib import Path

import extreme_traces
import numpy as np
import pytest
from marked_programs import run_analyze
from rich.console import Console
from running import ROOT, needs_cuda_build, run_python, with_cuda

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace._replay import AllocatorSettings
from pytorch_alloctrace.analysis.what_if import fitting
from pytorch_alloctrace.analysis.what_if.batch import BatchMemory
from pytorch_alloctrace.analysis.what_if.choices import choices_for
from pytorch_alloctrace.analysis.what_if.fitting import fits_on
from pytorch_alloctrace.analysis.what_if.settings import join_changes, list_changes, parse_setting
from pytorch_alloctrace.gpus import GPUS, parse_gpu_memory
from pytorch_alloctrace.report import units
from pytorch_alloctrace.report.screen import Screen
from pytorch_alloctrace.report.what_if import write_fit
from pytorch_alloctrace.sizes import parse_size

pytestmark = needs_cuda_build
MIB, GIB = 2**20, 2**30
PROGRAM = ROOT / "tests/support/what_if_programs.py"
EMPTY = ((4, 2 * MIB), (1, 0))
"""Kind and size of the events of a segment and of a block without requested bytes."""
IMPORTS = "import sys, torch, pytorch_alloctrace as alloctrace\n"


def record(name: str, trace: Path, setting: str = "", memory: str = "80GiB", program: str = "") -> alloctrace.Trace:
    arguments = [str(PROGRAM), name] if not program else ["-c", IMPORTS + program]
    command = with_cuda([sys.executable, *arguments, str(trace)], memory)
    process = run_python(trace.parent, command, False, 600, {"PYTORCH_ALLOC_CONF": setting})
    assert process.returncode == 0 or "OutOfMemoryError" in process.stderr, process.stderr
    return alloctrace.load(trace)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("what_if")
    record("buffers", path / "buffers.alloctrace")
    record("images", path / "images.alloctrace")
    return path


@pytest.fixture(scope="module")
def buffers(folder: Path) -> alloctrace.Trace:
    return alloctrace.load(folder / "buffers.alloctrace")


@pytest.mark.parametrize(
    ("name", "setting"), [("buffers", "max_split_size_mb:64"), ("images", "expandable_segments:True")]
)
def test_what_if_predicts_peak_under_other_setting(folder: Path, tmp_path: Path, name: str, setting: str) -> None:
    trace = alloctrace.load(folder / f"{name}.alloctrace")
    result = trace.what_if([setting])
    assert result.check.is_exact and result.check.recorded == result.check.reproduced > 5
    recorded, predicted = result.outcomes
    minimum, maximum = recorded.peak_reserved_bytes
    assert minimum <= trace.peak("reserved", device="cuda:0").bytes <= maximum
    actual = record(name, tmp_path / "again.alloctrace", setting).peak("reserved", device="cuda:0").bytes
    minimum, maximum = predicted.peak_reserved_bytes
    assert minimum <= actual <= maximum


def test_run_fits_into_smallest_memory_and_not_into_less(buffers: alloctrace.Trace, tmp_path: Path) -> None:
    fit = buffers.fit(["expandable_segments:True"])
    [fitting] = fit.fittings
    assert fitting.peak_active_bytes < fitting.smallest_bytes <= fitting.without_retries_bytes < fit.device_bytes
    assert [gpu.outcome.gpu.device_bytes for gpu in fitting.gpus] == sorted(
        [*(memory.bytes for memory in GPUS), fit.device_bytes or 0]
    )
    assert [gpu.outcome.fits for gpu in fitting.gpus] == [
        (gpu.outcome.gpu.device_bytes or 0) >= fitting.smallest_bytes for gpu in fitting.gpus
    ]
    for number, (memory, is_enough) in enumerate(
        ((fitting.smallest_bytes, True), (fitting.peak_active_bytes - 64 * MIB, False))
    ):
        trace = tmp_path / f"{number}.alloctrace"
        rerun = record("buffers", trace, "expandable_segments:True", memory=f"{memory // MIB}MiB")
        assert (rerun.ooms() == []) is is_enough


def test_fit_with_expandable_segments_tries_each_size_as_what_if_does(tmp_path: Path) -> None:
    """On a small device, torch cuts the last block instead of the large one, and the end has to grow by a unit."""
    setting = "expandable_segments:True"
    program = DEPENDS_ON_DEVICE.replace("LARGE", "1200")
    trace = record("", tmp_path / "large.alloctrace", program=program)
    fit = trace.fit([setting])
    [fitting] = fit.fittings
    assert fitting.smallest_bytes is not None

    peak_on_large = trace.what_if([setting], memory=80 * GIB).outcomes[1].device_used_bytes
    assert peak_on_large == 1240 * MIB + fit.outside_bytes
    assert fitting.smallest_bytes == fitting.without_retries_bytes == peak_on_large + 20 * MIB
    for memory, fits in ((fitting.smallest_bytes, True), (fitting.smallest_bytes - 2 * MIB, False)):
        assert trace.what_if([setting], memory=memory).outcomes[1].fits is fits
        rerun = record("", tmp_path / f"{memory}.alloctrace", setting, memory=f"{memory // MIB}MiB", program=program)
        assert (rerun.ooms() == []) is fits


def test_smallest_gpu_of_report_is_that_of_fit_with_expandable_segments(tmp_path: Path) -> None:
    """The run would fit on a T4 if it used as much there as on a large device."""
    trace = record("", tmp_path / "run.alloctrace", program=DEPENDS_ON_DEVICE.replace("LARGE", "14360"))

    choices = choices_for(trace._recorded, "cuda:0")

    assert choices.prediction is not None
    settings = [outcome.setting.text for outcome in choices.prediction.outcomes]
    smallest = choices.smallest[settings.index("expandable_segments:True")]
    gpus = trace.fit(["expandable_segments:True"]).fittings[0].gpus
    assert next(gpu.names for gpu in gpus if gpu.outcome.fits) == ("V100 16GB",)
    assert smallest is not None and smallest.names == ("V100 16GB",)


def test_smallest_memory_is_rounded_up(buffers: alloctrace.Trace, folder: Path) -> None:
    for setting in ("torch's defaults", "expandable_segments:True"):
        shown = re.findall(
            r"Fits on ([\d.]+ GiB)", run_analyze(folder, "fit", "buffers.alloctrace", "--setting", setting)
        )
        assert buffers.what_if([setting], memory=parse_gpu_memory(shown[0]).bytes).outcomes[1].fits, shown
    for size in (13_436 * MIB, 1023 * MIB + 1, 1023 * 1024 + 600, GIB, 7 * GIB + 1, 99 * GIB + 980 * MIB, 1500, 3, 0):
        assert size <= (parse_size(units.minimum(size)) or 0) <= 1.01 * size + 1, size
    assert units.minimum(13_436 * MIB) == "13.2 GiB" and units.size(13_436 * MIB) == "13.1 GiB"


def test_run_fits_on_no_size_if_a_memory_fraction_is_too_small(buffers: alloctrace.Trace, folder: Path) -> None:
    arguments = ("--setting", "per_process_memory_fraction:0.001")

    fit = buffers.fit([arguments[1]])

    assert fit.fittings[0].smallest_bytes is None and fit.fittings[0].recommended_bytes is None
    assert not any(gpu.outcome.fits for gpu in fit.fittings[0].gpus)
    assert fit.to_frame()["smallest_bytes"].isna().all()
    assert "Does not fit on 178 GiB" in run_analyze(folder, "fit", "buffers.alloctrace", *arguments)


def test_largest_batch_is_predicted_from_roles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batch, memory, path = 96, 4 * GIB, tmp_path / "train.alloctrace"
    trace = record("", path, program=TRAINING.replace("BATCH", str(batch)))

    on_gpu, _ = fits_on(trace._recorded, memory)
    low, high = on_gpu.batch_factors or (0.0, 0.0)

    assert on_gpu.outcome.fits and 1.5 < low <= high
    for share, factor, fits in ((1.0, low, True), (1.02, high, False)):
        program = TRAINING.replace("BATCH", str(int(share * factor * batch)))
        rerun = record("", tmp_path / f"{share}.alloctrace", memory=f"{memory // MIB}MiB", program=program)
        assert (rerun.ooms() == []) is fits
    for of_setting in trace.fit().fittings:
        for end in (0, 1):
            factors = [(gpu.batch_factors or (-1.0, -1.0))[end] for gpu in of_setting.gpus]
            assert factors == sorted(factors)
    on_small_gpu, _ = fits_on(trace._recorded, GIB)
    assert not on_small_gpu.outcome.fits and 0 < (on_small_gpu.max_batch_factor or 0) < 1
    low_text, high_text = (f"{int(100 * factor) / 100:.2f}" for factor in (low, high))
    text = " ".join(run_analyze(tmp_path, "peak", path.name, "--fits", "4GiB").split())
    assert f"grow with the batch (estimate), up to about {low_text} times this batch fits without retries" in text
    assert low_text == high_text or f"; up to {high_text} times, some may fit by retries." in text
    monkeypatch.setattr(fitting, "_MAX_REQUESTS_FOR_BATCH", 10)
    assert "too long to estimate" in run_analyze(tmp_path, "peak", path.name, "--fits", "4GiB").replace("\n", " ")
    text = run_analyze(tmp_path, "fit", path.name)
    assert re.search(r"\n  T4 +14.6 GiB +[\d.]+ GiB +x [\d.]+( to [\d.]+)? +fits, no retries\n", text)


def test_upper_bound_of_largest_batch_is_where_live_memory_fills_the_capacity() -> None:
    batch = BatchMemory(np.array([600, 100], np.int64), np.array([200, 500], np.int64), ())

    assert batch.find_upper_bound(800) == 1.0
    assert batch.find_upper_bound(1400) == 2.0
    assert batch.find_upper_bound(550) == pytest.approx(0.5)
    assert batch.find_upper_bound(499) == 0.0


def test_lower_end_of_largest_batch_fits_though_fragmentation_grows_faster(tmp_path: Path) -> None:
    batch, memory = 40, 7842 * MIB
    trace = record("", tmp_path / "train.alloctrace", program=FRAGMENTING.replace("BATCH", str(batch)))

    on_gpu, _ = fits_on(trace._recorded, memory)
    low, high = on_gpu.batch_factors or (0.0, 0.0)

    assert on_gpu.outcome.fits and low <= high
    for size, fits in ((math.floor(low * batch), True), (math.ceil(1.01 * high * batch), False)):
        rerun = record(
            *("", tmp_path / f"{size}.alloctrace"),
            memory=f"{memory // MIB}MiB",
            program=FRAGMENTING.replace("BATCH", str(size)),
        )
        assert (rerun.ooms() == []) is fits, size


def test_lower_end_of_largest_batch_needs_no_retry_and_larger_ones_may_fit_by_them(tmp_path: Path) -> None:
    """Near the limit this run fits or fails by its layout: 58 images fit by two retries, 59 fail."""
    batch, memory, largest = 8, "8GiB", 58
    path = tmp_path / "train.alloctrace"
    trace = record("", path, program=SKIPPING.replace("BATCH", str(batch)))

    on_gpu, _ = fits_on(trace._recorded, memory)
    low, high = on_gpu.batch_factors or (0.0, 0.0)
    text = " ".join(run_analyze(tmp_path, "peak", path.name, "--fits", memory).split())

    retries = 'print(torch.cuda.memory_stats()["num_alloc_retries"], file=open(sys.argv[1] + ".retries", "w"))'
    for size, needs_retries in ((math.floor(low * batch), False), (largest, True)):
        rerun = tmp_path / f"{size}.alloctrace"
        record("", rerun, memory=memory, program=SKIPPING.replace("BATCH", str(size)) + retries)
        assert (int(Path(f"{rerun}.retries").read_text()) > 0) is needs_retries, size
    assert low < 0.95 * largest / batch and largest <= high * batch
    assert "times this batch fits without retries; up to" in text and "some may fit by retries." in text


def test_recorded_gpu_has_a_row(folder: Path) -> None:
    rows = run_analyze(folder, "fit", "buffers.alloctrace").splitlines()

    assert sum(row.startswith("  recorded GPU        80.0 GiB") for row in rows) >= 1


def test_no_batch_fits_where_the_constant_memory_does_not(tmp_path: Path) -> None:
    path = tmp_path / "train.alloctrace"
    trace = record("", path, program=TRAINING.replace("BATCH", "16"))

    on_gpu, _ = fits_on(trace._recorded, 580 * MIB)
    text = " ".join(run_analyze(tmp_path, "peak", path.name, "--fits", "580MiB", status=1).split())

    assert (on_gpu.min_batch_factor, on_gpu.max_batch_factor) == (0.0, 0.0)
    assert "no batch fits" in text and "0.00" not in text


def test_sizes_that_fit_by_a_lucky_layout_are_explained(buffers: alloctrace.Trace) -> None:
    fit = buffers.fit(["expandable_segments:True"])
    [fitting] = fit.fittings
    assert fitting.smallest_bytes is not None
    lucky = dataclasses.replace(fitting, exceptions_bytes=(1958 * MIB,))

    output = io.StringIO()
    write_fit(dataclasses.replace(fit, fittings=(lucky,)), Screen(Console(file=output), 200))

    expected = (
        f"by a lucky layout: 1,958 MiB. Some between do not fit, so choose {units.minimum(fitting.smallest_bytes)}"
    )
    assert expected in output.getvalue()


def test_largest_batch_is_not_estimated_without_memory_that_grows(buffers: alloctrace.Trace, folder: Path) -> None:
    assert fits_on(buffers._recorded, 4 * GIB)[0].max_batch_factor is None
    assert "batch" not in run_analyze(folder, "fit", "buffers.alloctrace")


def test_largest_batch_is_not_estimated_of_blocks_without_bytes(tmp_path: Path) -> None:
    rows = np.concatenate([extreme_traces.events(1, kind=kind, address=2 * MIB, size=size) for kind, size in EMPTY])
    path = tmp_path / "run.alloctrace"
    path.write_bytes(extreme_traces.trace(rows=rows))

    as_recorded, *_ = alloctrace.load(path).fit().fittings

    assert {gpu.max_batch_factor for gpu in as_recorded.gpus} == {None}


def test_what_if_predicts_failed_allocation_on_small_gpu(buffers: alloctrace.Trace, tmp_path: Path) -> None:
    memory = 2 * GIB
    outcome = buffers.what_if(["expandable_segments:True"], memory=memory).outcomes[0]
    assert not outcome.fits and outcome.failing_orders == outcome.orders
    assert outcome.failure is not None and outcome.failure.site.function == "block"
    rerun = record("buffers", tmp_path / "small.alloctrace", memory="2GiB")
    [failed] = rerun.ooms()
    # As many allocations were served before the failed one in both runs.
    served = rerun.events(until=failed.seq, kinds=("alloc",))
    assert len(buffers.events(until=outcome.failure.seq - 1, kinds=("alloc",))) == len(served)


def test_failed_allocation_is_served_under_predicted_setting(tmp_path: Path) -> None:
    failed_run = record("server", tmp_path / "died.alloctrace", memory="7420MiB")
    [oom] = failed_run.ooms()
    outcomes = failed_run.what_if(["expandable_segments:True"]).outcomes
    assert not outcomes[0].served and outcomes[1].served == (oom.seq,)
    assert [outcome.fits for outcome in outcomes] == [False, True]
    assert outcomes[0].failure is not None and outcomes[0].failure.seq == oom.seq
    assert failed_run.settings_that_help(oom)[0] == "expandable_segments:True"
    rerun = record("server", tmp_path / "again.alloctrace", "expandable_segments:True", memory="7420MiB")
    assert rerun.ooms() == []


@pytest.mark.parametrize(
    ("name", "ends", "fits"),
    [("too_large_for_any_gpu", True, False), ("survives_failures", False, True)],
)
def test_run_fits_only_if_requests_that_ended_it_are_served(tmp_path: Path, name: str, ends: bool, fits: bool) -> None:
    trace = record("", tmp_path / "failed.alloctrace", memory="4GiB", program=FAILURES[name])

    result, fit = trace.what_if(["expandable_segments:True"]), trace.fit(["as recorded"])

    failures = tuple(oom.seq for oom in trace.ooms())
    assert failures and result.ended_out_of_memory is fit.ended_out_of_memory is ends
    for outcome in result.outcomes:
        assert outcome.fits is fits
        assert outcome.failed_again == (failures if fits else ())
        assert (outcome.failure is None) is fits
    assert {gpu.outcome.fits for gpu in fit.fittings[0].gpus} == {fits}
    text = " ".join(run_analyze(tmp_path, "what-if", "failed.alloctrace").split())
    assert ("what it would request after that is unknown" in text) is ends
    assert ("The recorded program went on after each." in text) is fits
    text = run_analyze(tmp_path, "peak", "failed.alloctrace", "--fits", "H200", status=0 if fits else 1)
    assert ("the run fits" in text) is fits


def test_settings_are_parsed_as_torch_parses_them() -> None:
    assert parse_setting("expandable_segments:True").values == {"expandable_segments": True}
    both = parse_setting("max_split_size_mb:128,roundup_power2_divisions:[256:1,512:2,>:4]")
    assert both.values["max_split_size"] == 128 * MIB
    assert both.values["roundup_power2_divisions"] == [1] * 9 + [2] + [4] * 6
    older = both.for_release((2, 9)).values["roundup_power2_divisions"]
    assert older == [1] * 9 + [4] * 7 and both.for_release((2, 11)) is both
    assert parse_setting("per_process_memory_fraction:0.5").fraction == 0.5
    for invalid in ("expandable_segments", "expandable_segments:yes", "max_split_size_mb:20", "sizes:3", ""):
        with pytest.raises(alloctrace.SettingError):
            parse_setting(invalid)
    with pytest.raises(alloctrace.SettingError, match="power of two"):
        parse_setting("roundup_power2_divisions:3")


def test_garbage_collection_threshold_needs_memory_fraction(buffers: alloctrace.Trace) -> None:
    threshold = "garbage_collection_threshold:0.5"
    settings = [threshold, f"{threshold},per_process_memory_fraction:0.05", "per_process_memory_fraction:0.05"]

    recorded, alone, with_fraction, fraction = buffers.what_if(settings).outcomes

    assert alone.peak_reserved_bytes == recorded.peak_reserved_bytes and alone.driver_calls == recorded.driver_calls
    assert with_fraction.driver_calls[0] > fraction.driver_calls[1]


FAILURES = {
    "too_large_for_any_gpu": """
with alloctrace.enable(sys.argv[1], devices=("cuda",)):
    kept = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    torch.empty(1 << 42, dtype=torch.uint8, device="cuda")
""",
    "survives_failures": """
with alloctrace.enable(sys.argv[1], devices=("cuda",)):
    kept = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    size = 1 << 42
    while size > 1 << 30:
        try:
            batch = torch.empty(size, dtype=torch.uint8, device="cuda")
            break
        except torch.OutOfMemoryError:
            size //= 4
    batch = torch.empty(size // 2, dtype=torch.uint8, device="cuda")
""",
}
DEPENDS_ON_DEVICE = """
def block(mebibytes):
    return torch.empty(mebibytes << 20, dtype=torch.uint8, device="cuda")
with alloctrace.enable(sys.argv[1], devices=("cuda",)):
    large, last = block(LARGE), block(25)
    del large
    kept = [block(10), block(LARGE - 10), block(15)]
"""
SKIPPING = """
import torch.nn as nn, torch.nn.functional as F
def block(a, b):
    return nn.Sequential(
        nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(),
        nn.Conv2d(b, b, 3, padding=1), nn.GroupNorm(8, b), nn.SiLU(),
    )
class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        sizes = [32, 64, 128, 256, 512]
        self.down = nn.ModuleList([block(a, b) for a, b in zip([3, *sizes], sizes)])
        self.up = nn.ModuleList([block(a + b, b) for a, b in zip(sizes[:0:-1], sizes[-2::-1])])
        self.head = nn.Conv2d(32, 5, 1)
    def forward(self, x):
        skips = []
        for number, layer in enumerate(self.down):
            x = layer(x)
            if number < 4:
                skips.append(x)
                x = F.max_pool2d(x, 2)
        for layer in self.up:
            skip = skips.pop()
            x = F.interpolate(x, size=skip.shape[-2:], mode="bilinear", align_corners=False)
            x = layer(torch.cat([x, skip], 1))
        return self.head(x)
alloctrace.enable(sys.argv[1], overwrite=True)
model = UNet().cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(5):
    x = torch.randn(BATCH, 3, 200, 184, device="cuda")
    y = torch.zeros(BATCH, 200, 184, dtype=torch.long, device="cuda")
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
alloctrace.disable()
"""
FRAGMENTING = """
alloctrace.enable(sys.argv[1], devices=("cuda",))
def conv(i, o):
    return torch.nn.Sequential(torch.nn.Conv2d(i, o, 3, padding=1), torch.nn.BatchNorm2d(o), torch.nn.ReLU())
class UNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.down = torch.nn.ModuleList([conv(3, 12), conv(12, 24), conv(24, 48)])
        self.up = torch.nn.ModuleList([conv(96, 24), conv(48, 12), conv(24, 2)])
    def forward(self, x):
        skips = []
        for layer in self.down:
            x = layer(x)
            skips.append(x)
            x = torch.nn.functional.max_pool2d(x, 2)
        for layer in self.up:
            x = torch.nn.functional.interpolate(x, scale_factor=2)
            x = layer(torch.cat([x, skips.pop()], 1))
        return x
model = UNet().cuda()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(3):
    images, labels = torch.rand(BATCH, 3, 96, 96).cuda(), torch.zeros(BATCH, 96, 96, dtype=torch.long).cuda()
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()
"""
TRAINING = """
alloctrace.enable(sys.argv[1], devices=("cuda",))
layers = [layer for _ in range(6) for layer in (torch.nn.Linear(1024, 1024), torch.nn.GELU())]
model = torch.nn.Sequential(*layers, torch.nn.Linear(1024, 10)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(4):
    batch, labels = torch.rand(BATCH, 256, 1024).cuda(), torch.zeros(BATCH, dtype=torch.long).cuda()
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(batch).mean(1), labels).backward()
    optimizer.step()
"""
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
RELEASED_POOLS = """
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
SNAPSHOTS_BEFORE_REQUESTS = """
blocks = [torch.empty(64 << 20, dtype=torch.uint8, device="cuda") for number in range(10)]
del blocks[2:4]
recording = alloctrace.enable(sys.argv[1], devices=("cuda",))
recording.snapshot()
torch.cuda.empty_cache()
recording.snapshot()
blocks.append(torch.empty(200 << 20, dtype=torch.uint8, device="cuda"))
"""
SETTINGS_IN_CONFLICT = """
alloctrace.enable(sys.argv[1], devices=("cuda",))
answers = []
for _ in range(30):
    scores, hidden, answer = (torch.empty(size << 20, dtype=torch.uint8, device="cuda") for size in (92, 46, 2))
    answers.append(answer)
    del scores, hidden
"""
LATE_RECORDING = """
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
        (LATE_RECORDING, "expandable_segments:True", "beginning"),
    ],
)
def test_what_if_raises_for_unsupported_trace(tmp_path: Path, program: str, setting: str, reason: str) -> None:
    trace = record("", tmp_path / "refused.alloctrace", setting, program=program)
    for predict in (trace.what_if, trace.fit):
        with pytest.raises(alloctrace.NotPredictableError) as error:
            predict()
        assert error.value.reason == reason and str(error.value).endswith(".")
    if reason == "pools":
        assert run_analyze(tmp_path, "what-if", "refused.alloctrace", status=2).count("\n") == 1


def test_what_if_models_pool_with_own_allocator(tmp_path: Path) -> None:
    """The pool never has expandable segments, and is released when the program deletes it."""
    trace = record("", tmp_path / "own.alloctrace", program=WITH_OWN_POOL)
    result = trace.what_if(["expandable_segments:True"])
    assert result.check.is_exact and result.check.recorded == 8
    # The setting has no effect: one of the pool's segments is still in use at the last request.
    assert result.outcomes[0].peak_reserved_bytes == result.outcomes[1].peak_reserved_bytes == (150 * MIB, 150 * MIB)


def test_what_if_models_release_of_pools_in_any_order(tmp_path: Path) -> None:
    """Some pools free their segments (own allocator), the others unmap them, in the order of torch's hash table."""
    trace = record("", tmp_path / "pools.alloctrace", "expandable_segments:True", "1GiB", RELEASED_POOLS)
    result = trace.what_if()
    assert result.check.is_exact and result.check.recorded == 18 and result.outcomes[0].retries == (1, 1)


def test_recorded_memory_fraction_applies_to_every_device_size(tmp_path: Path) -> None:
    trace = record("", tmp_path / "limited.alloctrace", program=LIMITED)
    result = trace.what_if(["per_process_memory_fraction:1.0", "per_process_memory_fraction:0.005"])
    assert result.check.is_exact
    recorded, unlimited, half = result.outcomes
    limit = 80 * GIB // 100
    assert recorded.retries == (1, 1) and recorded.peak_reserved_bytes[1] <= limit < unlimited.peak_reserved_bytes[0]
    assert unlimited.retries == (0, 0) and not half.fits and result.has_memory_fraction
    assert not trace.what_if(memory=40 * GIB).outcomes[0].fits  # a hundredth of it is less


def test_what_if_models_recording_that_began_late(tmp_path: Path) -> None:
    trace = record("", tmp_path / "late.alloctrace", program=LATE_RECORDING)
    result = trace.what_if(["expandable_segments:True"])
    assert result.inherited and result.check.is_exact and result.check.recorded > 10


def test_memory_of_several_snapshots_before_first_request_is_counted_once(tmp_path: Path) -> None:
    trace = record("", tmp_path / "snapshots.alloctrace", program=SNAPSHOTS_BEFORE_REQUESTS)

    result, fit = trace.what_if(["expandable_segments:True"]), trace.fit(["as recorded"])

    peak = trace.peak("reserved", device="cuda:0").bytes
    assert peak == (640 - 128 + 200) * MIB and result.check.is_exact and result.inherited
    assert result.outcomes[0].peak_reserved_bytes == (peak, peak)
    assert fit.fittings[0].without_retries_bytes == peak + fit.outside_bytes


def test_settings_that_cost_memory_only_together_are_named(tmp_path: Path) -> None:
    together = ("expandable_segments:True", "max_split_size_mb:128")
    path = tmp_path / "both.alloctrace"

    result = record("", path, ",".join(together), program=SETTINGS_IN_CONFLICT).what_if()

    recorded, *others = result.outcomes
    assert recorded.setting.text == f"as recorded ({','.join(together)})"
    peaks = {outcome.setting.text: outcome.peak_reserved_bytes for outcome in others}
    assert {"torch's defaults", *together} <= peaks.keys() and len(peaks) == len(others)
    for text in ("torch's defaults", *together):
        setting = "" if text == "torch's defaults" else text
        rerun = record("", tmp_path / f"{len(setting)}.alloctrace", setting, program=SETTINGS_IN_CONFLICT)
        actual = rerun.peak("reserved", device="cuda:0").bytes
        assert peaks[text] == (actual, actual) and 10 * actual < recorded.peak_reserved_bytes[0]
    assert result.costly is not None and result.costly.is_joint and result.costly.changes == together
    data = json.loads(run_analyze(tmp_path, "what-if", path.name, "--json"))["costly_settings"]
    assert data["settings"] == [*together] and data["is_joint"]
    assert data["peak_reserved_bytes"] == [*recorded.peak_reserved_bytes]
    assert [(row["setting"], tuple(row["peak_reserved_bytes"])) for row in data["without"]] == [
        (text, peaks[text]) for text in reversed(together)
    ]
    text = " ".join(run_analyze(tmp_path, "what-if", path.name).split())
    assert "expandable_segments:True together with max_split_size_mb:128 reserves" in text and "either alone" in text
    settings = [fitting.setting.text for fitting in alloctrace.load(path).fit().fittings]
    assert settings == [recorded.setting.text, "torch's defaults", "expandable_segments:True"]


@pytest.mark.parametrize(
    "text",
    [
        "torch's defaults",
        "expandable_segments:True,max_split_size_mb:128,garbage_collection_threshold:0.8",
        "max_split_size_mb:64,max_non_split_rounding_mb:30,large_segment_size_mb:40",
        "roundup_power2_divisions:8",
        "roundup_power2_divisions:[256:1,512:2,>:4]",
    ],
)
def test_recorded_settings_are_written_as_torch_reads_them(text: str) -> None:
    setting = parse_setting(text)

    written = join_changes(list_changes(AllocatorSettings(setting.json)))

    assert json.loads(parse_setting(written).json) == json.loads(setting.json)
    if "[" not in text:
        assert written == text


def test_what_if_command_shows_outcomes_in_every_output_format(folder: Path, buffers: alloctrace.Trace) -> None:
    arguments = ("what-if", "buffers.alloctrace", "--setting", "expandable_segments:True", "--memory", "2GiB")
    data = json.loads(run_analyze(folder, *arguments, "--outside", "700MiB", "--json"))
    assert (
        data["device_bytes"] == 2 * GIB
        and data["outside_bytes"] == 700 * MIB
        and data["check"]["first_difference"] is None
    )
    assert [outcome["setting"] for outcome in data["outcomes"]] == [
        "as recorded (torch's defaults)",
        "expandable_segments:True",
    ]
    assert data["outcomes"][0]["failure"]["requested_bytes"] > 0
    text = " ".join(run_analyze(folder, *arguments).split())
    assert "FAILS" in text and "in block" in text, text
    table = run_analyze(folder, *arguments, "--csv")
    assert table.splitlines()[0].startswith("setting,fits,min_peak_reserved_bytes") and len(table.splitlines()) == 3
    run_analyze(folder, *arguments[:3], "max_split_size_mb:1", status=2)


def test_fit_and_peak_commands_report_whether_run_fits(folder: Path, buffers: alloctrace.Trace) -> None:
    arguments = ("fit", "buffers.alloctrace", "--setting", "expandable_segments:True", "--json")
    [fitting] = json.loads(run_analyze(folder, *arguments))["settings"]
    assert fitting["smallest_bytes"] == buffers.fit(["expandable_segments:True"]).fittings[0].smallest_bytes
    assert fitting["gpus"][4]["names"] == ["L4", "A10G"] and fitting["gpus"][4]["fits"]
    text = run_analyze(folder, "peak", "buffers.alloctrace", "--fits", "24GB")
    assert text.startswith("On 22.0 GiB (L4 or A10G), 500 MiB of it outside torch, the run fits")
    text = run_analyze(folder, "peak", "buffers.alloctrace", "--fits", "2GiB", status=1)
    assert "On 2.00 GiB, 500 MiB of it outside torch, the run does not fit" in " ".join(text.split())
    for invalid in ("24", "RTX 9000"):
        text = run_analyze(folder, "peak", "buffers.alloctrace", "--fits", invalid, status=2)
        assert text.count("\n") == 1 and "write" in text
    data = json.loads(run_analyze(folder, "what-if", "buffers.alloctrace", "--memory", "A10G", "--json"))
    assert data["gpus"] == ["A10G"] and data["device_bytes"] == 22_589 * MIB
