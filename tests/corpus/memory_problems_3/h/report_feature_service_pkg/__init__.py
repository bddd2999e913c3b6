from .layer_getter import IntermediateLayerGetter
from .backbone import build_backbone

__all__ = ["IntermediateLayerGetter", "build_backbone"]
