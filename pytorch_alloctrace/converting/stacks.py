"""Stacks of a snapshot, converted to the code objects and instructions of a trace.

Loops are detected by instruction: a function seen at an earlier instruction than before has started another iteration
(csrc/core/replay/loops.h). A snapshot has only line numbers, a line may call several functions, and a call written over
several lines ends on its first. So the calls of a function, each a line and what it calls, are sorted by their first
occurrence in the history, and each becomes an instruction.

C and C++ frames (stacks="all") are left out: almost all are of torch, Python and the C library, and a user's extension
has no mark. Only the evaluated autograd node and a library's workspace are named.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from itertools import pairwise
from operator import itemgetter
from typing import Any

from .. import _replay
from ..reading.source_code import is_native
from .snapshot import Snapshot

Frame = tuple[str, str, int]
"""Name, filename and line of a frame."""
Call = tuple[int, tuple[str, str]]
"""A line of a function, and the name and filename of the function that it calls there; ("", "") if it allocates."""
_NODE = re.compile(r"(.+)::apply\(.*", re.DOTALL)
_NODE_CALL = "torch::autograd::Node::operator()("
_WORKSPACE = re.compile(
    r"at::cuda::(?:\(anonymous namespace\)::)?(?:\w*Workspace|\w*BlasHandle|setWorkspaceForHandle)\(.*", re.DOTALL
)
"""Functions of torch that allocate workspaces, such as `getNewWorkspace` and `getNewCUDABlasLtWorkspace`; a handle gets
its workspace when it is made.
"""
_MAX_TABLE_BYTES = 1 << 16
_MAX_LINE_STEP = 127
"""Maximum distance in lines of one entry of a line table."""


class Function:
    """Function of a file, and its calls in the history, in execution order."""

    def __init__(self, name: str, filename: str) -> None:
        self.name, self.filename = name, filename
        self.calls: list[Call] = []
        self._read_calls: set[Call] = set()
        self._codes: dict[Call, tuple[int, int]] = {}

    def insert_call(self, call: Call, after: Call | None) -> None:
        """Insert a call behind call `after` of the same stack; None: by its line."""
        if call in self._read_calls:
            return
        self._read_calls.add(call)
        self.calls.insert(
            bisect_right(self.calls, call[0], key=itemgetter(0)) if after is None else self.calls.index(after) + 1, call
        )

    def code(self, call: Call, writer: _replay.TraceWriter) -> tuple[int, int]:
        if not self._codes:
            self._define(writer)
        return self._codes[call]

    def _define(self, writer: _replay.TraceWriter) -> None:
        lines = [line for line, _ in self.calls]
        table = line_table(lines)
        if len(table) <= _MAX_TABLE_BYTES:
            code = writer.code(self.name, self.filename, lines[0], table)
            self._codes = {call: (code, 2 * number) for number, call in enumerate(self.calls)}
        else:
            self._codes = {call: (writer.code(self.name, self.filename, call[0], b""), 0) for call in self.calls}


def line_table(lines: list[int]) -> bytes:
    """Return a line table of CPython 3.10: instruction 2n is on line n, the code begins on the first line."""
    table = bytearray()
    previous = lines[0]
    for line in lines:
        distance = line - previous
        while abs(distance) > _MAX_LINE_STEP and len(table) <= _MAX_TABLE_BYTES:
            step = _MAX_LINE_STEP if distance > 0 else -_MAX_LINE_STEP
            table += bytes((0, step & 0xFF))
            distance -= step
        table += bytes((2, distance & 0xFF)) if abs(distance) <= _MAX_LINE_STEP else b""
        previous = line
    return bytes(table)


class Stacks:
    """All stacks of a snapshot. Equal stacks usually share one list in it."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._functions: dict[tuple[str, str], Function] = {}
        self._stacks_by_list: dict[int, tuple[Frame, ...]] = {}
        self._nodes_by_list: dict[int, str] = {}
        self._libraries_by_list: dict[int, str] = {}
        self._ids: dict[tuple[Frame, ...], int] = {(): 0}
        self._threads: dict[tuple[Frame, ...], int] = {}
        for entries in snapshot.history.values():
            self._compare_history([entry.frames for entry in entries if entry.frames is not None])
        for segments in snapshot.segments.values():
            for segment in segments:
                for block in segment.blocks:
                    if block.frames is not None:
                        self._place_calls((), self._convert_frames(block.frames))
        self.distinct = [stack for stack in dict.fromkeys(self._stacks_by_list.values()) if stack]
        """Distinct stacks, innermost frame first."""

    def _compare_history(self, history: list[list[Any]]) -> None:
        # torch does not record threads: stacks that begin in the same function count as one thread.
        latest: dict[tuple[str, str], list[Any]] = {}
        compared: set[tuple[int, int]] = set()
        for frames in history:
            stack = self._convert_frames(frames)
            if not stack:
                continue
            previous_frames = latest.get(stack[-1][:2])
            latest[stack[-1][:2]] = frames
            pair = (id(previous_frames), id(frames))
            if pair not in compared:
                compared.add(pair)
                self._place_calls(
                    self._stacks_by_list[id(previous_frames)] if previous_frames is not None else (), stack
                )

    def _convert_frames(self, frames: list[Any]) -> tuple[Frame, ...]:
        # The snapshot keeps the lists alive, so an id cannot be reused.
        stack = self._stacks_by_list.get(id(frames))
        if stack is None:
            all_frames = [_read_frame(frame) for frame in frames if isinstance(frame, Mapping)]
            native = [is_native(*frame) for frame in all_frames]
            stack = tuple(frame for frame, is_left_out in zip(all_frames, native, strict=True) if not is_left_out)
            self._stacks_by_list[id(frames)] = stack
            if any(native):
                functions = [frame[0] for frame in all_frames]
                self._nodes_by_list[id(frames)] = _evaluated_node(functions)
                self._libraries_by_list[id(frames)] = _library_workspace(functions)
        return stack

    def _place_calls(self, previous: tuple[Frame, ...], current: tuple[Frame, ...]) -> None:
        is_same_call = True
        previous_calls = list(_list_calls(previous))
        for depth, (name, filename, call) in enumerate(_list_calls(current)):
            function = self._functions.get((name, filename))
            if function is None:
                function = self._functions[name, filename] = Function(name, filename)
            before = previous_calls[depth] if is_same_call and depth < len(previous_calls) else None
            function.insert_call(call, before[2] if before is not None and before[:2] == (name, filename) else None)
            is_same_call = before == (name, filename, call)

    def id(self, frames: list[Any] | None, writer: _replay.TraceWriter) -> int:
        """Return the id of a stack in the trace; 0 for None."""
        stack = self._stacks_by_list[id(frames)] if frames is not None else ()
        stack_id = self._ids.get(stack)
        if stack_id is None:
            stack_id = 0
            for name, filename, call in _list_calls(stack):
                code, instruction = self._functions[name, filename].code(call, writer)
                stack_id = writer.frame(stack_id, code, instruction)
            self._ids[stack] = stack_id
        return stack_id

    def node(self, frames: list[Any] | None) -> str:
        """Return the type of the autograd node that the C++ frames evaluate, or ""."""
        return self._nodes_by_list.get(id(frames), "")

    def library(self, frames: list[Any] | None) -> str:
        """Return the name of the library's workspace that the C++ frames allocate, or ""."""
        return self._libraries_by_list.get(id(frames), "")

    def thread(self, frames: list[Any] | None, writer: _replay.TraceWriter) -> int:
        """Return the thread of a stack in the trace, as far as it can be inferred; 0 without a stack."""
        stack = self._stacks_by_list[id(frames)] if frames is not None else ()
        thread_id = self._threads.get(stack)
        if thread_id is None:
            thread_id = self._threads[stack] = writer.thread(f"{stack[-1][0]} {stack[-1][1]}") if stack else 0
        return thread_id


def _list_calls(stack: tuple[Frame, ...]) -> Iterator[tuple[str, str, Call]]:
    """Yield the functions of a stack, outermost first, each with its name, filename and call."""
    for index in range(len(stack) - 1, -1, -1):
        name, filename, line = stack[index]
        yield name, filename, (line, stack[index - 1][:2] if index else ("", ""))


def _evaluated_node(functions: list[str]) -> str:
    """Return the innermost node ("torch::autograd::generated::MmBackward0"), or "". functions: innermost first."""
    for function, caller in pairwise(functions):
        node = _NODE.fullmatch(function)
        if node and caller.startswith(_NODE_CALL):
            return node[1]
    return ""


def _library_workspace(functions: list[str]) -> str:
    for function in functions:
        if _WORKSPACE.fullmatch(function):
            return "cuBLASLt workspace" if "Lt" in function.partition("(")[0] else "cuBLAS workspace"
    return ""


def _read_frame(values: Mapping[str, Any]) -> Frame:
    name, filename, line = values.get("name"), values.get("filename"), values.get("line")
    return (
        name if isinstance(name, str) else "",
        filename if isinstance(filename, str) else "",
        line if isinstance(line, int) and 0 <= line < 2**31 else 0,
    )
