"""Reads what a program used its memory for at a failed allocation: see `program_memory` for the uses and causes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..._replay import MIN_BLOCK_SIZE
from ...reading.names import ROLES
from ...reading.recorded import RecordedTrace
from ...reading.sites import Frame, Site, SiteBytes, sites_of_blocks, top_sites
from ...reading.table import Table
from ..leaks.loops import LoopIndex
from ..leaks.referrers import find_derived_gradient
from ..usage.composition import FORWARD as FORWARD_PHASE
from ..usage.composition import OPTIMIZER as OPTIMIZER_PHASE
from ..usage.operations import find_operation
from ..usage.recomputed import Recomputed, find_recomputed
from ..usage.roles import find_model_origin
from .autocast_cache import find_autocast_memory
from .failed_allocations import FailedAllocation
from .forwards import ACTIVATIONS, FORWARD, KEPT, LARGE_SHARE, MODEL, MODEL_ROLES, ForwardReader
from .holders_at_failure import HoldersAtFailure
from .program_memory import FormerTraining, GrowingRequests, LargeParameter, MadeModels, ProgramMemory

MIN_GROWING_REQUESTS, GROWING_PARTS = 64, 16
"""Minimum number of requests that may grow, and number of equal parts whose largest requests are compared."""
MIN_GROWING_SHARE, MIN_GROWTH = 0.8, 2
"""Minimum share of these parts with a larger request than the part before, and ratio of the failed one to the first."""
MIN_DERIVED_SHARE = 0.1
"""Minimum share of the live bytes that backward made beyond gradients of parameters: those may have graphs."""
MIN_MODELS = 3
"""Minimum number of models that a line made: the second may be a copy of the first."""
MIN_COPY_SHARE = 0.01
"""Minimum share of the live bytes of one copy."""
MIN_COMMON_SHARE = 0.9
"""Minimum share of the bytes of a copy in blocks with sizes of the model's blocks."""
_WEIGHT_ROLES = ("parameter", "buffer")
_MAX_SITES = 5
_LOAD = re.compile(r"[/\\](torch[/\\]serialization|safetensors[/\\]torch)\.py$")
_COPY = re.compile(r"[/\\](copy|torch[/\\]nn[/\\]modules[/\\]module)\.py$")
_COPY_FUNCTIONS = ("deepcopy", "_apply")
_ATTENTION = re.compile(r"attention|attn|attend", re.IGNORECASE)
_ATTENTION_WORK = re.compile(r"softmax|@|matmul|bmm|einsum|dropout|mask|score|attn|attention|\bq\b")
"""Words of a line that computes with an attention matrix."""
_FUSED_ATTENTION = "scaled_dot_product"
_VMAP_FILE = re.compile(r"[/\\]torch[/\\](_functorch[/\\]vmap|_vmap_internals)\.py$")
_VMAP_FUNCTION = re.compile(r"\b(vmap_impl|_flat_vmap|_chunked_vmap|_vmap)\b")
_DERIVATIVE_FILE = re.compile(r"[/\\]torch[/\\](_functorch[/\\]eager_transforms|autograd[/\\]functional)\.py$")
_DERIVATIVE = re.compile(r"^(jacobian|hessian|jacrev|jacfwd)\b")
"""Functions of torch that compute a matrix of derivatives. Before Python 3.11, some of their frames lack this name."""
_FOREACH, _FOREACH_SGD = "_multi_tensor_", "_multi_tensor_sgd"
_INIT_STATE = "_init_group"
"""Function of torch's optimizers that makes the state of parameters."""
_INNERMOST_FRAMES = 3
_ITEM_BYTES = (4, 2, 8, 1)

_Mask = npt.NDArray[np.bool_]


def read_program_memory(trace: RecordedTrace, request: FailedAllocation, live: Table) -> ProgramMemory:
    """Read the memory before a failed allocation. live: rows of `blocks_with_steps`."""
    return _MemoryReader(trace, request, live).read()


def is_loaded(frames: Sequence[Frame]) -> bool:
    """Return whether torch.load or safetensors allocated a block with this stack."""
    return any(_LOAD.search(frame.filename) for frame in frames)


