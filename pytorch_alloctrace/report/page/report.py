"""The report as users hold it: a page that can be written, opened, or shown in a notebook."""

from __future__ import annotations

import functools
import html
import os
import webbrowser
from pathlib import Path

from ...reading.recorded import RecordedTrace
from ..atomic import write_whole
from .data import page_data
from .document import document

_HEIGHT = 860
"""Of the frame in a notebook, in pixels."""


class Report:
    """One self-contained HTML page on a trace. A notebook shows it; `write` makes a file of it."""

    def __init__(self, trace: RecordedTrace, *, redact: bool = False) -> None:
        self._trace = trace
        self._redact = redact

    @functools.cached_property
    def html(self) -> str:
        """The page."""
        return document(*page_data(self._trace, redact=self._redact))

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Writes the page to a file, which another process never sees half written; returns its path. Raises
        ReportError where it cannot be written."""
        text = self.html.encode("utf-8")
        return write_whole(path, lambda file: file.write(text), trace=self._trace.path)

    def open(self, path: str | os.PathLike[str]) -> Path:
        """Writes the page, and shows it in the browser."""
        written = self.write(path)
        webbrowser.open(written.resolve().as_uri())
        return written

    def __repr__(self) -> str:
        return f"<Report on {self._trace.path}>"

    def _repr_html_(self) -> str:
        """In a notebook: the page in a frame of its own, in which only its own script runs."""
        page = html.escape(self.html, quote=True)
        return (
            f'<iframe srcdoc="{page}" sandbox="allow-scripts" '
            f'style="width:100%;height:{_HEIGHT}px;border:0" title="memory report"></iframe>'
        )
