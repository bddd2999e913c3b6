from .model import LeafNet
from .data import LeafScans

__all__ = ["LeafNet", "LeafScans"]
