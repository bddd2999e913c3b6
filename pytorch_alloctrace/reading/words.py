"""Numbers with their nouns."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """A count and its noun, in the plural unless it is one: "1 step", "5,662 events"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
