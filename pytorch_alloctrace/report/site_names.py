"""Names of sites, frames and whole stacks: short but never cut off, each on one line, whatever the trace holds.

Whole stacks are shown if --all-frames asks for them: every frame, including those of libraries, innermost first. In
JSON, whatever has a `stack_id` then also has `frames`: a list of function, filename, line, source.
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
"""The frames of a stack, by its number."""


def frames_of(trace: RecordedTrace) -> Frames:
    """Those of a trace; none for a stack that a damaged trace lacks."""
    return lambda stack: trace.frames(stack) if 0 <= stack < len(trace.stacks) else []


def with_frames(data: Any, frames: Frames | None) -> Any:
    """Plain values, where each object that has a stack gets its frames; unchanged without `frames`."""
    if frames is None:
        return data
    if isinstance(data, list | tuple):
        return [with_frames(item, frames) for item in data]
    if not isinstance(data, dict):
        return data
    made = {name: with_frames(value, frames) for name, value in data.items()}
    if isinstance(data.get("stack_id"), int):
        made["frames"] = frames_data(frames(data["stack_id"]))
    return made


def frames_data(frames: Sequence[Frame]) -> list[dict[str, Any]]:
    """Frames as plain values."""
    return [dataclasses.asdict(frame) for frame in frames]


_KERNEL = re.compile(r"(?:.*[/\\])?\w*kernel_launcher\.py$|-m \w*kernel_launcher$")
"""As Jupyter starts the kernel of a notebook, and others do it after its pattern."""
_PART = 1 << 20
"""Characters that are checked at once."""


def printable(text: str) -> str:
    """The text with control characters made visible: a foreign trace must not control the reader's terminal."""
    if text.isprintable():  # as nearly all are: character by character, a stack of thousands of frames takes seconds
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def without_controls(text: str) -> str:
    """Return text of several lines with control and invisible characters escaped, except newline and tab."""
    # An output may have hundreds of megabytes: a copy of all of it is made only if need be.
    parts = (text[begin : begin + _PART] for begin in range(0, len(text), _PART))
    if all(part.replace("\n", " ").replace("\t", " ").isprintable() for part in parts):
        return text
    return "\n".join("\t".join(map(printable, line.split("\t"))) for line in text.split("\n"))


class SiteNames:
    """Names of files as the user of the traced program knows them."""

    def __init__(self, working_directory: str, frames: Frames | None = None) -> None:
        """frames: given if whole stacks are to be shown."""
        self._frames = frames
        self._working_directory = working_directory

    def file(self, filename: str) -> str:
        """Return `short_filename` on one line."""
        return printable(short_filename(filename, self._working_directory))

    def site(self, code: Site | Frame) -> str:
        """Where it is: "train.py:41 in train"."""
        if not code.filename:
            return printable(code.function) or NO_STACK
        # "<module>" says nothing that the file's name does not.
        inside = f" in {printable(code.function)}" if code.function and code.function != "<module>" else ""
        library = " (library code; no user code called it)" if isinstance(code, Site) and not code.user else ""
        line = f":{code.line}" if code.line else ""
        return f"{self.file(code.filename)}{line}{inside}{library}"

    def holder(self, held: SiteBytes) -> str:
        """A site that holds bytes, and how many of them its backward allocated."""
        backward = units.size(held.backward_bytes)
        return self.site(held.site) + (f" (including {backward} in its backward)" if held.backward_bytes else "")

    def stack(self, stack: int) -> list[str]:
        """Each frame of a stack, innermost first; empty if whole stacks are not to be shown."""
        return [self.site(frame) for frame in self._frames(stack)] if self._frames is not None else []

    def source(self, code: Site | Frame) -> str | None:
        """The text of the line; None if it is unknown."""
        text = printable(code.source.strip()) if code.source else ""
        return text or None

    def referrer(self, text: str) -> str:
        """Return what the recorder wrote about an object that holds memory: "Cache.items, global of train.py"."""
        return text

    def command(self, program: Program) -> str:
        """The program and its arguments; of a notebook's kernel, which has only some of Jupyter's, that it is one."""
        if _KERNEL.match(program.path):
            return "notebook"
        return printable(" ".join([self.file(program.path) or "(unknown program)", *program.arguments]))
