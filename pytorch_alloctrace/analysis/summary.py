"""Summary of a trace: everything that its verdict shows, as plain values."""

from __future__ import annotations

import dataclasses
import enum
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np

from ..reading.integrity import Integrity
from ..reading.names import HOST_DEVICES, ROLES, UNKNOWN
from ..reading.positions import Range
from ..reading.recorded import FinalScan, RecordedTrace
from ..reading.replay import Peak
from ..reading.sites import Frame, Site, SiteBytes, group_stacks, sites_of_blocks, top_sites
from ..reading.table import Table
from .advice import Advisor
from .child_runs import ChildRuns, find_child_runs
from .evidence import DeviceEvidence
from .free_memory.autocast_cache import find_autocast_cache
from .free_memory.forwards import Forwards
from .free_memory.garbage_cycles import (
    GARBAGE,
    explain_by_collections,
    explains,
    find_garbage,
)
from .free_memory.inefficiencies import inefficiencies_of
from .free_memory.inefficiency import Inefficiency
from .free_memory.inefficiency_evidence import InefficiencyEvidence
from .free_memory.oom import OutOfMemory, visit_last_oom
from .free_memory.program_memory_reader import is_loaded
from .free_memory.unused_gradients import find_end, find_unused_gradients
from .free_memory.unused_graph import find_graph_at_peak
from .leaks.clock import LEAST_ALLOCATIONS, Clock
from .leaks.garbage_collections import Collection, list_collections
from .leaks.growth import GrowingSite, StepGrowth, growing_sites, step_growth
from .leaks.judge import LeakVerdict, judge_leaks
from .leaks.leak import Growth, Leak, NoHolder
from .leaks.outside_growth import OutsideGrowth, find_outside_growth
from .leaks.referrers import find_derived_gradient
from .usage.held_memory import MIN_PEAK_SHARE, WideTensors, find_collection, find_peak_holders, find_wide_tensors
from .usage.held_rows import HeldRow
from .usage.idle_models import IdleModel, IdleModelEvidence
from .usage.operations import Operation, find_operation
from .usage.package_lines import WORTH_OPENING, LibraryCall, PackageLines, find_library_call, find_package_lines
from .usage.peak import find_square
from .usage.recomputed import Recomputed, find_recomputed
from .usage.roles import ModelOrigin, RoleShares, find_model_origin, roles_before
from .walk import Visit, Walk

_OPTIMIZER_FILE = "torch/optim/optimizer.py"
MIN_ACTIVATION_SHARE, MIN_ROLE_SHARE = 0.5, 0.4
"""Minimum share of the live bytes of a device for activations to be the cause of a peak, and for another role."""

MIN_GRADIENT_SHARE = 0.25
"""Minimum share of the live bytes of a program without steps for gradients to be the cause of a peak."""
MIN_PAIRS_SHARE, MIN_MATRIX_SHARE = 0.25, 0.1
"""Minimum share of the live bytes for matrices of all pairs to be told, and of each of them."""


class LeaksAnswer(enum.Enum):
    FOUND = "found"
    NONE = "none"
    UNKNOWN = "unknown"
    """The trace is too short to judge, or incomplete."""


@dataclass(frozen=True)
class Program:
    """The program, from the trace header; values are empty if the header is corrupt."""

    path: str
    arguments: tuple[str, ...]
    working_directory: str
    torch: str
    cuda: str
    python: str
    host: str
    process: int
    rank: str
    recorded_devices: tuple[str, ...]
    stacks: str
    """Option of `enable`: "python" or "none"."""


@dataclass(frozen=True)
class AllPairs:
    """Blocks of N x N elements."""

    side: int
    """N."""
    item_bytes: int
    """Bytes of an element."""
    bytes: int
    blocks: int


