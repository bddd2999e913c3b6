"""First screen: at most 25 lines that end with the most severe finding and the next command."""

from __future__ import annotations

import dataclasses
import io
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up_ranks import Rank, write_ranks
from rich.cells import cell_len
from rich.console import Console

from pytorch_alloctrace.analysis.free_memory.inefficiency import Inefficiency
from pytorch_alloctrace.analysis.summary import Summary, summarize
from pytorch_alloctrace.analysis.usage.package_lines import PackageLine, PackageLines
from pytorch_alloctrace.analysis.usage.roles import RoleBytes, RoleShares
from pytorch_alloctrace.reading.recorded import RecordedTrace
from pytorch_alloctrace.reading.sites import Frame, Site
from pytorch_alloctrace.report.finding import LABELS
from pytorch_alloctrace.report.first_screen import LINES, write_first_screen
from pytorch_alloctrace.report.screen import Screen
from pytorch_alloctrace.report.site_names import SiteNames
from pytorch_alloctrace.report.verdict import diagnosis


@pytest.fixture(scope="module")
def summaries(tmp_path_factory: pytest.TempPathFactory) -> list[Summary]:
    """Return the summaries of a healthy rank and of one that leaks and runs out of memory."""
    folder = tmp_path_factory.mktemp("ranks")
    write_ranks(folder, 2, rank1=Rank(1, 2, leaks_from=5, larger_from=10, oom_at=20))
    return [summarize(RecordedTrace(path)) for path in sorted(folder.glob("*.alloctrace"))]


def draw(summary: Summary, width: int = 80, encoding: str = "utf-8") -> list[str]:
    output = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    write_first_screen(summary, Screen(Console(file=output), width))
    output.seek(0)
    return output.read().splitlines()


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize("width", [30, 60, 80, 120, 200])
def test_any_run_fits_on_25_lines(summaries: list[Summary], width: int, encoding: str) -> None:
    empty = dataclasses.replace(summaries[0], devices=())
    for summary in (*summaries, empty):
        lines = draw(summary, width, encoding)
        assert len(lines) <= LINES
        assert all(cell_len(line) <= width for line in lines[:-1]), "The command is not shortened."


def test_many_findings_and_devices_still_fit(summaries: list[Summary]) -> None:
    summary = summaries[1]
    device = summary.devices[0]
    leaks = tuple(
        dataclasses.replace(leak, allocated_bytes=leak.allocated_bytes + number)
        for leak in device.leaks.leaks
        for number in range(9)
    )
    devices = []
    for name in ("cuda:0", "cuda:1", "cuda:2", "cuda:3"):
        named = tuple(dataclasses.replace(leak, device=name) for leak in leaks[:3])
        devices.append(dataclasses.replace(device, device=name, leaks=dataclasses.replace(device.leaks, leaks=named)))

    lines = draw(dataclasses.replace(summary, devices=tuple(devices)))

    assert len(lines) <= LINES
    assert "3 more devices" in lines[1]
    assert any("more findings (--verbose)" in line for line in lines)
    assert sum(f"cuda:{number}" in " ".join(lines[2:]) for number in range(4)) > 1, "Leaks of several devices differ."


def test_most_severe_finding_is_last_before_the_next_command(summaries: list[Summary]) -> None:
    for summary in summaries:
        lines = draw(summary)
        labels = [line.split("  ")[0] for line in lines if line.split("  ")[0] in LABELS.values()]
        assert labels[-1] == LABELS[diagnosis(summary)[0].kind]
        assert lines[-1].startswith("Next: ") and lines[-1].endswith(summary.trace)


def test_header_names_device_size_and_torchs_own_figures(summaries: list[Summary]) -> None:
    summary = summaries[0]
    device = dataclasses.replace(summary.devices[0], name="NVIDIA A10G", memory_bytes=22 << 30)

    lines = draw(dataclasses.replace(summary, devices=(device, *summary.devices[1:])))

    assert lines[0].startswith("train.py  19.9 s, 40 steps")
    assert lines[1].startswith("cuda:0 NVIDIA A10G: peak 1.50 GiB allocated, 1.50 of 22.0 GiB reserved")
    assert "complete, nothing lost" in lines[2]


