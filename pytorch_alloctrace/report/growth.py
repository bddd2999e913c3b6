"""Growth that is not called a leak: undecided growth with its reason and what would decide it, and notes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from ..analysis.leaks.doubts import MIN_UNITS
from ..analysis.leaks.leak import (
    AUTOCAST,
    GROWING,
    Doubt,
    Growth,
    Holder,
    Leak,
    LeakVerdict,
    NoHolder,
    merge_leaks,
)
from ..analysis.leaks.outside_growth import OutsideGrowth
from ..analysis.summary import Summary
from ..reading.names import HOST_DEVICES
from ..reading.recorded import FinalScan
from ..reading.sites import Frame, Site
from . import units
from .cures import (
    AUTOCAST_CURE,
    cure_accumulation,
    cure_garbage,
    cure_holder,
    describe_views,
    is_function_cache,
    quote,
)
from .finding import Finding
from .site_names import SiteNames

_STEPS_TO_RECORD = 50
_MAX_LINES = 3
_SEARCH_LONGER = "Call `alloctrace.holders(tensor)` in the program: it searches longer."
_SEARCH_LIVE = "Call `alloctrace.holders(tensor)` in the program while the blocks are live."
_NO_HOLDER: dict[NoHolder | None, str] = {
    NoHolder.CONVERTED: (
        ": torch's snapshots contain no references. Record the program with `alloctrace.enable()` instead."
    ),
    NoHolder.UNSUPPORTED: ": objects cannot be scanned in the program's Python. Record with another Python.",
    NoHolder.NO_SCAN: f": no object scan ran. {_SEARCH_LIVE}",
    NoHolder.NOT_LIVE: (f": most blocks were allocated after the last object scan, or freed before it. {_SEARCH_LIVE}"),
    NoHolder.NOT_REACHED: (
        f": the short object scans during the run did not reach it, and no final scan found it. {_SEARCH_LONGER}"
    ),
    NoHolder.TRUNCATED: f": the final scan did not reach all objects. {_SEARCH_LONGER}",
    NoHolder.GRAPHS_IN_USE: (
        ": another thread may have been changing autograd graphs during the final scan. End it before the recording "
        "ends."
    ),
    NoHolder.MANY: ": no object holds most of the blocks. `alloctrace.holders(tensor)` names those of one.",
    NoHolder.COLLECTED: (
        ": Python's garbage collector freed most of the blocks, later: by then at least, only reference cycles kept"
        " them."
    ),
    NoHolder.CPP: (
        " after a complete scan of all Python objects: nothing in Python refers to them; they are held by C++ (e.g. a "
        "library's cache)."
    ),
}
"""Ends of the sentence by reason."""
_STORES = {
    "registration": "registered",
    "definition": "defined",
    "cycle": "cycle made",
    "region": "entered",
    "backward": "called",
}


def describe_undecided(verdict: LeakVerdict, summary: Summary, names: SiteNames) -> list[Finding]:
    """Return a finding for each doubt about a device, and each call, the one with the most bytes first."""
    groups: dict[tuple[object, ...], list[Growth]] = {}
    for growth in verdict.undecided:
        call = growth.call if growth.doubt is Doubt.ONE_CALL else None
        groups.setdefault((growth.doubt, call and (call.filename, call.function)), []).append(growth)
    return [_describe_doubt(growths, verdict, summary, names) for growths in groups.values()]


def describe_notes(verdict: LeakVerdict, summary: Summary, names: SiteNames) -> list[Finding]:
    """Return the notes on a device; lines of one holder, or of one function without a holder, are one note."""
    groups: dict[tuple[object, ...], list[Growth]] = {}
    for number, growth in enumerate(verdict.notes):
        key: tuple[object, ...] = (number,)
        if growth.doubt not in (Doubt.ACCUMULATED, Doubt.TAKEN):
            owner = (growth.site.filename, growth.site.function) if growth.holder is None else growth.holder.identity
            is_rare = growth.doubt is Doubt.RARE
            key = growth.doubt, growth.unit, owner, *((growth.arrivals, growth.units) if is_rare else ())
        groups.setdefault(key, []).append(growth)
    return [_describe_note(growths, summary, names) for growths in groups.values()]


def _describe_note(growths: Sequence[Growth], summary: Summary, names: SiteNames) -> Finding:
    growth = _sum_growth(growths)
    title, line = _NOTES[growth.doubt](growth, names), names.site(growth.site)
    if growth.doubt is not Doubt.BOUNDED:
        title = title.replace(line, f"{line}{_count_more_lines(growths)}", 1)
    title += on_device(growth.device, summary)
    sentences = _list_lines(growths, names)
    sentences += [] if growth.holder is None else [describe_holder(growth.holder, names)]
    if growth.doubt is Doubt.ACCUMULATED:
        if _find_accumulating_line(growth) != growth.site:
            sentences = [] if growth.holder is None else [describe_referrers(growth.holder, names)]
            sentences.append(f"Most of it was allocated at {names.site(growth.site)}.")
        sentences += cure_accumulation(growth, names)
    if growth.doubt is Doubt.STOPPED and growth.holder is not None and not _is_optimizer_state(growth.holder):
        cure = cure_holder(growth.holder, growth.kind, growth.device, names)
        sentences.append(" ".join((cure, *describe_store(growth.holder, names))))
    is_cache = growth.holder is not None and is_function_cache(growth.holder)
    has_cure = growth.doubt in (Doubt.STOPPED, Doubt.ACCUMULATED, Doubt.GARBAGE)
    if growth.holder is not None and is_cache and growth.holder.scope == "class attribute" and not has_cure:
        sentences.append(cure_holder(growth.holder, growth.kind, growth.device, names))
    elif growth.holder is not None and growth.doubt in (Doubt.FILLED, Doubt.BOUNDED):
        sentences[-1] = " ".join((sentences[-1], *describe_views(growth.holder, "Its tensors")))
    if growth.doubt is Doubt.GARBAGE:
        sentences.append(cure_garbage("" if growth.holder is None else growth.holder.back_reference))
    if growth.doubt is Doubt.OPTIMIZER_STATE:
        sentences.append(
            "It ends with the parameters, but stays when parameters are frozen again: `del optimizer.state[parameter]`."
        )
    return Finding(
        kind="note",
        title=title,
        device=growth.device,
        bytes=growth.allocated_bytes,
        confidence=None,
        site=_find_accumulating_line(growth),
        stack_id=growth.stack_ids[0],
        sentences=tuple(sentences),
        growth=growth,
        holder=growth.holder,
    )


def _sum_growth(growths: Sequence[Growth]) -> Growth:
    """Return the first of the growths with the bytes and blocks of all of them."""
    return dataclasses.replace(
        growths[0],
        allocated_bytes=sum(growth.allocated_bytes for growth in growths),
        blocks=sum(growth.blocks for growth in growths),
        last=max(growth.last for growth in growths),
    )


def _count_more_lines(growths: Sequence[Growth]) -> str:
    return f" and {units.counted(len(growths) - 1, 'more line')}" if len(growths) > 1 else ""


def _list_lines(growths: Sequence[Growth], names: SiteNames) -> list[str]:
    """Return a sentence on the largest lines of a finding on several lines."""
    if len(growths) == 1:
        return []
    lines = [f"{units.size(growth.allocated_bytes)} at {names.site(growth.site)}" for growth in growths[:_MAX_LINES]]
    omitted = [units.counted(len(growths) - _MAX_LINES, "more line")] if len(growths) > _MAX_LINES else []
    return [f"By line: {'; '.join([*lines, *omitted])}."]


def _find_accumulating_line(growth: Growth) -> Site:
    """Return the line that stores what accumulates, else the line of the loop, else the line of the growth."""
    if growth.doubt is not Doubt.ACCUMULATED or growth.is_joined:
        return growth.site
    line = growth.call if growth.holder is None or growth.holder.store is None else growth.holder.store
    return (
        growth.site
        if line is None or not line.line
        else Site(line.filename, line.line, line.function, line.source, user=True)
    )


def describe_outside(growth: OutsideGrowth, names: SiteNames) -> Finding:
    """Describe growth of host memory outside torch's allocators."""
    title, cure = _describe_pinned_pool(growth) if growth.device == "pinned" else _describe_process(growth, names)
    what = "The pool held" if growth.device == "pinned" else "Memory outside torch's allocators was"
    more = " more than live blocks ever needed" if growth.device == "pinned" else ""
    measured = (
        f"{what} {units.size(growth.last_bytes)}{more} after five sixths of the run, and {units.size(growth.bytes)} "
        "less after a third.",
    )
    return Finding(
        kind="inconclusive",
        title=f"A leak or not? {title}",
        device=growth.device,
        bytes=growth.bytes,
        confidence=None,
        site=None,
        stack_id=0,
        sentences=(*(measured if growth.bytes else ()), cure),
        brief=(cure,),
    )


