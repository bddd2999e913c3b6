"""The help of each command, its examples and the arguments that it refuses."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import every_output
import pytest
from command_line import TRACE_COMMANDS
from made_up_ranks import Rank, write_ranks
from marked_programs import run_analyze
from running import ROOT, run_python, with_cuda

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace import parser
from pytorch_alloctrace.analyze.trace_command import Exit
from pytorch_alloctrace.parser import COMMANDS, PROGRAM

TRAINING_PROGRAM = """
import sys, torch, pytorch_alloctrace as alloctrace

MIB = 2**20
kept = []

def step(size):
    kept.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
    torch.empty(20 * MIB, dtype=torch.uint8, device="cuda")

alloctrace.enable(sys.argv[1], devices=("cuda",))
for number in range(25):
    if number % 10 == 0:
        epoch = alloctrace.region("epoch")
        epoch.__enter__()
    with alloctrace.region("validation" if number in (5, 15) else "training"):
        step(int(sys.argv[2]) * MIB)
    alloctrace.step()
    if number % 10 == 9:
        epoch.__exit__(None, None, None)
try:
    torch.empty(100 << 30, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError:
    pass
alloctrace.disable()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with the traces and the program that the examples of the help name."""
    folder = tmp_path_factory.mktemp("command_line")
    (folder / "models").mkdir()
    (folder / "models/train.py").write_text(TRAINING_PROGRAM)
    for name, size in (("run", 2), ("before", 2), ("after", 6)):
        command = with_cuda([sys.executable, "models/train.py", f"{name}.alloctrace", str(size)])
        run_python(folder, command, check=True, timeout=600, environment={})
    write_ranks(folder / "traces", 2, rank1=Rank(1, 2, leaks_from=10))
    return folder


COMMON_OPTIONS = {"json", "spool", "width"}
"""Options of every command."""


def read_help(*arguments: str) -> str:
    return run_analyze(ROOT, *arguments)


def read_error(*arguments: str) -> str:
    return run_analyze(ROOT, *arguments, status=Exit.BAD_INPUT).splitlines()[-1]


def find_options(text: str) -> set[str]:
    return set(re.findall(r"^  --([a-z-]+)", text, re.MULTILINE))


@pytest.fixture
def at_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.parametrize("name", TRACE_COMMANDS)
def test_help_explains_every_option_in_80_columns(name: str, at_80_columns: None) -> None:
    command = TRACE_COMMANDS[name]

    text = read_help(name, "--help")

    assert max(map(len, text.splitlines())) <= 80
    assert text.startswith(f"usage: {PROGRAM} {name} {command.traces} [options]")
    assert find_options(text) >= COMMON_OPTIONS
    assert " ".join(command.description.split()) in " ".join(text.split())
    assert text.count(f"\n  {PROGRAM} ") == len(command.examples)
    assert ("mark:NAME" in text) == bool({"at", "since", "until"} & find_options(text))
    for option in find_options(text):
        assert re.search(rf"--{option}( [A-Z]+|,|\n|  )[^-]*[a-z]", text), f"{option} is not explained"


@pytest.mark.parametrize("name", ["diagnose", "sites", "oom"])
def test_command_imports_only_its_own_module(name: str, folder: Path) -> None:
    code = (
        "import sys; sys.orig_argv = ['python', '-m', 'pytorch_alloctrace', *sys.argv[1:]]\n"
        "from pytorch_alloctrace.__main__ import main\n"
        "assert main(sys.argv[1:]) == 0\n"
        "print(*(name for name in sys.modules if name.startswith('pytorch_alloctrace.')))"
    )
    command = [sys.executable, "-c", code, name, "run.alloctrace", "--json"]

    process = run_python(folder, command, check=True, timeout=600, environment={})

    imported = {name.removeprefix("pytorch_alloctrace.") for name in process.stdout.splitlines()[-1].split()}
    own = COMMANDS[name][0].partition(":")[0]
    assert {target.partition(":")[0] for target, _ in COMMANDS.values()} & imported == {own}
    assert not [name for name in imported if name.startswith(("recording", "analysis.ranks", "report.page"))]
    # Advice on failed allocations and fragmentation needs the model of torch's allocator.
    assert name != "sites" or "analysis.what_if" not in imported


def test_unknown_device_is_refused_in_one_line(folder: Path) -> None:
    arguments = {"diff": ["--since", "step:3"], "annotate": ["models/train.py"], "export": ["--to", "collapsed"]}
    with_device = [name for name in TRACE_COMMANDS if "device" in find_options(read_help(name, "--help"))]
    assert {"diagnose", "leaks", "peak", "sites", "timeline", "oom"} <= {*with_device}

    for name in with_device:
        error = run_analyze(folder, name, "run.alloctrace", *arguments.get(name, []), "--device", "cuda:7", status=2)
        assert error.count("\n") == 1 and "'cuda:7'" in error, name


def test_every_command_is_tested_with_hostile_traces_and_answers_a_question() -> None:
    outputs = every_output.all_outputs(ROOT, ROOT)
    questions = (ROOT / "docs/questions.md").read_text()

    assert [name for name in TRACE_COMMANDS if not any(f"{output}-".startswith(f"{name}-") for output in outputs)] == []
    unnamed = {name for name in TRACE_COMMANDS if f"`alloctrace {name} " not in questions}
    assert unnamed == {"diagnose"}, "diagnose is the command without a name"


def test_general_help_lists_every_command_in_80_columns(at_80_columns: None) -> None:
    text = read_help("--help")
    assert text == read_help("-h")
    assert max(map(len, text.splitlines())) <= 80
    listed = re.findall(r"^  ([a-z-]+)  +\S", text[text.index("commands (") : text.index("examples:")], re.MULTILINE)
    assert listed == [*COMMANDS] and {"run", "build", "cost"} < {*listed}
    assert read_help("--version") == f"pytorch_alloctrace {alloctrace.__version__}\n"


def test_command_defaults_to_diagnose_or_ranks_with_options_anywhere(folder: Path) -> None:
    assert run_analyze(folder, "diagnose", "run.alloctrace") == run_analyze(folder, "run.alloctrace")
    assert run_analyze(folder, "--top", "1", "run.alloctrace") == run_analyze(folder, "run.alloctrace", "--top", "1")
    assert run_analyze(folder, "ranks", "traces") == run_analyze(folder, "traces/")
    traces = sorted(str(path) for path in (folder / "traces").glob("*.alloctrace"))
    assert len(traces) == 2 and run_analyze(folder, "ranks", *traces) == run_analyze(folder, *traces)
    expected = run_analyze(folder, "diff", "before.alloctrace", "after.alloctrace", "--top", "1")
    assert run_analyze(folder, "diff", "before.alloctrace", "--top", "1", "after.alloctrace") == expected


@pytest.mark.parametrize(("name", "argument"), [("leaks", "./leaks"), ("-x", "./-x")])
def test_trace_is_read_when_its_name_is_a_command_or_an_option(
    name: str, argument: str, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes((folder / "run.alloctrace").read_bytes())

    text = run_analyze(tmp_path, argument)

    assert text == run_analyze(tmp_path, "diagnose", "--", name) == run_analyze(tmp_path, "--", name)
    assert "Next: " in text


def test_number_of_rows_does_not_change_the_format_of_the_diagnosis(folder: Path) -> None:
    for name in ("--markdown", "--brief"):
        assert run_analyze(folder, "diagnose", "run.alloctrace", name) == run_analyze(
            folder, "diagnose", "run.alloctrace", name, "--verbose", "--top", "5"
        )


@pytest.mark.parametrize("name", TRACE_COMMANDS)
def test_examples_of_help_exit_with_expected_status(name: str, folder: Path) -> None:
    for arguments, _ in TRACE_COMMANDS[name].examples:
        command_line = shlex.split(arguments.split(" > ")[0])
        if name == "serve":  # runs until interrupted: tests/report/test_serve.py
            assert type(parser.parse(command_line)[0]) is type(TRACE_COMMANDS[name])
            continue
        status = Exit.FOUND if "--fail" in command_line or "--fail-above" in command_line else Exit.OK
        assert run_analyze(folder, *command_line, status=status), arguments


@pytest.mark.parametrize("name", COMMANDS)
def test_unknown_option_is_refused_in_one_line_that_names_the_help(name: str) -> None:
    error = run_analyze(ROOT, name, "--colour=1", *["a"] * (name in TRACE_COMMANDS), status=Exit.BAD_INPUT)

    assert error == f"{PROGRAM} {name}: error: unrecognized arguments: --colour=1 (see {PROGRAM} {name} --help)\n"


@pytest.mark.parametrize(
    "arguments", [("run.alloctrace", "leaks", "--fail"), ("--json", "run.alloctrace", "leaks"), ("peak", "a", "leaks")]
)
def test_command_after_trace_is_refused_with_the_correct_order(arguments: tuple[str, ...]) -> None:
    error = run_analyze(ROOT, *arguments, status=Exit.BAD_INPUT)

    assert error.count("\n") == 1 and f"the command comes first: {PROGRAM} leaks " in error


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("diff", "a", "--since", "1", "--at", "peak"), "not --at"),
        (("diff", "a", "b", "c"), "not 3"),
        (("diff", "a", "b", "--since", "peak"), "--at POSITION"),
        (("leaks", "a", "--device", "cpu", "--device", "cuda:0"), "give it once"),
        (("leaks", "a", "--json", "--csv"), "not allowed with"),
        (("leaks", "a", "b"), "leaks: error: give one trace, not 'b' too"),
        (("leaks", "a", "--fai"), "unrecognized arguments: --fai"),
        (("peak", "a", "--in", "training", "--since", "1"), "--in is a range already"),
        (("peak", "a", "--by", "colour"), "invalid choice: 'colour'"),
        (("sites", "a", "--by", "age"), "invalid choice"),
        (("timeline", "a", "--by", "line"), "invalid choice"),
        (("peak", "a", "--depth", "2"), "--depth counts the parts of a module's name"),
        (("peak", "a", "--tree", "--by", "phase"), "omit --by phase"),
        (("peak", "a", "--all-frames", "--by", "age"), "omit --by age"),
        (("peak", "a", "--all-frames", "--csv"), "use --json"),
        (("serve", "a", "--port", "70000"), "up to 65535"),
        (("serve", "a", "--json"), "leave out --json"),
        (("serve", "a", "--port", "x"), "--port"),
        (("leaks",), "required: TRACE"),
    ],
)
def test_conflicting_arguments_are_refused(arguments: tuple[str, ...], part: str) -> None:
    assert part in read_error(*arguments)


@pytest.mark.parametrize("arguments", [(), ("help",), ("--help",)])
def test_help_is_shown_without_arguments_too(arguments: tuple[str, ...]) -> None:
    assert "commands (COMMAND --help shows the options of each)" in run_analyze(ROOT, *arguments)


@pytest.mark.parametrize("arguments", [("leeks",), ("leeks", "run.alloctrace")])
def test_unknown_command_is_refused_in_one_line(arguments: tuple[str, ...]) -> None:
    error = run_analyze(ROOT, *arguments, status=Exit.BAD_INPUT)

    assert error.count("\n") == 1 and "'leeks' is neither a trace nor a command (run, build, cost, diagnose, " in error
