"""Causes of failed allocations in activations and autograd graphs, as text."""

from __future__ import annotations

from collections import Counter

from ..analysis.free_memory import program_memory as causes
from ..analysis.free_memory.oom import OutOfMemory
from ..analysis.free_memory.program_memory import Forwards
from ..analysis.free_memory.program_memory_reader import MIN_GROWTH
from ..analysis.usage.operations import Operation
from ..reading.sites import Site, SiteBytes
from . import units
from .cures import (
    BACKWARD_EACH,
    NO_GRAD,
    NO_GRAD_IN_THREAD,
    NO_GRAD_OF_GENERATOR,
    describe_checkpointing,
    quote,
)
from .oom_cause_text import (
    CURE_OF_LARGER_INPUT,
    OWN_CURES,
    CauseText,
    largest_site,
    line_to_change,
    list_lines,
    list_roles,
    top_line,
    with_share,
)
from .operations import CURE_BY_OPERATION, SMALLER_PARTS, WHAT_BY_OPERATION, describe_recomputed
from .site_names import SiteNames

_GENERATOR = "<genexpr>"
_DERIVATIVES = ("jacobian", "hessian", "jacrev", "jacfwd", "_jac")
"""Beginnings of the names of functions of torch that compute a matrix of derivatives."""


def describe_carried_graph(failure: OutOfMemory, names: SiteNames) -> CauseText:
    row = failure.program.graph_holder
    assert row is not None, "this cause requires a holder"
    name = quote(names.referrer(row.holder.name))
    forwards = _forwards(failure)
    calls = units.number(max(forwards.count, forwards.call_count))
    line = names.site(forwards.site.site)
    stored, stack = line_to_change(row.holder, forwards.site.site, forwards.site.stack_id)
    return CauseText(
        f"{name} carries the graphs of all calls of {line}: {with_share(row.bytes, failure)}",
        stored,
        stack,
        [
            f"Held by {names.referrer(row.holder.names[0])}.",
            f"Autograd keeps the activations of {calls} calls, and no backward has followed them.",
        ],
        [
            f"What helps: store values without their graphs, such as `.detach()` of what goes into {name}, or run"
            f" {line} under torch.no_grad()."
        ],
    )


def describe_graph_collection(failure: OutOfMemory, names: SiteNames) -> CauseText:
    row = failure.program.graph_collection
    assert row is not None, "this cause requires a holder"
    name = quote(names.referrer(row.holder.name))
    line, stack = line_to_change(row.holder, *largest_site(failure))
    return CauseText(
        f"{name} keeps the autograd graphs of its items: {with_share(row.bytes, failure)}",
        line,
        stack,
        [f"Held by {names.referrer(row.holder.names[0])}.", *list_roles(failure)],
        [
            "What helps: if no backward follows, store `.item()` or `.detach()` of each, or compute them under"
            " torch.no_grad(); else call backward for each, or checkpoint each."
        ],
    )


def describe_recomputation(failure: OutOfMemory, names: SiteNames) -> CauseText:
    recomputed = failure.program.recomputed
    assert recomputed is not None, "this cause requires recomputed activations"
    line, stack = (recomputed.site, recomputed.stack_id) if recomputed.call is None else (recomputed.call, 0)
    return CauseText(
        f"{describe_recomputed(recomputed, names)}: {with_share(recomputed.bytes, failure)} at once",
        line,
        stack,
        list_lines(failure.program.sites_by_use[causes.ACTIVATIONS], names),
        [f"What helps: {SMALLER_PARTS}."],
    )


