"""How places in the code are shown: short, but never cut; on one line each, whatever the trace holds."""

from __future__ import annotations

import os
import re

from ..analysis.summary import Program
from ..reading.site_tables import Site
from ..reading.sites import Frame
from .stacks import Frames

_PACKAGES = re.compile(r".*[/\\](?:site|dist)-packages[/\\]")


def printable(text: str) -> str:
    """The text with control characters made visible: a trace from elsewhere must not drive the reader's terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


class PlaceNames:
    """Names of files as the traced program's user knows them."""

    def __init__(self, working_directory: str, frames: Frames | None = None) -> None:
        """frames: where whole stacks are to be shown."""
        self._frames = frames
        self._folder = working_directory.rstrip(os.sep) + os.sep if working_directory else ""

    def file(self, filename: str) -> str:
        """Relative to the folder of installed packages, which may be within the program's working directory; or to
        that; else in full."""
        filename = _PACKAGES.sub("", filename)
        if self._folder and filename.startswith(self._folder):
            filename = filename[len(self._folder) :]
        return printable(filename)

    def place(self, code: Site | Frame) -> str:
        """Where it is: "train.py:41 in train"."""
        if not code.filename:
            return "(no Python stack)"
        # "<module>" says nothing that the file's name does not.
        inside = f" in {printable(code.function)}" if code.function and code.function != "<module>" else ""
        library = " (library code; no user code called it)" if isinstance(code, Site) and not code.user else ""
        line = f":{code.line}" if code.line else ""
        return f"{self.file(code.filename)}{line}{inside}{library}"

    def stack(self, stack: int) -> list[str]:
        """Each frame of a stack, innermost first; none where whole stacks are not to be shown."""
        return [self.place(frame) for frame in self._frames(stack)] if self._frames is not None else []

    def source(self, code: Site | Frame) -> str | None:
        """The line's text; None where there is none."""
        text = printable(code.source.strip()) if code.source else ""
        return text or None

    def command(self, program: Program) -> str:
        """The program and its arguments."""
        return printable(" ".join([self.file(program.path) or "(unknown program)", *program.arguments]))
