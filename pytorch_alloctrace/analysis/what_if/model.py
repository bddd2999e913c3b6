"""Simulations of torch's allocator over a trace, and a check of the model against the recording."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..._replay import NO_LIMIT, SimulationOptions, SimulationResult
from ...errors import NotPredictableError
from ...reading.recorded import RecordedTrace
from ..free_memory.allocator import SettingsHistory
from ..free_memory.failed_allocations import ENDED, find_failed_allocations
from .settings import Setting, list_changes, parse_setting, recorded_setting

DEFAULT_OUTSIDE_BYTES = 700 << 20
"""Bytes that CUDA's context and libraries are assumed to use on a device, if the trace does not report them."""
MIN_REPRODUCED_SHARE = 0.9
"""Minimum share of the recorded segment events that the model must reproduce to make predictions."""
_MAX_BLOCKS_PER_PASS = 6_000_000
"""Maximum live blocks of all simulations in a pass, at some hundred bytes each."""
_TIMELINE_POINTS = 2000
_MANY_REQUESTS = 200_000
"""Number of requests from which on only one random order of addresses is simulated."""
UNLIMITED_BYTES = 1 << 40
"""Bytes of a device without a known size: the range that simulated addresses are drawn from."""


@dataclass(frozen=True)
class Check:
    """Agreement of the model with the recording.

    The model runs with the recorded settings, and with the driver's recorded answers and addresses.
    """

    recorded: int
    """Number of segment events in the recording."""
    reproduced: int
    """Number of these events that the model repeats: same kind, address and size, at the same request."""
    blocks: int
    """Number of allocations."""
    same_blocks: int
    """Number of allocations that get their recorded address."""
    first_difference: int | None
    """First event whose request the model serves differently; None if there is none."""
    deviation: float
    """Fraction by which ranges are widened, 0 if exact.

    It is the share of differing events or the relative error of the peak, whichever is larger.
    """

    @property
    def is_exact(self) -> bool:
        """True if the model serves every request as recorded."""
        return self.first_difference is None

    @property
    def sentence(self) -> str:
        """The check as one sentence."""
        text = f"Reproduces {self.reproduced:,} of {self.recorded:,} segment events of this recording"
        if self.blocks > self.same_blocks:
            text += f", and the addresses of {self.same_blocks:,} of {self.blocks:,} blocks"
        if self.is_exact:
            return f"{text}."
        return (
            f"{text}; the first difference is at event {self.first_difference:,}:"
            f" ranges are widened by {self.deviation:.1%}."
        )


@dataclass(frozen=True)
class Gpu:
    """Device of a simulation. Sizes in bytes."""

    device_bytes: int | None
    """Total memory in bytes; None: unlimited."""
    outside_bytes: int
    """Bytes that are not available to torch."""
    names: tuple[str, ...] = ()
    """Names of common GPUs with this memory; empty if it was given as a size."""

    @property
    def capacity_bytes(self) -> int | None:
        """Bytes that are available to torch; None: unlimited."""
        return None if self.device_bytes is None else max(self.device_bytes - self.outside_bytes, 0)


