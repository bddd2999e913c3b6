"""Mutation tests: puts small defects into the sources, one at a time, and reports which of them the tests catch.

The defects are in tools/mutants.json. Each is applied in a clone under build/mutants, and the tests run until the first
failure: the tests that ``tools/test --changed`` chooses and then, for defects that survived, all tests. ``--folders``
runs only the tests of the folders that the defect names, for commits older than ``--changed``.

Results are added to benchmarks/results/mutants.json after each test run, by commit. Defects that have a result are
skipped, so the same command continues an interrupted run.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
DEFECTS = ROOT / "tools" / "mutants.json"
RESULTS = ROOT / "benchmarks" / "results" / "mutants.json"
CLONES = ROOT / "build" / "mutants"


class Defect(NamedTuple):
    name: str
    file: str
    old: str
    """Text to replace, which occurs once in the file."""
    new: str
    effect: str
    """Effect on a user."""
    tests: list[str]
    """Test folders for this file."""


class Outcome(NamedTuple):
    failed: str
    """The first test that failed, or ""."""
    seconds: float
    is_complete: bool = True
    """False if the limit was reached before a test failed."""


class CannotTestError(Exception):
    """The tests could not be run; the message is the reason."""


def git(folder: Path, *arguments: str) -> str:
    result = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise CannotTestError(result.stderr.strip())
    return result.stdout.strip()


def clone_of(commit: str) -> Path:
    """Return a clone at that commit, without changes but with earlier build outputs."""
    clone = CLONES / commit
    if not clone.exists():
        git(ROOT, "clone", "--quiet", "--no-checkout", str(ROOT), str(clone))
        git(clone, "checkout", "--quiet", "--detach", commit)
    git(clone, "checkout", "--quiet", "--", ".")
    return clone


def apply(defect: Defect, clone: Path) -> None:
    path = clone / defect.file
    text = path.read_text()
    if text.count(defect.old) != 1:
        raise CannotTestError(f"the old text of {defect.name} occurs {text.count(defect.old)} times in {defect.file}")
    path.write_text(text.replace(defect.old, defect.new))


def run_tests(clone: Path, arguments: list[str], limit: float) -> Outcome:
    """Run tools/test until the first failure or the limit in seconds."""
    log = clone / "build" / "mutants.log"
    log.parent.mkdir(exist_ok=True)
    start = time.monotonic()
    with log.open("w") as file:
        process = subprocess.Popen(
            ["tools/test", *arguments, "-x", "-q", "--no-loadscope-reorder"],
            cwd=clone,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return Outcome("", limit, is_complete=False)
    seconds = round(time.monotonic() - start, 1)
    output = log.read_text(errors="replace")
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", output, flags=re.M)
    if status != 0 and failed is None and not re.search(r"no tests ran|^\d+ deselected", output, flags=re.M):
        raise CannotTestError(" | ".join(output.strip().splitlines()[-5:]))
    return Outcome(failed[1] if failed else "", seconds)


def build(clone: Path) -> None:
    result = subprocess.run(["tools/environment"], cwd=clone, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise CannotTestError(" | ".join(result.stderr.strip().splitlines()[-5:]))


def affected_tests(clone: Path, first: set[str]) -> list[str]:
    """Return the files that ``tools/test --changed`` chooses in the clone, with those in `first` at the beginning."""
    command = [sys.executable, "tests/support/affected_tests.py", "--base", "HEAD"]
    result = subprocess.run(command, cwd=clone, capture_output=True, text=True, check=False)
    if not result.stdout:
        raise CannotTestError(" | ".join(["no tests to run", *result.stderr.strip().splitlines()[-5:]]))
    return sorted(result.stdout.split(), key=lambda file: file not in first)


def examine(defect: Defect, clone: Path, by: str, limit: float, first: set[str]) -> Outcome:
    """Put the defect into the clone, build it, and run tests. A test that fails must pass without the defect."""
    git(clone, "checkout", "--quiet", "--", ".")
    apply(defect, clone)
    try:
        build(clone)
        tests = {"all": [], "folders": [f"tests/{folder}" for folder in defect.tests]}
        outcome = run_tests(clone, tests[by] if by in tests else affected_tests(clone, first), limit)
    finally:
        git(clone, "checkout", "--quiet", "--", ".")
    if outcome.failed:
        build(clone)
        if run_tests(clone, [outcome.failed.partition("[")[0]], limit).failed:
            raise CannotTestError(f"{outcome.failed} fails without the defect, too")
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools/mutants", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="some of the defects (default: all)")
    parser.add_argument("--commit", default="HEAD", metavar="REV", help="commit to change (default: %(default)s)")
    parser.add_argument("--folders", action="store_true", help="run the tests of the defect's folders only")
    parser.add_argument("--limit", type=float, default=600, metavar="SECONDS", help="time for a test run (%(default)s)")
    options = parser.parse_args()
    defects = [Defect(**fields) for fields in json.loads(DEFECTS.read_text())]
    if unknown := set(options.names) - {defect.name for defect in defects}:
        parser.error(f"no such defect: {', '.join(sorted(unknown))}")
    commit = git(ROOT, "rev-parse", "--short=7", options.commit)
    clone = clone_of(commit)
    errors = 0
    # The first pass runs the affected tests for each defect; the second pass runs all tests for the survivors.
    for is_second, defect in itertools.product((False,) if options.folders else (False, True), defects):
        results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        commit_results = results.setdefault(commit, {})
        outcomes = commit_results.get(defect.name, {})
        is_open = (
            "seconds_of_all" not in outcomes and outcomes.get("caught_by", "") is None if is_second else not outcomes
        )
        if not is_open or (options.names and defect.name not in options.names):
            continue
        by = "all" if is_second else "folders" if options.folders else "changed"
        # Tests that caught the defect in another commit run first, since the run ends with the first failure.
        first = {other[defect.name]["test"].partition("::")[0] for other in results.values() if defect.name in other}
        try:
            outcome = examine(defect, clone, by, options.limit * (3 if is_second else 1), first)
        except CannotTestError as error:
            errors += 1
            print(f"{defect.name}: ERROR: {error}", file=sys.stderr, flush=True)
            continue
        outcomes["caught_by"] = by if outcome.failed else None
        outcomes["test"] = outcome.failed
        outcomes["is_complete"] = outcome.is_complete
        outcomes["seconds_of_all" if is_second else "seconds"] = outcome.seconds
        commit_results[defect.name] = outcomes
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
        status = outcomes["caught_by"] or ("SURVIVED" if outcome.is_complete else "NOT CAUGHT IN TIME")
        print(f"{defect.name}: {status} {outcome.failed} {outcome.seconds} s", flush=True)
    tried = json.loads(RESULTS.read_text()).get(commit, {}) if RESULTS.exists() else {}
    caught = sum(1 for outcome in tried.values() if outcome["caught_by"])
    print(f"{commit}: {caught} of {len(tried)} caught, {len(defects) - len(tried)} not tried")
    return int(errors > 0)


if __name__ == "__main__":
    sys.exit(main())