def _describe_pinned_pool(growth: OutsideGrowth) -> tuple[str, str]:
    return (
        f"The pool of pinned memory grew by {units.size(growth.bytes)} more than live blocks ever needed",
        "The pool rounds sizes up to powers of two and keeps what is freed: allocate pinned buffers once and reuse "
        "them, or pad them to a few sizes.",
    )


def _describe_process(growth: OutsideGrowth, names: SiteNames) -> tuple[str, str]:
    """Return what grew, and what to change."""
    grew = (
        f"the process grew by {units.size(growth.bytes)} that torch's allocators did not allocate, "
        f"{units.size(growth.bytes_per_unit)} per {growth.unit}"
    )
    if growth.holder is None:
        what = "" if growth.is_cpu_recorded else "CPU tensors, which were not recorded, "
        return grew[0].upper() + grew[1:], (
            f"It is memory of {what}C++ or Python objects, or memory that malloc keeps: if it does not grow with "
            "`MALLOC_MMAP_THRESHOLD_=65536` in the environment, it is the latter. `tracemalloc` shows the part of "
            "Python; a profiler of the heap, such as memray with --native, shows that of C++."
        )
    name = names.referrer(growth.holder.name or growth.holder.path)
    if growth.nodes:
        title = f"The autograd graph of `{name}` grows: {growth.nodes:,} nodes{f', and {grew}' if growth.bytes else ''}"
        cure = "Each node keeps host memory: add up `.detach()` or `.item()` of its parts."
        return title, f"Held by {names.referrer(growth.holder.names[0])}. {cure}"
    title = f"Numpy arrays accumulate in {quote(name)}, and {grew}"
    cure = (
        f"Clear or cap {quote(name)}; of a part of an array, store a copy (`.copy()`), as a view keeps the whole array."
    )
    return title, f"{describe_holder(growth.holder, names)} {cure}"


