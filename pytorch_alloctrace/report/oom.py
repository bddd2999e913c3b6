"""Failed allocations in words: what was requested, what was free, why that was not enough, and what to do about it.

docs/json.md has the fields of the JSON; the CSV has those that are no lists or sentences.
"""

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
from ..analysis.leaks.leak import Leak
from . import units
from .finding import Finding
from .fragmentation import pinned, write_pinners
from .screen import Screen
from .site_names import SiteNames
from .tables import records, rows

NONE = "No request ran out of memory in this trace."
_SHOWN_SITES = 5
_SHOWN_PINNERS = 3
_KEPT_STEPS = 3
"""Blocks of one line from this many steps are kept from step to step."""
_LEAKED = 0.25
"""The memory is full of a leak that has at least this share of it."""
_SET_UP = 0.8
"""A smaller batch is no advice where at least this share does not depend on it."""
_VARIABLE = "PYTORCH_ALLOC_CONF"
_PARTS = (
    ("allocated", "█", "#"),
    ("cached here", "▒", "%"),
    ("cached for other pools and streams", "░", ":"),
    ("outside PyTorch", "▞", "+"),
    ("free", "·", "."),
)
"""The parts of a device's chart: what it is, its sign, and its sign in ASCII."""


@dataclasses.dataclass(frozen=True)
class _Words:
    """What is said about a verdict."""

    why: list[str]
    help: list[str]
    pinned: Fragmentation | None = None
    """Its pinners are named between the two."""


def oom_finding(found: OutOfMemory, names: SiteNames, advisor: Advisor, leaks: Sequence[Leak] = ()) -> Finding:
    """The failed allocation in words. leaks: of its device."""
    when = f" in step {found.step}" if found.step is not None else ""
    filling = next((leak for leak in leaks if _fills(leak, found)), None)
    why = found.verdict if filling is None else f"full, for {names.site(filling.line)} leaks"
    return Finding(
        kind="oom",
        title=f"{names.site(found.site)}: {found.device} refused {units.size(found.requested_bytes)}{when}: {why}",
        device=found.device,
        bytes=found.requested_bytes,
        confidence=None,
        site=found.site,
        stack_id=found.request.stack_id,
        sentences=sentences(found, names, advisor, filling),
    )


def _fills(leak: Leak, found: OutOfMemory) -> bool:
    """Whether a leak is what the memory was full of."""
    return found.verdict == rules.FULL and not leak.minor and leak.allocated_bytes >= _LEAKED * found.allocated_bytes


def sentences(found: OutOfMemory, names: SiteNames, advisor: Advisor, filling: Leak | None = None) -> tuple[str, ...]:
    """Return the verdict with its figures, and what to do. filling: the leak that the memory was full of."""
    words = _words(found, names, advisor)
    if filling is not None:
        share = units.share(filling.allocated_bytes, found.allocated_bytes)
        leaked = f"{units.size(filling.allocated_bytes)} ({share}) has leaked at {names.site(filling.line)}"
        words = _Words([words.why[0]], [f"{leaked}: what helps is to let go of it. See the leak below."])
    first = rows(words.pinned.pinners_by_line.head(1)) if words.pinned is not None else []
    pinning = [pinned(row, names) for row in first]
    return (_requested(found), *words.why, *pinning, *words.help, *_outcome(found))


def _words(found: OutOfMemory, names: SiteNames, advisor: Advisor) -> _Words:
    if found.verdict == rules.FULL:
        return _full(found, names)
    if found.verdict == rules.ELSEWHERE:
        return _elsewhere(found, names)
    if found.verdict == rules.FRAGMENTED:
        return _fragmented(found, advisor)
    return {rules.OUTSIDE: _outside, rules.TOO_LARGE: _too_large, rules.LIMIT: _limit}[found.verdict](found)


def _requested(found: OutOfMemory) -> str:
    """What was requested, and what was free for it."""
    requested, segment = units.size(found.requested_bytes), units.size(found.segment_bytes)
    asked = f"{requested} was requested"
    if segment != requested:
        asked += f" (a segment of {segment} from the driver)"
    largest = f"the largest free block for it was {units.size(found.largest_free_bytes)}"
    return f"{asked}; {largest}, and the device had {units.size(found.device_free_bytes)} free."


