"""Parser of sizes: K, KiB, M, MiB and so on are binary; KB, MB, GB are decimal."""

from __future__ import annotations

import re

_SIZE = re.compile(r"(\d+)(?:\.(\d+))?\s*(?:([KMGTP])(iB?|B)?|(B))?", re.IGNORECASE)
_POWERS = "KMGTP"


def parse_size(text: str) -> int:
    """Return the bytes of "512MiB", "1.5 GB", "2G", "4096B" or "0". Raises ValueError with a message for users."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a size: write one such as 512MiB or 2GiB, or a number of bytes as 4096B")
    integer, fraction, unit, suffix, is_bytes = match.groups()
    if not unit and not is_bytes and int(integer):
        raise ValueError(f"{text!r} has no unit: write {integer}GiB, {integer}MiB, or {integer}B for bytes")
    base = 1000 if (suffix or "").upper() == "B" else 1024
    scale: int = base ** (_POWERS.index(unit.upper()) + 1) if unit else 1
    return int(integer) * scale + (int(fraction) * scale // 10 ** len(fraction) if fraction else 0)
