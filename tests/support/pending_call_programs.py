"""Object scans in programs that are traced, profiled or monitored, for Python 3.10 to 3.14."""

from __future__ import annotations

import cProfile
import faulthandler
import sys
import threading
import time
from collections.abc import Callable
from types import CodeType
from typing import Any

from frame_walk_checker import Checker

MIN_SCANS = 20
"""Minimum number of scans under each tool."""
TIMEOUT_S = 60

Tool = Callable[[Callable[[], None]], set[CodeType]]
"""Function that runs an action under a tool and returns the code objects that the tool observed."""


def execute_calls() -> None:
    """Execute calls and jumps, at which the interpreter runs pending calls."""
    for number in range(50):
        str(number)


def run_under_settrace(action: Callable[[], None]) -> set[CodeType]:
    observed: set[CodeType] = set()

    def trace(frame: Any, event: str, argument: Any) -> Any:
        observed.add(frame.f_code)
        return trace

    sys.settrace(trace)
    action()
    sys.settrace(None)
    return observed


def run_under_setprofile(action: Callable[[], None]) -> set[CodeType]:
    observed: set[CodeType] = set()
    sys.setprofile(lambda frame, event, argument: observed.add(frame.f_code))
    action()
    sys.setprofile(None)
    return observed


def run_under_cprofile(action: Callable[[], None]) -> set[CodeType]:
    profile = cProfile.Profile()
    profile.runcall(action)
    return {entry.code for entry in profile.getstats() if isinstance(entry.code, CodeType)}


def run_under_monitoring(action: Callable[[], None]) -> set[CodeType]:
    observed: set[CodeType] = set()
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined]
    tool = monitoring.COVERAGE_ID
    monitoring.use_tool_id(tool, "test")
    monitoring.register_callback(tool, monitoring.events.PY_START, lambda code, offset: observed.add(code))
    monitoring.set_events(tool, monitoring.events.PY_START)
    action()
    monitoring.set_events(tool, 0)
    monitoring.free_tool_id(tool)
    return observed


def pending_calls(checker: Checker, seed: int) -> None:
    """Check that scans run one at a time, hidden from tools, and that requests during a scan post no call."""
    faulthandler.dump_traceback_later(TIMEOUT_S, exit=True)
    probe = checker.probe
    scans, running, overlapping = 0, False, 0

    def scan(reason: int) -> None:
        nonlocal scans, running, overlapping
        overlapping += running
        running = True
        probe.request_object_scan()
        part_of_scan()
        running = False
        scans += 1

    def part_of_scan() -> None:
        for number in range(1000):
            str(number)

    def request() -> None:
        while not ended:
            probe.request_object_scan()
            time.sleep(0.0001)

    def run_until_scanned() -> None:
        target = scans + MIN_SCANS
        while scans < target:
            execute_calls()

    probe.set_object_scan(scan)
    probe.request_object_scan()
    for _ in range(1000):
        execute_calls()
    checker.expect(scans == 1, f"{scans} scans for one request and one during the scan")

    ended = False
    requesting = threading.Thread(target=request)
    requesting.start()
    tools: list[Tool] = [run_under_settrace, run_under_setprofile, run_under_cprofile]
    if sys.version_info >= (3, 12):
        tools.append(run_under_monitoring)
    for tool in tools:
        observed = tool(run_until_scanned)
        checker.expect(execute_calls.__code__ in observed, f"{tool.__name__} observed nothing")
        checker.expect(not observed & {scan.__code__, part_of_scan.__code__}, f"{tool.__name__} observed a scan")
    ended = True
    requesting.join()
    checker.expect(overlapping == 0, f"{overlapping} scans began during another")
    faulthandler.cancel_dump_traceback_later()
