"""Advice on what makes the peak of a GPU."""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis.free_memory.forwards import Forwards
from ..analysis.free_memory.inefficiency import Inefficiency
from ..analysis.free_memory.unused_gradients import UNUSED_GRADIENTS
from ..analysis.free_memory.unused_graph import UNUSED_GRAPH
from ..analysis.leaks.leak import UNUSED, Doubt, Growth
from ..analysis.summary import MIN_ACTIVATION_SHARE, MIN_ROLE_SHARE, AllPairs, DeviceSummary, Holding
from ..analysis.usage.held_memory import MIN_PEAK_SHARE
from ..analysis.usage.operations import Operation
from ..reading.sites import SiteBytes
from . import units
from .cures import BACKWARD_EACH, describe_checkpointing, describe_views, quote
from .growth import describe_store
from .holders import describe_row
from .oom_cause_text import list_variables
from .operations import CURE_BY_OPERATION, SMALLER_PARTS, WHAT_BY_OPERATION, describe_recomputed
from .site_names import SiteNames

_MIN_LOADED_SHARE = 0.25
"""Minimum share of the peak."""
_MIN_STEP_SHARE = 0.1
"""Minimum share of the peak of the copies in the step of an optimizer."""
_MIN_ADVISED_BYTES = 64 << 20
_MAX_OPERATIONS = 2
"""Maximum number of lines of which the operation is advised on, the most bytes first."""
_CURE_BY_TYPE = {
    "float64": "`.float()` of it halves it, and what is computed from it",
    "int64": "store a smaller type (int32, uint8) and convert the part in use (`.long()`), or count without storing "
    "all (torch.bincount, a loop)",
}
_OF_LIVE_MEMORY = ("garbage", "autocast", UNUSED_GRAPH, UNUSED_GRADIENTS)
"""Kinds of inefficiencies whose bytes are live blocks."""
_ADVICE_BY_ROLE = {
    "input": "Inputs are {share} of this peak{line}, as their lifetimes suggest. What lowers it, if they are: keep "
    "them in host memory, and move each batch to the device when it is used.",
    "temporary": "Temporaries are {share} of this peak{line}. What lowers it: a smaller batch, or the work in "
    "chunks; operations in place; lower precision (torch.autocast).",
    "other": "Tensors that the program still refers to are {share} of this peak{line}. What lowers it: `del` what is "
    "no longer needed before the peak, or keep less of it: a copy on the CPU (`.cpu()`), a number (`.item()`).",
    "parameter": "Parameters are {share} of this peak{line}. What lowers it: `del` models that are no longer used, or "
    "move them to the CPU; lower precision (`.half()`); a smaller model.",
}