def test_header_has_requested_bytes_if_rounding_takes_much(summaries: list[Summary]) -> None:
    summary = summaries[0]
    for allocated, expected in ((1.04, "allocated, "), (1.5, "allocated (1.50 GiB requested), ")):
        device = summary.devices[0]
        peak = dataclasses.replace(device.peak, allocated_bytes=round(allocated * device.peak.bytes))
        device = dataclasses.replace(device, peak=peak)
        assert f" GiB {expected}" in draw(dataclasses.replace(summary, devices=(device,)))[1]


def test_roles_are_named_before_a_bar_takes_their_room(summaries: list[Summary]) -> None:
    (device, *_), roles = summaries[0].devices, ("parameter", "optimizer state", "gradient", "activation")
    total = device.peak.bytes
    shares = RoleShares(tuple(RoleBytes(role, total // 4, 0, 1) for role in roles), are_named=False)
    summary = dataclasses.replace(
        summaries[0], devices=(dataclasses.replace(device, peak=dataclasses.replace(device.peak, roles=shares)),)
    )
    (line,) = (line for line in draw(summary) if line.startswith("roles"))
    assert line == "roles   ███▓▓▓▒▒▒     █ parameters 25 % ▓ optimizer state 25 % ▒ gradients 25 %"


def test_header_has_the_device_of_the_worst_finding_before_that_of_the_highest_peak(summaries: list[Summary]) -> None:
    summary = summaries[1]
    gpu, host = summary.devices[0], dataclasses.replace(summary.devices[0], device="cpu", failure=None)
    quiet = dataclasses.replace(host, leaks=summaries[0].devices[0].leaks)

    assert draw(dataclasses.replace(summary, devices=(quiet, gpu)))[1].startswith("cuda:1")
    no_findings = dataclasses.replace(summaries[0].devices[0], device="cpu")
    assert draw(dataclasses.replace(summaries[0], devices=(no_findings, *summaries[0].devices)))[1].startswith("cuda:0")


def test_line_of_the_program_is_before_a_larger_workspace(summaries: list[Summary]) -> None:
    device = summaries[0].devices[0]
    largest, *others = device.peak.sites
    workspace = dataclasses.replace(largest, site=Site("", 0, "cuBLAS workspace", None, False))
    peak = dataclasses.replace(device.peak, sites=(workspace, *others))

    lines = draw(dataclasses.replace(summaries[0], devices=(dataclasses.replace(device, peak=peak),)))

    shares = [line for line in lines if re.match(r" *\d+ %  ", line)]
    assert "train.py:12 in forward" in shares[0] and "cuBLAS workspace" in shares[-1]


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("GPT.h.*.act", "transformers/activations.py:66 in Activation.forward (GPT.h.*.act)"),
        ("GPT2LMHeadModel.h.*.mlp.act", "transformers/activations.py:66 (GPT2LMHeadModel.h.*.mlp.act)"),
        ("GPT2LMHeadModel.transformer.h.*.mlp.act", "transformers/activations.py:66 (…transformer.h.*.mlp.act)"),
    ],
)
def test_module_below_a_call_of_a_library_is_never_cut_off(summaries: list[Summary], module: str, text: str) -> None:
    device = summaries[0].devices[0]
    frame = Frame("Activation.forward", "/site-packages/transformers/activations.py", 66)
    package_lines = PackageLines("transformers", 1 << 20, (PackageLine(frame, module, 1 << 20, 1, 1),))
    peak = dataclasses.replace(device.peak, package_lines=(package_lines, *device.peak.package_lines[1:]))

    lines = draw(dataclasses.replace(summaries[0], devices=(dataclasses.replace(device, peak=peak),)), 90)

    assert [line.partition("MiB    ")[2] for line in lines if "activations.py" in line] == [text]


@pytest.mark.parametrize(
    ("mebibytes", "reserved_gibibytes", "is_listed", "is_in_full"),
    [(500, 12, False, False), (1000, 12, True, True), (1000, 4, True, False), (5000, 6, True, True)],
)
def test_unused_cache_is_listed_if_it_is_much_of_the_device(
    summaries: list[Summary], mebibytes: int, reserved_gibibytes: int, is_listed: bool, is_in_full: bool
) -> None:
    """Where half of a device is not reserved, nothing is short of memory: the title and the cure are enough."""
    reserved = reserved_gibibytes << 30
    cache = Inefficiency("cache", "cuda:0", mebibytes << 20, reserved, 1.0, figures={"is_warmup": 0})
    device = dataclasses.replace(
        summaries[0].devices[0], memory_bytes=22 << 30, peak_reserved_bytes=reserved, inefficiencies=(cache,)
    )

    text = " ".join(" ".join(draw(dataclasses.replace(summaries[0], devices=(device,)))).split())

    assert ("UNUSED CACHE" in text) is ("torch.cuda.empty_cache()" in text) is is_listed
    assert ("It was last needed" in text) is is_in_full


@pytest.mark.parametrize("calls", [0, 1, 5])
def test_memory_that_torch_returns_by_itself_is_not_blamed_on_empty_cache(summaries: list[Summary], calls: int) -> None:
    churn = Inefficiency("churn", "cuda:0", 60 << 30, 20 << 30, 1.0, figures={"times": 4.0, "calls": calls})
    device = dataclasses.replace(summaries[0].devices[0], memory_bytes=22 << 30, inefficiencies=(churn,))

    text = " ".join(draw(dataclasses.replace(summaries[0], devices=(device,))))

    assert "CHURN" in text and ("empty_cache" in text) == (calls >= 4)


def test_source_is_cut_with_an_ellipsis_and_never_ends_as_a_sentence(summaries: list[Summary]) -> None:
    summary = summaries[1]
    device = summary.devices[0]
    source = "self.kept.append(model(x)); optimizer.step(); scheduler.step(); print('Done. Loss', loss)"
    assert device.failure is not None
    failure = dataclasses.replace(device.failure, site=dataclasses.replace(device.failure.site, source=source))

    lines = draw(dataclasses.replace(summary, devices=(dataclasses.replace(device, failure=failure),)), 60)

    (quoted,) = [line for line in lines if "optimizer.step()" in line]
    assert quoted.strip() == source[: len(quoted.strip()) - 1] + "…"


def test_inefficiency_on_few_lines_has_its_remedy(summaries: list[Summary]) -> None:
    summary = summaries[1]
    device = summary.devices[0]
    figures = {"block_bytes": 4 * 2**20, "wasted_bytes": 2**20}
    rounding = Inefficiency("rounding", device.device, 2**30, 2**32, 1.0, figures=figures)

    text = " ".join(
        " ".join(
            draw(dataclasses.replace(summary, devices=(dataclasses.replace(device, inefficiencies=(rounding,)),)))
        ).split()
    )

    assert "is rounding waste. What helps: tensors of a multiple of 2 MiB" in text


def test_verdict_of_an_incomplete_trace_says_what_is_unknown(summaries: list[Summary], tmp_path: Path) -> None:
    path = tmp_path / "broken.alloctrace"
    content = Path(summaries[0].trace).read_bytes()
    path.write_bytes(content[: len(content) // 2])

    lines = draw(summarize(RecordedTrace(path)))

    assert any(line.startswith("INCOMPLETE  The trace is") for line in lines[:3]) and len(lines) <= LINES
    assert "What happened after the break is unknown" in " ".join(" ".join(lines).split())
    assert not any(line.startswith("OK") for line in lines)


WORDS = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1, max_size=40)


@given(words=st.lists(WORDS, min_size=1, max_size=40), most=st.integers(1, 4), width=st.integers(30, 100))
def test_brief_text_never_exceeds_its_lines(words: list[str], most: int, width: int) -> None:
    screen = Screen(Console(file=io.StringIO()), width)
    lines = [line.plain for line in screen.brief(" ".join(words), 6, most)]
    assert 1 <= len(lines) <= most
    assert all(cell_len(line) <= width for line in lines)


def test_brief_text_ends_with_a_whole_clause_if_one_fits() -> None:
    screen = Screen(Console(file=io.StringIO()), 33)
    text = "Clear the list; or keep only the number. Then record it again for longer."
    assert [line.plain for line in screen.brief(text, 0, 1)] == ["Clear the list."]
    assert [line.plain for line in screen.brief(text, 0, 2)] == ["Clear the list; or keep only the", "number."]
    assert len(screen.brief(text, 0, 3)) == 3


@pytest.mark.parametrize(
    ("filename", "name"),
    [
        ("/srv/train_a_model_with_a_long_name.py", "train_a_model_with_a_long_name.py"),
        ("/srv/models/vision/attention_blocks.py", ".../attention_blocks.py"),
        ("/srv/models/vision/net.py", ".../vision/net.py"),
    ],
)
def test_long_path_is_shortened_by_folders_only(filename: str, name: str) -> None:
    assert SiteNames("/srv", longest=15).file(filename) == name
