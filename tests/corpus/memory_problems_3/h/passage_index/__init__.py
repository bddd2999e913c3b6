from .encoder import EncoderConfig, PassageEncoder
from .index import FlatIndex

__all__ = ["EncoderConfig", "PassageEncoder", "FlatIndex"]