def peak_advice(device: DeviceSummary, names: SiteNames) -> list[str]:
    """Return sentences on what makes a peak on a GPU: loaded tensors, an object, an operation, a role, or a line.

    What a finding or a note on the peak explains needs no advice.
    """
    advice, holding = [], device.peak
    loaded = [site for site, is_loaded in zip(holding.sites, holding.are_loaded, strict=True) if is_loaded]
    loaded_bytes = sum(site.bytes for site in loaded)
    if loaded_bytes >= _MIN_LOADED_SHARE * holding.bytes and loaded_bytes >= _MIN_ADVISED_BYTES:
        advice.append(
            f"{units.size(loaded_bytes)} of it was loaded from files at {names.site(loaded[0].site)}. What helps, "
            'unless it is the model itself: load into host memory, torch.load(..., map_location="cpu"), and del early.'
        )
    explained_bytes = _largest_explained_bytes(device)
    if (idle := device.idle_model) is not None and idle.bytes >= max(_MIN_ADVISED_BYTES, explained_bytes):
        advice.append(
            f"{units.size(idle.bytes)} of it is a model from {names.site(idle.site)} that is not called any more, at "
            "least in the last third of the run. What lowers it, if the model is done: `del` it, with its optimizer, "
            "or move it to the CPU."
        )
    held_bytes = sum(row.bytes for row in device.peak_holders)
    is_notable = held_bytes - explained_bytes >= max(MIN_PEAK_SHARE * holding.bytes, _MIN_ADVISED_BYTES)
    if not advice and is_notable and device.peak_holders[0].holder.through == UNUSED:
        advice.append(
            f"{units.size(held_bytes)} of it is in variables of {device.peak_holders[0].holder.function}() that it does"
            f" not use any more: {list_variables(device.peak_holders)}. What lowers it: `del` them, or compute them in"
            " a function of their own."
        )
    elif not advice and is_notable:
        holder = device.peak_holders[0]
        step = holder.holder.step
        when = "" if step is None else f" (as of step {units.number(step)})"
        amount = f"{'About ' if holder.is_estimated else ''}{units.size(holder.bytes)}"
        remedy = (
            "process each entry as it comes, or keep less of it, or a copy on the CPU (`.cpu()`)"
            if holder.holder.containers
            else "free it before the peak, or keep it on the CPU (`.cpu()`)"
        )
        if any(container.type == "deque" for container in holder.holder.containers):
            remedy += ", or a bound (`maxlen` of a deque, `maxsize` of a queue)"
        views = describe_views(holder.holder, "Its tensors")
        advice.append(
            f"{amount} of it is held by {describe_row(holder, names)}{when}. What lowers it, if it is not needed:"
            f" {' '.join((f'{remedy}.', *views, *describe_store(holder.holder, names)))}"
        )
    activations = sum(part.bytes for part in holding.roles.roles if part.role == "activation")
    activations -= max((growth.allocated_bytes for growth in _list_accumulations(device)), default=0)
    are_most = activations >= max(MIN_ACTIVATION_SHARE * holding.bytes, _MIN_ADVISED_BYTES)
    if device.derived_gradient is not None and holding.bytes >= _MIN_ADVISED_BYTES:
        advice.append(
            f"Gradients with graphs (create_graph=True at {names.site(device.derived_gradient)}) make this peak. What"
            " lowers it: leave create_graph out where no further derivative is taken, as in inference."
        )
    elif holding.all_pairs is not None and holding.all_pairs.bytes >= _MIN_ADVISED_BYTES:
        advice.append(_describe_all_pairs(holding.all_pairs))
    elif device.peak_forwards is not None:
        advice.append(_describe_forwards(device.peak_forwards, names))
    is_explained = explained_bytes >= MIN_PEAK_SHARE * holding.bytes
    recomputed = holding.recomputed
    min_recomputed = max(MIN_ACTIVATION_SHARE * holding.bytes, _MIN_ADVISED_BYTES)
    if not advice and not is_explained and recomputed is not None and recomputed.bytes >= min_recomputed:
        what, size = describe_recomputed(recomputed, names), units.size(recomputed.bytes)
        advice.append(f"{what}: {size} of it. What lowers it: {SMALLER_PARTS}.")
    if not advice and not is_explained:
        advice += _advise_on_operation(holding, names)
    if not advice and are_most and find_unused_graph(device) is None:
        # Only a training can accumulate gradients.
        accumulation = "" if device.growth is None else " with gradient accumulation"
        advice.append(
            f"Activations make this peak. What lowers it: a smaller batch{accumulation}, torch.autocast, or "
            f"{describe_checkpointing(holding.model_origin, names)}."
        )
    if not advice and not is_explained:
        advice += _advise_on_role(holding, names) or _advise_on_line(device, names)
    if (wide := device.wide_tensors) is not None and wide.bytes >= _MIN_ADVISED_BYTES:
        advice.append(
            f"{quote(names.referrer(wide.holder.name))} is {wide.dtype}, 8 bytes for each element: "
            f"{_CURE_BY_TYPE[wide.dtype]}."
        )
    return advice


def _advise_on_operation(holding: Holding, names: SiteNames) -> list[str]:
    """Return a sentence on the largest line whose operation is known to make large tensors."""
    activations = sum(part.bytes for part in holding.roles.roles if part.role == "activation")
    is_training = activations >= MIN_ACTIVATION_SHARE * holding.bytes
    rows = sorted(zip(holding.sites, holding.operations, strict=True), key=lambda row: -row[0].bytes)
    # Activations are of many lines. Of a few large tensors, one may be computed from another.
    min_bytes = max(MIN_PEAK_SHARE * holding.bytes, _MIN_ADVISED_BYTES)
    for _, operation in rows[: 1 if is_training else _MAX_OPERATIONS]:
        sites = [site for site, its_operation in rows if its_operation is operation and site.bytes >= min_bytes]
        if operation is not None and sites:
            advice = _describe_operation(sites, operation, holding, names, is_training=is_training)
            if advice:
                return advice
    return []


