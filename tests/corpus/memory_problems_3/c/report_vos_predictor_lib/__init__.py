from .model import MaskMemoryNet
from .predictor import VideoPredictor

__all__ = ["MaskMemoryNet", "VideoPredictor"]
