"""The report in Chromium, through Playwright."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.report.site_names import SiteNames


def chromium() -> str:
    programs = filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome")))
    return next(programs, None) or pytest.fail("Chromium is missing: run `apt-get install chromium`")


@contextlib.contextmanager
def open_browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Without its sandbox, which root may not use: it opens nothing but what is made here.
        opened = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield opened
        opened.close()


class Opened:
    """A report in the browser, and what it did there. page: its file or its address."""

    def __init__(self, browser: Any, page: Path | str, **settings: Any) -> None:
        self.said: list[str] = []
        self.requests: list[str] = []
        self.page = browser.new_context(viewport={"width": 1400, "height": 900}, **settings).new_page()
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("dialog", lambda dialog: self.said.append(dialog.message))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(page if isinstance(page, str) else page.as_uri())
        self.page.wait_for_selector("html[data-ready]", timeout=60_000)

    def bytes(self, selector: str) -> int:
        return int(self.page.get_attribute(selector, "data-bytes"))

    def event(self) -> int:
        event = re.search(r"event ([\d,]+)", self.page.inner_text(".cursor-bar .snapshot"))
        return int(event[1].replace(",", ""))

    def go(self, snapshot: int) -> int:
        """Move the cursor; return the event that it stops at."""
        self.page.evaluate(
            "snapshot => { const slider = document.getElementById('snapshot'); slider.value = snapshot;"
            " slider.dispatchEvent(new Event('input', {bubbles: true})); }",
            snapshot,
        )
        return self.event()

    def snapshots(self) -> int:
        return int(self.page.get_attribute("#snapshot", "max")) + 1

    def rows(self, section: str, column: int) -> dict[str, int]:
        """Return a column of the table of a section, by the first column."""
        more = self.page.query_selector(f"#{section} .table-box > button:has-text('Show all')")
        if more is not None:
            more.click()
        cells = self.page.eval_on_selector_all(
            f"#{section} tbody tr",
            "(rows, column) => rows.map(row => [row.cells[0].dataset.value, row.cells[column].dataset.value])",
            column,
        )
        return {name: int(float(value)) for name, value in cells}

    def picture(self, selector: str) -> str:
        return str(self.page.eval_on_selector(selector, "canvas => canvas.toDataURL()"))


def labels(trace: alloctrace.Trace, table: Any, column: str) -> dict[str, int]:
    """Return a column of a table of sites, by the names of sites on the page."""
    names = SiteNames(trace.header["working_directory"])
    sums: Counter[str] = Counter()
    for row in table.to_dict("records"):
        sums[names.site(alloctrace.Frame(row["function"], row["filename"], int(row["line"])))] += int(row[column])
    return sums
