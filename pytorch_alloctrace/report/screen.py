"""Lines of text for a terminal or a pipe.

Text breaks between words, at the width of the terminal, or at 80 columns in a pipe. A pipe gets complete paths, which
can be searched. A terminal would break long paths anywhere: a path longer than a line is shortened in the middle, and
source at its end.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Sequence

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

# Never break between a number and its unit.
_BREAK = re.compile(r"(?<=\S) (?!(?:[KMGTPE]i)?B\b|%|(?:s|ms|us|min|h|d)\b)")

_CLAUSE_END = re.compile(r"(?<=[.;])\s+(?=\S)")

ENTRY_BAR = 8  # columns
_MIN_PATH = 24  # columns


class Screen:
    def __init__(self, console: Console, width: int | None = None) -> None:
        self._console = console
        self._shortens = console.is_terminal or width is not None
        self.width = max(width or (console.width if console.is_terminal else 80), 30)
        self.plain = not (console.encoding or "").lower().startswith("utf")
        """True if the console can show only ASCII."""

    def blank(self) -> None:
        self._console.out("", highlight=False)

    def text(self, text: Text | str, indent: int = 0, *, hanging: int | Text | None = None, style: str = "") -> None:
        """Write a paragraph; `hanging` is the indent of all lines but the first, or the text before them."""
        self.lines(self._wrap(_styled(text, style), indent, indent if hanging is None else hanging, self.width))

    def lines(self, lines: Iterable[Text]) -> None:
        """Write lines as they are."""
        for line in lines:
            self._write(line)

    def brief(
        self,
        text: Text | str,
        indent: int,
        max_lines: int,
        *,
        hanging: int | None = None,
        style: str = "",
        width: int | None = None,
    ) -> list[Text]:
        """Return at most `max_lines` lines with as many of the sentences and clauses as fit, also for a pipe.

        If the first clause does not fit, its longest word is shortened in the middle, then the clause at its end.
        """
        styled = _styled(text, style)
        width = width or self.width
        further_indent = indent if hanging is None else hanging
        part = styled
        for end in [len(styled), *reversed([match.end() for match in _CLAUSE_END.finditer(styled.plain)])]:
            part = styled[:end]
            part.rstrip()
            if part.plain.endswith(";"):
                part = Text.assemble(part[:-1], ".")
            lines = self._wrap(part, indent, further_indent, width)
            if len(lines) <= max_lines:
                return lines
        room = width * max_lines - indent - further_indent * (max_lines - 1)
        lines = self._wrap(_shorten_word(part, room, self.ellipsis), indent, further_indent, width)
        if len(lines) > max_lines:
            lines[max_lines - 1 :] = [
                Text(" ").join([lines[max_lines - 1], *(_stripped(line) for line in lines[max_lines:])])
            ]
        return [self._cut(line, width) for line in lines]

    def _cut(self, line: Text, width: int) -> Text:
        """Cut a line between words, if one ends near the width."""
        if cell_len(line.plain) <= width:
            return line
        line.truncate(width - len(self.ellipsis), overflow="crop")
        word = line.plain.rfind(" ", len(line) - _MIN_PATH)
        return Text.assemble(line if word < 0 else line[:word], self.ellipsis)

    @property
    def ellipsis(self) -> str:
        return "..." if self.plain else "…"

    def _wrap(self, text: Text, indent: int, hanging: int | Text, width: int) -> list[Text]:
        further_margin = _make_margin(hanging)
        lines = []
        for number, part in enumerate(
            text.divide(self._find_breaks(text.plain, indent, further_margin.cell_len, width))
        ):
            part.rstrip()
            margin = further_margin if number else _make_margin(indent)
            # Drop all blanks after a break: columns are separated by several.
            line = _stripped(part) if number else part
            if self._shortens:
                line = _shorten_word(line, width - margin.cell_len, self.ellipsis)
            lines.append(margin + line)
        return lines

    def source(self, text: str, indent: int | Text, *, style: str = "cyan") -> None:
        """Write a line of source, shortened on a terminal; `indent` is a width, or the text before the source."""
        margin = _make_margin(indent)
        if self._shortens:
            text = shortened(text, self.width - margin.cell_len, self.ellipsis)
        line = margin + Text(text, style=style)
        line.rstrip()
        self._write(line)

    def frames(self, frames: Sequence[str], indent: int) -> None:
        for frame in frames:
            self.text(frame, indent, hanging=indent + 2, style="dim")

    def stack(self, frames: Sequence[str], indent: int) -> None:
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
        """Write an amount, a bar of at most ENTRY_BAR characters, a name and, on lines below, its source and frames."""
        name_column = indent + column + 2 + (0 if bar is None else ENTRY_BAR + 2)
        chart = "" if bar is None else f"{bar:<{ENTRY_BAR}}  "
        self.text(Text.assemble(f"{amount:>{column}}  ", (chart, "green"), name), indent, hanging=name_column)
        if source:
            self.source(source, name_column)
        self.frames(frames, name_column)

    def _write(self, line: Text) -> None:
        if not line.plain.isprintable():
            # A hostile trace must not control the terminal. Same length, so that styles stay in place.
            replacement = "?" if self.plain else "\ufffd"
            line.plain = "".join(c if c.isprintable() or c == "\n" else replacement for c in line.plain)
        # Without soft_wrap, rich breaks paths and pads lines with blanks.
        self._console.print(line, soft_wrap=True, highlight=False, markup=False, emoji=False)

    def _find_breaks(self, text: str, indent: int, hanging: int, width: int) -> list[int]:
        """Return the positions at which a new line begins."""
        breaks: list[int] = []
        begin, room = 0, width - indent
        ends = [match.end() for match in _BREAK.finditer(text)] + [len(text) + 1]
        for word_begin, word_end in zip([0, *ends], ends, strict=False):
            if cell_len(text[begin : word_end - 1]) > room and word_begin > begin:
                breaks.append(word_begin)
                begin, room = word_begin, width - hanging
        return breaks


def shortened(text: str, room: int, ellipsis: str) -> str:
    """Shorten source at its end to fit into `room` columns."""
    room = max(room, 4)
    return text if cell_len(text) <= room else set_cell_size(text, room - len(ellipsis)).rstrip() + ellipsis


def _styled(text: Text | str, style: str) -> Text:
    return Text(text, style=style) if isinstance(text, str) else text


def _stripped(text: Text) -> Text:
    return text[len(text.plain) - len(text.plain.lstrip()) :]


def _shorten_word(line: Text, room: int, ellipsis: str) -> Text:
    """Shorten the longest path of a line in its middle if the line does not fit."""
    excess = cell_len(line.plain) - room
    longest = max(re.finditer(r"[^\s=]*[/\\][^\s=]*", line.plain), key=lambda word: cell_len(word[0]), default=None)
    if excess <= 0 or longest is None or cell_len(longest[0]) <= _MIN_PATH:
        return line
    remaining = max(len(longest[0]) - excess - len(ellipsis), _MIN_PATH)
    # The end gets two thirds of the room: it has the name of the file and the line.
    begin = longest.start() + remaining // 3
    return Text.assemble(line[:begin], ellipsis, line[begin + len(longest[0]) - remaining :])


def _make_margin(width: int | Text) -> Text:
    return Text(" " * width) if isinstance(width, int) else width


_HTML_COLUMNS = 100
_FORMAT = (
    '<pre style="white-space: pre; overflow-x: auto; margin: 0; background: transparent; color: inherit; '
    'line-height: 1.3; font-family: monospace">{code}</pre>'
)
# A notebook may be light or dark: each colour has a contrast of 4 on both white and black.
_RED, _GREEN, _YELLOW = (0xDE, 0x3B, 0x40), (0x24, 0x88, 0x3F), (0x9C, 0x6F, 0x0A)
_BLUE, _MAGENTA, _CYAN, _GREY = (0x3B, 0x78, 0xD8), (0xA8, 0x55, 0xB8), (0x14, 0x80, 0xA0), (0x7F, 0x7F, 0x7F)
_COLOURS = [_GREY, _RED, _GREEN, _YELLOW, _BLUE, _MAGENTA, _CYAN, _GREY]
# Dim text gets the mean of foreground and background: grey.
_THEME = TerminalTheme((255, 255, 255), (0, 0, 0), _COLOURS, _COLOURS)


def text_of(write: Callable[[Screen], None]) -> str:
    """Return the text written to a pipe: without colours, paths in full."""
    console = Console(file=io.StringIO(), force_terminal=False, force_jupyter=False, width=80)
    with console.capture() as captured:
        write(Screen(console))
    return captured.get()


def html_of(write: Callable[[Screen], None]) -> str:
    """Return HTML of the text on a terminal, with colours for light and dark pages."""
    console = Console(
        record=True,
        file=io.StringIO(),
        width=_HTML_COLUMNS,
        force_terminal=True,
        force_jupyter=False,
        color_system="standard",
        no_color=False,
    )
    write(Screen(console))
    return console.export_html(theme=_THEME, code_format=_FORMAT, inline_styles=True)
