"""The part of a run that was asked for, in words."""

from __future__ import annotations

from dataclasses import dataclass


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
