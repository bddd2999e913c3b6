"""Sizes, durations, counts and ranges as text, and small text charts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..reading.names import counted as counted

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def size(count: float) -> str:
    """Format bytes in binary units with three digits: "0 B", "1.25 KiB", "52.5 MiB", "1,020 TiB"."""
    sign, value = ("-" if count < 0 else ""), abs(float(count))
    unit = 0
    # Otherwise, 1023.7 KiB would become 1,024 KiB.
    while unit < len(_BINARY) - 1 and value >= (1023.5 if unit else 1024):
        value /= 1024
        unit += 1
    if unit == 0:
        digits = f"{value:.0f}" if value == int(value) or value >= 100 else f"{value:.3g}"
    elif value >= 99.95:
        digits = f"{value:,.0f}"
    elif value >= 9.995:
        digits = f"{value:.1f}"
    else:
        digits = f"{value:.2f}"
    return f"{sign}{digits} {_BINARY[unit]}"


def minimum(count: int) -> str:
    """Format a size that is needed, rounded up: memory of the size shown is enough."""
    text = size(count)
    digits, unit = text.replace(",", "").split(" ")
    unit_bytes = 1024 ** _BINARY.index(unit)
    if float(digits) * unit_bytes >= count:
        return text
    last_digit = 10.0 ** -len(digits.partition(".")[2])
    return size((float(digits) + last_digit) * unit_bytes)


def sizes(low: float, high: float) -> str:
    """Format a range of sizes, or one size if both look the same."""
    first, last = size(low), size(high)
    return last if first == last else f"{first} to {last}"


def change(count: float) -> str:
    """Format a size with its sign: "+1.25 MiB", "-3 B", "0 B"."""
    return f"+{size(count)}" if count > 0 else size(count)


def rate(count: float, unit: str) -> str:
    """Format a change per unit: "+1.25 MiB per step"."""
    return f"{change(count)} per {unit}"


def number(count: int) -> str:
    """Format a count with separators: "5,662"."""
    return f"{count:,}"


def averaged(count: float, noun: str) -> str:
    """Format an average count with three digits and its noun: "1 allocation", "2.67 allocations"."""
    digits = f"{count:.3g}"
    return f"{digits} {noun}" if digits == "1" else f"{digits} {noun}s"


def last(count: int, noun: str) -> str:
    """Format the last items: "the last step", "the last 4 steps"."""
    return f"the last {noun}" if count == 1 else f"the last {counted(count, noun)}"


def duration(seconds: float) -> str:
    """Format a duration: "0.42 ms", "12.3 s", "4 min 5 s", "2 h 3 min", "3 d 4 h", "49 years"."""
    if seconds <= 0:
        return "0 s"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"
    if seconds < 59.95:
        return f"{seconds:.3g} s"
    total = round(seconds)
    if total < 3600:
        large, small = f"{total // 60} min", f"{total % 60} s" if total % 60 else ""
    elif total < 86400:
        large, small = f"{total // 3600} h", f"{total % 3600 // 60} min" if total % 3600 >= 60 else ""
    elif total >= 2 * 365 * 86400:
        large, small = f"{total // (365 * 86400):,} years", ""
    else:
        large, small = f"{total // 86400:,} d", f"{total % 86400 // 3600} h" if total % 86400 >= 3600 else ""
    return f"{large} {small}".rstrip()


def share(part: float, total: float) -> str:
    """Format a part in percent: "45 %", "<1 %"; "-" if the total is 0."""
    if total <= 0:
        return "-"
    percent = 100 * part / total
    return "<1 %" if 0 < percent < 0.5 else f"{percent:.0f} %"


def sparkline(values: Sequence[int], width: int, *, plain: bool = False, minimum: int | None = None) -> str:
    """Draw a chart of one line, from `minimum` (default: the lowest value) to the highest value.

    The scale covers at least a tenth of the highest value: nearly constant values must look flat.
    """
    columns = min(width, len(values))
    # The maximum of each part: a spike of one step must be visible. Python integers: numpy's would overflow below.
    heights = [int(max(values[i * len(values) // columns : (i + 1) * len(values) // columns])) for i in range(columns)]
    levels = "_.-=+*%#" if plain else "▁▂▃▄▅▆▇█"
    highest = max(heights, default=0)
    lowest = min(min(heights, default=0), highest - max(highest // 10, 1)) if highest else 0
    lowest = lowest if minimum is None else min(lowest, minimum)
    scale = max(highest - lowest, 1)
    return "".join(levels[(value - lowest) * (len(levels) - 1) // scale] for value in heights)


def bar(part: float, width: int, *, plain: bool = False) -> str:
    """Draw a share from 0 to 1 as a bar of up to `width` characters; a share above 0 gets at least one."""
    return ("#" if plain else "█") * max(round(min(part, 1.0) * width), 1 if part > 0 else 0)


@dataclass(frozen=True)
class Span:
    """Range of a run (`since` None: from the beginning), or several regions."""

    since: str | None = None
    until: str = "end"
    regions: str = ""
    """Such as "all 12 regions 'validation'"; empty for a range."""

    @property
    def is_whole(self) -> bool:
        return self.since is None and self.until == "end"

    def __str__(self) -> str:
        """Return "from step:10 to step:20" or "in all 12 regions 'validation'"."""
        if self.regions:
            return f"in {self.regions}"
        return f"from {self.since or 'the beginning'} to {'the end' if self.until == 'end' else self.until}"
