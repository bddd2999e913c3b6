"""Frees of the caching allocator: `free_completed`, after `free_requested` if the block is not reusable at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .names import KINDS
from .recorded import FREES, RecordedTrace
from .table import PENDING_FREE

_REQUESTED, _COMPLETED = (KINDS.index(kind) for kind in FREES)


def were_not_requested(
    trace: RecordedTrace,
    seq: NDArray[np.int64],
    kind: NDArray[Any],
    device: NDArray[Any],
    address: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """Return a mask of the `free_completed` events without a preceding `free_requested`, which stand for both.

    The arguments are columns of consecutive events, with every alloc and free of their devices. kind is a number.
    """
    devices, of_device = np.unique(device.astype(str), return_inverse=True)
    order = np.lexsort([np.arange(len(seq)), address, of_device])
    is_same = np.zeros(len(seq), np.bool_)
    is_same[1:] = (address[order][1:] == address[order][:-1]) & (of_device[order][1:] == of_device[order][:-1])
    previous_kind = np.full(len(seq), -1, np.int64)  # at the same address
    previous_kind[order[1:]] = np.where(is_same[1:], kind[order][:-1].astype(np.int64), -1)
    is_alone: NDArray[np.bool_] = (kind == _COMPLETED) & (previous_kind != _REQUESTED)
    first_of_block = np.flatnonzero(is_alone & (previous_kind == -1))
    if len(first_of_block):
        first_free = int(seq[(kind == _REQUESTED) | (kind == _COMPLETED)][0])
        for name in devices_with_two_events(trace) & set(devices[of_device[first_of_block]].tolist()):
            rows = first_of_block[devices[of_device[first_of_block]] == name]
            blocks = trace.replay.blocks(first_free, name)
            is_alone[rows] = ~np.isin(address[rows], blocks["address"][blocks["state"] == PENDING_FREE])
    return is_alone


def devices_with_two_events(trace: RecordedTrace) -> set[str]:
    """Return the devices of the caching allocator, the only allocator that reports free requests and segments."""
    return {name for name, timeline in trace.replay.devices.items() if timeline.reports_segments}
