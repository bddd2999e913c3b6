"""The help of each verb, which options it refuses, and what it takes to add one; every example of the help is run."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest
from made_up_ranks import Rank, write_ranks
from marked_programs import run_analyze
from running import ROOT, run_python, with_cuda

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.analyze import command_line
from pytorch_alloctrace.analyze.command_line import PROGRAM
from pytorch_alloctrace.analyze.verb import Exit, Verb
from pytorch_alloctrace.analyze.verbs import VERBS

PROGRAM_WITH_ALL = """
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
    """Has the traces that the examples name, and the program that they do."""
    made = tmp_path_factory.mktemp("command_line")
    (made / "models").mkdir()
    (made / "models/train.py").write_text(PROGRAM_WITH_ALL)
    for name, size in (("run", 2), ("before", 2), ("after", 6)):
        command = with_cuda([sys.executable, "models/train.py", f"{name}.alloctrace", str(size)])
        run_python(made, command, check=True, timeout=600, environment={})
    write_ranks(made / "traces", 2, rank1=Rank(1, 2, leaks_from=10))
    return made


NAMES = [*VERBS]
ALWAYS = {"json", "spool", "width"}
"""Options of every verb."""


def help_of(*arguments: str) -> str:
    return run_analyze(ROOT, *arguments)


def error_of(*arguments: str) -> str:
    return run_analyze(ROOT, *arguments, status=Exit.BAD_INPUT).splitlines()[-1]


def options_of(text: str) -> set[str]:
    return set(re.findall(r"^  --([a-z-]+)", text, re.MULTILINE))


@pytest.fixture
def at_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.parametrize("verb", VERBS.values(), ids=NAMES)
def test_help_of_a_verb(verb: Verb, at_80_columns: None) -> None:
    text = help_of(verb.name, "--help")
    assert text == help_of("run.alloctrace", "--help", verb.name)
    assert max(map(len, text.splitlines())) <= 80
    assert options_of(text) >= ALWAYS
    assert " ".join(verb.description.split()) in " ".join(text.split())
    assert text.count(f"\n  {PROGRAM} ") == len(verb.examples)
    assert ("mark:NAME" in text) == bool({"at", "since", "until"} & options_of(text))
    assert all(action.help for action in command_line.parser_of(verb)._actions)


def test_an_option_takes_a_value_in_all_verbs_or_in_none() -> None:
    # While no verb is known, the first that has an option says whether a value follows it.
    taken: dict[str, set[bool]] = {}
    for verb in VERBS.values():
        for option, action in command_line.parser_of(verb)._option_string_actions.items():
            taken.setdefault(option, set()).add(action.nargs is None)
    assert [option for option, said in taken.items() if len(said) > 1] == []
    assert taken["--at"] == {True} and taken["--json"] == {False}


@pytest.mark.parametrize("verb", ["diagnose", "sites", "oom"])
def test_a_command_imports_its_own_verb_alone(verb: str, folder: Path) -> None:
    code = (
        "import sys; sys.orig_argv = ['python', '-m', 'pytorch_alloctrace', *sys.argv[1:]]\n"
        "from pytorch_alloctrace.__main__ import main\n"
        "assert main(sys.argv[1:]) == 0\n"
        "print(*(name for name in sys.modules if name.startswith('pytorch_alloctrace.')))"
    )
    command = [sys.executable, "-c", code, "run.alloctrace", verb, "--json"]
    done = run_python(folder, command, check=True, timeout=600, environment={})
    imported = {name.removeprefix("pytorch_alloctrace.") for name in done.stdout.splitlines()[-1].split()}
    assert {f"analyze.{name.replace('-', '_')}" for name in NAMES} & imported == {f"analyze.{verb}"}
    assert not [name for name in imported if name.startswith(("recording", "analysis.ranks", "report.page"))]
    assert "analysis.what_if" not in imported, "the model of torch's allocator, which none of these runs"


