"""Timeline as text, and as a matplotlib figure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from rich.text import Text

from ..errors import MissingPackageError
from ..reading.replay import MEASURES
from . import units
from .screen import Screen

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LAYERS = (
    ("allocated_bytes", "#2b6cb0", "allocated"),
    ("active_bytes", "#90cdf4", "freed, awaited by another stream"),
    ("unreleasable", "#f6ad55", "cached, stranded among live blocks"),
    ("reserved_bytes", "#fde8c8", "cached, releasable by empty_cache()"),
)
"""Column, colour and label of each stacked layer, from bottom to top."""
_CHARTS = (*MEASURES, "outside_bytes")
_NAME_WIDTH = 14
_ROLE_WIDTH = 18
_SIZE_WIDTH = 11


def write_timeline(timeline: pd.DataFrame, screen: Screen) -> None:
    if timeline.empty:
        screen.text("Nothing was allocated.")
    for device, rows in timeline.groupby("device", sort=False):
        room = _write_headings(str(device), rows, screen, _NAME_WIDTH)
        for name in _CHARTS:
            highest = rows[f"{name}_max"] if f"{name}_max" in rows else rows[name]
            if highest.isna().all():
                continue
            levels = [int(level) for level in highest.dropna()]
            chart = units.sparkline(levels, room, plain=screen.plain)
            line = Text.assemble(
                f"{name.removesuffix('_bytes').replace('_', ' '):{_NAME_WIDTH}}", (f"{chart:{room}}", "green")
            )
            lowest = rows[f"{name}_min" if f"{name}_min" in rows else name].min()
            sizes = units.size(int(lowest)), units.size(max(levels)), _format_last(rows[name])
            line.append("".join(f"{size:>{_SIZE_WIDTH}}" for size in sizes))
            screen.text(line, 2)
        shares = rows["external_fragmentation"].dropna()
        if len(shares):
            highest_share, last_share = (units.share(value, 1) for value in (shares.max(), shares.iloc[-1]))
            screen.text(f"external fragmentation: at most {highest_share}, at the end {last_share}", 2)


def write_role_timeline(timeline: pd.DataFrame, screen: Screen) -> None:
    """Write a chart of each role; `timeline` is a result of `reading.tables.role_timeline`."""
    if timeline.empty:
        screen.text("Nothing was allocated.")
    for device, rows in timeline.groupby("device", sort=False):
        room = _write_headings(str(device), rows, screen, _ROLE_WIDTH)
        for role in (name for name in rows.columns[2:] if rows[name].any()):
            levels = [int(level) for level in rows[role]]
            chart = units.sparkline(levels, room, plain=screen.plain)
            sizes = (units.size(size) for size in (min(levels), max(levels), levels[-1]))
            line = Text.assemble(f"{role:{_ROLE_WIDTH}}", (f"{chart:{room}}", "green"))
            screen.text(line.append("".join(f"{size:>{_SIZE_WIDTH}}" for size in sizes)), 2)


def _write_headings(device: str, rows: pd.DataFrame, screen: Screen, name_width: int) -> int:
    """Write the headings of a device; return the width of its charts."""
    seconds = (int(rows["time_ns"].iloc[-1]) - int(rows["time_ns"].iloc[0])) / 1e9
    room = max(min(screen.width - name_width - 3 * _SIZE_WIDTH - 2, 60), 0)
    title = f"{device}  over {units.duration(seconds)}"
    headings = "".join(f"{heading:>{_SIZE_WIDTH}}" for heading in ("lowest", "highest", "at the end"))
    screen.text(Text.assemble((f"{title:{name_width + room + 2}}", "bold"), headings))
    return room


def _format_last(values: pd.Series[Any]) -> str:
    last = values.iloc[-1]
    return "unknown" if pd.isna(last) else units.size(int(last))


def plot_timeline(timeline: pd.DataFrame, axes: Axes | None = None) -> Figure:
    """Draw allocated, cached and driver-reported memory of each device over time.

    Args:
        timeline: The result of `Trace.timeline`: times in nanoseconds, sizes in bytes.
        axes: The axes for a timeline of one device. None creates a figure with one chart per device.

    Returns:
        The figure.

    Raises:
        MissingPackageError: If matplotlib is not installed.
        ValueError: If the timeline is empty, or has several devices for one `axes`.
    """
    try:
        from matplotlib import pyplot
    except ImportError:
        raise MissingPackageError("drawing a timeline needs matplotlib: pip install matplotlib") from None
    devices = list(timeline["device"].unique())
    if not devices:
        raise ValueError("this timeline has no device: nothing was allocated")
    if axes is not None:
        if len(devices) > 1:
            raise ValueError(f"axes= takes one device, but this timeline has {', '.join(devices)}: pass device=")
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
    levels = {name: _to_floats(table[name]) for name in (*MEASURES[1:5], "outside_bytes")}
    levels["unreleasable"] = levels["reserved_bytes"] - levels["releasable_bytes"]
    base = np.zeros(len(table))
    for name, color, label in _LAYERS:
        level = levels[name]
        if not (level > base).any():
            continue
        axes.fill_between(seconds, base, np.maximum(level, base), step="post", color=color, label=label, linewidth=0)
        base = np.maximum(level, base)
    # The maximum of each interval: a peak between two points must be visible.
    maxima = _to_floats(table["allocated_bytes_max"])
    axes.step(seconds, maxima, where="post", color="#1a365d", linewidth=0.8, label="allocated, at most")
    used = levels["reserved_bytes"] + levels["outside_bytes"]
    if not np.isnan(used).all():
        axes.step(
            seconds, used, where="post", color="#718096", linestyle="--", linewidth=1, label="used, by the driver"
        )
    peak = int(np.nanargmax(maxima))
    axes.annotate(
        f"{units.size(maxima[peak])} at {units.duration(seconds[peak])}",
        (seconds[peak], maxima[peak]),
        xytext=(0, 6),
        textcoords="offset points",
        ha="right" if peak > 0.8 * len(table) else "left" if peak < 0.2 * len(table) else "center",
        fontsize=8,
    )
    axes.set_title(device, loc="left", fontsize=10, fontweight="bold")
    axes.set_xlabel("seconds")
    y_max = max(np.nanmax(base), np.nanmax(maxima), np.nanmax(used, initial=0), 1)
    axes.set_ylim(bottom=0, top=y_max * 1.15)
    axes.margins(x=0)
    # Ticks at powers of two: whole MiB and GiB.
    axes.yaxis.set_major_locator(MultipleLocator(2 ** max(np.ceil(np.log2(y_max / 6)), 0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: units.size(value)))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), fontsize=8, frameon=False)


def _to_floats(column: pd.Series[Any]) -> Any:
    """Return a float array with NaN for unknown values."""
    return column.astype("Float64").to_numpy(dtype=np.float64, na_value=np.nan)
