"""What happened to the memory, worked out from a trace.

Every analysis returns a small dataclass or a DataFrame; none prints.
"""

from __future__ import annotations

from ..reading.sites import Site, SiteBytes
from .free_memory.fragmentation import Fragmentation, fragmentation_at
from .free_memory.oom import OutOfMemory, find_ooms
from .leaks.growth import GrowingSite, StepGrowth, growing_sites, step_growth
from .leaks.judge import Leak, LeakingSite, LeakVerdict, find_leaks
from .summary import DeviceSummary, Holding, Program, Summary, summarize
from .usage.comparison import compare, difference
from .usage.composition import composition_at
from .usage.peak import PeakMemory, peak_memory

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