def describe_holder(holder: Holder, names: SiteNames) -> str:
    """Return the referrer paths, with the step of their object scan: since then, sizes in them may have changed."""
    return " ".join([describe_referrers(holder, names), *describe_store(holder, names)])


def describe_referrers(holder: Holder, names: SiteNames) -> str:
    when = "" if holder.step is None else f" (as of step {units.number(holder.step)})"
    referrers = [names.referrer(name) for name in holder.names]
    if len(referrers) == 1:
        return f"Held by {referrers[0]}{when}."
    return f"Held by several{when}: {'; '.join(referrers)}."


def describe_store(holder: Holder, names: SiteNames) -> list[str]:
    """Return a sentence on the line of the program that stores into the object; none if it is unknown."""
    if holder.store is None:
        return []
    subject = {
        "registration": "The hook is registered",
        "cycle": "The cycle is made",
        "region": "The region is entered",
        "definition": "The function that keeps them is defined",
        "backward": "`backward(create_graph=True)` is called",
        "call": f"{quote(names.referrer(holder.name))} is filled",
    }.get(holder.store_kind, f"{quote(names.referrer(holder.name))} is assigned")
    return [f"{subject} at {names.site(holder.store)}."]


def quote_store(kind: str, store: Frame, names: SiteNames) -> str:
    """Return the line that stores into an object, with its source if known; kind: `Holder.store_kind`."""
    return ": ".join(filter(None, (f"{_STORES.get(kind, 'stored')} at {names.site(store)}", names.source(store))))


