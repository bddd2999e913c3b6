"""Figures of the programs in examples/, from the Python interface and the commands of their README. The oracle is the
memory that torch reports at each mark and the programs print."""

from __future__ import annotations

import re
import shlex
import sys
from collections import Counter
from pathlib import Path

import pytest
from marked_programs import run_analyze, run_marked
from running import ROOT, has_nvidia_gpu, run_python, torch_has_cuda

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace import Trace
from pytorch_alloctrace.analysis.free_memory.oom import FRAGMENTED

MIB = 2**20
GPU = "cuda:0"
EXAMPLES = ROOT / "examples"
PROGRAMS = [
    "context",  # first: needs a process that has not used CUDA yet
    "formula",  # second: autograd must not have allocated before the recording
    "freed_memory",
    "rebinding",
    "plus_one",
    "to_cpu",
    "empty_cache",
    "function_scope",
    "views",
    "activations",
    "between_lines",
    "saved_by_module",
    "fragmented",
]
FIGURES = {
    "freed_memory": {"allocated": [100, 0, 100], "reserved": [100, 100, 100]},
    "rebinding": {"allocated": [100, 100, 100], "peak": [100, 100, 200], "reserved": [100, 100, 200]},
    "plus_one": {"allocated": [100, 100, 100, 100], "peak": [100, 200, 200, 200], "reserved": [100, 200, 200, 200]},
    "to_cpu": {"allocated": [128, 128, 0], "reserved": [128, 128, 128]},
    "empty_cache": {"allocated": [1024, 0, 0], "reserved": [1024, 1024, 0], "driver": [1524, 1524, 500]},
    "function_scope": {"allocated": [16, 18, 22, 16, 18, 18, 18]},
    "views": {"allocated": [100, 100, 200, 300, 300]},
}
"""MiB at each mark, as torch reports them."""
WORKSPACE = "cuBLAS"
"""Comment on the line whose memory function_scope subtracts from its figures."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run all examples on a simulated GPU; return the folder of their traces and outputs."""
    if has_nvidia_gpu() or not torch_has_cuda():
        pytest.skip("the figures are those of a simulated device of 8 GiB")
    folder = tmp_path_factory.mktemp("examples")
    run_marked("example_programs.py", folder, *PROGRAMS, memory="8GiB")
    return folder


def load(folder: Path, name: str) -> Trace:
    return alloctrace.load(folder / f"{name}.alloctrace")


def reported_by_torch(folder: Path, name: str) -> dict[str, dict[str, int]]:
    """Return the allocated, peak, reserved and driver bytes that the program printed, by mark."""
    by_torch = {}
    for line in (folder / f"{name}.txt").read_text().splitlines():
        if " allocated " in line and not line.startswith("OutOfMemoryError"):
            mark, *fields = line.split()
            sizes = {field: float(size) * MIB for field, size in zip(fields[::2], fields[1::2], strict=True)}
            assert all(size.is_integer() for size in sizes.values()), line
            by_torch[mark] = {field: int(size) for field, size in sizes.items()}
    return by_torch


def mib(by_torch: dict[str, dict[str, int]], figure: str) -> list[float]:
    return [sizes[figure] / MIB for sizes in by_torch.values()]


def find_sequence(trace: Trace, mark: str) -> int:
    return int(trace.marks().set_index("name").loc[mark, "begin_seq"])


