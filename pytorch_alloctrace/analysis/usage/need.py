"""How much of a device a run needs: what torch reserved at most, and what is used outside of it."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

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
    samples = trace.driver_memory(device=device)
    # The recorder repeats each sample that shows a change: the first may have been taken in the middle of a call that
    # takes memory from the driver, before torch's own event of it.
    is_repeated = samples["used"].eq(samples["used"].shift(-1)).fillna(False).astype(bool)
    outside = samples.loc[~is_repeated, "outside"].max()
    sizes = trace.hardware.loc[trace.hardware["device"] == device, "bytes"]
    return DeviceNeed(
        reserved=peak.bytes,
        outside=None if pd.isna(outside) else int(outside),
        total=None if sizes.empty else int(sizes.iloc[0]),
    )