def describe_no_holder(reason: NoHolder | None, final_scan: FinalScan | None) -> list[str]:
    """Return why the holder is unknown and what to do to find it; nothing for older traces. For CPP, see `cures`."""
    if reason is NoHolder.TRUNCATED and final_scan is not None and final_scan.objects:
        why = f"the final scan ended after {units.counted(final_scan.objects, 'object')}"
        return [f"Holder not found: {why}. {_SEARCH_LONGER}"]
    return [] if reason not in _NO_HOLDER else [f"Holder not found{_NO_HOLDER[reason]}"]


def describe_basis(verdict: LeakVerdict, names: SiteNames) -> str:
    if verdict.unit == "step":
        return f"{units.counted(verdict.units, 'step')} judged"
    if verdict.loop is not None:
        loop_name = f"{names.function(verdict.loop)} ({names.file(verdict.loop.filename)})"
        return f"{units.counted(verdict.units, 'iteration')} of {loop_name} judged, since the trace has no steps"
    return "no steps in the trace and no loop detected: judged by allocations"


def growth_data(growth: Growth) -> dict[str, Any]:
    """Return the fields of undecided growth and notes that other findings do not have, as plain values."""
    return {
        "doubt": growth.doubt.value,
        "leak_kind": growth.kind,
        "unit": growth.unit,
        "blocks": growth.blocks,
        "arrivals": growth.arrivals,
        "units_judged": growth.units,
        "first": growth.first,
        "last": growth.last,
        "holder": None if growth.holder is None else dataclasses.asdict(growth.holder),
        "no_holder": None if growth.no_holder is None else growth.no_holder.value,
        "call": None if growth.call is None else dataclasses.asdict(growth.call),
        "size": growth.size,
        "bound": growth.bound,
        "bytes_when_full": growth.bytes_when_full,
    }


def _is_optimizer_state(holder: Holder) -> bool:
    """Return whether blocks are held by the `state` of an optimizer of torch, which is kept on purpose."""
    return holder.name.endswith(".state") and [container.type for container in holder.containers[:1]] == ["defaultdict"]


def _describe_doubt(growths: Sequence[Growth], verdict: LeakVerdict, summary: Summary, names: SiteNames) -> Finding:
    first = growths[0]
    total = _sum_growth(growths)
    title, decision = _DOUBTS[first.doubt](total, names)
    if first.holder is not None and first.holder.through == AUTOCAST:
        title, decision = f"keeps {units.size(first.allocated_bytes)} in autocast's cache", AUTOCAST_CURE
    elif first.doubt in (Doubt.RARE, Doubt.SHORT):
        full = describe_full(merge_leaks([growth.leak for growth in growths if growth.leak]), summary, names)
        decision += f" If it goes on, {full}." if full else ""
    size, blocks = units.size(total.allocated_bytes), units.counted(total.blocks, "block")
    more = _count_more_lines(growths)
    basis = describe_basis(verdict, names) if first.unit == verdict.unit else _describe_units(first)
    sentences = [f"{size} in {blocks}, live {describe_end(first.unit)} ({basis}).", *_list_lines(growths, names)]
    if first.holder is not None:
        sentences.append(describe_holder(first.holder, names))
        others = {growth.holder.names for growth in growths if growth.holder is not None} - {first.holder.names}
        if others:
            sentences.append(f"The rest is held by {'; '.join(names.referrer(other[0]) for other in sorted(others))}.")
    if first.doubt is Doubt.JOINED and first.call is not None and first.call.filename:
        sentences.append(f"The parts are concatenated at {names.site(first.call)}.")
    sentences += describe_no_holder(first.no_holder, summary.final_scan)
    advice = ""
    if first.holder is not None and first.kind != GROWING and first.holder.through != AUTOCAST:
        cure = cure_holder(first.holder, first.kind, first.device, names)
        advice = f"If this is a leak: {cure[:1].lower()}{cure[1:]}"
        sentences.append(advice)
    sentences.append(decision)
    return Finding(
        kind="inconclusive",
        title=f"A leak or not? {names.site(first.site)}{more} {title}{on_device(first.device, summary)}",
        device=first.device,
        bytes=total.allocated_bytes,
        confidence=None,
        site=first.site,
        stack_id=first.stack_ids[0],
        sentences=tuple(sentences),
        brief=(advice, decision, *sentences[:-1][:2]),
        growth=first,
        holder=first.holder,
    )


