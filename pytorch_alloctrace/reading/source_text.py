"""The text of a source file of the traced program: the file itself, if it is still what the program ran."""

from __future__ import annotations

import enum
import os
import tokenize
from collections.abc import Mapping

_CUT_AT = 512
"""The recorder keeps so many bytes of a line."""


class TextFrom(enum.Enum):
    """Where the text of a source file comes from."""

    FILE = "file"
    """The file, whose lines are as the trace has them."""
    CHANGED = "changed"
    """The trace, which has only lines that occur in stacks: the file has changed since."""
    MISSING = "missing"
    """The trace: the file is not here."""


def source_text(path: str, recorded: Mapping[int, str | None], begin_ns: int) -> tuple[dict[int, str], TextFrom]:
    """The lines of a file, by number.

    recorded: the lines that occur in stacks, with their text as the trace has it; None: it does not have it. begin_ns:
    when the recording began. Where the trace has no line at all, a file that is older than it is believed.
    """
    known = {line: text for line, text in recorded.items() if text is not None}
    if not os.path.isfile(path):  # nor opened: it may be a pipe
        return known, TextFrom.MISSING
    try:
        is_older = os.stat(path).st_mtime_ns < begin_ns
        with tokenize.open(path) as file:
            lines = [line.rstrip("\n") for line in file]
    except (OSError, SyntaxError, UnicodeError):
        return known, TextFrom.MISSING
    agrees = all(line <= len(lines) and _is_same(lines[line - 1], text) for line, text in known.items())
    if not agrees or max(recorded, default=0) > len(lines) or not (known or is_older):
        return known, TextFrom.CHANGED
    return dict(enumerate(lines, 1)), TextFrom.FILE


def _is_same(line: str, recorded: str) -> bool:
    if len(recorded.encode(errors="replace")) < _CUT_AT:
        return line.rstrip() == recorded.rstrip()
    # What was cut off may end in the middle of a character.
    return line.startswith(recorded[:-1])
