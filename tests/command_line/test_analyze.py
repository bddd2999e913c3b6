"""Verdicts, refused input, progress bars and formatted numbers of the analysis commands."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import shutil
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from command_line import run_command
from marked_programs import line_with, run_analyze
from rich.console import Console
from shared_recordings import run_source
from test_live_command import Terminal

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.__main__ import main
from pytorch_alloctrace.analysis.summary import summarize
from pytorch_alloctrace.analyze import trace_command
from pytorch_alloctrace.parser import PROGRAM as COMMAND
from pytorch_alloctrace.reading.recorded import RecordedTrace
from pytorch_alloctrace.reading.sites import Site, SiteBytes
from pytorch_alloctrace.report import progress, units
from pytorch_alloctrace.report.screen import Screen
from pytorch_alloctrace.report.verdict import verdict_data, write_verdict

PROGRAM = """
    import torch
    import pytorch_alloctrace as alloctrace

    model = torch.nn.Linear(100, 1000)
    history = []

    def train_step(x):
        prediction = model(x)  # planted, with a comment so long that the quoted line has no room in eighty columns
        history.append(prediction)
        return "\x1b[31mred"

    with alloctrace.enable("run.alloctrace"):
        kept = [torch.empty(5000), "\x1b[31mred"]
        for number in range(40):
            train_step(torch.randn(8, 100))
            alloctrace.step()
"""
LEAKING = "prediction = model(x)  # planted, with a comment so long that the quoted line has no room in eighty columns"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with program.py and its trace, run.alloctrace."""
    return run_source(tmp_path_factory.mktemp("analyze"), textwrap.dedent(PROGRAM))


def read_verdict(folder: Path, *arguments: str) -> str:
    process = run_command(folder, list(arguments))
    assert (process.returncode, process.stderr) == (0, "")
    return process.stdout


def read_terminal(folder: Path, **environment: str) -> str:
    """Return stdout and stderr of the verdict in a terminal of 80 columns."""
    terminal = Terminal(folder, "run.alloctrace", COLUMNS="80", **environment)
    assert terminal.read_to_end()[0] == 0
    return terminal.output.decode().replace("\r\n", "\n")


def test_piped_text_is_uncoloured_complete_and_ascii_on_ascii_streams(folder: Path) -> None:
    text = read_verdict(folder, "run.alloctrace", "--top", "0")
    assert "\x1b" not in text
    assert not re.search("[─-╿]", text), "box drawing"
    assert 'kept = [torch.empty(5000), "\\x1b[31mred"]' in text
    assert all(line == line.rstrip() for line in text.splitlines())
    assert f"      {LEAKING}\n" in text

    narrow = read_verdict(folder, "run.alloctrace", "--width", "40", "--top", "0")
    assert "program.py:9" in narrow, "the location is truncated"
    run = run_command(folder, ["run.alloctrace"], "ascii")
    assert run.returncode == 0 and run.stdout.isascii() and "LEAK" in run.stdout and "\\u" not in run.stdout


def test_terminal_output_has_colours_and_80_columns(folder: Path) -> None:
    text = read_terminal(folder)
    assert "\x1b[1;31mLEAK" in text
    assert "\x1b[31mred" not in text, "an escape sequence of the program's source reached the terminal"
    uncoloured = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    *lines, command = uncoloured.splitlines()
    assert command.startswith("Next: "), "the command to copy, never cut: as long as the interpreter's path"
    assert max(map(len, lines)) <= 80
    assert read_terminal(folder, NO_COLOR="1").count("\x1b[1;31m") == 0
    assert uncoloured.splitlines()[3] == read_verdict(folder, "run.alloctrace").splitlines()[3]


