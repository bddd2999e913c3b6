"""The report in a real browser: it opens from a file, asks for nothing, runs nothing of a trace, and shows at every
snapshot what the Python API returns; served, at any event."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from report_in_browser import Opened, labels, open_browser
from running import ROOT, run_python
from served import running_server
from shared_recordings import record_once, record_report, run_source

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.report.page import report as document
from pytorch_alloctrace.report.page import what_if
from pytorch_alloctrace.report.page.server import ReportServer

pytestmark = pytest.mark.slow("browser")

STOPS, SERVED_STOPS = 20, 12
OpenPage = Callable[..., Opened]
CPU_PROGRAM = """
import torch
import pytorch_alloctrace as alloctrace
alloctrace.enable("cpu.alloctrace", devices=["cpu"])
kept = [torch.empty(1 << 20) for _ in range(3)]
alloctrace.disable()
alloctrace.enable("empty.alloctrace", devices=["cpu"])
alloctrace.disable()
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def trace() -> alloctrace.Trace:
    return alloctrace.load(record_once("report", record_report) / "run.alloctrace")


@pytest.fixture(scope="module")
def report_path(trace: alloctrace.Trace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trace.report().write(tmp_path_factory.mktemp("browser") / "run.html")


@pytest.fixture
def open_page(browser: Any) -> Iterator[OpenPage]:
    """Opens a report; at the end of the test it must have said nothing."""
    pages: list[Opened] = []

    def open_report(path: Path, **settings: Any) -> Opened:
        pages.append(Opened(browser, path, **settings))
        return pages[-1]

    yield open_report
    for page in pages:
        page.page.context.close()
    assert [page.said for page in pages] == [[]] * len(pages)


@pytest.fixture
def opened(open_page: OpenPage, report_path: Path) -> Opened:
    return open_page(report_path)


def test_it_opens_from_a_file_and_asks_for_nothing(opened: Opened, trace: alloctrace.Trace, report_path: Path) -> None:
    assert opened.requests == [report_path.as_uri()]
    assert opened.page.query_selector("#event") is None, "only a server can be asked for any event"
    assert "connect-src 'none'" in opened.page.get_attribute("meta[http-equiv]", "content")
    for view in ("diagnosis", "timeline", "memory", "segments", "fragmentation", "what-if", "leaks", "oom", "sites"):
        assert opened.page.is_visible(f"#{view} h2")
    said = opened.page.inner_text("#diagnosis")
    for finding in trace.diagnose():
        assert finding.title in said
        for sentence in finding.sentences:
            assert sentence in said


def test_a_hostile_trace_runs_nothing(opened: Opened) -> None:
    page = opened.page
    assert page.evaluate("window.broken") is None
    assert page.evaluate("document.scripts.length") == 2 and page.evaluate("document.images.length") == 0
    assert "</script><script>window.broken = 1</script>" in page.inner_text("#sites")
    # Even if something of it became HTML, it would not run.
    page.evaluate("document.body.append(Object.assign(document.createElement('script'), {text: 'window.broken = 1'}))")
    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.broken = 1\">')")
    page.wait_for_timeout(200)
    assert page.evaluate("window.broken") is None
    assert all("Content Security Policy" in said for said in opened.said)
    opened.said.clear()


def compare_with_api(opened: Opened, trace: alloctrace.Trace, seq: int, device: str) -> None:
    """Compares what the page shows of a device with the Python API at an event."""
    assert opened.bytes("#live-bytes") == trace.live(seq, device=device)["requested_bytes"].sum()
    composition = trace.usage(seq, device=device)
    if len(composition):
        assert opened.rows("memory", 1) == labels(trace, composition, "live_bytes")
        assert opened.rows("memory", 3) == labels(trace, composition, "live_blocks")
    segments = trace.segments(seq, device=device)
    assert opened.bytes("#reserved-bytes") == segments["total_bytes"].sum()
    if not len(segments):
        assert "Nothing is reserved" in opened.page.inner_text("#fragmentation")
        return
    free = trace.fragmentation(seq, device=device)
    for name in ("reserved", "free", "stranded", "releasable"):
        assert opened.bytes(f"#fragmentation [data-figure='{name}']") == getattr(free, f"{name}_bytes")
    assert opened.bytes("#fragmentation [data-figure='largest-free-block']") == free.largest_free_bytes