def _describe_operation(
    sites: Sequence[SiteBytes], operation: Operation, holding: Holding, names: SiteNames, *, is_training: bool
) -> list[str]:
    if is_training and operation in (Operation.JOIN, Operation.REPEAT, Operation.ALLOCATE):
        return []
    if not is_training and operation is Operation.WRITTEN_OUT:
        return []
    size = sum(site.bytes for site in sites)
    if operation is Operation.JOIN:  # the parts may be of the same line
        sites, size = sites[:1], min(sites[0].largest_bytes, sites[0].bytes)
    if operation is Operation.STEP:
        size -= sum(part.bytes for part in holding.roles.roles if part.role == "optimizer state")
        if size < max(_MIN_STEP_SHARE * holding.bytes, _MIN_ADVISED_BYTES):
            return []
    others = ", likewise " + ", ".join(names.site(site.site) for site in sites[1:]) if len(sites) > 1 else ""
    line, what = names.site(sites[0].site), WHAT_BY_OPERATION[operation]
    return [f"{line} {what}{others}: {units.size(size)} of it. What lowers it: {CURE_BY_OPERATION[operation]}."]


def _advise_on_role(holding: Holding, names: SiteNames) -> list[str]:
    """Return a sentence on the role with the most bytes, if it has `MIN_ROLE_SHARE` of the peak."""
    largest = max(holding.roles.roles, key=lambda part: part.bytes, default=None)
    if largest is None or largest.role not in _ADVICE_BY_ROLE:
        return []
    if largest.bytes < max(MIN_ROLE_SHARE * holding.bytes, _MIN_ADVISED_BYTES):
        return []
    line = holding.line_by_role.get(largest.role)
    where = "" if line is None else f", mostly of {names.site(line)}"
    share = units.share(largest.bytes, holding.bytes)
    return [_ADVICE_BY_ROLE[largest.role].format(share=share, line=where)]


def _advise_on_line(device: DeviceSummary, names: SiteNames) -> list[str]:
    """Return a sentence on the line with the most bytes, if they are not there to stay."""
    holding, lasting = device.peak, {site.site: site.bytes for site in device.end.sites}
    sites = [site for site in holding.sites if site.site.filename and 2 * lasting.get(site.site, 0) < site.bytes]
    largest = max(sites, key=lambda site: site.bytes, default=None)
    if largest is None or largest.bytes < max(MIN_ROLE_SHARE * holding.bytes, _MIN_ADVISED_BYTES):
        return []
    return [
        f"{units.size(largest.bytes)} of this peak was allocated at {names.site(largest.site)}. What lowers it:"
        " fewer items at once (a smaller batch, or the work in chunks), or lower precision (torch.autocast)."
    ]


def _describe_all_pairs(pairs: AllPairs) -> str:
    side = units.number(pairs.side)
    return (
        f"{units.size(pairs.bytes)} of it has the size of {side} x {side} elements of {pairs.item_bytes} bytes"
        f" ({units.counted(pairs.blocks, 'block')}). What lowers it, if these are all pairs of items: process them in"
        " chunks, or fewer items at once (batches)."
    )


def _describe_forwards(forwards: Forwards, names: SiteNames) -> str:
    site, count = forwards.site, max(forwards.count, forwards.call_count)
    return (
        f"{units.size(site.bytes)} of it are activations of {units.number(count)} forwards at {names.site(site.site)},"
        f" whose graphs wait for one backward. What lowers it: {BACKWARD_EACH}, as gradients add up; if one loss needs"
        " all of them, activation checkpointing."
    )


def _largest_explained_bytes(device: DeviceSummary) -> int:
    """Return the maximum bytes of a finding or note on live memory of a device; 0 without one."""
    leaks = device.leaks
    sizes = [leak.allocated_bytes for leak in leaks.leaks]
    sizes += [growth.allocated_bytes for growth in (*leaks.undecided, *leaks.notes) if growth.doubt is not Doubt.FILLED]
    sizes += [finding.bytes for finding in device.inefficiencies if finding.kind in _OF_LIVE_MEMORY]
    return max(sizes, default=0)


def find_unused_graph(device: DeviceSummary) -> Inefficiency | None:
    return next((finding for finding in device.inefficiencies if finding.kind == UNUSED_GRAPH), None)


def _list_accumulations(device: DeviceSummary) -> list[Growth]:
    return [growth for growth in device.leaks.notes if growth.doubt is Doubt.ACCUMULATED]
