"""Schedule of object scans, on a simulated recorder and clock."""

from __future__ import annotations

import threading

import pytest

from pytorch_alloctrace.objects.object_scan import ObjectScan, ScanResult
from pytorch_alloctrace.recording import object_scans


class SimulatedRun:
    """Recorder of a run at a constant rate of events, with scans that take all their time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, result: ScanResult, needed_s: float) -> None:
        self.scanned: list[tuple[int, float]] = []
        """Event and seconds of each scan."""
        self._result, self._needed_s = result, needed_s
        self._now = self._processor = 0.0
        monkeypatch.setattr(object_scans.time, "monotonic", lambda: self._now)
        monkeypatch.setattr(object_scans.time, "thread_time", lambda: self._processor)
        monkeypatch.setattr(object_scans.ObjectScans, "_scan", self._scan)

    def next_event(self) -> int:
        return round(self._now * 40_000)

    def _scan(self, seconds: float, search_unreached: bool, *, at_end: bool = False) -> ObjectScan:
        scan_s = min(seconds, self._needed_s)
        self.scanned.append((self.next_event(), scan_s))
        self._processor += scan_s
        result = ScanResult.TRUNCATED if seconds < self._needed_s else self._result
        return ObjectScan((), (), result, 1000, 0)

    def run(self, seconds: float, mark_at: float = 0.0) -> None:
        scans = object_scans.ObjectScans(self)  # type: ignore[arg-type]
        scans._is_active, scans._main_thread = True, threading.get_ident()
        while self._now < seconds:
            self._now += 0.001
            if mark_at and self._now >= mark_at:
                scans.scan_at_mark()
                mark_at = 0.0
            scans.scan_if_due()


@pytest.mark.parametrize("needed_s", [0.002, 0.02, 0.06, 10.0])
@pytest.mark.parametrize("seconds", [0.3, 1.0, 5.0, 60.0])
def test_scans_run_until_the_end_within_their_time(
    monkeypatch: pytest.MonkeyPatch, needed_s: float, seconds: float
) -> None:
    """Guard against early scans that leave no time for later ones: most of the blocks were allocated after them."""
    run = SimulatedRun(monkeypatch, ScanResult.COMPLETE, needed_s)

    run.run(seconds)

    assert run.scanned[-1][0] > run.next_event() / object_scans.MAX_SCAN_GROWTH
    assert sum(scan_s for _, scan_s in run.scanned) <= 0.4 + 0.005 * seconds


def test_early_mark_is_followed_by_no_storm_of_scans(monkeypatch: pytest.MonkeyPatch) -> None:
    run = SimulatedRun(monkeypatch, ScanResult.COMPLETE, 0.001)
    monkeypatch.setattr(run, "next_event", lambda: round(run._now * 400))

    run.run(1.0, mark_at=0.1)

    assert [event for event, _ in run.scanned if event < object_scans.FIRST_SCAN_EVENTS] == [40]


def test_mark_on_another_thread_does_not_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    """The references of a walk on another thread would keep objects alive that the program has dropped."""
    run = SimulatedRun(monkeypatch, ScanResult.COMPLETE, 0.001)
    scans = object_scans.ObjectScans(run)  # type: ignore[arg-type]
    scans._is_active, scans._main_thread = True, threading.get_ident()

    thread = threading.Thread(target=scans.scan_at_mark)
    thread.start()
    thread.join()

    assert not run.scanned


def test_scan_next_to_a_running_backward_does_not_count_as_truncated(monkeypatch: pytest.MonkeyPatch) -> None:
    scanned = []
    for result in (ScanResult.COMPLETE, ScanResult.GRAPHS_IN_USE):
        run = SimulatedRun(monkeypatch, result, 0.002)
        run.run(1.0)
        scanned.append(run.scanned)

    assert scanned[0] == scanned[1]
