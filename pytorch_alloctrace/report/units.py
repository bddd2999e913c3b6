"""Sizes, durations, counts and ranges in words, and small charts of text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..reading.names import counted as counted

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def size(count: float) -> str:
    """Bytes in binary units with three digits: "0 B", "1.25 KiB", "52.5 MiB", "1,020 TiB"."""
    sign, value = ("-" if count < 0 else ""), abs(float(count))
    unit = 0
    # 1023.7 would be printed as 1024: already the next unit.
    while unit < len(_BINARY) - 1 and value >= (1023.5 if unit else 1024):
        value /= 1024
        unit += 1
    if unit == 0:
        shown = f"{value:.0f}" if value == int(value) or value >= 100 else f"{value:.3g}"
    elif value >= 99.95:
        shown = f"{value:,.0f}"
    elif value >= 9.995:
        shown = f"{value:.1f}"
    else:
        shown = f"{value:.2f}"
    return f"{sign}{shown} {_BINARY[unit]}"


def sizes(least: float, most: float) -> str:
    """A range of sizes; one where both look the same."""
    first, last = size(least), size(most)
    return last if first == last else f"{first} to {last}"


def change(count: float) -> str:
    """A size with its sign: "+1.25 MiB", "-3 B", "0 B"."""
    return f"+{size(count)}" if count > 0 else size(count)


def rate(count: float, unit: str) -> str:
    """A change per unit: "+1.25 MiB per step"."""
    return f"{change(count)} per {unit}"


def number(count: int) -> str:
    """A count with separators: "5,662"."""
    return f"{count:,}"


def averaged(count: float, noun: str) -> str:
    """An average count with three digits, and its noun: "1 allocation", "2.67 allocations"."""
    shown = f"{count:.3g}"
    return f"{shown} {noun}" if shown == "1" else f"{shown} {noun}s"


def last(count: int, noun: str) -> str:
    """So many at the end: "the last step", "the last 4 steps"."""
    return f"the last {noun}" if count == 1 else f"the last {counted(count, noun)}"


def duration(seconds: float) -> str:
    """Short: "0.42 ms", "12.3 s", "4 min 5 s", "2 h 3 min", "3 d 4 h", "49 years"; "0 s"."""
    if seconds <= 0:
        return "0 s"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"
    if seconds < 59.95:
        return f"{seconds:.3g} s"
    whole = round(seconds)
    if whole < 3600:
        large, small = f"{whole // 60} min", f"{whole % 60} s" if whole % 60 else ""
    elif whole < 86400:
        large, small = f"{whole // 3600} h", f"{whole % 3600 // 60} min" if whole % 3600 >= 60 else ""
    elif whole >= 2 * 365 * 86400:
        large, small = f"{whole // (365 * 86400):,} years", ""
    else:
        large, small = f"{whole // 86400:,} d", f"{whole % 86400 // 3600} h" if whole % 86400 >= 3600 else ""
    return f"{large} {small}".rstrip()


def share(part: float, whole: float) -> str:
    """A part in percent: "45 %", "<1 %"; "-" if the whole is nothing."""
    if whole <= 0:
        return "-"
    percent = 100 * part / whole
    return "<1 %" if 0 < percent < 0.5 else f"{percent:.0f} %"


def sparkline(values: Sequence[int], width: int, *, plain: bool = False, least: int | None = None) -> str:
    """A chart of one line; `plain` uses ASCII characters.

    It spans `least` to the highest value; by default the lowest, but at least a tenth of the highest: what hardly
    changes must look flat.
    """
    columns = min(width, len(values))
    # The highest of each part: a spike that lasts one step must be visible. Python's numbers: numpy's would overflow.
    picked = [int(max(values[i * len(values) // columns : (i + 1) * len(values) // columns])) for i in range(columns)]
    levels = "_.-=+*%#" if plain else "▁▂▃▄▅▆▇█"
    highest = max(picked, default=0)
    lowest = min(min(picked, default=0), highest - max(highest // 10, 1)) if highest else 0
    lowest = lowest if least is None else min(lowest, least)
    span = max(highest - lowest, 1)
    return "".join(levels[(value - lowest) * (len(levels) - 1) // span] for value in picked)


def bar(part: float, width: int, *, plain: bool = False) -> str:
    """A share, 0 to 1, as a bar of at most `width` characters; anything above nothing has at least one."""
    return ("#" if plain else "█") * max(round(min(part, 1.0) * width), 1 if part > 0 else 0)


@dataclass(frozen=True)
class Span:
    """A range, or several."""

    since: str | None = None
    """None: from the beginning."""
    until: str = "end"
    regions: str = ""
    """If it is several regions of one name: "all 12 regions 'validation'"."""

    @property
    def is_whole(self) -> bool:
        """Whether it is the whole run."""
        return self.since is None and self.until == "end"

    def __str__(self) -> str:
        """As a title goes on: "from step:10 to step:20", "in all 12 regions 'validation'"."""
        if self.regions:
            return f"in {self.regions}"
        return f"from {self.since or 'the beginning'} to {'the end' if self.until == 'end' else self.until}"
