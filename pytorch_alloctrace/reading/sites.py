"""From stacks to sites: where the user's own code allocated.

A site is the innermost frame of the user's own code: not torch, not an installed package, not the standard library,
not generated code (see `source_code`). Stacks that differ only inside libraries are one site. Where a stack has no
frame of user code, its innermost frame stands in, and `user` is False.

What no line explains has stacks of its own, without frames, whose numbers follow those of the others: memory that was
there before the recording, what a library keeps for itself ("cuBLAS workspace"), and what a node of autograd allocated
whose line of forward is unknown. Each is a site, named by `function`, with no file.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from .. import _replay
from ..errors import TraceError
from .modules import MODULE, OUTSIDE, ModuleNames, module_depth
from .names import BEFORE_RECORDING, NO_STACK
from .source_code import UserCode, can_be_opened, package_of
from .table import Table, maxima, sums, texts

_Ids: TypeAlias = npt.NDArray[np.uint32]
BY = ("line", "stack", "function", "file", MODULE)
NAME_COLUMNS = ("site", "filename", "line", "function", "source", "user")
SITE_TOTALS = (
    *("allocations", "total_bytes", "live_bytes", "live_blocks", "largest_bytes", "live_backward_bytes", "stack_id"),
)
"""Columns of a table of sites, in requested bytes."""
BLOCK_SITE_COLUMNS = ("site", "filename", "line", "function")
"""Columns of `Trace.live` and `Trace.blocks`."""


@dataclass(frozen=True)
class Frame:
    """One call in a stack."""

    function: str
    """The qualified name ("Block.forward"); the plain one in a trace of Python 3.10."""
    filename: str
    """As the code object has it; of a notebook cell "In[3]"."""
    line: int
    """From 1."""
    source: str | None = None
    """Text of the line; None where the trace does not have it."""

    @property
    def name(self) -> str:
        """The last part of the function's name."""
        return self.function.rpartition(".")[2]

    def __str__(self) -> str:
        return f"{self.filename}:{self.line} in {self.function}"


@dataclass(frozen=True)
class Site:
    """Where the user's code allocated."""

    filename: str
    """Empty where no line is known."""
    line: int
    """From 1; 0 where no line is known."""
    function: str
    """The qualified name; where no line is known, what is known instead ("cuBLAS workspace"), or empty."""
    source: str | None
    """Text of the line; None where the trace does not have it."""
    user: bool
    """False: the stack has no frame of user code, and its innermost frame stands in."""

    @property
    def is_workspace(self) -> bool:
        """No line: memory that a library keeps for itself."""
        return not self.filename and self.function.endswith(" workspace")

    @classmethod
    def of_stack(cls, stacks: StackIndex, stack_id: int) -> Site:
        """The site of a stack; a stack that the trace does not have counts as unknown."""
        names = stacks.describe(stack_id if 0 <= stack_id < len(stacks) else 0, "line")
        return cls(names["filename"], names["line"], names["function"], names["source"], names["user"])


@dataclass(frozen=True)
class SiteBytes:
    """What one site holds at a position. Bytes are requested bytes."""

    site: Site
    """The line."""
    bytes: int
    """Requested bytes of its blocks."""
    blocks: int
    """Number of its blocks."""
    stack_id: int
    """The stack of the site that holds the most."""
    backward_bytes: int = 0
    """The part of `bytes` that backward allocated for this line."""


_CELL_MAGIC = "get_ipython().run_cell_magic("
_LAUNCHER = re.compile(r".*[/\\](?:bin|Scripts)[/\\][^/\\]+$")


_FEW_CALLERS, _MOST_CALLERS = 100, 1 << 22
"""Frames of a stack whose callers are not worth being kept; and of all that are kept."""