@pytest.mark.parametrize("name", PROGRAMS)
def test_figures_match_torch(folder: Path, name: str) -> None:
    trace, by_torch = load(folder, name), reported_by_torch(folder, name)
    assert list(by_torch) == list(trace.marks()["name"])
    assert trace.integrity.state == "complete" and trace.verify().ok

    excluded = 0
    if name == "function_scope":  # subtracts the workspace from its figures
        sites = trace.usage(f"mark:{next(iter(by_torch))}", device=GPU)
        lines = sites["source"].fillna(sites["site"])  # memory without a line has a name instead
        excluded = int(sites.loc[lines.str.contains(WORKSPACE, na=False), "live_bytes"].sum())
        assert excluded > 0

    maximum = max(figures["peak"] for figures in by_torch.values())
    assert trace.peak(device=GPU).bytes == maximum + excluded
    for mark, figures in by_torch.items():
        blocks = trace.blocks(f"mark:{mark}", device=GPU)
        allocated = blocks.loc[blocks["state"] == "active_allocated", "block_bytes"].sum()
        assert allocated == figures["allocated"] + excluded, mark
        assert trace.segments(f"mark:{mark}", device=GPU)["total_bytes"].sum() == figures["reserved"], mark
        # torch's peak is the peak so far.
        assert (trace.peak(device=GPU).seq < find_sequence(trace, mark)) == (figures["peak"] == maximum), mark
        if name == "empty_cache":
            samples = trace.driver_memory(device=GPU)
            driver = samples[samples["seq"] < find_sequence(trace, mark)].iloc[-1]
            assert driver["used_bytes"] == figures["driver"] and driver["reserved_bytes"] == figures["reserved"], mark
    for figure, expected in FIGURES.get(name, {}).items():
        assert mib(by_torch, figure) == expected, figure
    assert trace.leaks().leaks == ()


def test_views_are_tensors_of_one_block(folder: Path) -> None:
    parts = (folder / "views.txt").read_text().split("tensors")[1:]
    [viewed, deleted] = [re.findall(r"^ *(\w+) +\(.*?\) +(\d+) +(\d+) +\S*views.py:\d+$", part, re.M) for part in parts]
    total = str(100 * MIB)

    assert [(size, tensors) for _, size, tensors in viewed] == [(total, "4")]
    assert {*deleted} == {("row", total, "1"), ("cloned", total, "1"), ("packed", total, "1")}


def check_formula(folder: Path, device: str) -> None:
    """Check the trace and the output of examples/formula.py against figures that follow from the shapes."""
    printed = (folder / "formula.txt").read_text().rpartition("paper")[2]
    rows = re.findall(r"^([a-z ]+?) +([\d,]+) +([\d,]+) +([\d,]+)$", printed, re.M)
    sizes = {role: [int(size.replace(",", "")) for size in row] for role, *row in rows}
    images, numbers = 64, (16 * 3 * 9 + 16) + (32 * 16 * 9 + 32) + (10 * 32 * 64 + 10)
    steps = 4 * 6 if device == "cpu" else 0
    expected = {
        "parameter": 4 * numbers,
        "gradient": 4 * numbers,
        "optimizer state": 8 * numbers + steps,
        "input": images * (4 * 3 * 32 * 32 + 8),
        "activation": images * (4 * (16 * 32**2 + 32 * 16**2) + 12 * (16 * 16**2 + 32 * 8**2) + 4 * 10) + 4,
    }
    assert {role: paper for role, (paper, _, _) in sizes.items()} == expected
    assert {role: requested for role, (_, requested, _) in sizes.items()} == expected
    trace = alloctrace.load(folder / "formula.alloctrace")
    by_role = trace.usage("mark:forward-2", device=device, by="role").set_index("role")["live_bytes"].to_dict()
    assert {role: size for role, size in by_role.items() if role in expected} == {
        role: size for role, size in expected.items() if role != "gradient"
    }
    # The table leaves out the loss and cuBLAS's workspace.
    assert by_role["other"] == 4 and set(by_role) - set(expected) <= {"other", "library workspace"}
    blocks = {"parameter": 6, "gradient": 6, "optimizer state": 12, "input": 2, "activation": 8}
    for role, (_, requested, allocated) in sizes.items():
        rounding = 0 if device == "cpu" else 512 * blocks[role]
        assert requested <= allocated <= requested + rounding, role
        assert device == "cpu" or allocated % 512 == 0, role


def test_formula_matches_bytes_of_each_role_on_gpu(folder: Path) -> None:
    check_formula(folder, GPU)


def test_formula_matches_bytes_of_each_role_on_cpu(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "formula.py")]
    process = run_python(tmp_path, command, True, 600, {"CUDA_VISIBLE_DEVICES": ""})
    (tmp_path / "formula.txt").write_text(process.stdout)

    check_formula(tmp_path, "cpu")


