"""How much of a device a run needs: what torch reserved at most, and what is used outside of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...reading.recorded import RecordedTrace


@dataclass(frozen=True)
class DeviceNeed:
    """What a run needs of a device. Bytes."""

    reserved: int
    """The most that torch held from the driver at once, its cache included."""
    outside: int | None
    """The most that was used outside PyTorch at once: CUDA's context, libraries, other processes. None: the driver did
    not report it."""
    total: int | None
    """Of the device; None if that is unknown."""

    @property
    def bytes(self) -> int | None:
        """Of the device all together. Both need not have been at their highest at once: at most so much."""
        return None if self.outside is None else self.reserved + self.outside


def device_need(trace: RecordedTrace, device: str) -> DeviceNeed | None:
    """Of the whole run; None for an allocator that reports no segments."""
    peak = trace.replay.peak("reserved", device)
    if peak is None:
        return None
    samples = trace.driver_samples(device)
    # The recorder repeats each sample that shows a change: the first may have been taken in the middle of a call that
    # takes memory from the driver, before torch's own event of it.
    used = np.ma.filled(samples["used_bytes"], -1)
    is_repeated = (used == np.append(used[1:], -1)) & (used >= 0)
    outside = np.ma.compressed(samples["outside_bytes"][~is_repeated])
    return DeviceNeed(
        reserved=peak.bytes,
        outside=int(outside.max()) if len(outside) else None,
        total=trace.device_bytes.get(device),
    )
