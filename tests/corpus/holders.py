"""Scores the holders that leaks are said to have, on the programs of score.py that are in holders.json.

    python tests/corpus/score.py record TRACES --only leak_
    python tests/corpus/holders.py TRACES [--json RESULT]

right      the holder of a leak at a marked line is one that holders.json accepts
near       it holds the memory as well, but is not what to clear
wrong      another is named
silent     the leak is found, no holder is named
missed     the leak is not found: nothing to say of its holder
"""

from __future__ import annotations

import argparse
import collections
import json
import re
from pathlib import Path

from score import HERE, marked_lines

RESULTS = ("right", "near", "wrong", "silent", "missed")


def said_of(trace: Path, program: Path) -> tuple[bool, list[str]]:
    """Whether the leak is found, and what is said to hold it."""
    from pytorch_alloctrace.analysis.summary import summarize
    from pytorch_alloctrace.reading.recorded import RecordedTrace
    from pytorch_alloctrace.report.verdict import diagnosis

    marks = marked_lines(program)
    leaks = [one.leak for one in diagnosis(summarize(RecordedTrace(trace))) if one.leak is not None]
    ours = [one for one in leaks if Path(one.line.filename).name == program.name and one.line.line in marks]
    holders = [one.holder for one in ours or leaks[:1] if one.holder is not None]
    return bool(leaks), [text for one in holders for text in (*one.names, one.path)]


def forms(text: str) -> list[str]:
    """What is said, without files and lines, which are no names of a holder; and as others would write it."""
    plain = re.sub(r" (at|of|in) \S+\.py(:\d+)?", "", text)
    name, _, root = plain.partition(", ")
    name = name.partition(" (")[0]
    function = re.match(r"local of (\S+)\(\)", root)
    if function:
        return [plain, f"local {name} of {function[1]}", f"{function[1]}().{name}"]
    return [plain, f"global {name}"] if root.startswith("global") else [plain]


def judged(texts: list[str], expected: dict[str, list[str]]) -> str:
    """One of RESULTS, of a leak that was found."""
    if not texts:
        return "silent"
    plain = [form.lower() for text in texts for form in forms(text)]
    for result, words in (("right", expected["accept"]), ("near", expected.get("near", []))):
        if any(word in text for word in words for text in plain):
            return result
    return "wrong"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--expected", type=Path, default=HERE / "holders.json")
    options = parser.parse_args()
    everything = json.loads(options.expected.read_text())
    rows = []
    counts: dict[tuple[str, str, str], collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for trace in sorted(options.folder.glob("*leak_*.alloctrace")):
        corpus, stem, device, end = trace.stem.rsplit("-", 3)
        expected = everything.get(stem) or everything.get(f"{corpus}/{stem}") or everything.get(f"{corpus}/{stem}.py")
        if expected is None:
            continue
        found, texts = said_of(trace, HERE / corpus / f"{stem}.py")
        result = judged(texts, expected) if found else "missed"
        rows.append({"program": stem, "corpus": corpus, "device": device, "end": end, "result": result, "said": texts})
        counts[corpus, device, end][result] += 1
        print(f"{result:7} {stem:34} {device:4} {end:6} {texts[0] if texts else ''}", flush=True)
    for (corpus, device, end), counter in sorted(counts.items()):
        numbers = ", ".join(f"{counter[result]} {result}" for result in RESULTS if counter[result])
        print(f"{corpus:20} {device:4} {end:6} {numbers} of {sum(counter.values())}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