def printed_changes(folder: Path) -> list[Counter[tuple[str, str, str, str]]]:
    """Return sign, size, name, and shape with dtype and device of each tensor, for each line of between_lines."""
    parts = [part for part in (folder / "between_lines.txt").read_text().split("\n\n") if part.strip()]
    row = r"^([+-]) +([\d.]+ \w+)  (\S+)  (.*?)  \S*between_lines.py:\d+$"
    changes = [re.findall(row, part, re.M) for part in parts]
    for part, rows in zip(parts, changes, strict=True):
        assert len(rows) == sum(line[:2] in ("+ ", "- ") for line in part.splitlines()), part
    return [Counter(rows) for rows in changes]


def test_between_lines_prints_added_and_removed_tensors(folder: Path) -> None:
    def rows(sign: str, *tensors: tuple[str, str, str]) -> Counter[tuple[str, str, str, str]]:
        return Counter((sign, size, name, f"{shape} float32 {GPU}") for size, name, shape in tensors)

    shapes = [("2.00 MiB", "1024x512"), ("4.00 KiB", "1024"), ("1.00 MiB", "256x1024"), ("1.00 KiB", "256")]
    of_net = ["net[0].weight", "net[0].bias", "net[2].weight", "net[2].bias"]
    batch = ("4.00 MiB", "batch", "2048x512")
    saved = [("8.00 MiB", "loss.grad_fn", "2048x1024"), ("2.00 MiB", "loss.grad_fn", "2048x256")]
    gradients = [(size, f"{name}.grad", shape) for name, (size, shape) in zip(of_net, shapes, strict=True)]
    state = 'optimizer.state[Parameter]["{}"]'
    averages = [(size, state.format(name), shape) for name in ("exp_avg", "exp_avg_sq") for size, shape in shapes]
    steps = Counter({("+", "4 B", state.format("step"), "scalar float32 cpu"): len(shapes)})

    assert printed_changes(folder) == [
        rows("+", batch),
        rows("+", *saved, ("4 B", "loss", "scalar")),
        rows("+", *gradients) + rows("-", *saved),
        rows("+", *averages) + steps,
        rows("-", *gradients),
        rows("-", batch),
    ]


def test_fragmented_example_completes_with_advised_setting(folder: Path, tmp_path: Path) -> None:
    trace = load(folder, "fragmented")
    [oom] = trace.ooms()
    assert "OutOfMemoryError" in (folder / "fragmented.txt").read_text() and oom.verdict == FRAGMENTED

    [advised, *_] = trace.settings_that_help(oom)
    assert advised == "expandable_segments:True"

    run_marked("example_programs.py", tmp_path, "fragmented", memory="8GiB", PYTORCH_ALLOC_CONF=advised)
    assert load(tmp_path, "fragmented").ooms() == []
    assert "OutOfMemoryError" not in (tmp_path / "fragmented.txt").read_text()

    # The second run requested as much memory as the first.
    by_torch, by_torch_before = reported_by_torch(tmp_path, "fragmented"), reported_by_torch(folder, "fragmented")
    assert mib(by_torch, "allocated") == mib(by_torch_before, "allocated")


def rows_of_readme() -> list[tuple[str, str]]:
    """Return each command of the README's table with the text that it must print."""
    rows = re.findall(r"\| `analyze (.*?)` \| `(.*?)` \|$", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    assert rows
    return rows


@pytest.mark.parametrize(("command", "expected"), rows_of_readme(), ids=lambda text: text if " " in text else None)
def test_readme_commands_print_their_expected_text(folder: Path, command: str, expected: str) -> None:
    output = " ".join(run_analyze(folder, *shlex.split(command)).split())
    assert re.search(".*".join(re.escape(part) for part in expected.split(" … ")), output), output


def test_readme_lists_every_program() -> None:
    programs = sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem != "marks")
    assert programs == sorted(PROGRAMS)

    commands = [shlex.split(command) for command, _ in rows_of_readme()]
    fields = [field for arguments in commands for field in arguments]
    listed = {field.removesuffix(".alloctrace") for field in fields if field.endswith(".alloctrace")}
    assert sorted(listed) == programs
    assert all(f"[{name}]({name}.py)" in (EXAMPLES / "README.md").read_text() for name in programs)
