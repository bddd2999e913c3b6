"""The report as users hold it: a page that can be written, opened, or shown in a notebook."""

from __future__ import annotations

import base64
import functools
import hashlib
import html
import os
import webbrowser
from pathlib import Path

from ...reading.recorded import RecordedTrace
from ..file_output import write_whole
from .data import page_data

ASSETS = Path(__file__).resolve().parent / "assets"

_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src '{script_hash}'; \
style-src '{style_hash}'; img-src data:; connect-src {asks}; base-uri 'none'; form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="pytorch_alloctrace">
<link rel="icon" href="data:,">
<title>{title}: memory report</title>
<style>{style}</style>
</head>
<body>
<div id="report"><p class="loading">Unpacking the trace …</p></div>
<noscript><p class="loading">This report is drawn by its own script: allow JavaScript for this file. It loads nothing \
from anywhere.</p></noscript>
<script type="application/octet-stream" id="data">{data}</script>
<script>{script}</script>
</body>
</html>
"""


@functools.cache
def asset(name: str) -> str:
    """The text of a file that is shipped."""
    return (ASSETS / name).read_text(encoding="utf-8")


def document(title: str, data: str, *, live: bool = False) -> str:
    """The page as HTML. data: base64. live: it may ask the server that it is from, and nobody else."""
    script, style = asset("report.js"), asset("report.css")
    return _PAGE.format(
        title=html.escape(title),
        data=data,
        asks="'self'" if live else "'none'",
        script=script,
        style=style,
        script_hash=_source_hash(script),
        style_hash=_source_hash(style),
    )


def _source_hash(text: str) -> str:
    """As a policy names what may run."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


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