class Model:
    """Model of torch's allocator for one device; raises NotPredictableError if the trace cannot be modelled."""

    def __init__(self, trace: RecordedTrace, device: str | None = None) -> None:
        """Check that the device can be modelled. Default: the CUDA device with the most reserved bytes."""
        self.trace = trace
        self.device = _choose_device(trace, trace.named_device(device))
        _require_predictable(trace, self.device)
        self._check: Check | None = None
        self.requests = self.inherited = 0

    @property
    def check(self) -> Check:
        """Agreement of the model with the recording, from the first pass."""
        if self._check is None:
            self.run([])
        assert self._check is not None
        return self._check

    @functools.cached_property
    def changes(self) -> tuple[str, ...]:
        """Settings of the run that differ from torch's defaults; if they changed in the run, the last."""
        return list_changes(self._settings_history.before(self.device, self.trace.end_seq))

    @functools.cached_property
    def _settings_history(self) -> SettingsHistory:
        return SettingsHistory(self.trace)

    @functools.cached_property
    def recorded(self) -> Setting:
        """Settings of the run."""
        return recorded_setting(self.changes, has_changed=self._settings_history.has_changed(self.device))

    @functools.cached_property
    def fatal_failures(self) -> tuple[int, ...]:
        """Events of failed allocations after which the program allocated nothing more on the device.

        A run fits only if they are served too. After other failures the program went on: they are part of the run.
        """
        failures = find_failed_allocations(self.trace, device=self.device)
        return tuple(failure.seq for failure in failures if failure.outcome == ENDED)

    @property
    def has_memory_fraction(self) -> bool:
        """True if the recorded run had a memory fraction: it applies to every setting that has none."""
        return self.trace.kind_counts.get("memory_fraction", 0) > 0

    def setting(self, text: str) -> Setting:
        """Parse a setting; "as recorded" stands for the settings of the run."""
        setting = parse_setting(text)
        return self.recorded if setting.is_recorded else setting

    @property
    def device_bytes(self) -> int | None:
        """Total bytes of the recorded device; None if unknown."""
        return self.trace.device_bytes(self.device)

    @property
    def outside_bytes(self) -> int | None:
        """Maximum bytes of the recorded device that torch could not use; None if no driver sample reports them."""
        samples = np.ma.compressed(self.trace.driver_samples(self.device)["outside_bytes"])
        return max(int(samples.max()), 0) if len(samples) else None

    def orders(self) -> list[tuple[str, int]]:
        """Return the orders of addresses to simulate, each with its seed: the driver's own order is unknown."""
        self.check  # noqa: B018  (the first pass counts the requests)
        seeds = 6 if self.requests < _MANY_REQUESTS else 1
        return [("lowest", 0), ("highest", 0), *(("random", seed) for seed in range(seeds))]

    def simulation(
        self,
        setting: Setting,
        gpu: Gpu,
        order: tuple[str, int] = ("lowest", 0),
        *,
        must_serve: Sequence[int] = (),
        attempts_failed: bool = True,
        limit: int | None = None,
        records_events: bool = False,
        batch_factor: float = 1.0,
    ) -> SimulationOptions:
        """Return the options of a simulation.

        Args:
            setting: Setting of the allocator. Its memory fraction takes precedence over `limit`.
            gpu: GPU to simulate.
            order: Order of the driver's addresses, and its seed.
            must_serve: Events of failed allocations in the recording that must be served.
            attempts_failed: Whether all other failed allocations are tried too; without a known size, they never are.
            limit: Limit of the process in bytes.
            records_events: Whether the result has the segment events.
            batch_factor: Factor of the sizes of the requests that grow with the batch: `growing` of `run`.
        """
        total = gpu.device_bytes if gpu.device_bytes is not None else self.device_bytes or UNLIMITED_BYTES
        if setting.fraction is not None:
            limit = NO_LIMIT if setting.fraction == 1 else int(setting.fraction * total)
        return SimulationOptions(
            setting.for_release(self.trace.torch_release).json,
            gpu.capacity_bytes,
            limit,
            total,
            *order,
            sorted(must_serve),
            attempts_failed and gpu.device_bytes is not None,
            records_events,
            batch_factor,
        )

    def run(self, simulations: Sequence[SimulationOptions], growing: Sequence[int] = ()) -> list[SimulationResult]:
        """Run simulations in as few passes as memory allows; the first pass also computes `check`.

        Args:
            simulations: Options of the simulations.
            growing: Events of the requests that grow with the batch, ascending. `check` must have run before.
        """
        batch_size = max(_MAX_BLOCKS_PER_PASS // max(self._live_blocks, 1), 1)
        batches = [simulations[first : first + batch_size] for first in range(0, len(simulations), batch_size)]
        results = self._run_first_pass(batches.pop(0) if batches else ()) if self._check is None else []
        for batch in batches:
            results += _require_unambiguous(
                self.trace.predicted(batch, device=self.device, growing=growing).simulations
            )
        return results

    @functools.cached_property
    def _live_blocks(self) -> int:
        """Approximate maximum of live blocks."""
        return int(self.trace.timeline(_TIMELINE_POINTS, self.device)["blocks"].max(initial=0))

    def _run_first_pass(self, simulations: Sequence[SimulationOptions]) -> list[SimulationResult]:
        recorded_run = SimulationOptions(order="recorded", total=self.device_bytes or UNLIMITED_BYTES)
        prediction = self.trace.predicted([recorded_run, *simulations], device=self.device)
        if prediction.inherits_expandable:
            raise NotPredictableError(
                "beginning",
                "The recording began while torch had expandable segments, whose address ranges are unknown: record the"
                " program from its start.",
            )
        self.requests, self.inherited = prediction.requests, prediction.inherited
        self._check = self._compare_with_recording(_require_unambiguous(prediction.simulations)[0])
        return prediction.simulations[1:]

    def _compare_with_recording(self, simulation: SimulationResult) -> Check:
        peak = self.trace.replay.peak("reserved", self.device)
        recorded_peak = peak.bytes if peak is not None else 0
        if simulation.failure is not None:
            raise _not_reproduced_error(simulation.reproduced, simulation.recorded_events)
        if simulation.first_difference is None:
            if simulation.peak_reserved != recorded_peak:
                raise NotPredictableError(
                    "check",
                    f"The model reserves at most {simulation.peak_reserved:,} bytes where the recording reserved"
                    f" {recorded_peak:,}, so its predictions for other settings are unreliable: run the program under"
                    " the setting instead.",
                )
            return Check(
                simulation.recorded_events, simulation.reproduced, simulation.blocks, simulation.same_blocks, None, 0.0
            )
        differing_share = 1 - simulation.reproduced / max(simulation.recorded_events, 1)
        peak_error = abs(simulation.peak_reserved - recorded_peak) / max(recorded_peak, 1)
        if differing_share > 1 - MIN_REPRODUCED_SHARE or peak_error > 1 - MIN_REPRODUCED_SHARE:
            raise _not_reproduced_error(simulation.reproduced, simulation.recorded_events)
        return Check(
            *(simulation.recorded_events, simulation.reproduced, simulation.blocks, simulation.same_blocks),
            *(simulation.first_difference, max(differing_share, peak_error)),
        )


def _require_unambiguous(simulations: list[SimulationResult]) -> list[SimulationResult]:
    """Return the simulations; raise NotPredictableError if torch's choice of a pool is ambiguous in one."""
    ambiguous_events = [simulation.several_pools for simulation in simulations if simulation.several_pools is not None]
    if ambiguous_events:
        raise NotPredictableError(
            "pools",
            f"At event {min(ambiguous_events):,} torch would take a block from one of several pools with use_on_oom, in"
            " an unknown order: run the program under the setting instead.",
        )
    return simulations


def _not_reproduced_error(reproduced: int, recorded: int) -> NotPredictableError:
    return NotPredictableError(
        "check",
        f"The model reproduces only {reproduced:,} of {recorded:,} segment events of this recording, so its predictions"
        " for other settings are unreliable: run the program under the setting instead.",
    )


def _choose_device(trace: RecordedTrace, device: str | None) -> str:
    if device is not None:
        if not device.startswith("cuda"):
            raise NotPredictableError(
                "device",
                f"{device} does not use torch's CUDA allocator, the only one that is modelled: name a CUDA device.",
            )
        return device
    cuda_devices = [name for name in trace.replay.used_devices if name.startswith("cuda")]
    if not cuda_devices:
        raise NotPredictableError(
            "device", "The trace has no CUDA allocations: record a program that uses a CUDA device."
        )

    def peak_reserved(name: str) -> int:
        peak = trace.replay.peak("reserved", name)
        return peak.bytes if peak is not None else 0

    return max(cuda_devices, key=peak_reserved)


def _require_predictable(trace: RecordedTrace, device: str) -> None:
    """Raise NotPredictableError if the header or the event counts show something that is not modelled."""
    timeline = trace.replay.devices.get(device)
    if timeline is None or not timeline.reports_segments:
        raise NotPredictableError(
            "allocator",
            f"{device} did not use torch's caching allocator, but the backend cudaMallocAsync, a custom allocator or no"
            " caching: record the program with torch's default allocator.",
        )
    compacted = trace.integrity.compacted_until
    if compacted:
        raise NotPredictableError(
            "beginning",
            f"the trace is compacted up to event {compacted - 1:,}, so earlier requests are missing: use the original"
            " trace.",
        )
    missing = trace.integrity.lost + trace.integrity.missing_events
    if missing:
        raise NotPredictableError(
            "incomplete",
            f"{missing:,} events of the trace are missing, and any of them may be a request: record the program again.",
        )
    counts = trace.kind_counts
    if counts.get("pool_restore"):
        raise NotPredictableError(
            "pools",
            "CUDA graphs restored memory pools to earlier states, which is not modelled: run the program under the"
            " setting instead.",
        )
