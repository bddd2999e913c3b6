"""Live memory by call, top-down, as text and as JSON (fields: docs/json.md)."""

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

_MIN_SHARE = 0.01  # of a call, unless `top` is given; smaller calls are summed up
_AMOUNT_WIDTH = 18
_CHAIN_ENDS = 5  # calls at each end of a shortened chain
_MIN_SOURCE = 20  # columns after the name; with less room, source gets its own line


def calls_data(calls: Sequence[Call]) -> list[dict[str, Any]]:
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
    """Write calls, or chains of calls with one callee each; `top` callees of a call, or all but small ones (None)."""
    _TreeWriter(tree, screen, names, top, all_frames).write()


class _TreeWriter:
    def __init__(self, tree: Tree, screen: Screen, names: SiteNames, top: int | None, all_frames: bool) -> None:
        self._tree = tree
        self._screen = screen
        self._names = names
        self._top = top
        self._all_frames = all_frames
        self._has_hint = False
        self._guides: tuple[str, ...] = ("|- ", "`- ", "|  ", "   ") if screen.plain else ("├─ ", "└─ ", "│  ", "   ")
        if 3 * self._measure_depth(tree.calls) * len(self._guides[0]) > screen.width:
            self._guides = tuple(f"{guide[0]} " for guide in self._guides)

    def write(self) -> None:
        self._write_calls(self._tree.calls, None, "")

    def _select_calls(self, calls: Sequence[Call]) -> Sequence[Call]:
        return [call for call in calls if self._top is not None or call.share >= _MIN_SHARE][: self._top]

    def _measure_depth(self, calls: Sequence[Call]) -> int:
        return max((1 + self._measure_depth(call.chain[-1].calls) for call in self._select_calls(calls)), default=0)

    def _write_calls(self, calls: Sequence[Call], caller: Call | None, guides: str) -> None:
        """Write the callees of a call; `guides` are the tree lines to the left."""
        branch, last_branch, passing, blank = self._guides if caller is not None else ("", "", "", "")
        written = self._select_calls(calls)
        omitted = calls[len(written) :]
        for call in written:
            is_last = call is calls[-1] or (call is written[-1] and not omitted)
            self._write_call(
                call, caller, guides + (last_branch if is_last else branch), guides + (blank if is_last else passing)
            )
        if omitted:
            hint = "" if self._has_hint else " (--top 0 shows all)"
            self._has_hint = True
            text = f"{guides}{last_branch}{units.counted(len(omitted), 'more call')}{hint}"
            self._screen.text(Text(self._format_amount(sum(call.bytes for call in omitted)) + text, style="dim"))

    def _write_call(self, call: Call, caller: Call | None, branch: str, guides: str) -> None:
        chain = call.chain
        last = chain[-1]
        arrow = " > " if self._screen.plain else " → "
        call_names = [
            self._name_call(callee, previous) for previous, callee in zip([caller, *chain], chain, strict=False)
        ]
        if len(call_names) > 2 * _CHAIN_ENDS + 1:
            call_names[_CHAIN_ENDS:-_CHAIN_ENDS] = [f"... {len(call_names) - 2 * _CHAIN_ENDS} calls ..."]
        name = arrow.join(call_names)
        notes = []
        if last.calls and last.own_bytes >= _MIN_SHARE * self._tree.bytes:
            notes.append(f"{units.size(last.own_bytes)} here")
        if last.backward_bytes and not last.calls:
            notes.append(f"including {units.size(last.backward_bytes)} in its backward")
        line = Text.assemble(
            self._format_amount(call.bytes), (branch, "dim"), name, f" ({', '.join(notes)})" if notes else ""
        )
        margin = Text(" " * _AMOUNT_WIDTH + guides + (self._guides[2] if last.calls else self._guides[3]), style="dim")
        source = self._names.source(last.site) or ""
        room = self._screen.width - line.cell_len - 2
        if source and room >= min(cell_len(source), _MIN_SOURCE):
            line, source = Text.assemble(line, "  ", (shortened(source, room, self._screen.ellipsis), "cyan")), ""
        self._screen.text(line, hanging=margin)
        if source and not last.calls:
            short_source = shortened(source, self._screen.width - margin.cell_len, self._screen.ellipsis)
            self._screen.text(Text.assemble((margin.plain, "dim"), (short_source, "cyan")), hanging=margin)
        self._write_calls(last.calls, last, guides)

    def _format_amount(self, size: int) -> str:
        return f"{units.share(size, self._tree.bytes):>5}  {units.size(size):>9}  "

    def _name_call(self, call: Call, caller: Call | None) -> str:
        """Return the name of a call, without its file if the caller is in the same file."""
        code = call.site
        if caller is not None and code.filename and caller.site.filename == code.filename:
            function = f" in {printable(code.function)}" if code.function != "<module>" else ""
            return f":{code.line}{function}"
        # With all frames, do not mark library code.
        return self._names.site(dataclasses.replace(code, user=True) if self._all_frames else code)
