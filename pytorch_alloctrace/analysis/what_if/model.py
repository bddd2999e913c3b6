"""The model of torch's allocator, run over a trace: many simulations at once, checked against the recording."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..._replay import NO_LIMIT, SimulationOptions, SimulationResult
from ...errors import NotPredictableError
from ...reading.recorded import RecordedTrace
from .settings import Setting

USUAL_OUTSIDE = 700 << 20
"""Bytes of a device that torch does not get, where the trace does not say: CUDA's context and libraries."""
LEAST_REPRODUCED = 0.9
"""A model that makes fewer of the recorded segment events says nothing about others."""
_MOST_BLOCKS = 6_000_000
"""Live blocks of all simulations of a pass: each takes some hundred bytes. What is more is another pass."""
_TIMELINE_POINTS = 2000
_FEW = 200_000
"""Requests of a trace that are run under more orders of addresses."""
UNLIMITED = 1 << 40
"""Memory of a device that is assumed unlimited, in bytes: ranges of addresses are drawn from it."""


@dataclass(frozen=True)
class Check:
    """How much of the recording itself the model reproduces, given the recorded settings, and the driver's recorded
    answers and addresses."""

    recorded: int
    """Segment events of the recording."""
    reproduced: int
    """Those that the model makes too: the same kind, address and size, at the same request."""
    blocks: int
    """Allocations."""
    same_blocks: int
    """Those that get the recorded address."""
    first_difference: int | None
    """The first event whose request the model serves otherwise; None if there is none."""
    deviation: float
    """By how much ranges are widened: the share of events that differ, or that by which the peak does; 0 if none."""

    @property
    def is_exact(self) -> bool:
        """Whether it is all of them."""
        return self.first_difference is None

    @property
    def sentence(self) -> str:
        """In words."""
        said = f"Reproduces {self.reproduced:,} of {self.recorded:,} segment events of this recording"
        if self.blocks > self.same_blocks:
            said += f", and the addresses of {self.same_blocks:,} of {self.blocks:,} blocks"
        if self.is_exact:
            return f"{said}."
        return (
            f"{said}, the first other one at event {self.first_difference:,}: ranges are wider by {self.deviation:.1%}."
        )


@dataclass(frozen=True)
class Gpu:
    """A device to run on. In bytes."""

    device_bytes: int | None
    """Total memory; None: unlimited."""
    outside_bytes: int
    """Memory that is not available to torch."""

    @property
    def capacity_bytes(self) -> int | None:
        """What torch can have."""
        return None if self.device_bytes is None else max(self.device_bytes - self.outside_bytes, 0)


