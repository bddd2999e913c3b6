"""Check builds (csrc/core/base/check.h): ring, codec and replay with random events, and tests of both modules."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import core_probe
import pytest
from running import ROOT

CORE = (*core_probe.SHARED, "reading", "replay", "compaction")
OPTIONS = ["-O1", "-g1", "-DALLOCTRACE_CHECKS"]


def run_probe(probe: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    # Recording is compiled apart: it shares a name in an anonymous namespace with the replay.
    program = core_probe.build(probe, CORE, OPTIONS, more_core=["recording"])
    return subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, timeout=600, check=False)


@pytest.mark.parametrize("invalid_percent", [0, 1, 30])
@pytest.mark.parametrize("seed", [1, 2])
def test_random_events_pass_all_checks(tmp_path: Path, seed: int, invalid_percent: int) -> None:
    count = 20_000

    process = run_probe("check_probe.cpp", "random", tmp_path / "spool", seed, count, invalid_percent)

    assert process.returncode == 0, process.stderr
    events, pieces = map(int, process.stdout.split())
    assert events == count and pieces > 100


@pytest.mark.parametrize(("ring", "wait_ns"), [(1024, 60_000_000_000), (64, 0)])
def test_events_of_many_threads_pass_all_checks(tmp_path: Path, ring: int, wait_ns: int) -> None:
    source = tmp_path / "source.py"
    source.write_text("a line\n" * 4)

    process = run_probe("ring_probe.cpp", tmp_path / "trace", tmp_path / "spool", source, ring, wait_ns, 4, 20_000)

    assert process.returncode == 0, process.stderr


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("changed-mark", "the slot of event 3 was changed before its release"),
        ("changed-tail", "has tail 0 (in the file 33) and head 32"),
    ],
)
def test_failed_check_aborts_with_a_sentence(tmp_path: Path, command: str, sentence: str) -> None:
    process = run_probe("check_probe.cpp", command, tmp_path / "spool")

    assert process.returncode == -signal.SIGABRT
    [line] = process.stderr.splitlines()
    assert "spool.cpp:" in line and ": check failed: " in line and sentence in line


@pytest.mark.slow("checks")
def test_recording_replay_and_simulated_device_pass_in_check_build() -> None:
    excluded = ("PYTEST", "ALLOCTRACE_TEST_SCALE")  # not the thousands of random programs
    environment = {name: value for name, value in os.environ.items() if not name.startswith(excluded)}
    workers = ["-n", str(len(os.sched_getaffinity(0)))]
    folders = ["tests/recording", "tests/replay", "tests/simcuda"]

    process = subprocess.run(
        [ROOT / "tools/checks", *workers, *folders], capture_output=True, text=True, env=environment, check=False
    )

    assert process.returncode == 0, process.stdout[-8000:] + process.stderr[-2000:]
