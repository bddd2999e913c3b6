import os
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Settings:
    device: str = "cuda:0"
    replicas: int = int(os.environ.get("UPSCALER_REPLICAS", "6"))
    scale: int = 2
    features: int = 64
    blocks: int = 8


def start(settings):
    """Prepares the device for one of several workers on the same machine."""
    torch.backends.cudnn.benchmark = True
    torch.cuda.set_per_process_memory_fraction(1.0 / settings.replicas, torch.device(settings.device))
    return torch.device(settings.device)
