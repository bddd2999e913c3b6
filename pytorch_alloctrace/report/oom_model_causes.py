"""Causes of failed allocations in the memory of models, as text: weights, gradients, optimizer state, and copies."""

from __future__ import annotations

from ..analysis.free_memory import program_memory as causes
from ..analysis.free_memory.oom import OutOfMemory
from . import units
from .cures import (
    SHARE_MODEL,
    quote,
)
from .oom_cause_text import (
    MAX_LINES,
    CauseText,
    describe_usage,
    line_to_change,
    list_lines,
    list_roles,
    top_line,
    with_share,
)
from .operations import FOREACH_CURE
from .site_names import SiteNames

_MIN_PARAMETERS = 0.5
"""Minimum share of parameters in what is kept of models, for it to be called weights."""
_OF_OPTIMIZER = ".param_groups"
"""Attribute of an optimizer, in the name of a holder."""
_MIN_OTHER_GRADIENTS = 2
"""Minimum bytes of gradients that are not those of parameters, as a multiple of the parameters."""
_MIN_REST = 0.1  # of what the process may use, beside the model, for a smaller batch to help


def describe_many_models(failure: OutOfMemory, names: SiteNames) -> CauseText:
    models = failure.program.models
    assert models is not None, "this cause requires models"
    site, holder = models.site, models.holder
    done = "models, with their optimizers," if failure.program.bytes_by_role["optimizer state"] else "models"
    share, remedy = SHARE_MODEL, f"remove {done} that are done, or keep copies on the CPU (`.cpu()`)"
    if "copy" in (site.site.source or ""):
        share = ""
        remedy = f"keep the copies on the CPU (`.cpu()`, or a state_dict moved there), or remove {done} that are done"
    keeper, why = "", list_roles(failure)
    line, stack = line_to_change(holder, site.site, site.stack_id)
    if holder is not None:
        # The program stores the optimizer, or an object that has it, such as a schedule.
        keeper = f" by {quote(names.referrer(holder.name.partition(_OF_OPTIMIZER)[0]))}"
        why = [f"Held by {names.referrer(holder.names[0])}.", *why]
        if _OF_OPTIMIZER in holder.name:
            remedy = f"store numbers instead of an optimizer or what refers to it, such as a schedule; {remedy}"
    content = " of weights"
    if 0 < models.parameter_bytes < _MIN_PARAMETERS * site.bytes:
        content = f", {units.size(models.parameter_bytes)} of parameters"
        if models.copied is not None:
            size, line_copied = units.size(models.copied.largest_bytes), names.site(models.copied.site)
            remedy = f"copy only the model, not what the object refers to, such as {size} of {line_copied}; {remedy}"
    remedies = [remedy, share] if holder is not None else [share, remedy]
    return CauseText(
        f"{units.number(models.count)} models made at {names.site(site.site)} are kept{keeper}:"
        f" {with_share(site.bytes, failure)}{content}",
        line,
        stack,
        why,
        [f"What helps: {'; or '.join(filter(None, remedies))}."],
    )


def describe_checkpoint(failure: OutOfMemory, names: SiteNames) -> CauseText:
    sites = failure.program.checkpoints
    site, size = max(sites, key=lambda site: site.bytes), sum(site.bytes for site in sites)
    blocks = units.counted(sum(site.blocks for site in sites), "block")
    return CauseText(
        f"{names.site(site.site)} loaded a checkpoint onto {failure.device} beside the model:"
        f" {with_share(size, failure)}",
        site.site,
        site.stack_id,
        [
            f"Its {blocks} are still live, and the model has blocks of the same sizes: both are on the device.",
            *list_roles(failure),
        ],
        [
            'What helps: load it into host memory (torch.load(..., map_location="cpu")), and del it once the model and'
            " the optimizer have their state."
        ],
    )


def describe_former_training(failure: OutOfMemory, names: SiteNames) -> CauseText:
    former = failure.program.former_training
    assert former is not None, "this cause requires a former training"
    state = "Gradients and optimizer state" if former.state_bytes else "Gradients"
    holder = former.holder
    place = "" if holder is None else f", in {quote(names.referrer(holder.name))},"
    site, stack = line_to_change(holder, former.site.site, former.site.stack_id)
    return CauseText(
        f"{state} of a former training{place} are still live: {with_share(former.bytes, failure)}",
        site,
        stack,
        [
            f"They are older than the parameters from {names.site(former.later.site)}, and have not changed since.",
            *list_roles(failure),
        ],
        [
            "What helps: when a model is trained, del its optimizer, also in what is kept of the stage, and call"
            " `zero_grad(set_to_none=True)`; or del the model, if it is done."
        ],
    )


def describe_large_parameter(failure: OutOfMemory, names: SiteNames) -> CauseText:
    parameter = failure.program.large_parameter
    assert parameter is not None, "this cause requires a parameter"
    site = parameter.site
    name = f"`{parameter.name}`" if parameter.name else "a parameter"
    others = parameter.tensors - 1
    beside = f" with {units.counted(others, 'tensor')} of its gradient and optimizer state" if others else ""
    return CauseText(
        f"One parameter, {name} of {names.site(site.site)}, takes {with_share(parameter.bytes, failure)}{beside}",
        site.site,
        site.stack_id,
        [f"It has {units.size(site.bytes)}.", *list_roles(failure)],
        [
            "What helps, if it is an embedding: fewer rows (number the ids that occur from 0 on), or `sparse=True` with"
            " SGD or SparseAdam, whose gradients have only the rows in use; else an optimizer with less state, lower"
            " precision, or a smaller layer."
        ],
    )


