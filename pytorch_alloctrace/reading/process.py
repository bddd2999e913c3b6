"""The devices and the threads of the program, as tables."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from .. import _replay
from .dtypes import no_rows
from .kinds import device_name

_DEVICE_COLUMNS = ("device", "name", "bytes", "uuid", "pci_address")
_THREAD_COLUMNS = ("thread", "native_id", "name", "autograd_id")


def device_table(devices: Sequence[_replay.Device]) -> pd.DataFrame:
    """See `Trace.hardware`."""
    rows = [
        (device_name(one.device_type, one.device_index), one.name, one.bytes, one.uuid, one.pci_address)
        for one in devices
    ]
    return pd.DataFrame(rows, columns=[*_DEVICE_COLUMNS]) if rows else no_rows(_DEVICE_COLUMNS)


def thread_table(threads: Sequence[_replay.Thread]) -> pd.DataFrame:
    """See `Trace.threads`. threads: by number; there is none of number 0."""
    rows = [
        (number, thread.native_id, thread.python_name or thread.name, thread.autograd_id)
        for number, thread in enumerate(threads)
        if number
    ]
    return pd.DataFrame(rows, columns=[*_THREAD_COLUMNS]) if rows else no_rows(_THREAD_COLUMNS)
