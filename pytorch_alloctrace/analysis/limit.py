"""A limit on growth, which `--fail-above` sets."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GrowthLimit:
    """Bytes, bytes per step, or a share of what there was before: one of these."""

    text: str
    """As it was given."""
    bytes: int | None = None
    per_step: bool = False
    """Whether `bytes` are those of a step."""
    share: float | None = None

    def is_exceeded(self, grew: float, before: int, per_step: float | None) -> bool:
        """Whether `grew` bytes, on top of `before`, are more than this allows.

        per_step: how many of them a step; None, where that is unknown, raises ValueError if it is what is limited.
        """
        if self.share is not None:
            return grew > self.share * before
        assert self.bytes is not None
        if not self.per_step:
            return grew > self.bytes
        if per_step is None:
            raise ValueError("growth per step is limited, and it is unknown")
        return per_step > self.bytes
