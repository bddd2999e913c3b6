from .bank import SpeakerBank
from .encoder import FrameEncoder

__all__ = ["FrameEncoder", "SpeakerBank"]
