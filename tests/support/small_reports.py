"""Reports with few of the maps of memory, which take a tenth of a second each, for tests that are not about them."""

from __future__ import annotations

import dataclasses

from pytorch_alloctrace.report.page import bounds


def make_reports_small() -> None:
    """Let all reports on small traces that this process makes have maps at 8 moments, of 72."""
    bounds._SMALL = dataclasses.replace(bounds._SMALL, maps=8)
