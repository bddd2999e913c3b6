"""Comparison of the answers of two checkouts of this project to the same questions about the same traces.

    tools/same_answers OLD NEW [TRACE...]

OLD and NEW are folders of checkouts with compiled modules (tools/environment). Every command with ``--json`` is run on
every trace, and its output and exit status are compared. The default traces are those recorded by the tests of NEW
(build/recordings) and both corpora.

tools/same_answers.json lists renamed options and fields, and intended differences with their reasons. The exit status
is 1 if anything else differs.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
import os
import runpy
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
INTENDED = ROOT / "tools" / "same_answers.json"
QUESTIONS = {
    "diagnose": ["diagnose", "--json"],
    "leaks": ["leaks", "--json"],
    "leaks-fail": ["leaks", "--json", "--fail"],
    "leaks-since": ["leaks", "--json", "--since", "0"],
    "peak": ["peak", "--json"],
    "peak-reserved": ["peak", "--json", "--at", "peak:reserved"],
    "peak-role": ["peak", "--json", "--by", "role"],
    "peak-module": ["peak", "--json", "--by", "module"],
    "annotate": ["annotate", "--json"],
    "diff": ["diff", "--json"],
    "ranks": ["ranks", "--json", "--no-summaries"],
    "sites": ["sites", "--json"],
    "segments": ["segments", "--json"],
    "blocks": ["blocks", "--json"],
    "timeline": ["timeline", "--json"],
    "fragmentation": ["fragmentation", "--json"],
    "oom": ["oom", "--json"],
    "what-if": ["what-if", "--json"],
    "fit": ["fit", "--json"],
    "verify": ["verify", "--json"],
    "live": ["live", "--once", "--json"],
}
"""Arguments before the trace, in NEW's syntax. `diff` compares the trace with itself."""
TOLERANCE = 1e-9
"""Relative tolerance, for sums in another order, and absolute, for the ten decimals that older versions wrote."""


class Answer(NamedTuple):
    status: int
    output: Any
    """The parsed JSON, or the text if it is not JSON."""


class Difference(NamedTuple):
    question: str
    field: str
    """Path in the JSON without row numbers, or "exit status"."""
    trace: str
    old: Any
    new: Any


