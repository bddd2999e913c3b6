"""Fixtures of all tests, and the choice of tests by their group (slow_groups). Helpers are in tests/support."""

from __future__ import annotations

import functools
import gc
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import slow_groups
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from running import run_python, with_cuda

LEFT_OUT = pytest.StashKey[list[str]]()
"""The groups of the slow tests that were left out, one entry a test."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("slow tests", "slow tests: left out unless one of these asks for them")
    group.addoption("--all", action="store_true", help="run them too")
    group.addoption("--slow", choices=sorted(slow_groups.GROUPS), help="run this group alone")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow(group): left out unless asked for; the groups are in slow_groups.py")
    config.addinivalue_line("markers", "libraries: looks for holders in the variables of libraries, too")
    config.stash[LEFT_OUT] = []
    # The same random examples on every machine and in every order of the tests: without the last line, hypothesis would
    # also draw constants from the modules of the package that are imported so far.
    settings.register_profile(
        "same examples",
        derandomize=os.environ.get("ALLOCTRACE_TEST_SCALE") != "full",
        database=None,
        deadline=None,
        print_blob=False,
        suppress_health_check=[check for check in HealthCheck if check is not HealthCheck.filter_too_much],
    )
    settings.load_profile("same examples")
    assert hasattr(providers, "_get_local_constants"), "hypothesis is too old or too new"
    providers._get_local_constants = lambda: providers._local_constants


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kept, dropped = [], []
    for item in items:
        marker = item.get_closest_marker("slow")
        group = marker.args[0] if marker else None
        assert group is None or group in slow_groups.GROUPS, f"{item.nodeid}: no group of slow tests is named {group!r}"
        runs = config.option.all or config.option.slow == group
        (kept if runs else dropped).append(item)
        if group and not runs:
            config.stash[LEFT_OUT].append(group)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept
    if hasattr(config, "workeroutput"):
        config.workeroutput["left_out"] = config.stash[LEFT_OUT]


def pytest_collection_finish() -> None:
    """Freeze pytest's own objects: each collection and object scan of this process would take 0.1 s longer."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Distribute tests one by one, but those of a file with a shared fixture together."""
    from xdist.scheduler import LoadScopeScheduling

    class FilesThatShare(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return file if _has_shared_fixture(config.rootpath / file) else nodeid

    return FilesThatShare(config, log) if config.getvalue("dist") == "load" else None


@functools.cache
def _has_shared_fixture(file: Path) -> bool:
    return 'scope="module"' in file.read_text()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over the tests that a process of pytest-xdist left out: all processes collect the same tests."""
    if left_out := getattr(node, "workeroutput", {}).get("left_out"):
        node.config.stash[LEFT_OUT] = left_out


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    left_out = config.stash[LEFT_OUT]
    if left_out:
        summary = f"left out: {len(left_out)} slow tests ({slow_groups.counted(left_out)}); tools/test --all runs them"
        terminalreporter.write_line(summary, yellow=True)


@pytest.fixture(autouse=True)
def no_last_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the final scan of recordings in the tests' own process, which has 100,000 objects of the test tools."""
    monkeypatch.setattr("pytorch_alloctrace.recording.object_scans.MAX_FINAL_SCAN_S", 0.0)


RunProgram = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run_program(tmp_path: Path) -> RunProgram:
    """Return a function that runs a Python program, given as text, as `program.py` of tmp_path.

    The test fails if the program does, unless check=False. The timeout stops a program that hangs: a busy machine may
    take ten times as long as an idle one. cuda: arguments of `with_cuda`, for a program with a CUDA device.
    """

    def run(
        source: str,
        *arguments: str,
        cuda: dict[str, Any] | None = None,
        check: bool = True,
        timeout: float = 600,
        fresh: bool = False,
        **environment: str,
    ) -> subprocess.CompletedProcess[str]:
        script = tmp_path / "program.py"
        script.write_text(textwrap.dedent(source))
        command = [sys.executable, str(script), *arguments]
        command = command if cuda is None else with_cuda(command, **cuda)
        return run_python(tmp_path, command, check, timeout, environment, fresh)

    return run


@pytest.fixture
def run_cuda_program(run_program: RunProgram) -> RunProgram:
    """Return run_program with the machine's GPU or a simulated one. Skips the test if torch is built without CUDA."""

    def run(source: str, *arguments: str, memory: str = "80GiB", devices: int = 1, **options: Any) -> Any:
        return run_program(source, *arguments, cuda={"memory": memory, "devices": devices}, **options)

    return run
