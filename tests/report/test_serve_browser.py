"""The served report in a real browser: at any event it shows what the Python API says there."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from report_in_browser import Opened, labels, open_browser
from shared_recordings import record_once, record_report

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.report.page.server import ReportServer

pytestmark = pytest.mark.slow("browser")

STOPS = 12


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> alloctrace.Trace:
    return alloctrace.load(record_once(tmp_path_factory, "report", record_report) / "run.alloctrace")


class Served(Opened):
    """A served report in the browser."""

    def go_to_event(self, seq: int) -> int:
        self.page.fill("#event", str(seq))
        self.page.press("#event", "Enter")
        self.wait()
        return self.event()

    def wait(self) -> None:
        """For what was asked for."""
        self.page.wait_for_selector(".asked:empty", state="attached")


def started(trace: alloctrace.Trace) -> tuple[ReportServer, threading.Thread]:
    server = ReportServer(trace)
    assert server.page  # made before the browser asks for it
    thread = threading.Thread(target=server.serve)
    thread.start()
    return server, thread


@pytest.fixture(scope="module")
def server(trace: alloctrace.Trace) -> Iterator[ReportServer]:
    made, thread = started(trace)
    yield made
    made.close()
    thread.join(timeout=10)


@pytest.fixture
def served(browser: Any, server: ReportServer) -> Iterator[Served]:
    made = Served(browser, server.address)
    made.wait()
    yield made
    made.page.context.close()
    assert made.said == []
    own = urlsplit(server.address).netloc
    assert {urlsplit(url).netloc for url in made.requests} == {own}


def events_between(trace: alloctrace.Trace, served: Served) -> list[int]:
    """Events at which the page has no moment of its own."""
    prepared = {served.go(moment) for moment in range(0, served.moments(), 7)}
    every = random.Random(151).sample(range(trace.end_seq), STOPS * 3)
    return [seq for seq in every if seq not in prepared][:STOPS]


def test_any_event_has_the_numbers_of_the_api(served: Served, trace: alloctrace.Trace) -> None:
    chosen = events_between(trace, served)
    assert len(chosen) == STOPS
    for number, seq in enumerate(chosen):
        device = trace.devices[number % len(trace.devices)]
        served.page.click(f".devices [data-device='{device}']")
        assert served.go_to_event(seq) == seq
        assert served.bytes("#live-bytes") == trace.live(seq, device=device)["nbytes"].sum()
        composition = trace.composition(seq, device=device)
        if len(composition):
            assert served.rows("memory", 1) == labels(trace, composition, "bytes")
            assert served.rows("memory", 3) == labels(trace, composition, "blocks")
        segments = trace.segments(seq, device=device)
        assert served.bytes("#reserved-bytes") == segments["total_size"].sum()
        assert "nearest moment" not in served.page.inner_text("#segments")
        if len(segments):
            free = trace.fragmentation(seq, device=device)
            for name in ("reserved", "free", "stranded", "releasable"):
                assert served.bytes(f"#fragmentation [data-figure='{name}']") == getattr(free, name)


def test_a_click_goes_to_its_own_time(served: Served, trace: alloctrace.Trace) -> None:
    served.page.click("text=Whole run")
    box = served.page.locator("#timeline .u-over").bounding_box()
    allocs = trace.events(kinds=("alloc",))
    # Where something happened, far from each other: elsewhere an earlier event is the last one.
    times = allocs["time_ns"].iloc[[0, len(allocs) // 2, -1]].to_numpy()
    shares = (times - trace.begin_ns) / (trace.end_ns - trace.begin_ns)
    seen = set()
    for x in {int(min(max(share * box["width"] + 3, 5), box["width"] - 5)) for share in shares.tolist()}:
        before = served.event()
        served.page.click("#timeline .u-over", position={"x": x, "y": 60})
        for _ in range(200):
            if served.event() != before:
                break
            served.page.wait_for_timeout(50)
        served.wait()
        seq = served.event()
        seen.add(seq)
        assert served.bytes("#live-bytes") == trace.live(seq, device="cuda:0")["nbytes"].sum()
    assert len(seen) >= 2


def test_arrows_go_from_an_event_to_the_next_moment_of_the_page(served: Served) -> None:
    at = served.moments() // 2
    prepared = [served.go(moment) for moment in (at - 1, at)]
    between = (prepared[0] + prepared[1]) // 2
    if between in prepared:
        between = prepared[0]
    assert served.go_to_event(between) == between
    served.page.locator("#moment").focus()
    served.page.click("[aria-label='Next moment']")
    served.wait()
    assert served.event() == prepared[1]


def test_a_server_that_is_gone_is_said(browser: Any, trace: alloctrace.Trace) -> None:
    server, thread = started(trace)
    made = Served(browser, server.address)
    made.wait()
    server.close()
    thread.join(timeout=10)
    made.page.fill("#event", "5")
    made.page.press("#event", "Enter")
    made.page.wait_for_selector("text=alloctrace serve does not answer: was it stopped?")
    assert all("ERR_CONNECTION_REFUSED" in said for said in made.said)
    made.page.context.close()