@dataclass(frozen=True)
class Holding:
    """Live blocks at one position on one device, by line of user code. Bytes of lines and roles are requested bytes."""

    allocated_bytes: int
    """Allocated bytes of all blocks: at the peak torch's max_memory_allocated."""
    bytes: int
    """Requested bytes of all blocks, the sum of those of lines and of roles."""
    blocks: int
    event: int | None
    """Event of the position; None for the end of the trace."""
    seconds: float
    step: int | None
    sites: tuple[SiteBytes, ...]
    are_loaded: tuple[bool, ...]
    """For each of `sites`, whether torch.load or safetensors allocated its blocks."""
    operations: tuple[Operation | None, ...]
    """For each of `sites`, the operation that makes most of its blocks; None if it is no special one."""
    package_lines: tuple[PackageLines | None, ...]
    """For each of `sites`, the lines of the package that it calls, if it holds much of the memory."""
    more_sites: int
    """Number of lines that hold memory and are not in `sites`; `more_bytes` is theirs."""
    more_bytes: int
    roles: RoleShares
    model_origin: ModelOrigin | None = None
    """If activations are half of the bytes or more: where the model comes from."""
    recomputed: Recomputed | None = None
    """If activations are half of the bytes or more: those of them that checkpoints have computed again in backward."""
    all_pairs: AllPairs | None = None
    """Blocks that have the size of a matrix of all pairs; None if they are less than `MIN_PAIRS_SHARE`."""
    line_by_role: Mapping[str, Site] = field(default_factory=dict)
    """The line with half of a role's bytes or more, for a role with `MIN_ROLE_SHARE` of all bytes or more."""


@dataclass(frozen=True)
class DeviceSummary:
    """Summary of one device; `device` as torch spells it."""

    device: str
    name: str
    """Name that the driver gives a GPU, such as "NVIDIA H200"; "" if it is not recorded."""
    memory_bytes: int | None
    """Memory of a GPU; None if it is not recorded."""
    allocations: int
    total_bytes: int
    peak_reserved_bytes: int
    """Torch's `max_memory_reserved`; 0 on a device without segments."""
    peak: Holding
    end: Holding
    growth: StepGrowth | None
    """Growth from step to step; None in a trace without steps."""
    leaks: LeakVerdict
    growing: tuple[GrowingSite, ...]
    inefficiencies: tuple[Inefficiency, ...]
    failure: OutOfMemory | None
    levels: tuple[int, ...]
    """Allocated bytes over time: the maximum of each of equal intervals."""
    library_calls: Mapping[int, LibraryCall] = field(default_factory=dict)
    """Line of a library that a line with a leak or growth calls, by the first stack of the leak or growth."""
    peak_holders: tuple[HeldRow, ...] = ()
    """Objects that held much of the peak of a GPU: see `find_peak_holders`, else `find_collection`. None in a summary
    of leaks, and if an allocation failed."""
    wide_tensors: WideTensors | None = None
    """Tensors of float64 or int64 that are much of the peak of a GPU; None as for `peak_holders`."""
    derived_gradient: Frame | None = None
    """Line that computes gradients with graphs, which make up much of the peak of a program without steps."""
    idle_model: IdleModel | None = None
    """Model that stays on a GPU after its last call; None as for `peak_holders`."""
    peak_forwards: Forwards | None = None
    """Calls of the model whose graphs are at the peak of a GPU and wait for one backward; None if there are not many,
    and as for `peak_holders`."""


@dataclass(frozen=True)
class Summary:
    trace: str
    file_bytes: int
    program: Program
    begin_ns: int
    """Begin of the recording, in nanoseconds since 1970-01-01 UTC."""
    seconds: float
    steps: int
    integrity: Integrity
    unmatched_frees: int
    """Number of frees of blocks allocated before the recording, or whose allocation was lost."""
    final_scan: FinalScan | None
    """The object scan at the end of the recording; None if the program was killed or still runs."""
    devices: tuple[DeviceSummary, ...]
    """Highest peak first."""
    outside_growth: tuple[OutsideGrowth, ...]
    """Growth of host memory outside torch's allocators; empty for a range."""
    children: ChildRuns[Summary] | None
    """Peaks and leaks of child processes; None for a range, and in the summary of a child."""
    advisor: Advisor = field(repr=False, compare=False)

    def is_small(self, device: DeviceSummary) -> bool:
        """Return whether a device is negligible: no leak, and a peak below a twentieth of the largest device's.

        So is host memory with too few allocations to judge beside a GPU that is judged: where the model was made.
        """
        if device.leaks.leaks:
            return False
        is_unused = device.device in HOST_DEVICES and device.allocations < LEAST_ALLOCATIONS
        is_beside = any(other.leaks.judged for other in self.devices if other.device not in HOST_DEVICES)
        return device.peak.bytes * 20 < self.devices[0].peak.bytes or (is_unused and is_beside)

    @property
    def leaks_answer(self) -> LeaksAnswer:
        """FOUND if the readable part has a leak that is not minor, else NONE if `leaks_are_known`, else UNKNOWN.

        Judged children of the program count, too.
        """
        summaries = (self, *self._child_summaries)
        if any(not leak.minor for summary in summaries for device in summary.devices for leak in device.leaks.leaks):
            return LeaksAnswer.FOUND
        return LeaksAnswer.NONE if self.leaks_are_known else LeaksAnswer.UNKNOWN

    @property
    def leaks_are_known(self) -> bool:
        """True if all traces are complete and judged, and nothing grew outside torch. A small device may be unjudged.

        Device sizes are relative to the largest device of the program itself, if it has any.
        """
        if not any(summary.devices for summary in (self, *self._child_summaries)):
            return False
        if self.children is not None and (
            self.children.unjudged or any(child.summary is None for child in self.children.runs)
        ):
            return False
        return all((self if self.devices else child)._knows(child) for child in (self, *self._child_summaries))

    @property
    def _child_summaries(self) -> list[Summary]:
        runs = () if self.children is None else self.children.runs
        return [run.summary for run in runs if run.summary is not None]

    def _knows(self, other: Summary) -> bool:
        """Return whether the leaks of this summary or of one of a child are known."""
        # A forked child has its parent's blocks, and may not allocate on their device.
        devices = [device for device in other.devices if device.allocations or other is self]
        is_undecided = any(not device.leaks.decided and not self.is_small(device) for device in devices)
        return other.integrity.is_complete and not is_undecided and not other.outside_growth