def describe_full(leak: Leak, summary: Summary, names: SiteNames) -> str:
    """Return when the device is full, such as "cuda:0 is full in about 12 steps, in step 91 (30 s)"; "" if unknown."""
    # No forecast for "cpu": other programs share the memory of the machine. None after memory ran out.
    device = next((device for device in summary.devices if device.device == leak.device), None)
    if leak.forecast_seconds is None or device is None or leak.device == "cpu" or device.failure is not None:
        return ""
    seconds = units.duration(leak.forecast_seconds)
    # Each longer buffer leaves free memory that is too small for the next one: when that is missing is unknown.
    about = "at the latest in about" if leak.kind == GROWING else "in about"
    if leak.unit == "second":
        return f"{leak.device} is full {about} {seconds}"
    count = max(round(leak.forecast_seconds / leak.seconds_per_unit), 1)
    when = f", in step {units.number(summary.steps - 1 + count)}" if leak.unit == "step" else ""
    if leak.unit == "iteration" and device.leaks.loop is not None:
        when = f" of {names.function(device.leaks.loop)}()"
    return f"{leak.device} is full {about} {units.counted(count, leak.unit)}{when} ({seconds})"


def on_device(device: str, summary: Summary) -> str:
    """Return " on cpu"; "" for the only device, or the only GPU."""
    gpus = [other.device for other in summary.devices if other.device not in HOST_DEVICES]
    is_obvious = gpus == [device] or len(summary.devices) == 1
    return "" if is_obvious else f" on {device}"


def describe_end(unit: str) -> str:
    """Return when the live blocks were judged."""
    return {"step": "when the last step ended", "iteration": "in the last iteration"}.get(
        unit, "at the last allocation"
    )


def _describe_units(growth: Growth) -> str:
    """Return the basis of growth in a part of the run that has another unit than the first part."""
    return "judged by allocations" if growth.unit == "second" else f"{units.counted(growth.units, growth.unit)} judged"


def _describe_one_call(growth: Growth, names: SiteNames) -> tuple[str, str]:
    assert growth.call is not None
    call = f"{names.function(growth.call)}()"
    to_cpu = "" if growth.device == "cpu" else "`.cpu()`, "
    return (
        f"keeps {units.size(growth.allocated_bytes)} until {call} returns",
        f"A leak if {call} runs as long as the program; none if it is one request or one pass. Record several calls of "
        f"{call} to decide it, or keep less while it runs: {to_cpu}`.detach()`, or results in parts.",
    )


def _describe_joined(growth: Growth, names: SiteNames) -> tuple[str, str]:
    size = units.size(growth.allocated_bytes)
    to_cpu = "" if growth.device == "cpu" else ", or move it to the CPU (`.cpu()`)"
    return (
        f"collected {size}, which were then concatenated and released",
        "A leak if the program collects as long as it runs; none if the collection has an end. To hold less until "
        f"then, reduce each part before it is collected{to_cpu}.",
    )


def _describe_load(growth: Growth, names: SiteNames) -> tuple[str, str]:
    return (
        f"holds more and more blocks, {units.counted(growth.blocks, 'block')} at last, though each is freed",
        "A leak if something is registered or queued again in each step; none if the input grew. Record the same input "
        "for longer to decide it.",
    )


