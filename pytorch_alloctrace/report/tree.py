"""The live memory by call, top-down, as text and as plain values.

docs/json.md has the fields of the JSON; the CSV has a row a call, with its depth.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from rich.cells import cell_len
from rich.text import Text

from ..analysis.usage.tree import Call, Tree
from . import units
from .screen import Screen, shortened
from .site_names import SiteNames, printable

_LEAST_SHARE = 0.01
"""Calls that allocated less are summed up, unless all are asked for."""
_AMOUNT = 18
"""Width of a share and a size."""
_ENDS = 5
"""Of a longer chain, only so many calls at its two ends are named."""
_LEAST_SOURCE = 20
"""Source is not shortened to less: it gets a line of its own."""


def calls_data(calls: Sequence[Call]) -> list[dict[str, Any]]:
    """As plain values."""
    return [
        {
            **dataclasses.asdict(call.site),
            "live_bytes": call.bytes,
            "share": call.share,
            "own_bytes": call.own_bytes,
            "live_blocks": call.blocks,
            "live_backward_bytes": call.backward_bytes,
            "stack_id": call.stack_id,
            "calls": calls_data(call.calls),
        }
        for call in calls
    ]


def write_tree(tree: Tree, screen: Screen, names: SiteNames, top: int | None, *, all_frames: bool) -> None:
    """A line for each call, or chain of calls with only one callee each. top: of each call at most so many callees;
    None: all but small ones."""
    _Writer(tree, screen, names, top, all_frames).write()


class _Writer:
    def __init__(self, tree: Tree, screen: Screen, names: SiteNames, top: int | None, all_frames: bool) -> None:
        self._tree = tree
        self._screen = screen
        self._names = names
        self._top = top
        self._all_frames = all_frames
        self._has_hint = False
        self._guides: tuple[str, ...] = ("|- ", "`- ", "|  ", "   ") if screen.plain else ("├─ ", "└─ ", "│  ", "   ")
        if 3 * self._depth(tree.calls) * len(self._guides[0]) > screen.width:
            self._guides = tuple(f"{guide[0]} " for guide in self._guides)

    def write(self) -> None:
        self._calls(self._tree.calls, None, "")

    def _shown(self, calls: Sequence[Call]) -> Sequence[Call]:
        return [call for call in calls if self._top is not None or call.share >= _LEAST_SHARE][: self._top]

    def _depth(self, calls: Sequence[Call]) -> int:
        return max((1 + self._depth(call.chain[-1].calls) for call in self._shown(calls)), default=0)

    def _calls(self, calls: Sequence[Call], caller: Call | None, guides: str) -> None:
        """What one call called. guides: the lines of the tree that pass by."""
        branch, last, passing, none = self._guides if caller is not None else ("", "", "", "")
        shown = self._shown(calls)
        rest = calls[len(shown) :]
        for call in shown:
            is_last = call is calls[-1] or (call is shown[-1] and not rest)
            self._call(call, caller, guides + (last if is_last else branch), guides + (none if is_last else passing))
        if rest:
            all_of = "" if self._has_hint else " (--top 0 shows all)"
            self._has_hint = True
            more = f"{guides}{last}{units.counted(len(rest), 'more call')}{all_of}"
            self._screen.text(Text(self._amount(sum(call.bytes for call in rest)) + more, style="dim"))

    def _call(self, call: Call, caller: Call | None, branch: str, guides: str) -> None:
        chain = call.chain
        last = chain[-1]
        arrow = " > " if self._screen.plain else " → "
        words = [self._name(one, before) for before, one in zip([caller, *chain], chain, strict=False)]
        if len(words) > 2 * _ENDS + 1:
            words[_ENDS:-_ENDS] = [f"... {len(words) - 2 * _ENDS} calls ..."]
        name = arrow.join(words)
        notes = []
        if last.calls and last.own_bytes >= _LEAST_SHARE * self._tree.bytes:
            notes.append(f"{units.size(last.own_bytes)} here")
        if last.backward_bytes and not last.calls:
            notes.append(f"including {units.size(last.backward_bytes)} in its backward")
        line = Text.assemble(self._amount(call.bytes), (branch, "dim"), name, f" ({', '.join(notes)})" if notes else "")
        below = Text(" " * _AMOUNT + guides + (self._guides[2] if last.calls else self._guides[3]), style="dim")
        source = self._names.source(last.site) or ""
        room = self._screen.width - line.cell_len - 2
        if source and room >= min(cell_len(source), _LEAST_SOURCE):
            line, source = Text.assemble(line, "  ", (shortened(source, room), "cyan")), ""
        self._screen.text(line, hanging=below)
        if source and not last.calls:
            cut = shortened(source, self._screen.width - below.cell_len)
            self._screen.text(Text.assemble((below.plain, "dim"), (cut, "cyan")), hanging=below)
        self._calls(last.calls, last, guides)

    def _amount(self, size: int) -> str:
        return f"{units.share(size, self._tree.bytes):>5}  {units.size(size):>9}  "

    def _name(self, call: Call, caller: Call | None) -> str:
        """Its file is named where it is not that of its caller."""
        code = call.site
        if caller is not None and code.filename and caller.site.filename == code.filename:
            inside = f" in {printable(code.function)}" if code.function != "<module>" else ""
            return f":{code.line}{inside}"
        # Among all frames, one of a library is no exception.
        return self._names.site(dataclasses.replace(code, user=True) if self._all_frames else code)
