"""Findings on inefficiencies: figures and remedies."""

from __future__ import annotations

from collections.abc import Callable

from ..analysis.advice import Advice, Advisor
from ..analysis.free_memory.inefficiencies import Inefficiency
from . import units
from .finding import Finding
from .site_names import SiteNames

_VARIABLE = "PYTORCH_ALLOC_CONF"


def inefficiency_finding(inefficiency: Inefficiency, names: SiteNames, advisor: Advisor) -> Finding:
    """Describe an inefficiency. Only fragmentation uses the advisor, which takes a pass over the trace."""
    if inefficiency.kind == "fragmentation":
        sentences = _describe_fragmentation(inefficiency, names, advisor.on_fragmentation(inefficiency.device))
    else:
        sentences = _DESCRIBE_BY_KIND[inefficiency.kind](inefficiency, names)
    return Finding(
        kind=inefficiency.kind,
        title=_make_title(inefficiency),
        device=inefficiency.device,
        bytes=inefficiency.bytes,
        confidence=None,
        site=inefficiency.site,
        stack_id=inefficiency.stack_id,
        sentences=sentences,
    )


def _make_title(inefficiency: Inefficiency) -> str:
    amount, total = units.size(inefficiency.bytes), units.size(inefficiency.total_bytes)
    title_by_kind = {
        "fragmentation": f"{amount} of {total} reserved is stranded in segments that live blocks hold",
        "cache": f"{amount} of {total} reserved is cached, but no longer used",
        "rounding": f"{amount} of {total} allocated at the peak is rounding waste",
        "pending": f"{amount} of {total} reserved was freed, but held back for another stream",
        "churn": f"{amount} was returned to the driver and requested again",
        "outside": f"{amount} of the device's {total} is used outside PyTorch",
    }
    return f"{inefficiency.device}: {title_by_kind[inefficiency.kind]}"


def _describe_fragmentation(inefficiency: Inefficiency, names: SiteNames, advice: Advice | None) -> tuple[str, ...]:
    if inefficiency.site is None:
        return (
            f"Which lines pin the memory is unknown: the run {_describe_time(inefficiency)} is compacted into sums.",
            f"What helps: allocate long-lived memory before large memory{_describe_setting(advice)}",
        )
    count, amount = int(inefficiency.figures["blocks"]), units.size(inefficiency.figures["block_bytes"])
    subject = f"1 block of {amount} keeps" if count == 1 else f"{count:,} blocks ({amount}) keep"
    return (
        f"Mostly because of {_describe_site(inefficiency, names)}: {subject} {units.size(inefficiency.site_bytes)}"
        f" from being returned ({_describe_time(inefficiency)}).",
        f"What helps: allocate long-lived memory before large memory{_describe_setting(advice)} The command"
        " fragmentation shows all such lines.",
    )


def _describe_setting(advice: Advice | None) -> str:
    """Return the end of a sentence: the setting that would have helped, if any."""
    if advice is None:
        return "."
    if advice.why_not:
        return f"; {_VARIABLE}=expandable_segments:True may help, too (not simulated)."
    if not advice.helping:
        return f". ({advice.tried[0]} would not have reserved notably less, as a model of torch's allocator shows.)"
    outcome = advice.helping[0]
    return (
        f", or set {_VARIABLE}={outcome.setting.text}: at most {units.sizes(*outcome.peak_reserved_bytes)} would have"
        " been reserved, as a model of torch's allocator shows."
    )


def _describe_cache(inefficiency: Inefficiency, names: SiteNames) -> tuple[str, ...]:
    last_use = "Only the warm-up needed it" if inefficiency.figures["is_warmup"] else "It was last needed"
    return (
        f"{last_use} ({_describe_time(inefficiency)}), and other processes cannot use it.",
        "What helps: one torch.cuda.empty_cache() after that returns it to the driver.",
    )


def _describe_rounding(inefficiency: Inefficiency, names: SiteNames) -> tuple[str, ...]:
    return (
        f"Blocks are larger than requested, most of all at {_describe_site(inefficiency, names)}:"
        f" {units.size(inefficiency.site_bytes)}.",
        "torch rounds requests up to a multiple of 512 B; a request of over 1 MiB also gets the rest of its block if"
        " that is less than 1 MiB. What helps: sizes just below a multiple of 2 MiB or, if it is set, a finer"
        f" roundup_power2_divisions in {_VARIABLE}.",
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
        " memory by itself when the device is nearly full.",
    )


def _describe_outside(inefficiency: Inefficiency, names: SiteNames) -> tuple[str, ...]:
    return (
        f"By CUDA's context, libraries or other processes ({_describe_time(inefficiency)}); memory that torch reserved"
        " is not included.",
        "nvidia-smi lists the processes on the device.",
    )


_DESCRIBE_BY_KIND: dict[str, Callable[[Inefficiency, SiteNames], tuple[str, ...]]] = {
    "cache": _describe_cache,
    "rounding": _describe_rounding,
    "pending": _describe_pending,
    "churn": _describe_churn,
    "outside": _describe_outside,
}


def _describe_site(inefficiency: Inefficiency, names: SiteNames) -> str:
    return names.site(inefficiency.site) if inefficiency.site is not None else "an unknown line"


def _describe_time(inefficiency: Inefficiency) -> str:
    return f"at {units.duration(inefficiency.seconds)}"
