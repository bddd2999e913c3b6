from .network import ConformerNet
from .monitor import Smoothed, Board
from .sampling import conformers

__all__ = ["ConformerNet", "Smoothed", "Board", "conformers"]