def _describe_one_pass(growth: Growth, names: SiteNames) -> tuple[str, str]:
    return (
        f"kept {units.size(growth.allocated_bytes)} in what looks like one pass over the layers of a model",
        "One pass is not a loop: each layer was called a few times at most. None if backward or the end of the pass "
        f"frees it, or if `torch.no_grad()` is missing. Record {_STEPS_TO_RECORD} passes to decide it.",
    )


def _describe_short(growth: Growth, names: SiteNames) -> tuple[str, str]:
    if growth.unit == "second":
        return (
            f"kept {units.size(growth.allocated_bytes)}, in code that no loop was seen to repeat",
            "One pass is not a loop: call alloctrace.step() at the end of each iteration of it.",
        )
    return (
        f"kept {units.size(growth.allocated_bytes)} in {units.counted(growth.units, growth.unit)}, too few to tell",
        f"At least {MIN_UNITS} are needed: record {_STEPS_TO_RECORD} {growth.unit}s.",
    )


def _describe_rare(growth: Growth, names: SiteNames) -> tuple[str, str]:
    if growth.is_model:
        return (
            f"made models or optimizers in {growth.arrivals} of {units.counted(growth.units, growth.unit)}, and all "
            f"are kept: {units.size(growth.allocated_bytes)}",
            "The cache keeps models that are done; this is a leak if models are made as long as the program runs."
            if growth.holder is not None and is_function_cache(growth.holder)
            else "A leak if models are made as long as the program runs; none if their number is fixed, such as one "
            "for each fold. To hold less, keep only the best model or copies on the CPU.",
        )
    return (
        f"kept {units.size(growth.allocated_bytes)}, allocated in {growth.arrivals} of "
        f"{units.counted(growth.units, growth.unit)}",
        "A leak if it goes on as long as the program runs; none if there is a fixed number of them. Record "
        f"twice as many {growth.unit}s to decide it.",
    )


def _describe_few(growth: Growth, names: SiteNames) -> tuple[str, str]:
    return (
        f"kept {units.size(growth.allocated_bytes)}, too few blocks to tell",
        "Record a longer run to decide it.",
    )


def _describe_late(growth: Growth, names: SiteNames) -> tuple[str, str]:
    since = "" if growth.unit == "second" else f" from {growth.unit} {units.number(round(growth.first))} on"
    return (
        f"grew by {units.size(growth.allocated_bytes)}{since}, too late to tell",
        "These blocks may still be freed, at an age that the recording did not reach: record a run twice as long.",
    )


def _describe_out_of_memory(growth: Growth, names: SiteNames) -> tuple[str, str]:
    return (
        f"grew by {units.size(growth.allocated_bytes)} until an allocation failed, and not since",
        "A leak if it stopped because memory ran out; none if it was complete. Free what it keeps, or record on a "
        "larger device to decide it.",
    )


def _describe_bursts(growth: Growth, names: SiteNames) -> tuple[str, str]:
    return (
        f"grew by {units.size(growth.allocated_bytes)} in bursts, with long pauses",
        "A leak if the bursts go on; none if they set something up. Record a longer run to decide it.",
    )


def _describe_loading(growth: Growth, names: SiteNames) -> tuple[str, str]:
    return (
        f"kept {units.size(growth.allocated_bytes)}, and hardly anything that was allocated there was freed",
        "This may be loading, of data or of a model, or a leak. Record on until the program does its work, or call "
        "alloctrace.step() at the end of each iteration.",
    )


def _describe_compacted(growth: Growth, names: SiteNames) -> tuple[str, str]:
    return (
        f"may hold a buffer that grows, {units.size(growth.allocated_bytes)} at last",
        "Most of the evidence is compacted into sums: record a longer run to decide it.",
    )


