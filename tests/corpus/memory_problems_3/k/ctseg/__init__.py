from .network import OrganNet
from .window import sliding_logits
from .export import to_native_labels, organ_volumes
