"""What is written to a screen, as one text or as HTML for a notebook."""

from __future__ import annotations

import io
from collections.abc import Callable

from rich.console import Console
from rich.terminal_theme import TerminalTheme

from .screen import Screen

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
