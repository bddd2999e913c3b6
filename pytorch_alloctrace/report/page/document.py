"""The page itself: the script and the style that are shipped (see ../web), and the data, in one HTML file.

The page may load nothing and run nothing but this script, by its hash. What the trace holds is in the data alone, in
base64: no text of it is ever HTML.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import html
from pathlib import Path

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
