"""The experiments in examples/: what each must show, through the Python interface and the commands of its README. The
oracle of the figures is what torch itself reports at each mark, which the programs print."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from pathlib import Path

import pytest
from example_checks import check_formula
from marked_programs import run_analyze, run_marked
from running import ROOT, has_nvidia_gpu, needs_cuda_build

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace import Trace
from pytorch_alloctrace.analysis.free_memory.oom import FRAGMENTED

pytestmark = [
    needs_cuda_build,
    pytest.mark.skipif(has_nvidia_gpu(), reason="the figures are those of a simulated device of 8 GiB"),
]
MIB = 2**20
GPU = "cuda:0"
EXAMPLES = ROOT / "examples"
PROGRAMS = [
    "context",  # first: it needs a process that has not used CUDA yet
    "formula",  # then: as in a process of its own, autograd has made nothing before the recording
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
"""MiB at each mark, as torch reports them: what the example is there to show."""
WORKSPACE = "cuBLAS"
"""A comment on the line that allocates what function_scope sets aside."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("examples")
    run_marked("example_programs.py", made, *PROGRAMS, memory="8GiB")
    return made


def load(folder: Path, name: str) -> Trace:
    return alloctrace.load(folder / f"{name}.alloctrace")


def reported_by_torch(folder: Path, name: str) -> dict[str, dict[str, int]]:
    """What the program printed: allocated, peak, reserved and driver bytes, by mark."""
    by_torch = {}
    for line in (folder / f"{name}.txt").read_text().splitlines():
        if " allocated " in line and not line.startswith("OutOfMemoryError"):
            mark, *words = line.split()
            sizes = {word: float(size) * MIB for word, size in zip(words[::2], words[1::2], strict=True)}
            assert all(size.is_integer() for size in sizes.values()), line
            by_torch[mark] = {word: int(size) for word, size in sizes.items()}
    return by_torch


def mib(by_torch: dict[str, dict[str, int]], figure: str) -> list[float]:
    return [sizes[figure] / MIB for sizes in by_torch.values()]


def sequence_of(trace: Trace, mark: str) -> int:
    return int(trace.marks().set_index("name").loc[mark, "seq"])


def allocated_bytes(trace: Trace, mark: str) -> int:
    blocks = trace.blocks(f"mark:{mark}", device=GPU)
    return int(blocks.loc[blocks["state"] == "active_allocated", "nbytes"].sum())


@pytest.mark.parametrize("name", PROGRAMS)
def test_figures_are_those_of_torch(folder: Path, name: str) -> None:
    trace, by_torch = load(folder, name), reported_by_torch(folder, name)
    assert list(by_torch) == list(trace.marks()["name"])
    assert trace.integrity.state == "complete" and trace.verify().ok
    aside = 0
    if name == "function_scope":  # which leaves it out of its figures
        sites = trace.sites(at=f"mark:{next(iter(by_torch))}", device=GPU)
        lines = sites["source"].fillna(sites["site"])  # what no line made has a name instead of one
        aside = int(sites.loc[lines.str.contains(WORKSPACE, na=False), "live_bytes"].sum())
        assert aside > 0
    highest = max(figures["peak"] for figures in by_torch.values())
    assert trace.peak(device=GPU).bytes == highest + aside
    for mark, figures in by_torch.items():
        assert allocated_bytes(trace, mark) == figures["allocated"] + aside, mark
        assert trace.segments(f"mark:{mark}", device=GPU)["total_size"].sum() == figures["reserved"], mark
        # torch's peak is the peak so far.
        assert (trace.peak(device=GPU).seq < sequence_of(trace, mark)) == (figures["peak"] == highest), mark
        if name == "empty_cache":
            samples = trace.driver_memory(device=GPU)
            driver = samples[samples["seq"] < sequence_of(trace, mark)].iloc[-1]
            assert driver["used"] == figures["driver"] and driver["reserved"] == figures["reserved"], mark
    for figure, expected in FIGURES.get(name, {}).items():
        assert mib(by_torch, figure) == expected, figure
    leaks = trace.leaks()
    assert leaks.empty, leaks.to_string()


def test_views_are_tensors_of_one_block(folder: Path) -> None:
    parts = (folder / "views.txt").read_text().split("tensors")[1:]
    [viewed, deleted] = [re.findall(r"^ *(\w+) +\(.*?\) +(\d+) +(\d+) +\S*views.py:\d+$", part, re.M) for part in parts]
    whole = str(100 * MIB)
    assert [(size, tensors) for _, size, tensors in viewed] == [(whole, "4")]
    assert {*deleted} == {("row", whole, "1"), ("cloned", whole, "1"), ("packed", whole, "1")}


def test_roles_are_what_the_formula_says(folder: Path) -> None:
    check_formula(folder, GPU)


def printed_changes(folder: Path) -> list[Counter[tuple[str, str, str, str]]]:
    """Of each line of between_lines: sign, size, name, and shape with dtype and device, of each tensor."""
    parts = [part for part in (folder / "between_lines.txt").read_text().split("\n\n") if part.strip()]
    rows = [re.findall(r"^([+-]) +([\d.]+ \w+)  (\S+)  (.*?)  \S*between_lines.py:\d+$", one, re.M) for one in parts]
    for part, found in zip(parts, rows, strict=True):
        assert len(found) == sum(line[:2] in ("+ ", "- ") for line in part.splitlines()), part
    return [Counter(found) for found in rows]


def test_what_came_and_went_between_two_lines(folder: Path) -> None:
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


def test_runs_with_what_is_advised(folder: Path, tmp_path: Path) -> None:
    [found] = load(folder, "fragmented").ooms()
    assert "OutOfMemoryError" in (folder / "fragmented.txt").read_text() and found.verdict == FRAGMENTED
    [advised, *_] = found.settings_that_help()
    assert advised == "expandable_segments:True"
    run_marked("example_programs.py", tmp_path, "fragmented", memory="8GiB", PYTORCH_ALLOC_CONF=advised)
    assert load(tmp_path, "fragmented").ooms() == []
    assert "OutOfMemoryError" not in (tmp_path / "fragmented.txt").read_text()
    # The same run: it did not just request less.
    by_torch, torch_before = reported_by_torch(tmp_path, "fragmented"), reported_by_torch(folder, "fragmented")
    assert mib(by_torch, "allocated") == mib(torch_before, "allocated")


def rows_of_readme() -> list[tuple[str, str]]:
    """The commands of its table, and what each must show."""
    rows = re.findall(r"\| `analyze (.*?)` \| `(.*?)` \|$", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    assert rows
    return rows


@pytest.mark.parametrize(("command", "seen"), rows_of_readme(), ids=lambda text: text if " " in text else None)
def test_readme_shows_what_the_tool_says(folder: Path, command: str, seen: str) -> None:
    said = " ".join(run_analyze(folder, *shlex.split(command)).split())
    assert re.search(".*".join(re.escape(part) for part in seen.split(" … ")), said), said


def test_readme_has_every_program() -> None:
    programs = sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem != "marks")
    assert programs == sorted(PROGRAMS)
    commands = [shlex.split(command) for command, _ in rows_of_readme()]
    shown = {word.removesuffix(".alloctrace") for words in commands for word in words if word.endswith(".alloctrace")}
    assert sorted(shown) == programs
    assert all(f"[{name}]({name}.py)" in (EXAMPLES / "README.md").read_text() for name in programs)
