"""Names of sites, frames and whole stacks: short but never cut off, each on one line.

--all-frames shows whole stacks: every frame, including library frames, innermost first. In JSON, each object with a
`stack_id` then also has `frames`: a list of function, filename, line, source.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..reading.names import NO_STACK
from ..reading.recorded import RecordedTrace
from ..reading.sites import Frame, Site, SiteBytes
from ..reading.source_code import short_filename
from . import units

if TYPE_CHECKING:
    from ..analysis.summary import Program


Frames = Callable[[int], Sequence[Frame]]
"""Function that returns the frames of a stack, by its number."""


def frames_of(trace: RecordedTrace) -> Frames:
    """Return the frames function of a trace; it returns no frames for stacks that a corrupt trace lacks."""
    return lambda stack: trace.frames(stack) if 0 <= stack < len(trace.stacks) else []


def with_frames(data: Any, frames: Frames | None) -> Any:
    """Add frames to each object that has a stack; return `data` unchanged without `frames`."""
    if frames is None:
        return data
    if isinstance(data, list | tuple):
        return [with_frames(item, frames) for item in data]
    if not isinstance(data, dict):
        return data
    with_stacks = {name: with_frames(value, frames) for name, value in data.items()}
    if isinstance(data.get("stack_id"), int):
        with_stacks["frames"] = frames_data(frames(data["stack_id"]))
    return with_stacks


def frames_data(frames: Sequence[Frame]) -> list[dict[str, Any]]:
    """Return frames as plain values."""
    return [dataclasses.asdict(frame) for frame in frames]


_KERNEL = re.compile(r"(?:.*[/\\])?\w*kernel_launcher\.py$|-m \w*kernel_launcher$")
"""Program path of a notebook kernel, of Jupyter and of tools that follow its naming."""
_PART = 1 << 20
"""Number of characters checked at once."""


def printable(text: str) -> str:
    """Escape control characters: a hostile trace must not control the terminal."""
    # Fast path: character by character, a stack of thousands of frames takes seconds.
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def without_controls(text: str) -> str:
    """Escape control and invisible characters of multi-line text, except newline and tab."""
    # Copy only if needed: an output may have hundreds of megabytes.
    parts = (text[begin : begin + _PART] for begin in range(0, len(text), _PART))
    if all(part.replace("\n", " ").replace("\t", " ").isprintable() for part in parts):
        return text
    return "\n".join("\t".join(map(printable, line.split("\t"))) for line in text.split("\n"))


class SiteNames:
    """Names of sites and files, relative to the working directory of the traced program."""

    def __init__(self, working_directory: str, frames: Frames | None = None) -> None:
        """Set the working directory, and the frames function to show whole stacks."""
        self._frames = frames
        self._working_directory = working_directory

    def file(self, filename: str) -> str:
        """Return `short_filename` on one line."""
        return printable(short_filename(filename, self._working_directory))

    def site(self, code: Site | Frame) -> str:
        """Return the name of a site or frame, such as "train.py:41 in train"."""
        if not code.filename:
            return printable(code.function) or NO_STACK
        # "<module>" adds nothing to the name of the file.
        function = f" in {printable(code.function)}" if code.function and code.function != "<module>" else ""
        library = " (library code; no user code called it)" if isinstance(code, Site) and not code.user else ""
        line = f":{code.line}" if code.line else ""
        return f"{self.file(code.filename)}{line}{function}{library}"

    def holder(self, site: SiteBytes) -> str:
        """Return the name of a site, with the bytes that its backward allocated."""
        backward = units.size(site.backward_bytes)
        return self.site(site.site) + (f" (including {backward} in its backward)" if site.backward_bytes else "")

    def stack(self, stack: int) -> list[str]:
        """Return the names of the frames of a stack, innermost first; empty without --all-frames."""
        return [self.site(frame) for frame in self._frames(stack)] if self._frames is not None else []

    def source(self, code: Site | Frame) -> str | None:
        """Return the source of the line; None if unknown."""
        text = printable(code.source.strip()) if code.source else ""
        return text or None

    def referrer(self, text: str) -> str:
        """Return a referrer path as recorded, such as "Cache.items, global of train.py"."""
        return text

    def command(self, program: Program) -> str:
        """Return the program and its arguments, or "notebook" for a notebook kernel."""
        if _KERNEL.match(program.path):
            return "notebook"
        return printable(" ".join([self.file(program.path) or "(unknown program)", *program.arguments]))