def describe_vmap(failure: OutOfMemory, names: SiteNames) -> CauseText:
    site = failure.program.vmap
    assert site is not None, "this cause requires a call of vmap"
    size, function = with_share(site.bytes, failure), failure.program.vmap_function
    if function.startswith(_DERIVATIVES):
        return CauseText(
            f"{names.site(site.site)} computes a Jacobian or Hessian, a row for each output: {size}",
            site.site,
            site.stack_id,
            ["With `vectorize=True` or vmap, all rows are computed at once.", *list_roles(failure)],
            [
                "What helps: of a batch of independent samples, the matrix of each (`torch.func.vmap(jacrev(f))`); some"
                " rows at a time (`vectorize=False`, `jacrev(..., chunk_size=...)`), on the CPU; or products with"
                " vectors (torch.func.jvp, vjp) instead of the matrix."
            ],
        )
    return CauseText(
        f"torch.func.vmap computes all samples at once at {names.site(site.site)}: {size}",
        site.site,
        site.stack_id,
        ["Gradients of single samples take as much as the parameters, for each sample.", *list_roles(failure)],
        [
            "What helps: a part of the batch at a time, and keep only its sum (`vmap(..., chunk_size=...)` bounds what"
            " a call needs, not its results); gradients of fewer parameters."
        ],
    )


def describe_no_backward(failure: OutOfMemory, names: SiteNames) -> CauseText:
    forwards = _forwards(failure)
    site = forwards.site
    count = max(forwards.count, forwards.call_count)
    if forwards.may_lack_graph:
        return _describe_forwards_of_snapshot(failure, names)
    no_grad = NO_GRAD_IN_THREAD if forwards.is_in_thread else NO_GRAD
    if site.site.function.endswith(_GENERATOR):
        no_grad = NO_GRAD_OF_GENERATOR
    if forwards.is_training:
        title = f"{names.site(site.site)} runs forward without torch.no_grad() and without backward"
        remedy = f"{no_grad}."
    else:
        title = (
            f"{names.site(site.site)} runs {units.number(count)} forwards without torch.no_grad(), and no"
            " backward ran between them"
        )
        remedy = f"{no_grad}; in training, call backward on each part, (loss / n).backward()."
    return CauseText(
        f"{title}: {with_share(site.bytes, failure)} of activations",
        site.site,
        site.stack_id,
        [
            f"Autograd keeps activations until backward, and none has followed the {units.number(count)}"
            " forwards of this line."
        ],
        [f"What helps: {remedy}"],
    )


def describe_many_forwards(failure: OutOfMemory, names: SiteNames) -> CauseText:
    forwards = _forwards(failure)
    site = forwards.site
    if forwards.may_lack_graph:
        return _describe_forwards_of_snapshot(failure, names)
    calls = units.counted(forwards.count, "call")
    return CauseText(
        f"{names.site(site.site)} runs {units.number(forwards.count)} forwards before one backward, and their graphs"
        f" live together: {with_share(site.bytes, failure)} of activations",
        site.site,
        site.stack_id,
        [f"Autograd keeps the activations of all {calls} since the last backward."],
        [
            f"What helps: {BACKWARD_EACH}; if one loss needs all of them, activation checkpointing. Gradients add up;"
            " add up losses as numbers (loss.item()). If this is an evaluation, run it under torch.no_grad()."
        ],
    )


def _describe_forwards_of_snapshot(failure: OutOfMemory, names: SiteNames) -> CauseText:
    forwards = _forwards(failure)
    site, count = forwards.site, max(forwards.count, forwards.call_count)
    return CauseText(
        f"{names.site(site.site)} runs {units.number(count)} forwards, no backward ran between them, and they hold"
        f" {with_share(site.bytes, failure)}",
        site.site,
        site.stack_id,
        ["A snapshot of torch does not tell whether gradients were enabled."],
        [f"What helps: where no gradient is needed, {NO_GRAD}, and keep fewer results; in training, {BACKWARD_EACH}."],
    )


def _forwards(failure: OutOfMemory) -> Forwards:
    assert failure.program.forwards is not None, "this cause requires forwards"
    return failure.program.forwards


