"""What the verbs share in making the form that was asked for."""

from __future__ import annotations

import argparse
import json
from typing import Any

import pandas as pd

from ..report.site_names import SiteNames
from ..report.stacks import Frames, frames_of, with_frames
from ..report.tables import records
from ..trace import Trace


def whole_stacks(trace: Trace, options: argparse.Namespace) -> Frames | None:
    """Of a trace, where --all-frames asks for them."""
    return frames_of(trace) if options.all_frames else None


def place_names(trace: Trace, options: argparse.Namespace) -> SiteNames:
    """As the program's user knows them, and whole stacks where they are asked for."""
    return SiteNames(str(trace.header.get("working_directory", "")), whole_stacks(trace, options))


def json_text(data: Any, trace: Trace, options: argparse.Namespace) -> str:
    """A table or plain values as JSON."""
    frames = whole_stacks(trace, options)
    if not isinstance(data, pd.DataFrame):
        return json.dumps(with_frames(data, frames), indent=1) + "\n"
    if frames is None:
        return data.to_json(orient="records", indent=1) + "\n"
    return json.dumps(with_frames(records(data), frames), indent=1) + "\n"