def _full(found: OutOfMemory, names: SiteNames) -> _Words:
    of_all = f" of {units.size(found.device_bytes)}" if found.device_bytes is not None else ""
    why = [f"The memory is in use: {units.size(found.allocated_bytes)}{of_all} is allocated."]
    if found.top_sites:
        first = found.top_sites[0]
        blocks = units.counted(first.blocks, "block")
        why.append(f"The largest share is from {names.site(first.site)}: {units.size(first.bytes)} in {blocks}.")
    if found.steps_of_top_site >= _KEPT_STEPS:
        kept = f"They were allocated in {found.steps_of_top_site} different steps, so they are kept from step to step:"
        return _Words(why, [f"{kept} if that is not intended, it is a leak."])
    if found.setup_bytes is not None and found.setup_bytes >= _SET_UP * found.allocated_bytes:
        share = units.share(found.setup_bytes, found.allocated_bytes)
        why.append(
            f"{share} was made before the second step ended, and stays: weights, gradients, the optimizer's state."
        )
        less = "lower precision, an optimizer with less state, sharding it over devices, or a smaller model"
        return _Words(why, [f"What helps: {less}. A smaller batch would not."])
    less = "a smaller batch, activation checkpointing, lower precision, or freeing earlier what these lines hold"
    return _Words(why, [f"What helps: {less}."])


def _fragmented(found: OutOfMemory, advisor: Advisor) -> _Words:
    free, largest = units.size(found.here.free_bytes), units.size(found.here.largest_free_bytes)
    left = "the limit left" if found.limit_bytes else "the device had left"
    why = [
        *_refused_by_limit(found),
        f"{free} was free in the request's own pool, {largest} in the largest piece: enough with what {left},"
        " but not in one piece.",
    ]
    if found.here.releasable_bytes > found.here.stranded_bytes and found.request.pool != (0, 0):
        why.append("It is a private pool, which keeps its free segments for as long as the program keeps the pool.")
        return _Words(why, ["What helps: let go of the pool when it is not in use."])
    order = "allocate long-lived memory before large memory"
    if found.settings.expandable_segments:
        return _Words([*why, "Expandable segments are already on."], [f"What helps: {order}."], found.here)
    advice = advisor.on_request(found)
    if advice.why_not:
        worth = f"Worth a try, though it is not known here whether it helps: {_VARIABLE}=expandable_segments:True."
        return _Words(why, [f"What helps: {order}.", worth, advice.why_not], found.here)
    if not advice.helping:
        tried = " and ".join(advice.tried)
        none = (
            f"Torch's settings would not have: {tried} {'was' if len(advice.tried) == 1 else 'were'} tried in a model."
        )
        return _Words(why, [f"What helps: {order}.", none], found.here)
    if found.limit_bytes is not None and not advice.is_certain:
        best = advice.helping[0]
        most = max(best.peak_reserved_bytes[1], found.limit_bytes[0])
        depends = (
            f"With {_VARIABLE}={best.setting.text} this request and all before it would have been served if the limit"
            f" allows {units.size(most)}, as a model of torch's allocator shows."
        )
        return _Words(why, [f"What helps: {order}, or raise the limit.", depends], found.here)
    settings = advice.settings
    other = f" (or, if that is not possible, {settings[1]})" if len(settings) > 1 else ""
    first = advice.helping[0]
    cost = (
        f"With {settings[0]} this request and all before it would have been served, with"
        f" {units.sizes(*first.peak_reserved_bytes)} reserved at most, as a model of torch's allocator shows."
    )
    return _Words(why, [f"What helps: set {_VARIABLE}={settings[0]}{other}, or {order}.", cost], found.here)


def _elsewhere(found: OutOfMemory, names: SiteNames) -> _Words:
    pools = found.elsewhere.pools
    first = int(pools["free_bytes"].argmax())
    pool, stream = pools["segment_pool_id"][first], int(pools["stream"][first])
    largest = units.size(found.elsewhere.largest_free_bytes)
    why = [
        *_refused_by_limit(found),
        f"{units.size(found.elsewhere.free_bytes)} was free in other pools or streams, {largest} in the largest piece;"
        f" {units.size(int(pools['free_bytes'][first]))} of it belongs to {_location(pool, stream)}.",
        f"The request was for {_location(found.request.pool, found.request.stream)}, which cannot use it.",
    ]
    if pool == tuple(found.request.pool):
        one_stream = "What helps: allocate on one stream, or free what is live on the other one."
        return _Words(why, [one_stream], found.elsewhere)
    if pool != (0, 0):
        held = f"let go of pool {pool} (its MemPool, the CUDA graphs captured into it) when it is not in use"
        if found.pool_sites:
            why.append(f"What is live in it was made mostly at {names.site(found.pool_sites[0].site)}.")
        return _Words(why, [f"What helps: {held}, or allocate both from one pool."])
    if found.elsewhere.releasable_bytes:
        returnable = units.size(found.elsewhere.releasable_bytes)
        why.append(f"While a pool is in use, torch returns nothing from the others; {returnable} could be returned.")
        return _Words(why, ["What helps: torch.cuda.empty_cache() before the pool is used."])
    return _Words(why, ["What helps: free the live blocks next to it, or do not use a pool."], found.elsewhere)


