from .encoder import SpeechEncoder
from .pooling import PhoneBook

__all__ = ["SpeechEncoder", "PhoneBook"]
