"""Leak reports of traces, and the leaks as a table."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ...reading.positions import Range
from ...reading.recorded import RecordedTrace
from ...reading.sites import Site
from ...reading.table import Table, texts
from ..evidence import collect_evidence
from .judge import judge_leaks
from .leak import Leak, LeakVerdict
from .outside_growth import OutsideGrowth, find_outside_growth

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class LeakReport:
    """Leaks of a trace, with the verdict on each device."""

    verdicts: Mapping[str, LeakVerdict] = field(repr=False)
    """Verdict on each device, by name."""
    outside_growth: tuple[OutsideGrowth, ...] = field(repr=False)
    """Growth of host memory that torch's allocators did not allocate; empty for a range."""
    _trace: RecordedTrace = field(repr=False)

    @property
    def conclusive(self) -> bool:
        """Whether an empty report means no leak: complete trace with events, all devices judged, growth explained."""
        decided = [verdict.decided for verdict in self.verdicts.values()]
        return self._trace.integrity.is_complete and bool(decided) and all(decided) and not self.outside_growth

    @functools.cached_property
    def leaks(self) -> tuple[Leak, ...]:
        """All leaks, likely ones first, then by rate."""
        leaks = [leak for verdict in self.verdicts.values() for leak in verdict.leaks]
        return tuple(sorted(leaks, key=lambda leak: leak.weight, reverse=True))

    def __len__(self) -> int:
        return len(self.leaks)

    def __repr__(self) -> str:
        return f"<LeakReport: {len(self.leaks)} leaks, {'conclusive' if self.conclusive else 'inconclusive'}>"

    def to_frame(self) -> pd.DataFrame:
        """Return one row per leak, in the order of `leaks`.

        Returns:
            Columns: device; filename, line, function, source of the line to inspect; leak_kind ("survivors": blocks
            that are never freed; "backlog": more and more live blocks, though each is freed; "growing": a buffer
            replaced by larger and larger blocks); bytes_per_unit (allocated bytes), unit ("step", "iteration" of a loop
            that the stacks show, or "second"), confidence (0 to 1); allocated_bytes and blocks (live at the judged
            event), allocated_bytes_at_end (of these, live at the end of the trace); minor (True: it costs next to
            nothing); oldest_age (in units), forecast_seconds (until the device is full; <NA> if its capacity is
            unknown; for "cpu" the machine's memory), stack_id (a stack through the line), holder (the referrers in
            words: "trainer.losses (list of 46), local of main() at train.py:31"; "" if unknown), holder_path
            (expression for one block: "trainer.losses[...]"), no_holder (why the holder is unknown, a value of
            `NoHolder`; "" if it is known), sites (the lines that allocate the bytes, most bytes first: dicts with
            filename, line, function, source, bytes_per_unit, allocated_bytes, blocks, stack_id).
        """
        return leaks_as_table(self._trace, self.leaks).to_frame()


def leak_report(trace: RecordedTrace, device: str | None, within: Range | None) -> LeakReport:
    """Judge one device, or all devices if None, over the whole run or the complete steps of a range."""
    evidence = {name: collect_evidence(trace, name, within) for name in trace.devices if device in (None, name)}
    verdicts = {name: judge_leaks(of_device) for name, of_device in evidence.items()}
    outside_growth: tuple[OutsideGrowth, ...] = ()
    if evidence and within is None:
        clock = next(iter(evidence.values())).clocks[0]
        outside_growth = find_outside_growth(trace, clock, [*verdicts.values()])
    return LeakReport(verdicts, outside_growth, trace)


def leaks_as_table(trace: RecordedTrace, leaks: Sequence[Leak]) -> Table:
    lines = [leak.line for leak in leaks]
    forecasts = [leak.forecast_seconds for leak in leaks]
    is_unknown = np.array([forecast is None for forecast in forecasts], np.bool_)
    return Table(
        {
            "device": texts(leak.device for leak in leaks),
            "filename": texts(line.filename for line in lines),
            "line": np.array([line.line for line in lines], np.int64),
            "function": texts(line.function for line in lines),
            "source": texts(line.source for line in lines),
            "leak_kind": texts(leak.kind for leak in leaks),
            "bytes_per_unit": np.array([leak.bytes_per_unit for leak in leaks], np.float64),
            "unit": texts(leak.unit for leak in leaks),
            "confidence": np.array([leak.confidence for leak in leaks], np.float64),
            "allocated_bytes": np.array([leak.allocated_bytes for leak in leaks], np.int64),
            "blocks": np.array([leak.blocks for leak in leaks], np.int64),
            "allocated_bytes_at_end": np.array([leak.allocated_bytes_at_end for leak in leaks], np.int64),
            "minor": np.array([leak.minor for leak in leaks], np.bool_),
            "oldest_age": np.array([leak.oldest_age for leak in leaks], np.float64),
            "forecast_seconds": np.ma.array([value or 0.0 for value in forecasts], dtype=np.float64, mask=is_unknown),
            "stack_id": np.array([_find_stack(trace, leak) for leak in leaks], np.int64),
            "holder": texts("; ".join(leak.holder.names) if leak.holder else "" for leak in leaks),
            "holder_path": texts(leak.holder.path if leak.holder else "" for leak in leaks),
            "no_holder": texts(leak.no_holder.value if leak.no_holder else "" for leak in leaks),
            "sites": texts(
                [
                    _site_data(site.site)
                    | {
                        "bytes_per_unit": site.bytes_per_unit,
                        "allocated_bytes": site.allocated_bytes,
                        "blocks": site.blocks,
                        "stack_id": site.stack_id,
                    }
                    for site in leak.sites
                ]
                for leak in leaks
            ),
        }
    )


def _site_data(site: Site) -> dict[str, Any]:
    return {"filename": site.filename, "line": site.line, "function": site.function, "source": site.source}


def _find_stack(trace: RecordedTrace, leak: Leak) -> int:
    """Return the first stack of the leak's sites that contains the line to inspect."""
    here = leak.line.filename, leak.line.line
    for site in leak.sites:
        if any((frame.filename, frame.line) == here for frame in trace.frames(site.stack_id)):
            return site.stack_id
    return leak.sites[0].stack_id
