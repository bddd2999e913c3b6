"""Fixtures of all tests, and selection of tests by slow group (slow_groups). Helpers are in tests/support."""

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

DESELECTED_GROUPS = pytest.StashKey[list[str]]()
"""Group of each slow test that was deselected."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("slow tests", "slow tests: left out unless one of these asks for them")
    group.addoption("--all", action="store_true", help="run the slow tests too")
    group.addoption("--slow", choices=sorted(slow_groups.GROUPS), help="run only this group of slow tests")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow(group): left out unless asked for; the groups are in slow_groups.py")
    config.addinivalue_line("markers", "libraries: search the variables of libraries for referrers")
    config.stash[DESELECTED_GROUPS] = []
    # Use the same random examples on every machine and in every order of tests. Without the last line, hypothesis
    # would also draw constants from the package's modules that are already imported.
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
    selected, deselected = [], []
    for item in items:
        marker = item.get_closest_marker("slow")
        group = marker.args[0] if marker else None
        assert group is None or group in slow_groups.GROUPS, f"{item.nodeid}: no group of slow tests is named {group!r}"
        is_selected = config.option.all or config.option.slow == group
        (selected if is_selected else deselected).append(item)
        if group and not is_selected:
            config.stash[DESELECTED_GROUPS].append(group)
    if deselected:
        config.hook.pytest_deselected(items=deselected)
        items[:] = selected
    if hasattr(config, "workeroutput"):
        config.workeroutput["left_out"] = config.stash[DESELECTED_GROUPS]


def pytest_collection_finish() -> None:
    """Freeze pytest's own objects, which add 0.1 s to each collection and object scan of this process."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Distribute tests one by one, but keep the tests of a file with a shared fixture together."""
    from xdist.scheduler import LoadScopeScheduling

    class FileScheduling(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return file if _has_shared_fixture(config.rootpath / file) else nodeid

    return FileScheduling(config, log) if config.getvalue("dist") == "load" else None


@functools.cache
def _has_shared_fixture(file: Path) -> bool:
    return 'scope="module"' in file.read_text()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Copy the deselected groups from a pytest-xdist worker: all workers collect the same tests."""
    if deselected_groups := getattr(node, "workeroutput", {}).get("left_out"):
        node.config.stash[DESELECTED_GROUPS] = deselected_groups


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    groups = config.stash[DESELECTED_GROUPS]
    if groups:
        summary = f"left out: {len(groups)} slow tests ({slow_groups.describe(groups)}); tools/test --all runs them"
        terminalreporter.write_line(summary, yellow=True)


@pytest.fixture(autouse=True)
def no_final_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the final scan of recordings in the test process, which has 100,000 objects of the test tools."""
    monkeypatch.setattr("pytorch_alloctrace.recording.object_scans.MAX_FINAL_SCAN_S", 0.0)


RunProgram = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run_program(tmp_path: Path) -> RunProgram:
    """Return a function that runs a Python program, given as text, as `program.py` of tmp_path.

    The test fails if the program does, unless check=False. The timeout stops a program that hangs: a busy machine may
    take ten times as long as an idle one. For a program with a CUDA device, pass the arguments of `with_cuda` as cuda.
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
