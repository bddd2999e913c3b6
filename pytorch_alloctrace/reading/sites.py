"""Stacks and their sites: the lines of user code that allocated.

A site is the innermost frame of user code: not torch, an installed package, the standard library or generated code
(see `source_code`). The site of a stack without user code is its innermost frame, with `user` False.

Memory without a line has labels instead of frames: "before the recording", a library's own ("cuBLAS workspace"), and an
autograd node whose line of forward is unknown. Labels have the stack ids after those of stacks, and each is a site,
named by `function`, without a file.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from .. import _replay
from ..errors import TraceError
from .modules import MODULE, OUTSIDE, ModuleNames, module_depth
from .names import BEFORE_RECORDING, NO_STACK
from .replay import MAXIMA
from .source_code import UserCode, can_be_opened, package_of
from .table import Table, maxima, sums, texts

_Ids: TypeAlias = npt.NDArray[np.uint32]
BY = ("line", "stack", "function", "file", MODULE)
NAME_COLUMNS = ("site", "filename", "line", "function", "source", "user")
SITE_TOTALS = (
    *("allocations", "total_bytes", "live_bytes", "live_blocks", "largest_bytes", "live_backward_bytes", "stack_id"),
)
"""Columns of a table of sites. Sizes are requested bytes."""
BLOCK_SITE_COLUMNS = ("site", "filename", "line", "function")
"""Columns of `Trace.live` and `Trace.blocks`."""


@dataclass(frozen=True)
class Frame:
    """One call in a stack."""

    function: str
    """Qualified name ("Block.forward"); the unqualified name in a trace of Python 3.10."""
    filename: str
    """Filename of the code object; "In[3]" for a notebook cell."""
    line: int
    """Line number, from 1."""
    source: str | None = None
    """Text of the line; None if the trace lacks it."""

    @property
    def name(self) -> str:
        """Unqualified name of the function."""
        return self.function.rpartition(".")[2]

    def __str__(self) -> str:
        return f"{self.filename}:{self.line} in {self.function}"


@dataclass(frozen=True)
class Site:
    """Line of user code that allocated."""

    filename: str
    """Filename; empty if no line is known."""
    line: int
    """Line number, from 1; 0 if no line is known."""
    function: str
    """Qualified name of the function; without a line, a label ("cuBLAS workspace") or empty."""
    source: str | None
    """Text of the line; None if the trace lacks it."""
    user: bool
    """True for a frame of user code; False for the innermost frame of a stack without user code."""

    @property
    def is_workspace(self) -> bool:
        """True for the workspace of a library, which has no line.

        The label decides: the fields of a site are part of the JSON output, and do not include the stack's origin.
        """
        return not self.filename and self.function.endswith(" workspace")

    @classmethod
    def of_stack(cls, stacks: StackIndex, stack_id: int) -> Site:
        """Return the site of a stack; unknown if the trace lacks the stack."""
        names = stacks.describe(stack_id if 0 <= stack_id < len(stacks) else 0, "line")
        return cls(names["filename"], names["line"], names["function"], names["source"], names["user"])


@dataclass(frozen=True)
class SiteBytes:
    """Live memory of one site at a position, in requested bytes."""

    site: Site
    """Allocating line."""
    bytes: int
    """Requested bytes of its live blocks."""
    blocks: int
    """Number of its live blocks."""
    stack_id: int
    """Stack of the site with the most live bytes."""
    backward_bytes: int = 0
    """The part of `bytes` that backward allocated for this line."""
    largest_bytes: int = 0
    """Requested bytes of the largest allocation of its stacks; 0 if unknown."""


_THREADS = "threading.py"
_CELL_MAGIC = "get_ipython().run_cell_magic("
_LAUNCHER = re.compile(r".*[/\\](?:bin|Scripts)[/\\][^/\\]+$")


_MIN_CACHED_CALLERS, _MAX_CACHED_CALLERS = 100, 1 << 22
"""Minimum frames of a stack whose callers are cached; maximum frames in the cache."""


class StackIndex:
    """Frames and sites of a trace's stacks; 0 is no stack. has_modules: whether stacks are distinguished by module."""

    def __init__(self, reader: _replay.TraceReader, code: UserCode, has_modules: bool = True) -> None:
        self._reader = reader
        self.has_modules = has_modules
        table: dict[str, npt.NDArray[Any]] = reader.stack_table()
        labels = reader.stack_labels()
        self._first_label = len(table["parent"])
        self._labels = {self._first_label + number: _format_label(*label) for number, label in enumerate(labels)}
        self._node_stacks = {
            name: self._first_label + number for number, (kind, name) in enumerate(labels) if kind == "node" and name
        }
        columns = {name: np.append(column, np.zeros(len(labels), column.dtype)) for name, column in table.items()}
        self._caller = columns["parent"]
        self.same = np.where(columns["same"] > 0, columns["same"], np.arange(len(self._caller), dtype=np.uint32))
        """By stack: the first stack with equal frames. Stacks with equal frames may differ in their modules."""
        self.parent = self.same[self._caller]
        """By stack: the calling stack, as in `same`, so that the stacks of one line have one caller."""
        self._name = np.where(columns["qualified_name"] > 0, columns["qualified_name"], columns["name"])
        self._filename = columns["filename"]
        self._line = columns["line"]
        self._module = columns["module"]
        self._strings: dict[int, str] = {}
        self._frames: dict[int, Frame] = {}
        self._callers: dict[int, list[Frame]] = {}
        self._cached_callers = 0
        self._groups: dict[str, npt.NDArray[np.int64]] = {}
        files = np.unique(self._filename).tolist()
        self.is_user_file = code.is_user_file
        self.is_user = np.isin(self._filename, [file for file in files if code.is_user_file(self._string(file))])
        self.is_user[0] = False
        self.site = self._innermost(self.is_user)
        """By stack: the innermost frame of user code; 0: none."""
        # Cell magics and launchers may be sites, but reports do not list them as callers.
        self.is_user[self._find_cell_magics()] = False
        self.is_user[self._find_launchers()] = False

    def __len__(self) -> int:
        return len(self.parent)

    def _innermost(self, accepted: npt.NDArray[np.bool_], barrier: npt.NDArray[np.bool_] | None = None) -> _Ids:
        """Return the innermost accepted frame of each stack, 0 if none. The search ends at frames of the barrier."""
        stops = accepted.copy() if barrier is None else accepted | barrier
        stops[0] = True
        frames = np.where(stops, np.arange(len(self.parent), dtype=np.uint32), self.parent)
        # Each iteration doubles the number of callers searched.
        while not stops[frames].all():
            frames = frames[frames]
        return np.where(accepted[frames], frames, np.uint32(0)).astype(np.uint32)

    def outermost(self, accepted: npt.NDArray[np.bool_]) -> _Ids:
        """Return the outermost accepted frame of each stack, 0 if none."""
        frames = self._innermost(accepted)
        while (outer := frames[self.parent[frames]]).any():
            frames = np.where(outer, outer, frames)
        return frames

    def _find_cell_magics(self) -> npt.NDArray[np.intp]:
        """Return the frames of IPython's call of a cell magic (%%time). The cell's lines are frames further in."""
        cell_stacks = np.flatnonzero(np.isin(self._filename, [*self._cells]))
        texts = [self.frame(int(stack)).source for stack in cell_stacks]
        return cell_stacks[[text is not None and text.startswith(_CELL_MAGIC) for text in texts]]

    def _find_launchers(self) -> npt.NDArray[np.intp]:
        """Return the frames of the scripts that pip generates for commands ("bin/torchrun", "bin/alloctrace")."""
        scripts = [file for file in np.unique(self._filename) if _LAUNCHER.match(self._string(int(file)))]
        script_stacks = np.flatnonzero(np.isin(self._filename, scripts) & (self.parent == 0))
        texts = [self.frame(int(stack)).source or "" for stack in script_stacks]
        return script_stacks[[text.lstrip().startswith("sys.exit(") for text in texts]]

    def _string(self, identifier: int) -> str:
        text = self._strings.get(identifier)
        if text is None:
            text = self._strings[identifier] = self._reader.string(identifier)
        return text

    def _file(self, identifier: int) -> str:
        return self._cells.get(identifier) or self._string(identifier)

    @functools.cached_property
    def _cells(self) -> dict[int, str]:
        """Names of notebook cells by file id: "In[3]", or "cell#3" in order of appearance without IPython's number."""
        names: dict[int, str] = {}
        for file in np.unique(self._filename).tolist():
            name = self._string(file)
            old_cell_name = re.match(r"<ipython-input-(\d+)-", name)
            if old_cell_name or re.search(r"[/\\]ipykernel_\d+[/\\]\d+\.py$", name):
                number = f"In[{old_cell_name[1]}]" if old_cell_name else f"cell#{len(names) + 1}"
                names[file] = self._reader.source(file, 0) or number
        return names

    def frame(self, stack_id: int) -> Frame:
        frame = self._frames.get(stack_id)
        if frame is None:
            frame = self._frames[stack_id] = self._read_frame(stack_id)
        return frame

    def _read_frame(self, stack_id: int) -> Frame:
        if stack_id in self._labels:
            return Frame(self._labels[stack_id], "", 0)
        filename, line = int(self._filename[stack_id]), int(self._line[stack_id])
        return Frame(
            self._string(int(self._name[stack_id])), self._file(filename), line, self._reader.source(filename, line)
        )

    def frames(self, stack_id: int) -> list[Frame]:
        """Return all frames, innermost first; none for stack 0 and labels. Raises IndexError for an unknown stack."""
        if not 0 <= stack_id < len(self):
            raise IndexError(f"the trace has no stack {stack_id}: use 1 to {self._first_label - 1}")
        if stack_id in self._labels:
            return []
        frames, current_stack = [], stack_id
        while current_stack and current_stack not in self._callers:
            frames.append(self.frame(current_stack))
            current_stack = int(self.parent[current_stack])
        if current_stack:
            frames += self._callers[current_stack]
        # Stacks may share thousands of callers.
        if len(frames) > _MIN_CACHED_CALLERS:
            self._cached_callers += len(frames)
            if self._cached_callers > _MAX_CACHED_CALLERS:
                self._callers, self._cached_callers = {}, 0
            self._callers[int(self.parent[stack_id])] = frames[1:]
        return frames

    def has_frames(self, stack_id: int) -> bool:
        """Return whether the id is a stack of Python, not a label."""
        return 0 < stack_id < self._first_label

    def find_source(self, filename: str, line: int) -> str | None:
        """Return the text of a line of a file, if the trace has it."""
        if filename not in self._file_ids:
            return None
        text: str | None = self._reader.source(self._file_ids[filename], line)
        return text

    @functools.cached_property
    def _file_ids(self) -> dict[str, int]:
        return {self._string(int(file)): int(file) for file in np.unique(self._filename)}

    def call(self, stack_id: int) -> tuple[int, int, int]:
        """Return the call that a stack ends in: calling stack, file and function, as ids."""
        return int(self.parent[stack_id]), int(self._filename[stack_id]), int(self._name[stack_id])

    def inside(self, stack_id: int) -> npt.NDArray[np.bool_]:
        """Return a mask of the stacks that contain the call in which the given stack ends."""
        parent, filename, name = self.call(stack_id)
        ends_in_call = (self.parent == parent) & (self._filename == filename) & (self._name == name)
        ends_in_call[0] = False
        return self._innermost(ends_in_call) > 0

    def is_in_thread(self, stack: int) -> bool:
        """Return whether a thread of `threading` made an allocation."""
        return self.has_frames(stack) and any(frame.filename.endswith(_THREADS) for frame in self.frames(stack))

    def ends_in(self, accepts: Callable[[str, str], bool]) -> npt.NDArray[np.bool_]:
        """Return a mask of the stacks whose innermost frame is accepted, by its file and its function's name."""
        pairs = (self._filename.astype(np.int64) << 32) + self._name
        distinct, index = np.unique(pairs, return_inverse=True)
        accepted = [accepts(self._string(int(pair) >> 32), self._string(int(pair) & 0xFFFFFFFF)) for pair in distinct]
        mask: npt.NDArray[np.bool_] = np.array(accepted, np.bool_)[index]
        mask[0] = False
        return mask

    def functions(self, stack_ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the ids of the file and the name of each stack's innermost function, of shape (2, stacks)."""
        return np.stack([self._filename[stack_ids], self._name[stack_ids]]).astype(np.int64)

    def representative(self, stack_id: int) -> int:
        """Return the site of a stack, else its innermost frame."""
        return int(self.site[stack_id]) or stack_id

    def groups_of(self, stack_ids: npt.NDArray[np.int64], by: str) -> npt.NDArray[np.int64]:
        if module_depth(by) is None:
            return self.group(by)[stack_ids]
        numbers: dict[tuple[Any, ...], int] = {}
        return np.array([numbers.setdefault(self.key(stack, by), len(numbers)) for stack in stack_ids.tolist()])

    def group(self, by: str) -> npt.NDArray[np.int64]:
        """Return a group number for each stack. `by` is not "module". Stack 0 has its own group."""
        groups = self._groups.get(by)
        if groups is None:
            frames = np.where(self.site > 0, self.site, np.arange(len(self), dtype=np.uint32))
            file = self._filename.astype(np.int64)[frames]
            groups = {
                "line": self.lines[frames],
                "function": (file << 32) + self._name.astype(np.int64)[frames],
                "file": file,
                "stack": self.same.astype(np.int64),
            }[by]
            groups[0] = np.iinfo(np.int64).min
            numbers: dict[str, int] = {}
            label_groups = [numbers.setdefault(text, len(numbers)) for text in self._labels.values()]
            groups[self._first_label :] = np.array(label_groups, np.int64) + (np.iinfo(np.int64).min + 1)
            self._groups[by] = groups
        return groups

    @functools.cached_property
    def line_numbers(self) -> _Ids:
        """By stack: the number of its site, from 0."""
        return np.unique(self.group("line"), return_inverse=True)[1].astype(np.uint32)

    @functools.cached_property
    def package_line_numbers(self) -> _Ids:
        """By stack: as `line_numbers`, with further numbers for the lines that a site calls in a package (`opened`)."""
        numbers = self.line_numbers.copy()
        calls = np.flatnonzero((self.site > 0) & (self.opened > 0))
        pairs = np.stack([numbers[calls], self.lines[self.opened[calls]]])
        numbers[calls] = int(numbers.max()) + 1 + np.unique(pairs, axis=1, return_inverse=True)[1]
        return numbers

    def key(self, stack_id: int, by: str) -> tuple[Any, ...]:
        if stack_id in self._labels:
            return (self._labels[stack_id],)
        depth = module_depth(by)
        if depth is not None:
            return (self.modules.name(stack_id, depth) if stack_id else 0,)
        frame = self.representative(stack_id)
        file = int(self._filename[frame])
        if by == "line":
            return (file, int(self._line[frame]))
        if by == "function":
            return (file, int(self._name[frame]))
        if by == "file":
            return (file,)
        return (int(self.same[stack_id]),)

    @functools.cached_property
    def modules(self) -> ModuleNames:
        """Module of each stack. Raises TraceError for a recording without modules."""
        if not self.has_modules:
            raise TraceError(
                "the trace has no modules: record the program again, with this version and without modules=False"
            )
        return ModuleNames(self._reader.modules(), self._caller, self._module)

    @functools.cached_property
    def module_classes(self) -> frozenset[str]:
        """Names of the classes of the modules that were called; empty for a recording without modules."""
        return frozenset(class_name for class_name, *_ in self._reader.modules() if class_name)

    def describe(self, stack_id: int, by: str) -> dict[str, Any]:
        """Return NAME_COLUMNS of the group that a stack belongs to."""
        if stack_id == 0:
            return dict(zip(NAME_COLUMNS, (NO_STACK, "", 0, "", None, False), strict=True))
        if stack_id in self._labels:
            label = self._labels[stack_id]
            return dict(zip(NAME_COLUMNS, (label, "", 0, label, None, False), strict=True))
        depth = module_depth(by)
        if depth is not None:
            name = self.modules.name(stack_id, depth)
            return dict(zip(NAME_COLUMNS, (name, "", 0, name, None, name != OUTSIDE), strict=True))
        representative = self.representative(stack_id)
        frame = self.frame(representative)
        line = frame.line if by in ("line", "stack") else 0
        site = {"function": f"{frame.function} ({frame.filename})", "file": frame.filename}.get(
            by, f"{frame.filename}:{line}"
        )
        return {
            "site": site,
            "filename": frame.filename,
            "line": line,
            "function": "" if by == "file" else frame.function,
            "source": frame.source if by in ("line", "stack") else None,
            "user": bool(self.site[stack_id]),
        }

    @functools.cached_property
    def lines(self) -> npt.NDArray[np.int64]:
        """By stack: a number for the line of its innermost frame."""
        return (self._filename.astype(np.int64) << 32) + self._line.astype(np.int64)

    @functools.cached_property
    def opened(self) -> npt.NDArray[np.uint32]:
        """By stack: its innermost frame in an installed package other than torch, below the site; 0: none."""
        packages = {int(file): package_of(self._string(int(file))) for file in np.unique(self._filename)}
        files = [file for file, package in packages.items() if can_be_opened(package)]
        is_opened = np.isin(self._filename, files) & ~self.is_user
        return self._innermost(is_opened, self.is_user)

    def package(self, stack_id: int) -> str:
        """Return the installed package of a stack's innermost frame, or ""."""
        return package_of(self._string(int(self._filename[stack_id])))

    @functools.cached_property
    def names_by_line(self) -> tuple[_Ids, Table]:
        """By stack: the number of its line (`line_numbers`); and NAME_COLUMNS of each line."""
        numbers = self.line_numbers
        _, first = np.unique(numbers, return_index=True)
        return numbers, describe_stacks(self, first)

    def allocating_stacks(
        self,
        seq: npt.NDArray[np.int64],
        address: npt.NDArray[np.int64],
        stack_id: npt.NDArray[np.int64],
        forward_stack_id: npt.NDArray[np.int64],
        node_type: npt.NDArray[Any],
    ) -> npt.NDArray[np.int64]:
        """Return the stack of each alloc as in `Trace.live`: its own, else of the causing forward, else a label.

        The arguments are columns of events; node_type has full names. Must choose as `DeviceMemory::set_origin` does
        (csrc/core/replay/device_memory.cpp).
        """
        stacks = np.maximum(stack_id, forward_stack_id).astype(np.int64)  # at most one of the two is not 0
        node_stacks = np.array([self._node_stacks.get(name, 0) for name in node_type.tolist()], np.int64)
        stacks = np.where(stacks == 0, node_stacks, stacks)
        for event, at, stack in self._reader.library_blocks():
            stacks[(seq == event) & (address == np.uint64(at).astype(np.int64))] = stack
        return stacks


def _format_label(kind: str, name: str) -> str:
    if kind == "before":
        return BEFORE_RECORDING
    return f"{node_name(name)}, line of forward unknown" if kind == "node" else name


def node_name(node_type: str) -> str:
    """Return the type of an autograd node without namespaces: "MmBackward0"."""
    return re.sub(r"^.*::", "", node_type)


_AGGREGATIONS = {name: "max" if name in MAXIMA else "sum" for name in SITE_TOTALS if name != "stack_id"}


class SiteNumbers:
    """Numbers of sites in the order of the first request, the same for all tables.

    groups: by stack, a number of its site, such as `StackIndex.line_numbers`.
    """

    def __init__(self, groups: _Ids) -> None:
        self._groups = groups
        self._numbers: dict[int, int] = {}
        self._by_stack = np.full(len(groups), -1, np.int64)  # -1: no number yet

    def of(self, stack_ids: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Return the number of each stack's site. Rows without a stack share one site."""
        stacks = np.asarray(stack_ids, np.int64)
        site_numbers: npt.NDArray[np.int64] = self._by_stack[stacks]
        if (site_numbers < 0).any():
            is_new = np.zeros(len(self._by_stack), np.bool_)
            is_new[stacks[site_numbers < 0]] = True
            new_stacks = np.flatnonzero(is_new)
            lines, first_rows, of_stack = np.unique(self._groups[new_stacks], return_index=True, return_inverse=True)
            numbers = np.zeros(len(lines), np.int64)
            for line in np.argsort(first_rows).tolist():
                numbers[line] = self._numbers.setdefault(int(lines[line]), len(self._numbers))
            self._by_stack[new_stacks] = numbers[of_stack]
            site_numbers = self._by_stack[stacks]
        return site_numbers


def bytes_by_stack(stack_ids: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]) -> dict[int, int]:
    stacks, of_row = np.unique(stack_ids, return_inverse=True)
    return dict(zip(stacks.tolist(), sums(of_row, sizes, len(stacks)).tolist(), strict=True))


def describe_stacks(stacks: StackIndex, stack_ids: npt.NDArray[np.integer[Any]], by: str = "line") -> Table:
    """Return NAME_COLUMNS of each stack, a row for each of `stack_ids`."""
    distinct, of_row = np.unique(stack_ids, return_inverse=True)
    names = [stacks.describe(stack, by) for stack in distinct.tolist()]
    columns: dict[str, npt.NDArray[Any]] = {
        name: texts(row[name] for row in names)[of_row] for name in ("site", "filename", "function", "source")
    }
    columns["line"] = np.array([row["line"] for row in names], np.int64)[of_row]
    columns["user"] = np.array([row["user"] for row in names], np.bool_)[of_row]
    return Table({name: columns[name] for name in NAME_COLUMNS})


def groups_stacks(by: str) -> bool:
    """Return whether `by` is one of BY, or "module:N"."""
    return by in BY or module_depth(by) is not None


def group_stacks(index: StackIndex, totals: Table, by: str, more: Mapping[str, str] | None = None) -> Table:
    """Aggregate STACK_COLUMNS into SITE_TOTALS by site, ordered by live bytes, then total bytes.

    The `stack_id` of a row is the stack of its group with the most live bytes, then the most total bytes. more: further
    columns of `totals`, which come last, with their aggregation, "sum" or "max". Raises ValueError if `by` is unknown.
    """
    more = dict(more or {})
    if not groups_stacks(by):
        raise ValueError(f"by={by!r} is not known: use one of {', '.join(BY)}")
    if module_depth(by) is not None:
        _ = index.modules  # raises TraceError without modules, also for a trace without stacks
    aggregations = {**_AGGREGATIONS, **more}
    stack_ids = totals["stack_id"].astype(np.int64)
    if not len(totals):
        columns = {name: totals[name] for name in aggregations}
        return Table({**columns, "stack_id": stack_ids}).select(*SITE_TOTALS, *more)
    group_numbers = index.groups_of(stack_ids, by)
    rows = np.argsort(group_numbers, kind="stable")
    begins = np.append(0, np.flatnonzero(group_numbers[rows][1:] != group_numbers[rows][:-1]) + 1)
    sorted_by_group = {name: totals[name][rows] for name in aggregations}
    columns = {
        name: (np.maximum if aggregations[name] == "max" else np.add).reduceat(values, begins)
        for name, values in sorted_by_group.items()
    }
    largest_rows = rows[_first_of_most(sorted_by_group["live_bytes"], sorted_by_group["total_bytes"], begins)]
    stacks = stack_ids[largest_rows]
    columns["stack_id"] = index.same[stacks].astype(np.int64) if by == "stack" else stacks
    # Descending by ~, because - overflows for the lowest int64, which a corrupt trace may contain.
    largest_stack = [~totals[name][largest_rows] for name in ("total_bytes", "live_bytes")]
    in_order = np.lexsort([largest_rows, *largest_stack, ~columns["total_bytes"], ~columns["live_bytes"]])
    return Table(columns).take(in_order).select(*SITE_TOTALS, *more)


def _first_of_most(
    values: npt.NDArray[np.int64], then: npt.NDArray[np.int64], begins: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return the first row of each group with the highest value, ties broken by `then`. begins: groups' first rows."""
    lengths = np.diff(begins, append=len(values))
    is_most = values == np.repeat(np.maximum.reduceat(values, begins), lengths)
    tie_breakers = np.where(is_most, then, np.iinfo(np.int64).min)
    is_most &= tie_breakers == np.repeat(np.maximum.reduceat(tie_breakers, begins), lengths)
    first: npt.NDArray[np.int64] = np.minimum.reduceat(np.where(is_most, np.arange(len(values)), len(values)), begins)
    return first


def sites_of_blocks(stacks: StackIndex, blocks: Table, by: str = "line") -> Table:
    """Return SITE_TOTALS of these live blocks alone. blocks: with requested_bytes, stack_id, backward."""
    sizes = blocks["requested_bytes"].astype(np.int64)
    stack_ids, of_row = np.unique(blocks["stack_id"].astype(np.int64), return_inverse=True)
    count = len(stack_ids)
    block_counts, live_bytes = np.bincount(of_row, minlength=count), sums(of_row, sizes, count)
    totals = Table(
        {
            "stack_id": stack_ids,
            "allocations": block_counts,
            "total_bytes": live_bytes,
            "live_bytes": live_bytes,
            "live_blocks": block_counts,
            "largest_bytes": maxima(of_row, sizes, count),
            "live_backward_bytes": sums(of_row, np.where(blocks["backward"], sizes, 0), count),
        }
    )
    return group_stacks(stacks, totals, by)


def top_sites(stacks: StackIndex, sites: Table, top: int) -> tuple[SiteBytes, ...]:
    """Return the first rows with live bytes of a table of sites (see `group_stacks`)."""
    live_sites = sites.take(sites["live_bytes"] > 0).head(top)
    return tuple(
        SiteBytes(
            Site.of_stack(stacks, row["stack_id"]),
            row["live_bytes"],
            row["live_blocks"],
            row["stack_id"],
            row["live_backward_bytes"],
            row["largest_bytes"],
        )
        for row in live_sites.rows()
    )