def _location(pool: tuple[int, int], stream: int) -> str:
    where = "the default stream" if stream == 0 else f"stream {stream:#x}"
    return where if tuple(pool) == (0, 0) else f"{where} in pool {tuple(pool)}"


def _outside(found: OutOfMemory) -> _Words:
    what = f"{units.size(found.outside_bytes or 0)} is used outside PyTorch"
    by_others = (
        f"{units.size(found.other_processes_bytes)} of it by other processes" if found.other_processes_bytes else ""
    )
    what += f", {by_others or 'by other processes or by other libraries in this one'}"
    why = f"{what}; torch itself holds {units.size(found.reserved_bytes)} of {units.size(found.device_bytes or 0)}."
    return _Words([why], ["What helps: a device that nothing else uses; nvidia-smi lists the processes on it."])


def _too_large(found: OutOfMemory) -> _Words:
    most = units.size(found.max_possible_bytes or 0)
    device = units.size(found.device_bytes or 0)
    why = f"The device has {device}, and at most {most} can be allocated: freeing cannot help."
    return _Words([why], ["What helps: smaller requests (a smaller batch, chunks), or several devices."])


def _limit(found: OutOfMemory) -> _Words:
    held = f"torch holds {units.size(found.reserved_bytes)}; {units.size(found.allocated_bytes)} of that is allocated."
    return _Words([*_refused_by_limit(found), held], ["What helps: raise the limit, or need less."])


def _refused_by_limit(found: OutOfMemory) -> list[str]:
    if found.limit_bytes is None:
        return []
    between = " and ".join(units.size(size) for size in found.limit_bytes)
    setting = f"torch.cuda.set_per_process_memory_fraction, or per_process_memory_fraction in {_VARIABLE}"
    return [f"The driver had enough; a limit on what torch may hold, between {between}, refused it ({setting})."]


def _outcome(found: OutOfMemory) -> list[str]:
    request = found.request
    if request.outcome == ENDED:
        return []
    if request.outcome_ns is None:
        return ["The program went on."]
    later = f"{units.duration((request.outcome_ns - request.time_ns) / 1e9)} later (event {request.outcome_seq:,})"
    if request.outcome == RETRIED:
        return [f"The program went on: a request of this size was served {later}."]
    return [f"The program went on with smaller requests {later}."]


def oom_data(found: OutOfMemory, names: SiteNames, advisor: Advisor, top: int) -> dict[str, Any]:
    """As plain values."""
    return {
        **oom_row(found),
        "sentences": list(sentences(found, names, advisor)),
        "settings_that_help": list(advisor.on_request(found).settings) if found.verdict == rules.FRAGMENTED else [],
        "top_sites": [dataclasses.asdict(site) for site in found.top_sites[:top]],
        "pinners_by_line": records(found.here.pinners_by_line.head(top)),
        "pools_elsewhere": records(found.elsewhere.pools),
    }


def oom_row(found: OutOfMemory) -> dict[str, Any]:
    """One row of a table: the figures, without lists."""
    return {name: figure(found) for name, figure in _ROW.items()}