def summarize(
    trace: RecordedTrace,
    *,
    top: int = 10,
    devices: Sequence[str] = (),
    of_leaks: bool = False,
    with_children: bool = False,
    within: Range | None = None,
) -> Summary:
    """Summarize a trace, or only its leaks, which may be limited to the complete steps in `within`.

    Child processes are summarized too, with `of_leaks` only if `with_children`. Empty `devices` select all. Takes one
    pass and one walk, and memory in proportion to live blocks and stacks.
    """
    named_devices = [trace.named_device(device) for device in devices]
    selected_devices = [device for device in trace.devices if not named_devices or device in named_devices]
    walk = Walk(trace)
    summarizers = [_DeviceSummarizer(walk, trace, device, of_leaks, within) for device in selected_devices]
    walk.make()
    collections = functools.cache(lambda: list_collections(trace))
    device_summaries = tuple(summarizer.summarize(top, of_leaks, collections) for summarizer in summarizers)
    outside_growth: tuple[OutsideGrowth, ...] = ()
    if summarizers and within is None:
        verdicts = [device.leaks for device in device_summaries]
        outside_growth = find_outside_growth(trace, summarizers[0].clock, verdicts)
    return Summary(
        trace=trace.path,
        file_bytes=trace.file_bytes,
        program=_read_program(trace.header),
        begin_ns=trace.begin_ns,
        seconds=_seconds_since_begin(trace, trace.end_ns),
        steps=trace.positions.step_count,
        integrity=trace.integrity,
        unmatched_frees=trace.replay.unmatched_frees,
        final_scan=trace.final_scan,
        devices=device_summaries,
        outside_growth=outside_growth,
        children=_find_children(trace, [name for name in named_devices if name])
        if with_children or not of_leaks
        else None,
        advisor=Advisor(trace, {device.device: device.leaks.leaks for device in device_summaries}),
    )


def _find_children(trace: RecordedTrace, devices: Sequence[str | None]) -> ChildRuns[Summary]:
    def summarize_leaks(child: RecordedTrace) -> Summary:
        summary = summarize(child, of_leaks=True)
        selected = tuple(device for device in summary.devices if not devices or device.device in devices)
        return dataclasses.replace(summary, devices=selected)

    return find_child_runs(trace, summarize_leaks)