def test_the_numbers_are_those_of_the_api(opened: Opened, trace: alloctrace.Trace) -> None:
    chosen = random.Random(15).sample(range(opened.snapshots()), STOPS)
    for device in trace.devices:
        opened.page.click(f".devices [data-device='{device}']")
        for snapshot in chosen:
            compare_with_api(opened, trace, opened.go(snapshot), device)


def test_the_table_by_function_file_and_phase(opened: Opened, trace: alloctrace.Trace) -> None:
    seq = opened.event()
    for by in ("function", "file", "phase"):
        opened.page.click(f"#memory [data-by='{by}']")
        composition = trace.usage(seq, device="cuda:0", by=by)
        assert sorted(opened.rows("memory", 1).values()) == sorted(composition["live_bytes"])


def test_the_flame_graph_begins_with_the_largest_call(opened: Opened, trace: alloctrace.Trace) -> None:
    opened.page.locator(".flame").scroll_into_view_if_needed()
    opened.page.hover(".flame", position={"x": 12, "y": 8})
    said = opened.page.inner_text(".tooltip")
    first = trace.usage(opened.event(), by="call", device="cuda:0").iloc[0]
    assert f"{first['live_bytes']:,} bytes" in said and f":{first['line']} in {first['function']}" in said


def test_the_cursor_moves_all_views(opened: Opened) -> None:
    opened.go(opened.snapshots() - 2)
    charts = [f"{section} .chart canvas" for section in ("#timeline", "#fragmentation")]
    views = (".flame", ".segments", "#timeline canvas.overview", *charts)

    def state() -> list[str]:
        texts = [opened.page.inner_text(one) for one in (".cursor-bar", "#memory .lead", "#segments .lead")]
        return [*texts, *(opened.picture(view) for view in views)]

    before = state()
    opened.page.keyboard.press("Home")
    opened.page.keyboard.press("ArrowRight")
    opened.page.keyboard.press("ArrowRight")
    after = state()
    assert all(one != other for one, other in zip(before, after, strict=True))
    opened.page.keyboard.press("ArrowLeft")
    opened.page.keyboard.press("ArrowLeft")
    assert int(opened.page.input_value("#snapshot")) == 0
    opened.page.keyboard.press("End")
    assert int(opened.page.input_value("#snapshot")) == opened.snapshots() - 1


def test_a_click_on_the_timeline_sets_the_cursor_and_dragging_zooms(opened: Opened) -> None:
    opened.go(opened.snapshots() - 1)
    opened.page.click("text=Whole run")
    before = opened.picture("#timeline .chart canvas")
    opened.page.click("#timeline .u-over", position={"x": 300, "y": 60})
    assert opened.picture("#timeline .chart canvas") != before
    over = opened.page.locator("#timeline .u-over").bounding_box()
    assert not opened.page.is_visible("text=Whole run")
    opened.page.mouse.move(over["x"] + 200, over["y"] + 50)
    opened.page.mouse.down()
    opened.page.mouse.move(over["x"] + 500, over["y"] + 50, steps=4)
    opened.page.mouse.up()
    assert opened.page.is_visible("text=Whole run")
    opened.page.click("text=Whole run")
    assert not opened.page.is_visible("text=Whole run")


def test_search(opened: Opened, trace: alloctrace.Trace) -> None:
    opened.page.keyboard.press("/")
    opened.page.keyboard.type("small.append")
    composition = trace.usage(opened.event(), device="cuda:0")
    expected = composition[composition["source"].str.contains("small.append", regex=False, na=False)]
    assert opened.rows("memory", 1) == labels(trace, expected, "live_bytes")
    assert "1 match" in opened.page.inner_text("#memory")
    opened.page.fill("#search", "no such thing")
    assert "Nothing that is live here matches" in opened.page.inner_text("#memory")


