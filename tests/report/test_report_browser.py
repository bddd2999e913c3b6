"""Report in a real browser: opens from a file without requests, runs no content of a trace, and shows the figures of
the Python API at every snapshot or, if served, at any event."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from report_in_browser import Report, labels, open_browser
from report_servers import running_server
from running import ROOT, run_python
from shared_recordings import record_once, record_report, run_source

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.report.page import report as document
from pytorch_alloctrace.report.page import what_if
from pytorch_alloctrace.report.page.server import ReportServer

pytestmark = pytest.mark.slow("browser")

SAMPLED_SNAPSHOTS, SAMPLED_EVENTS = 20, 12
OpenPage = Callable[..., Report]
CPU_PROGRAM = """
import torch
import pytorch_alloctrace as alloctrace
alloctrace.enable("cpu.alloctrace", devices=["cpu"])
kept = [torch.empty(1 << 20) for _ in range(3)]
alloctrace.disable()
alloctrace.enable("empty.alloctrace", devices=["cpu"])
alloctrace.disable()
"""

TRAINING = """
import torch, pytorch_alloctrace as alloctrace
alloctrace.enable("roles.alloctrace", devices=["cpu"])
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64))
optimizer = torch.optim.Adam(model.parameters())
for _ in range(6):
    model(torch.randn(32, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    alloctrace.step()
alloctrace.disable()
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as tab:
        yield tab


@pytest.fixture(scope="module")
def trace() -> alloctrace.Trace:
    return alloctrace.load(record_once("report", record_report) / "run.alloctrace")


@pytest.fixture(scope="module")
def report_path(trace: alloctrace.Trace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trace.report().write(tmp_path_factory.mktemp("browser") / "run.html")


@pytest.fixture
def open_page(browser: Any) -> Iterator[OpenPage]:
    """Return a function that opens a report, which must log nothing to the console during the test."""
    pages: list[Report] = []

    def open_report(path: Path, **settings: Any) -> Report:
        pages.append(Report(browser, path, **settings))
        return pages[-1]

    yield open_report
    for page in pages:
        page.page.context.close()
    assert [page.messages for page in pages] == [[]] * len(pages)


@pytest.fixture
def tab(open_page: OpenPage, report_path: Path) -> Report:
    return open_page(report_path)


def test_report_opens_from_file_without_requests(tab: Report, trace: alloctrace.Trace, report_path: Path) -> None:
    assert tab.requests == [report_path.as_uri()]
    assert tab.page.query_selector("#event") is None, "only a served report has an event field"
    assert "connect-src 'none'" in tab.page.get_attribute("meta[http-equiv]", "content")
    for view in ("diagnosis", "timeline", "memory", "segments", "fragmentation", "what-if", "leaks", "oom", "sites"):
        assert tab.page.is_visible(f"#{view} h2")

    diagnosis = tab.page.inner_text("#diagnosis")
    for finding in trace.diagnose():
        assert finding.title in diagnosis
        for sentence in finding.sentences:
            assert sentence in diagnosis


def test_hostile_trace_runs_no_script(tab: Report) -> None:
    page = tab.page
    assert page.evaluate("window.broken") is None
    assert page.evaluate("document.scripts.length") == 2 and page.evaluate("document.images.length") == 0
    assert "</script><script>window.broken = 1</script>" in page.inner_text("#sites")

    # Content of a trace would not run even if it became HTML.
    page.evaluate("document.body.append(Object.assign(document.createElement('script'), {text: 'window.broken = 1'}))")
    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.broken = 1\">')")
    page.wait_for_timeout(200)
    assert page.evaluate("window.broken") is None
    assert all("Content Security Policy" in message for message in tab.messages)
    tab.messages.clear()


def compare_with_api(tab: Report, trace: alloctrace.Trace, seq: int, device: str) -> None:
    """Compare the figures of a device on the page with the Python API at an event."""
    assert tab.bytes("#live-bytes") == trace.live(seq, device=device)["requested_bytes"].sum()
    composition = trace.usage(seq, device=device)
    if len(composition):
        assert tab.rows("memory", 1) == labels(trace, composition, "live_bytes")
        assert tab.rows("memory", 3) == labels(trace, composition, "live_blocks")
    segments = trace.segments(seq, device=device)
    assert tab.bytes("#reserved-bytes") == segments["total_bytes"].sum()
    if not len(segments):
        assert "Nothing is reserved" in tab.page.inner_text("#fragmentation")
        return
    fragmentation = trace.fragmentation(seq, device=device)
    for name in ("reserved", "free", "stranded", "releasable"):
        assert tab.bytes(f"#fragmentation [data-figure='{name}']") == getattr(fragmentation, f"{name}_bytes")
    assert tab.bytes("#fragmentation [data-figure='largest-free-block']") == fragmentation.largest_free_bytes


def test_figures_match_api_at_random_snapshots(tab: Report, trace: alloctrace.Trace) -> None:
    selected = random.Random(15).sample(range(tab.snapshots()), SAMPLED_SNAPSHOTS)
    for device in trace.devices:
        tab.page.click(f".devices [data-device='{device}']")
        for snapshot in selected:
            compare_with_api(tab, trace, tab.go(snapshot), device)


def test_memory_table_matches_api_by_function_file_and_phase(tab: Report, trace: alloctrace.Trace) -> None:
    seq = tab.event()
    for by in ("function", "file", "phase"):
        tab.page.click(f"#memory [data-by='{by}']")
        composition = trace.usage(seq, device="cuda:0", by=by)
        assert sorted(tab.rows("memory", 1).values()) == sorted(composition["live_bytes"])


def test_flame_graph_begins_with_largest_call(tab: Report, trace: alloctrace.Trace) -> None:
    tab.page.locator(".flame").scroll_into_view_if_needed()
    tab.page.hover(".flame", position={"x": 12, "y": 8})
    tooltip = tab.page.inner_text(".tooltip")
    first = trace.usage(tab.event(), by="call", device="cuda:0").iloc[0]

    assert f"{first['live_bytes']:,} bytes" in tooltip and f":{first['line']} in {first['function']}" in tooltip


def test_cursor_changes_all_views(tab: Report) -> None:
    tab.go(tab.snapshots() - 2)
    charts = [f"{section} .chart canvas" for section in ("#timeline", "#fragmentation")]
    views = (".flame", ".segments", "#timeline canvas.overview", *charts)

    def state() -> list[str]:
        texts = [tab.page.inner_text(name) for name in (".cursor-bar", "#memory .lead", "#segments .lead")]
        return [*texts, *(tab.picture(view) for view in views)]

    before = state()
    tab.page.keyboard.press("Home")
    tab.page.keyboard.press("ArrowRight")
    tab.page.keyboard.press("ArrowRight")
    after = state()
    assert all(old != new for old, new in zip(before, after, strict=True))

    tab.page.keyboard.press("ArrowLeft")
    tab.page.keyboard.press("ArrowLeft")
    assert int(tab.page.input_value("#snapshot")) == 0

    tab.page.keyboard.press("End")
    assert int(tab.page.input_value("#snapshot")) == tab.snapshots() - 1


def test_click_on_timeline_sets_cursor_and_dragging_zooms(tab: Report) -> None:
    tab.go(tab.snapshots() - 1)
    tab.page.click("text=Whole run")
    before = tab.picture("#timeline .chart canvas")
    tab.page.click("#timeline .u-over", position={"x": 300, "y": 60})
    assert tab.picture("#timeline .chart canvas") != before

    over = tab.page.locator("#timeline .u-over").bounding_box()
    assert not tab.page.is_visible("text=Whole run")

    tab.page.mouse.move(over["x"] + 200, over["y"] + 50)
    tab.page.mouse.down()
    tab.page.mouse.move(over["x"] + 500, over["y"] + 50, steps=4)
    tab.page.mouse.up()
    assert tab.page.is_visible("text=Whole run")

    tab.page.click("text=Whole run")
    assert not tab.page.is_visible("text=Whole run")


LEVELS = """
import time, torch
import pytorch_alloctrace as alloctrace
alloctrace.enable("levels.alloctrace", devices=["cpu"])
kept = []
for mib in (16, 64, 32):
    kept.append(torch.empty(mib << 20, dtype=torch.uint8))
    time.sleep(0.3)
alloctrace.disable()
"""
AREA_HEIGHTS = """canvas => {
    const {width, height} = canvas;
    const pixels = canvas.getContext('2d').getImageData(0, 0, width, height).data;
    const heights = {};
    for (let x = 0; x < width; x++) {
        let count = 0;
        for (let y = 0; y < height; y++) {
            const [r, g, b] = pixels.slice(4 * (y * width + x));
            count += r === 0 && g === 114 && b === 178;
        }
        if (count) heights[count] = (heights[count] ?? 0) + 1;
    }
    return heights;
}"""
"""Number of pixel columns by the number of their pixels in the colour of the largest line."""


def test_memory_by_line_is_drawn_in_steps(open_page: OpenPage, tmp_path: Path) -> None:
    """Slopes between the snapshots showed memory that never was."""
    trace = alloctrace.load(run_source(tmp_path, LEVELS) / "levels.alloctrace")
    tab = open_page(trace.report().write(tmp_path / "levels.html"))
    tab.page.click("text=By line")

    heights = tab.page.eval_on_selector("#timeline .chart canvas", AREA_HEIGHTS)
    columns = sum(heights.values())
    most = sorted(heights.values(), reverse=True)[:3]
    # Marks at the edges of the chart cover some pixels of a few columns.
    assert columns > 500 and sum(most) > 0.9 * columns, heights


def test_timeline_by_role_and_of_one_line(tab: Report, trace: alloctrace.Trace) -> None:
    def picture() -> str:
        return tab.picture("#timeline .chart canvas")

    tab.page.click("text=By line")
    all_lines = picture()
    tab.page.click("#timeline .legend-item >> nth=0")
    assert picture() != all_lines and " alone: " in tab.page.inner_text("#timeline")

    tab.page.hover("#timeline .u-over", position={"x": 700, "y": 60})
    assert re.search(r"after event [\d,]+", tab.page.inner_text(".tooltip"))
    tab.page.keyboard.press("Escape")
    assert picture() == all_lines


def test_timeline_by_role_names_roles(open_page: OpenPage, tmp_path: Path) -> None:
    trace = alloctrace.load(run_source(tmp_path, TRAINING) / "roles.alloctrace")
    tab = open_page(trace.report().write(tmp_path / "roles.html"))
    tab.page.click("text=By role")
    timeline = trace.timeline(by="role", device="cpu")
    used = [role for role in timeline.columns[2:] if timeline[role].any()]

    legend = tab.page.inner_text("#timeline .legend")
    assert len(used) > 3 and all(role in legend for role in used)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 768, 1280])
