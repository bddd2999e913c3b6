"""Plugin for pytest: `pytest --alloctrace` records each test and checks its limits (docs/testing.md).

    @pytest.mark.alloctrace_limit_memory("1.5 GiB", "cuda:0")
    @pytest.mark.alloctrace_limit_leaks("1 MiB")
    def test_training(): ...

Without the option the plugin only registers the two markers.
"""

from __future__ import annotations

import gc
import importlib.util
import re
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .reading.recorded import RecordedTrace

NAME = "alloctrace"
MEMORY, LEAKS = f"{NAME}_limit_memory", f"{NAME}_limit_leaks"
MAX_TESTS = 10
"""Maximum number of tests in the summary."""
MAX_LINES = 5
"""Maximum number of lines of code in a failure."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup(NAME, "memory of torch (pytorch_alloctrace)")
    group.addoption(
        "--alloctrace", action="store_true", help="record each test, check the limits of its markers, list the peaks"
    )
    group.addoption("--alloctrace-keep", metavar="FOLDER", help="keep the traces of all tests in this folder")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{MEMORY}(limit, device=None): with --alloctrace, maximum memory allocated at once on the device, or on each "
        'device ("1.5 GiB")',
    )
    config.addinivalue_line(
        "markers",
        f'{LEAKS}(limit, device=None): with --alloctrace, maximum memory that the test leaves behind ("1 MiB")',
    )
    if config.getoption("--alloctrace") or config.getoption("--alloctrace-keep"):
        config.pluginmanager.register(_RecordingPlugin(config), f"{NAME}_recorded")


class _RecordingPlugin:
    def __init__(self, config: pytest.Config) -> None:
        keep = config.getoption("--alloctrace-keep")
        self._keep = Path(keep).absolute() if keep else None
        self._folder: Path | None = None
        self._problem = "" if importlib.util.find_spec("torch") else "torch is not installed"
        self._is_worker = hasattr(config, "workerinput")
        self._peaks: list[tuple[int, str, str]] = []

    def pytest_report_header(self) -> str | None:
        return f"{NAME}: {self._not_recorded_notice}" if self._problem else None

    @property
    def _not_recorded_notice(self) -> str:
        return f"nothing is recorded and no limit checked: {self._problem}"

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        # An invalid limit fails the test even if nothing can be recorded.
        limits = _read_limits(item)
        session = None if self._problem else self._start_recording(item)
        if session is None:
            return (yield)
        passed = False
        try:
            result = yield
            passed = True
        finally:
            gc.collect()  # garbage cycles are not leaks
            if session.is_recording:
                session.__exit__(None, None, None)
            failures = self._find_failures(item, session.path, limits, passed)
            if not failures and self._keep is None:
                session.path.unlink(missing_ok=True)
        if failures:
            pytest.fail("\n\n".join([*failures, f"The trace of this test: {session.path}"]), pytrace=False)
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and not self._is_worker:
            for name, value in report.user_properties:
                if name.startswith(f"{NAME} peak of "):
                    self._peaks.append((int(str(value)), name.removeprefix(f"{NAME} peak of "), report.nodeid))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        from .report.units import size

        if not self._peaks:
            if self._problem:
                terminalreporter.write_line(f"{NAME}: {self._not_recorded_notice}", yellow=True)
            return
        terminalreporter.section("memory of torch: highest peaks, allocated", sep="=")
        self._peaks.sort(key=lambda peak: -peak[0])
        for peak, device, test in self._peaks[:MAX_TESTS]:
            terminalreporter.write_line(f"{size(peak):>10}  {device:<7} {test}")
        if len(self._peaks) > MAX_TESTS:
            terminalreporter.write_line(f"and {len(self._peaks) - MAX_TESTS:,} more")
        if self._problem:
            terminalreporter.write_line(f"{NAME}: after an error, {self._not_recorded_notice}", yellow=True)

    def pytest_unconfigure(self) -> None:
        folder = self._folder
        if folder is not None and folder != self._keep and not any(folder.iterdir()):
            shutil.rmtree(folder, ignore_errors=True)

    def _start_recording(self, item: pytest.Item) -> Any:
        from .errors import AlloctraceError
        from .recording.session import enable, is_enabled

        if is_enabled():  # a fixture or the program that calls pytest owns the recording
            return None
        if self._folder is None:
            if self._keep is not None:
                self._keep.mkdir(parents=True, exist_ok=True)
            self._folder = self._keep or Path(tempfile.mkdtemp(prefix=f"{NAME}-"))
        name = re.sub(r"[^\w.-]+", "_", item.nodeid).strip("_")[-150:]
        try:
            return enable(self._folder / f"{name}.alloctrace", overwrite=True)
        except AlloctraceError as error:
            self._problem = str(error)
            return None

    def _find_failures(self, item: pytest.Item, path: Path, limits: list[_Limit], passed: bool) -> list[str]:
        """Return a sentence per exceeded limit; add the peaks to the test's report, which pytest-xdist workers send."""
        from .errors import AlloctraceError
        from .reading.recorded import RecordedTrace

        try:
            trace = RecordedTrace(path)
            for device in trace.devices:
                if (peak := trace.replay.peak("allocated", device)) is not None:
                    item.user_properties.append((f"{NAME} peak of {device}", str(peak.bytes)))
            # Limits are checked only if the test passed: a second failure would add nothing.
            return [sentence for limit in limits if passed for sentence in limit.exceeded(trace)]
        except AlloctraceError as error:
            return [f"{NAME}: the trace of this test cannot be read: {error}"] if limits and passed else []


