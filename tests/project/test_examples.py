"""The experiments in examples/: what each must show, through the Python interface and the commands of its README. The
oracle of the figures is what torch itself reports at each mark, which the programs print."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from example_checks import check_between_lines, check_formula, check_saved_by_module, check_views
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


def held(trace: Trace, at: str, device: str = GPU) -> dict[tuple[str, str], float]:
    """MiB live at a position, by function and quoted line."""
    sites = trace.sites(at=at, device=device)
    sites = sites[sites["live_bytes"] > 0]
    # What no line made has a name instead of one.
    lines = zip(sites["function"], sites["source"].fillna(sites["site"]).str.strip(), strict=True)
    return dict(zip(lines, sites["live_bytes"] / MIB, strict=True))


def held_at_top_level(trace: Trace, at: str, device: str = GPU) -> dict[str, float]:
    found = held(trace, at, device)
    assert {function for function, _ in found} <= {"<module>", "<listcomp>"}
    return {source: size for (_, source), size in found.items()}


def sequence_of(trace: Trace, mark: str) -> int:
    marks = trace.marks().set_index("name")
    return int(marks.loc[mark, "seq"])


def reported_by_driver(trace: Trace, mark: str, device: str = GPU) -> pd.Series[Any]:
    """The last sample before a mark: from the driver or, for the CPU, from the system."""
    samples = trace.driver_memory(device=device)
    return samples[samples["seq"] < sequence_of(trace, mark)].iloc[-1]


def allocated_bytes(trace: Trace, mark: str) -> int:
    blocks = trace.blocks(f"mark:{mark}", device=GPU)
    return int(blocks.loc[blocks["state"] == "active_allocated", "nbytes"].sum())


@pytest.mark.parametrize("name", PROGRAMS)
def test_figures_are_those_of_torch(folder: Path, name: str) -> None:
    trace, by_torch = load(folder, name), reported_by_torch(folder, name)
    assert list(by_torch) == list(trace.marks()["name"])
    assert trace.integrity.state == "complete" and trace.verify().ok
    at_first = held(trace, f"mark:{next(iter(by_torch))}")
    # That program leaves it out of its figures.
    workspaces = MIB * sum(size for (_, source), size in at_first.items() if WORKSPACE in source)
    aside = workspaces if name == "function_scope" else 0
    assert aside > 0 or name != "function_scope"
    highest = max(figures["peak"] for figures in by_torch.values())
    assert trace.peak(device=GPU).bytes == highest + aside
    for mark, figures in by_torch.items():
        assert allocated_bytes(trace, mark) == figures["allocated"] + aside, mark
        assert trace.segments(f"mark:{mark}", device=GPU)["total_size"].sum() == figures["reserved"], mark
        # torch's peak is the peak so far.
        assert (trace.peak(device=GPU).seq < sequence_of(trace, mark)) == (figures["peak"] == highest), mark


def test_freed_memory_is_reused(folder: Path) -> None:
    trace, by_torch = load(folder, "freed_memory"), reported_by_torch(folder, "freed_memory")
    assert mib(by_torch, "allocated") == [100, 0, 100]
    assert mib(by_torch, "reserved") == [100, 100, 100]
    [before], [after] = trace.live("mark:made")["address"], trace.live("mark:made-again")["address"]
    assert before == after
    assert trace.live("mark:freed", device=GPU).empty
    assert trace.kind_counts["segment_alloc"] == 1
    assert trace.fragmentation("mark:freed", device=GPU).releasable == 100 * MIB


def test_rebinding_needs_twice_the_memory(folder: Path) -> None:
    trace, by_torch = load(folder, "rebinding"), reported_by_torch(folder, "rebinding")
    assert mib(by_torch, "allocated") == [100, 100, 100]
    assert mib(by_torch, "peak") == mib(by_torch, "reserved") == [100, 100, 200]
    line = 'c = torch.zeros(n, device="cuda")'
    rebound = f"{line}  # while the old one is still there"
    assert held_at_top_level(trace, "mark:rebound") == {rebound: 100}
    # At the peak, both exist.
    assert held_at_top_level(trace, "peak") == {line: 100, rebound: 100}


def test_plus_one(folder: Path) -> None:
    trace, by_torch = load(folder, "plus_one"), reported_by_torch(folder, "plus_one")
    assert mib(by_torch, "allocated") == [100, 100, 100, 100]
    assert mib(by_torch, "peak") == mib(by_torch, "reserved") == [100, 200, 200, 200]
    made = 'x = torch.zeros(25 * MIB, device="cuda")'
    for position, line in {
        "made": made,
        "expression": made,
        "assignment": "x = x + 1",
        "in-place": "x = x + 1",
    }.items():
        assert held_at_top_level(trace, f"mark:{position}") == {line: 100}, position
    lines = trace.sites(device=GPU).set_index("source")["allocations"]
    [expression] = [source for source in lines.index if source.startswith("x + 1")]
    assert lines.to_dict() == {made: 1, expression: 1, "x = x + 1": 1}
    # The new x lies where the result of `x + 1` was: only those two segments were made.
    [first], [second] = trace.live("mark:expression")["address"], trace.live("mark:assignment")["address"]
    assert first != second
    assert {first, second} == set(trace.segments(device=GPU)["address"])


def test_moving_to_the_cpu_copies(folder: Path) -> None:
    trace, by_torch = load(folder, "to_cpu"), reported_by_torch(folder, "to_cpu")
    assert mib(by_torch, "allocated") == [128, 128, 0]
    assert mib(by_torch, "reserved") == [128, 128, 128]
    line = "on_cpu = [tensor.cpu() for tensor in on_gpu]"
    assert held(trace, "mark:on-gpu", "cpu") == {}
    for position in ("mark:copied", "mark:moved"):
        assert held_at_top_level(trace, position, "cpu") == {line: 128}
    assert held(trace, "mark:moved") == {}
    resident = [reported_by_driver(trace, mark, "cpu")["used"] for mark in ("on-gpu", "copied")]
    assert resident[1] - resident[0] > 0.9 * 128 * MIB  # the process may have released something else in between


def test_only_empty_cache_gives_back_to_the_driver(folder: Path) -> None:
    trace, by_torch = load(folder, "empty_cache"), reported_by_torch(folder, "empty_cache")
    assert mib(by_torch, "allocated") == [1024, 0, 0]
    assert mib(by_torch, "reserved") == [1024, 1024, 0]
    assert mib(by_torch, "driver") == [1524, 1524, 500]
    for mark, figures in by_torch.items():
        driver = reported_by_driver(trace, mark)
        assert driver["used"] == figures["driver"] and driver["reserved"] == figures["reserved"], mark
    deleted = trace.fragmentation("mark:deleted", device=GPU)
    assert (deleted.active, deleted.releasable, deleted.stranded) == (0, 1024 * MIB, 0)


def test_function_and_top_level(folder: Path) -> None:
    trace, by_torch = load(folder, "function_scope"), reported_by_torch(folder, "function_scope")
    assert mib(by_torch, "allocated") == [16, 18, 22, 16, 18, 18, 18]
    [workspace] = [source for _, source in held(trace, "mark:before") if WORKSPACE in source]
    assert held(trace, "mark:before")[workspace, workspace] == 32

    def without_operands(mark: str) -> dict[tuple[str, str], float]:
        found = held(trace, f"mark:{mark}")
        assert found.pop((workspace, workspace)) == 32
        [operands] = [site for site in found if site[1].startswith("q, k, v =")]
        assert found.pop(operands) == 12
        return found

    first = ("<module>", 'x = torch.zeros(B, L, C, device="cuda")')
    weights, product = "weights = q @ k.transpose(-2, -1)", "x = weights @ v"
    result = "x.transpose(1, 2).reshape(B, L, C)"
    returned = ("attention", f"return {result}")
    assert without_operands("before") == {first: 4}
    assert without_operands("function-weights") == {first: 4, ("attention", weights): 2}
    assert without_operands("function-x") == {first: 4, ("attention", weights): 2, ("attention", product): 4}
    assert without_operands("function-after") == {returned: 4}
    assert without_operands("top-weights") == {returned: 4, ("<module>", weights): 2}
    assert without_operands("top-x") == {("<module>", weights): 2, ("<module>", product): 4}
    assert without_operands("top-after") == {("<module>", weights): 2, ("<module>", f"x = {result}"): 4}


def test_views_allocate_nothing(folder: Path) -> None:
    trace, by_torch = load(folder, "views"), reported_by_torch(folder, "views")
    assert mib(by_torch, "allocated") == [100, 100, 200, 300, 300]
    kinds = ("alloc", "free_requested", "free_completed", "segment_alloc")
    assert trace.events(since="mark:made", until="mark:viewed", kinds=kinds).empty
    assert len(trace.events(since="mark:viewed", until="mark:cloned", kinds=("alloc",))) == 1
    base = {"x = torch.zeros(1024, 25 * 1024, device=DEVICE)": 100}
    copies = {"cloned = x.clone()": 100, "packed = transposed.contiguous()": 100}
    assert held_at_top_level(trace, "mark:viewed") == base
    # Even after x is deleted: the view of one row keeps all of it.
    for position in ("mark:contiguous", "mark:base-deleted"):
        assert held_at_top_level(trace, position) == {**base, **copies}


def test_views_are_tensors_of_one_block(folder: Path) -> None:
    check_views(folder)


def test_the_context_is_outside_of_pytorch(folder: Path) -> None:
    trace, by_torch = load(folder, "context"), reported_by_torch(folder, "context")
    assert "driver" not in by_torch["before"]
    assert by_torch["used"] == {"allocated": 512, "peak": 512, "reserved": 2 * MIB, "driver": 502 * MIB}
    driver = reported_by_driver(trace, "used")
    assert driver["used"] == by_torch["used"]["driver"]
    assert driver["outside"] == 500 * MIB
    assert trace.timeline(device=GPU)["outside"].iloc[-1] == 500 * MIB


def test_what_saves_activations(folder: Path) -> None:
    trace, by_torch = load(folder, "activations"), reported_by_torch(folder, "activations")
    lines = {
        "hidden = x @ wide": "widen",
        "hidden = leaky_relu(hidden, inplace=in_place)": "activation",
        "return hidden @ narrow": "narrow",
    }

    def in_layer(mark: str) -> dict[str, float]:
        found = held(trace, f"mark:{mark}")
        return {name: found.get(("layer", source), 0) for source, name in lines.items()}

    # For two layers, in MiB: each hidden tensor takes 32, each output 8.
    expected = {
        "no-grad": {"widen": 64, "activation": 64, "narrow": 8},
        "checkpointing": {"widen": 64, "activation": 64, "narrow": 0},
        # Half of everything, plus copies: 4 of the batch, 2 of each weight.
        "autocast": {"widen": 32 - 4 - 2 * 2, "activation": 32, "narrow": 8 - 2 * 2},
        "in-place": {"widen": 0, "activation": 64, "narrow": 0},
    }
    plain = in_layer("plain")
    assert plain == {"widen": 64, "activation": 64, "narrow": 16}
    for mark, saved in expected.items():
        here = in_layer(mark)
        assert {name: plain[name] - here[name] for name in plain} == saved, mark
        # The lines account for everything that torch says was saved.
        assert by_torch["plain"]["allocated"] - by_torch[mark]["allocated"] == sum(saved.values()) * MIB, mark


def test_what_saves_activations_by_module(folder: Path) -> None:
    check_saved_by_module(folder, GPU)


def test_roles_are_what_the_formula_says(folder: Path) -> None:
    check_formula(folder, GPU)


def test_what_came_and_went_between_two_lines(folder: Path) -> None:
    check_between_lines(folder, GPU)


def test_fails_though_enough_is_free(folder: Path) -> None:
    trace, by_torch = load(folder, "fragmented"), reported_by_torch(folder, "fragmented")
    [found] = trace.ooms()
    assert found.verdict == FRAGMENTED
    batch = by_torch["trained"]["allocated"] // 6
    cleared = by_torch["features-cleared"]
    free = cleared["reserved"] - cleared["allocated"]
    assert cleared["allocated"] == 6 * 64 * MIB
    assert found.requested == 3 * batch < free == found.here.free
    assert found.here.largest_free == batch - 64 * MIB
    assert "torch.zeros(3 * batch_size" in str(found.site.source)
    pinners = found.here.pinners_by_line.iloc[0]
    assert str(pinners["source"]).strip().startswith("results.append(")
    assert pinners["stranded"] == free
    assert found.settings_that_help()[0] == "expandable_segments:True"
    assert "OutOfMemoryError" in (folder / "fragmented.txt").read_text()


def test_runs_with_what_is_advised(folder: Path, tmp_path: Path) -> None:
    [advised, *_] = load(folder, "fragmented").ooms()[0].settings_that_help()
    run_marked("example_programs.py", tmp_path, "fragmented", memory="8GiB", PYTORCH_ALLOC_CONF=advised)
    assert load(tmp_path, "fragmented").ooms() == []
    assert "OutOfMemoryError" not in (tmp_path / "fragmented.txt").read_text()
    # The same run: it did not just request less.
    by_torch, torch_before = reported_by_torch(tmp_path, "fragmented"), reported_by_torch(folder, "fragmented")
    assert mib(by_torch, "allocated") == mib(torch_before, "allocated")


@pytest.mark.parametrize("name", PROGRAMS)
def test_none_is_reported_as_a_leak(folder: Path, name: str) -> None:
    found = load(folder, name).leaks()
    assert found.empty, found.to_string()


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