class _DeviceSummarizer:
    def __init__(self, walk: Walk, trace: RecordedTrace, device: str, of_leaks: bool, within: Range | None) -> None:
        self._trace = trace
        self._device = device
        self._evidence = DeviceEvidence(walk, trace, device, within, with_growth=not of_leaks)
        self._peak = trace.replay.peak("allocated", device)
        self._at_end = walk.visit(trace.end_seq, lambda: _LiveMemory.read_before(trace, device, trace.end_seq))
        self._at_peak: Visit[_LiveMemory] | None = None
        if self._peak is not None:
            until = self._peak.seq + 1
            self._at_peak = walk.visit(until, lambda: _LiveMemory.read_before(trace, device, until))
        self._inefficiencies = None if of_leaks else InefficiencyEvidence(walk, trace, device, self._evidence.clocks)
        self._failure = visit_last_oom(walk, trace, device)
        self._graph_at_peak: Visit[Inefficiency | Forwards | None] | None = None
        # The finding on a failure describes forwards without backward.
        if not of_leaks and self._failure is None and (peak := self._peak) is not None:
            self._graph_at_peak = walk.visit(peak.seq + 1, lambda: find_graph_at_peak(trace, device, peak))
        self._unused_gradients: Visit[Inefficiency | None] | None = None
        if not of_leaks and self._peak is not None and (end := find_end(trace, device)):
            self._unused_gradients = walk.visit(end, partial(find_unused_gradients, trace, device, self._peak, end))
        self._idle_models: IdleModelEvidence | None = None
        if not of_leaks and self._failure is None and device not in HOST_DEVICES:
            self._idle_models = IdleModelEvidence(walk, trace, device, self._evidence.clocks)

    @property
    def clock(self) -> Clock:
        return self._evidence.clocks[0]

    def summarize(self, top: int, of_leaks: bool, collections: Callable[[], Sequence[Collection]]) -> DeviceSummary:
        """Return the summary. Must be called after the walk."""
        trace, device = self._trace, self._device
        end, leaks = self._at_end.result, judge_leaks(self._evidence)
        if any(leak.no_holder is NoHolder.NOT_REACHED for leak in leaks.leaks):
            examined = tuple(explain_by_collections(trace, leak, collections()) for leak in leaks.leaks)
            leaks = dataclasses.replace(leaks, leaks=examined)
        inefficiencies = () if self._inefficiencies is None else self._list_inefficiencies(collections())
        accused = {stack for leak in leaks.leaks for stack in leak.stack_ids}
        inefficiencies = tuple(
            found for found in inefficiencies if found.kind != GARBAGE or found.stack_id not in accused
        )
        garbage = [inefficiency for inefficiency in inefficiencies if inefficiency.kind == GARBAGE]
        notes = tuple(note for note in leaks.notes if not any(explains(found, note) for found in garbage))
        leaks = dataclasses.replace(leaks, notes=notes)
        at_end = _build_holding(trace, end, None, top)
        at_peak = at_end if self._at_peak is None else _build_holding(trace, self._at_peak.result, self._peak, top)
        peak_holders: tuple[HeldRow, ...] = ()
        wide_tensors = None
        if not of_leaks and self._peak is not None and self._failure is None and device not in HOST_DEVICES:
            peak_holders = find_peak_holders(trace, device, self._peak, at_peak.roles) or self._find_collection(at_peak)
            wide_tensors = find_wide_tensors(trace, device, self._peak, at_peak.bytes)
        reserved_peak = trace.replay.peak("reserved", device)
        return DeviceSummary(
            device=device,
            name=trace.device_names.get(device, ""),
            memory_bytes=trace.device_bytes(device) if device in trace.device_names else None,
            peak_reserved_bytes=0 if reserved_peak is None else reserved_peak.bytes,
            allocations=int(end.stacks["allocations"].sum()),
            total_bytes=int(end.stacks["total_bytes"].sum()),
            peak=at_peak,
            end=at_end,
            growth=step_growth(trace, device),
            leaks=leaks,
            growing=() if of_leaks else growing_sites(self._evidence, top),
            inefficiencies=inefficiencies,
            failure=None if self._failure is None else self._failure.result,
            levels=tuple(trace.timeline(120, device)["allocated_bytes_max"].tolist()),
            library_calls=_find_library_calls(trace, device, (*leaks.leaks, *leaks.undecided, *leaks.notes)),
            peak_holders=peak_holders,
            wide_tensors=wide_tensors,
            derived_gradient=self._find_derived_gradient(at_peak) if not of_leaks and self._failure is None else None,
            idle_model=None if self._idle_models is None else self._idle_models.find(),
            peak_forwards=graph if isinstance(graph := _result_of(self._graph_at_peak), Forwards) else None,
        )

    def _find_collection(self, at_peak: Holding) -> tuple[HeldRow, ...]:
        """Return the container that holds the blocks of the line with the most memory, if these are no activations."""
        largest = at_peak.sites[0] if at_peak.sites else None
        activations = sum(part.bytes for part in at_peak.roles.roles if part.role == "activation")
        if self._peak is None or largest is None or largest.bytes < MIN_PEAK_SHARE * at_peak.bytes:
            return ()
        if largest.bytes <= activations or not largest.site.filename:
            return ()
        collection = find_collection(self._evidence, self._peak, largest)
        return () if collection is None else (collection,)

    def _find_derived_gradient(self, at_peak: Holding) -> Frame | None:
        """Return the line if much of the peak is gradients, and no optimizer ran: a training needs them."""
        gradients = sum(part.bytes for part in at_peak.roles.roles if part.role == "gradient")
        if self._trace.positions.step_count or gradients < max(MIN_GRADIENT_SHARE * at_peak.bytes, 1):
            return None
        return find_derived_gradient(self._trace)

    def _list_inefficiencies(self, collections: Sequence[Collection]) -> tuple[Inefficiency, ...]:
        assert self._inefficiencies is not None
        garbage = find_garbage(self._evidence, collections)
        autocast = find_autocast_cache(self._trace, self._device, self._evidence.autocast_exits)
        unused = (_result_of(self._graph_at_peak), _result_of(self._unused_gradients))
        others = [other for other in (garbage, autocast, *unused) if isinstance(other, Inefficiency)]
        return (*inefficiencies_of(self._inefficiencies), *others)


