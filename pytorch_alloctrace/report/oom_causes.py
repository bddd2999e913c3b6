"""Causes of failed allocations as text: a title, the evidence, the remedy, and the line to change."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

from ..analysis.free_memory import program_memory as causes
from ..analysis.free_memory.oom import FRAGMENTED, TOO_LARGE, OutOfMemory
from ..analysis.free_memory.program_memory_reader import MIN_GROWTH
from ..analysis.leaks.leak import GRAPH, SURVIVORS, Leak
from ..analysis.usage.held_rows import HeldRow
from ..analysis.usage.peak import ROUNDING, find_square
from ..reading.sites import SiteBytes
from . import units
from .cures import (
    AUTOCAST_CURE,
    cure,
    cure_garbage,
    cure_holder,
    describe_autocast,
    quote,
)
from .oom_cause_text import (
    CURE_OF_LARGER_INPUT,
    OWN_CURES,
    CauseText,
    describe_usage,
    largest_site,
    line_to_change,
    list_lines,
    list_roles,
    list_variables,
    sum_by_variable,
    top_line,
    with_share,
)
from .oom_graph_causes import (
    cure_derived,
    describe_activations,
    describe_carried_graph,
    describe_graph_collection,
    describe_many_forwards,
    describe_no_backward,
    describe_recomputation,
    describe_vmap,
)
from .oom_model_causes import (
    describe_checkpoint,
    describe_copies,
    describe_former_training,
    describe_large_parameter,
    describe_many_models,
    describe_model,
    describe_optimizer_state,
    describe_optimizer_step,
)
from .operations import CURE_BY_OPERATION, FUSED_ATTENTION, WHAT_BY_OPERATION
from .site_names import SiteNames

_MIN_KEPT_STEPS = 3  # with live blocks of one line, to call the blocks kept from step to step
_MAX_JOIN_DIFFERENCE = 0.01  # of a request that joins what a line has kept, as a share of that
_MAX_PART = 0.9  # of a request that joins blocks, the largest of them
_MIN_JOINED_SHARE = 0.1  # of the usable bytes, of a request that may have the size of other blocks by coincidence
_MIN_UNUSED_SHARE = 0.1  # of the usable bytes, of unused variables beside another cause
_MIN_MUCH_LARGER = 4  # times a line's largest request, for this to be told beside another verdict
_ARITHMETIC = re.compile(r" [-+*/] |\b(div|mul|add|sub|exp|softmax|relu|sigmoid|tanh|masked_fill|where)\(")
_CURE_OF_GROWING = (
    "bound the length of what grows (a window, a maximum), or allocate it once in full length instead of joining a part"
    " each time, which needs old and new at once; "
)
_GROWING = (causes.FORWARD, causes.KEPT, causes.COLLECTED, causes.LARGE_REQUEST, causes.ACTIVATIONS)
_IN_TRACEBACK = re.compile(r" in the traceback of ([^\s,]+)")


def describe_cause(failure: OutOfMemory, names: SiteNames) -> CauseText | None:
    """Describe what the program did to fill the memory; None if the verdict is the cause."""
    if failure.cause is None:
        return None
    text = _DESCRIBE[failure.cause](failure, names)
    if text.help:
        text.help[0] = f"What helps: {_cure_double(failure, names)}{text.help[0].removeprefix('What helps: ')}"
    if (growing := failure.program.growing_requests) is not None and failure.cause in _GROWING and text.help:
        sizes = f"{units.size(growing.first_bytes)} at first, {units.size(failure.requested_bytes)} now"
        title = f"{names.site(failure.site)} requests more and more ({sizes}). {text.title}"
        help_text = f"What helps: {_CURE_OF_GROWING}{text.help[0].removeprefix('What helps: ')}"
        text = dataclasses.replace(text, title=title, help=[help_text, *text.help[1:]])
    if text.help and failure.verdict == FRAGMENTED:
        text.help.append(
            "PYTORCH_ALLOC_CONF=expandable_segments:True may serve this request, as"
            f" {units.size(failure.here.free_bytes)} was free in pieces, but no much larger one."
        )
    unused = failure.program.unused
    size = sum(row.bytes for row in unused)
    if failure.cause != causes.UNUSED_VARIABLES and size >= _MIN_UNUSED_SHARE * failure.usable_bytes:
        text.help.append(
            f"And `del` {units.size(size)} in variables of {unused[0].holder.function}() that it does not use any more:"
            f" {list_variables(unused)}."
        )
    return text


def _cure_double(failure: OutOfMemory, names: SiteNames) -> str:
    """Return a clause on the objects with float64 tensors; "" without any."""
    doubles = [quote(names.referrer(holder.name)) for holder in failure.program.doubles]
    if not doubles:
        return ""
    *others, last = doubles
    subject = f"{', '.join(others)} and {last} are" if others else f"{last} is"
    them = "them" if others else "it"
    return f"{subject} float64: `.float()` of {them} halves {them}, and what is computed from {them}; "


def describe_larger_request(failure: OutOfMemory) -> str:
    """Return a clause on a request that is much larger than all before of its line; "" for others."""
    before = failure.program.largest_before_bytes
    if failure.requested_bytes < _MIN_MUCH_LARGER * before or not before:
        return ""
    return f"the largest request of this line before was {units.size(before)}"


def describe_leading_leak(leak: Leak, failure: OutOfMemory, names: SiteNames) -> CauseText:
    remedy = cure(leak, names)
    size, held_bytes = with_share(leak.allocated_bytes, failure), failure.measure_leak(leak)
    if held_bytes > leak.allocated_bytes:
        size += f"; with other blocks of its lines {with_share(held_bytes, failure)}"
    title, why = f"{names.site(leak.line)} leaks: {size}", [describe_usage(failure)]
    first = _cure_double(failure, names)
    if leak.holder is not None and leak.holder.through == GRAPH:
        first += cure_derived(failure, names)
    help_text = f"What helps: {first}{remedy[:1].lower()}{remedy[1:]}"
    if (joined := _find_joined(failure)) is not None and joined.site == leak.line:
        return _describe_joined(joined, failure, names)
    if leak.holder is not None and leak.holder.through == GRAPH and not failure.program.has_backward:
        count = units.counted(leak.units_with_survivors, leak.unit)
        title = f"{names.site(leak.line)} keeps the graphs of {count}, and no backward has run: {size}"
        help_text = (
            f"What helps: {first}if a backward is to follow, call it in each of them, run fewer before it (truncated"
            " backpropagation), or checkpoint each (torch.utils.checkpoint). If none is:"
            f" {remedy[:1].lower()}{remedy[1:]}"
        )
    help_texts = [help_text]
    if failure.verdict == FRAGMENTED:
        free, requested = units.size(failure.here.free_bytes), units.size(failure.requested_bytes)
        help_texts.append(
            f"PYTORCH_ALLOC_CONF=expandable_segments:True would only delay it: {free} was free, but not in one piece"
            f" for the {requested} requested at {names.site(failure.site)}."
        )
    return CauseText(title, leak.line, leak.sites[0].stack_id, why, help_texts)


def _find_joined(failure: OutOfMemory) -> SiteBytes | None:
    """Return the line whose blocks the failed request joins into one; None if it has another size.

    One block that is as large as the request, with some small ones, is not joined: it may be copied. Weights may be
    joined as well (`parameters_to_vector`), but no line collects them.
    """
    of_model = {site.site for site in failure.program.sites_by_use[causes.MODEL]}
    for site in failure.top_sites:
        if (
            site.blocks > 1
            and site.largest_bytes < _MAX_PART * failure.requested_bytes
            and site.site not in of_model
            and abs(failure.requested_bytes - site.bytes) <= _MAX_JOIN_DIFFERENCE * site.bytes
        ):
            return site
    return None


def _describe_joined(joined: SiteBytes, failure: OutOfMemory, names: SiteNames) -> CauseText:
    size, joins = with_share(joined.bytes, failure), names.site(failure.site)
    return CauseText(
        f"{names.site(joined.site)} collects {size}, and {joins} joins it into one: as much again",
        joined.site,
        joined.stack_id,
        [f"Its {units.counted(joined.blocks, 'block')} are as large as the request.", describe_usage(failure)],
        ["What helps: collect copies on the CPU (`.cpu()`), in lower precision, or keep running statistics instead."],
    )


def _describe_exception(failure: OutOfMemory, names: SiteNames) -> CauseText:
    program = failure.program
    holder = program.exception_holder
    assert holder is not None, "this cause requires a holder"
    line, stack = line_to_change(holder, *largest_site(failure))
    match = _IN_TRACEBACK.search(holder.names[0])
    name = "" if match is None else f", in `{names.referrer(match[1])}`,"
    least = "" if program.has_complete_scan else "at least "
    size, container = f"{least}{with_share(program.exception_bytes, failure)}", quote(names.referrer(holder.name))
    title = f"Exceptions that the program keeps hold {size}"
    help_text = (
        f"What helps: the traceback of an exception{name} keeps the local variables of all its frames. Keep"
        " `str(error)`, or call `traceback.clear_frames(error.__traceback__)`, and try again outside of the `except`"
        " block."
    )
    if holder.containers and match is None:
        title = f"{container} keeps exceptions, whose tracebacks hold {size}"
        help_text = (
            f"What helps: keep `str(error)`, remove from {container} what is done (a Future keeps its exception), or"
            " call `traceback.clear_frames(error.__traceback__)`: a traceback keeps the local variables of its frames."
        )
    why = [f"Held by {names.referrer(holder.names[0])}.", *list_roles(failure)]
    return CauseText(title, line, stack, why, [help_text])


def _describe_garbage(failure: OutOfMemory, names: SiteNames) -> CauseText:
    row = failure.program.garbage
    assert row is not None, "this cause requires garbage"
    line, stack = line_to_change(row.holder, *largest_site(failure))
    return CauseText(
        f"Garbage holds {with_share(row.bytes, failure)}: reference cycles that Python's collector has not freed",
        line,
        stack,
        [f"Nothing in the program leads to {names.referrer(row.holder.names[0])}.", *list_roles(failure)],
        [f"{cure_garbage(row.holder.back_reference)} The collector runs seldom, and not after `gc.disable()`."],
    )


def _describe_autocast(failure: OutOfMemory, names: SiteNames) -> CauseText:
    memory = failure.program.autocast
    assert memory is not None, "this cause requires memory of autocast"
    return CauseText(
        f"Autocast keeps {with_share(memory.bytes, failure)} until its region ends at {names.site(memory.site)}",
        memory.site,
        memory.stack_id,
        [describe_autocast(memory.bytes, memory.copied_bytes, memory.site, names)],
        [AUTOCAST_CURE],
    )


def _describe_unused(failure: OutOfMemory, names: SiteNames) -> CauseText:
    rows = failure.program.unused
    line, stack = line_to_change(rows[0].holder, *largest_site(failure))
    total = sum(row.bytes for row in rows)
    function = rows[0].holder.function
    return CauseText(
        f"{with_share(total, failure)} is in variables of {function}() that it does not use any more",
        line,
        stack,
        [f"{list_variables(rows)}.", *list_roles(failure)],
        [
            f"What helps: `del {', '.join(sum_by_variable(rows))}` when they are no longer needed, or compute"
            " them in a function of their own, whose variables end with it."
        ],
    )


def _describe_collected(failure: OutOfMemory, names: SiteNames) -> CauseText:
    return _describe_row(failure.program.collection, failure, names)


def _describe_held(failure: OutOfMemory, names: SiteNames) -> CauseText:
    return _describe_row(failure.program.holder, failure, names)


def _describe_row(row: HeldRow | None, failure: OutOfMemory, names: SiteNames) -> CauseText:
    assert row is not None, "this cause requires a holder"
    name = quote(names.referrer(row.holder.name))
    holder = row.holder
    line, stack = line_to_change(holder, *largest_site(failure))
    remedy = cure_holder(holder, SURVIVORS, failure.device, names)
    return CauseText(
        f"{name} keeps {with_share(row.bytes, failure)}",
        line,
        stack,
        [f"Held by {names.referrer(holder.names[0])}.", *list_roles(failure)],
        [f"What helps: {remedy[:1].lower() if remedy[1:2].islower() else remedy[:1]}{remedy[1:]}"],
    )


def _describe_large_request(failure: OutOfMemory, names: SiteNames) -> CauseText:
    program = failure.program
    if failure.verdict != TOO_LARGE and (joined := _find_joined(failure)) is not None:
        return _describe_joined(joined, failure, names)
    why = []
    line, request = names.site(failure.site), with_share(failure.requested_bytes, failure)
    title = f"{line} requests {request} at once"
    operation = program.request_operation
    is_larger = failure.requested_bytes >= MIN_GROWTH * program.largest_before_bytes > 0
    larger = CURE_OF_LARGER_INPUT if is_larger else ""
    if failure.verdict == TOO_LARGE:
        max_possible, device = units.size(failure.max_possible_bytes or 0), units.size(failure.device_bytes or 0)
        why.append(f"The device has {device}, and at most {max_possible} can be allocated: freeing cannot help.")
    else:
        why.append(describe_usage(failure))
    has_own_cure = bool(program.outer_count) and not program.is_attention
    if has_own_cure:
        count = units.number(program.outer_count)
        title = f"{line} broadcasts two tensors of {count} elements to {count} x {count}, and requests {request}"
        remedy = (
            f"if this is not intended, give both the same shape, such as x.squeeze(-1): shapes ({count}, 1) and"
            f" ({count},) become ({count}, {count}); else process the pairs in chunks"
        )
        larger = ""
    elif program.is_attention:
        remedy = (
            f"{FUSED_ATTENTION}, which does not store the attention matrix; shorter sequences, or chunks of the queries"
        )
    elif program.request_use == causes.KEPT and (square := find_square(failure.requested_bytes, ROUNDING)):
        side, item_bytes = units.number(square[0]), square[1]
        why.append(f"It has the size of {side} x {side} elements of {item_bytes} bytes, as of all pairs.")
        remedy = (
            "process the pairs in chunks, or store only those that count, as a sparse tensor or a list of edges; if it"
            " is not intended, check the shapes for a broadcast"
        )
    elif operation is not None and (operation in OWN_CURES or program.request_use == causes.KEPT):
        title = f"{line} {WHAT_BY_OPERATION[operation]}, and requests {request} at once"
        remedy = f"{CURE_BY_OPERATION[operation]}{'; ' if larger else ''}{larger.removesuffix('; ')}"
        larger, has_own_cure = "", True
    elif program.request_use == causes.KEPT:
        remedy = "process the data in chunks, or request less: check the shapes for an unintended broadcast"
    else:
        remedy = "smaller requests (a smaller batch, chunks), or several devices"
    if is_larger:
        title += f", and at most {units.size(program.largest_before_bytes)} before"
    return CauseText(
        title,
        failure.site,
        failure.request.stack_id,
        why,
        [f"What helps: {larger}{'' if has_own_cure else _cure_copy(failure, names)}{remedy}."],
    )


def _cure_copy(failure: OutOfMemory, names: SiteNames) -> str:
    """Return a clause on a request by arithmetic as large as one live block, which it may replace; "" otherwise."""
    largest = max(failure.top_sites, key=lambda site: site.largest_bytes, default=None)
    is_arithmetic = _ARITHMETIC.search(failure.site.source or "") is not None
    if largest is None or not is_arithmetic or failure.requested_bytes < _MIN_JOINED_SHARE * failure.usable_bytes:
        return ""
    if abs(largest.largest_bytes - failure.requested_bytes) > _MAX_JOIN_DIFFERENCE * failure.requested_bytes:
        return ""
    size, line = units.size(largest.largest_bytes), names.site(largest.site)
    return (
        f"compute in place (`x.div_(y)`, `x *= y`) what {names.site(failure.site)} makes of a tensor of the same size,"
        f" such as the {size} of {line}, or compute it from the smaller inputs; "
    )


def _describe_forward(failure: OutOfMemory, names: SiteNames) -> CauseText:
    size, sites = failure.program.bytes_with_request(causes.FORWARD), failure.program.sites_by_use[causes.FORWARD]
    site, stack = top_line(sites, failure)
    before = failure.program.largest_before_bytes
    larger = CURE_OF_LARGER_INPUT if failure.requested_bytes >= MIN_GROWTH * before > 0 else ""
    return CauseText(
        f"A forward without gradients fills {failure.device}, mostly at {names.site(site)}:"
        f" {with_share(size, failure)} with the request",
        site,
        stack,
        list_lines(sites, names),
        [
            f"What helps: {larger}{_cure_copy(failure, names)}a smaller batch, inputs in chunks, or lower precision"
            " (torch.autocast)."
        ],
    )


def _describe_kept(failure: OutOfMemory, names: SiteNames) -> CauseText:
    program = failure.program
    sites, total = program.sites_by_use[causes.KEPT], program.bytes_by_use[causes.KEPT]
    if not sites:
        return CauseText(
            f"{failure.device} is full: it refused {units.size(failure.requested_bytes)}",
            failure.site,
            failure.request.stack_id,
            [describe_usage(failure)],
            ["What helps: record from the beginning of the program, to see what fills the device."],
        )
    joined = _find_joined(failure)
    if joined is not None and failure.requested_bytes >= _MIN_JOINED_SHARE * failure.usable_bytes:
        return _describe_joined(joined, failure, names)
    top = sites[0]
    blocks = units.counted(top.blocks, "block")
    operation = program.operations_by_use[causes.KEPT][0] if 2 * top.largest_bytes >= top.bytes else None
    why = list_lines(sites, names) if len(sites) > 1 else []
    if program.kept_of_forward:
        why.append(f"Its {blocks} were allocated in the forward of a model, and have outlived backward.")
        remedy = (
            "look for what keeps outputs or losses with their graphs, such as a list or a sum, and store `.detach()` or"
            " `.item()` of each"
        )
    elif operation is not None:
        remedy = CURE_BY_OPERATION[operation]
    elif program.kept_steps >= _MIN_KEPT_STEPS:
        why.append(
            f"Its {blocks} were allocated in {program.kept_steps} different steps, and are kept from step to step."
        )
        remedy = "if that is not intended, it is a leak: clear the container that holds them"
    elif program.kept_has_freed:
        why.append(f"It holds {blocks} at once, and has freed others.")
        remedy = "hold fewer of them at once, in lower precision, or in host memory"
    else:
        why.append(f"The line has freed none of its {blocks}: the program allocates in advance or collects.")
        remedy = "allocate less (a shorter cache, fewer entries, lower precision), or in host memory"
    return CauseText(
        f"{names.site(top.site)} keeps {with_share(top.bytes, failure)}"
        + (f"; with other lines {units.size(total)}" if total > top.bytes else ""),
        top.site,
        top.stack_id,
        why,
        [f"What helps: {remedy}."],
    )


_DESCRIBE: dict[str, Callable[[OutOfMemory, SiteNames], CauseText]] = {
    causes.KEPT_EXCEPTION: _describe_exception,
    causes.GARBAGE: _describe_garbage,
    causes.AUTOCAST_CACHE: _describe_autocast,
    causes.CARRIED_GRAPH: describe_carried_graph,
    causes.NO_BACKWARD: describe_no_backward,
    causes.MANY_FORWARDS: describe_many_forwards,
    causes.COLLECTED_GRAPHS: describe_graph_collection,
    causes.RECOMPUTED: describe_recomputation,
    causes.VMAP: describe_vmap,
    causes.HELD: _describe_held,
    causes.UNUSED_VARIABLES: _describe_unused,
    causes.COLLECTED: _describe_collected,
    causes.FORMER_TRAINING: describe_former_training,
    causes.LARGE_PARAMETER: describe_large_parameter,
    causes.MANY_MODELS: describe_many_models,
    causes.CHECKPOINT: describe_checkpoint,
    causes.OPTIMIZER_STATE: describe_optimizer_state,
    causes.OPTIMIZER_STEP: describe_optimizer_step,
    causes.LARGE_REQUEST: _describe_large_request,
    causes.COPIES: describe_copies,
    causes.MODEL: describe_model,
    causes.ACTIVATIONS: describe_activations,
    causes.FORWARD: _describe_forward,
    causes.KEPT: _describe_kept,
}
