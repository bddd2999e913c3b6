"""Conditions of a device's memory in words: what it is, with figures, and what to do."""

from __future__ import annotations

from collections.abc import Callable

from ..analysis.free_memory.conditions import Condition
from . import units
from .places import PlaceNames

_VARIABLE = "PYTORCH_ALLOC_CONF"


def condition_title(condition: Condition) -> str:
    """One line without a full stop: how much, of what, where."""
    amount, of = units.size(condition.bytes), units.size(condition.of)
    titles = {
        "fragmentation": f"{amount} of {of} reserved are stranded in segments that live blocks hold",
        "cache": f"{amount} of {of} reserved are cached, and nothing uses them any more",
        "rounding": f"{amount} of {of} allocated at the peak are rounding waste",
        "pending": f"{amount} were freed, but held back for another stream (of {of} reserved)",
        "churn": f"{amount} went back to the driver and were taken again",
        "outside": f"{amount} of the device's {of} are used outside of PyTorch",
    }
    return f"{condition.device}: {titles[condition.kind]}"


def condition_sentences(condition: Condition, names: PlaceNames) -> tuple[str, ...]:
    """What it rests on, and what to do about it."""
    return _SENTENCES[condition.kind](condition, names)


def _fragmentation(condition: Condition, names: PlaceNames) -> tuple[str, ...]:
    blocks = units.counted(int(condition.figures["blocks"]), "block")
    return (
        f"Most by {_where(condition, names)}: {blocks}, {units.size(condition.figures['block_bytes'])}, that keep"
        f" {units.size(condition.site_bytes)} from being returned ({_when(condition)}).",
        f"What helps is to make what lives long before what is large, or {_VARIABLE}=expandable_segments:True."
        " All of them: the verb fragmentation.",
    )


def _cache(condition: Condition, names: PlaceNames) -> tuple[str, ...]:
    needed = "only the warm-up needed them" if condition.figures["is_warmup"] else "they were last needed"
    return (
        f"As it is, {needed} ({_when(condition)}), and other processes cannot have them.",
        "torch.cuda.empty_cache() after that, once, gives them back to the driver.",
    )


def _rounding(condition: Condition, names: PlaceNames) -> tuple[str, ...]:
    return (
        f"Blocks are larger than what was asked for: most at {_where(condition, names)},"
        f" {units.size(condition.site_bytes)} of it.",
        "torch rounds up to 512 B, and takes what is left of a block of over 1 MiB along where that is less than 1 MiB:"
        f" what helps is sizes just below a multiple of 2 MiB, or a finer roundup_power2_divisions in {_VARIABLE}"
        " where that is set.",
    )


def _pending(condition: Condition, names: PlaceNames) -> tuple[str, ...]:
    return (
        f"Their tensors are gone, but record_stream() makes torch wait for the other stream ({_when(condition)});"
        f" most were made at {_where(condition, names)}, {units.size(condition.site_bytes)}. Over the run it comes to"
        f" {units.size(condition.figures['byte_seconds'])} for one second.",
        "What helps is to let the streams wait for each other (Stream.wait_stream) and free after that, without"
        " record_stream().",
    )


def _churn(condition: Condition, names: PlaceNames) -> tuple[str, ...]:
    return (
        f"In the second half of the run alone, {condition.figures['times']:.0f} times the"
        f" {units.size(condition.of)} that were reserved (estimated). Each time the device has to stand still.",
        "What helps is not to call torch.cuda.empty_cache() in the loop, and to leave torch room: it gives memory back"
        " by itself when the device is nearly full.",
    )


def _outside(condition: Condition, names: PlaceNames) -> tuple[str, ...]:
    return (
        f"By CUDA's context, by libraries, or by other processes ({_when(condition)}): what torch has is not in it.",
        "nvidia-smi names the processes on the device.",
    )


_SENTENCES: dict[str, Callable[[Condition, PlaceNames], tuple[str, ...]]] = {
    "fragmentation": _fragmentation,
    "cache": _cache,
    "rounding": _rounding,
    "pending": _pending,
    "churn": _churn,
    "outside": _outside,
}


def _where(condition: Condition, names: PlaceNames) -> str:
    return names.place(condition.site) if condition.site is not None else "an unknown line"


def _when(condition: Condition) -> str:
    return f"at {units.duration(condition.seconds)}"
