from .batching import ResidueBatcher, collate
from .model import StructureTagger

__all__ = ["ResidueBatcher", "collate", "StructureTagger"]
