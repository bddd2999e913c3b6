"""Data and file of the report: figures of the Python API, no HTML from a trace, redaction, and assets that match their
sources. test_report_browser.py tests the page in a browser."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import html
import itertools
import json
import os
import re
import socket
import stat
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from extreme_traces import steps_of_many_devices
from format_reader import Cursor
from marked_programs import run_analyze
from report_in_browser import labels
from running import ROOT, run_python
from shared_recordings import record_once, record_report, run_source

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.errors import ReportError
from pytorch_alloctrace.reading.replay import MEASURES
from pytorch_alloctrace.report.page import layers as layers_module
from pytorch_alloctrace.report.page import snapshots, what_if
from pytorch_alloctrace.report.page.columns import Columns, unpack
from pytorch_alloctrace.report.page.maps import collect_holdings, merge_runs, pack_holdings
from pytorch_alloctrace.report.page.names import PageStacks, Redaction
from pytorch_alloctrace.report.page.report import Report, read_asset, render_page
from pytorch_alloctrace.report.page.snapshots import Bounds
from pytorch_alloctrace.report.page.sources import checksum
from pytorch_alloctrace.report.site_names import SiteNames

PROGRAM = ROOT / "tests/support/report_program.py"
WEB = ROOT / "pytorch_alloctrace/report/web"


@pytest.fixture(scope="module")
def trace() -> alloctrace.Trace:
    return alloctrace.load(record_once("report", record_report) / "run.alloctrace")


@pytest.fixture(scope="module")
def report(trace: alloctrace.Trace) -> Report:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshots, "_SMALL", dataclasses.replace(snapshots._SMALL, maps=8))
        report = trace.report()
        assert report.html  # rendered with the patched bounds
    return report


@pytest.fixture(scope="module")
def page(report: Report) -> Page:
    return Page(report.html)


class Page:
    """Data of a page, parsed as the script of the page does."""

    def __init__(self, text: str) -> None:
        self.text = text
        match = re.search(r'id="data">([^<]*)</script>', text)
        self.data, self._bytes = unpack(match[1])

    def column(self, reference: list[int]) -> list[int]:
        begin, count, is_difference = reference
        numbers = Cursor(self._bytes[begin:])
        values = [numbers.signed() for _ in range(count)]
        return [*itertools.accumulate(values)] if is_difference else values


@pytest.mark.parametrize(("by", "column"), [("module", "site"), ("role", "role"), ("phase", "phase")])
def test_groups_at_snapshot_match_usage(trace: alloctrace.Trace, page: Page, by: str, column: str) -> None:
    compared = 0

    for device in page.data["devices"]:
        seqs = page.column(page.data["snapshots"]["seq"])
        for snapshot, rows in device["maps"]["groups"][by].items():
            table = trace.usage(seqs[int(snapshot)], device=device["device"], by=by)
            expected = table[[column, "live_bytes", "live_blocks"]].to_numpy().tolist()
            assert sorted(map(tuple, rows)) == sorted(map(tuple, expected))
            compared += len(rows)
    assert compared > 5


def test_columns_restore_every_number() -> None:
    columns = Columns()
    numbers = [0, -1, 1, 127, 128, -(1 << 40), (1 << 47) + 5, 3, 3, 3]
    references = [columns.add(np.array(numbers), differences=value) for value in (True, False)]
    text = columns.pack({})
    page = Page(f'<script id="data">{text}</script>')

    assert [page.column(reference) for reference in references] == [numbers, numbers]


def test_curves_match_timeline(trace: alloctrace.Trace, page: Page) -> None:
    curves = page.data["curves"]
    timeline = trace.timeline(curves["points"])

    assert set(curves["devices"]) == set(trace.devices) == {"cuda:0", "cuda:1"}
    for device, curve in curves["devices"].items():
        rows = timeline[timeline["device"] == device]
        for measure in MEASURES:
            references = curve["measures"][measure.removesuffix("_bytes")]
            for name, column in (("last", measure), ("least", f"{measure}_min"), ("most", f"{measure}_max")):
                assert (np.array(page.column(references[name])) == rows[column]).all()


class Layers:
    """Layers of a device on a page: bytes by name in each interval."""

    def __init__(self, page: Page, device: str) -> None:
        data = page.data["layers"]
        of_device = data["devices"][device]
        (lines,) = (row["lines"] for row in page.data["devices"] if row["device"] == device)
        sites = page.data["stacks"]["sites"]
        line_names = [page.data["texts"][sites[number][0]] for number in lines]
        self.points, self.begin, self.end = data["points"], data["begin"], data["end"]
        self.seq = page.column(of_device["seq"])
        self.roles = self._read(page, of_device["roles"], page.data["roles"])
        self.lines = self._read(page, of_device["lines"], [*line_names, ""])

    @staticmethod
    def _read(page: Page, references: list[Any], names: list[str]) -> dict[str, np.ndarray[Any, Any]]:
        """Return rows of peak, lowest and highest bytes by name."""
        layers = {}
        for name, layer in zip(names, references, strict=True):
            if layer is not None:
                at_peak, above, least = (np.array(page.column(reference)) for reference in layer)
                layers[name] = np.array([at_peak, least, at_peak + above])
        return layers

    def interval(self, since_begin_ns: int) -> int:
        share = (since_begin_ns - self.begin) / (self.end - self.begin)
        return min(max(int(share * self.points), 0), self.points - 1)


def nonzero(values: dict[str, int]) -> dict[str, int]:
    return {name: value for name, value in values.items() if value}


def assert_layers_are_states(trace: alloctrace.Trace, page: Page, device: str) -> int:
    """Compare states, minima and maxima of random intervals with the memory after each of their events.

    Returns the number of events compared.
    """
    layers = Layers(page, device)
    events = trace.events(columns=["seq", "time_ns", "device"])
    intervals = np.array([layers.interval(int(time_ns) - trace.begin_ns) for time_ns in events["time_ns"]])
    compared = 0

    def state(seq: int, by: str) -> dict[str, int]:
        table = trace.usage(seq, device=device, by=by)
        return labels(trace, table, "live_bytes") if by == "line" else {**table.set_index("role")["live_bytes"]}

    for interval in np.random.default_rng(1).choice(np.unique(intervals[events["device"] == device]), 8):
        seqs = events["seq"][intervals == interval].tolist()
        first = max(seqs[0] - 1, 0)
        if len(seqs) > 200:
            continue
        for by, of_page in (("line", layers.lines), ("role", layers.roles)):
            states = [state(seq, by) for seq in (first, *seqs)]
            compared += len(states)
            shown = {name: int(values[0, interval]) for name, values in of_page.items()}
            assert nonzero(shown) == nonzero(state(layers.seq[interval], by))
            assert sum(shown.values()) == max(sum(row.values()) for row in states)
            for name, (_, least, most) in ((name, values[:, interval]) for name, values in of_page.items()):
                of_name = [row.get(name, 0) for row in states]
                assert (least, most) == (min(of_name), max(of_name)), (by, name, interval)
    return compared


def test_layers_are_states_of_their_intervals(trace: alloctrace.Trace, page: Page) -> None:
    for device in trace.devices:
        assert assert_layers_are_states(trace, page, device) > 20


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


def test_layers_by_role_match_usage_and_timeline(tmp_path: Path) -> None:
    trace = alloctrace.load(run_source(tmp_path, TRAINING) / "roles.alloctrace")
    page = Page(trace.report().html)
    layers = Layers(page, "cpu")

    assert assert_layers_are_states(trace, page, "cpu") > 20
    assert {"parameter", "gradient", "optimizer state", "activation"} <= {*layers.roles}
    for role, values in layers.roles.items():
        timeline = trace.timeline(200, by="role", device="cpu")[role]
        assert timeline.max() <= values[2].max() and timeline.iloc[-1] <= values[2, -1]


def test_layers_beyond_the_largest_lines_are_one(trace: alloctrace.Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers_module, "_MAX_LINES", 2)
    page = Page(trace.report().html)

    rests = []
    for device in trace.devices:
        of_page = Layers(page, device)
        assert len(of_page.lines) <= 3
        for interval in (100, 500, of_page.points - 1):
            usage = labels(trace, trace.usage(of_page.seq[interval], device=device), "live_bytes")
            shown = {name: int(values[0, interval]) for name, values in of_page.lines.items()}
            rest = shown.pop("", 0)
            assert nonzero(shown) == {name: usage[name] for name in usage.keys() & shown.keys() if usage[name]}
            assert rest == sum(usage.values()) - sum(shown.values())
            rests.append(rest)
    assert any(rests)


def test_layers_are_unknown_in_compacted_part(trace: alloctrace.Trace, tmp_path: Path) -> None:
    compacted_until = trace._recorded.end_seq // 2
    trace._recorded.write_compacted(os.fsencode(tmp_path / "compacted.alloctrace"), compacted_until, False)
    compacted = alloctrace.load(tmp_path / "compacted.alloctrace")
    page = Page(compacted.report().html)

    for device in compacted.devices:
        layers = Layers(page, device)
        is_unknown = np.array(layers.seq) < 0
        assert is_unknown.any() and not is_unknown.all()
        known = np.flatnonzero(~is_unknown)
        assert (np.diff(known) == 1).all() and min(layers.seq[row] for row in known) >= compacted_until - 1
        for row in (known[0], known[-1]):
            live_bytes = compacted.live(layers.seq[row], device=device)["requested_bytes"].sum()
            assert sum(values[0, row] for values in layers.lines.values()) == live_bytes


def test_segment_events_match_events(trace: alloctrace.Trace, page: Page) -> None:
    signs = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
    events = trace.events(kinds=[kind for kind in signs if trace._recorded.kind_counts.get(kind)])

    for device, curve in page.data["curves"]["devices"].items():
        rows = events[events["device"] == device]
        expected = (rows["kind"].map(signs).astype(int) * rows["requested_bytes"]).tolist()
        assert page.column(curve["segment_events"]["bytes"]) == expected
    assert len(events) > 10 and events["kind"].nunique() > 1


def test_only_devices_with_most_memory_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(what_if, "MOST_WORK", 10)
    monkeypatch.setattr(snapshots, "_SMALL", dataclasses.replace(snapshots._SMALL, maps=2, devices=3))
    path = tmp_path / "many.alloctrace"
    path.write_bytes(steps_of_many_devices(10, devices=12))
    trace = alloctrace.load(path)
    assert len(trace.devices) == 12

    page = Page(trace.report().html)
    names = [device["device"] for device in page.data["devices"]]
    assert names == [f"cuda:{number}" for number in range(13, 10, -1)]
    assert page.data["devices_left_out"] == 12 - 3
    assert set(page.data["curves"]["devices"]) == set(page.data["what_if"]) == set(names)


def test_snapshots_include_peaks_failures_marks_and_end(trace: alloctrace.Trace, page: Page) -> None:
    seqs = page.column(page.data["snapshots"]["seq"])
    assert seqs == sorted(set(seqs))

    expected = [trace.peak(kind, device=device).seq for device in trace.devices for kind in ("allocated", "reserved")]
    failures, marks = trace._recorded.failed_allocations, trace.marks()
    expected += [trace._recorded.end_seq - 1, *(seq - 1 for seq in failures), *marks["begin_seq"], *marks["end_seq"]]
    assert set(expected) <= set(seqs)
    assert len(failures) == 1


def test_live_bytes_of_stacks_match_api(trace: alloctrace.Trace, page: Page) -> None:
    seqs = page.column(page.data["snapshots"]["seq"])
    sites = page.column(page.data["stacks"]["frames"]["site"])
    texts = page.data["texts"]

    for device in page.data["devices"]:
        holdings = {name: page.column(reference) for name, reference in device["holdings"].items()}
        for snapshot, seq in enumerate(seqs):
            bytes_by_label: dict[str, int] = {}
            for run, frame in enumerate(holdings["frame"]):
                if holdings["first"][run] <= snapshot <= holdings["first"][run] + holdings["length"][run]:
                    label = texts[page.data["stacks"]["sites"][sites[frame]][0]]
                    bytes_by_label[label] = bytes_by_label.get(label, 0) + holdings["bytes"][run]
            assert bytes_by_label == labels(trace, trace.usage(seq, device=device["device"]), "live_bytes")


def test_stacks_beyond_the_limit_are_merged_by_line(trace: alloctrace.Trace) -> None:
    recorded = trace._recorded
    seqs = [recorded.end_seq // 2, trace.peak(device="cuda:0").seq]
    bounds = Bounds(snapshots=2, maps=2, block_rows=10, block_runs=10, holding_runs=1000, stacks=2, sites=3)
    holdings = collect_holdings(recorded, "cuda:0", seqs, bounds)

    assert set(holdings.representatives.values()) & {-1}
    assert len({representative for representative in holdings.representatives.values() if representative >= 0}) == 3
    for snapshot, seq in enumerate(seqs):
        of_snapshot = holdings.table[holdings.table["snapshot"] == snapshot]
        assert of_snapshot["bytes"].sum() == trace.live(seq, device="cuda:0")["requested_bytes"].sum()
    columns = Columns()
    pack_holdings(holdings, PageStacks(recorded.stacks, SiteNames("")), columns)


def test_merge_runs_joins_equal_rows_of_consecutive_snapshots() -> None:
    table = pd.DataFrame({"snapshot": [0, 1, 2, 4, 0, 1], "key": [1, 1, 1, 1, 2, 2], "value": [5, 5, 5, 5, 7, 8]})
    merged = merge_runs(table, ["key"], ["value"])
    rows = merged[["key", "value", "first", "last"]].to_numpy().tolist()

    assert rows == [[1, 5, 0, 2], [2, 7, 0, 0], [2, 8, 1, 1], [1, 5, 4, 4]]


def test_findings_have_sentences_of_terminal_and_survivors_of_leak(trace: alloctrace.Trace, page: Page) -> None:
    findings = [(finding["kind"], finding["title"], finding["sentences"]) for finding in page.data["findings"]]
    assert findings == [(finding.kind, finding.title, list(finding.sentences)) for finding in trace.diagnose()]
    assert {kind for kind, _, _ in findings} >= {"oom", "leak"}

    # The survivors of a leak are live after the last step.
    leak = next(finding for finding in page.data["findings"] if finding["kind"] == "leak")
    assert sum(leak["leak"]["births"]["bytes"]) == 40 << 20
    assert set(leak["leak"]["births"]["bytes"][:40]) == {1 << 20}


def test_text_of_trace_is_escaped_and_cannot_run(page: Page) -> None:
    assert page.text.count("<script") == 2
    assert "somebody" not in page.text and "window.broken" not in page.text
    assert any("</script><script>" in text for text in page.data["texts"])
    assert any("<b>bold</b>" in mark[0] for mark in page.data["positions"]["marks"])

    rendered = render_page("</title><script>alert(1)</script>", "")
    assert "<script>alert(1)" not in rendered
    assert html.escape("</title><script>alert(1)</script>") in rendered

    # Only the page's own script and style may run.
    match = re.search(r'Content-Security-Policy" content="([^"]*)"', page.text)
    policy = dict(part.strip().split(" ", 1) for part in match[1].split(";"))
    assert policy["default-src"] == "'none'"
    for directive, tag in (("script-src", "script"), ("style-src", "style")):
        source = re.search(rf"<{tag}>(.*?)</{tag}>", page.text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(source[1].encode()).digest()).decode()
        assert policy[directive] == f"'sha256-{digest}'"


def test_redacted_page_has_no_paths(trace: alloctrace.Trace, page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(what_if, "MOST_WORK", 20_000)  # only some settings
    monkeypatch.setattr(snapshots, "_SMALL", dataclasses.replace(snapshots._SMALL, maps=3))
    redacted = Page(trace.report(redact=True).html)
    content = json.dumps(redacted.data) + redacted.text.split("<style>")[0]
    assert redacted.data["redacted"]
    for secret in ("/home/somebody", str(ROOT), str(PROGRAM.parent), str(Path(trace.path).parent), "torch.empty("):
        assert secret not in content

    host = trace.header.get("host") or socket.gethostname()
    assert ["host", host] not in redacted.data["header"]["facts"]
    assert redacted.data["header"]["command"] == "report_program.py"
    assert any("report_program.py:" in text for text in redacted.data["texts"])
    assert "torch.empty(" in json.dumps(page.data)
    assert str(trace.header["arguments"][0]) in page.data["header"]["command"]


ON_WINDOWS = "\\".join(("D:", "projects", "x.py"))


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("/home/alice/secret/train.py:12 in main", "train.py:12 in main"),
        (f"see ~/projects/train.py, and {ON_WINDOWS}", "see train.py, and x.py"),
        ("768 KiB/step, 3 / 4, https is fine", "768 KiB/step, 3 / 4, https is fine"),
        ("in '/data/my models/a b.py' too", "in 'a b.py' too"),
    ],
)
def test_redaction_removes_folders_from_text(text: str, redacted: str) -> None:
    assert Redaction(["/data/my models/a b.py"]).text(text) == redacted


def test_write_keeps_old_file_if_replace_fails(report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = report.write(tmp_path / "a.html")
    assert target.read_text(encoding="utf-8") == report.html

    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(target.stat().st_mode) == 0o666 & ~umask

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(ReportError, match="No space left on device"):
        report.write(target)
    assert target.read_text(encoding="utf-8") == report.html
    assert [path.name for path in tmp_path.iterdir()] == ["a.html"]


def test_report_command_writes_file_or_fails_in_one_line(tmp_path: Path) -> None:
    with alloctrace.enable(tmp_path / "small.alloctrace", devices=("cpu",)):
        tensor = torch.empty(1000)
    del tensor
    assert re.fullmatch(r"small\.html: [\d.]+ KiB\n", run_analyze(tmp_path, "report", "small.alloctrace"))
    assert Page((tmp_path / "small.html").read_text()).data["redacted"] is False

    out = run_analyze(tmp_path, "report", "small.alloctrace", "-o", "other.html", "--redact", "--json")
    written = {"path": "other.html", "bytes": (tmp_path / "other.html").stat().st_size}
    assert json.loads(out) == {"format": "pytorch_alloctrace.report", "format_version": 1, **written}
    assert Page((tmp_path / "other.html").read_text()).data["redacted"] is True
    for target in ("no/such/folder.html", "small.alloctrace", "."):
        assert run_analyze(tmp_path, "report", "small.alloctrace", "-o", target, status=2).count("\n") == 1, target


def test_report_is_a_sandboxed_frame_in_notebook(report: Report) -> None:
    frame = report._repr_html_()
    assert frame.startswith("<iframe srcdoc=") and 'sandbox="allow-scripts"' in frame
    match = re.search(r'srcdoc="([^"]*)"', frame)
    assert match is not None and html.unescape(match[1]) == report.html


def test_assets_match_their_sources() -> None:
    for name in ("report.js", "report.css"):
        match = re.search(r"sources sha256:(\w+)", read_asset(name))
        assert match is not None and match[1] == checksum(WEB), f"{name} does not match {WEB}: run tools/web"
    assert "MIT License" in read_asset("report.js") and "MIT License" in read_asset("THIRD_PARTY.txt")


def test_assets_are_installed_without_their_sources(tmp_path: Path) -> None:
    command = [sys.executable, "setup.py", "-q", "build_py", "--build-lib", str(tmp_path)]
    # The reading half has the same pages and does not import torch.
    run_python(ROOT, command, True, 600, {"ALLOCTRACE_READER_ONLY": "1"}, fresh=True)
    installed = tmp_path / "pytorch_alloctrace/report"
    assets = {path.name for path in (installed / "page/assets").iterdir()}

    assert assets == {"report.css", "report.js", "THIRD_PARTY.txt"}
    assert not (installed / "web").exists() and (installed / "export/formats.py").exists()