def test_json_reports_lines_of_leak_in_integer_bytes(folder: Path) -> None:
    number = line_with(LEAKING, (folder / "program.py").read_text())

    result = json.loads(read_verdict(folder, "run.alloctrace", "--json"))

    assert (result["format"], result["format_version"]) == ("pytorch_alloctrace.verdict", 1)
    assert result["integrity"]["state"] == "complete" and result["trace"]["steps"] == 40
    first = result["findings"][0]
    assert (first["kind"], first["unit"], first["device"]) == ("leak", "step", "cpu")
    assert (first["site"]["line"], first["site"]["function"]) == (number, "train_step")
    assert first["site"]["source"].strip() == LEAKING and first["site"]["user"] is True
    # A prediction is 8 x 1000 floats of 4 bytes; its graph keeps the input, 8 x 100 floats, allocated by another line.
    bytes_by_line = {site["site"]["line"]: site["bytes_per_unit"] for site in first["sites"]}
    assert bytes_by_line == {number: 8 * 1000 * 4, number + 7: 8 * 100 * 4}
    assert first["bytes_per_unit"] == sum(bytes_by_line.values())
    assert first["units_with_survivors"] == first["units_judged"] == 37
    assert first["bytes"] == 37 * first["bytes_per_unit"]
    (device,) = result["devices"]
    assert device["peak"]["bytes"] >= device["end"]["bytes"] == 5000 * 4 + 40 * 35200
    assert sum(site["bytes"] for site in device["end"]["sites"]) + device["end"]["more_bytes"] == device["end"]["bytes"]
    assert device["growth"]["bytes_per_step"] == 35200

    def check_integers(value: object, name: str) -> None:
        if isinstance(value, dict):
            for key, entry in value.items():
                check_integers(entry, key)
        elif isinstance(value, list):
            for entry in value:
                check_integers(entry, name)
        elif name == "bytes" or name.endswith("_bytes") or name.startswith("bytes_"):
            assert type(value) is int, name

    check_integers(result, "")


def test_top_limits_lines_in_json_and_text(tmp_path: Path) -> None:
    lines = "\n".join(f"    kept.append(torch.empty({number}000))" for number in range(1, 8))
    run_source(
        tmp_path,
        "import torch, pytorch_alloctrace as alloctrace\nkept = []\n"
        f"with alloctrace.enable('run.alloctrace', devices=('cpu',)):\n{lines}\n",
    )
    all_lines, top_line = (
        json.loads(read_verdict(tmp_path, "run.alloctrace", "--json", *top))["devices"][0]["end"]
        for top in ((), ("--top", "1"))
    )
    assert len(all_lines["sites"]) == 7 and (len(top_line["sites"]), top_line["more_sites"]) == (1, 6)
    assert "in 2 more lines" in read_verdict(tmp_path, "run.alloctrace", "--verbose")
    assert "in 6 more lines" in read_verdict(tmp_path, "run.alloctrace", "--top", "1")


