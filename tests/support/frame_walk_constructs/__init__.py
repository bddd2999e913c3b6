"""Ways in which one Python function comes to run inside another, each with the frames that it puts between.

Each construct calls `inner` at least once, in a manner that `number` may vary.
"""

from __future__ import annotations

from . import called_back, calls, ends_and_hooks, made_code, suspended
from .registry import CONSTRUCTS

__all__ = ["CONSTRUCTS", "called_back", "calls", "ends_and_hooks", "made_code", "suspended"]
