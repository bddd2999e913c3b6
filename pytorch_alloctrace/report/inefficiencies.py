"""Findings on inefficiencies: figures and remedies."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..analysis.advice import Advice, Advisor
from ..analysis.free_memory.allocator import MIB
from ..analysis.free_memory.inefficiency import Cause, Inefficiency, UnusableMemory
from ..analysis.what_if.settings import DEFAULTS, EXPANDABLE
from . import units
from .cures import AUTOCAST_CURE, NO_GRAD, NO_GRAD_IN_THREAD, cure_garbage, describe_autocast
from .finding import Finding
from .growth import describe_holder
from .site_names import SiteNames

_VARIABLE = "PYTORCH_ALLOC_CONF"
_MIN_SAVED_SHARE = 0.5


def inefficiency_finding(inefficiency: Inefficiency, names: SiteNames, advisor: Advisor) -> Finding:
    """Describe an inefficiency. Only fragmentation uses the advisor, which takes a pass over the trace."""
    if inefficiency.kind == "fragmentation":
        sentences = _describe_fragmentation(inefficiency, names, advisor.on_fragmentation(inefficiency.device))
    else:
        sentences = _DESCRIBE_BY_KIND[inefficiency.kind](inefficiency, names)
    return Finding(
        kind=inefficiency.kind,
        title=_make_title(inefficiency, names),
        device=inefficiency.device,
        bytes=inefficiency.bytes,
        confidence=None,
        site=inefficiency.site,
        stack_id=inefficiency.stack_id,
        sentences=sentences,
        brief=(sentences[-1], _describe_briefly(inefficiency, names) or " ".join(sentences[:-1])),
    )


def _make_title(inefficiency: Inefficiency, names: SiteNames) -> str:
    amount, total = units.size(inefficiency.bytes), units.size(inefficiency.total_bytes)
    causes = [part.cause for part in inefficiency.unusable] or [Cause.PINNED]
    fragmentation = _FRAGMENTATION_TITLES[causes[0]] if len(causes) == 1 else "lost to fragmentation"
    title_by_kind = {
        "fragmentation": f"{amount} of {total} reserved is {fragmentation}",
        "cache": f"{amount} of {total} reserved is cached, but no longer used",
        "rounding": f"{amount} of {total} allocated at the peak is rounding waste",
        "pending": f"{amount} of {total} reserved was freed, but held back for another stream",
        "churn": f"{amount} was returned to the driver and requested again",
        "garbage": f"{amount} of {total} allocated was garbage of reference cycles",
        "autocast": f"{amount} of {total} allocated was kept by torch.autocast until its region ended",
        "unused_graph": f"{amount} of {total} at the peak is an autograd graph that no backward uses, of"
        f" {_describe_site(inefficiency, names)}",
        "unused_gradients": f"{amount} of {total} at the peak are gradients of parameters that no optimizer updates, "
        f"{_describe_part(inefficiency)}of {_describe_site(inefficiency, names)}",
        "outside": f"{amount} of the device's {total} is used outside PyTorch",
    }
    return f"{inefficiency.device}: {title_by_kind[inefficiency.kind]}"


def _describe_part(inefficiency: Inefficiency) -> str:
    if inefficiency.site_bytes == inefficiency.bytes:
        return ""
    return "most " if 2 * inefficiency.site_bytes > inefficiency.bytes else "the largest part "


def _describe_fragmentation(inefficiency: Inefficiency, names: SiteNames, advice: Advice) -> tuple[str, ...]:
    if not inefficiency.unusable:
        return (
            f"Which lines pin the memory is unknown: the run {_describe_time(inefficiency)} is compacted into sums.",
            _describe_remedies(["allocate long-lived memory before large memory"], advice, inefficiency),
        )
    causes = [part.cause for part in inefficiency.unusable]
    cures = [
        _SIZES_CURE if part.is_of_step else _CURES[part.cause] for part in inefficiency.unusable if part.cause in _CURES
    ]
    position = "" if inefficiency.request is None else " --at peak:reserved"
    command = f" The command fragmentation{position} shows all lines that pin memory."
    remedies = _describe_remedies([*dict.fromkeys(cures)], advice, inefficiency)
    return (
        *(_describe_unusable(part, inefficiency, names) for part in inefficiency.unusable),
        f"{remedies}{command if Cause.PINNED in causes else ''}",
    )


def _describe_briefly(inefficiency: Inefficiency, names: SiteNames) -> str:
    """Return a clause on the line that pins the most memory; "" if none does."""
    pinned = next((part for part in inefficiency.unusable if part.cause == Cause.PINNED), None)
    if pinned is None or pinned.site is None:
        return ""
    blocks = units.counted(pinned.count, "block")
    return f"Pinned by {blocks} ({units.size(pinned.total_bytes)}) at {names.site(pinned.site)}."


def _describe_unusable(part: UnusableMemory, inefficiency: Inefficiency, names: SiteNames) -> str:
    """Describe free memory that could not be used, and why."""
    total = f"{units.size(inefficiency.total_bytes)} reserved {_describe_time(inefficiency)}"
    amount, all_bytes = units.size(part.bytes), units.size(part.total_bytes)
    at_line = "" if part.site is None else f" at {names.site(part.site)}"
    if part.cause == Cause.PINNED:
        if not part.site_bytes:  # of a line beside stranded memory, no amount is known
            return f"Most of what is live beside these {units.size(part.bytes)} was allocated{at_line}: {all_bytes}."
        of_step = ", of the same step," if part.is_of_step else ""
        subject = f"1 block of {all_bytes}{at_line}{of_step} keeps"
        if part.count != 1:
            subject = f"{part.count:,} blocks ({all_bytes}){at_line}{of_step} keep"
        return f"Pinned: {subject} {units.size(part.site_bytes)} of the {total} from being reused and returned."
    assert inefficiency.request is not None
    request = f"{units.size(inefficiency.request.requested_bytes)} requested at {names.site(inefficiency.request.site)}"
    if part.cause == Cause.SPLIT_LIMIT:
        limit = f"{inefficiency.max_split_size // MIB} MiB"
        return (
            f"Split limit: {amount} of the {total} is in {units.counted(part.count, 'free piece')} of {limit}"
            f" (max_split_size_mb) or more, which torch never gives to smaller requests, such as the {request}."
        )
    if part.cause == Cause.SIZES:
        segments = units.counted(part.count, "free segment")
        is_too_small = part.largest_bytes < inefficiency.request.requested_bytes
        why = "each too small for" if is_too_small else "which could not serve"
        return f"Sizes: {amount} of the {total} is in {segments}, {why} the {request}."
    if part.cause == Cause.STREAMS:
        return (
            f"Streams: {amount} of the {total} is cached for {units.counted(part.count, 'other stream')}. Torch reuses"
            f" memory only on the stream that allocated it, so the {request} could not use it."
        )
    if part.cause == Cause.DEFAULT_POOL:
        return f"Default pool: {amount} of the {total} is free there, but the {request} belongs to a private pool."
    pools, each = units.counted(part.count, "pool"), units.size(part.total_bytes // max(part.count, 1))
    if part.cause == Cause.GRAPHS:
        graphs_left = inefficiency.figures.get("graphs_until_full")
        forecast = ""
        if graphs_left is not None:
            forecast = (
                f" {inefficiency.device} is full after {units.counted(int(graphs_left), 'more graph')} of this size."
            )
        return (
            f"CUDA graphs: {pools} captured{at_line}, {each} each, are {all_bytes} of the {total}. Each captured graph"
            " keeps a pool of its own, and torch.cuda.empty_cache() returns nothing of it while the graph exists."
            f"{forecast}"
        )
    return (
        f"Private pools: {pools} first used{at_line}, {each} each, are {all_bytes} of the {total}, {amount} of it free."
        " Only requests for a pool can use its memory, and torch.cuda.empty_cache() returns nothing of it while the"
        " pool exists."
    )


_FRAGMENTATION_TITLES = {
    Cause.PINNED: "stranded in segments that live blocks hold",
    Cause.SPLIT_LIMIT: "cached in pieces that max_split_size_mb keeps from being split",
    Cause.SIZES: "cached in segments of other sizes than requested",
    Cause.STREAMS: "cached for other streams than those that request memory",
    Cause.GRAPHS: "taken by a pool for each CUDA graph",
    Cause.POOLS: "cached in private pools",
    Cause.DEFAULT_POOL: "cached in the default pool, which private pools cannot use",
}
_SIZES_CURE = "pad the sizes to a few, or allocate the largest first (a buffer that grows at its final size)"
_CURES = {
    Cause.PINNED: "allocate these long-lived blocks before the large ones, or copy them out (clone()) once the large"
    " ones are freed",
    Cause.SIZES: _SIZES_CURE,
    Cause.STREAMS: "use fewer streams, or allocate on one stream and share the tensors (record_stream())",
    Cause.GRAPHS: "pad the shapes to a few sizes, so that fewer graphs are captured, let all graphs share one pool"
    " (torch.cuda.graph(graph, pool=handle)), and drop old graphs",
    Cause.POOLS: "let the MemPools be one, or delete those that are not in use",
    Cause.DEFAULT_POOL: "call torch.cuda.empty_cache() before the private pool is used",
}


def _describe_remedies(cures: Sequence[str], advice: Advice, inefficiency: Inefficiency) -> str:
    """Return what helps: a setting, which takes no change of the program, then the cures.

    A setting that would have saved less than half of the bytes comes last.
    """
    setting, note, is_enough = "", "", True
    if advice.why_not:
        note = f" {_VARIABLE}={EXPANDABLE} may help, too (not simulated)."
    elif advice.helping:
        outcome = advice.helping[0]
        text = outcome.setting.text
        setting = f"unset {_VARIABLE}" if text == DEFAULTS else f"set {_VARIABLE}={text}"
        removed = [change for change in advice.changes if change not in text]
        if removed and text != DEFAULTS:
            setting += f" (without {' and '.join(removed)})"
        reserved = units.sizes(*outcome.peak_reserved_bytes)
        saved_bytes = inefficiency.total_bytes - outcome.peak_reserved_bytes[1]
        is_enough = saved_bytes >= _MIN_SAVED_SHARE * inefficiency.bytes
        setting += f": at most {reserved} would have been reserved, as a model of torch's allocator shows"
    elif advice.tried:
        tried = " or ".join(advice.tried)
        note = f" ({tried} would not have reserved notably less, as a model of torch's allocator shows.)"
    by_cost = (setting, "; ".join(cures))
    remedies = "; or ".join(filter(None, by_cost if is_enough else by_cost[::-1]))
    return f"What helps: {remedies}.{note}"


def _describe_cache(inefficiency: Inefficiency, names: SiteNames) -> tuple[str, ...]:
    last_use = "Only the warm-up needed it" if inefficiency.figures["is_warmup"] else "It was last needed"
    when = "after that"
    if inefficiency.site is not None and not inefficiency.site.is_workspace:
        amount = f"{units.size(inefficiency.site_bytes)} since the peak"
        when = f"after the memory of {names.site(inefficiency.site)} ({amount}) is freed"
    return (
        f"{last_use} ({_describe_time(inefficiency)}), and other processes cannot use it.",
        f"What helps: one torch.cuda.empty_cache() {when} returns it to the driver.",
    )


def _describe_rounding(inefficiency: Inefficiency, names: SiteNames) -> tuple[str, ...]:
    if inefficiency.figures["wasted_bytes"] > MIB:
        rule = "Requests are rounded up, or get blocks that are not split, as a setting demands."
        cure = f"a finer roundup_power2_divisions, or no max_split_size_mb, whichever is set in {_VARIABLE}"
    elif inefficiency.figures["block_bytes"] > MIB:
        rule = "A request of over 1 MiB also gets the rest of its block if that is at most 1 MiB."
        cure = "tensors of a multiple of 2 MiB, or of slightly less; or one large tensor in place of many"
    else:
        rule = "torch rounds requests up to a multiple of 512 B."
        cure = "one large tensor in place of many small ones"
    return (
        f"Blocks are larger than requested, most of all at {_describe_site(inefficiency, names)}:"
        f" {units.size(inefficiency.site_bytes)}. {rule}",
        f"What helps: {cure}.",
    )


def _describe_pending(inefficiency: Inefficiency, names: SiteNames) -> tuple[str, ...]:
    origin_clause = "the lines that allocated it are unknown, as the run is compacted into sums there"
    if inefficiency.site is not None:
        origin_clause = f"{units.size(inefficiency.site_bytes)} was allocated at {_describe_site(inefficiency, names)}"
    return (
        "The tensors are gone, but record_stream() makes torch wait for the other stream"
        f" ({_describe_time(inefficiency)}); {origin_clause}. Over the run this adds up to"
        f" {units.size(inefficiency.figures['byte_seconds'])} held for one second.",
        "What helps: make the streams wait for each other (Stream.wait_stream) before freeing, instead of"
        " record_stream().",
    )


def _describe_churn(inefficiency: Inefficiency, names: SiteNames) -> tuple[str, ...]:
    return (
        f"In the second half of the run alone: {inefficiency.figures['times']:.0f} times the"
        f" {units.size(inefficiency.total_bytes)} reserved (estimated). Each time the device has to wait.",
        "What helps: do not call torch.cuda.empty_cache() in the loop, and leave torch some room, since it returns"
        " memory by itself when the device is nearly full."
        if inefficiency.figures["calls"] >= inefficiency.figures["times"]
        else "What helps: leave torch some room (a smaller batch), since it returns memory by itself when the device is"
        f" nearly full; or set {_VARIABLE}=expandable_segments:True, so that new sizes fit into cached memory.",
    )


def _describe_outside(inefficiency: Inefficiency, names: SiteNames) -> tuple[str, ...]:
    return (
        f"By CUDA's context, libraries or other processes ({_describe_time(inefficiency)}); memory that torch reserved"
        " is not included.",
        "nvidia-smi lists the processes on the device.",
    )


def _describe_garbage(inefficiency: Inefficiency, names: SiteNames) -> tuple[str, ...]:
    collections = units.counted(int(inefficiency.figures["collections"]), "collection")
    if inefficiency.figures["is_freed"]:
        freed = f"only Python's garbage collector freed it {_describe_time(inefficiency)}, in"
    else:
        freed = f"{_describe_time(inefficiency)}, Python's garbage collector had not freed it yet:"
    return (
        f"No variable referred to it, and {freed} {units.counted(int(inefficiency.figures['blocks']), 'block')} "
        f"({collections} in all); it counts objects, not bytes.",
        *([] if inefficiency.site is None else [_describe_site(inefficiency, names)]),
        *([] if inefficiency.holder is None else [describe_holder(inefficiency.holder, names)]),
        cure_garbage("" if inefficiency.holder is None else inefficiency.holder.back_reference),
    )


def _describe_autocast(inefficiency: Inefficiency, names: SiteNames) -> tuple[str, ...]:
    assert inefficiency.site is not None
    return (
        describe_autocast(inefficiency.bytes, inefficiency.site_bytes, inefficiency.site, names),
        AUTOCAST_CURE,
    )


def _describe_unused_graph(inefficiency: Inefficiency, names: SiteNames) -> tuple[str, ...]:
    other_peak = inefficiency.figures.get("other_peak_bytes")
    without = "" if other_peak is None else f"While this line does not run, the peak is {units.size(other_peak)}. "
    where, is_in_thread = "", inefficiency.figures["is_in_thread"]
    if not inefficiency.figures["is_training"] and not is_in_thread:
        where = ", unless it is to be trained"
    elif inefficiency.figures["is_trained"]:
        where = " wherever no backward follows, as in an evaluation"
    cure = NO_GRAD_IN_THREAD if is_in_thread else NO_GRAD
    return (
        f"{without}Autograd keeps activations for a backward, and none followed: they were freed unused"
        f" ({_describe_time(inefficiency)}).",
        f"What helps: {cure}{where}.",
    )


def _describe_unused_gradients(inefficiency: Inefficiency, names: SiteNames) -> tuple[str, ...]:
    figures = inefficiency.figures
    activation_bytes = int(figures["activation_bytes"])
    amount = f" ({units.size(activation_bytes)} at the peak)" if activation_bytes >= MIB else ""
    freeze = "requires_grad_(False) on the parameters that are not trained"
    if not figures["has_own_line"]:
        remedy = f"{freeze}, before the first backward"
    elif figures["is_first"]:
        remedy = NO_GRAD
    else:
        remedy = (
            f"{freeze}; or, if no trained parameter needs a gradient through this line, run it under torch.no_grad()"
        )
    return (
        f"They are live from {units.duration(inefficiency.seconds)} to the last step, for {int(figures['steps']):,}"
        " steps: each backward adds to them, and no torch optimizer that stepped in this run has these parameters, so"
        " none uses or frees the gradients.",
        f"The activations that backward needs to compute them are kept, too{amount}.",
        f"What helps: {remedy}. If the program updates these parameters itself, nothing needs to be changed.",
    )


_DESCRIBE_BY_KIND: dict[str, Callable[[Inefficiency, SiteNames], tuple[str, ...]]] = {
    "cache": _describe_cache,
    "rounding": _describe_rounding,
    "pending": _describe_pending,
    "churn": _describe_churn,
    "garbage": _describe_garbage,
    "autocast": _describe_autocast,
    "unused_graph": _describe_unused_graph,
    "unused_gradients": _describe_unused_gradients,
    "outside": _describe_outside,
}


def _describe_site(inefficiency: Inefficiency, names: SiteNames) -> str:
    return names.site(inefficiency.site) if inefficiency.site is not None else "an unknown line"


def _describe_time(inefficiency: Inefficiency) -> str:
    return f"at {units.duration(inefficiency.seconds)}"
