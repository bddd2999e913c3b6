from .frames import FlightFrames
from .manager import FullFrameManager

__all__ = ["FlightFrames", "FullFrameManager"]