def test_sites_can_be_sorted_and_filtered(opened: Opened, trace: alloctrace.Trace) -> None:
    # A line whose only request failed has its time in the table, and no place on the page.
    expected = labels(trace, trace.usage(device="cuda:0").query("allocations > 0"), "total_bytes")
    assert opened.rows("sites", 1) == expected
    assert [*opened.rows("sites", 1).values()] == sorted(expected.values(), reverse=True)
    opened.page.click("#sites th:nth-child(2) button")
    assert [*opened.rows("sites", 1).values()] == sorted(expected.values())
    opened.page.click("#sites th:nth-child(1) button")
    assert len(opened.rows("sites", 1)) == len(expected)
    opened.page.fill("#site-filter", "weights")
    assert [*opened.rows("sites", 1).values()] == [40 << 20]


def test_comparison_of_two_snapshots_shows_growth(opened: Opened, trace: alloctrace.Trace) -> None:
    first = opened.go(3)
    opened.page.click("#compare")
    for snapshot in (opened.snapshots() // 2, opened.snapshots() - 3):
        second = opened.go(snapshot)
        change = trace.diff(first, second, device="cuda:0")
        assert opened.bytes("#changed-bytes") == change["change_bytes"].sum()
        shown = opened.rows("memory", 1)
        expected = labels(trace, change, "change_bytes")
        assert {name: value for name, value in shown.items() if value} == {k: v for k, v in expected.items() if v}
    opened.page.keyboard.press("b")
    assert opened.page.query_selector("#changed-bytes") is None


def test_what_if_is_what_the_api_says(opened: Opened, trace: alloctrace.Trace) -> None:
    for device in ("cuda:1", "cuda:0"):
        opened.page.click(f".devices [data-device='{device}']")
        found = trace.what_if(device=device)
        assert found.check.sentence in opened.page.inner_text("#what-if")
        shown = opened.page.eval_on_selector_all(
            "#what-if tbody tr",
            "rows => rows.map(row => [row.cells[0].dataset.value, +row.cells[2].dataset.value,"
            " +row.cells[2].dataset.most, +row.cells[3].dataset.value, +row.cells[4].dataset.value])",
        )
        rows = [
            [one.setting.text, *one.peak_reserved_bytes, one.device_used_bytes, one.retries[1]]
            for one in found.outcomes
        ]
        assert shown == rows
        fittings = trace.fit([one.setting.text for one in found.outcomes], device=device).fittings
        for text, fitting in zip(opened.rows("what-if", 5).values(), fittings, strict=True):
            refused = [number for number, gpu in enumerate(fitting.gpus) if not gpu.outcome.fits]
            assert text == fitting.gpus[max(refused, default=-1) + 1].outcome.gpu.device_bytes
    # The request that the program was refused, and what it would have taken to get it.
    assert "1 request that the recorded run was refused would have been served" in opened.page.inner_text("#what-if")


def test_a_finding_leads_to_its_view(opened: Opened, trace: alloctrace.Trace) -> None:
    opened.page.click("text=Show the map before the failure")
    (refused,) = trace.ooms()
    assert opened.event() == refused.seq - 1
    opened.page.click("text=Show it in memory")
    assert opened.event() == trace.steps()["seq"].iloc[-1]
    assert opened.page.query_selector("#memory tr.highlighted") is not None


def test_in_the_frame_of_a_notebook(browser: Any, trace: alloctrace.Trace, tmp_path: Path) -> None:
    (tmp_path / "notebook.html").write_text(f"<!DOCTYPE html><p>a cell</p>{trace.report()._repr_html_()}")
    page = browser.new_context(viewport={"width": 1000, "height": 900}).new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto((tmp_path / "notebook.html").as_uri())
    frame = page.frame_locator("iframe")
    frame.locator("html[data-ready]").wait_for(timeout=60_000)
    frame.locator("nav a[href='#sites']").click()
    frame.locator("#site-filter").fill("weights")
    assert frame.locator("#sites tbody tr").count() == 1
    assert said == []
    page.context.close()


def test_light_and_dark(open_page: OpenPage, report_path: Path) -> None:
    pages = {}
    for scheme in ("light", "dark"):
        made = open_page(report_path, color_scheme=scheme)
        style = "getComputedStyle(document.body)"
        colors = made.page.evaluate(f"[{style}.backgroundColor, {style}.color]")
        pages[scheme] = [sum(map(int, re.findall(r"\d+", color)[:3])) for color in colors]
        made.page.emulate_media(media="print")
        assert not made.page.is_visible("#compare")
    (light_page, light_text), (dark_page, dark_text) = pages["light"], pages["dark"]
    assert light_page > 600 > light_text and dark_page < 150 < dark_text


def test_without_segments_and_without_anything(open_page: OpenPage, run_program: Any, tmp_path: Path) -> None:
    run_program(CPU_PROGRAM)
    for name in ("cpu", "empty"):
        alloctrace.load(tmp_path / f"{name}.alloctrace").report().write(tmp_path / f"{name}.html")
    made = open_page(tmp_path / "cpu.html")
    assert "reports no segments" in made.page.inner_text("#segments")
    assert "reports no segments" in made.page.inner_text("#fragmentation")
    assert "cpu has no such settings" in made.page.inner_text("#what-if")
    assert made.bytes("#live-bytes") == 12 << 20
    assert "Nothing was allocated" in open_page(tmp_path / "empty.html").page.inner_text("#diagnosis")


MANY_SEGMENTS = """
import torch, pytorch_alloctrace as alloctrace
with alloctrace.enable("many.alloctrace"):
    held = [torch.empty(1 << 20, dtype=torch.uint8, device="cuda") for _ in range(16000)]
    del held[1::4]
"""


def test_of_many_segments_the_largest_are_drawn(open_page: OpenPage, run_cuda_program: Any, tmp_path: Path) -> None:
    """A page with 100,000 segments was as long as thirty screens."""
    run_cuda_program(MANY_SEGMENTS)
    made = open_page(alloctrace.load(tmp_path / "many.alloctrace").report().write(tmp_path / "many.html"))
    height = "document.querySelector('canvas.segments').clientHeight"
    short = made.page.evaluate(height)
    text = made.page.inner_text("#segments")
    assert re.search(r"The last [\d,]+ segments, [\d.]+ GiB, are not drawn", text), text
    made.page.click("#all-segments")
    assert made.page.evaluate(height) > short and not made.page.is_visible("#all-segments")


def test_what_if_says_what_was_left_out_and_why(
    open_page: OpenPage, trace: alloctrace.Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(what_if, "MOST_WORK", 20_000)
    made = open_page(trace.report().write(tmp_path / "some.html"))
    said = made.page.inner_text("#what-if")
    assert "Not tried, since the trace is long: max_split_size_mb" in said and "not tried" in said
    assert 1 < len(made.rows("what-if", 2)) < 7


def test_a_damaged_trace_says_so_in_red(open_page: OpenPage, trace: alloctrace.Trace, tmp_path: Path) -> None:
    whole = Path(trace.path).read_bytes()
    (tmp_path / "cut.alloctrace").write_bytes(whole[: len(whole) * 3 // 5])
    with pytest.warns(alloctrace.IncompleteTraceWarning):
        cut = alloctrace.load(tmp_path / "cut.alloctrace")
    made = open_page(cut.report().write(tmp_path / "cut.html"))
    assert str(cut.integrity) in made.page.inner_text("header [role=alert]")
    colour = made.page.eval_on_selector("[role=alert]", "one => getComputedStyle(one).color")
    red, green, blue = map(int, re.findall(r"\d+", colour)[:3])
    assert red > 150 > green and blue < 100
    assert "The trace is cut short" in made.page.inner_text("#what-if")


def test_the_assets_can_be_made_again(tmp_path: Path) -> None:
    run_python(ROOT, [str(ROOT / "tools/web")], True, 300, {"ALLOCTRACE_WEB_OUT": str(tmp_path)})
    for name in ("report.js", "report.css", "THIRD_PARTY.txt"):
        assert (tmp_path / name).read_text() == document.read_asset(name)


def test_of_very_many_findings_the_rest_is_made_when_asked_for(open_page: OpenPage, tmp_path: Path) -> None:
    """Eight hundred GPUs, each with its chart, were most of the time that a page took to open."""
    functions = "".join(f"def keep_{n}():\n    kept.append(torch.empty({1024 + 512 * n}))\n" for n in range(60))
    calls = "".join(f"    keep_{n}()\n" for n in range(60))
    program = (
        "import torch\nimport pytorch_alloctrace as alloctrace\nkept = []\n"
        f"{functions}alloctrace.enable('many.alloctrace', devices=['cpu'])\n"
        f"for _ in range(60):\n{calls}    alloctrace.step()\nalloctrace.disable()\n"
    )
    run_source(tmp_path, program)
    found = alloctrace.load(tmp_path / "many.alloctrace")
    count = sum(one.leak is not None for one in found.diagnose())
    assert count > 50
    opened = open_page(found.report().write(tmp_path / "many.html"))
    gpus = opened.page.locator("#leaks article.leak")
    assert gpus.count() == 5
    for _ in range(3):
        opened.page.click("#leaks details summary")
    opened.page.wait_for_selector("#leaks details article.leak")
    assert gpus.count() == count


class Served(Opened):
    """A served report in the browser."""

    def go_to_event(self, seq: int) -> int:
        self.page.fill("#event", str(seq))
        self.page.press("#event", "Enter")
        self.wait()
        return self.event()

    def wait(self) -> None:
        """For what was asked for."""
        self.page.wait_for_selector(".live-status:empty", state="attached")


@pytest.fixture(scope="module")
def server(trace: alloctrace.Trace) -> Iterator[ReportServer]:
    with running_server(trace) as started:
        assert started.page  # made before the browser asks for it
        yield started


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
    """Events at which the page has no snapshot of its own."""
    prepared = {served.go(snapshot) for snapshot in range(0, served.snapshots(), 7)}
    every = random.Random(151).sample(range(trace._recorded.end_seq), SERVED_STOPS * 3)
    return [seq for seq in every if seq not in prepared][:SERVED_STOPS]


def test_any_event_has_the_numbers_of_the_api(served: Served, trace: alloctrace.Trace) -> None:
    chosen = events_between(trace, served)
    assert len(chosen) == SERVED_STOPS
    for number, seq in enumerate(chosen):
        device = trace.devices[number % len(trace.devices)]
        served.page.click(f".devices [data-device='{device}']")
        assert served.go_to_event(seq) == seq
        compare_with_api(served, trace, seq, device)
        assert "nearest snapshot" not in served.page.inner_text("#segments")


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
        assert served.bytes("#live-bytes") == trace.live(seq, device="cuda:0")["requested_bytes"].sum()
    assert len(seen) >= 2


def test_arrows_go_from_an_event_to_the_next_snapshot_of_the_page(served: Served) -> None:
    at = served.snapshots() // 2
    prepared = [served.go(snapshot) for snapshot in (at - 1, at)]
    between = (prepared[0] + prepared[1]) // 2
    if between in prepared:
        between = prepared[0]
    assert served.go_to_event(between) == between
    served.page.locator("#snapshot").focus()
    served.page.click("[aria-label='Next snapshot']")
    served.wait()
    assert served.event() == prepared[1]


def test_a_server_that_is_gone_is_said(browser: Any, trace: alloctrace.Trace) -> None:
    with running_server(trace) as server:
        assert server.page
        made = Served(browser, server.address)
        made.wait()
    made.page.fill("#event", "5")
    made.page.press("#event", "Enter")
    made.page.wait_for_selector("text=alloctrace serve does not answer: was it stopped?")
    assert all("ERR_CONNECTION_REFUSED" in said for said in made.said)
    made.page.context.close()