_DOUBTS: dict[Doubt, Callable[[Growth, SiteNames], tuple[str, str]]] = {
    Doubt.ONE_CALL: _describe_one_call,
    Doubt.JOINED: _describe_joined,
    Doubt.LOAD: _describe_load,
    Doubt.ONE_PASS: _describe_one_pass,
    Doubt.SHORT: _describe_short,
    Doubt.RARE: _describe_rare,
    Doubt.FEW: _describe_few,
    Doubt.LATE: _describe_late,
    Doubt.OUT_OF_MEMORY: _describe_out_of_memory,
    Doubt.BURSTS: _describe_bursts,
    Doubt.LOADING: _describe_loading,
    Doubt.COMPACTED: _describe_compacted,
}
"""By doubt: what the line did, and what would decide it."""


def _note_bounded(growth: Growth, names: SiteNames) -> str:
    assert growth.holder is not None
    return (
        f"{names.site(growth.site)} fills `{names.referrer(growth.holder.name)}`: {units.number(growth.size)} of "
        f"{units.number(growth.bound)}, about {units.size(growth.bytes_when_full)} when full"
    )


def _note_optimizer_state(growth: Growth, names: SiteNames) -> str:
    return (
        f"{names.site(growth.site)} made {units.size(growth.allocated_bytes)} of optimizer state for parameters that "
        "were new to it"
    )


def _note_stopped(growth: Growth, names: SiteNames) -> str:
    size = units.size(growth.allocated_bytes)
    until = "" if growth.unit == "second" else f" until {growth.unit} {units.number(round(growth.last))}"
    return f"{names.site(growth.site)} grew by {size}{until}, and not since"


def _note_filled(growth: Growth, names: SiteNames) -> str:
    return (
        f"{names.site(growth.site)} grew to {units.size(growth.allocated_bytes)} until {growth.unit} "
        f"{units.number(round(growth.last))}, and hardly since"
    )


def _note_garbage(growth: Growth, names: SiteNames) -> str:
    return (
        f"{names.site(growth.site)} left {units.size(growth.allocated_bytes)} in reference cycles, which only Python's "
        "garbage collector frees"
    )


def _note_rare(growth: Growth, names: SiteNames) -> str:
    return (
        f"{names.site(growth.site)} kept {units.size(growth.allocated_bytes)}, allocated in only {growth.arrivals} of "
        f"{units.counted(growth.units, growth.unit)}"
    )


def _note_accumulated(growth: Growth, names: SiteNames) -> str:
    size, peak = units.size(growth.allocated_bytes), units.size(growth.peak_bytes)
    line = _find_accumulating_line(growth)
    place = names.site(line)
    is_in_place = growth.call is not None and place == names.site(growth.call)
    loop = "" if growth.call is None or is_in_place else f" of {names.function(growth.call)}()"
    arrivals = f"{units.counted(growth.arrivals, growth.unit)}{loop}"
    if growth.is_joined:
        return f"{place} joins a longer and longer tensor: at the peak, {size} of {peak}, after {arrivals}"
    more = "released together later"
    if growth.join is not None:
        is_near = (growth.join.filename, growth.join.function) == (line.filename, line.function)
        join = f"line {growth.join.line}" if is_near else names.site(growth.join)
        more = f"which {join} joins into {units.size(growth.join_bytes)} more"
    if growth.other_peak_bytes:
        more += f" (peak without them: {units.size(growth.other_peak_bytes)})"
    return f"{place} accumulates: at the peak, {size} of {peak} were blocks of {arrivals}, {more}"


def _note_taken(growth: Growth, names: SiteNames) -> str:
    return (
        f"{names.site(growth.site)} grew to {units.size(growth.allocated_bytes)}, by as much as another line "
        "allocated less each time, as if it took from there: it ends with the rest"
    )


_NOTES: dict[Doubt, Callable[[Growth, SiteNames], str]] = {
    Doubt.BOUNDED: _note_bounded,
    Doubt.OPTIMIZER_STATE: _note_optimizer_state,
    Doubt.TAKEN: _note_taken,
    Doubt.STOPPED: _note_stopped,
    Doubt.FILLED: _note_filled,
    Doubt.GARBAGE: _note_garbage,
    Doubt.ACCUMULATED: _note_accumulated,
    Doubt.RARE: _note_rare,
}