class Rules(NamedTuple):
    """Contents of tools/same_answers.json."""

    old_words: dict[str, list[str]]
    """Arguments of a question for OLD where they differ from NEW's."""
    renamed: dict[str, dict[str, str]]
    """By question ("*": any): a field of OLD ("findings[].bytes"), and the last part of its name in NEW."""
    intended: list[dict[str, str]]
    """Intended differences: patterns `question`, `field` and `trace`, and the `reason`."""

    def allows(self, difference: Difference) -> bool:
        return any(
            all(
                fnmatch.fnmatchcase(getattr(difference, part), rule.get(part, "*"))
                for part in ("question", "field", "trace")
            )
            for rule in self.intended
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="tools/same_answers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path, metavar="OLD", help="a checkout with compiled modules")
    parser.add_argument("new", type=Path, metavar="NEW", help="another checkout with compiled modules")
    parser.add_argument("traces", type=Path, nargs="*", metavar="TRACE")
    parser.add_argument("--questions", nargs="+", choices=QUESTIONS, default=list(QUESTIONS), help="only these")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only every N-th trace")
    options = parser.parse_args()
    traces = [path.resolve() for path in options.traces or recorded_traces(options.new)][:: options.every]
    if not traces:
        parser.error(f"there are no recordings in {options.new}: run its tests first, or name traces")
    rules = Rules(**json.loads(INTENDED.read_text()))
    pairs = [(question, trace) for trace in traces for question in options.questions]
    old = ask(
        options.old,
        [
            [*rules.old_words.get(question, QUESTIONS[question]), *paths_of(question, trace)]
            for question, trace in pairs
        ],
    )
    new = ask(options.new, [[*QUESTIONS[question], *paths_of(question, trace)] for question, trace in pairs])
    differences: dict[tuple[str, str], list[Difference]] = defaultdict(list)
    intended = 0
    for number, ((question, trace), before, after) in enumerate(zip(pairs, old, new, strict=True)):
        if sys.stderr.isatty():
            print(f"\r{number + 1:,} of {len(pairs):,} answers", end="", file=sys.stderr)
        for field, old_value, new_value in compared(before, after, question, rules):
            difference = Difference(question, field, str(trace), old_value, new_value)
            if rules.allows(difference):
                intended += 1
            else:
                differences[question, field].append(difference)
    for (question, field), field_differences in sorted(differences.items()):
        first = field_differences[0]
        print(f"{question}: {field}: {len(field_differences):,} times, first in {first.trace}")
        print(f"    old {shortened(first.old)}\n    new {shortened(first.new)}")
    print(
        f"{len(pairs):,} answers about {len(traces):,} traces: {sum(map(len, differences.values())):,} differences, "
        f"{intended:,} intended"
    )
    return 1 if differences else 0


def recorded_traces(checkout: Path) -> list[Path]:
    corpora = [*(checkout / "tests/corpus/hostile").iterdir(), *(checkout / "tests/corpus/reader").iterdir()]
    return [*sorted((checkout / "build/recordings").rglob("*.alloctrace")), *sorted(corpora)]


def paths_of(question: str, trace: Path) -> list[str]:
    return [str(trace)] * (2 if question == "diff" else 1)


def ask(checkout: Path, questions: list[list[str]]) -> Iterator[Answer]:
    """Start a process of this checkout; return an iterator over its answers."""
    environment = {**os.environ, "PYTHONPATH": str(checkout.resolve()), "COLUMNS": "100", "PYTHONWARNINGS": "ignore"}
    with tempfile.TemporaryFile("w+") as file:
        json.dump(questions, file)
        file.seek(0)
        process = subprocess.Popen(
            [sys.executable, __file__, "--answer"], stdin=file, stdout=subprocess.PIPE, env=environment, text=True
        )
    assert process.stdout is not None
    return (Answer(**json.loads(line)) for line in process.stdout)


def answer_all(file: IO[str]) -> None:
    """Answer the questions in a JSON file, one line of JSON each. Each question runs in a separate fork."""
    questions = json.load(file)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)
    run_command(questions[0])  # imports the modules once, for all forks
    for question in questions:
        with tempfile.TemporaryFile() as output:
            child = os.fork()
            if child == 0:
                os.dup2(output.fileno(), 1)
                status = run_command(question)
                sys.stdout.flush()
                os._exit(status)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            output.seek(0)
            text = output.read().decode(errors="backslashreplace")
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        print(json.dumps({"status": status, "output": value}), file=answers, flush=True)


def run_command(arguments: list[str]) -> int:
    sys.argv = ["analyze", *arguments]
    try:
        runpy.run_module("pytorch_alloctrace.analyze", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    return 0


def compared(old: Answer, new: Answer, question: str, rules: Rules) -> Iterator[tuple[str, Any, Any]]:
    """Yield field, old value and new value of each difference."""
    if old.status != new.status:
        yield "exit status", old.status, new.status
    renamed = {**rules.renamed.get("*", {}), **rules.renamed.get(question, {})}
    # Older versions print rows as a list, newer versions in the field `rows` of an object.
    output = {"rows": old.output} if isinstance(old.output, list) and isinstance(new.output, dict) else old.output
    yield from differing("", with_new_names(output, "", renamed), new.output)


def with_new_names(value: Any, field: str, renamed: dict[str, str]) -> Any:
    if isinstance(value, list):
        return [with_new_names(item, f"{field}[]", renamed) for item in value]
    if not isinstance(value, dict):
        return value
    named = {}
    for name, item in value.items():
        path = f"{field}.{name}".lstrip(".")
        named[renamed.get(path, renamed.get(f"*.{name}", name))] = with_new_names(item, path, renamed)
    return named


def differing(field: str, old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(old, dict) and isinstance(new, dict):
        for name in [*old, *(name for name in new if name not in old)]:
            path = f"{field}.{name}".lstrip(".")
            if name not in old or name not in new:
                yield path, old.get(name, "absent"), new.get(name, "absent")
            else:
                yield from differing(path, old[name], new[name])
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for before, after in zip(old, new, strict=True):
            yield from differing(f"{field}[]", before, after)
    elif (
        isinstance(old, float)
        and isinstance(new, (int, float))
        and math.isclose(old, new, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    ):
        return
    elif old != new or type(old) is not type(new):
        yield field, old, new


def shortened(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else f"{text[:200]}... ({len(text):,} characters)"


if __name__ == "__main__":
    if sys.argv[1:] == ["--answer"]:
        answer_all(sys.stdin)
    else:
        raise SystemExit(main())