class Model:
    """The model of one device of a trace. Raises NotPredictableError where it does not hold."""

    def __init__(self, trace: RecordedTrace, device: str | None = None) -> None:
        """device: default the CUDA device with the most reserved."""
        self.trace = trace
        self.device = _device(trace, trace.named_device(device))
        _refuse(trace, self.device)
        self._check: Check | None = None
        self.requests = self.inherited = 0

    @property
    def check(self) -> Check:
        """How well it reproduces the recording."""
        if self._check is None:
            self.run([])
        assert self._check is not None
        return self._check

    @property
    def device_bytes(self) -> int | None:
        """Bytes of the recorded device; None if unknown."""
        samples = np.ma.compressed(self.trace.driver_samples(self.device)["total_bytes"])
        return self.trace.device_bytes.get(self.device, int(samples.max()) if len(samples) else None)

    @property
    def outside_bytes(self) -> int | None:
        """The most bytes that torch did not get of the recorded device; None if no sample of the driver says."""
        samples = np.ma.compressed(self.trace.driver_samples(self.device)["outside_bytes"])
        return max(int(samples.max()), 0) if len(samples) else None

    def orders(self) -> list[tuple[str, int]]:
        """The orders of addresses that are tried, with their seeds: the driver's are not known before a run."""
        self.check  # noqa: B018  (it counts the requests)
        seeds = 6 if self.requests < _FEW else 1
        return [("lowest", 0), ("highest", 0), *(("random", seed) for seed in range(seeds))]

    def simulation(
        self,
        setting: Setting,
        gpu: Gpu,
        order: tuple[str, int] = ("lowest", 0),
        *,
        must_serve: Sequence[int] | None = None,
        limit: int | None = None,
        keeps_events: bool = False,
    ) -> SimulationOptions:
        """A run under a setting, on a GPU. must_serve: of the requests that the recorded run was refused, those that
        it has to get, by event; None: all are tried, and none has to be served. limit: bytes that the process may
        reserve (None: as the setting says)."""
        total = gpu.device_bytes if gpu.device_bytes is not None else self.device_bytes or UNLIMITED
        if setting.fraction is not None:
            limit = NO_LIMIT if setting.fraction == 1 else int(setting.fraction * total)
        is_tried = must_serve is None and gpu.device_bytes is not None
        return SimulationOptions(
            setting.for_release(self.trace.torch_release).json,
            gpu.capacity_bytes,
            limit,
            total,
            *order,
            sorted(must_serve or ()),
            is_tried,
            keeps_events,
        )

    def run(self, simulations: Sequence[SimulationOptions]) -> list[SimulationResult]:
        """Run simulations in one pass, or in several if memory is short; the first also checks the model."""
        at_once = max(_MOST_BLOCKS // max(self._live_blocks, 1), 1)
        passes = [simulations[first : first + at_once] for first in range(0, len(simulations), at_once)]
        found = self._first_pass(passes.pop(0) if passes else ()) if self._check is None else []
        for some in passes:
            found += _unambiguous(self.trace.predicted(some, device=self.device).simulations)
        return found

    @functools.cached_property
    def _live_blocks(self) -> int:
        """About the most there were at once."""
        return int(self.trace.timeline(_TIMELINE_POINTS, self.device)["blocks"].max(initial=0))

    def _first_pass(self, simulations: Sequence[SimulationOptions]) -> list[SimulationResult]:
        itself = SimulationOptions(order="recorded", total=self.device_bytes or UNLIMITED)
        found = self.trace.predicted([itself, *simulations], device=self.device)
        if found.inherits_expandable:
            raise NotPredictableError(
                "beginning",
                "The recording began when torch had expandable segments, whose ranges are not known: record the program"
                " from its start.",
            )
        self.requests, self.inherited = found.requests, found.inherited
        self._check = self._checked(_unambiguous(found.simulations)[0])
        return found.simulations[1:]

    def _checked(self, simulation: SimulationResult) -> Check:
        peak = self.trace.replay.peak("reserved", self.device)
        recorded_peak = peak.bytes if peak is not None else 0
        if simulation.refusal is not None:
            raise _not_reproduced(simulation.reproduced, simulation.recorded_events)
        if simulation.first_difference is None:
            return Check(
                simulation.recorded_events, simulation.reproduced, simulation.blocks, simulation.same_blocks, None, 0.0
            )
        share = 1 - simulation.reproduced / max(simulation.recorded_events, 1)
        off = abs(simulation.peak_reserved - recorded_peak) / max(recorded_peak, 1)
        if share > 1 - LEAST_REPRODUCED or off > 1 - LEAST_REPRODUCED:
            raise _not_reproduced(simulation.reproduced, simulation.recorded_events)
        return Check(
            *(simulation.recorded_events, simulation.reproduced, simulation.blocks, simulation.same_blocks),
            *(simulation.first_difference, max(share, off)),
        )


def _unambiguous(simulations: list[SimulationResult]) -> list[SimulationResult]:
    """The simulations; raises NotPredictableError where one took what torch might not take."""
    at = [simulation.several_pools for simulation in simulations if simulation.several_pools is not None]
    if at:
        raise NotPredictableError(
            "pools",
            f"At event {min(at):,} torch would take a block of one of several pools with use_on_oom, and which of them"
            " is not known: try a setting by running the program under it.",
        )
    return simulations


def _not_reproduced(reproduced: int, recorded: int) -> NotPredictableError:
    return NotPredictableError(
        "check",
        f"The model reproduces only {reproduced:,} of {recorded:,} segment events of this recording, so that what it"
        " says of other settings cannot be trusted: try a setting by running the program under it.",
    )


def _device(trace: RecordedTrace, device: str | None) -> str:
    if device is not None:
        if not device.startswith("cuda"):
            raise NotPredictableError(
                "device",
                f"{device} is not served by torch's CUDA allocator, which is what is modelled: name a CUDA device.",
            )
        return device
    known = [name for name in trace.replay.used_devices if name.startswith("cuda")]
    if not known:
        raise NotPredictableError("device", "The trace has no memory of a CUDA device: record a program that uses one.")

    def reserved(name: str) -> int:
        peak = trace.replay.peak("reserved", name)
        return peak.bytes if peak is not None else 0

    return max(known, key=reserved)


def _refuse(trace: RecordedTrace, device: str) -> None:
    """Raises NotPredictableError for what is not modelled, as far as the trace says so without a look at each event."""
    timeline = trace.replay.devices.get(device)
    if timeline is None or not timeline.reports_segments:
        raise NotPredictableError(
            "allocator",
            f"{device} was not served by torch's caching allocator (the backend cudaMallocAsync, an allocator of the"
            " program's own, or caching switched off): record it with torch's default allocator.",
        )
    compacted = trace.integrity.compacted_until
    if compacted:
        raise NotPredictableError(
            "beginning",
            f"the trace is compacted up to event {compacted - 1:,} and no longer has the requests before it: use the "
            "whole trace.",
        )
    missing = trace.integrity.lost + trace.integrity.missing_events
    if missing:
        raise NotPredictableError(
            "incomplete",
            f"{missing:,} events of the trace are missing, and each of them may have been a request: record it again.",
        )
    counts = trace.kind_counts
    if counts.get("pool_restore"):
        raise NotPredictableError(
            "pools",
            "CUDA graphs put memory pools back to earlier states, which the model does not follow: try a setting by"
            " running the program under it.",
        )
