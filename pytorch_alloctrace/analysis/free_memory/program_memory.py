"""Live memory at a failed allocation by what the program uses it for, and what the program did to fill it.

A live block has the first use that applies:

model        a parameter, buffer, gradient or optimizer state, or allocated by an optimizer
activations  allocated in backward, by an operator that created an autograd node, or by a module and with this role
forward      allocated by a module otherwise: inference
kept         everything else

The cause is the first that applies. *Usable* is the limit of the process, else the device.

exception                      tracebacks of earlier exceptions held a quarter of the usable bytes at an object scan (a
                               tenth, if it did not read all graphs and no other of these causes down to many forwards
                               applies), and most of it is still live
garbage                        reference cycles to which nothing else refers held a quarter at the object scan of the
                               failure
autocast's cache               a region of autocast that spans many iterations (see `autocast_cache`) holds a quarter
vmap                           calls of torch.func.vmap, or of a Jacobian or Hessian, by one line made half of the live
                               bytes
carried graph                  as forward without backward, and an attribute or global variable holds half of these
                               activations through its autograd graph
forward without backward       activations hold a quarter of the usable bytes, and the line that called the model has
                               called it twice or more for new inputs, or each module three times with other work
                               between, and backward never evaluated nodes of that line
many forwards before backward  likewise, but backward has evaluated nodes of that line; since then, the line has called
                               the model at least twice as often as before earlier passes of backward, or each module
                               three times, with other work between
collected graphs               a container of a function, not of a module's forward, held a quarter through the autograd
                               graphs of its items at the object scan of the failure
recomputed                     activations that a checkpoint computes again in backward hold a quarter, and half of all
held                           a cache of a function (lru_cache), or threads that have not ended, hold a quarter
many models                    one line made three models or more, in a loop that also calls a model; their weights hold
                               a tenth
checkpoint on the device       blocks of torch.load or safetensors with the sizes of the model's hold a tenth
copies of the model            other lines, or the same line after backward, hold blocks with the sizes of the model's:
                               a quarter, or a tenth if a copy is younger than a pass of backward
former training                gradients and optimizer state older than the parameters of a later model hold a tenth
unused variables               local variables that their functions do not read any more hold a quarter, besides models
large parameter                one parameter holds half with its gradient, its optimizer state, and the request for one
                               of these
optimizer state                an optimizer made the request, for its state or while no block of an optimizer is older
                               than the last pass, but not for a copy of the foreach implementation
optimizer step                 an optimizer made the request
large request                  the request needs a quarter, and is neither activation nor inference; or it has the size
                               of a broadcast of two vectors, or is in the code of an attention
collected                      the use with the most bytes is forward, and a container of the program holds most of it
model, activations, ...        the use with the most bytes, with the request
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ...reading.sites import Frame, SiteBytes
from ..leaks.leak import Holder
from ..usage.held_rows import HeldRow
from ..usage.operations import Operation
from ..usage.recomputed import Recomputed
from ..usage.roles import ModelOrigin
from .autocast_cache import AutocastMemory
from .forwards import ACTIVATIONS as ACTIVATIONS
from .forwards import FORWARD as FORWARD
from .forwards import KEPT as KEPT
from .forwards import LARGE_SHARE as LARGE_SHARE
from .forwards import MANY_FORWARDS as MANY_FORWARDS
from .forwards import MODEL as MODEL
from .forwards import NO_BACKWARD as NO_BACKWARD
from .forwards import USES
from .forwards import Forwards as Forwards
from .garbage_cycles import GARBAGE as GARBAGE

KEPT_EXCEPTION = "exception"
AUTOCAST_CACHE = "autocast's cache"
CARRIED_GRAPH = "carried graph"
COLLECTED_GRAPHS = "collected graphs"
RECOMPUTED = "recomputed"
VMAP = "vmap"
HELD = "held"
UNUSED_VARIABLES = "unused variables"
COLLECTED = "collected"
FORMER_TRAINING = "former training"
MANY_MODELS = "many models"
CHECKPOINT = "checkpoint on the device"
LARGE_PARAMETER = "large parameter"
OPTIMIZER_STATE = "optimizer state"
OPTIMIZER_STEP = "optimizer step"
LARGE_REQUEST = "large request"
COPIES = "copies of the model"
CAUSES = (
    *(KEPT_EXCEPTION, GARBAGE, AUTOCAST_CACHE, VMAP, CARRIED_GRAPH, NO_BACKWARD, MANY_FORWARDS),
    *(COLLECTED_GRAPHS, RECOMPUTED, HELD, MANY_MODELS, CHECKPOINT, FORMER_TRAINING, UNUSED_VARIABLES),
    *(LARGE_PARAMETER, OPTIMIZER_STATE, OPTIMIZER_STEP, LARGE_REQUEST, COPIES, COLLECTED, *USES),
)
NAMED_CAUSES = (
    *(COLLECTED_GRAPHS, RECOMPUTED, HELD, MANY_MODELS, CHECKPOINT, COPIES),
    *(FORMER_TRAINING, UNUSED_VARIABLES, LARGE_PARAMETER),
)
"""Causes that name what holds much of the memory."""
MIN_ACTIVATIONS = 0.8
"""Minimum bytes of activations, as a share of those of the model, to be the cause beside a larger model."""
HUGE_SHARE = 0.5
"""Minimum share of the usable bytes that a request for activations takes to be the cause: they are many requests."""
MIN_CARRIED_CALLS = 3
"""Minimum number of calls whose graphs an object carries: the result of the last call has the graph of that call."""
MIN_CHECKPOINT_SHARE = 0.1
"""Minimum share of the usable bytes of a loaded checkpoint, of copies of a trained model, or of many models."""


@dataclass(frozen=True)
class MadeModels:
    """Models that one line made."""

    site: SiteBytes
    """The line, with the weights of all these models, and with all that a copy of a larger object has."""
    count: int
    """Number of models."""
    parameter_bytes: int
    """Bytes of their parameters; 0 if unknown."""
    copied: SiteBytes | None
    """Line with the original of the largest block that is no parameter, if that is live; else None."""
    holder: Holder | None
    """Object that held most of them at the object scan of the failure; None if unknown."""


@dataclass(frozen=True)
class FormerTraining:
    """Gradients and optimizer state of a model that are older than the parameters of a later model."""

    gradient_bytes: int
    """Bytes of the gradients."""
    state_bytes: int
    """Bytes of the optimizer state."""
    site: SiteBytes
    """Line with the most of these bytes."""
    holder: Holder | None
    """Object that held most of the state at the object scan of the failure; None if unknown."""
    later: SiteBytes
    """Line with the most parameters of the later model."""

    @property
    def bytes(self) -> int:
        """Bytes of both."""
        return self.gradient_bytes + self.state_bytes


@dataclass(frozen=True)
class GrowingRequests:
    """Requests of one stack that get larger again and again, as of a tensor to which each call joins a part."""

    first_bytes: int
    """Requested bytes of the largest of the first of them, after a warm-up."""
    count: int
    """Number of earlier requests."""


@dataclass(frozen=True)
class LargeParameter:
    """The largest parameter, with its gradient and its optimizer state."""

    name: str
    """Name in the model: "tables.item.weight"; "" if unknown."""
    site: SiteBytes
    """The line that made the parameter, or moved it to the device."""
    bytes: int
    """Bytes of the parameter, of the gradients and state of the same size, and of the request if it has this size."""
    tensors: int
    """Number of these tensors."""


@dataclass(frozen=True)
class ProgramMemory:
    """Live memory at a failed allocation by use. Requested bytes."""

    bytes_by_use: dict[str, int]
    """Bytes of each of USES."""
    sites_by_use: dict[str, tuple[SiteBytes, ...]] = field(repr=False)
    """For each of USES, the lines with the most bytes."""
    bytes_by_role: dict[str, int]
    """Bytes of each of MODEL_ROLES. Blocks of an optimizer count as its state."""
    requested_bytes: int
    """Bytes of the failed request."""
    request_use: str
    """Use of the failed request."""
    in_optimizer: bool
    """True if an optimizer made the request."""
    is_first_step: bool
    """True if the request is for the state of an optimizer, or no block of any is older than the last backward."""
    in_foreach: bool
    """True if the foreach implementation of an optimizer made the request."""
    earlier_optimizer_bytes: int
    """Bytes of optimizers that are older than the last pass of backward."""
    earlier_optimizer_holder: Holder | None
    """Object that held these at the object scan of the failure; None if unknown."""
    step_copies_bytes: int
    """Bytes that an optimizer allocated besides its state."""
    forwards: Forwards | None
    """Calls of the model by the line with the most activations; None without a call of a module."""
    models: MadeModels | None
    """Models of the line that made the most bytes of them; None if no line made `MIN_MODELS`."""
    checkpoints: tuple[SiteBytes, ...]
    """Lines that loaded blocks with the sizes of the model's blocks, the most bytes first."""
    copies: tuple[SiteBytes, ...]
    """Lines that copied the model, the last first; a line occurs once for each copy."""
    has_late_copies: bool
    """True if a copy is younger than a pass of backward."""
    largest_before_bytes: int
    """Bytes of the largest earlier allocation of the request's line, without those of its own call of a model."""
    request_operation: Operation | None
    """Operation of the line that made the request, if that is a special one."""
    operations_by_use: dict[str, tuple[Operation | None, ...]] = field(repr=False)
    """For each of `sites_by_use`, its operation, if that is a special one."""
    growing_requests: GrowingRequests | None
    """Earlier requests of the same stack, if they got larger again and again; else None."""
    outer_count: int
    """N if the request has the size of N x N elements, and two vectors of N elements are live; else 0."""
    is_attention: bool
    """True if the code that made the request mentions attention, but not torch's fused function."""
    model_origin: ModelOrigin
    """Where the model comes from."""
    kept_steps: int
    """Number of steps in which the line that keeps the most allocated its live blocks; 0 without steps."""
    kept_has_freed: bool
    """True if the line that keeps the most has freed blocks."""
    kept_of_forward: bool
    """True if, in a snapshot, the line that keeps the most is in the call of a module: its blocks outlived backward."""
    has_backward: bool
    """True if backward has evaluated a node, or may have before the events that were examined."""
    exception_bytes: int
    """Bytes that tracebacks of exceptions hold, of an object scan."""
    has_complete_scan: bool
    """False if the object scan of the failure did not read all autograd graphs: what it found may hold more."""
    exception_holder: Holder | None
    """Object that keeps the exceptions: "finder.failures (dict of 1), local of main() at find.py:61, through ..."."""
    autocast: AutocastMemory | None
    """Copies and weights that autocast kept until its region ended after the failure; None if there are none."""
    graph_holder: HeldRow | None
    """Attribute or global variable that held the most through its autograd graph at the object scan of the failure."""
    holder: HeldRow | None
    """The same of the caches of functions, and of threads that have not ended."""
    collection: HeldRow | None
    """Container that held most of the memory of use FORWARD at that scan: outputs that the program keeps."""
    unused: tuple[HeldRow, ...]
    """Local variables that their functions did not read any more at that scan, the most bytes first."""
    doubles: tuple[Holder, ...]
    """First large objects with float64 tensors at that scan, if most of the held memory of such numbers is float64."""
    graph_collection: HeldRow | None
    """Container of a function that held the most through the autograd graphs of its items at that scan."""
    recomputed: Recomputed | None
    """Activations that backward has computed again in checkpointed parts; None if there are none."""
    derived_gradient: Frame | None
    """Line that computes gradients with graphs (`create_graph=True`) in a call that made activations."""
    vmap: SiteBytes | None
    """Line that called torch.func.vmap or computes a Jacobian, with the bytes of its calls and of a request within;
    None without any."""
    vmap_function: str
    """The function of torch that the line calls: "hessian"."""
    garbage: HeldRow | None
    """Reference cycle with the most memory that only a garbage collection frees; None if that scan found none."""
    large_parameter: LargeParameter | None
    """The largest parameter; None without one, or if another is as large."""
    former_training: FormerTraining | None
    """Gradients and optimizer state of a model that was trained before a later one; None if there are none."""

    def cause(self, usable_bytes: int) -> str:
        """Return what filled the memory: one of CAUSES."""
        large = LARGE_SHARE * usable_bytes
        if (cause := self.leading_cause(usable_bytes)) is not None:
            return cause
        if self.graph_collection is not None and self.graph_collection.bytes >= large:
            return COLLECTED_GRAPHS
        if self.recomputed is not None and self.recomputed.bytes >= max(large, self.bytes_by_use[ACTIVATIONS] / 2):
            return RECOMPUTED
        if self.holder is not None and self.holder.bytes >= large:
            return HELD
        if self.models is not None and self.models.site.bytes >= MIN_CHECKPOINT_SHARE * usable_bytes:
            return MANY_MODELS
        if self.checkpoints and sum(site.bytes for site in self.checkpoints) >= MIN_CHECKPOINT_SHARE * usable_bytes:
            return CHECKPOINT
        min_copies = (MIN_CHECKPOINT_SHARE if self.has_late_copies else LARGE_SHARE) * usable_bytes
        if self.copies and sum(site.bytes for site in self.copies) >= min_copies:
            return COPIES
        former = self.former_training
        if former is not None and former.bytes >= MIN_CHECKPOINT_SHARE * usable_bytes:
            return FORMER_TRAINING
        if sum(row.bytes for row in self.unused) >= large:
            return UNUSED_VARIABLES
        is_large = self.large_parameter is not None and self.large_parameter.bytes >= HUGE_SHARE * usable_bytes
        if is_large and not self.in_foreach:
            return LARGE_PARAMETER
        if self.in_optimizer:
            return OPTIMIZER_STATE if self.is_first_step and not self.in_foreach else OPTIMIZER_STEP
        is_special = self.request_use == KEPT or self.is_attention or self.outer_count
        if self.requested_bytes >= (large if is_special else HUGE_SHARE * usable_bytes):
            return LARGE_REQUEST
        use = max(USES, key=self.bytes_with_request)
        activations = self.bytes_with_request(ACTIVATIONS)
        if use == MODEL and activations >= MIN_ACTIVATIONS * self.bytes_by_use[MODEL]:
            use = ACTIVATIONS  # a smaller model is the last remedy
        return COLLECTED if use == FORWARD and self.collection is not None else use

    def bytes_with_request(self, use: str) -> int:
        """Return the bytes of a use, with those of the request if it is of this use."""
        return self.bytes_by_use[use] + (self.requested_bytes if use == self.request_use else 0)

    def leading_cause(self, usable_bytes: int) -> str | None:
        """Return the cause if it may also look like a leak: KEPT_EXCEPTION to MANY_FORWARDS in CAUSES; else None."""
        if self.exception_bytes >= LARGE_SHARE * usable_bytes:
            return KEPT_EXCEPTION
        if self.garbage is not None and self.garbage.bytes >= LARGE_SHARE * usable_bytes:
            return GARBAGE
        if self.autocast is not None and self.autocast.bytes >= LARGE_SHARE * usable_bytes:
            return AUTOCAST_CACHE
        large, live = LARGE_SHARE * usable_bytes, sum(self.bytes_by_use.values()) + self.requested_bytes
        if self.vmap is not None and self.vmap.bytes >= max(large, live / 2):
            return VMAP
        cause = None if self.forwards is None else self.forwards.find_cause(usable_bytes)
        if cause is None and not self.has_complete_scan:
            return KEPT_EXCEPTION if self.exception_bytes >= MIN_CHECKPOINT_SHARE * usable_bytes else None
        if self.forwards is None or cause is None:
            return None
        has_carried = (
            self.graph_holder is not None
            and 2 * self.graph_holder.bytes >= self.forwards.site.bytes
            and max(self.forwards.count, self.forwards.call_count) >= MIN_CARRIED_CALLS
        )
        return CARRIED_GRAPH if cause == NO_BACKWARD and has_carried else cause
