"""The help of each verb, and which options it refuses; every example of the help is run."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest
from marked_programs import run_analyze
from running import needs_cuda_build, run_python, with_cuda

from pytorch_alloctrace.analyze import __main__ as command_line
from pytorch_alloctrace.analyze.catalogue import ALWAYS, COMMON, VERBS, VERDICT
from pytorch_alloctrace.analyze.options import PROGRAM, general_parser

PROGRAM_WITH_ALL = """
import sys, torch, pytorch_alloctrace as alloctrace

MIB = 2**20
kept = []

def step(size):
    kept.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
    torch.empty(20 * MIB, dtype=torch.uint8, device="cuda")

alloctrace.enable(sys.argv[1], devices=("cuda",))
for number in range(25):
    step(int(sys.argv[2]) * MIB)
    alloctrace.step()
try:
    torch.empty(100 << 30, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError:
    pass
alloctrace.disable()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Has the traces that the examples name."""
    made = tmp_path_factory.mktemp("command_line")
    (made / "program.py").write_text(PROGRAM_WITH_ALL)
    for name, size in (("run", 2), ("before", 2), ("after", 6)):
        command = with_cuda([sys.executable, "program.py", f"{name}.alloctrace", str(size)])
        run_python(made, command, check=True, timeout=120, environment={})
    return made


def help_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        command_line.main(arguments)
    assert ended.value.code == 0
    return capsys.readouterr().out


def examples(text: str) -> list[str]:
    return [line.split(PROGRAM, 1)[1] for line in text.splitlines() if line.startswith(f"  {PROGRAM}")]


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_a_verb_has_its_options_alone(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(capsys, verb, "--help")
    assert text == help_of(capsys, "run.alloctrace", "--help", verb)
    shown = set(re.findall(r"^  --([a-z-]+)", text, re.MULTILINE))
    assert shown == {*ALWAYS, *VERBS[verb].options}
    assert examples(text) and all(line.split()[0] == verb for line in examples(text))
    assert ("mark:NAME" in text) == bool({"at", "since", "until"} & shown)
    sentences = re.split(r"(?<=[^(]\.)\s", VERBS[verb].text)
    assert len(sentences) == 2, sentences


def test_no_verb_is_diagnose(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_analyze(folder, "diagnose", "run.alloctrace") == run_analyze(folder, "run.alloctrace")
    assert help_of(capsys, "diagnose", "--help").startswith(f"usage: {PROGRAM} [diagnose] TRACE [options]")


def test_help_of_all_is_short(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(capsys, "--help")
    shown = set(re.findall(r"^  --([a-z-]+)", text, re.MULTILINE))
    assert shown == set(COMMON) and "mark:NAME" in text
    verbs = text[text.index("verbs (") : text.index("a moment (")]
    assert [line.split()[0] for line in verbs.splitlines()[2:-1]] == list(VERBS)
    assert max(map(len, verbs.splitlines())) < 80
    assert [line.split()[0] for line in examples(text)] == ["run.alloctrace", *VERBS]


@needs_cuda_build
@pytest.mark.parametrize("verb", [None, *VERBS])
def test_examples_run(verb: str | None, folder: Path) -> None:
    for arguments, _ in (VERDICT if verb is None else VERBS[verb]).examples:
        words = shlex.split(arguments.split(" > ")[0])
        status = 1 if "--fail" in words or "--fail-above" in words else 0
        assert run_analyze(folder, *words, status=status), arguments


def test_an_option_that_a_verb_cannot_use_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    values = {"at": "end", "since": "0", "until": "end", "by": "line", "points": "9", "fail-above": "1", "top": "1"}
    values |= {"device": "cpu", "user-path": "."}
    options = {option for verb in VERBS.values() for option in verb.options} - {"csv"}
    assert {"fail", *values} <= options <= {"fail", "all-frames", *values}
    for name, verb in ((None, VERDICT), *VERBS.items()):
        for option in options - set(verb.options):
            given = [f"--{option}", *([values[option]] if option in values else [])]
            with pytest.raises(SystemExit) as ended:
                command_line.main([*([name] if name else []), "missing.alloctrace", *given])
            told = capsys.readouterr().err.splitlines()[-1]
            assert ended.value.code == 2 and f"error: --{option} belongs to " in told, told
            assert told.endswith(f", not to {name or 'the verdict'}")
            assert all(taker in told for taker, other in VERBS.items() if option in other.options)


def test_every_option_is_one_of_a_verb() -> None:
    known = set(vars(general_parser().parse_args(["run.alloctrace"]))) - {"verb", "trace", "other"}
    taken = {*ALWAYS, *VERDICT.options, *(option for verb in VERBS.values() for option in verb.options)}
    assert known == {name.replace("-", "_") for name in taken}


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("diff", "a", "--since", "1", "--at", "peak"), "not --at"),
        (("verify", "a", "--csv"), "has no table"),
        (("a", "--csv"), "needs a verb"),
        (("leaks", "a", "--device", "cpu", "--device", "cuda:0"), "give --device once"),
    ],
)
def test_what_does_not_go_together(arguments: tuple[str, ...], part: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command_line.main(arguments)
    assert ended.value.code == 2 and part in capsys.readouterr().err.splitlines()[-1]