def describe_optimizer_state(failure: OutOfMemory, names: SiteNames) -> CauseText:
    program = failure.program
    earlier = program.earlier_optimizer_bytes
    state = program.bytes_by_role["optimizer state"] - earlier
    why = ["The state stays until the end: Adam needs twice the size of the parameters.", *list_roles(failure)]
    remedies = (
        "an optimizer with less state (SGD, Adafactor, 8-bit Adam), sharding it over devices (ZeroRedundancyOptimizer,"
        " FSDP), lower precision, or a smaller model"
    )
    which, beside = "the optimizer's state in its first step", ""
    site, stack, holder = failure.site, failure.request.stack_id, program.earlier_optimizer_holder
    if earlier:
        which = "the state of an optimizer"
        beside = f", beside {units.size(earlier)} of state that is older"
        done = "if an earlier optimizer is done, such as that of a former stage, del it"
        if holder is not None and "[" in holder.name:
            site, stack = line_to_change(holder, site, stack)
            name = quote(names.referrer(holder.name.partition(_OF_OPTIMIZER)[0].removesuffix(".state")))
            beside += f" and kept by {name}"
            done = f"keep numbers instead of {name} and of what refers to it, such as a schedule"
        remedies = f"{done}, and zero_grad() its model, or del both; else {remedies}"
    return CauseText(
        f"{names.site(failure.site)} allocates {which}: {with_share(state, failure)} so far{beside}",
        site,
        stack,
        why,
        [f"What helps: {remedies}."],
    )


def describe_optimizer_step(failure: OutOfMemory, names: SiteNames) -> CauseText:
    copies = failure.program.step_copies_bytes
    size = (
        f"{units.size(copies)} so far" if copies else f"{failure.device} refused {units.size(failure.requested_bytes)}"
    )
    return CauseText(
        f"{names.site(failure.site)} makes temporary copies in the optimizer's step, beside weights, gradients and"
        f" state: {size}",
        failure.site,
        failure.request.stack_id,
        [describe_usage(failure), *list_roles(failure)],
        [f"What helps: {FOREACH_CURE}; or del activations and outputs before the step."],
    )


def describe_copies(failure: OutOfMemory, names: SiteNames) -> CauseText:
    copies = failure.program.copies
    size = sum(site.bytes for site in copies)
    last = copies[0]
    count = "One copy" if len(copies) == 1 else f"{units.number(len(copies))} copies"
    lines = list(dict.fromkeys(names.site(site.site) for site in copies))
    more = f" and {units.counted(len(lines) - MAX_LINES, 'more line')}" if len(lines) > MAX_LINES else ""
    remedies = [
        "keep copies in host memory (deepcopy(model).cpu(), or a state_dict moved to the CPU)",
        "del models, with their optimizers, that are no longer needed",
        "store copies in lower precision",
    ]
    if "copy" not in (last.site.source or ""):  # another model
        remedies[:2] = ["del the former model, with its optimizer and scheduler, before this line", remedies[0]]
    return CauseText(
        f"{names.site(last.site)} puts another copy of the model on {failure.device}:"
        f" {with_share(size, failure)} of copies",
        last.site,
        last.stack_id,
        [
            f"{count} of the model, with blocks of the same sizes, came from {', '.join(lines[:MAX_LINES])}{more}.",
            *list_roles(failure),
        ],
        [f"What helps: {', '.join(remedies[:-1])}, or {remedies[-1]}."],
    )


def describe_model(failure: OutOfMemory, names: SiteNames) -> CauseText:
    size = failure.program.bytes_by_use[causes.MODEL]
    site, stack = top_line(failure.program.sites_by_use[causes.MODEL], failure)
    by_role = failure.program.bytes_by_role
    parts = ["weights"] if by_role["parameter"] or by_role["buffer"] else []
    parts += ["gradients"] if by_role["gradient"] else []
    parts += ["optimizer state"] if by_role["optimizer state"] else []
    *others, last_part = parts or ["weights"]
    subject = f"{', '.join(others)} and {last_part}" if others else last_part
    if by_role["gradient"] >= _MIN_OTHER_GRADIENTS * (by_role["parameter"] + by_role["buffer"]):
        return CauseText(
            f"Gradients that are not those of parameters fill {failure.device}: {with_share(size, failure)}",
            site,
            stack,
            [*list_roles(failure), *list_lines(failure.program.sites_by_use[causes.MODEL], names)],
            [
                "What helps, if they are the rows of a Jacobian or Hessian: some rows at a time, each on the CPU"
                " (`torch.func.jacrev(..., chunk_size=...)`), or products with vectors (torch.func.jvp, vjp) instead of"
                " the matrix; else keep fewer results of `torch.autograd.grad`, or set `.grad = None` of inputs."
            ],
        )
    less_state = "an optimizer with less state, " if by_role["optimizer state"] else ""
    rest = failure.allocated_bytes - size
    smaller_batch = (
        f"A smaller batch frees at most {units.size(rest)}, the rest."
        if rest + failure.requested_bytes >= _MIN_REST * failure.usable_bytes
        else "A smaller batch would not."
    )
    return CauseText(
        f"{subject.capitalize()} fill {failure.device}: {with_share(size, failure)}",
        site,
        stack,
        [*list_roles(failure), *list_lines(failure.program.sites_by_use[causes.MODEL], names)],
        [f"What helps: lower precision, {less_state}sharding over devices, or a smaller model. {smaller_batch}"],
    )
