"""How much more a device can take, and until when."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ...reading.recorded import RecordedTrace
from .windows import Windows


def room(trace: RecordedTrace, device: str, windows: Windows, live: int) -> int | None:
    """Bytes that could still be allocated when the judged part of the run ended, with `live` (requested) bytes in use;
    None where the capacity is not known.

    What the driver says is free, and what torch only caches: of what it has reserved, all but the live bytes. Of "cpu"
    the memory of the machine without what this process had resident; what other processes use is not known. Where the
    driver told nothing, the device's size without the live bytes.
    """
    samples = trace.driver_memory(device=device)
    samples = samples[samples["total"].notna() & samples["used"].notna()]
    if samples.empty:
        sizes = trace.hardware.loc[trace.hardware["device"] == device, "bytes"]
        return None if sizes.empty else max(int(sizes.iloc[0]) - live, 0)
    before = np.searchsorted(samples["time_ns"].to_numpy(np.int64), windows.judged_ns, side="right")
    sample = samples.iloc[max(int(before) - 1, 0)]
    cached = 0 if pd.isna(sample["reserved"]) else max(int(sample["reserved"]) - live, 0)
    return max(int(sample["total"]) - int(sample["used"]) + cached, 0)


def seconds_until_full(free: int | None, rate: float, windows: Windows) -> float | None:
    """Seconds until `free` bytes are used at a rate in bytes per unit; None where either is not known."""
    return free / rate * windows.seconds_per_unit if free is not None and rate > 0 else None
