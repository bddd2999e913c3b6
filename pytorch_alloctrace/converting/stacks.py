"""The stacks of a snapshot: names, files and lines, where a trace has code objects and instructions.

What a trace's instructions are for, besides lines, is to see the loops of a program: a function that is seen at an
earlier instruction than before has gone round one (csrc/core/replay/loops.h). Lines do not do for this, since a call
that is written over several of them ends on its first. So the lines of a function are put into the order in which the
history shows them first, and each becomes an instruction.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import Any

from .. import _replay
from .snapshot import Snapshot

Frame = tuple[str, str, int]
"""Name, filename, line."""
_LONGEST_TABLE = 1 << 16
_FURTHEST = 127
"""Lines that an entry of a line table can go forwards or back."""


class Function:
    """A function of a file, as far as a name tells it from others, and the lines of it that were seen, in their
    order."""

    def __init__(self, name: str, filename: str) -> None:
        self.name, self.filename = name, filename
        self.lines: list[int] = []
        self._known: set[int] = set()
        self._codes: dict[int, tuple[int, int]] = {}

    def place(self, line: int, after: int | None) -> None:
        """Notes a line, which came after another of the same call; None: where its number would be."""
        if line in self._known:
            return
        self._known.add(line)
        self.lines.insert(bisect_left(self.lines, line) if after is None else self.lines.index(after) + 1, line)

    def code(self, line: int, writer: _replay.TraceWriter) -> tuple[int, int]:
        """The code and the instruction of a line."""
        if not self._codes:
            self._define(writer)
        return self._codes[line]

    def _define(self, writer: _replay.TraceWriter) -> None:
        table = line_table(self.lines)
        if len(table) <= _LONGEST_TABLE:
            code = writer.code(self.name, self.filename, self.lines[0], table)
            self._codes = {line: (code, 2 * number) for number, line in enumerate(self.lines)}
        else:
            self._codes = {line: (writer.code(self.name, self.filename, line, b""), 0) for line in self.lines}


def line_table(lines: list[int]) -> bytes:
    """As CPython 3.10 has it: instruction 2n is on line n of these, the first of which is the code's first."""
    made = bytearray()
    previous = lines[0]
    for line in lines:
        left = line - previous
        while abs(left) > _FURTHEST and len(made) <= _LONGEST_TABLE:
            step = _FURTHEST if left > 0 else -_FURTHEST
            made += bytes((0, step & 0xFF))
            left -= step
        made += bytes((2, left & 0xFF)) if abs(left) <= _FURTHEST else b""
        previous = line
    return bytes(made)


class Stacks:
    """All stacks of a snapshot. Equal ones are one list in it, most of the time."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._functions: dict[tuple[str, str], Function] = {}
        self._of: dict[int, tuple[Frame, ...]] = {}
        self._ids: dict[tuple[Frame, ...], int] = {(): 0}
        self._threads: dict[tuple[Frame, ...], int] = {}
        for entries in snapshot.history.values():
            self._take_history([entry.frames for entry in entries if entry.frames is not None])
        for segments in snapshot.segments.values():
            for segment in segments:
                for block in segment.blocks:
                    if block.frames is not None:
                        self._compare((), self._take(block.frames))
        self.known = [stack for stack in dict.fromkeys(self._of.values()) if stack]
        """Each stack, innermost frame first."""

    def _take_history(self, history: list[list[Any]]) -> None:
        # torch does not tell threads apart: what begins in the same function counts as one.
        latest: dict[tuple[str, str], list[Any]] = {}
        compared: set[tuple[int, int]] = set()
        for frames in history:
            stack = self._take(frames)
            if not stack:
                continue
            before = latest.get(stack[-1][:2])
            latest[stack[-1][:2]] = frames
            pair = (id(before), id(frames))
            if pair not in compared:
                compared.add(pair)
                self._compare(self._of[id(before)] if before is not None else (), stack)

    def _take(self, frames: list[Any]) -> tuple[Frame, ...]:
        # The lists live as long as the snapshot: no other can get the same number.
        known = self._of.get(id(frames))
        if known is None:
            known = self._of[id(frames)] = tuple(_frame(frame) for frame in frames if isinstance(frame, Mapping))
        return known

    def _compare(self, before: tuple[Frame, ...], now: tuple[Frame, ...]) -> None:
        is_same_call = True
        for depth in range(1, len(now) + 1):
            name, filename, line = now[-depth]
            function = self._functions.get((name, filename))
            if function is None:
                function = self._functions[name, filename] = Function(name, filename)
            was = before[-depth] if is_same_call and depth <= len(before) else None
            function.place(line, was[2] if was is not None and was[:2] == now[-depth][:2] else None)
            is_same_call = was == now[-depth]

    def id(self, frames: list[Any] | None, writer: _replay.TraceWriter) -> int:
        """The stack in the trace; 0 for none."""
        stack = self._of[id(frames)] if frames is not None else ()
        known = self._ids.get(stack)
        if known is None:
            known = 0
            for name, filename, line in reversed(stack):
                code, instruction = self._functions[name, filename].code(line, writer)
                known = writer.frame(known, code, instruction)
            self._ids[stack] = known
        return known

    def thread(self, frames: list[Any] | None, writer: _replay.TraceWriter) -> int:
        """The thread in the trace, as far as it can be told; 0 where there is no stack."""
        stack = self._of[id(frames)] if frames is not None else ()
        known = self._threads.get(stack)
        if known is None:
            known = self._threads[stack] = writer.thread(f"{stack[-1][0]} {stack[-1][1]}") if stack else 0
        return known


def _frame(values: Mapping[str, Any]) -> Frame:
    name, filename, line = values.get("name"), values.get("filename"), values.get("line")
    return (
        name if isinstance(name, str) else "",
        filename if isinstance(filename, str) else "",
        line if isinstance(line, int) and 0 <= line < 2**31 else 0,
    )