def test_page_and_tables_fit_the_screen(browser: Any, report_path: Path, width: int, scheme: str) -> None:
    page = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme).new_page()
    page.goto(report_path.as_uri())
    page.wait_for_selector("html[data-ready]")

    for button in ("By line", "Levels", "Compare from here"):
        page.click(f"text={button}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        too_wide = "boxes => boxes.filter(box => box.scrollWidth > box.clientWidth).map(box => box.innerText)"
        assert page.eval_on_selector_all(".table-box, .segmented", too_wide) == []
    page.context.close()


def test_search_filters_memory_table(tab: Report, trace: alloctrace.Trace) -> None:
    tab.page.keyboard.press("/")
    tab.page.keyboard.type("small.append")
    composition = trace.usage(tab.event(), device="cuda:0")
    expected = composition[composition["source"].str.contains("small.append", regex=False, na=False)]
    assert tab.rows("memory", 1) == labels(trace, expected, "live_bytes")
    assert "1 match" in tab.page.inner_text("#memory")

    tab.page.fill("#search", "no such thing")
    assert "Nothing that is live here matches" in tab.page.inner_text("#memory")


def test_sites_can_be_sorted_and_filtered(tab: Report, trace: alloctrace.Trace) -> None:
    # A line with only a failed allocation is in the table, but not on the page.
    expected = labels(trace, trace.usage(device="cuda:0").query("allocations > 0"), "total_bytes")
    assert tab.rows("sites", 1) == expected
    assert [*tab.rows("sites", 1).values()] == sorted(expected.values(), reverse=True)

    tab.page.click("#sites th:nth-child(2) button")
    assert [*tab.rows("sites", 1).values()] == sorted(expected.values())

    tab.page.click("#sites th:nth-child(1) button")
    assert len(tab.rows("sites", 1)) == len(expected)

    tab.page.fill("#site-filter", "weights")
    assert [*tab.rows("sites", 1).values()] == [40 << 20]


def test_comparison_of_two_snapshots_shows_growth(tab: Report, trace: alloctrace.Trace) -> None:
    first = tab.go(3)
    tab.page.click("#compare")
    for snapshot in (tab.snapshots() // 2, tab.snapshots() - 3):
        second = tab.go(snapshot)
        change = trace.diff(first, second, device="cuda:0")
        assert tab.bytes("#changed-bytes") == change["change_bytes"].sum()
        rows = tab.rows("memory", 1)
        expected = labels(trace, change, "change_bytes")
        assert {name: value for name, value in rows.items() if value} == {k: v for k, v in expected.items() if v}

    tab.page.keyboard.press("b")
    assert tab.page.query_selector("#changed-bytes") is None


def test_what_if_table_matches_api(tab: Report, trace: alloctrace.Trace) -> None:
    for device in ("cuda:1", "cuda:0"):
        tab.page.click(f".devices [data-device='{device}']")
        prediction = trace.what_if(device=device)
        assert prediction.check.sentence in tab.page.inner_text("#what-if")
        rows_of_page = tab.page.eval_on_selector_all(
            "#what-if tbody tr",
            "rows => rows.map(row => [row.cells[0].dataset.value, +row.cells[2].dataset.value,"
            " +row.cells[2].dataset.most, +row.cells[3].dataset.value, +row.cells[4].dataset.value])",
        )
        rows = [
            [outcome.setting.text, *outcome.peak_reserved_bytes, outcome.device_used_bytes, outcome.retries[1]]
            for outcome in prediction.outcomes
        ]
        assert rows_of_page == rows
        fittings = trace.fit([outcome.setting.text for outcome in prediction.outcomes], device=device).fittings
        for text, fitting in zip(tab.rows("what-if", 5).values(), fittings, strict=True):
            too_small = [number for number, gpu in enumerate(fitting.gpus) if not gpu.outcome.fits]
            assert text == fitting.gpus[max(too_small, default=-1) + 1].outcome.gpu.device_bytes
    # The failed allocation of the program, and whether it would have succeeded.
    assert "1 request that failed in the recording would have succeeded" in tab.page.inner_text("#what-if")


def test_links_of_findings_open_their_views(tab: Report, trace: alloctrace.Trace) -> None:
    tab.page.click("text=Show the map before the failure")
    (oom,) = trace.ooms()
    assert tab.event() == oom.seq - 1

    tab.page.click("text=Show it in memory")
    assert tab.event() == trace.steps()["seq"].iloc[-1]
    assert tab.page.query_selector("#memory tr.highlighted") is not None


def test_report_works_in_frame_of_notebook(browser: Any, trace: alloctrace.Trace, tmp_path: Path) -> None:
    (tmp_path / "notebook.html").write_text(f"<!DOCTYPE html><p>a cell</p>{trace.report()._repr_html_()}")
    page = browser.new_context(viewport={"width": 1000, "height": 900}).new_page()
    messages: list[str] = []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.goto((tmp_path / "notebook.html").as_uri())
    frame = page.frame_locator("iframe")
    frame.locator("html[data-ready]").wait_for(timeout=60_000)
    frame.locator("nav a[href='#sites']").click()
    frame.locator("#site-filter").fill("weights")

    assert frame.locator("#sites tbody tr").count() == 1
    assert messages == []
    page.context.close()


def test_colours_follow_light_and_dark_scheme(open_page: OpenPage, report_path: Path) -> None:
    pages = {}
    for scheme in ("light", "dark"):
        tab = open_page(report_path, color_scheme=scheme)
        style = "getComputedStyle(document.body)"
        colors = tab.page.evaluate(f"[{style}.backgroundColor, {style}.color]")
        pages[scheme] = [sum(map(int, re.findall(r"\d+", color)[:3])) for color in colors]
        tab.page.emulate_media(media="print")
        assert not tab.page.is_visible("#compare")

    (light_page, light_text), (dark_page, dark_text) = pages["light"], pages["dark"]
    assert light_page > 600 > light_text and dark_page < 150 < dark_text


def test_page_explains_missing_segments_and_allocations(open_page: OpenPage, run_program: Any, tmp_path: Path) -> None:
    run_program(CPU_PROGRAM)
    for name in ("cpu", "empty"):
        alloctrace.load(tmp_path / f"{name}.alloctrace").report().write(tmp_path / f"{name}.html")

    tab = open_page(tmp_path / "cpu.html")

    assert "Segments, fragmentation and what-if are left out" in tab.page.inner_text("footer")
    assert tab.page.locator("#segments, #fragmentation, #what-if").count() == 0
    assert tab.bytes("#live-bytes") == 12 << 20
    assert "Nothing was allocated" in open_page(tmp_path / "empty.html").page.inner_text("#diagnosis")


MANY_SEGMENTS = """
import torch, pytorch_alloctrace as alloctrace
with alloctrace.enable("many.alloctrace"):
    held = [torch.empty(1 << 20, dtype=torch.uint8, device="cuda") for _ in range(16000)]
    del held[1::4]
"""


def test_only_largest_segments_are_drawn_at_first(open_page: OpenPage, run_cuda_program: Any, tmp_path: Path) -> None:
    """A page with 100,000 segments had the height of thirty screens."""
    run_cuda_program(MANY_SEGMENTS)
    tab = open_page(alloctrace.load(tmp_path / "many.alloctrace").report().write(tmp_path / "many.html"))
    script = "document.querySelector('canvas.segments').clientHeight"
    height_at_first = tab.page.evaluate(script)
    text = tab.page.inner_text("#segments")
    assert re.search(r"The last [\d,]+ segments, [\d.]+ GiB, are not drawn", text), text

    tab.page.click("#all-segments")
    assert tab.page.evaluate(script) > height_at_first and not tab.page.is_visible("#all-segments")


def test_what_if_lists_settings_that_were_not_tried(
    open_page: OpenPage, trace: alloctrace.Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(what_if, "MOST_WORK", 18_000)
    tab = open_page(trace.report().write(tmp_path / "some.html"))
    text = tab.page.inner_text("#what-if")

    assert "Not tried, since the trace is long: max_split_size_mb" in text
    assert 1 < len(tab.rows("what-if", 2)) < 7


def test_truncated_trace_is_reported_in_red(open_page: OpenPage, trace: alloctrace.Trace, tmp_path: Path) -> None:
    data = Path(trace.path).read_bytes()
    (tmp_path / "cut.alloctrace").write_bytes(data[: len(data) * 3 // 5])
    with pytest.warns(alloctrace.IncompleteTraceWarning):
        truncated = alloctrace.load(tmp_path / "cut.alloctrace")
    tab = open_page(truncated.report().write(tmp_path / "cut.html"))
    assert str(truncated.integrity) in tab.page.inner_text("header [role=alert]")

    colour = tab.page.eval_on_selector("[role=alert]", "element => getComputedStyle(element).color")
    red, green, blue = map(int, re.findall(r"\d+", colour)[:3])
    assert red > 150 > green and blue < 100
    assert "The trace is cut short" in tab.page.inner_text("#what-if")


def test_assets_can_be_rebuilt(tmp_path: Path) -> None:
    run_python(ROOT, [str(ROOT / "tools/web")], True, 300, {"ALLOCTRACE_WEB_OUT": str(tmp_path)})
    for name in ("report.js", "report.css", "THIRD_PARTY.txt"):
        assert (tmp_path / name).read_text() == document.read_asset(name)


def test_findings_beyond_the_first_are_rendered_on_request(open_page: OpenPage, tmp_path: Path) -> None:
    """Charts of 800 leaks took most of the time in which a page tab."""
    functions = "".join(
        f"kept_{n} = []\ndef keep_{n}():\n    kept_{n}.append(torch.empty({1024 + 512 * n}))\n" for n in range(60)
    )
    calls = "".join(f"    keep_{n}()\n" for n in range(60))
    program = (
        "import torch\nimport pytorch_alloctrace as alloctrace\n"
        f"{functions}alloctrace.enable('many.alloctrace', devices=['cpu'])\n"
        f"for _ in range(60):\n{calls}    alloctrace.step()\nalloctrace.disable()\n"
    )
    run_source(tmp_path, program)
    trace = alloctrace.load(tmp_path / "many.alloctrace")
    count = sum(finding.leak is not None for finding in trace.diagnose())
    assert count > 50

    tab = open_page(trace.report().write(tmp_path / "many.html"))
    articles = tab.page.locator("#leaks article.leak")
    assert articles.count() == 5

    for _ in range(3):
        tab.page.click("#leaks details summary")
    tab.page.wait_for_selector("#leaks details article.leak")
    assert articles.count() == count


class Served(Report):
    """Served report in the browser."""

    def go_to_event(self, seq: int) -> int:
        self.page.fill("#event", str(seq))
        self.page.press("#event", "Enter")
        self.wait()
        return self.event()

    def wait(self) -> None:
        """Wait for the response of the server."""
        self.page.wait_for_selector(".live-status:empty", state="attached")


@pytest.fixture(scope="module")
def server(trace: alloctrace.Trace) -> Iterator[ReportServer]:
    with running_server(trace) as started:
        assert started.page  # rendered before the first request
        yield started


@pytest.fixture
def served(browser: Any, server: ReportServer) -> Iterator[Served]:
    tab = Served(browser, server.address)
    tab.wait()
    yield tab
    tab.page.context.close()
    assert tab.messages == []
    own = urlsplit(server.address).netloc
    assert {urlsplit(url).netloc for url in tab.requests} == {own}


def events_between(trace: alloctrace.Trace, served: Served) -> list[int]:
    """Return random events at which the page has no snapshot."""
    snapshots = {served.go(snapshot) for snapshot in range(0, served.snapshots(), 7)}
    candidates = random.Random(151).sample(range(trace._recorded.end_seq), SAMPLED_EVENTS * 3)
    return [seq for seq in candidates if seq not in snapshots][:SAMPLED_EVENTS]


def test_figures_match_api_at_any_served_event(served: Served, trace: alloctrace.Trace) -> None:
    events = events_between(trace, served)

    assert len(events) == SAMPLED_EVENTS
    for number, seq in enumerate(events):
        device = trace.devices[number % len(trace.devices)]
        served.page.click(f".devices [data-device='{device}']")
        assert served.go_to_event(seq) == seq
        compare_with_api(served, trace, seq, device)
        assert "nearest snapshot" not in served.page.inner_text("#segments")


def test_zoom_requests_finer_layers(served: Served) -> None:
    served.page.click("text=By line")
    over = served.page.locator("#timeline .u-over").bounding_box()
    served.page.mouse.move(over["x"] + 2, over["y"] + 50)
    served.page.mouse.down()
    served.page.mouse.move(over["x"] + 25, over["y"] + 50, steps=4)
    with served.page.expect_response("**/layers?**") as response:
        served.page.mouse.up()
    begin, end = map(int, re.findall(r"=(\d+)", response.value.url))

    assert response.value.status == 200 and 0 < begin < end
    for attempt in range(200):
        served.page.mouse.move(over["x"] + 400 + attempt % 2, over["y"] + 50)
        match = re.search(r"from ([\d.]+) (m?s) to ([\d.]+)", served.page.inner_text(".tooltip"))
        if match and (float(match[3]) - float(match[1])) * (1e9 if match[2] == "s" else 1e6) < (end - begin) / 100:
            return
        served.page.wait_for_timeout(50)
    pytest.fail("the drawn intervals are not finer than those of the page")


def test_click_selects_event_at_its_time(served: Served, trace: alloctrace.Trace) -> None:
    served.page.click("text=Whole run")
    box = served.page.locator("#timeline .u-over").bounding_box()
    first_alloc_ns = int(trace.events(kinds=("alloc",))["time_ns"].iloc[0])
    # A click selects the last event before its time: at both ends of the run these differ.
    shares = [0.0, (first_alloc_ns - trace.begin_ns) / (trace.end_ns - trace.begin_ns), 1.0]
    events = set()

    for x in {int(min(max(share * box["width"] + 3, 5), box["width"] - 5)) for share in shares}:
        before = served.event()
        served.page.click("#timeline .u-over", position={"x": x, "y": 60})
        for _ in range(200):
            if served.event() != before:
                break
            served.page.wait_for_timeout(50)
        served.wait()
        seq = served.event()
        events.add(seq)
        assert served.bytes("#live-bytes") == trace.live(seq, device="cuda:0")["requested_bytes"].sum()
    assert len(events) >= 2


def test_arrow_moves_from_event_to_next_snapshot(served: Served) -> None:
    at = served.snapshots() // 2
    snapshots = [served.go(snapshot) for snapshot in (at - 1, at)]
    between = (snapshots[0] + snapshots[1]) // 2
    if between in snapshots:
        between = snapshots[0]
    assert served.go_to_event(between) == between

    served.page.locator("#snapshot").focus()
    served.page.click("[aria-label='Next snapshot']")
    served.wait()
    assert served.event() == snapshots[1]


def test_stopped_server_is_reported(browser: Any, trace: alloctrace.Trace) -> None:
    with running_server(trace) as server:
        assert server.page
        tab = Served(browser, server.address)
        tab.wait()
    tab.page.fill("#event", "5")
    tab.page.press("#event", "Enter")
    tab.page.wait_for_selector("text=alloctrace serve does not answer: was it stopped?")

    assert all("ERR_CONNECTION_REFUSED" in message for message in tab.messages)
    tab.page.context.close()
