"""What happened to the memory, worked out from a trace.

Every analysis returns a small dataclass or a DataFrame; none prints.
"""

from __future__ import annotations

from .comparison import compare
from .composition import PeakMemory, composition_at, peak_memory
from .difference import difference
from .fragmentation import Fragmentation, fragmentation_at
from .growth import GrowingSite, StepGrowth, growing_sites, step_growth
from .leaks import Leak, LeakingSite, LeakVerdict, find_leaks
from .oom import OutOfMemory, find_ooms
from .places import Site, SiteBytes
from .summary import DeviceSummary, Holding, Program, Summary, summarize

__all__ = [
    "DeviceSummary",
    "Fragmentation",
    "GrowingSite",
    "Holding",
    "Leak",
    "LeakVerdict",
    "LeakingSite",
    "OutOfMemory",
    "PeakMemory",
    "Program",
    "Site",
    "SiteBytes",
    "StepGrowth",
    "Summary",
    "compare",
    "composition_at",
    "difference",
    "find_leaks",
    "find_ooms",
    "fragmentation_at",
    "growing_sites",
    "peak_memory",
    "step_growth",
    "summarize",
]
