"""Precision plugins used by the trainer."""
import contextlib

import torch


class FullPrecision:
    def context(self):
        return contextlib.nullcontext()


class MixedPrecision:
    """Casts inside the step, keeps float32 master weights."""

    def __init__(self, device_type, dtype=torch.bfloat16):
        self.device_type = device_type
        self.dtype = dtype

    def context(self):
        return torch.autocast(self.device_type, dtype=self.dtype, cache_enabled=False)


def build(name, device_type):
    return MixedPrecision(device_type) if name == "bf16-mixed" else FullPrecision()