_Result = TypeVar("_Result")


def _result_of(visit: Visit[_Result] | None) -> _Result | None:
    return None if visit is None or visit.is_compacted else visit.result


def _find_library_calls(trace: RecordedTrace, device: str, growths: Sequence[Leak | Growth]) -> dict[int, LibraryCall]:
    """Return what the one line of each leak or growth calls in a library, from all that its stacks hold when judged."""
    stacks = trace.stacks
    calls = {}
    for growth in growths:
        line = growth.line if isinstance(growth, Leak) else growth.site
        stack_ids = [stack for stack in growth.stack_ids if stacks.has_frames(stack)]
        if (
            not trace.is_known_at(growth.judged_at)
            or not any(stacks.opened[stack] for stack in stack_ids)
            or Site.of_stack(stacks, stack_ids[0]) != line
        ):
            continue
        live = trace.replay.stacks(growth.judged_at + 1, device)
        is_of_growth = (
            np.isin(live["stack_id"], growth.block_stacks)
            if growth.block_stacks
            else np.isin(stacks.same[live["stack_id"]], stacks.same[stack_ids])
        )
        held = live.take((live["live_bytes"] > 0) & is_of_growth)
        call = find_library_call(stacks, held)
        if call is not None:
            calls[growth.stack_ids[0]] = call
    return calls


@dataclass(frozen=True, eq=False)
class _LiveMemory:
    """Live blocks at a position: `Replay.stacks`, and bytes by role."""

    stacks: Table
    roles: RoleShares
    model_origin: ModelOrigin | None
    recomputed: Recomputed | None
    line_by_role: Mapping[str, Site]

    @classmethod
    def read_before(cls, trace: RecordedTrace, device: str, until: int) -> _LiveMemory:
        stacks, roles = trace.replay.stacks(until, device), roles_before(trace, device, until)
        total = int(stacks["live_bytes"].sum())
        model_origin, recomputed, line_by_role = None, None, {}
        for part in roles.roles:
            if part.role == UNKNOWN or part.bytes < max(MIN_ROLE_SHARE * total, 1):
                continue
            live = trace.replay.live(until, device)
            if part.role == "activation" and part.bytes >= MIN_ACTIVATION_SHARE * total:
                model_origin = find_model_origin(trace, live)
            of_role = live.take(live["role"] == ROLES.index(part.role))
            if model_origin is not None and part.role == "activation":
                recomputed = find_recomputed(
                    trace.stacks, of_role["stack_id"].astype(np.int64), of_role["requested_bytes"].astype(np.int64)
                )
            largest = top_sites(trace.stacks, sites_of_blocks(trace.stacks, of_role), 1)
            if largest and 2 * largest[0].bytes >= part.bytes:
                line_by_role[part.role] = largest[0].site
        return cls(stacks, roles, model_origin, recomputed, line_by_role)


