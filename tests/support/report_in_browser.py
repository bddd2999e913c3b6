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
        # root cannot use the sandbox; the browser opens only reports of these tests.
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield browser
        browser.close()


class Report:
    """A report in the browser, with its messages and requests. `page` is the report's file or address."""

    def __init__(self, browser: Any, page: Path | str, **settings: Any) -> None:
        self.messages: list[str] = []
        self.requests: list[str] = []
        self.page = browser.new_context(viewport={"width": 1400, "height": 900}, **settings).new_page()
        self.page.on("console", lambda message: self.messages.append(message.text))
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.page.on("dialog", lambda dialog: self.messages.append(dialog.message))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(page if isinstance(page, str) else page.as_uri())
        self.page.wait_for_selector("html[data-ready]", timeout=60_000)

    def bytes(self, selector: str) -> int:
        return int(self.page.get_attribute(selector, "data-bytes"))

    def event(self) -> int:
        event = re.search(r"event ([\d,]+)", self.page.inner_text(".cursor-bar .snapshot"))
        return int(event[1].replace(",", ""))

    def go(self, snapshot: int) -> int:
        """Move the cursor to a snapshot; return the cursor's event."""
        self.page.evaluate(
            "snapshot => { const slider = document.getElementById('snapshot'); slider.value = snapshot;"
            " slider.dispatchEvent(new Event('input', {bubbles: true})); }",
            snapshot,
        )
        return self.event()

    def snapshots(self) -> int:
        return int(self.page.get_attribute("#snapshot", "max")) + 1

    def rows(self, section: str, column: int) -> dict[str, int]:
        """Return a column of a section's table, by the value in the first column."""
        button = self.page.query_selector(f"#{section} .table-box > button:has-text('Show all')")
        if button is not None:
            button.click()
        cells = self.page.eval_on_selector_all(
            f"#{section} tbody tr",
            "(rows, column) => rows.map(row => [row.cells[0].dataset.value, row.cells[column].dataset.value])",
            column,
        )
        return {name: int(float(value)) for name, value in cells}

    def picture(self, selector: str) -> str:
        return str(self.page.eval_on_selector(selector, "canvas => canvas.toDataURL()"))


def labels(trace: alloctrace.Trace, table: Any, column: str) -> dict[str, int]:
    """Return the sums of a column of a table of sites, by the site's name on the page."""
    names = SiteNames(trace.header["working_directory"])
    sums: Counter[str] = Counter()
    for row in table.to_dict("records"):
        sums[names.site(alloctrace.Frame(row["function"], row["filename"], int(row["line"])))] += int(row[column])
    return sums