def test_bad_input_exits_2_with_one_line(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("not a trace, but long enough to have a header if it were one " * 100)
    (tmp_path / "program.py").write_text("x = 1\n")
    for name in ("missing", ".", "text", "text/below", "program.py", ""):
        message = run_analyze(tmp_path, name, status=2)
        assert message.count("\n") == 1 and name in message, (name, message)
    assert run_analyze(folder, "a", "b", status=2).count("\n") == 1
    for arguments in (["program.py", "run"], ["--width", "80", "run", "program.py"]):
        assert f"comes first: {COMMAND} run " in run_analyze(folder, *arguments, status=2)


LONG = "9" * 400
POSITIONS = [
    (option, position)
    for option in ("--at", "--since")
    for position in (
        *("step:--5", "step:-", "step:²", "step:1.0", "step:99999999999999999999", f"step:{LONG}"),
        *(f"{LONG}s", f"{LONG}.{LONG}s", "²s", "1e400s", "nans", "9" * 5_000, ""),
    )
]
COUNTS = [
    *(
        ("--points", count)
        for count in ("1e30", "10000000000000", "999999999", "0", "-1", "²", "1.5", "nan", LONG, "9" * 5_000, "")
    ),
    *((option, count) for option in ("--width", "--top") for count in ("10000000000000", "-1", "²", "9" * 5_000)),
]


@pytest.mark.parametrize(("option", "value"), [*POSITIONS, *COUNTS], ids=lambda text: text[:12])
def test_invalid_option_value_is_refused_in_one_line(folder: Path, option: str, value: str) -> None:
    name = "peak" if option in ("--at", "--top") else "timeline"
    position_texts = ("position", "the trace has no step")

    (sentence,) = run_analyze(folder, name, "run.alloctrace", f"{option}={value}", status=2).splitlines()

    assert "error: " in sentence
    assert any(text in sentence for text in (position_texts if option in ("--at", "--since") else [option])), sentence


def test_progress_bar_appears_only_on_terminal_after_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    def read_bar(*, terminal: bool) -> list[str]:
        output = io.StringIO()
        with progress.SlowProgress(Console(file=output, force_terminal=terminal, width=100), "judging") as bar:
            bar.begin_pass("reading")
            bar(0.5)
            # Drawn now instead of in the next tenth of a second.
            for proceed in (lambda: bar.begin_pass("replaying"), bar.end_pass, lambda: None):
                if bar._bar is not None:
                    bar._bar.refresh()
                proceed()
        return re.findall(r"reading|replaying|judging|\d+ %", output.getvalue())

    assert read_bar(terminal=True) == []
    monkeypatch.setattr(progress, "_DELAY_SECONDS", 0)
    assert read_bar(terminal=False) == []
    texts = read_bar(terminal=True)
    indices = [texts.index(text) for text in ("reading", "50 %", "replaying", "judging")]
    assert indices == sorted(indices) and texts[indices[2] + 1] == "0 %"


def test_progress_bar_names_each_pass_of_each_trace(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    class Bar(progress.SlowProgress):
        def begin_pass(self, name: str) -> None:
            calls.append(name)

        def __call__(self, share: float) -> None:
            assert 0 <= share <= 1
            calls.append("share")

        def end_pass(self) -> None:
            calls.append("end")

    monkeypatch.setattr(trace_command, "SlowProgress", Bar)
    shutil.copy(folder / "run.alloctrace", folder / "other.alloctrace")
    assert main(["diff", str(folder / "run.alloctrace"), str(folder / "other.alloctrace")]) == 0
    for name in (f"{stage} {trace}.alloctrace" for trace in ("run", "other") for stage in ("reading", "replaying")):
        later_calls = calls[calls.index(name) + 1 :]
        assert set(later_calls[: later_calls.index("end")]) == {"share"}, calls
    assert calls[0] == "reading run.alloctrace" and calls[-1] == "end"


def test_verdict_of_trace_without_allocations_steps_or_stacks(tmp_path: Path) -> None:
    def record_and_read(program: Callable[[], object], **options: str) -> str:
        with alloctrace.enable(tmp_path / "t", devices=("cpu",), overwrite=True, **options):  # type: ignore[arg-type]
            allocated = program()
        del allocated
        return " ".join(read_verdict(tmp_path, "t").split())

    assert "Nothing was allocated" in record_and_read(lambda: None)
    assert json.loads(read_verdict(tmp_path, "t", "--json"))["devices"] == []

    text = record_and_read(lambda: torch.empty(1000))
    assert "Too short to judge leaks on cpu: no steps" in text
    assert "GROWTH cpu, allocated over time" in " ".join(read_verdict(tmp_path, "t", "--verbose").split())
    assert "reports none" in read_verdict(tmp_path, "segments", "t")

    def keep_blocks() -> list[torch.Tensor]:
        blocks = []
        for _ in range(30):
            blocks.append(torch.empty(1000))
            alloctrace.step()
        return blocks

    text = record_and_read(keep_blocks, stacks="none")
    assert "LEAK (no Python stack): +3.91 KiB per step" in text and "no lines of code can be named" in text


def test_devices_have_sections_ordered_by_leak_size(folder: Path) -> None:
    summary = summarize(RecordedTrace(folder / "run.alloctrace"))
    (cpu,) = summary.devices
    leaks = tuple(
        dataclasses.replace(leak, device="cuda:0", bytes_per_unit=leak.bytes_per_unit * 2) for leak in cpu.leaks.leaks
    )
    cuda = dataclasses.replace(cpu, device="cuda:0", leaks=dataclasses.replace(cpu.leaks, leaks=leaks))
    both = dataclasses.replace(summary, devices=(cuda, cpu))
    output = io.StringIO()
    write_verdict(both, Screen(Console(file=output), 80))
    sections = re.findall("^(PEAK|GROWTH)  (cuda:0|cpu)", output.getvalue(), re.MULTILINE)
    assert sections == [("PEAK", "cuda:0"), ("GROWTH", "cuda:0"), ("PEAK", "cpu"), ("GROWTH", "cpu")]
    data = verdict_data(both)
    for rows in (data["findings"], data["devices"]):
        assert [row["device"] for row in rows] == ["cuda:0", "cpu"]


def test_missing_stacks_are_reported_only_of_a_trace_without_any(folder: Path) -> None:
    summary = summarize(RecordedTrace(folder / "run.alloctrace"))
    (cpu,) = summary.devices
    left = tuple(
        SiteBytes(Site("", 0, label, None, False), 4096, 1, stack)
        for stack, label in ((0, ""), (1, "cuBLAS workspace"))
    )
    device = dataclasses.replace(cpu, end=dataclasses.replace(cpu.end, sites=left, package_lines=(None, None)))

    def write(stacks: str) -> str:
        output = io.StringIO()
        program = dataclasses.replace(summary.program, stacks=stacks)
        write_verdict(
            dataclasses.replace(summary, program=program, devices=(device,)), Screen(Console(file=output), 80)
        )
        return output.getvalue()

    at_end = write("python").partition("AT THE END")[2]
    assert "(no Python stack)" in at_end and "cuBLAS workspace" in at_end
    assert "no stacks" not in write("python")
    assert 'The trace has no stacks (stacks="none")' in write("none")


@pytest.mark.parametrize(
    ("count", "text"),
    [
        *((0, "0 B"), (0.25, "0.25 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (-1280, "-1.25 KiB")),
        *((10 * 1024, "10.0 KiB"), (100 * 1024, "100 KiB"), (1023.4 * 1024, "1,023 KiB"), (1023.6 * 1024, "1.00 MiB")),
        *((2**40 - 1, "1.00 TiB"), (2**63, "8.00 EiB")),
    ],
)
def test_size_has_binary_unit_and_three_digits(count: float, text: str) -> None:
    assert units.size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((0, "0 s"), (0.0000042, "4.2 us"), (0.0123, "12.3 ms"), (12.34, "12.3 s"), (59.97, "1 min")),
        *((245, "4 min 5 s"), (3599.6, "1 h"), (7380, "2 h 3 min"), (86400 * 3 + 4 * 3600, "3 d 4 h")),
        (86400 * 365 * 49, "49 years"),
    ],
)
def test_duration_has_readable_units(seconds: float, text: str) -> None:
    assert units.duration(seconds) == text


def test_sparkline_and_share_of_edge_cases() -> None:
    assert units.sparkline([0, 7], 10) == "▁█"
    assert units.sparkline([0, 7], 10, plain=True) == "_#"
    assert units.sparkline([5] * 4, 10) == "█" * 4  # level, not empty
    assert units.sparkline([], 10) == ""
    spike = [0] * 1000
    spike[500] = 9
    assert units.sparkline(spike, 20).count("█") == 1
    assert (units.share(1, 0), units.share(1, 1000), units.share(45, 100)) == ("-", "<1 %", "45 %")
