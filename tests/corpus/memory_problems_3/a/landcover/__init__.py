from .model import LandCoverNet
from .data import Tiles

__all__ = ["LandCoverNet", "Tiles"]
