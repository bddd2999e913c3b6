"""Failed allocations as text and as JSON (fields: docs/json.md): request, free memory, cause and remedy."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from rich.text import Text

from ..analysis.advice import Advisor
from ..analysis.free_memory import oom as rules
from ..analysis.free_memory.failed_allocations import ENDED, RETRIED
from ..analysis.free_memory.fragmentation import Fragmentation
from ..analysis.free_memory.oom import OutOfMemory
from ..reading.sites import Site
from . import units
from .finding import Finding
from .fragmentation import describe_pinner, write_pinners
from .oom_cause_text import CURE_OF_LARGER_INPUT
from .oom_causes import describe_cause, describe_larger_request, describe_leading_leak
from .package_lines import describe_library_call
from .screen import Screen
from .site_names import SiteNames
from .tables import records, rows

NONE = "No request ran out of memory in this trace."
_MAX_SITES = 5
_MAX_PINNERS = 3
_VARIABLE = "PYTORCH_ALLOC_CONF"
_LIMIT_CALL, _LIMIT_SETTING = "torch.cuda.set_per_process_memory_fraction", "per_process_memory_fraction"
# Name, character and ASCII character.
_CHART_PARTS = (
    ("allocated", "█", "#"),
    ("cached here", "▒", "%"),
    ("cached for other pools and streams", "░", ":"),
    ("outside PyTorch", "▞", "+"),
    ("free", "·", "."),
)


@dataclasses.dataclass(frozen=True)
class _Advice:
    title: str
    why: list[str]
    help: list[str]
    pinned: Fragmentation | None = None
    """Fragmentation whose pinners are written between `why` and `help`."""
    line: Site | None = None
    """Line to change; None: the line of the request."""
    stack_id: int = 0
    """Stack of `line`."""


def oom_finding(failure: OutOfMemory, names: SiteNames, advisor: Advisor) -> Finding:
    advice, leak = _advise(failure, names, advisor), advisor.leading_leak(failure)
    return Finding(
        kind="oom",
        title=advice.title,
        device=failure.device,
        bytes=failure.requested_bytes,
        confidence=None,
        site=advice.line or failure.site,
        stack_id=failure.request.stack_id if advice.line is None else advice.stack_id,
        sentences=_list_sentences(failure, advice, names),
        brief=(
            advice.help[0],
            *_describe_pinners(advice, names),
            " ".join((*advice.help[1:], _describe_request(failure, advice, names), *advice.why)),
        ),
        holder=None if leak is None else leak.holder,
    )


def oom_title(failure: OutOfMemory, names: SiteNames, advisor: Advisor) -> str:
    """Return the cause of a failed allocation as a sentence without a full stop."""
    return _advise(failure, names, advisor).title


def sentences(failure: OutOfMemory, names: SiteNames, advisor: Advisor) -> tuple[str, ...]:
    """Return the figures, the cause and the remedy."""
    return _list_sentences(failure, _advise(failure, names, advisor), names)


def _list_sentences(failure: OutOfMemory, advice: _Advice, names: SiteNames) -> tuple[str, ...]:
    request, pinning = _describe_request(failure, advice, names), _describe_pinners(advice, names)
    return (request, *advice.why, *pinning, *advice.help, *_describe_outcome(failure))


def _describe_pinners(advice: _Advice, names: SiteNames) -> list[str]:
    """Return a sentence on the line that pins the most memory; none if nothing does."""
    top_rows = [] if advice.pinned is None else rows(advice.pinned.pinners_by_line.head(1))
    return [describe_pinner(row, names) for row in top_rows]


def _describe_library_call(failure: OutOfMemory, advice: _Advice, names: SiteNames) -> list[str]:
    """Name the module and the library line of a line that only calls a library, such as trainer.train()."""
    largest = failure.top_sites[0] if failure.top_sites else None
    if largest is None or failure.library_call is None or largest.site != (advice.line or failure.site):
        return []
    call = describe_library_call(failure.library_call, names)
    return [f"This line holds {units.size(largest.bytes)}: {call}."]


def _advise(failure: OutOfMemory, names: SiteNames, advisor: Advisor) -> _Advice:
    advice = _advise_on_cause(failure, names, advisor)
    why = [*_describe_limit(failure, names), *advice.why, *_describe_library_call(failure, advice, names)]
    raising = _advise_raising_limit(failure, advice, names)
    # If the program has no cause, raising the limit is the first remedy.
    remedies = [*raising, *advice.help] if failure.cause is None else [*advice.help, *raising]
    return dataclasses.replace(advice, why=why, help=remedies)


def _advise_on_cause(failure: OutOfMemory, names: SiteNames, advisor: Advisor) -> _Advice:
    leak = advisor.leading_leak(failure)
    cause = describe_cause(failure, names) if leak is None else describe_leading_leak(leak, failure, names)
    if cause is not None:
        return _Advice(cause.title, cause.why, cause.help, line=cause.site, stack_id=cause.stack_id)
    if failure.verdict == rules.ELSEWHERE:
        return _advise_elsewhere(failure, names)
    if failure.verdict == rules.FRAGMENTED:
        return _advise_fragmented(failure, names, advisor)
    return {rules.OUTSIDE: _advise_outside, rules.LIMIT: _advise_limit}[failure.verdict](failure, names)


def _describe_request(failure: OutOfMemory, advice: _Advice, names: SiteNames) -> str:
    requested, segment = units.size(failure.requested_bytes), units.size(failure.segment_bytes)
    at = "" if advice.line in (None, failure.site) else f" at {names.site(failure.site)}"
    step = "" if failure.step is None else f" in step {failure.step}"
    request_text = f"{requested} was requested{at}{step}"
    unit = failure.mapping_unit_bytes
    if unit is not None and failure.driver_bytes != failure.requested_bytes:
        request_text += f" ({units.size(failure.driver_bytes)} from the driver, in units of {units.size(unit)})"
    elif segment != requested:
        request_text += f" (a segment of {segment} from the driver)"
    largest = f"the largest free block for it was {units.size(failure.largest_free_bytes)}"
    return f"{request_text}; {largest}, and the device had {units.size(failure.device_free_bytes)} free."


def _advise_fragmented(failure: OutOfMemory, names: SiteNames, advisor: Advisor) -> _Advice:
    title = (
        f"{failure.device} is fragmented: no free piece was large enough for the"
        f" {units.size(failure.requested_bytes)} requested at {names.site(failure.site)}"
    )
    if failure.limit_bytes is not None:
        title = f"{_limit_title(failure, names)}, and no free piece was large enough"
    larger = describe_larger_request(failure)
    if larger:
        title += f"; {larger}"
    free, largest = units.size(failure.here.free_bytes), units.size(failure.here.largest_free_bytes)
    available = "the limit left" if failure.limit_bytes else "the device had left"
    if not failure.is_free_here_enough:
        available += f" and {units.size(failure.elsewhere.free_bytes)} in other pools or streams"
    why = [
        f"{free} was free in the request's own pool, {largest} in the largest piece: enough with what {available},"
        " but not in one piece.",
    ]
    if failure.here.releasable_bytes > failure.here.stranded_bytes and failure.request.pool != (0, 0):
        why.append("It is a private pool, which keeps its free segments for as long as the program keeps the pool.")
        return _Advice(title, why, ["What helps: delete the pool when it is not in use."])
    order = "allocate long-lived memory before large memory"
    helps = f"What helps: {CURE_OF_LARGER_INPUT if larger else ''}"
    if failure.settings.expandable_segments:
        return _Advice(title, [*why, "Expandable segments are already on."], [f"{helps}{order}."], failure.here)
    advice = advisor.on_request(failure)
    if advice.why_not:
        suggestion = f"It may also help to set {_VARIABLE}=expandable_segments:True (not simulated)."
        return _Advice(title, why, [f"{helps}{order}.", suggestion, advice.why_not], failure.here)
    if not advice.helping:
        tried = " and ".join(advice.tried)
        no_setting = f"No setting would have helped: {tried} {'was' if len(advice.tried) == 1 else 'were'} simulated."
        return _Advice(title, why, [f"{helps}{order}.", no_setting], failure.here)
    if failure.limit_bytes is not None and not advice.is_certain:
        outcome = advice.helping[0]
        limit_bytes = max(outcome.peak_reserved_bytes[1], failure.limit_bytes[0])
        condition = (
            f"With {_VARIABLE}={outcome.setting.text} this request and all before it would have been served if the"
            f" limit allows {units.minimum(limit_bytes)}, as a model of torch's allocator shows."
        )
        return _Advice(title, why, [f"{helps}{order}.", condition], failure.here)
    settings = advice.settings
    alternative = f" (or, if that is not possible, {settings[1]})" if len(settings) > 1 else ""
    outcome = advice.helping[0]
    effect = (
        f"With {settings[0]} this request and all before it would have been served, with"
        f" {units.sizes(*outcome.peak_reserved_bytes)} reserved at most, as a model of torch's allocator shows."
    )
    return _Advice(
        title, why, [f"{helps}set {_VARIABLE}={settings[0]}{alternative}, or {order}.", effect], failure.here
    )


def _advise_elsewhere(failure: OutOfMemory, names: SiteNames) -> _Advice:
    pools = failure.elsewhere.pools
    largest_pool = int(pools["free_bytes"].argmax())
    pool, stream = pools["segment_pool_id"][largest_pool], int(pools["stream"][largest_pool])
    largest = units.size(failure.elsewhere.largest_free_bytes)
    location = _describe_location(pool, stream)
    why = [
        f"{units.size(failure.elsewhere.free_bytes)} was free in other pools or streams, {largest} in the largest"
        f" piece; {units.size(int(pools['free_bytes'][largest_pool]))} of it belongs to {location}.",
        f"The request was for {_describe_location(failure.request.pool, failure.request.stream)}, which cannot use it.",
    ]
    title = (
        f"{units.size(failure.elsewhere.free_bytes)} is free on {failure.device} in other pools or streams, which"
        f" {_describe_refused(failure, names)} cannot use"
    )
    if pool == tuple(failure.request.pool):
        one_stream = "What helps: allocate on one stream, or free what is live on the other one."
        return _Advice(title, why, [one_stream], failure.elsewhere)
    if pool != (0, 0):
        remedy = f"delete pool {pool} (its MemPool, the CUDA graphs captured into it) when it is not in use"
        if failure.pool_sites:
            why.append(f"Its live blocks were allocated mostly at {names.site(failure.pool_sites[0].site)}.")
        return _Advice(title, why, [f"What helps: {remedy}, or allocate both from one pool."])
    if failure.elsewhere.releasable_bytes:
        returnable = units.size(failure.elsewhere.releasable_bytes)
        why.append(f"While a pool is in use, torch returns nothing from the others; {returnable} could be returned.")
        return _Advice(title, why, ["What helps: torch.cuda.empty_cache() before the pool is used."])
    return _Advice(
        title, why, ["What helps: free the live blocks next to it, or do not use a pool."], failure.elsewhere
    )


def _describe_location(pool: tuple[int, int], stream: int) -> str:
    where = "the default stream" if stream == 0 else f"stream {stream:#x}"
    return where if tuple(pool) == (0, 0) else f"{where} in pool {tuple(pool)}"


def _advise_outside(failure: OutOfMemory, names: SiteNames) -> _Advice:
    outside, others = units.size(failure.outside_bytes or 0), failure.other_processes_bytes
    user = f"Other processes use {units.size(others)}" if others else f"{outside} is used outside PyTorch"
    of_which = f"{units.size(others)} of it by other processes" if others else "by other processes or libraries"
    why = (
        f"{outside} is used outside PyTorch, {of_which}; torch itself holds {units.size(failure.reserved_bytes)} of"
        f" {units.size(failure.device_bytes or 0)}."
    )
    return _Advice(
        f"{user} on {failure.device}, which refused {_describe_refused(failure, names)}",
        [why],
        ["What helps: stop the other processes (nvidia-smi lists them), or use a device that nothing else uses."],
    )


def _advise_limit(failure: OutOfMemory, names: SiteNames) -> _Advice:
    usage = (
        f"torch holds {units.size(failure.reserved_bytes)}; {units.size(failure.allocated_bytes)} of that is allocated."
    )
    return _Advice(_limit_title(failure, names), [usage], [])


def _limit_title(failure: OutOfMemory, names: SiteNames) -> str:
    return (
        f"The memory limit of this process on {failure.device}, at most {units.size(failure.usable_bytes)}, refused"
        f" {_describe_refused(failure, names)}"
    )


def _describe_refused(failure: OutOfMemory, names: SiteNames) -> str:
    return f"{units.size(failure.requested_bytes)} at {names.site(failure.site)}"


def _describe_limit(failure: OutOfMemory, names: SiteNames) -> list[str]:
    if failure.limit_bytes is None:
        return []
    limits = " and ".join(units.size(size) for size in failure.limit_bytes)
    limit = failure.limit
    if limit.site is not None:
        origin = f"{_LIMIT_CALL} at {names.site(limit.site)}"
    elif limit.variable:
        origin = f"{_LIMIT_SETTING} in {limit.variable}"
    else:
        origin = f"{_LIMIT_CALL}, or {_LIMIT_SETTING} in {_VARIABLE}"
    return [f"The driver had enough; the memory limit of this process, between {limits}, refused it ({origin})."]


def _advise_raising_limit(failure: OutOfMemory, advice: _Advice, names: SiteNames) -> list[str]:
    """Return a sentence on the memory limit of the process if it refused the request."""
    if failure.limit_bytes is None:
        return []
    origin = f"find the call of {_LIMIT_CALL}"
    if failure.limit.site is not None:
        origin = f"set at {names.site(failure.limit.site)}"
    elif failure.limit.variable:
        origin = f"{_LIMIT_SETTING} in {failure.limit.variable}"
    if not advice.help:
        return [f"What helps: raise the memory limit ({origin}), or use less memory."]
    return [f"{'Or' if failure.cause else 'What helps:'} raise the memory limit ({origin})."]


def _describe_outcome(failure: OutOfMemory) -> list[str]:
    request = failure.request
    if request.outcome == ENDED:
        return []
    if request.outcome_ns is None:
        return ["The program went on."]
    later = f"{units.duration((request.outcome_ns - request.time_ns) / 1e9)} later (event {request.outcome_seq:,})"
    if request.outcome == RETRIED:
        return [f"The program went on: a request of this size was served {later}."]
    return [f"The program went on with smaller requests {later}."]


def oom_data(failure: OutOfMemory, names: SiteNames, advisor: Advisor, top: int) -> dict[str, Any]:
    return {
        **oom_row(failure),
        "title": oom_title(failure, names, advisor),
        "sentences": list(sentences(failure, names, advisor)),
        "settings_that_help": list(advisor.on_request(failure).settings) if failure.verdict == rules.FRAGMENTED else [],
        "top_sites": [dataclasses.asdict(site) for site in failure.top_sites[:top]],
        "pinners_by_line": records(failure.here.pinners_by_line.head(top)),
        "pools_elsewhere": records(failure.elsewhere.pools),
    }


def oom_row(failure: OutOfMemory) -> dict[str, Any]:
    return {name: figure(failure) for name, figure in _ROW.items()}


_ROW: dict[str, Callable[[OutOfMemory], Any]] = {
    "seq": lambda failure: failure.seq,
    "time_ns": lambda failure: failure.request.time_ns,
    "device": lambda failure: failure.device,
    "step": lambda failure: failure.step,
    "verdict": lambda failure: failure.verdict,
    "cause": lambda failure: failure.cause,
    "filename": lambda failure: failure.site.filename,
    "line": lambda failure: failure.site.line,
    "function": lambda failure: failure.site.function,
    "source": lambda failure: failure.site.source,
    "stack_id": lambda failure: failure.request.stack_id,
    "backward": lambda failure: failure.request.backward,
    "node_type": lambda failure: failure.request.node_type,
    "requested_bytes": lambda failure: failure.requested_bytes,
    "segment_bytes": lambda failure: failure.segment_bytes,
    "driver_bytes": lambda failure: failure.driver_bytes,
    "largest_free_bytes": lambda failure: failure.largest_free_bytes,
    "stream": lambda failure: failure.request.stream,
    "pool": lambda failure: list(failure.request.pool),
    "device_free_bytes": lambda failure: failure.device_free_bytes,
    "device_bytes": lambda failure: failure.device_bytes,
    "reserved_bytes": lambda failure: failure.reserved_bytes,
    "allocated_bytes": lambda failure: failure.allocated_bytes,
    "free_here_bytes": lambda failure: failure.here.free_bytes,
    "releasable_here_bytes": lambda failure: failure.here.releasable_bytes,
    "stranded_here_bytes": lambda failure: failure.here.stranded_bytes,
    "free_elsewhere_bytes": lambda failure: failure.elsewhere.free_bytes,
    "largest_free_elsewhere_bytes": lambda failure: failure.elsewhere.largest_free_bytes,
    "outside_bytes": lambda failure: failure.outside_bytes,
    "other_processes_bytes": lambda failure: failure.other_processes_bytes,
    "outcome": lambda failure: failure.request.outcome,
    "outcome_seq": lambda failure: failure.request.outcome_seq,
}
COLUMNS = tuple(_ROW)


def write_ooms(
    failures: Sequence[OutOfMemory], advisor: Advisor, screen: Screen, names: SiteNames, begin_ns: int, *, all_of: bool
) -> None:
    """Write failed allocations in order; `all_of`: they are all of the trace."""
    if not failures:
        screen.text(NONE)
        return
    if not all_of:
        last = units.last(len(failures), "failed allocation")
        screen.text(f"{last.capitalize()} (--top 0 shows all):", style="dim")
    for number, failure in enumerate(failures):
        if number or not all_of:
            screen.blank()
        _write_oom(failure, advisor, screen, names, begin_ns)


def _write_oom(failure: OutOfMemory, advisor: Advisor, screen: Screen, names: SiteNames, begin_ns: int) -> None:
    when = f"at {units.duration((failure.request.time_ns - begin_ns) / 1e9)}"
    if failure.step is not None:
        when += f" in step {failure.step}"
    advice = _advise(failure, names, advisor)
    screen.text(
        Text.assemble(("OUT OF MEMORY", "bold red"), f"  {failure.device} {when}: ", (advice.title, "bold")), hanging=2
    )
    line = advice.line or failure.site
    screen.text(names.site(line) + (_describe_backward(failure) if line == failure.site else ""), 2)
    source = names.source(line)
    if source:
        screen.source(source, 4)
    screen.frames(names.stack(failure.request.stack_id if line == failure.site else advice.stack_id), 4)
    for sentence in (_describe_request(failure, advice, names), *advice.why):
        screen.text(sentence, 2)
    if advice.pinned is not None:
        write_pinners(advice.pinned, screen, names, 4, _MAX_PINNERS)
    for sentence in (*advice.help, *_describe_outcome(failure)):
        screen.text(sentence, 2)
    _write_chart(failure, screen)
    if failure.top_sites:
        screen.text("Lines that held the most:", 2)
    for site in failure.top_sites[:_MAX_SITES]:
        screen.text(f"{units.size(site.bytes):>9}  {names.holder(site)}", 4, hanging=15)
        source = names.source(site.site)
        if source:
            screen.source(source, 15)
        screen.frames(names.stack(site.stack_id), 15)


def _describe_backward(failure: OutOfMemory) -> str:
    node_type = failure.request.node_type.rsplit("::", 1)[-1]
    if not node_type:
        return ""
    return f" ({'in its backward' if failure.request.backward else 'in backward'}, {node_type})"


def _write_chart(failure: OutOfMemory, screen: Screen) -> None:
    if failure.device_bytes is None or failure.outside_bytes is None:
        return
    cached_here, cached_elsewhere = failure.here.free_bytes, failure.elsewhere.free_bytes
    used_bytes = max(failure.reserved_bytes - cached_here - cached_elsewhere, 0)
    sizes = (used_bytes, cached_here, cached_elsewhere, failure.outside_bytes, failure.device_free_bytes)
    # `sum(sizes)` limits the width of the bar if a hostile trace has contradictory numbers.
    total_bytes = max(failure.device_bytes, sum(sizes), 1)
    width = max(min(screen.width - 6, 72), 10)
    bar, legend = "", []
    end = 0
    for (name, character, ascii_character), size in zip(_CHART_PARTS, sizes, strict=True):
        part_character = ascii_character if screen.plain else character
        begin, end = end, end + size
        bar += part_character * (round(end * width / total_bytes) - round(begin * width / total_bytes))
        if size:
            legend.append(f"{part_character} {name} {units.size(size)}")
    screen.text(Text(bar, style="green"), 2)
    screen.text(", ".join(legend), 2, style="dim")