def _build_holding(trace: RecordedTrace, memory: _LiveMemory, peak: Peak | None, top: int) -> Holding:
    """Return the live blocks at a peak, or at the end of the trace if `peak` is None."""
    event, time_ns = (None, trace.end_ns) if peak is None else (peak.seq, peak.time_ns)
    sites = group_stacks(trace.stacks, memory.stacks, "line")
    top_lines = top_sites(trace.stacks, sites, top)
    total = int(sites["live_bytes"].sum())
    return Holding(
        allocated_bytes=int(memory.stacks["live_block_bytes"].sum()) if peak is None else peak.bytes,
        bytes=total,
        blocks=int(sites["live_blocks"].sum()),
        event=event,
        seconds=_seconds_since_begin(trace, time_ns),
        step=None if event is None else trace.positions.step_at(event),
        sites=top_lines,
        are_loaded=tuple(is_loaded(_frames_of(trace, site.stack_id)) for site in top_lines),
        operations=tuple(_find_operation(trace, site, memory.stacks) for site in top_lines),
        package_lines=tuple(
            find_package_lines(trace.stacks, memory.stacks, site.stack_id, total)
            if site.bytes >= WORTH_OPENING * total
            else None
            for site in top_lines
        ),
        more_sites=int((sites["live_bytes"] > 0).sum()) - len(top_lines),
        more_bytes=total - sum(site.bytes for site in top_lines),
        roles=memory.roles,
        model_origin=memory.model_origin,
        recomputed=memory.recomputed,
        all_pairs=_find_all_pairs(memory.stacks, total),
        line_by_role=memory.line_by_role,
    )


def _find_all_pairs(stacks: Table, total: int) -> AllPairs | None:
    """Return the blocks of the most bytes with the size of a matrix of all pairs, by stacks of equal blocks."""
    pairs_of: dict[tuple[int, int], AllPairs] = {}
    for size, blocks in zip(stacks["live_bytes"].tolist(), stacks["live_blocks"].tolist(), strict=True):
        # Many small blocks of such a size are a coincidence.
        is_large = blocks > 0 and size // blocks >= MIN_MATRIX_SHARE * total
        if is_large and size % blocks == 0 and (square := find_square(size // blocks)):
            pairs = pairs_of.get(square, AllPairs(*square, 0, 0))
            pairs_of[square] = AllPairs(*square, pairs.bytes + size, pairs.blocks + blocks)
    largest = max(pairs_of.values(), key=lambda pairs: pairs.bytes, default=None)
    return largest if largest is not None and largest.bytes >= MIN_PAIRS_SHARE * total else None


def _find_operation(trace: RecordedTrace, site: SiteBytes, stacks: Table) -> Operation | None:
    """Return the operation of a line, by its stack with the most bytes; of an optimizer's step, by any stack."""
    frames = _frames_of(trace, site.stack_id)
    called = itertools.takewhile(
        lambda frame: (frame.filename, frame.line) != (site.site.filename, site.site.line), frames
    )
    if any(frame.filename.replace("\\", "/").endswith(_OPTIMIZER_FILE) for frame in called):
        lines = trace.stacks.group("line")
        of_line = stacks["stack_id"][lines[stacks["stack_id"]] == lines[site.stack_id]].tolist()
        operations = (find_operation(site.site, _frames_of(trace, stack)) for stack in of_line)
        return next((operation for operation in operations if operation is Operation.STEP), None)
    return find_operation(site.site, frames)


def _frames_of(trace: RecordedTrace, stack_id: int) -> list[Frame]:
    return trace.stacks.frames(stack_id) if trace.stacks.has_frames(stack_id) else []


def _seconds_since_begin(trace: RecordedTrace, time_ns: int) -> float:
    return max(time_ns - trace.begin_ns, 0) / 1e9


def _read_program(header: dict[str, Any]) -> Program:
    # A corrupt header may contain any types: every value is converted to the expected type.
    def text(name: str) -> str:
        value = header.get(name)
        return "" if value is None else str(value)

    def texts(name: str) -> tuple[str, ...]:
        value = header.get(name)
        return tuple(str(item) for item in value) if isinstance(value, list) else ()

    options = header.get("options")
    process = header.get("process")
    return Program(
        path=text("program"),
        arguments=texts("arguments"),
        working_directory=text("working_directory"),
        torch=text("torch"),
        cuda=text("cuda"),
        python=text("python"),
        host=text("host"),
        process=process if isinstance(process, int) else 0,
        rank=text("rank"),
        recorded_devices=texts("devices"),
        stacks=str(options.get("stacks", "")) if isinstance(options, dict) else "",
    )
