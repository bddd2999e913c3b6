"""HTML report of a trace: a page that is written, opened, or shown in a notebook."""

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
from .data import build_page_data
from .names import Redact

ASSETS = Path(__file__).resolve().parent / "assets"

_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src '{script_hash}'; \
style-src '{style_hash}'; img-src data:; connect-src {connect_sources}; base-uri 'none'; form-action 'none'">
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
def read_asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def render_page(title: str, data: str, *, live: bool = False) -> str:
    """Return the HTML of a page with base64 `data`. If `live`, the page may connect to its own server."""
    script, style = read_asset("report.js"), read_asset("report.css")
    return _PAGE.format(
        title=html.escape(title),
        data=data,
        connect_sources="'self'" if live else "'none'",
        script=script,
        style=style,
        script_hash=_csp_hash(script),
        style_hash=_csp_hash(style),
    )


def _csp_hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


STILL_NAMED = (
    "The page still names files, functions, modules and variables of the program: --redact=names replaces them."
)
_FRAME_HEIGHT_PX = 860


class Report:
    """Self-contained HTML page of a trace. A notebook displays it; `write` saves it as a file."""

    def __init__(self, trace: RecordedTrace, *, redact: Redact = False) -> None:
        self._trace = trace
        self._redact = redact

    @functools.cached_property
    def html(self) -> str:
        """The page, as HTML."""
        page = build_page_data(self._trace, redact=self._redact)
        return render_page(page.title, page.packed)

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write the page to a file, atomically, and return its path.

        Args:
            path: The file to write. An existing file is replaced.

        Returns:
            The path of the file.

        Raises:
            ReportError: The file cannot be written, or is the trace itself.
        """
        encoded_page = self.html.encode("utf-8")
        return write_whole(path, lambda file: file.write(encoded_page), trace=self._trace.path)

    def open(self, path: str | os.PathLike[str]) -> Path:
        """Write the page to a file, open it in the browser, and return its path.

        Args:
            path: The file to write. An existing file is replaced.

        Returns:
            The path of the file.

        Raises:
            ReportError: The file cannot be written, or is the trace itself.
        """
        report_path = self.write(path)
        webbrowser.open(report_path.resolve().as_uri())
        return report_path

    def __repr__(self) -> str:
        return f"<Report on {self._trace.path}>"

    def _repr_html_(self) -> str:
        """Return the page in a frame whose sandbox runs only the page's own script."""
        page = html.escape(self.html, quote=True)
        return (
            f'<iframe srcdoc="{page}" sandbox="allow-scripts" '
            f'style="width:100%;height:{_FRAME_HEIGHT_PX}px;border:0" title="memory report"></iframe>'
        )
