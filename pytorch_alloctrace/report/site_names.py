"""Names of sites and frames, on one line each, and never truncated.

With --all-frames, stacks have every frame, library frames too, innermost first. In JSON, each object with a `stack_id`
then also has `frames`: a list of function, filename, line, source.
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
"""Function that returns the frames of a stack, given its number."""


def frames_of(trace: RecordedTrace) -> Frames:
    """Return the function for the frames of a trace. A stack that a corrupt trace lacks has no frames."""
    return lambda stack: trace.frames(stack) if 0 <= stack < len(trace.stacks) else []


def with_frames(data: Any, frames: Frames | None) -> Any:
    """Add frames to each object that has a stack; without `frames`, return `data` unchanged."""
    if frames is None:
        return data
    if isinstance(data, list | tuple):
        return [with_frames(item, frames) for item in data]
    if not isinstance(data, dict):
        return data
    result = {name: with_frames(value, frames) for name, value in data.items()}
    if isinstance(data.get("stack_id"), int):
        result["frames"] = frames_data(frames(data["stack_id"]))
    return result


def frames_data(frames: Sequence[Frame]) -> list[dict[str, Any]]:
    return [dataclasses.asdict(frame) for frame in frames]


_KERNEL = re.compile(r"(?:.*[/\\])?\w*kernel_launcher\.py$|-m \w*kernel_launcher$")
"""Program path of a notebook kernel: that of Jupyter, or one with a similar name."""
_CHUNK_CHARACTERS = 1 << 20


def printable(text: str) -> str:
    """Escape control characters: a hostile trace must not control the terminal."""
    # Fast path: character by character, a stack of thousands of frames takes seconds.
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def without_controls(text: str) -> str:
    """Escape control and invisible characters of multi-line text, except newline and tab."""
    # Copy only if needed: an output may have hundreds of megabytes.
    chunks = (text[begin : begin + _CHUNK_CHARACTERS] for begin in range(0, len(text), _CHUNK_CHARACTERS))
    if all(chunk.replace("\n", " ").replace("\t", " ").isprintable() for chunk in chunks):
        return text
    return "\n".join("\t".join(map(printable, line.split("\t"))) for line in text.split("\n"))


class SiteNames:
    """Names of sites and files, relative to a working directory; and of the frames of stacks, if `frames` is given.

    Files of an earlier run are named relative to its working directory.

    Paths of more than `longest` characters begin with an ellipsis instead of their first folders.
    """

    def __init__(
        self,
        working_directory: str,
        frames: Frames | None = None,
        *,
        earlier_directory: str = "",
        longest: int | None = None,
        ellipsis: str = "...",
    ) -> None:
        self._frames = frames
        self._directories = working_directory, earlier_directory
        self._longest = longest
        self._ellipsis = ellipsis

    def file(self, filename: str) -> str:
        """Return the short name of a file, such as "train.py"."""
        for directory in self._directories:
            filename = short_filename(filename, directory)
        name = printable(filename)
        if self._longest is None or len(name) <= self._longest:
            return name
        begin = name.find("/", len(name) - self._longest)
        begin = begin if begin >= 0 else name.rfind("/")
        return f"{self._ellipsis}{name[begin:]}" if begin > 0 else name

    def function(self, place: Site | Frame) -> str:
        """Return the qualified name of the function, or of memory without a line."""
        return place.function

    def module(self, name: str) -> str:
        """Return the name of an instance of torch.nn.Module, such as "GPT.h.3.attn"."""
        return name

    def mark(self, name: str) -> str:
        """Return the name of a mark or a region."""
        return name

    def site(self, place: Site | Frame) -> str:
        """Return the name of a site or frame, such as "train.py:41 in train"."""
        if not place.filename:
            return printable(self.function(place)) or NO_STACK
        # "<module>" adds nothing to the name of the file.
        name = printable(self.function(place))
        function = f" in {name}" if name and name != "<module>" else ""
        library = " (library code; no user code called it)" if isinstance(place, Site) and not place.user else ""
        line = f":{place.line}" if place.line else ""
        return f"{self.file(place.filename)}{line}{function}{library}"

    def holder(self, site: SiteBytes) -> str:
        """Return the name of a site, with the bytes that its backward allocated."""
        backward = units.size(site.backward_bytes)
        return self.site(site.site) + (f" (including {backward} in its backward)" if site.backward_bytes else "")

    def stack(self, stack: int) -> list[str]:
        """Return the names of the frames of a stack, innermost first; none without --all-frames."""
        return [self.site(frame) for frame in self._frames(stack)] if self._frames is not None else []

    def source(self, place: Site | Frame) -> str | None:
        """Return the source of the line, or None."""
        text = printable(place.source.strip()) if place.source else ""
        return text or None

    def referrer(self, text: str) -> str:
        """Return a referrer path as recorded, such as "Cache.items, global of train.py"."""
        return text

    def command(self, program: Program) -> str:
        """Return the program and its arguments, or "notebook" for a notebook kernel."""
        if _KERNEL.match(program.path):
            return "notebook"
        return printable(" ".join([self.file(program.path) or "(unknown program)", *program.arguments]))
