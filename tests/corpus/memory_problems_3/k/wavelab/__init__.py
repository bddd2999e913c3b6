from .grid import Survey, ricker
from .propagate import Propagator
from .search import pick_step

__all__ = ["Survey", "ricker", "Propagator", "pick_step"]
