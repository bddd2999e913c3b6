"""Objects that held the live blocks at the object scan of a failed allocation.

The recorder scans at the first two out-of-memory errors. For a later one, the last scan before it counts: only blocks
that are older than the scan are compared with it, as others may have the addresses of blocks freed since.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections import defaultdict

import numpy as np
import numpy.typing as npt

from ...reading.names import KINDS
from ...reading.positions import Range
from ...reading.recorded import Held, RecordedTrace
from ...reading.table import Table
from ..leaks.leak import EXCEPTION, GRAPH, GRAPHS, THREAD, UNUSED, Holder
from ..leaks.referrers import MIN_SHARE, estimate_share, find_step, list_garbage, make_holder
from ..usage.held_memory import list_rows, measure
from ..usage.held_rows import HeldRow
from .failed_allocations import FailedAllocation, find_failed_allocations
from .forwards import MODEL_ROLES

DOUBLE = "float64"
MIN_DOUBLE_BYTES, MIN_DOUBLE_SHARE, _MAX_DOUBLES = 1 << 20, 1 / 64, 3
_MAX_EVENTS_TO_SCAN = 256
"""Number of events after the failure that are searched for the end of its object scan."""
_LATENCY = KINDS.index("latency")
CALL = "call"
"""`Holder.store_kind` of a container to which a method adds items."""
_MODULE_CALL = "_call_impl"
"""Function of torch that calls a module."""
_INDEX = re.compile(r"\[\d+\]")
_CACHE_ENTRY = "(...)"
"""In the name of a holder: an entry of an lru_cache."""

_Mask = npt.NDArray[np.bool_]


class HoldersAtFailure:
    """Holders of the blocks that were live at a failed allocation. live: these blocks."""

    def __init__(self, trace: RecordedTrace, request: FailedAllocation, live: Table) -> None:
        self._trace = trace
        self._request = request
        self._live = live
        self._bytes: npt.NDArray[np.int64] = live["requested_bytes"].astype(np.int64)

    @functools.cached_property
    def rows(self) -> tuple[HeldRow, ...]:
        """The holders, most bytes first."""
        candidates = [holder for holder in self._trace.held if holder.event == self._scan and len(holder.addresses)]
        older = self._live.take(self._live["alloc_seq"] < self._scan)
        return list_rows(self._trace, candidates, older, int(self._bytes.sum()), has_all=False)

    def find_graph_holder(self) -> HeldRow | None:
        """Return the attribute or global variable that held the most through its graph: no call will free it."""
        return next((row for row in self.rows if _carries_graph(row.holder)), None)

    def find_graph_collection(self) -> HeldRow | None:
        """Return the container of a function that held the most through the autograd graphs of its items.

        A line of the function must add them, one after another. What a module collects in its forward, or a function
        that it calls, is a part of the model.
        """
        return next((row for row in self.rows if self._collects_graphs(row.holder)), None)

    def _collects_graphs(self, holder: Holder) -> bool:
        has_items = any(container.length > 1 for container in holder.containers)
        if holder.through != GRAPH or not has_items or holder.scope != "local" or holder.store_kind != CALL:
            return False
        stacks, stack = self._trace.stacks, self._request.stack_id
        frames = stacks.frames(stack) if 0 < stack < len(stacks) and stacks.has_frames(stack) else []
        callers = itertools.dropwhile(
            lambda frame: (frame.filename, frame.function) != (holder.filename, holder.function), frames
        )
        is_in_module = any(frame.name == _MODULE_CALL for frame in callers)
        return stacks.is_user_file(holder.filename) and not is_in_module

    def find_forgotten(self) -> HeldRow | None:
        """Return the cache of a function, or the thread, that held the most."""
        return next((row for row in self.rows if _is_forgotten(row)), None)

    def list_unused(self) -> tuple[HeldRow, ...]:
        """Return the local variables of one call that it does not read any more, the most bytes first.

        Of several calls, those of the one with the most bytes.
        """
        rows_of: dict[tuple[str, str], list[HeldRow]] = {}
        for row in self.rows:
            if row.holder.through == UNUSED and row.role not in MODEL_ROLES:
                rows_of.setdefault((row.holder.filename, row.holder.function), []).append(row)
        return tuple(max(rows_of.values(), key=lambda rows: sum(row.bytes for row in rows), default=()))

    def find_collection(self, blocks: _Mask) -> HeldRow | None:
        """Return the container of a variable or attribute that held most of some blocks; None if there is none."""
        is_older = blocks & (self._live["alloc_seq"] < self._scan)
        addresses, sizes = self._live["address"][is_older], self._bytes[is_older]
        measured = [
            (estimate_share(addresses, candidate, sizes)[0], candidate)
            for candidate in self._trace.held
            if candidate.event == self._scan
            and candidate.through not in GRAPHS
            and any(container["length"] > 1 for container in candidate.containers)
        ]
        size, largest = max(measured, key=lambda item: item[0], default=(0.0, None))
        holder = self._make_holder(largest)
        if largest is None or holder is None or 2 * size < int(self._bytes[blocks].sum()) or not size:
            return None
        return HeldRow(round(size), largest.count, True, holder, 1, "")

    def find_garbage(self) -> HeldRow | None:
        """Return the reference cycle with the most memory that only a garbage collection frees; None without any."""
        older = self._live.take(self._live["alloc_seq"] < self._scan)
        garbage = [(measure(held, older), held) for held in list_garbage(self._trace) if held.event == self._scan]
        if not garbage:
            return None
        (size, blocks, is_estimated), largest = max(garbage, key=lambda item: item[0])
        holder = make_holder(self._trace, [largest], find_step(self._trace, largest.event), 1.0)
        return HeldRow(size, blocks, is_estimated, holder, 1, "")

    @property
    def has_read_all_graphs(self) -> bool:
        """Return whether the object scan of the failure read all autograd graphs."""
        return all(held.has_all_nodes for held in self._trace.held if held.event == self._scan)

    def list_doubles(self) -> tuple[Holder, ...]:
        """Return the first large objects with float64 tensors, if most of the held numbers with a fraction are float64.

        An object with tensors of several types counts as one of other numbers; the types in a graph are unknown.
        """
        sizes = {
            held: round(float(self._bytes[is_held].sum()) / len(held.addresses) * held.count)
            for held in self._trace.held
            if held.event == self._scan
            and ("float" in held.dtype or (not held.dtype and held.through not in GRAPHS))
            and (is_held := np.isin(self._live["address"], held.addresses)).any()
        }
        doubles = {held: size for held, size in sizes.items() if held.dtype == DOUBLE}
        is_most = 2 * sum(doubles.values()) > sum(sizes.values())
        largest = max(doubles.values(), default=0)
        large = [held for held, size in doubles.items() if size >= MIN_DOUBLE_SHARE * largest]
        is_notable = is_most and largest >= MIN_DOUBLE_BYTES
        first = sorted(large, key=self._find_first)[:_MAX_DOUBLES] if is_notable else []
        return tuple(holder for held in first if (holder := self._make_holder(held)) is not None)

    def _find_first(self, held: Held) -> int:
        """Return the event of an object's first block: others may have been computed from it."""
        return int(self._live["alloc_seq"][np.isin(self._live["address"], held.addresses)].min())

    def find_holder(self, blocks: _Mask) -> Holder | None:
        """Return the object that held most of some blocks, if known. blocks: mask of the live blocks."""
        addresses = self._live["address"][blocks & (self._live["alloc_seq"] < self._scan)]
        shares = [
            (estimate_share(addresses, candidate)[1], candidate)
            for candidate in self._trace.held
            if candidate.event == self._scan and len(candidate.addresses)
        ]
        share, largest = max(shares, key=lambda item: item[0], default=(0.0, None))
        return self._make_holder(largest) if share > MIN_SHARE else None

    def find_holder_of_several(self, blocks: _Mask) -> Holder | None:
        """Return what held most of some blocks in several items of one container: "results[...].optimizer"."""
        addresses = self._live["address"][blocks & (self._live["alloc_seq"] < self._scan)]
        counts: defaultdict[str, float] = defaultdict(float)
        for candidate in self._trace.held:
            if candidate.event == self._scan and len(candidate.addresses):
                counts[_INDEX.sub("[...]", candidate.name)] += estimate_share(addresses, candidate)[0]
        name, count = max(counts.items(), key=lambda item: item[1], default=("", 0.0))
        if 2 * count < len(addresses) or not len(addresses):
            return None
        return next((row.holder for row in self.rows if row.objects > 1 and row.holder.name == name), None)

    def find_exceptions(self, activations: _Mask) -> tuple[int, Holder | None]:
        """Return the bytes that earlier exceptions held at an object scan and still hold, and the object that has them.

        The last scan before the failure counts. The scan at the failure also finds its own exception: there, only
        exceptions in a container count, and activations older than the failure before it, such as those of an attempt
        with a larger batch.
        """
        last_scan = self._find_last_scan(self._request.seq + 1)
        failures = find_failed_allocations(self._trace, device=self._request.device)
        earlier = max((failure.seq for failure in failures if failure.seq < self._request.seq), default=0)
        alloc_seq = self._live["alloc_seq"]
        alive = self._measure_exceptions(last_scan, alloc_seq < last_scan)
        alive = alive or self._measure_exceptions(self._scan, activations & (alloc_seq < earlier))
        in_containers = self._measure_exceptions(self._scan, alloc_seq < self._scan)
        alive = alive or {held: size for held, size in in_containers.items() if held.containers}
        shortest = min(alive, key=lambda exception: len(exception.name), default=None)
        return sum(alive.values()), self._make_holder(shortest)

    def _measure_exceptions(self, scan: int, blocks: _Mask) -> dict[Held, int]:
        """Return the exceptions of a scan whose memory is mostly live blocks of a mask, with the bytes of these."""
        addresses, sizes = self._live["address"][blocks], self._bytes[blocks]
        bytes_by_exception: dict[Held, int] = {}
        for candidate in self._trace.held:
            if candidate.event == scan and candidate.through == EXCEPTION:
                matches = np.isin(addresses, candidate.addresses)
                scanned = len(candidate.addresses)  # may be a sample
                if 2 * int(matches.sum()) >= scanned > 0:
                    bytes_by_exception[candidate] = round(int(sizes[matches].sum()) * candidate.count / scanned)
        return bytes_by_exception

    def _make_holder(self, candidate: Held | None) -> Holder | None:
        if candidate is None:
            return None
        return make_holder(self._trace, [candidate], find_step(self._trace, candidate.event), 1.0)

    @functools.cached_property
    def _scan(self) -> int:
        """Event of the last object scan before the failed request's thread went on; -1 if there is none."""
        request = self._request
        first = max(request.seq + 1, self._trace.integrity.compacted_until)
        within = Range(first, min(request.seq + _MAX_EVENTS_TO_SCAN, self._trace.end_seq))
        until = within.first
        for events in self._trace.iter_events(within, with_state=False):
            goes_on = (events["thread"] == request.thread) & (events["kind"] != _LATENCY)
            until = int(events["seq"][goes_on.argmax()]) if goes_on.any() else within.end
        return self._find_last_scan(until)

    def _find_last_scan(self, until: int) -> int:
        return max((candidate.event for candidate in self._trace.held if candidate.event <= until), default=-1)


def _carries_graph(holder: Holder) -> bool:
    return holder.through == GRAPH and (holder.scope == "global" or "." in holder.name)


def _is_forgotten(row: HeldRow) -> bool:
    """Return whether a cache of a function or a thread leads to the memory.

    A cache of a function may be there to share a model, and a thread to serve it: a model is forgotten only as `self`
    in the cache of a method.
    """
    holder = row.holder
    is_entry = _CACHE_ENTRY in holder.name
    if row.role in MODEL_ROLES:
        return is_entry and holder.scope == "class attribute"
    is_cache = is_entry or any(container.type == "lru_cache" for container in holder.containers)
    return is_cache or holder.through == THREAD
