"""Lines of text for a terminal or a pipe.

Text breaks between words, at the width of the terminal or at 80 columns in a pipe. In a pipe a path is never broken or
cut off, so that it can be searched for. On a terminal, which would break it anywhere, a path that is longer than a line
is shortened in the middle, and quoted source at its end.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

# A number stays with its unit.
_BREAK = re.compile(r"(?<=\S) (?!(?:[KMGTPE]i)?B\b|%|(?:s|ms|us|min|h|d)\b)")

ENTRY_BAR = 8
"""Width of the bar of an entry."""
_LEAST_PATH = 24
"""A path is not made shorter than this."""


class Screen:
    """Writes lines to a console."""

    def __init__(self, console: Console, width: int | None = None) -> None:
        self._console = console
        self._shortens = console.is_terminal or width is not None
        self.width = max(width or (console.width if console.is_terminal else 80), 30)
        self.plain = not (console.encoding or "").lower().startswith("utf")
        """Whether only ASCII can be shown."""

    def blank(self) -> None:
        """An empty line."""
        self._console.out("", highlight=False)

    def text(self, text: Text | str, indent: int = 0, *, hanging: int | Text | None = None, style: str = "") -> None:
        """A paragraph; `hanging` is the indent of its further lines, or what they begin with."""
        whole = Text(text, style=style) if isinstance(text, str) else text
        further = _margin(indent if hanging is None else hanging)
        for number, line in enumerate(whole.divide(self._breaks(whole.plain, indent, further.cell_len))):
            line.rstrip()
            if number:
                # Where several blanks separate columns, those after the break.
                line = line[len(line.plain) - len(line.plain.lstrip()) :]
            margin = further if number else _margin(indent)
            self._write(margin + self._fitted(line, self.width - margin.cell_len))

    def source(self, text: str, indent: int | Text, *, style: str = "cyan") -> None:
        """A line of source, shortened on a terminal. indent: or what the line begins with."""
        margin = _margin(indent)
        if self._shortens:
            text = shortened(text, self.width - margin.cell_len)
        line = margin + Text(text, style=style)
        line.rstrip()
        self._write(line)

    def frames(self, frames: Sequence[str], indent: int) -> None:
        """The frames of a stack, one on each line."""
        for frame in frames:
            self.text(frame, indent, hanging=indent + 2, style="dim")

    def stack(self, frames: Sequence[str], indent: int) -> None:
        """A whole stack under a heading; nothing if there is none."""
        if frames:
            self.text("Stack, innermost frame first:", indent)
            self.frames(frames, indent + 2)

    def entry(
        self,
        amount: str,
        name: str,
        source: str | None,
        indent: int,
        column: int,
        *,
        bar: str | None = None,
        frames: Sequence[str] = (),
    ) -> None:
        """An amount, a name and, below it, its source and frames: lines, since cells would cut them off. bar: at most
        ENTRY_BAR characters, between the two."""
        begin = indent + column + 2 + (0 if bar is None else ENTRY_BAR + 2)
        chart = "" if bar is None else f"{bar:<{ENTRY_BAR}}  "
        self.text(Text.assemble(f"{amount:>{column}}  ", (chart, "green"), name), indent, hanging=begin)
        if source:
            self.source(source, begin)
        self.frames(frames, begin)

    def _fitted(self, line: Text, room: int) -> Text:
        """The line, with a word that is too long for it shortened in the middle."""
        over = cell_len(line.plain) - room
        longest = max(re.finditer(r"\S+", line.plain), key=lambda word: cell_len(word[0]), default=None)
        if not self._shortens or over <= 0 or longest is None or cell_len(longest[0]) <= _LEAST_PATH:
            return line
        mark = "..." if self.plain else "…"
        kept = max(len(longest[0]) - over - len(mark), _LEAST_PATH)
        # The name of the file and the line are at the end.
        begin = longest.start() + kept // 3
        return Text.assemble(line[:begin], mark, line[begin + len(longest[0]) - kept :])

    def _write(self, line: Text) -> None:
        if not line.plain.isprintable():
            # A foreign trace must not control the reader's terminal. Of the same length: the styles stay in place.
            sign = "?" if self.plain else "\ufffd"
            line.plain = "".join(c if c.isprintable() or c == "\n" else sign for c in line.plain)
        # Otherwise rich would break paths and pad lines with blanks.
        self._console.print(line, soft_wrap=True, highlight=False, markup=False, emoji=False)

    def _breaks(self, plain: str, indent: int, hanging: int) -> list[int]:
        """Where lines begin: at each word that no longer fits."""
        breaks: list[int] = []
        begin, room = 0, self.width - indent
        ends = [match.end() for match in _BREAK.finditer(plain)] + [len(plain) + 1]
        for word, end in zip([0, *ends], ends, strict=False):
            if cell_len(plain[begin : end - 1]) > room and word > begin:
                breaks.append(word)
                begin, room = word, self.width - hanging
        return breaks


def shortened(text: str, room: int) -> str:
    """Source that fits into so many columns, cut off at its end where it is longer."""
    room = max(room, 4)
    return text if cell_len(text) <= room else set_cell_size(text, room - 3).rstrip() + "..."


def _margin(width: int | Text) -> Text:
    """What a line begins with."""
    return Text(" " * width) if isinstance(width, int) else width


_COLUMNS = 100
"""Width of the HTML: that of a notebook."""
_FORMAT = (
    '<pre style="white-space: pre; overflow-x: auto; margin: 0; background: transparent; color: inherit; '
    'line-height: 1.3; font-family: monospace">{code}</pre>'
)
# A notebook may be light or dark, and its HTML cannot know: each colour can be read on white and on black (contrast 4).
_RED, _GREEN, _YELLOW = (0xDE, 0x3B, 0x40), (0x24, 0x88, 0x3F), (0x9C, 0x6F, 0x0A)
_BLUE, _MAGENTA, _CYAN, _GREY = (0x3B, 0x78, 0xD8), (0xA8, 0x55, 0xB8), (0x14, 0x80, 0xA0), (0x7F, 0x7F, 0x7F)
_COLOURS = [_GREY, _RED, _GREEN, _YELLOW, _BLUE, _MAGENTA, _CYAN, _GREY]
# What is dim becomes the middle between these two: grey.
_THEME = TerminalTheme((255, 255, 255), (0, 0, 0), _COLOURS, _COLOURS)


def text_of(write: Callable[[Screen], None]) -> str:
    """As in a pipe: without colours, paths in full."""
    console = Console(file=io.StringIO(), force_terminal=False, force_jupyter=False, width=80)
    with console.capture() as captured:
        write(Screen(console))
    return captured.get()


def html_of(write: Callable[[Screen], None]) -> str:
    """As on a terminal, with colours for light and dark pages."""
    console = Console(
        record=True,
        file=io.StringIO(),
        width=_COLUMNS,
        force_terminal=True,
        force_jupyter=False,
        color_system="standard",
        no_color=False,
    )
    write(Screen(console))
    return console.export_html(theme=_THEME, code_format=_FORMAT, inline_styles=True)
