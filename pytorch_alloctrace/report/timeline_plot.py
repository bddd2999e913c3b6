"""A timeline drawn with matplotlib: see `Trace.plot_timeline`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ..errors import MissingPackageError
from .units import duration, size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LAYERS = (
    ("allocated", "#2b6cb0", "allocated"),
    ("active", "#90cdf4", "freed, awaited by another stream"),
    ("unreleasable", "#f6ad55", "cached, stranded among live blocks"),
    ("reserved", "#fde8c8", "cached, releasable by empty_cache()"),
)
"""Each reaches from the one before it to its own level."""


def plot_timeline(timeline: pd.DataFrame, axes: Axes | None = None) -> Figure:
    """Draws what `Trace.timeline` returns: for each device allocated, cached by kind, and used by the driver's account.

    axes: where to draw (one device); otherwise a figure is made, with one chart a device. Raises MissingPackageError
    without matplotlib, ValueError for an empty timeline or for `axes` with several devices.
    """
    try:
        from matplotlib import pyplot
    except ImportError:
        raise MissingPackageError("a timeline is drawn with matplotlib: pip install matplotlib") from None
    devices = list(timeline["device"].unique())
    if not devices:
        raise ValueError("this timeline has no device: nothing was allocated")
    if axes is not None:
        if len(devices) > 1:
            raise ValueError(f"axes= holds one device, and this timeline has {', '.join(devices)}: give device=")
        _draw(axes, timeline, devices[0])
        figure = axes.get_figure()
        assert figure is not None
        return figure  # type: ignore[return-value]
    figure, charts = pyplot.subplots(len(devices), figsize=(10, 3.2 * len(devices)), squeeze=False, sharex=True)
    begin = int(timeline["time_ns"].min())
    for chart, device in zip(charts[:, 0], devices, strict=True):
        _draw(chart, timeline[timeline["device"] == device], device, begin)
    figure.tight_layout()
    return figure


def _draw(axes: Axes, table: pd.DataFrame, device: str, begin_ns: int | None = None) -> None:
    from matplotlib.ticker import FuncFormatter, MultipleLocator

    begin = int(table["time_ns"].min()) if begin_ns is None else begin_ns
    seconds = (table["time_ns"].to_numpy(np.int64) - begin) / 1e9
    levels = {name: _floats(table[name]) for name in ("allocated", "active", "reserved", "releasable", "outside")}
    levels["unreleasable"] = levels["reserved"] - levels["releasable"]
    below = np.zeros(len(table))
    for name, color, label in _LAYERS:
        level = levels[name]
        if not (level > below).any():
            continue
        axes.fill_between(seconds, below, np.maximum(level, below), step="post", color=color, label=label, linewidth=0)
        below = np.maximum(level, below)
    # The highest within each interval, so that a peak between two drawn moments is seen.
    highest = _floats(table["allocated_max"])
    axes.step(seconds, highest, where="post", color="#1a365d", linewidth=0.8, label="allocated, at most")
    used = levels["reserved"] + levels["outside"]
    if not np.isnan(used).all():
        axes.step(
            seconds, used, where="post", color="#718096", linestyle="--", linewidth=1, label="used, by the driver"
        )
    peak = int(np.nanargmax(highest))
    axes.annotate(
        f"{size(highest[peak])} at {duration(seconds[peak])}",
        (seconds[peak], highest[peak]),
        xytext=(0, 6),
        textcoords="offset points",
        ha="right" if peak > 0.8 * len(table) else "left" if peak < 0.2 * len(table) else "center",
        fontsize=8,
    )
    axes.set_title(device, loc="left", fontsize=10, fontweight="bold")
    axes.set_xlabel("seconds")
    top = max(np.nanmax(below), np.nanmax(highest), np.nanmax(used, initial=0), 1)
    axes.set_ylim(bottom=0, top=top * 1.15)
    axes.margins(x=0)
    axes.yaxis.set_major_locator(MultipleLocator(2 ** max(np.ceil(np.log2(top / 6)), 0)))  # whole MiB and GiB
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: size(value)))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), fontsize=8, frameon=False)


def _floats(column: pd.Series[Any]) -> Any:
    """As an array; what is not told is NaN."""
    return column.astype("Float64").to_numpy(dtype=np.float64, na_value=np.nan)