def test_general_help_and_version(at_80_columns: None) -> None:
    text = help_of("--help")
    assert text == help_of("run.alloctrace", "-h")
    assert max(map(len, text.splitlines())) <= 80
    listed = re.findall(r"^  ([a-z-]+)  +\S", text[text.index("verbs (") : text.index("examples:")], re.MULTILINE)
    assert listed == ["run", "build", "cost", *NAMES]
    assert help_of("--version") == f"pytorch_alloctrace {alloctrace.__version__}\n"


def test_no_verb_is_diagnose_and_words_may_stand_in_any_order(folder: Path) -> None:
    assert run_analyze(folder, "diagnose", "run.alloctrace") == run_analyze(folder, "run.alloctrace")
    assert help_of("diagnose", "--help").startswith(f"usage: {PROGRAM} [diagnose] TRACE [options]")
    expected = run_analyze(folder, "peak", "run.alloctrace", "--at", "peak")
    assert run_analyze(folder, "--at", "peak", "run.alloctrace", "peak") == expected
    expected = run_analyze(folder, "diff", "before.alloctrace", "after.alloctrace", "--top", "1")
    assert run_analyze(folder, "before.alloctrace", "diff", "--top", "1", "after.alloctrace") == expected


@pytest.mark.parametrize("verb", VERBS.values(), ids=NAMES)
def test_examples_run(verb: Verb, folder: Path) -> None:
    for arguments, _ in verb.examples:
        words = shlex.split(arguments.split(" > ")[0])
        if verb.name == "serve":  # does not end by itself: tests/report/test_serve.py
            assert command_line.parse(words)[0] is verb
            continue
        status = Exit.FOUND if "--fail" in words or "--fail-above" in words else Exit.OK
        assert run_analyze(folder, *words, status=status), arguments


def test_an_option_that_a_verb_does_not_take_is_refused() -> None:
    taken = {verb.name: options_of(help_of(verb.name, "--help")) for verb in VERBS.values()}
    for option in set().union(*taken.values()):
        takers = [name for name in NAMES if option in taken[name]]
        for name in set(NAMES) - set(takers):
            error = error_of(name, "missing.alloctrace", f"--{option}=1")
            assert f"error: {name} does not take --{option}: " in error, error
            *named, _ = re.findall(r"[a-z-]+", error.rpartition(": ")[2].replace("only ", "").replace(" and ", " "))
            assert named == takers, error


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("diff", "a", "--since", "1", "--at", "peak"), "not --at"),
        (("diff", "a", "b", "c"), "not 3"),
        (("diff", "a", "b", "--since", "peak"), "--at POSITION"),
        (("leaks", "a", "--device", "cpu", "--device", "cuda:0"), "give it once"),
        (("leaks", "a", "--json", "--csv"), "not allowed with"),
        (("leaks", "a", "b"), "leaks takes one trace, not 'b' too"),
        (("leaks", "a", "--fai"), "there is no option --fai"),
        (("peak", "a", "--in", "training", "--since", "1"), "--in is a range already"),
        (("peak", "a", "--by", "colour"), "invalid choice: 'colour'"),
        (("sites", "a", "--by", "age"), "invalid choice"),
        (("timeline", "a", "--by", "line"), "invalid choice"),
        (("peak", "a", "--depth", "2"), "--depth counts the parts of a module's name"),
        (("peak", "a", "--tree", "--by", "phase"), "not --by phase"),
        (("peak", "a", "--all-frames", "--by", "age"), "not --by age"),
        (("peak", "a", "--all-frames", "--csv"), "use --json"),
        (("serve", "a", "--port", "70000"), "up to 65535"),
        (("serve", "a", "--port", "x"), "--port"),
        (("leaks",), "required: TRACE"),
        ((), "name a trace"),
    ],
)
def test_what_does_not_go_together(arguments: tuple[str, ...], part: str) -> None:
    assert part in error_of(*arguments)


@pytest.mark.parametrize("arguments", [("leeks",), ("leeks", "run.alloctrace")])
def test_an_unknown_verb_is_one_line(arguments: tuple[str, ...]) -> None:
    error = run_analyze(ROOT, *arguments, status=Exit.BAD_INPUT)
    assert error.count("\n") == 1 and "'leeks' is neither a trace nor a verb (diagnose, leaks, " in error