class _Limit:
    def __init__(self, marker: pytest.Mark) -> None:
        self._leaks = marker.name == LEAKS
        names = ("limit", "device")
        arguments = {**dict(zip(names, marker.args, strict=False)), **marker.kwargs}
        if len(marker.args) > len(names) or set(arguments) - set(names) or "limit" not in arguments:
            pytest.fail(
                f"@pytest.mark.{marker.name} takes a limit and an optional device: "
                f'{marker.name}("1.5 GiB", device="cuda:0")',
                pytrace=False,
            )
        self._device: str | None = arguments.get("device")
        self._text = str(arguments["limit"])
        self._bytes = _parse_limit(self._text, marker.name)

    def exceeded(self, trace: RecordedTrace) -> list[str]:
        return self._leaks_above(trace) if self._leaks else self._peak_above(trace)

    def _peak_above(self, trace: RecordedTrace) -> list[str]:
        from .analysis.usage.composition import composition_at
        from .report.units import size

        exceeded = []
        device_in_trace = _find_device(trace, self._device)
        for device in (
            trace.devices if self._device is None else [device_in_trace] if device_in_trace is not None else []
        ):
            peak = trace.replay.peak("allocated", device)
            if peak is None or peak.bytes <= self._bytes:
                continue
            rows = composition_at(trace, peak.seq, device=device)
            lines = [_format_line(trace, row["live_bytes"], row) for row in rows.head(MAX_LINES).rows()]
            more = f"\n  and {len(rows) - MAX_LINES} more lines" if len(rows) > MAX_LINES else ""
            exceeded.append(
                f"The peak of {device} was {size(peak.bytes)} ({peak.bytes:,} B) allocated: the limit is {self._text}. "
                "It consisted of (requested bytes):\n" + "\n".join(lines) + more
            )
        return exceeded

    def _leaks_above(self, trace: RecordedTrace) -> list[str]:
        from .analysis.usage.composition import live_blocks
        from .reading.names import ROLES
        from .reading.sites import describe_stacks, sites_of_blocks
        from .report.units import size

        device = _find_device(trace, self._device)
        if self._device is not None and device is None:
            return []
        live = live_blocks(trace, trace.end_seq, device)
        # Blocks from before the test and workspaces of libraries are not leaks of the test.
        leaked = live.take(~live["older"] & (live["role"] != ROLES.index("library workspace")))
        total = int(leaked["requested_bytes"].sum())
        if total <= self._bytes:
            return []
        sites = sites_of_blocks(trace.stacks, leaked).head(MAX_LINES)
        names = describe_stacks(trace.stacks, sites["stack_id"])
        lines = [
            _format_line(trace, live_bytes, row)
            for live_bytes, row in zip(sites["live_bytes"].tolist(), names.rows(), strict=True)
        ]
        on_device = f" on {device}" if device else ""
        return [
            f"The test left {size(total)} ({total:,} B) behind{on_device}: the limit is {self._text}. "
            "Allocated in the test and not freed (requested bytes):\n" + "\n".join(lines)
        ]


def _read_limits(item: pytest.Item) -> list[_Limit]:
    return [_Limit(marker) for name in (MEMORY, LEAKS) for marker in item.iter_markers(name)]


def _parse_limit(text: str, marker: str) -> int:
    from .sizes import parse_size

    try:
        return parse_size(text)
    except ValueError as error:
        pytest.fail(f"@pytest.mark.{marker}: {error}", pytrace=False)


def _find_device(trace: RecordedTrace, device: str | None) -> str | None:
    """Return the device in the trace's spelling, or None if nothing was allocated on it."""
    from .errors import TraceError

    try:
        device_in_trace = trace.named_device(device)
    except TraceError:
        return None
    return device_in_trace if device_in_trace is None or device_in_trace in trace.devices else None


def _format_line(trace: RecordedTrace, count: int, row: Any) -> str:
    from .report.site_names import SiteNames, printable
    from .report.units import size

    if not row["filename"]:
        return f"  {size(count):>10}  {printable(row['function'])}"
    names = SiteNames(trace.working_directory)
    text = f"  {size(count):>10}  {names.file(row['filename'])}:{row['line']} in {row['function']}"
    source = row.get("source")
    return printable(text) + (f"\n{'':14}{printable(source.strip())}" if isinstance(source, str) else "")
