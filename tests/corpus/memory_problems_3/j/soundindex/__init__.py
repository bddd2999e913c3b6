from .encoder import SegmentEncoder
from .index import SegmentIndex

__all__ = ["SegmentEncoder", "SegmentIndex"]
