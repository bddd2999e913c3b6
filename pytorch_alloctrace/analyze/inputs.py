"""What the verbs take on the command line: moments, counts, sizes."""

from __future__ import annotations

import argparse
import re

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([KMGTP])(i?)B?|B)?", re.IGNORECASE)
_POWERS = "KMGTP"
_MOST_EVENTS = 1 << 62


def moment(text: str) -> int | str:
    """A number is that of an event."""
    return min(int(text), _MOST_EVENTS) if text.isdecimal() else text


def count(text: str) -> int:
    """0 or more."""
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative")
    return value


def positive(text: str) -> int:
    """1 or more."""
    value = count(text)
    if value == 0:
        raise argparse.ArgumentTypeError("at least 1 is needed")
    return value


def byte_count(text: str) -> int:
    """Bytes: "512MiB", "2GiB", "1.5 GB" (of 1000), "4096"."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: use one such as 512MiB, 2GiB or a number of bytes")
    power = _POWERS.index(found[2].upper()) + 1 if found[2] else 0
    # As everywhere: MiB are of 1024, MB of 1000; a bare M is what torch's settings mean by it, MiB.
    base = 1000 if found[2] and not found[3] and text.strip().upper().endswith("B") else 1024
    whole, _, fraction = found[1].partition(".")
    scale: int = base**power
    return int(whole) * scale + (int(fraction) * scale // 10 ** len(fraction) if fraction else 0)