def describe_activations(failure: OutOfMemory, names: SiteNames) -> CauseText:
    program = failure.program
    size, sites = program.bytes_with_request(causes.ACTIVATIONS), program.sites_by_use[causes.ACTIVATIONS]
    forwards = program.forwards
    site, stack = top_line(sites, failure) if forwards is None else (forwards.site.site, forwards.site.stack_id)
    special = what = ""
    if (derived := program.derived_gradient) is not None:
        special = cure_derived(failure, names)
        line = names.site(derived)
        what = f"{line} computes gradients with graphs (create_graph=True), and their graphs are kept. "
    largest: SiteBytes | None = None
    if (special_operation := _find_operation_of_activations(failure)) is not None:
        operation, largest = special_operation
        special = f"{CURE_BY_OPERATION[operation]}; "
        what = f"{names.site(largest.site)} {WHAT_BY_OPERATION[operation]}. "
    help_texts = [
        f"What helps: {special}a smaller batch (with gradient accumulation), "
        f"{describe_checkpointing(program.model_origin, names)}, or lower precision (torch.autocast)."
    ]
    subject = "activations of forward and backward" if failure.request.node_type else "activations of forward"
    if forwards is not None and not forwards.has_backward and not failure.request.node_type:
        subject = "activations of forward, which no backward has used yet,"
        no_grad = "in an evaluation, run this line under torch.no_grad() or torch.inference_mode()."
        if forwards.is_training:  # backward has followed other lines only
            help_texts[0] = f"What helps: {no_grad} In training, {help_texts[0].removeprefix('What helps: ')}"
        else:
            help_texts.append(f"{no_grad[:1].upper()}{no_grad[1:]}")
    title = (
        f"{what}The {subject} at {names.site(site)} fill {failure.device}: {with_share(size, failure)} with the request"
    )
    if failure.requested_bytes >= MIN_GROWTH * program.largest_before_bytes > 0:
        before = units.size(program.largest_before_bytes)
        title += f" of {units.size(failure.requested_bytes)}, of whose line the largest before was {before}"
        larger = f"{CURE_OF_LARGER_INPUT.removesuffix('; ')} (of a padded batch: number times longest); "
        help_texts[0] = f"What helps: {larger}{help_texts[0].removeprefix('What helps: ')}"
    if largest is not None:
        site, stack = largest.site, largest.stack_id
    elif derived is not None:
        site, stack = Site(derived.filename, derived.line, derived.function, derived.source, True), 0
    return CauseText(title, site, stack, list_lines(sites, names), help_texts)


def _find_operation_of_activations(failure: OutOfMemory) -> tuple[Operation, SiteBytes] | None:
    """Return the operation that makes half of the activations, with the request, and its line with the most bytes."""
    program = failure.program
    sites, operations = program.sites_by_use[causes.ACTIVATIONS], program.operations_by_use[causes.ACTIVATIONS]
    bytes_by_operation: Counter[Operation] = Counter()
    for site, operation in zip(sites, operations, strict=True):
        if operation is not None and (operation in OWN_CURES or operation is Operation.WRITTEN_OUT):
            bytes_by_operation[operation] += site.bytes
    of_request = program.request_operation
    if program.request_use == causes.ACTIVATIONS and of_request is not None and of_request in bytes_by_operation:
        bytes_by_operation[of_request] += failure.requested_bytes
    operation, size = max(bytes_by_operation.items(), key=lambda item: item[1], default=(None, 0))
    if operation is None or 2 * size < program.bytes_with_request(causes.ACTIVATIONS):
        return None
    return operation, sites[operations.index(operation)]


def cure_derived(failure: OutOfMemory, names: SiteNames) -> str:
    """Return a clause on gradients with graphs in a call that made activations; "" without any."""
    derived = failure.program.derived_gradient
    if derived is None:
        return ""
    return (
        f"leave `create_graph=True` at {names.site(derived)} out where no further derivative is taken, as in an"
        " evaluation; "
    )
