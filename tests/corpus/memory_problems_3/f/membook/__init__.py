"""Bookkeeping of what lies on the device."""
from .account import PeakWatch, gradients, optimizer_tensors, report, storage_bytes

__all__ = ["PeakWatch", "gradients", "optimizer_tensors", "report", "storage_bytes"]