_ROW: dict[str, Callable[[OutOfMemory], Any]] = {
    "seq": lambda found: found.seq,
    "time_ns": lambda found: found.request.time_ns,
    "device": lambda found: found.device,
    "step": lambda found: found.step,
    "verdict": lambda found: found.verdict,
    "filename": lambda found: found.site.filename,
    "line": lambda found: found.site.line,
    "function": lambda found: found.site.function,
    "source": lambda found: found.site.source,
    "stack_id": lambda found: found.request.stack_id,
    "backward": lambda found: found.request.backward,
    "node_type": lambda found: found.request.node_type,
    "requested_bytes": lambda found: found.requested_bytes,
    "segment_bytes": lambda found: found.segment_bytes,
    "largest_free_bytes": lambda found: found.largest_free_bytes,
    "stream": lambda found: found.request.stream,
    "pool": lambda found: list(found.request.pool),
    "device_free_bytes": lambda found: found.device_free_bytes,
    "device_bytes": lambda found: found.device_bytes,
    "reserved_bytes": lambda found: found.reserved_bytes,
    "allocated_bytes": lambda found: found.allocated_bytes,
    "free_here_bytes": lambda found: found.here.free_bytes,
    "releasable_here_bytes": lambda found: found.here.releasable_bytes,
    "stranded_here_bytes": lambda found: found.here.stranded_bytes,
    "free_elsewhere_bytes": lambda found: found.elsewhere.free_bytes,
    "largest_free_elsewhere_bytes": lambda found: found.elsewhere.largest_free_bytes,
    "outside_bytes": lambda found: found.outside_bytes,
    "other_processes_bytes": lambda found: found.other_processes_bytes,
    "outcome": lambda found: found.request.outcome,
    "outcome_seq": lambda found: found.request.outcome_seq,
}
COLUMNS = tuple(_ROW)
"""The columns of `oom_row`."""


def write_ooms(
    found: Sequence[OutOfMemory], advisor: Advisor, screen: Screen, names: SiteNames, begin_ns: int, *, all_of: bool
) -> None:
    """Failed allocations in order. all_of: none was left out before them; begin_ns: when the recording began."""
    if not found:
        screen.text(NONE)
        return
    if not all_of:
        last = units.last(len(found), "failed allocation")
        screen.text(f"{last.capitalize()} (--top 0 shows all):", style="dim")
    for number, one in enumerate(found):
        if number or not all_of:
            screen.blank()
        _write(one, advisor, screen, names, begin_ns)


def _write(found: OutOfMemory, advisor: Advisor, screen: Screen, names: SiteNames, begin_ns: int) -> None:
    when = f"at {units.duration((found.request.time_ns - begin_ns) / 1e9)}"
    if found.step is not None:
        when += f" in step {found.step}"
    title = f"  {found.device} {when}: {found.verdict}"
    screen.text(Text.assemble(("OUT OF MEMORY", "bold red"), (title, "bold")), hanging=2)
    screen.text(names.site(found.site) + _in_backward(found), 2)
    source = names.source(found.site)
    if source:
        screen.source(source, 4)
    screen.frames(names.stack(found.request.stack_id), 4)
    words = _words(found, names, advisor)
    for sentence in (_requested(found), *words.why):
        screen.text(sentence, 2)
    if words.pinned is not None:
        write_pinners(words.pinned, screen, names, 4, _SHOWN_PINNERS)
    for sentence in (*words.help, *_outcome(found)):
        screen.text(sentence, 2)
    _chart(found, screen)
    if found.top_sites:
        screen.text("Lines that held the most:", 2)
    for site in found.top_sites[:_SHOWN_SITES]:
        screen.text(f"{units.size(site.bytes):>9}  {names.holder(site)}", 4, hanging=15)
        text = names.source(site.site)
        if text:
            screen.source(text, 15)
        screen.frames(names.stack(site.stack_id), 15)


def _in_backward(found: OutOfMemory) -> str:
    node_type = found.request.node_type.rsplit("::", 1)[-1]
    if not node_type:
        return ""
    return f" ({'in its backward' if found.request.backward else 'in backward'}, {node_type})"


def _chart(found: OutOfMemory, screen: Screen) -> None:
    """The device as one bar, and a legend."""
    if found.device_bytes is None or found.outside_bytes is None:
        return
    cached_here, cached_elsewhere = found.here.free_bytes, found.elsewhere.free_bytes
    used = max(found.reserved_bytes - cached_here - cached_elsewhere, 0)
    sizes = (used, cached_here, cached_elsewhere, found.outside_bytes, found.device_free_bytes)
    whole = max(
        found.device_bytes, sum(sizes), 1
    )  # where the numbers contradict each other, the bar ends in time all the same
    width = max(min(screen.width - 6, 72), 10)
    bar, legend = "", []
    covered = 0
    for (name, sign, plain), size in zip(_PARTS, sizes, strict=True):
        shown = plain if screen.plain else sign
        begin, covered = covered, covered + size
        bar += shown * (round(covered * width / whole) - round(begin * width / whole))
        if size:
            legend.append(f"{shown} {name} {units.size(size)}")
    screen.text(Text(bar, style="green"), 2)
    screen.text(", ".join(legend), 2, style="dim")