class StackIndex:
    """The stacks of a trace: their frames, and the site of each. Stack 0 means that no stack is known."""

    def __init__(self, reader: _replay.TraceReader, code: UserCode, has_modules: bool = True) -> None:
        """has_modules: whether the recording told modules apart."""
        self._reader = reader
        self.has_modules = has_modules
        table: dict[str, npt.NDArray[Any]] = reader.stack_table()
        labels = reader.stack_labels()
        self._with_frames = len(table["parent"])
        self._labels = {self._with_frames + number: _label(*label) for number, label in enumerate(labels)}
        self._of_nodes = {
            name: self._with_frames + number for number, (kind, name) in enumerate(labels) if kind == "node" and name
        }
        self.library = frozenset(
            self._with_frames + number for number, (kind, _) in enumerate(labels) if kind == "library"
        )
        """The stacks that stand for what libraries keep for themselves."""
        made = {name: np.append(column, np.zeros(len(labels), column.dtype)) for name, column in table.items()}
        self._caller = made["parent"]
        self.same = np.where(made["same"] > 0, made["same"], np.arange(len(self._caller), dtype=np.uint32))
        """Of the stacks whose frames are the same, through whichever modules, the first."""
        self.parent = self.same[self._caller]
        """The stack that called each, of the same ones the first: those of one line through several modules meet in
        it."""
        self._name = np.where(made["qualified_name"] > 0, made["qualified_name"], made["name"])
        self._filename = made["filename"]
        self._line = made["line"]
        self._module = made["module"]
        self._strings: dict[int, str] = {}
        self._frames: dict[int, Frame] = {}
        self._callers: dict[int, list[Frame]] = {}
        self._callers_kept = 0
        self._groups: dict[str, npt.NDArray[np.int64]] = {}
        files = np.unique(self._filename).tolist()
        self.is_user = np.isin(self._filename, [file for file in files if code.is_user_file(self._string(file))])
        self.is_user[0] = False
        self.site = self._sites()
        # They were of use where nothing deeper is the user's; as callers they say nothing.
        self.is_user[self._cell_magics()] = False
        self.is_user[self._launchers()] = False

    def __len__(self) -> int:
        return len(self.parent)

    def _sites(self) -> npt.NDArray[np.uint32]:
        """The innermost user frame of each stack, 0 where there is none."""
        return self._innermost(self.is_user)

    def _innermost(self, wanted: npt.NDArray[np.bool_], below: npt.NDArray[np.bool_] | None = None) -> _Ids:
        """The innermost wanted frame of each stack, 0 where there is none. below: only frames that are called, however
        indirectly, by none of these."""
        stops = wanted.copy() if below is None else wanted | below
        stops[0] = True
        found = np.where(stops, np.arange(len(self.parent), dtype=np.uint32), self.parent)
        # Each round doubles how far up it has looked.
        while not stops[found].all():
            found = found[found]
        return np.where(wanted[found], found, np.uint32(0)).astype(np.uint32)

    def _cell_magics(self) -> npt.NDArray[np.intp]:
        """The frames that are what IPython makes of a cell's magic (%%time): a call with the whole cell as its text.
        The lines of the cell have frames of their own, further in."""
        found = np.flatnonzero(np.isin(self._filename, [*self._cells]))
        texts = [self.frame(int(stack)).source for stack in found]
        return found[[text is not None and text.startswith(_CELL_MAGIC) for text in texts]]

    def _launchers(self) -> npt.NDArray[np.intp]:
        """The frames of scripts that pip has made to start a command ("bin/torchrun", "bin/alloctrace")."""
        scripts = [file for file in np.unique(self._filename) if _LAUNCHER.match(self._string(int(file)))]
        found = np.flatnonzero(np.isin(self._filename, scripts) & (self.parent == 0))
        texts = [self.frame(int(stack)).source or "" for stack in found]
        return found[[text.lstrip().startswith("sys.exit(") for text in texts]]

    def _string(self, identifier: int) -> str:
        text = self._strings.get(identifier)
        if text is None:
            text = self._strings[identifier] = self._reader.string(identifier)
        return text

    def _file(self, identifier: int) -> str:
        """The name of a file as it is shown: of a notebook cell "In[3]"."""
        return self._cells.get(identifier) or self._string(identifier)

    @functools.cached_property
    def _cells(self) -> dict[int, str]:
        """Notebook cells by file. Their numbers are IPython's if the recorder could ask for them; otherwise the name of
        the file says nothing but that it is a cell, and they are counted in the order in which they appear."""
        found: dict[int, str] = {}
        for file in np.unique(self._filename).tolist():
            name = self._string(file)
            old = re.match(r"<ipython-input-(\d+)-", name)
            if old or re.search(r"[/\\]ipykernel_\d+[/\\]\d+\.py$", name):
                number = f"In[{old[1]}]" if old else f"cell#{len(found) + 1}"
                found[file] = self._reader.source(file, 0) or number
        return found

    def frame(self, stack_id: int) -> Frame:
        """The innermost frame of a stack."""
        found = self._frames.get(stack_id)
        if found is None:
            found = self._frames[stack_id] = self._frame(stack_id)
        return found

    def _frame(self, stack_id: int) -> Frame:
        if stack_id in self._labels:
            return Frame(self._labels[stack_id], "", 0)
        filename, line = int(self._filename[stack_id]), int(self._line[stack_id])
        return Frame(
            self._string(int(self._name[stack_id])), self._file(filename), line, self._reader.source(filename, line)
        )

    def frames(self, stack_id: int) -> list[Frame]:
        """All frames, innermost first; none for stack 0, and for what stands for a stack. Raises IndexError for a stack
        that the trace does not have."""
        if not 0 <= stack_id < len(self):
            raise IndexError(f"the trace has no stack {stack_id}: stacks count from 1 to {self._with_frames - 1}")
        if stack_id in self._labels:
            return []
        found, at = [], stack_id
        while at and at not in self._callers:
            found.append(self.frame(at))
            at = int(self.parent[at])
        if at:
            found += self._callers[at]
        # Stacks share their callers, which may be thousands.
        if len(found) > _FEW_CALLERS:
            self._callers_kept += len(found)
            if self._callers_kept > _MOST_CALLERS:
                self._callers, self._callers_kept = {}, 0
            self._callers[int(self.parent[stack_id])] = found[1:]
        return found

    def has_frames(self, stack_id: int) -> bool:
        """Whether it is a stack of Python, not what stands for one."""
        return 0 < stack_id < self._with_frames

    def call(self, stack_id: int) -> tuple[int, int, int]:
        """What the innermost frames of all stacks have in common that are of one function under the same calls."""
        return int(self.parent[stack_id]), int(self._filename[stack_id]), int(self._name[stack_id])

    def inside(self, stack_id: int) -> npt.NDArray[np.bool_]:
        """For each stack whether the function that a stack ends in, under the same calls, is on it."""
        parent, filename, name = self.call(stack_id)
        same = (self.parent == parent) & (self._filename == filename) & (self._name == name)
        same[0] = False
        return self._innermost(same) > 0

    def functions(self, stack_ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Two rows of numbers, of the file and the name of each stack's innermost function."""
        return np.stack([self._filename[stack_ids], self._name[stack_ids]]).astype(np.int64)

    def representative(self, stack_id: int) -> int:
        """The frame that stands for a stack: its site, else its innermost frame."""
        return int(self.site[stack_id]) or stack_id

    def groups_of(self, stack_ids: npt.NDArray[np.int64], by: str) -> npt.NDArray[np.int64]:
        """For each of these stacks a number of its group: the same where `key` is."""
        if module_depth(by) is None:
            return self.group(by)[stack_ids]
        numbers: dict[tuple[Any, ...], int] = {}
        return np.array([numbers.setdefault(self.key(stack, by), len(numbers)) for stack in stack_ids.tolist()])

    def group(self, by: str) -> npt.NDArray[np.int64]:
        """For each stack a number of its group, but not by module. No stack is a group of its own."""
        found = self._groups.get(by)
        if found is None:
            frames = np.where(self.site > 0, self.site, np.arange(len(self), dtype=np.uint32))
            file = self._filename.astype(np.int64)[frames]
            found = {
                "line": self.lines[frames],
                "function": (file << 32) + self._name.astype(np.int64)[frames],
                "file": file,
                "stack": self.same.astype(np.int64),
            }[by]
            found[0] = np.iinfo(np.int64).min
            numbers: dict[str, int] = {}
            of_labels = [numbers.setdefault(text, len(numbers)) for text in self._labels.values()]
            found[self._with_frames :] = np.array(of_labels, np.int64) + (np.iinfo(np.int64).min + 1)
            self._groups[by] = found
        return found

    @functools.cached_property
    def line_numbers(self) -> _Ids:
        """A number of each stack's site, from 0."""
        return np.unique(self.group("line"), return_inverse=True)[1].astype(np.uint32)

    def key(self, stack_id: int, by: str) -> tuple[Any, ...]:
        """What the stacks of one group have in common."""
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
        """Which module each stack calls. Raises TraceError where the recording did not tell modules apart."""
        if not self.has_modules:
            raise TraceError(
                "the trace has no modules: record the program again, with this version and without modules=False"
            )
        return ModuleNames(self._reader.modules(), self._caller, self._module)

    def describe(self, stack_id: int, by: str) -> dict[str, Any]:
        """NAME_COLUMNS of the group that a stack belongs to."""
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
        """A number for the line that each stack's innermost frame is at: the same for the same line."""
        return (self._filename.astype(np.int64) << 32) + self._line.astype(np.int64)

    @functools.cached_property
    def opened(self) -> npt.NDArray[np.uint32]:
        """The innermost frame of each stack that is in an installed package, other than torch, which the stack's site
        calls; 0 where there is none."""
        packages = {int(file): package_of(self._string(int(file))) for file in np.unique(self._filename)}
        files = [file for file, package in packages.items() if can_be_opened(package)]
        is_opened = np.isin(self._filename, files) & ~self.is_user
        return self._innermost(is_opened, self.is_user)

    def package(self, stack_id: int) -> str:
        """The installed package that the innermost frame of a stack is in; "" if it is in none."""
        return package_of(self._string(int(self._filename[stack_id])))

    @functools.cached_property
    def names_by_line(self) -> tuple[_Ids, Table]:
        """The number of each stack's line of code, and NAME_COLUMNS of each line."""
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
        """Return the stack of each alloc as `Trace.live` has it: its own, else of the forward that caused it, else what
        stands for one. The arguments are columns of events; node_type: in full."""
        stacks = np.maximum(stack_id, forward_stack_id).astype(np.int64)  # only one of the two is known
        of_node = np.array([self._of_nodes.get(name, 0) for name in node_type.tolist()], np.int64)
        stacks = np.where(stacks == 0, of_node, stacks)
        for event, at, stack in self._reader.library_blocks():
            stacks[(seq == event) & (address == np.uint64(at).astype(np.int64))] = stack
        return stacks


def _label(kind: str, name: str) -> str:
    """What stands for a stack, in words. kind, name: see `TraceReader.stack_labels`."""
    if kind == "before":
        return BEFORE_RECORDING
    return f"{node_name(name)}, line of forward unknown" if kind == "node" else name


def node_name(node_type: str) -> str:
    """The type of an autograd node, without its namespaces: "MmBackward0"."""
    return re.sub(r"^.*::", "", node_type)


_JOINS = dict.fromkeys(("allocations", "total_bytes", "live_bytes", "live_blocks", "live_backward_bytes"), "sum") | {
    "largest_bytes": "max"
}
"""How the totals of stacks become those of a site."""


class SiteNumbers:
    """A number for each line of user code, in the order in which they are asked for: the same in all tables."""

    def __init__(self, stacks: StackIndex) -> None:
        self._stacks = stacks
        self._numbers: dict[int, int] = {}
        self._of_stack = np.full(len(stacks), -1, np.int64)  # -1: not asked for yet

    def of(self, stack_ids: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """The number of each stack's site; all rows without a stack are one site."""
        stacks = np.asarray(stack_ids, np.int64)
        found: npt.NDArray[np.int64] = self._of_stack[stacks]
        if (found < 0).any():
            is_new = np.zeros(len(self._of_stack), np.bool_)
            is_new[stacks[found < 0]] = True
            new = np.flatnonzero(is_new)
            lines, first, of_stack = np.unique(self._stacks.group("line")[new], return_index=True, return_inverse=True)
            numbers = np.zeros(len(lines), np.int64)
            for line in np.argsort(first).tolist():
                numbers[line] = self._numbers.setdefault(int(lines[line]), len(self._numbers))
            self._of_stack[new] = numbers[of_stack]
            found = self._of_stack[stacks]
        return found


def bytes_by_stack(stack_ids: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]) -> dict[int, int]:
    """Return the sum of the sizes of blocks by stack id."""
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
    """Return whether it is one of BY, or "module:3", the first three parts of a module's name."""
    return by in BY or module_depth(by) is not None


def group_stacks(index: StackIndex, totals: Table, by: str, more: Mapping[str, str] | None = None) -> Table:
    """Sum totals by stack (STACK_COLUMNS of `Replay.stacks`) up by site: SITE_TOTALS, ordered by live bytes, then total
    bytes. The `stack_id` of a row is the stack of its group with the most live bytes, then the most total bytes;
    `describe_stacks` names it.

    more: further columns of `totals`, which come last, and how they are joined: "sum" or "max". Raises ValueError for
    an unknown `by`.
    """
    more = dict(more or {})
    if not groups_stacks(by):
        raise ValueError(f"by={by!r} is not known: use one of {', '.join(BY)}")
    if module_depth(by) is not None:
        _ = index.modules  # where there are none, that is said, even of a trace without stacks
    joins = {**_JOINS, **more}
    stack_ids = totals["stack_id"].astype(np.int64)
    if not len(totals):
        columns = {name: totals[name] for name in joins}
        return Table({**columns, "stack_id": stack_ids}).select(*SITE_TOTALS, *more)
    numbers = index.groups_of(stack_ids, by)
    rows = np.argsort(numbers, kind="stable")
    begins = np.append(0, np.flatnonzero(numbers[rows][1:] != numbers[rows][:-1]) + 1)
    sorted_by_group = {name: totals[name][rows] for name in joins}
    columns = {
        name: (np.maximum if joins[name] == "max" else np.add).reduceat(values, begins)
        for name, values in sorted_by_group.items()
    }
    most = rows[_first_of_most(sorted_by_group["live_bytes"], sorted_by_group["total_bytes"], begins)]
    stacks = stack_ids[most]
    columns["stack_id"] = index.same[stacks].astype(np.int64) if by == "stack" else stacks
    # Those that hold the same: by the stack that holds the most, as they come.
    # Of the highest first. (~ and not -: of a damaged trace it may be the lowest number that there is.)
    of_most = [~totals[name][most] for name in ("total_bytes", "live_bytes")]
    in_order = np.lexsort([most, *of_most, ~columns["total_bytes"], ~columns["live_bytes"]])
    return Table(columns).take(in_order).select(*SITE_TOTALS, *more)


def _first_of_most(
    values: npt.NDArray[np.int64], then: npt.NDArray[np.int64], begins: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return the row of each group with the highest value, of these with the highest of the other, and of these the
    first. begins: the first row of each group."""
    lengths = np.diff(begins, append=len(values))
    is_most = values == np.repeat(np.maximum.reduceat(values, begins), lengths)
    others = np.where(is_most, then, np.iinfo(np.int64).min)
    is_most &= others == np.repeat(np.maximum.reduceat(others, begins), lengths)
    first: npt.NDArray[np.int64] = np.minimum.reduceat(np.where(is_most, np.arange(len(values)), len(values)), begins)
    return first


def sites_of_blocks(stacks: StackIndex, blocks: Table, by: str = "line") -> Table:
    """Return what each site holds of these live blocks alone: SITE_TOTALS (allocations, total_bytes and largest_bytes
    count only these blocks, too). blocks: with requested_bytes, stack_id, backward."""
    sizes = blocks["requested_bytes"].astype(np.int64)
    stack_ids, of_row = np.unique(blocks["stack_id"].astype(np.int64), return_inverse=True)
    count = len(stack_ids)
    blocks_of, held = np.bincount(of_row, minlength=count), sums(of_row, sizes, count)
    totals = Table(
        {
            "stack_id": stack_ids,
            "allocations": blocks_of,
            "total_bytes": held,
            "live_bytes": held,
            "live_blocks": blocks_of,
            "largest_bytes": maxima(of_row, sizes, count),
            "live_backward_bytes": sums(of_row, np.where(blocks["backward"], sizes, 0), count),
        }
    )
    return group_stacks(stacks, totals, by)


def top_sites(stacks: StackIndex, sites: Table, top: int) -> tuple[SiteBytes, ...]:
    """Return the first rows of a table of sites (see `group_stacks`), without those that hold nothing."""
    holding = sites.take(sites["live_bytes"] > 0).head(top)
    return tuple(
        SiteBytes(
            Site.of_stack(stacks, row["stack_id"]),
            row["live_bytes"],
            row["live_blocks"],
            row["stack_id"],
            row["live_backward_bytes"],
        )
        for row in holding.rows()
    )