class _MemoryReader(ForwardReader):
    def __init__(self, trace: RecordedTrace, request: FailedAllocation, live: Table) -> None:
        super().__init__(trace, request.device, request.seq, live, in_backward=request.node_type != "")
        self._request = request
        # A corrupt trace may lack the stack.
        self._request_stack = request.stack_id if 0 <= request.stack_id < len(trace.stacks) else 0
        self._is_weight: _Mask = self._has_role(*_WEIGHT_ROLES) | (
            ~self._uses[MODEL] & ~self._of_backward & self._is_true_of_stack(self._is_copied)
        )
        self._holders = HoldersAtFailure(trace, request, live)
        self._totals = trace.replay.stacks(request.seq, request.device)

    def read(self) -> ProgramMemory:
        request = self._request
        last_pass, live_forwards = self.read_forwards()
        copies, has_late_copies = self._find_copies()
        exception_bytes, exception_holder = self._holders.find_exceptions(self._uses[ACTIVATIONS])
        is_kept = self._uses[KEPT]
        sites = {use: self._top_sites(rows) for use, rows in self._uses.items()}
        kept_line = self._lines[sites[KEPT][0].stack_id] if sites[KEPT] else None
        kept_rows = is_kept & (self._lines[self._live["stack_id"]] == kept_line)
        totals = self._totals
        total_lines = self._lines[totals["stack_id"]]
        kept_allocations = int(totals["allocations"][total_lines == kept_line].sum())
        frames = self._frames(self._request_stack)[:_INNERMOST_FRAMES]
        earlier_state = self._of_optimizer & (self._live["alloc_seq"] < last_pass)
        vmap = self._find_vmap()
        copies_of_step = self._of_optimizer & ~self._has_role("optimizer state")
        return ProgramMemory(
            bytes_by_use={use: int(self._bytes[rows].sum()) for use, rows in self._uses.items()},
            sites_by_use=sites,
            bytes_by_role=self._sum_roles(),
            requested_bytes=request.requested_bytes,
            request_use=self._find_use_of_request(),
            in_optimizer=self._is_in_optimizer,
            step_copies_bytes=int(self._bytes[copies_of_step].sum()),
            is_first_step=not earlier_state.any() or any(frame.name == _INIT_STATE for frame in frames),
            in_foreach=self._is_in_optimizer
            and any(frame.name.startswith(_FOREACH) for frame in frames)
            # Only SGD makes its state there, as copies of the gradients.
            and (earlier_state.any() or not any(frame.name == _FOREACH_SGD for frame in frames)),
            earlier_optimizer_bytes=int(self._bytes[earlier_state].sum()),
            earlier_optimizer_holder=self._holders.find_holder(earlier_state)
            or self._holders.find_holder_of_several(earlier_state),
            forwards=None if live_forwards is None else live_forwards.forwards,
            models=self._find_made_models(),
            checkpoints=self._find_checkpoints(),
            copies=copies,
            has_late_copies=has_late_copies,
            largest_before_bytes=self._find_largest_before(),
            request_operation=find_operation(
                Site.of_stack(self._stacks, self._request_stack), self._frames(self._request_stack)
            ),
            operations_by_use={
                use: tuple(find_operation(site.site, self._frames(site.stack_id)) for site in top)
                for use, top in sites.items()
            },
            growing_requests=self._find_growing_requests(),
            outer_count=self._find_outer_count(),
            is_attention=_mentions_attention(frames),
            model_origin=find_model_origin(self._trace, self._live),
            kept_steps=len(np.unique(np.ma.compressed(self._live["step"][kept_rows]))),
            kept_has_freed=kept_allocations > int(kept_rows.sum()),
            kept_of_forward=self._lacks_nodes
            and bool(sites[KEPT])
            and self._phases.of_stack(sites[KEPT][0].stack_id) == FORWARD_PHASE,
            has_backward=self._begins_late or bool((self._events["node_type"] != 0).any()),
            exception_bytes=exception_bytes,
            exception_holder=exception_holder,
            has_complete_scan=self._holders.has_read_all_graphs,
            autocast=find_autocast_memory(self._trace, request.device, request.seq, self._live),
            graph_holder=self._holders.find_graph_holder(),
            holder=self._holders.find_forgotten(),
            collection=self._holders.find_collection(self._uses[FORWARD]),
            unused=self._holders.list_unused(),
            doubles=self._holders.list_doubles(),
            graph_collection=self._holders.find_graph_collection(),
            recomputed=self._find_recomputed(),
            derived_gradient=self._find_derived_gradient(sites[ACTIVATIONS]),
            vmap=vmap[0] if vmap else None,
            vmap_function=vmap[1] if vmap else "",
            garbage=self._holders.find_garbage(),
            large_parameter=self._find_large_parameter(),
            former_training=self._find_former_training(),
        )

    def _find_largest_before(self) -> int:
        """Return the bytes of the largest allocation of the request's line before the call of a model that made it."""
        totals, events = self._totals, self._events
        if self._calls[self._request_stack]:
            is_other = (self._calls[events["stack"]] == 0) | (events["node_type"] != 0)
            begin = int(events["seq"][is_other].max(initial=events["seq"].min(initial=self._request.seq)))
            totals = self._trace.replay.stacks(begin, self._request.device)
        is_of_request = self._lines[totals["stack_id"]] == self._lines[self._request_stack]
        return int(totals["largest_bytes"][is_of_request].max(initial=0))

    def _find_growing_requests(self) -> GrowingRequests | None:
        """Compare the largest requests of equal parts of the events: one line may make requests of several sizes."""
        is_own = (self._events["stack"] == self._request_stack) & (self._events["node_type"] == 0)
        sizes = self._events["requested_bytes"][is_own]
        if len(sizes) < MIN_GROWING_REQUESTS or self._request.node_type or not self._request_stack:
            return None
        # The first part has the warm-up, such as the prompt before the tokens that are generated.
        largest = np.array([part.max() for part in np.array_split(sizes, GROWING_PARTS)[1:]])
        is_steady = (np.diff(largest) > 0).mean() >= MIN_GROWING_SHARE
        has_grown = self._request.requested_bytes >= MIN_GROWTH * int(largest[0])
        return GrowingRequests(int(largest[0]), len(sizes)) if is_steady and has_grown else None

    def _find_derived_gradient(self, sites: Sequence[SiteBytes]) -> Frame | None:
        """Return a line with `create_graph=True` whose function made the activations of one of these lines.

        Backward must have made more than the gradients of parameters: gradients with graphs.
        """
        of_backward, parameters = (
            int(self._bytes[rows].sum()) for rows in (self._of_backward, self._has_role("parameter"))
        )
        line = find_derived_gradient(self._trace, beside_backward=True)
        if line is None or of_backward - parameters < MIN_DERIVED_SHARE * int(self._bytes.sum()):
            return None
        calls = ((frame.filename, frame.function) for site in sites for frame in self._frames(site.stack_id))
        return line if (line.filename, line.function) in calls else None

    def _find_recomputed(self) -> Recomputed | None:
        rows = self._uses[ACTIVATIONS]
        return find_recomputed(self._stacks, self._live["stack_id"][rows].astype(np.int64), self._bytes[rows])

    def _find_vmap(self) -> tuple[SiteBytes, str] | None:
        """Return the line that called torch.func.vmap for the most bytes, if any, with these, and the function.

        The backward of its gradients has blocks without a line.
        """
        calls = self._stacks.outermost(self._stacks.ends_in(_is_vmap))
        lines = np.where(calls > 0, self._lines[self._stacks.parent[calls]], -1)
        live_lines = lines[self._live["stack_id"]]
        of_vmap = live_lines >= 0
        if not of_vmap.any():
            return None
        candidates, numbers = np.unique(live_lines[of_vmap], return_inverse=True)
        rows = live_lines == candidates[np.bincount(numbers.reshape(-1), self._bytes[of_vmap]).argmax()]
        call = int(calls[int(self._live["stack_id"][rows][0])])
        caller = int(self._stacks.parent[call])
        function = self._stacks.frame(call).function
        first = self._live["alloc_seq"][rows].min()
        is_other = (self._events["seq"] > first) & (self._events["node_type"] == 0) & (lines[self._events["stack"]] < 0)
        requested = 0
        if not is_other.any():  # the call has not returned
            is_later = self._live["alloc_seq"] > first
            rows |= is_later & self._of_backward & ~self._is_true_of_stack(self._stacks.has_frames)
            is_of_call = self._request.node_type or lines[self._request_stack] >= 0
            requested = self._request.requested_bytes if is_of_call else 0
        size = int(self._bytes[rows].sum()) + requested
        return SiteBytes(Site.of_stack(self._stacks, caller), size, int(rows.sum()), caller), function

    def _find_large_parameter(self) -> LargeParameter | None:
        rows = np.flatnonzero(self._has_role("parameter"))
        if not len(rows):
            return None
        largest = int(rows[self._bytes[rows].argmax()])
        size, address, alloc_seq = (
            self._bytes[largest],
            self._live["address"][largest],
            self._live["alloc_seq"][largest],
        )
        if int((self._bytes[rows] == size).sum()) > 1:  # a layer among others
            return None
        is_of_training = self._has_role("gradient", "optimizer state") & (self._bytes == size)
        is_requested = self._is_in_optimizer or bool(self._request.node_type)
        is_requested &= 0 <= self._request.requested_bytes - int(size) < MIN_BLOCK_SIZE
        [name] = self._trace.block_names([int(address)], [int(alloc_seq)], self._trace.end_seq)
        stack = int(self._live["stack_id"][largest])
        tensors = 1 + int(is_of_training.sum()) + int(is_requested)
        return LargeParameter(
            name, SiteBytes(Site.of_stack(self._stacks, stack), int(size), 1, stack), int(size) * tensors, tensors
        )

    def _find_former_training(self) -> FormerTraining | None:
        """Return gradients and optimizer state that are older than the parameters of a later model.

        Only if the later model has gradients of its own, or a container keeps the state, as of stages that are done: a
        training may add a layer, or shard its parameters anew in each step. A copy of the model, such as an average of
        its parameters, is no later model.
        """
        alloc_seq = self._live["alloc_seq"]
        is_gradient, is_parameter = self._has_role("gradient"), self._has_role("parameter")
        if not is_gradient.any():
            return None
        is_copy = self._is_true_of_stack(lambda stack: any(frame.name == "deepcopy" for frame in self._frames(stack)))
        later = is_parameter & (alloc_seq > alloc_seq[is_gradient].min()) & ~is_copy
        if not later.any():
            return None
        begin = alloc_seq[later].min()
        gradients, state = is_gradient & (alloc_seq < begin), self._of_optimizer & (alloc_seq < begin)
        [site] = self._top_sites(gradients | state, top=1)
        [later_site] = self._top_sites(later, top=1)
        holder = self._holders.find_holder(state)
        gradient_bytes, later_bytes, young_bytes = (
            int(self._bytes[rows].sum()) for rows in (gradients, later, is_gradient & (alloc_seq > begin))
        )
        is_trained = 2 * young_bytes >= later_bytes or (holder is not None and "[" in holder.name)
        if not is_trained or later_bytes < LARGE_SHARE * gradient_bytes:
            return None
        return FormerTraining(
            gradient_bytes,
            int(self._bytes[state].sum()),
            site,
            holder,
            later_site,
        )

    @property
    def _is_in_optimizer(self) -> bool:
        return not self._request.node_type and self._phases.of_stack(self._request_stack) == OPTIMIZER_PHASE

    def _find_use_of_request(self) -> str:
        if self._is_in_optimizer:
            return MODEL
        if self._request.node_type or self._creates_nodes[self._request_stack]:
            return ACTIVATIONS
        if self._phases.of_stack(self._request_stack) != FORWARD_PHASE:
            return KEPT
        if (self._totals["stack_id"] == self._request_stack).any():
            return FORWARD
        # The first request of its stack: no allocation shows whether its operator creates a node.
        activation_bytes, forward_bytes = (
            int(self._bytes[self._uses[use] & ~self._of_backward].sum()) for use in (ACTIVATIONS, FORWARD)
        )
        return ACTIVATIONS if activation_bytes > forward_bytes else FORWARD

    def _top_sites(self, rows: _Mask, top: int = _MAX_SITES) -> tuple[SiteBytes, ...]:
        return top_sites(self._stacks, sites_of_blocks(self._stacks, self._live.take(rows)), top)

    def _sum_roles(self) -> dict[str, int]:
        roles = np.where(self._of_optimizer, ROLES.index("optimizer state"), self._live["role"])
        return {role: int(self._bytes[roles == ROLES.index(role)].sum()) for role in MODEL_ROLES}

    # Models

    def _find_made_models(self) -> MadeModels | None:
        """Return the models of the line that made the most bytes of them, if it made several in a loop.

        The loop of a line that makes models also calls a model in at least half of its rounds. A loop that makes the
        layers of one model does not.
        """
        loops = LoopIndex(self._trace)
        weights = self._is_weight & ~self._is_true_of_stack(self._is_loaded)
        live_stacks, alloc_seq = self._live["stack_id"], self._live["alloc_seq"].astype(np.int64)
        maker_of = {stack: loops.find_maker(stack) for stack in np.unique(live_stacks[weights]).tolist()}
        bytes_by_line: Counter[int] = Counter()
        for stack, size in zip(live_stacks[weights].tolist(), self._bytes[weights].tolist(), strict=True):
            bytes_by_line[int(self._lines[maker_of[stack]])] += size
        if not bytes_by_line:
            return None
        [(line, _)] = bytes_by_line.most_common(1)
        stacks = [stack for stack, maker in maker_of.items() if self._lines[maker] == line]
        rows = weights & np.isin(live_stacks, stacks)
        makers = Counter(maker_of[stack] for stack in live_stacks[rows].tolist())
        maker = makers.most_common(1)[0][0]
        events = self._events["stack"]
        calls = self._events["seq"][self._calls[events] > 0]
        seqs = np.sort(alloc_seq[rows])
        for loop in loops.loops_around(maker):
            rounds = np.searchsorted(loop.begins, seqs, side="right")
            firsts = np.flatnonzero(np.append(True, rounds[1:] != rounds[:-1]))
            begins, ends = seqs[firsts[1:]], seqs[firsts[1:] - 1]
            has_call = np.searchsorted(calls, begins) > np.searchsorted(calls, ends)
            if len(firsts) >= MIN_MODELS and 2 * int(has_call.sum()) >= len(has_call):
                size, site = int(self._bytes[rows].sum()), Site.of_stack(self._stacks, maker)
                holder = self._holders.find_holder(rows) or self._holders.find_holder_of_several(rows)
                parameters = rows & self._has_role("parameter")
                return MadeModels(
                    site=SiteBytes(site, size, int(rows.sum()), maker),
                    count=len(firsts),
                    parameter_bytes=int(self._bytes[parameters].sum()),
                    copied=self._find_original(rows & ~parameters, rows),
                    holder=holder,
                )
        return None

    def _find_original(self, blocks: _Mask, copies: _Mask) -> SiteBytes | None:
        """Return the line with a block of the size of the largest of these blocks that is no copy itself."""
        largest = int(self._bytes[blocks].max(initial=0))
        originals = ~copies & (self._bytes == largest) & self._is_true_of_stack(self._stacks.has_frames)
        return self._top_sites(originals, top=1)[0] if largest and originals.any() else None

    def _is_loaded(self, stack: int) -> bool:
        return is_loaded(self._frames(stack))

    def _is_copied(self, stack: int) -> bool:
        return any(
            _COPY.search(frame.filename) and frame.name in _COPY_FUNCTIONS for frame in self._frames(stack)
        ) and not self._is_loaded(stack)

    def _find_checkpoints(self) -> tuple[SiteBytes, ...]:
        rows = (self._uses[KEPT] | self._has_role(*_WEIGHT_ROLES)) & self._is_true_of_stack(self._is_loaded)
        sizes = self._bytes[self._is_weight & ~rows]
        live_lines = self._lines[self._live["stack_id"]]
        sites: list[SiteBytes] = []
        for line in np.unique(live_lines[rows]).tolist():
            of_line = rows & (live_lines == line)
            if self._has_common_sizes(of_line, sizes):
                sites += self._top_sites(of_line, top=1)
        return tuple(sorted(sites, key=lambda site: -site.bytes))

    def _find_copies(self) -> tuple[tuple[SiteBytes, ...], bool]:
        """Return the lines that copied earlier weights, the last first; and whether a copy is younger than a pass.

        A copy was made by a call that moves or copies modules, or has the sizes of nearly all parameters. One line may
        make a model, train it, and make another: blocks before and after a pass of backward are different models.
        """
        live_lines, alloc_seq = self._lines[self._live["stack_id"]], self._live["alloc_seq"]
        is_made = self._is_weight & self._is_true_of_stack(self._is_copied)
        is_clone = self._uses[KEPT] & ~is_made & ~self._is_true_of_stack(self._is_loaded)
        passes = np.searchsorted(self._events["seq"][self._events["node_type"] != 0], alloc_seq)
        copies: list[tuple[int, SiteBytes]] = []
        is_late = False
        min_bytes = MIN_COPY_SHARE * int(self._bytes.sum())
        for line in np.unique(live_lines[is_made | is_clone]).tolist():
            of_line = (is_made | is_clone) & (live_lines == line)
            for earlier_passes in np.unique(passes[of_line]).tolist():
                rows = of_line & (passes == earlier_passes)
                if int(self._bytes[rows].sum()) < min_bytes:
                    continue
                # The first copy is the model itself.
                model = self._is_weight & (alloc_seq < alloc_seq[rows].min())
                is_copy = self._has_common_sizes(rows, self._bytes[model])
                if is_copy and (is_made[rows].any() or self._are_clones(rows, model)):
                    copies += [(int(alloc_seq[rows].max()), site) for site in self._top_sites(rows, top=1)]
                    is_late |= earlier_passes > 0
        return tuple(site for _, site in sorted(copies, key=lambda copy: -copy[0])), is_late

    def _has_common_sizes(self, rows: _Mask, sizes: npt.NDArray[np.int64]) -> bool:
        """Return whether nearly all bytes of these blocks are in blocks of these sizes."""
        own_sizes = self._bytes[rows]
        common_bytes = int(own_sizes[np.isin(own_sizes, sizes)].sum())
        return len(own_sizes) > 1 and common_bytes >= MIN_COMMON_SHARE * int(own_sizes.sum())

    def _are_clones(self, rows: _Mask, model: _Mask) -> bool:
        """Return whether these blocks are one or more copies of nearly all parameters among the model's blocks."""
        sizes = self._bytes[model & self._has_role("parameter")]
        if not len(sizes) or not sizes.sum():
            return False
        count = max(round(int(self._bytes[rows].sum()) / int(sizes.sum())), 1)
        expected = Counter({size: blocks * count for size, blocks in Counter(sizes.tolist()).items()})
        common_sizes = expected & Counter(self._bytes[rows].tolist())
        return sum(common_sizes.values()) >= MIN_COMMON_SHARE * sum(expected.values())

    def _find_outer_count(self) -> int:
        sizes, counts = np.unique(self._bytes[~self._uses[MODEL]], return_counts=True)
        for size in map(int, sizes[counts > 1]):
            for item in _ITEM_BYTES:
                outer = (size // item) ** 2 * item
                if size % item == 0 and 0 <= self._request.requested_bytes - outer < MIN_BLOCK_SIZE and outer > size:
                    return size // item
        return 0


def _is_vmap(filename: str, function: str) -> bool:
    """Return whether a function of torch computes all samples, or all rows of a matrix of derivatives, at once."""
    is_vmap = _VMAP_FILE.search(filename) is not None and _VMAP_FUNCTION.search(function) is not None
    return is_vmap or (_DERIVATIVE_FILE.search(filename) is not None and _DERIVATIVE.match(function) is not None)


def _mentions_attention(places: Sequence[Frame]) -> bool:
    texts = [f"{place.function} {place.source or ''}" for place in places]
    source = places[0].source if places else None
    is_work = not source or _ATTENTION_WORK.search(source) is not None
    is_fused = any(_FUSED_ATTENTION in text for text in texts)
    return is_work and not is_fused and any(_ATTENTION.search(text) for text in texts)
